"""What Anthropic's own client sees of a Camshaft server: `anthropic_client.py BASE_URL KEY KEY_FOR_ANOTHER_MODEL`."""

import asyncio
import sys

import anthropic

base, key, other_key = sys.argv[1:]
# Without retries: the first answer counts.
client = anthropic.Anthropic(base_url=base, api_key=key, max_retries=0, timeout=60)
SUM = [{"role": "user", "content": "What is 3 plus 4?"}]
STORY = [{"role": "user", "content": "Tell me a story."}]


def messages():
    message = client.messages.create(model="demo", max_tokens=60, messages=SUM, extra_body={"temperature": 0})
    assert message.type == "message" and message.role == "assistant" and message.model == "demo", message
    assert [block.type for block in message.content] == ["text"] and message.content[0].text, message
    assert message.stop_reason == "end_turn" and message.stop_sequence is None, message
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 0, message
    assert message.usage.output_tokens > 0, message
    return message.content[0].text


def takes_its_own_message_back(expected):
    message = client.messages.create(model="demo", max_tokens=60, messages=SUM, extra_body={"temperature": 0}, system="Answer briefly.")
    talk = [*SUM, message.to_param() if hasattr(message, "to_param") else {"role": "assistant", "content": message.content},
            {"role": "user", "content": [{"type": "text", "text": "What is 2 plus 2?", "cache_control": {"type": "ephemeral"}}]}]
    again = client.messages.create(model="demo", max_tokens=60, messages=talk, extra_body={"temperature": 0})
    assert again.content and expected, again


def streams(expected):
    events = list(client.messages.create(model="demo", max_tokens=60, messages=SUM, extra_body={"temperature": 0}, stream=True))
    assert events[0].type == "message_start" and events[-1].type == "message_stop", events
    assert events[0].message.usage.input_tokens > 0, events[0]
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == expected, (text, expected)
    assert events[-2].delta.stop_reason == "end_turn" and events[-2].usage.output_tokens > 0, events[-2]


def streams_with_the_helper(expected):
    with client.messages.stream(model="demo", max_tokens=60, messages=SUM, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == expected == final.content[0].text and final.stop_reason == "end_turn", final


def leaves_a_stream():
    with client.messages.create(model="demo", max_tokens=400, messages=STORY, stream=True) as stream:
        next(iter(stream))


def is_cut():
    message = client.messages.create(model="demo", max_tokens=2, messages=STORY)
    assert message.stop_reason == "max_tokens" and message.usage.output_tokens == 2, message


def counts():
    count = client.messages.count_tokens(model="demo", messages=SUM, system="Answer briefly.").input_tokens
    message = client.messages.create(model="demo", max_tokens=2, messages=SUM, system="Answer briefly.")
    assert count == message.usage.input_tokens + message.usage.cache_read_input_tokens, (count, message.usage)


def raises(kind, status, call, said):
    try:
        call()
    except anthropic.APIStatusError as error:
        assert type(error) is kind and error.status_code == status and error.request_id, (kind, type(error), error)
        assert error.body["error"]["type"] == said and error.body["type"] == "error", error.body
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def raises_its_own_exceptions():
    def message(client=client, **fields):
        return client.messages.create(**{"model": "demo", "max_tokens": 5, "messages": SUM, **fields})

    bad = "invalid_request_error"
    raises(anthropic.BadRequestError, 400, lambda: message(max_tokens=-1), bad)
    raises(anthropic.BadRequestError, 400, lambda: message(messages=[]), bad)
    raises(anthropic.BadRequestError, 400, lambda: message(extra_body={"temperature": 3}, stream=True), bad)
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    raises(anthropic.BadRequestError, 400, lambda: message(messages=[{"role": "user", "content": [image]}]), bad)
    raises(anthropic.AuthenticationError, 401, lambda: message(client.with_options(api_key="sk-wrong")), "authentication_error")
    raises(anthropic.PermissionDeniedError, 403, lambda: message(client.with_options(api_key=other_key)), "permission_error")
    raises(anthropic.NotFoundError, 404, lambda: message(model="nope"), "not_found_error")
    raises(anthropic.NotFoundError, 404, lambda: client.messages.batches.list(), "not_found_error")


async def streams_at_once(expected):
    async with anthropic.AsyncAnthropic(base_url=base, api_key=key, max_retries=0, timeout=60) as client:
        async def one():
            async with client.messages.stream(model="demo", max_tokens=60, messages=SUM, extra_body={"temperature": 0}) as stream:
                return "".join([text async for text in stream.text_stream])

        texts = await asyncio.gather(*(one() for _ in range(8)))
    assert texts == [expected] * 8, texts


answer = messages()
takes_its_own_message_back(answer)
streams(answer)
streams_with_the_helper(answer)
leaves_a_stream()
is_cut()
counts()
raises_its_own_exceptions()
asyncio.run(streams_at_once(answer))
print("all checks passed")
