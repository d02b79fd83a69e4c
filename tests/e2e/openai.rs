//! Conformance to OpenAI's own Python client, installed into a virtual environment that belongs to the tests.
use std::path::{Path, PathBuf};
use std::process::Command;

use camshaft_tests::{Setup, api_keys, repository, target};

/// Runs a script of `tests/clients` and expects its last line.
pub(crate) fn run_client(script: &str, arguments: &[&str]) {
    let mut command = Command::new(environment());
    command.arg(clients().join(script)).args(arguments);
    // Without the proxies and keys of the developer's environment.
    for (name, _) in std::env::vars_os() {
        let upper = name.to_string_lossy().to_uppercase();
        if upper.starts_with("OPENAI_") || upper.ends_with("_PROXY") {
            command.env_remove(name);
        }
    }
    let output = command.output().expect("python runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the client found something wrong:\n{said}");
    assert!(said.contains("all checks passed"), "the client did not come to its end:\n{said}");
}

#[test]
fn the_openai_python_client_chats_streams_lists_and_raises_its_own_exceptions() {
    let keys = api_keys(&[("sk-good", ""), ("sk-other", "allowed-models = [\"other\"]")]);
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &keys).start();
    let base = format!("http://{}/v1", server.client.address);
    run_client("openai_client.py", &[&base, "sk-good", "sk-other"]);
    server.wait_until_idle();
}

fn clients() -> PathBuf {
    repository().join("tests/clients")
}

/// Python with exactly the pinned packages of `requirements.txt`. The environment is rebuilt when the pins change.
fn environment() -> PathBuf {
    let requirements = clients().join("requirements.txt");
    let pins = std::fs::read_to_string(&requirements).expect("the pins can be read");
    let venv = target().join("e2e/openai-venv");
    let (python, stamp) = (venv.join("bin/python"), venv.join("installed.txt"));
    let installed = std::fs::read_to_string(&stamp).is_ok_and(|text| text == pins);
    if installed && python.exists() {
        return python;
    }
    if venv.exists() {
        std::fs::remove_dir_all(&venv).expect("an old environment can be removed");
    }
    let made = run(Command::new("python3").args(["-m", "venv"]).arg(&venv));
    made.unwrap_or_else(|error| {
        panic!("no virtual environment: {error}\non Debian: apt-get install python3 python3-venv")
    });
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&requirements);
    run(&mut pip)
        .unwrap_or_else(|error| panic!("the OpenAI client could not be installed (is PyPI reachable?): {error}"));
    write(&stamp, &pins);
    python
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() { Ok(()) } else { Err(format!("{command:?}: {}", said())) }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("the environment can be written to");
}
