"""What LangChain sees of a Camshaft server, through `langchain-openai`. Arguments and report: `kit`."""

import json
from typing import Literal

import openai
import pydantic
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

import kit

served = kit.server()
base = f"{served.url}/v1"
SUM = "What is 3 plus 4?"
WEATHER = "What is the weather in Oslo?"


class Place(pydantic.BaseModel):
    """A place, and how finely its weather is told."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    hourly: bool


@tool
def get_weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


@tool
def get_time(zone: Literal["UTC", "CET"]) -> str:
    """The time in a zone."""
    return f"noon in {zone}"


def chat(**fields):
    # Without retries: the first answer counts.
    return ChatOpenAI(**{"base_url": base, "api_key": served.key, "model": "demo", "max_retries": 0, "timeout": 60, **fields})


def raised(call, kind):
    """The exception that a call raises: of OpenAI's client, or of a class that LangChain derives from it."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def invokes():
    answer = chat(temperature=0).invoke(SUM)
    assert "7" in answer.content and answer.response_metadata["finish_reason"] == "stop", answer
    usage = answer.usage_metadata
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0, usage


def streams():
    chunks = list(chat(temperature=0, stream_usage=True).stream(SUM))
    whole = sum(chunks[1:], chunks[0])
    assert len(chunks) > 2 and "7" in whole.content and whole.usage_metadata["output_tokens"] > 0, whole


async def streams_in_a_chain():
    chain = ChatPromptTemplate.from_messages([("system", "Answer briefly."), ("user", "What is {a} plus {b}?")])
    chain = chain | chat(temperature=0) | StrOutputParser()
    assert "".join([text async for text in chain.astream({"a": 3, "b": 4})])


def batches():
    answers = chat(temperature=0).batch([SUM, "What is 2 plus 2?", "What is 1 plus 1?"])
    assert len(answers) == 3 and "7" in answers[0].content, answers


def responds():
    answer = chat(temperature=0, use_responses_api=True).invoke(SUM)
    assert "7" in answer.text, answer


def completes():
    assert OpenAI(base_url=base, api_key=served.key, model="demo", max_tokens=8, temperature=0, max_retries=0).invoke("1, 2, 3,")


def calls_a_tool_where_it_must():
    answer = chat().bind_tools([get_weather, get_time], tool_choice="required").invoke(WEATHER)
    assert answer.tool_calls and not answer.invalid_tool_calls, answer
    for call in answer.tool_calls:
        assert {"get_weather": get_weather, "get_time": get_time}[call["name"]].invoke(call["args"]), call


def calls_the_tool_that_is_named():
    answer = chat().bind_tools([get_weather, get_time], tool_choice="get_time", strict=True).invoke(WEATHER)
    assert {call["name"] for call in answer.tool_calls} == {"get_time"}, answer


def calls_a_tool_or_answers_where_it_may():
    answer = chat(max_completion_tokens=200).bind_tools([get_weather, get_time]).invoke(WEATHER)
    assert (answer.tool_calls or answer.content) and not answer.invalid_tool_calls, answer


def streams_the_arguments_of_a_call():
    bound = chat().bind_tools([get_weather], tool_choice="required", parallel_tool_calls=False)
    chunks = list(bound.stream(WEATHER))
    pieces = [piece["args"] or "" for chunk in chunks for piece in chunk.tool_call_chunks]
    assert json.loads("".join(pieces))["city"] in ("Oslo", "Rome"), pieces
    [call] = sum(chunks[1:], chunks[0]).tool_calls
    assert call["name"] == "get_weather", call


def takes_the_result_of_a_tool_back():
    question = HumanMessage(WEATHER)
    asked = chat().bind_tools([get_weather], tool_choice="required").invoke([question])
    results = [ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"]) for call in asked.tool_calls]
    answer = chat(temperature=0, max_completion_tokens=200).bind_tools([get_weather], tool_choice="none").invoke(
        [question, asked, *results])
    assert answer.content and not answer.tool_calls, answer


def gives_structured_output_by_each_method():
    for method in ("json_schema", "function_calling"):
        place = chat().with_structured_output(Place, method=method, strict=True).invoke(WEATHER)
        assert isinstance(place, Place), (method, place)


def streams_structured_output():
    *_, last = chat().with_structured_output(Place, method="json_schema", strict=True).stream(WEATHER)
    assert isinstance(last, Place), last


def embeds():
    model = kit.embedding_model(served)
    if model is None:
        embeddings = OpenAIEmbeddings(base_url=base, api_key=served.key, model="demo", check_embedding_ctx_length=False)
        raised(lambda: embeddings.embed_query("rain"), openai.BadRequestError)
        return
    embeddings = OpenAIEmbeddings(base_url=base, api_key=served.key, model=model, check_embedding_ctx_length=False)
    vectors = embeddings.embed_documents(["rain", "a shower"])
    query = embeddings.embed_query("rain")
    assert len(vectors) == 2 and len(query) == len(vectors[0]) > 1, len(query)


def raises_the_exceptions_of_openais_client():
    assert raised(lambda: chat(temperature=3).invoke(SUM), openai.BadRequestError).param == "temperature"
    assert raised(lambda: chat(api_key="sk-wrong").invoke(SUM), openai.AuthenticationError).code == "invalid_api_key"
    raised(lambda: chat(api_key=served.other_key).invoke(SUM), openai.PermissionDeniedError)
    assert raised(lambda: chat(model="nope").invoke(SUM), openai.NotFoundError).code == "model_not_found"
    limited = chat(api_key=served.limited_key, max_completion_tokens=2)
    kit.raised_in_a_row(lambda: limited.invoke(SUM), openai.RateLimitError)


def says_that_a_context_is_too_long():
    # LangChain tells it by words of the message.
    error = raised(lambda: chat().invoke("word " * 9000), openai.BadRequestError)
    assert isinstance(error, ContextOverflowError), repr(error)


def a_stream_that_is_left_ends_its_request():
    stream = chat(extra_body={"ignore_eos": True}, max_completion_tokens=400).stream("Tell me a story.")
    next(stream)
    stream.close()
    kit.wait_until_idle(served)


kit.run(
    invokes, streams, streams_in_a_chain, batches, responds, completes, calls_a_tool_where_it_must,
    calls_the_tool_that_is_named, calls_a_tool_or_answers_where_it_may, streams_the_arguments_of_a_call,
    takes_the_result_of_a_tool_back, gives_structured_output_by_each_method, streams_structured_output, embeds,
    raises_the_exceptions_of_openais_client, says_that_a_context_is_too_long, a_stream_that_is_left_ends_its_request)
