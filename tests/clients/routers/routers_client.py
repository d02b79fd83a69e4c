"""What OpenAI's and Anthropic's own clients see of a Camshaft server behind the routers of others: smg, sglang-router and vllm-router.

One behaviour is one function through one router. Arguments and report: `kit`.
"""

import asyncio
import contextlib
import dataclasses
import functools
import inspect
import json
import pathlib
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import anthropic
import openai

import kit
from samples import GET_WEATHER, PLACE, SCHEMA, STORY, SUM, WEATHER, is_place

served = kit.server()
# More than the demo model's context.
LONG = [{"role": "user", "content": "word " * 9000}]
ASKED = SUM[0]["content"]
RESPONSES_TOOL = {"type": "function", **GET_WEATHER["function"]}
MESSAGES_TOOL = {"name": "get_weather", "description": "The weather of a city.", "input_schema": PLACE}
GREEDY = {"extra_body": {"temperature": 0}}


@dataclasses.dataclass(frozen=True)
class Router:
    """A running router, or the server itself."""

    name: str
    url: str

    @functools.cache
    def openai(self, key=served.key):
        # Without retries: the first answer counts.
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    @functools.cache
    def anthropic(self, key=served.key):
        # Two of the routers drop `x-api-key`, which Anthropic's client sends by default.
        return anthropic.Anthropic(base_url=self.url, auth_token=key, max_retries=0, timeout=60)

    def chat(self, key=served.key, **fields):
        return self.openai(key).chat.completions.create(**{"model": "demo", "messages": SUM, **fields})

    def respond(self, key=served.key, **fields):
        return self.openai(key).responses.create(**{"model": "demo", "input": ASKED, **fields})

    def message(self, key=served.key, **fields):
        return self.anthropic(key).messages.create(**{"model": "demo", "max_tokens": 200, "messages": SUM, **fields})


direct = Router("no router", served.url)


@functools.cache
def answer_to_the_sum():
    text = direct.chat(temperature=0).choices[0].message.content
    assert "7" in text, text
    return text


@functools.cache
def tokens_of_the_sum():
    """Of the prompt, and of the answer."""
    usage = direct.chat(temperature=0).usage
    return usage.prompt_tokens, usage.completion_tokens


def chats(router):
    answer = router.chat(temperature=0)
    assert answer.choices[0].message.content == answer_to_the_sum(), answer
    assert answer.choices[0].finish_reason == "stop" and answer.model == "demo", answer
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == tokens_of_the_sum(), answer


def streams_chats(router):
    *deltas, last = router.chat(temperature=0, stream=True, stream_options={"include_usage": True})
    text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
    assert text == answer_to_the_sum() and len(deltas) > 2, deltas
    assert deltas[-1].choices[0].finish_reason == "stop", deltas[-1]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == tokens_of_the_sum() and not last.choices, last


async def streams_eight_chats_at_once(router):
    async with openai.AsyncOpenAI(base_url=f"{router.url}/v1", api_key=served.key, max_retries=0, timeout=60) as client:
        async def one():
            stream = await client.chat.completions.create(model="demo", messages=SUM, temperature=0, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(one() for _ in range(8)))
    assert texts == [answer_to_the_sum()] * 8, texts


