// What Vercel's AI SDK sees of a Camshaft server, as an OpenAI-compatible provider and by OpenAI's own provider, whose models are
// responses. Arguments and report: `kit.py`.
import assert from "node:assert/strict";

import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, isStepCount, NoObjectGeneratedError, Output, streamText, tool } from "ai";
import { z } from "zod";

import { embeddingModel, isPlace, run, served, STORY, SUM, thrown, thrownInARow, waitUntilIdle, WEATHER } from "./kit.mjs";

const baseURL = `${served.url}/v1`;
const compatible = (apiKey = served.key) =>
  createOpenAICompatible({ name: "camshaft", baseURL, apiKey, includeUsage: true, supportsStructuredOutputs: true });
const openai = (apiKey = served.key) => createOpenAI({ baseURL, apiKey });
const MODELS = { compatible: compatible()("demo"), chat: openai().chat("demo"), responses: openai().responses("demo") };
const GREEDY = { temperature: 0, maxRetries: 0 };
const Place = z.strictObject({ city: z.enum(["Oslo", "Rome"]), hourly: z.boolean() });
const tools = (execute) => ({ get_weather: tool({ description: "The weather of a city.", inputSchema: Place, strict: true, execute }) });

/** Checks something with each way to the model. */
const each = (check) => async () => {
  for (const [way, model] of Object.entries(MODELS)) {
    try {
      await check(model);
    } catch (error) {
      throw new Error(`with ${way}: ${error.message}`, { cause: error });
    }
  }
};

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

await run({
  generatesText: each(async (model) => {
    const { text, usage, finishReason } = await generateText({ model, prompt: SUM, ...GREEDY });
    assert.match(text, /7/);
    assert.equal(finishReason, "stop");
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 0);
  }),
  streamsText: each(async (model) => {
    const result = streamText({ model, prompt: SUM, ...GREEDY });
    const pieces = await all(result.textStream);
    assert.match(pieces.join(""), /7/);
    assert.ok(pieces.length > 1 && (await result.usage).outputTokens > 0);
  }),
  saysThatATextWasCut: each(async (model) => {
    const { finishReason } = await generateText({ model, prompt: STORY, maxOutputTokens: 2, maxRetries: 0 });
    assert.equal(finishReason, "length");
  }),
  callsAToolWhereItMust: each(async (model) => {
    const { toolCalls, finishReason } = await generateText({
      model, prompt: WEATHER, tools: tools(), toolChoice: "required", maxRetries: 0,
    });
    assert.ok(toolCalls.length > 0 && toolCalls.every(({ toolName, input }) => toolName === "get_weather" && isPlace(input)));
    assert.equal(finishReason, "tool-calls");
  }),
  callsTheToolThatIsNamed: each(async (model) => {
    const { toolCalls } = await generateText({
      model, prompt: WEATHER, maxRetries: 0, toolChoice: { type: "tool", toolName: "get_weather" },
      tools: { ...tools(), get_time: tool({ inputSchema: z.strictObject({ zone: z.enum(["UTC", "CET"]) }) }) },
    });
    assert.ok(toolCalls.length > 0 && toolCalls.every(({ toolName }) => toolName === "get_weather"));
  }),
  callsAToolOrAnswersWhereItMay: each(async (model) => {
    const { toolCalls, text } = await generateText({ model, prompt: WEATHER, tools: tools(), maxOutputTokens: 200, maxRetries: 0 });
    assert.ok(toolCalls.length > 0 || text);
  }),
  streamsTheArgumentsOfACall: each(async (model) => {
    const { stream } = streamText({
      model, prompt: WEATHER, tools: tools(), toolChoice: "required", maxRetries: 0, onError() {},
    });
    const parts = await all(stream);
    const call = parts.find(({ type }) => type === "tool-call");
    assert.ok(call, JSON.stringify(parts.filter(({ type }) => type === "error")));
    assert.ok(isPlace(call.input));
    const pieces = parts.filter(({ type, id }) => type === "tool-input-delta" && id === call.toolCallId);
    assert.deepEqual(JSON.parse(pieces.map(({ delta }) => delta).join("")), call.input);
  }),
  takesTheResultOfAToolBack: each(async (model) => {
    const places = [];
    const { text, steps } = await generateText({
      model, prompt: WEATHER, ...GREEDY, maxOutputTokens: 200, stopWhen: isStepCount(2),
      tools: tools((place) => { places.push(place); return "sunny"; }),
      prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? "required" : "none" }),
    });
    assert.ok(places.length > 0 && places.every(isPlace));
    assert.ok(steps.length === 2 && text);
  }),
  givesObjects: each(async (model) => {
    const { output } = await generateText({ model, prompt: WEATHER, output: Output.object({ schema: Place }), maxRetries: 0 });
    assert.ok(isPlace(output));
  }),
  streamsObjects: each(async (model) => {
    const result = streamText({ model, prompt: WEATHER, output: Output.object({ schema: Place }), maxRetries: 0, onError() {} });
    const partial = await all(result.partialOutputStream);
    assert.ok(isPlace(await result.output) && partial.length > 0);
  }),
  saysThatAnObjectWasCut: each(async (model) => {
    const asked = async () => (await generateText({
      model, prompt: WEATHER, output: Output.object({ schema: Place }), maxOutputTokens: 2, maxRetries: 0,
    })).output;
    await thrown(asked, Error).then((error) => assert.ok(
      NoObjectGeneratedError.isInstance(error) || error.name === "AI_NoOutputGeneratedError", error.stack));
  }),
  async embeds() {
    const model = await embeddingModel();
    const embed = () => embedMany({
      model: compatible().embeddingModel(model ?? "demo"), values: ["rain", "a shower"], maxRetries: 0,
    });
    if (model === null) {
      assert.equal((await thrown(embed, APICallError)).statusCode, 400);
      return;
    }
    const { embeddings } = await embed();
    assert.ok(embeddings.length === 2 && embeddings[0].length > 1);
  },
  throwsErrorsOfCalls: each(async (model) => {
    const error = await thrown(() => generateText({ model, prompt: SUM, temperature: 3, maxRetries: 0 }), APICallError);
    assert.deepEqual([error.statusCode, error.isRetryable, error.data?.error.param], [400, false, "temperature"]);
  }),
  async throwsErrorsOfCredentialsAndModels() {
    const status = async (model) => (await thrown(() => generateText({ model, prompt: SUM, maxRetries: 0 }), APICallError)).statusCode;
    for (const provider of [compatible, openai]) {
      assert.equal(await status(provider("sk-wrong")("demo")), 401);
      assert.equal(await status(provider(served.otherKey)("demo")), 403);
      assert.equal(await status(provider()("nope")), 404);
    }
  },
  async throwsRateLimitErrors() {
    const model = compatible(served.limitedKey)("demo");
    const error = await thrownInARow(() => generateText({ model, prompt: SUM, maxOutputTokens: 2, maxRetries: 0 }), APICallError);
    assert.deepEqual([error.statusCode, error.isRetryable], [429, true]);
  },
  aStreamThatIsAbortedEndsItsRequest: each(async (model) => {
    const control = new AbortController();
    const result = streamText({
      model, prompt: STORY, maxOutputTokens: 900, maxRetries: 0, abortSignal: control.signal, onError() {},
    });
    for await (const _ of result.textStream) control.abort();
    await waitUntilIdle();
  }),
});
