"""What OpenAI's own client sees of a Camshaft server. Arguments and report: `kit`."""

import asyncio
import functools
import json
from typing import Literal

import openai
import pydantic

import kit
from samples import GET_TIME, GET_WEATHER, NAMED, SCHEMA, STORY, SUM, WEATHER, follows, is_place

served = kit.server()
base = f"{served.url}/v1"
# Without retries: the first answer counts.
client = openai.OpenAI(base_url=base, api_key=served.key, max_retries=0, timeout=60)
TOOLS = [GET_WEATHER, GET_TIME]


class Place(pydantic.BaseModel):
    """The schema that the SDK makes of it is closed, too."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    hourly: bool


def chat(client=client, **fields):
    return client.chat.completions.create(**{"model": "demo", "messages": SUM, **fields})


@functools.cache
def answer_to_the_sum():
    return chat(temperature=0).choices[0].message.content


def chats():
    answer = chat(temperature=0)
    choice = answer.choices[0]
    assert "7" in choice.message.content, choice
    assert choice.finish_reason == "stop" and choice.message.role == "assistant", choice
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer.usage.prompt_tokens_details.cached_tokens <= answer.usage.prompt_tokens
    assert answer.object == "chat.completion" and answer.model == "demo" and answer.id, answer


def streams():
    chunks = list(chat(temperature=0, stream=True, stream_options={"include_usage": True}))
    *deltas, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
    assert text == answer_to_the_sum(), text
    assert deltas[0].choices[0].delta.role == "assistant"
    assert deltas[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage.completion_tokens > 0, last
    assert len({chunk.id for chunk in chunks}) == 1


def streams_with_the_helper():
    with client.chat.completions.stream(model="demo", messages=SUM, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == answer_to_the_sum(), final


async def streams_eight_at_once():
    async with openai.AsyncOpenAI(base_url=base, api_key=served.key, max_retries=0, timeout=60) as client:
        async def one():
            stream = await client.chat.completions.create(model="demo", messages=SUM, temperature=0, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(one() for _ in range(8)))
    assert texts == [answer_to_the_sum()] * 8, texts


def a_stream_that_is_left_ends_its_request():
    with chat(messages=STORY, stream=True, max_tokens=400, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    kit.wait_until_idle(served)


async def a_request_that_is_cancelled_ends():
    async with openai.AsyncOpenAI(base_url=base, api_key=served.key, max_retries=0, timeout=60) as client:
        asked = asyncio.ensure_future(client.chat.completions.create(
            model="demo", messages=STORY, max_tokens=900, extra_body={"ignore_eos": True}))
        await asyncio.to_thread(kit.wait_until, "a request runs", lambda: kit.busy(served) or asked.done())
        asked.cancel()
        await asyncio.to_thread(kit.wait_until_idle, served)


def draws_choices():
    answer = chat(messages=STORY, n=3, seed=5, temperature=1, max_tokens=20, stop=["\n"], top_p=0.9,
                  frequency_penalty=0.1, presence_penalty=0.1, logit_bias={"100": -5}, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs.content and len(choice.logprobs.content[0].top_logprobs) == 2
        assert choice.logprobs.content[0].logprob <= 0


def checked(calls):
    """The names of the calls, whose arguments follow the tools' schemas."""
    for call in calls:
        assert call.id and call.type == "function", call
        assert follows(call.function.name, json.loads(call.function.arguments)), call
    assert len({call.id for call in calls}) == len(calls), calls
    return [call.function.name for call in calls]


def calls_a_tool_where_it_must():
    choice = chat(messages=WEATHER, tools=TOOLS, tool_choice="required").choices[0]
    assert choice.finish_reason == "tool_calls" and checked(choice.message.tool_calls), choice
    assert not choice.message.content, choice


def calls_the_tool_that_is_named():
    choice = chat(messages=WEATHER, tools=TOOLS, tool_choice=NAMED).choices[0]
    assert checked(choice.message.tool_calls) and set(checked(choice.message.tool_calls)) == {"get_time"}, choice
    # OpenAI says `stop` where the request itself names the tool.
    assert choice.finish_reason in ("stop", "tool_calls"), choice


def calls_one_of_the_tools_that_are_allowed():
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
    choice = chat(messages=WEATHER, tools=TOOLS, tool_choice=allowed).choices[0]
    assert set(checked(choice.message.tool_calls)) == {"get_time"}, choice


