"""Reads the golden answers of the API's tests with the types of the official clients: `golden.py FOLDER`."""

import json
import pathlib
import sys

import anthropic.types
import openai.types.responses
import pydantic

folder = pathlib.Path(sys.argv[1])
RESPONSE_EVENT = pydantic.TypeAdapter(openai.types.responses.ResponseStreamEvent)
MESSAGE_EVENT = pydantic.TypeAdapter(anthropic.types.RawMessageStreamEvent)


def frames(path):
    """The name and the data of each event."""
    for frame in path.read_text().split("\n\n"):
        lines = [line for line in frame.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            yield name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def responses():
    files = sorted(folder.glob("responses-*.sse"))
    for path in files:
        events = [(name, RESPONSE_EVENT.validate_python(data)) for name, data in frames(path)]
        for number, (name, event) in enumerate(events):
            assert event.type == name and event.sequence_number == number, (path, event)
        last = events[-1][1].response
        texts = [event.delta for _, event in events if event.type == "response.output_text.delta"]
        assert "".join(texts) == last.output_text, (path, last)
        done = [event.item.id for _, event in events if event.type == "response.output_item.done"]
        assert done == [item.id for item in last.output], (path, last)
        for item in last.output:
            assert type(item).__name__ in ("ResponseOutputMessage", "ResponseReasoningItem", "ResponseFunctionToolCall")
    whole = json.loads((folder / "responses-whole.json").read_text())
    response = openai.types.responses.Response.model_validate(whole)
    assert response.output_text == "I look." and response.output[2].name == "look", response
    return len(files) + 1


def messages():
    files = sorted(folder.glob("messages-*.sse"))
    for path in files:
        events = []
        for name, data in frames(path):
            assert data["type"] == name, (path, data)
            if name == "error":
                error = anthropic.types.ErrorResponse.model_validate(data)
                assert type(error.error).__name__.endswith("Error") or error.error.type, error
            elif name != "ping":
                events.append(MESSAGE_EVENT.validate_python(data))
        opened = [event.index for event in events if event.type == "content_block_start"]
        assert opened == list(range(len(opened))), path
        if "failed" not in path.name:
            assert events[-1].type == "message_stop" and events[-2].usage.output_tokens == 5, path
    whole = json.loads((folder / "messages-whole.json").read_text())
    message = anthropic.types.Message.model_validate(whole)
    assert [block.type for block in message.content[:3]] == ["thinking", "text", "tool_use"], message
    return len(files) + 1


print(f"{responses()} responses and {messages()} messages: all checks passed")
