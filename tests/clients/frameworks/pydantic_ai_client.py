"""What Pydantic AI sees of a Camshaft server, over chats and over responses. Arguments and report: `kit`."""

import asyncio
from typing import Literal

import pydantic
from openai import AsyncOpenAI
from pydantic_ai import Agent, Embedder, NativeOutput, ToolOutput, exceptions
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

import kit

served = kit.server()
SUM = "What is 3 plus 4?"
WEATHER = "What is the weather in Oslo?"
KINDS = {"chats": OpenAIChatModel, "responses": OpenAIResponsesModel}


class Place(pydantic.BaseModel):
    """A place, and how finely its weather is told."""

    city: Literal["Oslo", "Rome"]
    hourly: bool


def provider(key):
    # Without retries: the first answer counts.
    client = AsyncOpenAI(base_url=f"{served.url}/v1", api_key=key, max_retries=0, timeout=60)
    return OpenAIProvider(openai_client=client)


def agent(kind="chats", key=None, model="demo", **fields):
    made = KINDS[kind](model, provider=provider(key or served.key))
    return Agent(made, **{"retries": 0, "model_settings": {"temperature": 0}, **fields})


async def runs_over_chats():
    run = await agent().run(SUM)
    assert "7" in run.output and run.usage.output_tokens > 0, run


async def runs_over_responses():
    run = await agent("responses").run(SUM)
    assert "7" in run.output and run.usage.output_tokens > 0, run


async def streams_over_chats():
    async with agent().run_stream(SUM) as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert "7" in "".join(pieces) and len(pieces) > 1, pieces


async def streams_over_responses():
    async with agent("responses").run_stream(SUM) as run:
        pieces = [piece async for piece in run.stream_text(delta=True, debounce_by=None)]
    assert "7" in "".join(pieces) and len(pieces) > 1, pieces


async def goes_on_with_a_talk():
    first = await agent().run(SUM)
    second = await agent(instructions="Answer briefly.").run("What is 2 plus 2?", message_history=first.all_messages())
    assert second.output and len(second.all_messages()) == 4, second


class CallsFirst(AbstractCapability[None]):
    """Has the model call a tool in the first step, and answer in the second."""

    def get_model_settings(self):
        return lambda context: {"tool_choice": "required" if context.run_step <= 1 else "none"}


async def runs_tools_over(kind):
    """A tool runs, its result goes back, and the model answers."""
    asked = []
    made = agent(kind, model_settings={"temperature": 0, "max_tokens": 200}, capabilities=[CallsFirst()])

    @made.tool_plain
    async def get_weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather of a city."""
        asked.append(city)
        return "sunny"

    run = await made.run(WEATHER)
    assert asked and set(asked) <= {"Oslo", "Rome"} and run.output, (asked, run)


async def runs_tools_over_chats():
    await runs_tools_over("chats")


async def runs_tools_over_responses():
    await runs_tools_over("responses")


async def gives_output_that_follows_a_schema():
    for kind in KINDS:
        run = await agent(kind, output_type=NativeOutput(Place, strict=True)).run(WEATHER)
        assert isinstance(run.output, Place), (kind, run)


async def gives_output_through_a_tool():
    for kind in KINDS:
        run = await agent(kind, output_type=ToolOutput(Place, strict=True)).run(WEATHER)
        assert isinstance(run.output, Place), (kind, run)


async def streams_output_that_follows_a_schema():
    async with agent(output_type=NativeOutput(Place, strict=True)).run_stream(WEATHER) as run:
        output = await run.get_output()
    assert isinstance(output, Place), output


async def embeds():
    model = kit.embedding_model(served)
    embedder = Embedder(OpenAIEmbeddingModel(model or "demo", provider=provider(served.key)))
    if model is None:
        await raises(exceptions.ModelHTTPError, embedder.embed_query("rain"), 400)
        return
    result = await embedder.embed_documents(["rain", "a shower"])
    assert len(result.embeddings) == 2 and len(result.embeddings[0]) > 1, result


async def raises(kind, coroutine, status):
    try:
        await coroutine
    except kind as error:
        assert error.status_code == status, error
        return
    raise AssertionError(f"{kind.__name__} was not raised")


async def raises_its_own_exceptions():
    for kind in KINDS:
        hot = {"temperature": 3}
        await raises(exceptions.ModelRequestRejectedError, agent(kind, model_settings=hot).run(SUM), 400)
        await raises(exceptions.ModelAuthenticationError, agent(kind, key="sk-wrong").run(SUM), 401)
        await raises(exceptions.ModelHTTPError, agent(kind, key=served.other_key).run(SUM), 403)
        await raises(exceptions.ModelNotFoundError, agent(kind, model="nope").run(SUM), 404)


async def says_that_a_context_is_too_long():
    await raises(exceptions.ModelContextWindowExceededError, agent().run("word " * 9000), 400)


async def raises_rate_limit_errors():
    limited = agent(key=served.limited_key, model_settings={"max_tokens": 2})
    for _ in range(3):
        try:
            await limited.run(SUM)
        except exceptions.ModelRateLimitError as error:
            assert error.status_code == 429, error
            return
        except exceptions.UnexpectedModelBehavior:
            # Two tokens were no answer to it.
            pass
    raise AssertionError("no rate limit")


async def a_run_that_is_cancelled_ends_its_request():
    long = {"max_tokens": 900, "extra_body": {"ignore_eos": True}}
    asked = asyncio.ensure_future(agent(model_settings=long).run("Tell me a story."))
    await asyncio.to_thread(kit.wait_until, "a request runs", lambda: kit.busy(served) or asked.done())
    asked.cancel()
    await asyncio.to_thread(kit.wait_until_idle, served)


kit.run(
    runs_over_chats, runs_over_responses, streams_over_chats, streams_over_responses, goes_on_with_a_talk,
    runs_tools_over_chats, runs_tools_over_responses, gives_output_that_follows_a_schema, gives_output_through_a_tool,
    streams_output_that_follows_a_schema, embeds, raises_its_own_exceptions, says_that_a_context_is_too_long,
    raises_rate_limit_errors, a_run_that_is_cancelled_ends_its_request)
