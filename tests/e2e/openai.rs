//! Conformance to OpenAI's own Python client, installed into a virtual environment that belongs to the tests.
use std::path::{Path, PathBuf};
use std::process::Command;

use camshaft_tests::{Setup, repository};

use crate::registries;

/// Runs a script of `tests/clients`, and expects that its last line says that all passed.
pub(crate) fn run_client(script: &str, arguments: &[&str]) {
    run_in(&clients(), "openai-venv", script, arguments);
}

/// Runs a script of a folder with the packages that the folder asks for, in an environment of this name.
pub(crate) fn run_in(folder: &Path, environment: &str, script: &str, arguments: &[&str]) {
    let mut command = Command::new(registries::python(folder, environment));
    command.arg(folder.join(script)).args(arguments);
    // Without the proxies and keys of the developer's environment.
    for (name, _) in std::env::vars_os() {
        let upper = name.to_string_lossy().to_uppercase();
        if upper.starts_with("OPENAI_") || upper.starts_with("ANTHROPIC_") || upper.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    let output = command.output().expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the client found something wrong:\n{said}{complained}");
    let last = said.lines().last().unwrap_or_default();
    assert!(last.ends_with(" passed"), "the client did not come to its end:\n{said}{complained}");
}

#[test]
fn the_openai_python_client_chats_streams_lists_and_raises_its_own_exceptions() {
    check_client("openai_client.py");
}

/// Serves the demo model to the keys that the suites of clients know, and runs one against it.
fn check_client(script: &str) {
    let keys = std::fs::read_to_string(clients().join("keys.toml")).expect("the keys can be read");
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &keys).start();
    let (url, admin) = (format!("http://{}", server.client.address), format!("http://{}", server.admin.address));
    run_client(script, &[&url, "sk-good", "sk-other", "sk-limited", &admin]);
    server.wait_until_idle();
}

#[test]
fn the_openai_python_client_gets_responses_and_their_events() {
    check_client("responses_client.py");
}

#[test]
fn the_anthropic_python_client_gets_messages_counts_tokens_and_raises_its_own_exceptions() {
    check_client("anthropic_client.py");
}

#[test]
fn the_golden_answers_of_other_apis_are_as_their_clients_types_have_them() {
    let golden = repository().join("host/api/tests/golden");
    run_client("golden.py", &[&golden.to_string_lossy()]);
}

pub(crate) fn clients() -> PathBuf {
    repository().join("tests/clients")
}