def streams_left():
    """The number of chats whose client went away."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{served.admin}/metrics", timeout=kit.PATIENCE_S) as page:
        lines = page.read().decode().splitlines()
    counted = [line for line in lines if line.startswith('camshaft_requests_total{endpoint="/v1/chat/completions",status="499"}')]
    return int(counted[0].split()[-1]) if counted else 0


def a_stream_that_is_left_ends_its_request(router):
    before = streams_left()
    with router.chat(messages=STORY, stream=True, max_tokens=900, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    kit.wait_until("the server sees that the client went away", lambda: streams_left() > before)
    kit.wait_until_idle(served)


def calls_tools_in_chats(router):
    asked = {"messages": WEATHER, "tools": [GET_WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    choice = router.chat(**asked).choices[0]
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and is_place(json.loads(call.function.arguments)), choice
    pieces = [call for chunk in router.chat(**asked, stream=True) for choice in chunk.choices for call in choice.delta.tool_calls or []]
    assert is_place(json.loads("".join(piece.function.arguments or "" for piece in pieces))), pieces
    results = [*WEATHER, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    assert router.chat(messages=results, tools=[GET_WEATHER], tool_choice="none", max_tokens=200).choices[0].message.content


def follows_schemas_in_chats(router):
    content = router.chat(messages=WEATHER, response_format=SCHEMA).choices[0].message.content
    assert is_place(json.loads(content)), content


def draws_choices(router):
    answer = router.chat(messages=STORY, n=3, seed=5, max_tokens=20, top_p=0.9, frequency_penalty=0.1, logit_bias={"100": -5},
                         logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2], answer
    assert all(len(choice.logprobs.content[0].top_logprobs) == 2 for choice in answer.choices), answer


def responds(router):
    response = router.respond(temperature=0, metadata={"from": "test"})
    assert response.output_text == answer_to_the_sum() and response.status == "completed" and response.model == "demo", response
    assert (response.usage.input_tokens, response.usage.output_tokens) == tokens_of_the_sum(), response


def streams_responses(router):
    events = list(router.respond(temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events))), events
    assert [events[0].type, events[-1].type] == ["response.created", "response.completed"], events
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == events[-1].response.output_text == answer_to_the_sum(), events
    assert events[-1].response.usage.output_tokens == tokens_of_the_sum()[1], events[-1]


def calls_tools_in_responses(router):
    asked = {"input": WEATHER, "tools": [RESPONSES_TOOL], "tool_choice": "required", "parallel_tool_calls": False}
    first = router.respond(**asked)
    [call] = [item for item in first.output if item.type == "function_call"]
    assert is_place(json.loads(call.arguments)), first
    [done] = [event for event in router.respond(**asked, stream=True) if event.type == "response.function_call_arguments.done"]
    assert is_place(json.loads(done.arguments)), done
    results = [*WEATHER, *[item.model_dump() for item in first.output],
               {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}]
    assert router.respond(input=results, tools=[RESPONSES_TOOL], tool_choice="none", max_output_tokens=200).output_text


def gets_messages(router):
    got = router.message(**GREEDY)
    assert [block.text for block in got.content] == [answer_to_the_sum()] and got.stop_reason == "end_turn", got
    assert (got.usage.input_tokens + got.usage.cache_read_input_tokens, got.usage.output_tokens) == tokens_of_the_sum(), got


def streams_messages(router):
    events = list(router.message(stream=True, **GREEDY))
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"], events
    assert "".join(event.delta.text for event in events if event.type == "content_block_delta") == answer_to_the_sum(), events
    assert events[-2].delta.stop_reason == "end_turn" and events[-2].usage.output_tokens == tokens_of_the_sum()[1], events[-2]


def calls_tools_in_messages(router):
    asked = {"messages": WEATHER, "tools": [MESSAGES_TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    got = router.message(**asked)
    [call] = [block for block in got.content if block.type == "tool_use"]
    assert got.stop_reason == "tool_use" and is_place(call.input), got
    pieces = [event.delta.partial_json for event in router.message(**asked, stream=True)
              if event.type == "content_block_delta" and event.delta.type == "input_json_delta"]
    assert is_place(json.loads("".join(pieces))), pieces
    results = [*WEATHER, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in got.content]},
               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}]
    assert router.message(messages=results, tools=[MESSAGES_TOOL], tool_choice={"type": "none"}).content


def counts_tokens_of_messages(router):
    assert router.anthropic().messages.count_tokens(model="demo", messages=SUM).input_tokens == tokens_of_the_sum()[0]


def completes(router):
    asked = {"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 8, "temperature": 0}
    expected = direct.openai().completions.create(**asked).choices[0].text
    answer = router.openai().completions.create(**asked)
    assert answer.choices[0].text == expected and answer.usage.completion_tokens == 8, answer
    text = "".join(chunk.choices[0].text for chunk in router.openai().completions.create(**asked, stream=True))
    assert text == expected, text


def embeds(router):
    model = kit.embedding_model(served)
    if model is not None:
        expected, found = (one.openai().embeddings.create(model=model, input=["rain", "a mortgage"]) for one in (direct, router))
        assert [item.embedding for item in found.data] == [item.embedding for item in expected.data]
        assert found.usage == expected.usage, found.usage
    refuses_embeddings_of_a_model_that_generates(router)


def refuses_embeddings_of_a_model_that_generates(router):
    error = kit.raised(lambda: router.openai().embeddings.create(model="demo", input="rain"), openai.BadRequestError)
    assert error.param == "model", error.body


def lists_models(router):
    assert list(router.openai().models.list()) == list(direct.openai().models.list())


def raises(kind, call, **expected):
    error = kit.raised(call, kind)
    for name, value in expected.items():
        assert getattr(error, name) == value, (name, value, error.body)


def passes_errors_of_chats_on(router):
    unsupported = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}}}
    raises(openai.BadRequestError, lambda: router.chat(response_format=unsupported), type="invalid_request_error")
    for stream in (False, True):
        raises(openai.BadRequestError, lambda: router.chat(messages=LONG, stream=stream), code="context_length_exceeded", param="messages")
    raises(openai.NotFoundError, lambda: router.chat(model="nope"), code="model_not_found")


def passes_errors_of_responses_on(router):
    for stream in (False, True):
        raises(openai.BadRequestError, lambda: router.respond(input=LONG, stream=stream), code="context_length_exceeded", param="input")
    raises(openai.NotFoundError, lambda: router.respond(model="nope"), code="model_not_found")


def passes_errors_of_messages_on(router):
    for stream in (False, True):
        error = kit.raised(lambda: router.message(messages=LONG, stream=stream), anthropic.BadRequestError)
        assert error.body["error"]["type"] == "invalid_request_error", error.body
    error = kit.raised(lambda: router.message(model="nope"), anthropic.NotFoundError)
    assert error.body["error"]["type"] == "not_found_error", error.body


def passes_keys_of_chats_on(router):
    raises(openai.AuthenticationError, lambda: router.chat("sk-wrong"), code="invalid_api_key")
    raises(openai.PermissionDeniedError, lambda: router.chat(served.other_key), type="permission_error", code="model_not_allowed")
    error = kit.raised_in_a_row(lambda: router.chat(served.limited_key, max_tokens=2), openai.RateLimitError)
    assert error.code == "rate_limit_exceeded" and 1 <= int(error.response.headers["retry-after"]) <= 120, error.body
    # One caller's refusals shut out nobody else.
    assert router.chat(max_tokens=2).usage


def passes_keys_of_responses_on(router):
    raises(openai.AuthenticationError, lambda: router.respond("sk-wrong"), code="invalid_api_key")
    raises(openai.PermissionDeniedError, lambda: router.respond(served.other_key), code="model_not_allowed")


def passes_keys_of_messages_on(router):
    kit.raised(lambda: router.message("sk-wrong"), anthropic.AuthenticationError)
    kit.raised(lambda: router.message(served.other_key), anthropic.PermissionDeniedError)


def has_no_messages(router):
    """The server's own 404 has a body."""
    for call in (router.message, lambda: router.anthropic().messages.count_tokens(model="demo", messages=SUM)):
        error = kit.raised(call, anthropic.NotFoundError)
        assert error.response.content == b"", error.response.content


