"""What OpenAI's own client sees of a Camshaft server: `openai_client.py BASE_URL KEY KEY_FOR_ANOTHER_MODEL`."""

import asyncio
import sys

import openai

base, key, other_key = sys.argv[1:]
# Without retries: the first answer counts.
client = openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=60)
SUM = [{"role": "user", "content": "What is 3 plus 4?"}]
STORY = [{"role": "user", "content": "Tell me a story."}]


def chats():
    answer = client.chat.completions.create(model="demo", messages=SUM, temperature=0)
    choice = answer.choices[0]
    assert "7" in choice.message.content, choice
    assert choice.finish_reason == "stop" and choice.message.role == "assistant", choice
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.object == "chat.completion" and answer.model == "demo" and answer.id, answer
    return choice.message.content


def streams(expected):
    stream = client.chat.completions.create(
        model="demo", messages=SUM, temperature=0, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    *deltas, last = chunks
    text = "".join(chunk.choices[0].delta.content or "" for chunk in deltas)
    assert text == expected, (text, expected)
    assert deltas[0].choices[0].delta.role == "assistant"
    assert deltas[-1].choices[0].finish_reason == "stop"
    assert last.choices == [] and last.usage.completion_tokens > 0, last
    assert len({chunk.id for chunk in chunks}) == 1


def streams_with_the_helper(expected):
    with client.chat.completions.stream(model="demo", messages=SUM, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == expected, final


def leaves_a_stream():
    with client.chat.completions.create(model="demo", messages=STORY, stream=True, max_tokens=400) as stream:
        next(iter(stream))


def draws_choices():
    answer = client.chat.completions.create(
        model="demo", messages=STORY, n=3, seed=5, temperature=1, max_tokens=20, stop=["\n"], top_p=0.9,
        frequency_penalty=0.1, presence_penalty=0.1, logit_bias={"100": -5}, logprobs=True, top_logprobs=2)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs.content and len(choice.logprobs.content[0].top_logprobs) == 2
        assert choice.logprobs.content[0].logprob <= 0


def completes():
    answer = client.completions.create(model="demo", prompt="1, 2, 3,", max_tokens=8, temperature=0, logprobs=1)
    assert answer.object == "text_completion" and answer.choices[0].text, answer
    assert answer.choices[0].logprobs.token_logprobs, answer
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(
        model="demo", prompt="1, 2, 3,", max_tokens=8, temperature=0, stream=True))
    assert text == answer.choices[0].text


def lists_models():
    models = list(client.models.list())
    assert [model.id for model in models] == ["demo"], models
    assert client.models.retrieve("demo").id == "demo"


def raises(kind, status, call, **expected):
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is kind, (kind, type(error), error)
        assert error.status_code == status, error
        assert error.request_id, error
        for name, value in expected.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value)
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def raises_its_own_exceptions():
    def chat(client=client, **fields):
        return client.chat.completions.create(**{"model": "demo", "messages": SUM, **fields})

    raises(openai.BadRequestError, 400, lambda: chat(temperature=3), param="temperature", type="invalid_request_error")
    raises(openai.BadRequestError, 400, lambda: chat(messages=[]), param="messages")
    raises(openai.BadRequestError, 400, lambda: chat(messages=[{"role": "user", "content": "word " * 9000}]),
           code="context_length_exceeded")
    raises(openai.BadRequestError, 400, lambda: chat(temperature=3, stream=True), param="temperature")
    wrong = client.with_options(api_key="sk-wrong")
    raises(openai.AuthenticationError, 401, lambda: chat(wrong), code="invalid_api_key", type="authentication_error")
    raises(openai.AuthenticationError, 401, lambda: wrong.models.list())
    raises(openai.PermissionDeniedError, 403, lambda: chat(client.with_options(api_key=other_key)), type="permission_error")
    raises(openai.NotFoundError, 404, lambda: chat(model="nope"), code="model_not_found")
    raises(openai.NotFoundError, 404, lambda: client.models.retrieve("nope"), code="model_not_found")
    raises(openai.NotFoundError, 404, lambda: client.batches.list(), code="unknown_url")


async def streams_at_once(expected):
    async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0, timeout=60) as client:
        async def one():
            stream = await client.chat.completions.create(model="demo", messages=SUM, temperature=0, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(one() for _ in range(8)))
    assert texts == [expected] * 8, texts


answer = chats()
streams(answer)
streams_with_the_helper(answer)
leaves_a_stream()
draws_choices()
completes()
lists_models()
raises_its_own_exceptions()
asyncio.run(streams_at_once(answer))
print("all checks passed")