def calls_a_tool_or_answers_where_it_may():
    for choice in chat(messages=WEATHER, tools=TOOLS, tool_choice="auto", n=4, max_tokens=200).choices:
        if choice.message.tool_calls:
            assert choice.finish_reason == "tool_calls" and checked(choice.message.tool_calls), choice
        else:
            assert choice.finish_reason in ("stop", "length") and choice.message.content, choice


def calls_no_tool_where_it_must_not():
    choice = chat(messages=SUM, tools=TOOLS, tool_choice="none", temperature=0, max_tokens=200).choices[0]
    assert choice.message.tool_calls is None and choice.message.content, choice


def calls_one_tool_at_a_time():
    for choice in chat(messages=WEATHER, tools=TOOLS, tool_choice="required", parallel_tool_calls=False, n=4).choices:
        assert len(checked(choice.message.tool_calls)) == 1, choice


def streams_the_arguments_of_a_call():
    chunks = list(chat(messages=WEATHER, tools=[GET_WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True))
    pieces = [call for chunk in chunks for choice in chunk.choices for call in choice.delta.tool_calls or []]
    first, *more = pieces
    assert first.id and first.function.name == "get_weather" and first.index == 0, first
    assert more and all(not piece.id and not piece.function.name and piece.index == 0 for piece in more), more
    arguments = "".join(piece.function.arguments or "" for piece in pieces)
    assert is_place(json.loads(arguments)), arguments
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == ["tool_calls"], reasons


def streams_calls_with_the_helper():
    with client.chat.completions.stream(model="demo", messages=WEATHER, tools=TOOLS, tool_choice="required") as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds, kinds
    assert checked(final.choices[0].message.tool_calls), final


def takes_the_result_of_a_tool_back():
    message = chat(messages=WEATHER, tools=TOOLS, tool_choice="required").choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    choice = chat(messages=[*WEATHER, message, *results], tools=TOOLS, tool_choice="none", temperature=0, max_tokens=200).choices[0]
    assert choice.message.content and choice.message.tool_calls is None, choice


def parses_the_arguments_of_a_call():
    tool = openai.pydantic_function_tool(Place, name="get_weather")
    answer = client.chat.completions.parse(model="demo", messages=WEATHER, tools=[tool], tool_choice="required")
    place = answer.choices[0].message.tool_calls[0].function.parsed_arguments
    assert isinstance(place, Place), answer


def follows_a_schema():
    for choice in chat(messages=WEATHER, response_format=SCHEMA, n=4).choices:
        assert choice.finish_reason == "stop" and is_place(json.loads(choice.message.content)), choice


def streams_what_follows_a_schema():
    chunks = list(chat(messages=WEATHER, response_format=SCHEMA, stream=True))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert is_place(json.loads(text)), text


def parses_what_follows_a_model():
    answer = client.chat.completions.parse(model="demo", messages=WEATHER, response_format=Place)
    assert isinstance(answer.choices[0].message.parsed, Place), answer
    with client.chat.completions.stream(model="demo", messages=WEATHER, response_format=Place) as stream:
        final = stream.get_final_completion()
    assert isinstance(final.choices[0].message.parsed, Place), final


def says_where_a_schema_was_cut():
    error = kit.raised(
        lambda: client.chat.completions.parse(model="demo", messages=WEATHER, response_format=Place, max_tokens=2),
        openai.LengthFinishReasonError)
    assert error.completion.choices[0].finish_reason == "length", error


def answers_any_json_object():
    choice = chat(messages=[{"role": "user", "content": "Give me a JSON object with a name."}], temperature=0,
                  response_format={"type": "json_object"}, max_tokens=200).choices[0]
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict), choice
    else:
        assert choice.finish_reason == "length" and choice.message.content.startswith("{"), choice


def completes():
    answer = client.completions.create(model="demo", prompt="1, 2, 3,", max_tokens=8, temperature=0, logprobs=1)
    assert answer.object == "text_completion" and answer.choices[0].text, answer
    assert answer.choices[0].logprobs.token_logprobs, answer
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(
        model="demo", prompt="1, 2, 3,", max_tokens=8, temperature=0, stream=True))
    assert text == answer.choices[0].text


