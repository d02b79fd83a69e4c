// What the suites in JavaScript share: their arguments, tools and schemas, how they wait, and how they report.
// Arguments and report are those of `kit.py`.
import assert from "node:assert/strict";

const [url, key, otherKey, limitedKey, admin] = process.argv.slice(2);
export const served = { url, key, otherKey, limitedKey, admin };
// Bounds a wait that goes wrong; nothing is measured by it.
const PATIENCE_MS = 180_000;

export const SUM = "What is 3 plus 4?";
export const STORY = "Tell me a story.";
export const WEATHER = "What is the weather in Oslo?";
// Values of closed sets: a model that was not trained on tools still finishes them.
export const PLACE = {
  type: "object",
  properties: { city: { type: "string", enum: ["Oslo", "Rome"] }, hourly: { type: "boolean" } },
  required: ["city", "hourly"],
  additionalProperties: false,
};
export const CLOCK = {
  type: "object",
  properties: { zone: { type: "string", enum: ["UTC", "CET"] } },
  required: ["zone"],
  additionalProperties: false,
};

/** Whether a value follows `PLACE`. */
export function isPlace(value) {
  return Object.keys(value).length === 2 && ["Oslo", "Rome"].includes(value.city) && typeof value.hourly === "boolean";
}

/** Whether a call's arguments follow its tool's schema. */
export function follows(name, value) {
  return name === "get_weather" ? isPlace(value) : name === "get_time" && ["UTC", "CET"].includes(value.zone);
}

async function get(address, headers = {}) {
  const response = await fetch(address, { headers });
  assert.equal(response.status, 200);
  return response.json();
}

/** The number of requests that run or wait, over all models. */
export async function busy() {
  const { models } = await get(`${admin}/server/stats`);
  return Object.values(models).reduce((sum, { queue }) => sum + queue.running + queue.waiting, 0);
}

/** Asks until it is so. */
export async function waitUntil(what, condition) {
  const begun = Date.now();
  while (!(await condition())) {
    assert.ok(Date.now() - begun < PATIENCE_MS, `never came true: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}

export const waitUntilIdle = () => waitUntil("the server is idle", async () => (await busy()) === 0);

/** The id of a served model that embeds, or null. */
export async function embeddingModel() {
  const headers = { authorization: `Bearer ${key}` };
  for (const { id } of (await get(`${url}/v1/models`, headers)).data) {
    if ((await get(`${url}/v1/models/${id}`, headers)).task === "embed") return id;
  }
  return null;
}

/** The error that a call throws, which has to be of this class. */
export async function thrown(call, kind) {
  try {
    await call();
  } catch (error) {
    if (error instanceof kind) return error;
    throw error;
  }
  throw new Error(`${kind.name} was not thrown`);
}

/** The error that one of a few calls in a row throws: the first may still be within a quota. */
export async function thrownInARow(call, kind) {
  for (let tries = 0; tries < 3; tries += 1) {
    try {
      await call();
    } catch (error) {
      if (error instanceof kind) return error;
      throw error;
    }
  }
  throw new Error(`${kind.name} was not thrown`);
}

/** Checks all behaviours of an object of functions, and ends the process with 1 if one failed. */
export async function run(behaviours) {
  let failed = 0;
  for (const [name, behaviour] of Object.entries(behaviours)) {
    const words = name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`);
    try {
      await behaviour();
      console.log(`passed: ${words}`);
    } catch (error) {
      failed += 1;
      console.log(`failed: ${words}\n${error.stack}`);
    }
  }
  console.log(`${Object.keys(behaviours).length - failed} passed${failed ? `, ${failed} failed` : ""}`);
  process.exit(failed ? 1 : 0);
}
