// What OpenAI's own client for Node.js sees of a Camshaft server. Arguments and report: `kit.py`.
import assert from "node:assert/strict";

import OpenAI from "openai";
import { LengthFinishReasonError } from "openai/error";
import { zodFunction, zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

import {
  busy, CLOCK, embeddingModel, follows, isPlace, PLACE, run, served, STORY, SUM, thrown, thrownInARow, waitUntil, waitUntilIdle, WEATHER,
} from "./kit.mjs";

// Without retries: the first answer counts.
const client = new OpenAI({ baseURL: `${served.url}/v1`, apiKey: served.key, maxRetries: 0, timeout: 60_000 });
const withKey = (apiKey) => client.withOptions({ apiKey });
const ask = (content) => [{ role: "user", content }];
const GET_WEATHER = { type: "function", function: { name: "get_weather", parameters: PLACE, strict: true } };
const GET_TIME = { type: "function", function: { name: "get_time", parameters: CLOCK, strict: true } };
const NAMED = { type: "function", function: { name: "get_time" } };
const tools = [GET_WEATHER, GET_TIME];
const Place = z.strictObject({ city: z.enum(["Oslo", "Rome"]), hourly: z.boolean() });
const chat = (fields = {}, by = client) => by.chat.completions.create({ model: "demo", messages: ask(SUM), ...fields });
const respond = (fields = {}, by = client) => by.responses.create({ model: "demo", input: SUM, ...fields });

/** The names of the calls, whose arguments follow the tools' schemas. */
function checked(calls) {
  for (const call of calls) {
    assert.ok(call.id && follows(call.function.name, JSON.parse(call.function.arguments)), JSON.stringify(call));
  }
  return calls.map((call) => call.function.name);
}

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

await run({
  async chats() {
    const answer = await chat({ temperature: 0 });
    assert.match(answer.choices[0].message.content, /7/);
    assert.equal(answer.choices[0].finish_reason, "stop");
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },
  async streams() {
    const chunks = await all(await chat({ temperature: 0, stream: true, stream_options: { include_usage: true } }));
    assert.match(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), /7/);
    assert.ok(chunks.at(-1).usage.completion_tokens > 0);
  },
  async streamsWithTheHelper() {
    const stream = client.chat.completions.stream({ model: "demo", messages: ask(SUM), temperature: 0 });
    assert.match(await stream.finalContent(), /7/);
  },
  async streamsEightAtOnce() {
    const texts = await Promise.all(Array.from({ length: 8 }, async () => {
      const chunks = await all(await chat({ temperature: 0, stream: true }));
      return chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");
    }));
    assert.equal(new Set(texts).size, 1);
  },
  async aStreamThatIsLeftEndsItsRequest() {
    for await (const _ of await chat({ messages: ask(STORY), stream: true, max_tokens: 400, ignore_eos: true })) break;
    await waitUntilIdle();
  },
  async aRequestThatIsAbortedEnds() {
    const control = new AbortController();
    const fields = { model: "demo", messages: ask(STORY), max_tokens: 900, ignore_eos: true };
    let ended = false;
    const asked = client.chat.completions.create(fields, { signal: control.signal }).finally(() => { ended = true; });
    const aborted = thrown(() => asked, OpenAI.APIUserAbortError).catch((error) => error);
    await waitUntil("a request runs", async () => ended || (await busy()) > 0);
    control.abort();
    assert.ok((await aborted) instanceof OpenAI.APIUserAbortError || ended);
    await waitUntilIdle();
  },
  async callsAToolWhereItMust() {
    const { choices: [choice] } = await chat({ messages: ask(WEATHER), tools, tool_choice: "required" });
    assert.equal(choice.finish_reason, "tool_calls");
    assert.ok(checked(choice.message.tool_calls).length > 0);
  },
  async callsTheToolThatIsNamed() {
    const { choices: [choice] } = await chat({ messages: ask(WEATHER), tools, tool_choice: NAMED });
    assert.deepEqual([...new Set(checked(choice.message.tool_calls))], ["get_time"]);
  },
  async callsAToolOrAnswersWhereItMay() {
    const { choices: [choice] } = await chat({ messages: ask(WEATHER), tools, max_tokens: 200 });
    assert.ok(choice.message.tool_calls ? checked(choice.message.tool_calls).length : choice.message.content);
  },
  async streamsTheArgumentsOfACall() {
    const chunks = await all(await chat({
      messages: ask(WEATHER), tools: [GET_WEATHER], tool_choice: "required", parallel_tool_calls: false, stream: true,
    }));
    const pieces = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []);
    assert.equal(pieces[0].function.name, "get_weather");
    assert.ok(isPlace(JSON.parse(pieces.map((piece) => piece.function.arguments ?? "").join(""))));
  },
  async runsToolsWithTheHelper() {
    // It is made to call in each turn, so that it is left after the first.
    const places = [];
    const runner = client.chat.completions.runTools({
      model: "demo", messages: ask(WEATHER), tool_choice: { type: "function", function: { name: "get_weather" } },
      parallel_tool_calls: false,
      tools: [{ type: "function", function: {
        name: "get_weather", description: "The weather of a city.", parameters: PLACE, parse: JSON.parse, strict: true,
        function: (place) => { places.push(place); return "sunny"; },
      } }],
    }, { maxChatCompletions: 1 });
    await runner.done();
    assert.ok(places.length > 0 && places.every(isPlace));
  },
  async takesTheResultOfAToolBack() {
    const { choices: [{ message }] } = await chat({ messages: ask(WEATHER), tools, tool_choice: "required" });
    const results = message.tool_calls.map((call) => ({ role: "tool", tool_call_id: call.id, content: "sunny" }));
    const answer = await chat({
      messages: [...ask(WEATHER), message, ...results], tools, tool_choice: "none", temperature: 0, max_tokens: 200,
    });
    assert.ok(answer.choices[0].message.content);
  },
  async parsesTheArgumentsOfACall() {
    const answer = await client.chat.completions.parse({
      model: "demo", messages: ask(WEATHER), tools: [zodFunction({ name: "get_weather", parameters: Place })], tool_choice: "required",
    });
    assert.ok(isPlace(answer.choices[0].message.tool_calls[0].function.parsed_arguments));
  },
  async followsASchema() {
    const response_format = { type: "json_schema", json_schema: { name: "place", schema: PLACE, strict: true } };
    const answer = await chat({ messages: ask(WEATHER), response_format, n: 2 });
    for (const choice of answer.choices) assert.ok(isPlace(JSON.parse(choice.message.content)));
  },
  async parsesWhatFollowsASchema() {
    const fields = { model: "demo", messages: ask(WEATHER), response_format: zodResponseFormat(Place, "place") };
    assert.ok(isPlace((await client.chat.completions.parse(fields)).choices[0].message.parsed));
    const final = await client.chat.completions.stream(fields).finalChatCompletion();
    assert.ok(isPlace(final.choices[0].message.parsed));
  },
  async saysWhereASchemaWasCut() {
    const fields = { model: "demo", messages: ask(WEATHER), response_format: zodResponseFormat(Place, "place"), max_tokens: 2 };
    await thrown(() => client.chat.completions.parse(fields), LengthFinishReasonError);
  },
  async completes() {
    const answer = await client.completions.create({ model: "demo", prompt: "1, 2, 3,", max_tokens: 8, temperature: 0 });
    assert.ok(answer.choices[0].text);
  },
  async responds() {
    const answer = await respond({ temperature: 0 });
    assert.match(answer.output_text, /7/);
    const events = await all(await respond({ temperature: 0, stream: true }));
    assert.equal(events.at(-1).type, "response.completed");
    assert.equal(events.at(-1).response.output_text ?? answer.output_text, answer.output_text);
  },
  async respondsWithACall() {
    const answer = await respond({
      input: WEATHER, tool_choice: "required", tools: [{ type: "function", name: "get_weather", parameters: PLACE, strict: true }],
    });
    const call = answer.output.find((item) => item.type === "function_call");
    assert.ok(isPlace(JSON.parse(call.arguments)));
  },
  async parsesAResponse() {
    const answer = await client.responses.parse({ model: "demo", input: WEATHER, text: { format: zodTextFormat(Place, "place") } });
    assert.ok(isPlace(answer.output_parsed));
  },
  async embeds() {
    const model = await embeddingModel();
    if (model === null) {
      const error = await thrown(() => client.embeddings.create({ model: "demo", input: "rain" }), OpenAI.BadRequestError);
      assert.equal(error.param, "model");
      return;
    }
    const { data } = await client.embeddings.create({ model, input: ["rain", "a shower"] });
    assert.equal(data.length, 2);
    assert.ok(data[0].embedding.length > 1 && Math.abs(data[0].embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3);
  },
  async listsModels() {
    const ids = (await all(client.models.list())).map((model) => model.id);
    assert.ok(ids.includes("demo"));
    assert.equal((await client.models.retrieve("demo")).id, "demo");
  },
  async throwsItsOwnErrors() {
    const bad = await thrown(() => chat({ temperature: 3 }), OpenAI.BadRequestError);
    assert.deepEqual([bad.status, bad.param, bad.type], [400, "temperature", "invalid_request_error"]);
    assert.ok(bad.requestID);
    await thrown(() => chat({ temperature: 3, stream: true }), OpenAI.BadRequestError);
    const long = await thrown(() => chat({ messages: ask("word ".repeat(9000)) }), OpenAI.BadRequestError);
    assert.equal(long.code, "context_length_exceeded");
    const wrong = await thrown(() => chat({}, withKey("sk-wrong")), OpenAI.AuthenticationError);
    assert.equal(wrong.code, "invalid_api_key");
    await thrown(() => chat({}, withKey(served.otherKey)), OpenAI.PermissionDeniedError);
    assert.equal((await thrown(() => chat({ model: "nope" }), OpenAI.NotFoundError)).code, "model_not_found");
    assert.equal((await thrown(() => client.batches.list(), OpenAI.NotFoundError)).code, "unknown_url");
  },
  async throwsRateLimitErrors() {
    const error = await thrownInARow(() => chat({ max_tokens: 2 }, withKey(served.limitedKey)), OpenAI.RateLimitError);
    assert.equal(error.code, "rate_limit_exceeded");
  },
});