def embeds():
    model = kit.embedding_model(served)
    if model is None:
        # Only a server of the longer run has such a model. Others say what `demo` is.
        error = kit.raised(lambda: client.embeddings.create(model="demo", input="rain"), openai.BadRequestError)
        assert error.param == "model", error.body
        return
    texts = ["rain", "a shower", "a mortgage"]
    answer = client.embeddings.create(model=model, input=texts)
    assert [item.index for item in answer.data] == [0, 1, 2] and answer.usage.prompt_tokens > 0, answer.usage
    rain, shower, mortgage = (item.embedding for item in answer.data)
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in (rain, shower, mortgage))

    def near(a, b):
        return sum(x * y for x, y in zip(a, b, strict=True))

    assert near(rain, shower) > near(rain, mortgage)
    plain = client.embeddings.create(model=model, input="rain", encoding_format="float").data[0].embedding
    assert near(plain, rain) > 0.99
    error = kit.raised(lambda: client.embeddings.create(model=model, input="rain", dimensions=7), openai.BadRequestError)
    assert error.param == "dimensions", error.body
    kit.raised(lambda: chat(model=model), openai.BadRequestError)


def lists_models():
    models = [model.id for model in client.models.list()]
    assert "demo" in models and len(set(models)) == len(models), models
    assert client.models.retrieve("demo").id == "demo"


def raises(kind, status, call, **expected):
    error = kit.raised(call, kind)
    assert error.status_code == status and error.request_id, error
    for name, value in expected.items():
        assert getattr(error, name) == value, (name, getattr(error, name), value)


def raises_bad_request_errors():
    raises(openai.BadRequestError, 400, lambda: chat(temperature=3), param="temperature", type="invalid_request_error")
    raises(openai.BadRequestError, 400, lambda: chat(messages=[]), param="messages")
    raises(openai.BadRequestError, 400, lambda: chat(messages=[{"role": "user", "content": "word " * 9000}]),
           code="context_length_exceeded")
    raises(openai.BadRequestError, 400, lambda: chat(temperature=3, stream=True), param="temperature")
    unknown = {"type": "function", "function": {"name": "nope"}}
    raises(openai.BadRequestError, 400, lambda: chat(tools=TOOLS, tool_choice=unknown))
    unsupported = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
    raises(openai.BadRequestError, 400, lambda: chat(response_format=unsupported))


def raises_authentication_and_permission_errors():
    wrong = client.with_options(api_key="sk-wrong")
    raises(openai.AuthenticationError, 401, lambda: chat(wrong), code="invalid_api_key", type="authentication_error")
    raises(openai.AuthenticationError, 401, lambda: wrong.models.list())
    raises(openai.PermissionDeniedError, 403, lambda: chat(client.with_options(api_key=served.other_key)), type="permission_error")


def raises_not_found_errors():
    raises(openai.NotFoundError, 404, lambda: chat(model="nope"), code="model_not_found")
    raises(openai.NotFoundError, 404, lambda: client.models.retrieve("nope"), code="model_not_found")
    raises(openai.NotFoundError, 404, lambda: client.batches.list(), code="unknown_url")


def raises_rate_limit_errors():
    limited = client.with_options(api_key=served.limited_key)
    error = kit.raised_in_a_row(lambda: chat(limited, max_tokens=2), openai.RateLimitError)
    assert error.status_code == 429 and error.code == "rate_limit_exceeded", error.body
    assert 1 <= int(error.response.headers["retry-after"]) <= 120, error.response.headers


kit.run(
    chats, streams, streams_with_the_helper, streams_eight_at_once, a_stream_that_is_left_ends_its_request,
    a_request_that_is_cancelled_ends, draws_choices, calls_a_tool_where_it_must, calls_the_tool_that_is_named,
    calls_one_of_the_tools_that_are_allowed, calls_a_tool_or_answers_where_it_may, calls_no_tool_where_it_must_not,
    calls_one_tool_at_a_time, streams_the_arguments_of_a_call, streams_calls_with_the_helper, takes_the_result_of_a_tool_back,
    parses_the_arguments_of_a_call, follows_a_schema, streams_what_follows_a_schema, parses_what_follows_a_model,
    says_where_a_schema_was_cut, answers_any_json_object, completes, embeds, lists_models, raises_bad_request_errors,
    raises_authentication_and_permission_errors, raises_not_found_errors, raises_rate_limit_errors)
