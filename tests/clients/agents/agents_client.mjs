// Coding agents as they are in their registries, each with one task, against a server whose model has a long context.
// The model cannot call tools by itself: a proxy has the agent's shell called once, with a command that it chooses (or an edit made,
// by the agent that has no tools), and passes on everything else as it is. Arguments and report are those of `kit.py`.
import { spawn, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import http from "node:http";
import os from "node:os";
import path from "node:path";

const [url, key] = process.argv.slice(2);
const BIN = path.resolve("node_modules/.bin");
const MODEL = "agent";
const TASK = "Run the command and say what it prints.";
const COMMAND = "echo camshaft-was-here";
const PRINTED = "camshaft-was-here";
const SHELL = /^(bash|shell|shell_command|exec_command|run_shell_command|run_terminal_command|run_commands)$/i;
const FIELD = /^(commands?|cmd)$/;
// Of mini-swe-agent, which goes on until it runs this.
const END = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT";
// Of aider: how it is told to edit, and an edit.
const LISTING = "*file listing*";
const EDIT = `said.txt\n\`\`\`\n${PRINTED}\n\`\`\`\n`;
// Agents in Python, and what they bring that aider-chat does not pin itself; it wants a Python before 3.13.
const PINS =
  "aider-chat==0.86.2 mini-swe-agent==2.4.6 datasets==5.0.1 dill==0.4.1 linkify-it-py==2.2.0 mdit-py-plugins==0.7.0 " +
  "multiprocess==0.70.19 pandas==3.0.6 platformdirs==4.14.8 pyarrow==26.0.1 tenacity==9.2.1 textual==8.2.8 xxhash==4.1.0";
const PYTHON = path.resolve("python/bin");
// Bounds an agent that goes wrong; nothing is measured by it.
const PATIENCE_MS = 240_000;

/** The members of a tool: flat, or in `function`. */
const inner = (tool) => tool.function ?? tool;

/** Leaves a shell nothing but the command. */
function narrow(tool, command) {
  const of = inner(tool);
  const name = of.input_schema ? "input_schema" : "parameters";
  const { properties, required = [] } = of[name];
  const kept = Object.keys(properties).filter((field) => required.includes(field) || FIELD.test(field));
  const only = (field) => {
    if (!FIELD.test(field)) return properties[field].type === "string" ? { enum: ["x"] } : properties[field];
    const list = field === "commands" ? [command] : ["sh", "-c", command];
    return { enum: [properties[field].type === "array" ? list : command] };
  };
  of[name] = {
    type: "object",
    properties: Object.fromEntries(kept.map((field) => [field, only(field)])),
    required: kept,
    additionalProperties: false,
  };
}

/** The request with a call of the shell, once a conversation; afterwards it is the client's, without calls. */
function forced(request, body) {
  const shell = (body.tools ?? []).find((tool) => SHELL.test(inner(tool).name ?? ""));
  const asked = JSON.stringify(body.messages ?? body.input ?? "");
  const called = asked.includes(PRINTED);
  if (!shell) return asked.includes(LISTING) && !called ? { ...body, guided_choice: [EDIT] } : body;
  const isMessages = request.url.startsWith("/v1/messages");
  if (called && !asked.includes(END)) return { ...body, tool_choice: isMessages ? { type: "none" } : "none" };
  narrow(shell, called ? END : COMMAND);
  const { name } = inner(shell);
  const choice = isMessages
    ? { type: "tool", name }
    : request.url.startsWith("/v1/responses")
      ? { type: "function", name }
      : { type: "function", function: { name } };
  return { ...body, tool_choice: choice };
}

/** A proxy that notes what it saw: statuses of requests for answers, and whether the command's output came back. */
async function proxy() {
  const seen = { statuses: [], refusals: [], returned: false };
  const server = http.createServer((request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", async () => {
      let text = Buffer.concat(parts);
      if (request.method === "POST") {
        const body = JSON.parse(text.toString());
        const asked = JSON.stringify(body.messages ?? body.input ?? "");
        seen.returned ||= asked.includes(PRINTED);
        text = Buffer.from(JSON.stringify(forced(request, body)));
      }
      const headers = { ...request.headers, "content-length": text.length };
      delete headers.host;
      delete headers["transfer-encoding"];
      const { hostname, port } = new URL(url);
      const passed = http.request({ hostname, port, path: request.url, method: request.method, headers }, (answer) => {
        if (request.method === "POST") seen.statuses.push(answer.statusCode);
        if (answer.statusCode >= 400) answer.on("data", (part) => seen.refusals.push(part.toString()));
        response.writeHead(answer.statusCode, answer.headers);
        answer.pipe(response);
      });
      passed.on("error", () => response.destroy());
      response.on("close", () => passed.destroy());
      passed.end(text);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return { server, seen, base: `http://127.0.0.1:${server.address().port}` };
}

/** Runs a program to its end. */
function run(program, args, { env, cwd }) {
  return new Promise((resolve) => {
    const child = spawn(path.resolve(BIN, program), args, { env, cwd, stdio: ["ignore", "pipe", "pipe"], timeout: PATIENCE_MS });
    let said = "";
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (part) => (said += part));
    child.on("error", (error) => resolve({ code: -1, said: String(error) }));
    child.on("close", (code) => resolve({ code, said }));
  });
}

const file = (home, name, text) => {
  mkdirSync(path.dirname(path.join(home, name)), { recursive: true });
  writeFileSync(path.join(home, name), text);
};

function codex(model) {
  return (base, home) => {
    file(
      home,
      ".codex/config.toml",
      `model_provider = "camshaft"\n[model_providers.camshaft]\nname = "Camshaft"\nbase_url = "${base}/v1"\n` +
        `env_key = "OPENAI_API_KEY"\nwire_api = "responses"\n`,
    );
    const args = ["exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", model, TASK];
    return ["codex", args, { OPENAI_API_KEY: key }];
  };
}

/** Each agent: what is written into its home, how it is called, and its environment. */
const AGENTS = {
  "codex gpt-5-codex": codex("gpt-5-codex"),
  "codex gpt-5.2": codex("gpt-5.2"),
  opencode: (base, home) => {
    const options = { baseURL: `${base}/v1`, apiKey: key };
    const provider = { npm: "@ai-sdk/openai-compatible", name: "Camshaft", options, models: { [MODEL]: { name: MODEL } } };
    file(home, ".config/opencode/opencode.json", JSON.stringify({ provider: { camshaft: provider }, permission: "allow" }));
    return ["opencode", ["run", "-m", `camshaft/${MODEL}`, TASK], {}];
  },
  pi: (base, home) => {
    const model = { id: MODEL, name: MODEL, reasoning: false, input: ["text"], contextWindow: 200000, maxTokens: 32000 };
    const provider = { baseUrl: `${base}/v1`, api: "openai-completions", apiKey: key };
    const cost = { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 };
    const models = { providers: { camshaft: { ...provider, models: [{ ...model, cost }] } } };
    file(home, ".pi/agent/models.json", JSON.stringify(models));
    return ["pi", ["--provider", "camshaft", "--model", MODEL, "-p", TASK], {}];
  },
  "qwen-code": (base) => {
    const env = { OPENAI_API_KEY: key, OPENAI_BASE_URL: `${base}/v1`, OPENAI_MODEL: MODEL };
    return ["qwen", ["--auth-type", "openai", "--approval-mode", "yolo", "-p", TASK], env];
  },
  continue: (base, home) => {
    const model = `{name: agent, provider: openai, model: ${MODEL}, apiBase: "${base}/v1", apiKey: ${key}, roles: [chat]}`;
    file(home, "config.yaml", `name: local\nversion: 1.0.0\nschema: v1\nmodels:\n  - ${model}\n`);
    return ["cn", ["-p", "--auto", "--config", path.join(home, "config.yaml"), TASK], {}];
  },
  "claude-code": (base) => {
    const env = { ANTHROPIC_BASE_URL: base, ANTHROPIC_API_KEY: key, DISABLE_TELEMETRY: "1", IS_SANDBOX: "1" };
    return ["claude", ["-p", TASK, "--model", "claude-sonnet-4-5", "--allowedTools", "Bash"], env];
  },
  cline: (base, home) => {
    const settings = { provider: "openai-compatible", apiKey: key, model: MODEL, baseUrl: `${base}/v1` };
    const providers = { [settings.provider]: { settings, updatedAt: new Date().toISOString(), tokenSource: "manual" } };
    const chosen = { version: 1, lastUsedProvider: settings.provider, modes: {}, providers };
    file(home, ".cline/data/settings/providers.json", JSON.stringify(chosen));
    // Leaves no process behind it.
    return ["cline", [TASK], { CLINE_SESSION_BACKEND_MODE: "local" }];
  },
  aider: (base) => {
    const env = { OPENAI_API_BASE: `${base}/v1`, OPENAI_API_KEY: key };
    // What the failing check prints of the edited file goes back to the model.
    const check = ["--auto-test", "--test-cmd", "cat said.txt; false"];
    const args = ["--model", `openai/${MODEL}`, "--no-git", "--yes-always", "--no-check-update", ...check, "--message", TASK];
    return [path.join(PYTHON, "aider"), args, env];
  },
  "mini-swe-agent": (base) => {
    const env = { OPENAI_API_BASE: `${base}/v1`, OPENAI_API_KEY: key, MSWEA_COST_TRACKING: "ignore_errors", MSWEA_CONFIGURED: "1" };
    return [path.join(PYTHON, "mini"), ["-m", `openai/${MODEL}`, "-y", "--exit-immediately", "-t", TASK], env];
  },
};

// These put their programs in place by scripts, which no other package here needs.
for (const script of ["opencode-ai/postinstall.mjs", "@anthropic-ai/claude-code/install.cjs"]) {
  const file = path.resolve("node_modules", script);
  spawnSync(process.execPath, [file], { cwd: path.dirname(file) });
}
const loud = { stdio: ["ignore", "ignore", "inherit"] };
spawnSync("python3", ["-m", "venv", path.dirname(PYTHON)], loud);
spawnSync(path.join(PYTHON, "pip"), ["install", "--quiet", "--disable-pip-version-check", ...PINS.split(" ")], loud);
let [passed, failed] = [0, 0];
for (const [name, agent] of Object.entries(AGENTS)) {
  if (process.env.AGENT && process.env.AGENT !== name) continue;
  const { server, seen, base } = await proxy();
  const home = mkdtempSync(path.join(os.tmpdir(), "agent-"));
  const cwd = path.join(home, "work");
  mkdirSync(cwd);
  const [program, args, own] = agent(base, home);
  const env = { PATH: process.env.PATH, HOME: home, XDG_CONFIG_HOME: path.join(home, ".config"), CI: "1", ...own };
  const { code, said } = await run(program, args, { env, cwd });
  server.closeAllConnections();
  server.close();
  const wrong = seen.statuses.filter((status) => status !== 200);
  if (code === 0 && seen.returned && wrong.length === 0) {
    passed += 1;
    console.log(`passed: ${name}: ${seen.statuses.length} requests`);
  } else {
    failed += 1;
    console.log(`failed: ${name}: exit ${code}, statuses ${seen.statuses}, returned ${seen.returned}`);
    console.log([...seen.refusals, said.slice(-1000)].join("\n"));
  }
}
console.log(failed ? `${passed} passed, ${failed} failed` : `${passed} passed`);
process.exit(failed ? 1 : 0);
