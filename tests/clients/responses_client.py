"""What OpenAI's own client sees of the Responses API: `responses_client.py BASE_URL KEY KEY_FOR_ANOTHER_MODEL`."""

import asyncio
import sys

import openai

base, key, other_key = sys.argv[1:]
# Without retries: the first answer counts.
client = openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=60)
SUM = "What is 3 plus 4?"
STORY = "Tell me a story."


def responds():
    response = client.responses.create(
        model="demo", input=SUM, temperature=0, metadata={"from": "test"}, store=False, include=[])
    assert response.object == "response" and response.status == "completed" and response.error is None, response
    assert response.output_text and response.model == "demo" and response.metadata == {"from": "test"}, response
    assert response.output[0].type == "message" and response.output[0].role == "assistant", response
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens > 0, usage
    assert response.store is False and response.previous_response_id is None and response.temperature == 0, response
    return response.output_text


def takes_its_own_output_back():
    first = client.responses.create(model="demo", input=[{"role": "user", "content": SUM}], temperature=0)
    talk = [{"role": "user", "content": SUM}, *[item.model_dump() for item in first.output],
            {"role": "user", "content": [{"type": "input_text", "text": "What is 2 plus 2?"}]}]
    second = client.responses.create(model="demo", instructions="Answer briefly.", input=talk, temperature=0)
    assert second.status == "completed" and second.usage.input_tokens > first.usage.input_tokens, second


def streams(expected):
    events = list(client.responses.create(model="demo", input=SUM, temperature=0, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:4]] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == "response.completed" and text == last.response.output_text == expected, (text, last)
    assert last.response.usage.output_tokens > 0, last


def streams_with_the_helper(expected):
    with client.responses.stream(model="demo", input=SUM, temperature=0) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert final.output_text == expected, final


def leaves_a_stream():
    with client.responses.create(model="demo", input=STORY, stream=True, max_output_tokens=400) as stream:
        next(iter(stream))


def is_cut():
    response = client.responses.create(model="demo", input=STORY, max_output_tokens=2)
    assert response.status == "incomplete" and response.incomplete_details.reason == "max_output_tokens", response
    assert response.output[0].status == "incomplete", response


def tells_log_probabilities():
    response = client.responses.create(
        model="demo", input=SUM, max_output_tokens=2, include=["message.output_text.logprobs"], top_logprobs=2)
    tokens = response.output[0].content[0].logprobs
    assert tokens and len(tokens[0].top_logprobs) == 2 and tokens[0].logprob <= 0, response


def raises(kind, status, call, **expected):
    try:
        call()
    except openai.APIStatusError as error:
        assert type(error) is kind and error.status_code == status and error.request_id, (kind, type(error), error)
        for name, value in expected.items():
            assert getattr(error, name) == value, (name, getattr(error, name), value)
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def raises_its_own_exceptions():
    def respond(client=client, **fields):
        return client.responses.create(**{"model": "demo", "input": SUM, **fields})

    raises(openai.BadRequestError, 400, lambda: respond(max_output_tokens=0), param="max_output_tokens")
    raises(openai.BadRequestError, 400, lambda: respond(temperature=3, stream=True), param="temperature")
    raises(openai.BadRequestError, 400, lambda: respond(previous_response_id="resp_1"), param="previous_response_id")
    raises(openai.BadRequestError, 400, lambda: respond(background=True), param="background")
    raises(openai.BadRequestError, 400, lambda: respond(input="word " * 9000), code="context_length_exceeded", param="input")
    raises(openai.AuthenticationError, 401, lambda: respond(client.with_options(api_key="sk-wrong")), code="invalid_api_key")
    raises(openai.PermissionDeniedError, 403, lambda: respond(client.with_options(api_key=other_key)))
    raises(openai.NotFoundError, 404, lambda: respond(model="nope"), code="model_not_found")
    raises(openai.NotFoundError, 404, lambda: client.responses.retrieve("resp_1"), code="unknown_url")


async def streams_at_once(expected):
    async with openai.AsyncOpenAI(base_url=base, api_key=key, max_retries=0, timeout=60) as client:
        async def one():
            stream = await client.responses.create(model="demo", input=SUM, temperature=0, stream=True)
            return "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])

        texts = await asyncio.gather(*(one() for _ in range(8)))
    assert texts == [expected] * 8, texts


answer = responds()
takes_its_own_output_back()
streams(answer)
streams_with_the_helper(answer)
leaves_a_stream()
is_cut()
tells_log_probabilities()
raises_its_own_exceptions()
asyncio.run(streams_at_once(answer))
print("all checks passed")
