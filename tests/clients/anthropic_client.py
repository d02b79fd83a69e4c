"""What Anthropic's own client sees of a Camshaft server. Arguments and report: `kit`."""

import asyncio
import functools
import json

import anthropic

import kit
from samples import CLOCK, PLACE, STORY, SUM, WEATHER, follows, is_place

served = kit.server()
# Without retries: the first answer counts.
client = anthropic.Anthropic(base_url=served.url, api_key=served.key, max_retries=0, timeout=60)
GREEDY = {"extra_body": {"temperature": 0}}
GET_WEATHER = {"name": "get_weather", "description": "The weather of a city.", "input_schema": PLACE}
GET_TIME = {"name": "get_time", "description": "The time in a zone.", "input_schema": CLOCK}
TOOLS = [GET_WEATHER, GET_TIME]


def message(client=client, **fields):
    return client.messages.create(**{"model": "demo", "max_tokens": 200, "messages": SUM, **fields})


@functools.cache
def answer_to_the_sum():
    return message(**GREEDY).content[0].text


def gets_messages():
    got = message(**GREEDY)
    assert got.type == "message" and got.role == "assistant" and got.model == "demo", got
    assert [block.type for block in got.content] == ["text"] and got.content[0].text, got
    assert got.stop_reason == "end_turn" and got.stop_sequence is None, got
    assert got.usage.input_tokens + got.usage.cache_read_input_tokens > 0, got
    assert got.usage.output_tokens > 0, got


def takes_its_own_message_back():
    got = message(system="Answer briefly.", **GREEDY)
    talk = [*SUM, got.to_param() if hasattr(got, "to_param") else {"role": "assistant", "content": got.content},
            {"role": "user", "content": [{"type": "text", "text": "What is 2 plus 2?", "cache_control": {"type": "ephemeral"}}]}]
    assert message(messages=talk, **GREEDY).content


def streams():
    events = list(message(stream=True, **GREEDY))
    assert events[0].type == "message_start" and events[-1].type == "message_stop", events
    assert events[0].message.usage.input_tokens > 0, events[0]
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == answer_to_the_sum(), text
    assert events[-2].delta.stop_reason == "end_turn" and events[-2].usage.output_tokens > 0, events[-2]


def streams_with_the_helper():
    with client.messages.stream(model="demo", max_tokens=200, messages=SUM, **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == answer_to_the_sum() == final.content[0].text and final.stop_reason == "end_turn", final


async def streams_eight_at_once():
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key=served.key, max_retries=0, timeout=60) as client:
        async def one():
            async with client.messages.stream(model="demo", max_tokens=200, messages=SUM, **GREEDY) as stream:
                return "".join([text async for text in stream.text_stream])

        texts = await asyncio.gather(*(one() for _ in range(8)))
    assert texts == [answer_to_the_sum()] * 8, texts