def lets_in_who_has_its_own_key(router):
    """Any other key is refused by the router, which never asks the server."""
    error = kit.raised(lambda: router.chat(served.other_key), openai.AuthenticationError)
    assert error.body["message"] == "Invalid API key", error.body
    kit.raised(lambda: router.respond(served.other_key), openai.AuthenticationError)
    kit.raised(lambda: router.message(served.other_key), anthropic.AuthenticationError)


def asks_for_responses_and_messages_with_its_own_key(router):
    """It drops the caller's."""
    assert router.respond(served.other_key).output_text and router.message(served.other_key).content


def lists_the_model_that_it_found(router):
    assert [model.id for model in router.openai().models.list()] == ["demo"]


def lists_a_model_of_no_name(router):
    """It has read no name from pages that only SGLang's server has."""
    assert [model.id for model in router.openai().models.list()] == ["unknown"]


CHATS = [chats, streams_chats, streams_eight_chats_at_once, a_stream_that_is_left_ends_its_request, calls_tools_in_chats,
         follows_schemas_in_chats, draws_choices, passes_errors_of_chats_on]
RESPONSES = [responds, streams_responses, calls_tools_in_responses, passes_errors_of_responses_on]
MESSAGES = [gets_messages, streams_messages, calls_tools_in_messages, counts_tokens_of_messages, passes_errors_of_messages_on]
KEYS_PASSED = [passes_keys_of_chats_on, passes_keys_of_responses_on, passes_keys_of_messages_on]

