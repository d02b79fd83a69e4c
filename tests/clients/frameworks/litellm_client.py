"""What LiteLLM sees of a Camshaft server, as a library: providers `openai` and `anthropic`. Arguments and report: `kit`."""

import json
import os

# Its map of prices would come from the network.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from pydantic import BaseModel

import kit
from samples import GET_TIME, GET_WEATHER, NAMED, SCHEMA, STORY, SUM, WEATHER, follows, is_place

served = kit.server()
litellm.telemetry = False
litellm.suppress_debug_info = True
litellm.drop_params = False
TOOLS = [GET_WEATHER, GET_TIME]
PROVIDERS = {
    "openai": {"model": "openai/demo", "api_base": f"{served.url}/v1"},
    "anthropic": {"model": "anthropic/demo", "api_base": served.url, "max_tokens": 200},
}


def complete(provider="openai", **fields):
    # Without retries: the first answer counts.
    given = {"api_key": served.key, "messages": SUM, "max_retries": 0, "num_retries": 0, "timeout": 60}
    return litellm.completion(**{**PROVIDERS[provider], **given, **fields})


def completes_through_openai():
    answer = complete(temperature=0)
    assert "7" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop", answer
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0, answer


def completes_through_anthropic():
    answer = complete("anthropic", temperature=0)
    assert "7" in answer.choices[0].message.content and answer.choices[0].finish_reason == "stop", answer
    assert answer.usage.completion_tokens > 0, answer


def streams_through_openai():
    chunks = list(complete(temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "7" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), chunks
    assert litellm.stream_chunk_builder(chunks).usage.completion_tokens > 0


def streams_through_anthropic():
    chunks = list(complete("anthropic", temperature=0, stream=True))
    assert "7" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks), chunks
    assert chunks[-1].choices[0].finish_reason == "stop", chunks[-1]


async def completes_without_blocking():
    answer = await litellm.acompletion(**PROVIDERS["openai"], api_key=served.key, messages=SUM, temperature=0, max_retries=0)
    assert "7" in answer.choices[0].message.content, answer


def completes_texts():
    answer = litellm.text_completion(
        model="text-completion-openai/demo", prompt="1, 2, 3,", api_base=f"{served.url}/v1", api_key=served.key,
        max_tokens=8, temperature=0, max_retries=0)
    assert answer.choices[0].text, answer


def responds():
    answer = litellm.responses(
        model="openai/demo", input=SUM[0]["content"], api_base=f"{served.url}/v1", api_key=served.key, temperature=0)
    assert answer.status == "completed" and answer.output, answer


def checked(answer):
    """The names of the calls, whose arguments follow the tools' schemas."""
    calls = answer.choices[0].message.tool_calls or []
    for call in calls:
        assert call.id and follows(call.function.name, json.loads(call.function.arguments)), call
    return [call.function.name for call in calls]


def calls_tools_through(provider):
    answer = complete(provider, messages=WEATHER, tools=TOOLS, tool_choice="required")
    assert checked(answer) and answer.choices[0].finish_reason == "tool_calls", answer
    assert set(checked(complete(provider, messages=WEATHER, tools=TOOLS, tool_choice=NAMED))) == {"get_time"}
    answer = complete(provider, messages=WEATHER, tools=TOOLS, max_tokens=200)
    assert checked(answer) or answer.choices[0].message.content, answer


def calls_tools_through_openai():
    calls_tools_through("openai")


def calls_tools_through_anthropic():
    calls_tools_through("anthropic")


def streams_arguments_through(provider):
    stream = complete(provider, messages=WEATHER, tools=[GET_WEATHER], tool_choice="required", parallel_tool_calls=False, stream=True)
    pieces = [call for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert [piece.function.name for piece in pieces if piece.function.name] == ["get_weather"], pieces
    assert is_place(json.loads("".join(piece.function.arguments or "" for piece in pieces))), pieces


def streams_the_arguments_of_a_call_through_openai():
    streams_arguments_through("openai")


def streams_the_arguments_of_a_call_through_anthropic():
    streams_arguments_through("anthropic")


def takes_back_through(provider):
    message = complete(provider, messages=WEATHER, tools=TOOLS, tool_choice="required").choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "sunny"} for call in message.tool_calls]
    answer = complete(provider, messages=[*WEATHER, message, *results], tools=TOOLS, tool_choice="none", temperature=0, max_tokens=200)
    assert answer.choices[0].message.content and not checked(answer), answer


def takes_the_result_of_a_tool_back_through_openai():
    takes_back_through("openai")


def takes_the_result_of_a_tool_back_through_anthropic():
    takes_back_through("anthropic")


def follows_a_schema():
    answer = complete(messages=WEATHER, response_format=SCHEMA)
    assert is_place(json.loads(answer.choices[0].message.content)), answer


def follows_a_model():
    class Flag(BaseModel):
        rain: bool

    answer = complete(messages=WEATHER, response_format=Flag)
    assert isinstance(Flag.model_validate_json(answer.choices[0].message.content), Flag), answer


def embeds():
    model = kit.embedding_model(served)

    def embed(name):
        return litellm.embedding(
            model=f"openai/{name}", input=["rain", "a shower"], api_base=f"{served.url}/v1", api_key=served.key, max_retries=0)

    if model is None:
        kit.raised(lambda: embed("demo"), litellm.BadRequestError)
        return
    answer = embed(model)
    assert len(answer.data) == 2 and len(answer.data[0]["embedding"]) > 1, answer


def raises_its_own_exceptions_through(provider):
    error = kit.raised(lambda: complete(provider, temperature=3), litellm.BadRequestError)
    assert error.status_code == 400 and "temperature" in error.message, error
    kit.raised(lambda: complete(provider, api_key="sk-wrong"), litellm.AuthenticationError)
    kit.raised(lambda: complete(provider, model=f"{provider}/nope"), litellm.NotFoundError)
    kit.raised_in_a_row(lambda: complete(provider, api_key=served.limited_key, max_tokens=2), litellm.RateLimitError)


def raises_its_own_exceptions_through_openai():
    raises_its_own_exceptions_through("openai")
    # It has no class for this status in this provider.
    assert kit.raised(lambda: complete(api_key=served.other_key), litellm.APIError).status_code == 403


def raises_its_own_exceptions_through_anthropic():
    raises_its_own_exceptions_through("anthropic")


def says_that_a_context_is_too_long():
    # LiteLLM tells it by words of the message.
    long = [{"role": "user", "content": "word " * 9000}]
    kit.raised(lambda: complete(messages=long), litellm.ContextWindowExceededError)
    kit.raised(lambda: complete("anthropic", messages=long), litellm.ContextWindowExceededError)


def a_stream_that_is_left_ends_its_request():
    stream = complete(messages=STORY, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.completion_stream.close()
    kit.wait_until_idle(served)


kit.run(
    completes_through_openai, completes_through_anthropic, streams_through_openai, streams_through_anthropic,
    completes_without_blocking, completes_texts, responds, calls_tools_through_openai, calls_tools_through_anthropic,
    streams_the_arguments_of_a_call_through_openai, streams_the_arguments_of_a_call_through_anthropic,
    takes_the_result_of_a_tool_back_through_openai, takes_the_result_of_a_tool_back_through_anthropic, follows_a_schema,
    follows_a_model, embeds, raises_its_own_exceptions_through_openai, raises_its_own_exceptions_through_anthropic,
    says_that_a_context_is_too_long, a_stream_that_is_left_ends_its_request)