def a_stream_that_is_left_ends_its_request():
    with message(max_tokens=400, messages=STORY, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    kit.wait_until_idle(served)


def is_cut():
    got = message(max_tokens=2, messages=STORY)
    assert got.stop_reason == "max_tokens" and got.usage.output_tokens == 2, got


def counts_tokens():
    count = client.messages.count_tokens(model="demo", messages=SUM, system="Answer briefly.").input_tokens
    got = message(max_tokens=2, system="Answer briefly.")
    assert count == got.usage.input_tokens + got.usage.cache_read_input_tokens, (count, got.usage)


def counts_tokens_of_tools():
    without = client.messages.count_tokens(model="demo", messages=WEATHER).input_tokens
    count = client.messages.count_tokens(model="demo", messages=WEATHER, tools=TOOLS).input_tokens
    assert count > without, (count, without)


def checked(got):
    """The names of the calls of a message, whose arguments follow the tools' schemas."""
    calls = [block for block in got.content if block.type == "tool_use"]
    for call in calls:
        assert call.id and follows(call.name, call.input), call
    return [call.name for call in calls]


def calls_a_tool_where_it_must():
    got = message(messages=WEATHER, tools=TOOLS, tool_choice={"type": "any"})
    assert checked(got) and got.stop_reason == "tool_use", got


def calls_the_tool_that_is_named():
    got = message(messages=WEATHER, tools=TOOLS, tool_choice={"type": "tool", "name": "get_time"})
    assert set(checked(got)) == {"get_time"} and got.stop_reason == "tool_use", got


def calls_a_tool_or_answers_where_it_may():
    got = message(messages=WEATHER, tools=TOOLS, max_tokens=200)
    assert (got.stop_reason == "tool_use" and checked(got)) or got.content[0].text, got


def calls_one_tool_at_a_time():
    got = message(messages=WEATHER, tools=TOOLS, tool_choice={"type": "any", "disable_parallel_tool_use": True})
    assert len(checked(got)) == 1, got


def streams_the_arguments_of_a_call():
    one = {"type": "any", "disable_parallel_tool_use": True}
    events = list(message(messages=WEATHER, tools=[GET_WEATHER], tool_choice=one, stream=True))
    [start] = [event for event in events if event.type == "content_block_start"]
    assert start.content_block.type == "tool_use" and start.content_block.name == "get_weather", start
    pieces = [event.delta.partial_json for event in events if event.type == "content_block_delta"]
    assert is_place(json.loads("".join(pieces))), pieces
    assert events[-2].delta.stop_reason == "tool_use", events[-2]


def streams_calls_with_the_helper():
    with client.messages.stream(
            model="demo", max_tokens=200, messages=WEATHER, tools=TOOLS, tool_choice={"type": "any"}) as stream:
        final = stream.get_final_message()
    assert checked(final) and final.stop_reason == "tool_use", final


def takes_the_result_of_a_tool_back():
    got = message(messages=WEATHER, tools=TOOLS, tool_choice={"type": "any"})
    results = [{"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
               for block in got.content if block.type == "tool_use"]
    talk = [*WEATHER, {"role": "assistant", "content": got.content}, {"role": "user", "content": results}]
    again = message(messages=talk, tools=TOOLS, tool_choice={"type": "none"}, max_tokens=200, **GREEDY)
    assert again.content[0].text and not checked(again), again


def runs_tools_to_the_answer():
    @anthropic.beta_tool
    def get_weather(location: str) -> str:
        """Get the current weather in a given location."""
        return json.dumps({"temperature": 21, "condition": f"sunny in {location}"[:5]})

    question = [{"role": "user", "content": "What is the weather in Paris?"}]
    # It asks for a thread that the server keeps, and goes on without.
    final = client.beta.messages.tool_runner(model="demo", max_tokens=200, tools=[get_weather], messages=question, **GREEDY).until_done()
    assert final.stop_reason == "end_turn" and "sunny" in final.content[0].text, final


def follows_a_schema():
    got = message(messages=WEATHER, extra_body={"output_config": {"format": {"type": "json_schema", "schema": PLACE}}})
    assert got.stop_reason == "end_turn" and is_place(json.loads(got.content[0].text)), got


def lists_models():
    assert "demo" in [model.id for model in client.models.list()]


def raises(kind, status, call, said):
    error = kit.raised(call, kind)
    assert error.status_code == status and error.request_id, error
    assert error.body["error"]["type"] == said and error.body["type"] == "error", error.body


def raises_its_own_exceptions():
    bad = "invalid_request_error"
    raises(anthropic.BadRequestError, 400, lambda: message(max_tokens=-1), bad)
    raises(anthropic.BadRequestError, 400, lambda: message(messages=[]), bad)
    raises(anthropic.BadRequestError, 400, lambda: message(extra_body={"temperature": 3}, stream=True), bad)
    image = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    raises(anthropic.BadRequestError, 400, lambda: message(messages=[{"role": "user", "content": [image]}]), bad)
    wrong = client.with_options(api_key="sk-wrong")
    raises(anthropic.AuthenticationError, 401, lambda: message(wrong), "authentication_error")
    other = client.with_options(api_key=served.other_key)
    raises(anthropic.PermissionDeniedError, 403, lambda: message(other), "permission_error")
    raises(anthropic.NotFoundError, 404, lambda: message(model="nope"), "not_found_error")
    raises(anthropic.NotFoundError, 404, lambda: client.messages.batches.list(), "not_found_error")


def raises_rate_limit_errors():
    limited = client.with_options(api_key=served.limited_key)
    error = kit.raised_in_a_row(lambda: message(limited, max_tokens=2), anthropic.RateLimitError)
    assert error.status_code == 429 and error.body["error"]["type"] == "rate_limit_error", error.body


kit.run(
    gets_messages, takes_its_own_message_back, streams, streams_with_the_helper, streams_eight_at_once,
    a_stream_that_is_left_ends_its_request, is_cut, counts_tokens, counts_tokens_of_tools, calls_a_tool_where_it_must,
    calls_the_tool_that_is_named, calls_a_tool_or_answers_where_it_may, calls_one_tool_at_a_time,
    streams_the_arguments_of_a_call, streams_calls_with_the_helper, takes_the_result_of_a_tool_back, runs_tools_to_the_answer,
    follows_a_schema,
    lists_models, raises_its_own_exceptions, raises_rate_limit_errors)
