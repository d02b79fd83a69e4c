"""What OpenAI's own client sees of the Responses API. Arguments and report: `kit`."""

import asyncio
import functools
import json
from typing import Literal

import openai
import pydantic

import kit
from samples import CLOCK, PLACE, follows, is_place

served = kit.server()
base = f"{served.url}/v1"
# Without retries: the first answer counts.
client = openai.OpenAI(base_url=base, api_key=served.key, max_retries=0, timeout=60)
SUM = "What is 3 plus 4?"
STORY = "Tell me a story."
WEATHER = "What is the weather in Oslo?"
GET_WEATHER = {"type": "function", "name": "get_weather", "parameters": PLACE, "strict": True}
GET_TIME = {"type": "function", "name": "get_time", "parameters": CLOCK, "strict": True}
TOOLS = [GET_WEATHER, GET_TIME]


class Place(pydantic.BaseModel):
    """The schema that the SDK makes of it is closed, too."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    hourly: bool


def respond(client=client, **fields):
    return client.responses.create(**{"model": "demo", "input": SUM, **fields})


@functools.cache
def answer_to_the_sum():
    return respond(temperature=0).output_text


def responds():
    response = respond(temperature=0, metadata={"from": "test"}, store=False, include=[])
    assert response.object == "response" and response.status == "completed" and response.error is None, response
    assert response.output_text and response.model == "demo" and response.metadata == {"from": "test"}, response
    assert response.output[0].type == "message" and response.output[0].role == "assistant", response
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0, usage
    assert response.store is False and response.previous_response_id is None and response.temperature == 0, response


def takes_its_own_output_back():
    first = respond(input=[{"role": "user", "content": SUM}], temperature=0)
    talk = [{"role": "user", "content": SUM}, *[item.model_dump() for item in first.output],
            {"role": "user", "content": [{"type": "input_text", "text": "What is 2 plus 2?"}]}]
    second = respond(instructions="Answer briefly.", input=talk, temperature=0)
    assert second.status == "completed" and second.usage.input_tokens > first.usage.input_tokens, second


def streams():
    events = list(respond(temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed" and text == last.response.output_text == answer_to_the_sum(), (text, last)
    assert last.response.usage.output_tokens > 0, last


def streams_with_the_helper():
    with client.responses.stream(model="demo", input=SUM, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == answer_to_the_sum(), final


async def streams_eight_at_once():
    async with openai.AsyncOpenAI(base_url=base, api_key=served.key, max_retries=0, timeout=60) as client:
        async def one():
            stream = await client.responses.create(model="demo", input=SUM, temperature=0, stream=True)
            return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

        texts = await asyncio.gather(*(one() for _ in range(8)))
    assert texts == [answer_to_the_sum()] * 8, texts


def a_stream_that_is_left_ends_its_request():
    with respond(input=STORY, stream=True, max_output_tokens=400, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    kit.wait_until_idle(served)


def is_cut():
    response = respond(input=STORY, max_output_tokens=2)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens", response
    assert response.output[0].status == "incomplete", response


def tells_log_probabilities():
    response = respond(max_output_tokens=2, include=["message.output_text.logprobs"], top_logprobs=2)
    tokens = response.output[0].content[0].logprobs
    assert tokens and len(tokens[0].top_logprobs) == 2 and tokens[0].logprob <= 0, response


def checked(response):
    """The names of the calls of a response, whose arguments follow the tools' schemas."""
    calls = [item for item in response.output if item.type == "function_call"]
    for call in calls:
        assert call.id and call.call_id and call.status == "completed", call
        assert follows(call.name, json.loads(call.arguments)), call
    return [call.name for call in calls]


def calls_a_tool_where_it_must():
    response = respond(input=WEATHER, tools=TOOLS, tool_choice="required")
    assert checked(response) and response.status == "completed", response


def calls_the_tool_that_is_named():
    response = respond(input=WEATHER, tools=TOOLS, tool_choice={"type": "function", "name": "get_time"})
    assert set(checked(response)) == {"get_time"}, response


def calls_a_tool_or_answers_where_it_may():
    response = respond(input=WEATHER, tools=TOOLS, max_output_tokens=200)
    assert checked(response) or response.output_text, response


def streams_the_arguments_of_a_call():
    events = list(respond(input=WEATHER, tools=[GET_WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True))
    pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert "".join(pieces) == done.arguments and is_place(json.loads(done.arguments)), events
    assert checked(events[-1].response) == ["get_weather"], events[-1]


def takes_the_result_of_a_tool_back():
    first = respond(input=WEATHER, tools=TOOLS, tool_choice="required")
    calls = [item for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    talk = [{"role": "user", "content": WEATHER}, *[item.model_dump() for item in first.output], *results]
    second = respond(input=talk, tools=TOOLS, tool_choice="none", temperature=0, max_output_tokens=200)
    assert second.output_text and not checked(second), second


def follows_a_schema():
    response = respond(input=WEATHER, text={"format": {"type": "json_schema", "name": "place", "schema": PLACE, "strict": True}})
    assert response.status == "completed" and is_place(json.loads(response.output_text)), response


def parses_what_follows_a_model():
    response = client.responses.parse(model="demo", input=WEATHER, text_format=Place)
    assert isinstance(response.output_parsed, Place), response


def raises(kind, status, call, **expected):
    error = kit.raised(call, kind)
    assert error.status_code == status and error.request_id, error
    for name, value in expected.items():
        assert getattr(error, name) == value, (name, getattr(error, name), value)


def raises_its_own_exceptions():
    raises(openai.BadRequestError, 400, lambda: respond(max_output_tokens=0), param="max_output_tokens")
    raises(openai.BadRequestError, 400, lambda: respond(temperature=3, stream=True), param="temperature")
    raises(openai.BadRequestError, 400, lambda: respond(previous_response_id="resp_1"), param="previous_response_id")
    raises(openai.BadRequestError, 400, lambda: respond(background=True), param="background")
    raises(openai.BadRequestError, 400, lambda: respond(input="word " * 9000), code="context_length_exceeded", param="input")
    raises(openai.AuthenticationError, 401, lambda: respond(client.with_options(api_key="sk-wrong")), code="invalid_api_key")
    raises(openai.PermissionDeniedError, 403, lambda: respond(client.with_options(api_key=served.other_key)))
    raises(openai.NotFoundError, 404, lambda: respond(model="nope"), code="model_not_found")
    raises(openai.NotFoundError, 404, lambda: client.responses.retrieve("resp_1"), code="unknown_url")


def raises_rate_limit_errors():
    limited = client.with_options(api_key=served.limited_key)
    error = kit.raised_in_a_row(lambda: respond(limited, max_output_tokens=2), openai.RateLimitError)
    assert error.code == "rate_limit_exceeded", error.body


kit.run(
    responds, takes_its_own_output_back, streams, streams_with_the_helper, streams_eight_at_once,
    a_stream_that_is_left_ends_its_request, is_cut, tells_log_probabilities, calls_a_tool_where_it_must,
    calls_the_tool_that_is_named, calls_a_tool_or_answers_where_it_may, streams_the_arguments_of_a_call,
    takes_the_result_of_a_tool_back, follows_a_schema, parses_what_follows_a_model, raises_its_own_exceptions,
    raises_rate_limit_errors)