TO_THE_SERVER = ["--worker-urls", served.url]
WITH_A_KEY = ["--api-key", served.key]
# Name, how it is started, and what it does. The packages of smg and sglang-router both bring a command `smg`: so by their modules.
ROUTERS = [
    # It knows the first model of a server only, so no second one that embeds.
    ("smg", ["smg", "launch", *TO_THE_SERVER, *WITH_A_KEY],
     [*CHATS, *RESPONSES, *MESSAGES, completes, refuses_embeddings_of_a_model_that_generates, lists_the_model_that_it_found,
      lets_in_who_has_its_own_key]),
    # Its server is named to it once it runs. Callers' keys then pass.
    ("smg with a worker's key", ["smg", "launch"], [chats, responds, gets_messages, *KEYS_PASSED]),
    # Ten refusals of any callers in a row would otherwise have it refuse everybody for a minute.
    ("sglang-router", ["sglang_router", "launch", *TO_THE_SERVER, "--disable-circuit-breaker"],
     [*CHATS, *RESPONSES, has_no_messages, completes, embeds, lists_a_model_of_no_name, *KEYS_PASSED[:2]]),
    ("vllm-router", ["vllm_router.launch_router", *TO_THE_SERVER, *WITH_A_KEY],
     [*CHATS, *RESPONSES, *MESSAGES, completes, embeds, lists_models, passes_keys_of_chats_on,
      asks_for_responses_and_messages_with_its_own_key]),
]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@contextlib.contextmanager
def running(arguments, log):
    """Starts a router on a free port, and ends it; gives its URL, once it is ready."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    ports = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
    with log.open("wb") as out, subprocess.Popen([sys.executable, "-m", *arguments, *ports], stdout=out, stderr=out) as process:

        def state():
            """What it says of itself, or None while it does not listen."""
            assert process.poll() is None, f"{arguments[0]} ended: {log.read_text(errors='replace')[-2000:]}"
            try:
                return kit.get(f"{url}/readiness")["status"]
            except urllib.error.HTTPError as error:
                return error.reason
            except OSError:
                return None

        try:
            if TO_THE_SERVER[0] not in arguments:
                kit.wait_until(f"{arguments[0]} listens", state)
                name_the_server(url)
            kit.wait_until(f"{arguments[0]} is ready", lambda: state() == "ready")
            yield url
        finally:
            process.kill()


def name_the_server(url):
    """Registers the server with a key for the router's own questions."""
    body = json.dumps({"url": served.url, "api_key": served.key}).encode()
    request = urllib.request.Request(f"{url}/workers", body, {"content-type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=kit.PATIENCE_S) as response:
        assert response.status == 202, response.status


def of(router, behaviour):
    """That behaviour through this router, under the names of both."""
    @functools.wraps(behaviour)
    def one():
        return behaviour(router)

    @functools.wraps(behaviour)
    async def one_that_waits():
        await behaviour(router)

    found = one_that_waits if inspect.iscoroutinefunction(behaviour) else one
    found.__name__ = f"{router.name}: {behaviour.__name__}"
    return found


with contextlib.ExitStack() as stack:
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="camshaft-routers-")))
    routers = {name: Router(name, stack.enter_context(running(arguments, folder / f"{name}.log"))) for name, arguments, _ in ROUTERS}
    kit.run(*(of(routers[name], behaviour) for name, _, behaviours in ROUTERS for behaviour in behaviours))
