//! Policies in Python and JavaScript, built from `tests/languages` against `wit/` and served.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use camshaft_tests::{Request, Server, Setup, repository, sha256_hex, target};
use serde_json::json;

use crate::errors::error_of;
use crate::registries;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn sources() -> PathBuf {
    repository().join("tests/languages")
}

/// The component that `build` makes of a source, unless it was made of the same files before.
fn built(source: &str, pins: &str, build: impl FnOnce(&Path) -> Result<(), String>) -> Vec<u8> {
    let folder = target().join("e2e/languages");
    std::fs::create_dir_all(&folder).expect("a folder can be made");
    let (component, stamp) = (folder.join(format!("{source}.wasm")), folder.join(format!("{source}.stamp")));
    let mut inputs: Vec<PathBuf> = [source, pins, "build.mjs"].map(|name| sources().join(name)).into();
    inputs.push(repository().join("wit/worlds.wit"));
    let mut packages = vec![repository().join("wit/deps")];
    while let Some(package) = packages.pop() {
        for entry in std::fs::read_dir(package).expect("the packages can be listed") {
            let path = entry.expect("a package can be listed").path();
            if path.is_dir() { packages.push(path) } else { inputs.push(path) }
        }
    }
    inputs.sort();
    let content: Vec<u8> = inputs.iter().flat_map(|path| std::fs::read(path).expect("a source can be read")).collect();
    let digest = sha256_hex(&content);
    if std::fs::read_to_string(&stamp).ok().as_deref() != Some(&digest) || !component.exists() {
        build(&component).unwrap_or_else(|error| panic!("{source} does not build: {error}"));
        std::fs::write(&stamp, digest).expect("a stamp can be written");
    }
    std::fs::read(component).expect("the component was built")
}

fn python_validator() -> Vec<u8> {
    built("validator.py", "requirements.txt", |out| {
        let tool = registries::python(&sources(), "componentize-py").with_file_name("componentize-py");
        let mut command = Command::new(tool);
        command.arg("-d").arg(repository().join("wit")).args([
            "-w",
            "camshaft:policy/validator-policy",
            "componentize",
        ]);
        registries::run(command.arg("-p").arg(sources()).arg("validator").arg("-o").arg(out))
    })
}

fn javascript_auth() -> Vec<u8> {
    built("auth.js", "package-lock.json", |out| {
        let packages = registries::node(&sources(), "componentize-js");
        // Node.js looks for packages beside the script.
        std::fs::copy(sources().join("build.mjs"), packages.join("build.mjs")).expect("a script can be copied");
        let mut command = Command::new("node");
        command.arg(packages.join("build.mjs")).arg(sources().join("auth.js")).arg(repository().join("wit"));
        registries::run(command.arg("camshaft:policy/auth-policy").arg(out))
    })
}

/// Memory for an interpreter, and time on a busy machine. Python draws random numbers in each instance.
fn settings(settings: &str) -> String {
    let policy = "[policy]\ndeadline = \"5s\"\nmemory = \"64MiB\"\nsnapshot = \"share-random\"\n";
    format!("{policy}[settings]\n{settings}\n")
}

fn refused(server: &Server, path: &str, body: serde_json::Value) -> serde_json::Value {
    let response = server.client.post(path, &body);
    assert_eq!(response.status, 400, "{}", response.text());
    error_of(&response)
}

/// Waits until a file's settings were refused, and returns why.
fn rejected(server: &Server, hook: &str, name: &str) -> String {
    let entry = server.wait_for_policy((hook, name), |entry| !entry["error"].is_null());
    entry["error"].as_str().expect("a sentence").to_owned()
}

/// How the instances of a policy begin, in the order in which the tests try it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Instances {
    Alone,
    FromSnapshot,
    UsedAgain,
}

impl Instances {
    const ALL: [Self; 3] = [Self::Alone, Self::FromSnapshot, Self::UsedAgain];

    /// Waits until instances begin as in the next turn. `reuse`: settings that allow to use them again.
    fn end(self, server: &Server, (hook, name): (&str, &str), reuse: &str) {
        match self {
            // Instances took long to make, so that a snapshot is taken, for which a component of 18 MB is compiled twice.
            Self::Alone => {
                let begun = Instant::now();
                loop {
                    let health = server.policy(hook, name).expect("an entry")["health"].clone();
                    assert_eq!(health["snapshot_error"], json!(null), "{health}");
                    if health["snapshot"] == true {
                        break;
                    }
                    assert!(begun.elapsed() < SNAPSHOT_PATIENCE, "{health}");
                    std::thread::sleep(Duration::from_millis(50));
                }
            }
            Self::FromSnapshot => {
                let before = server.policy(hook, name).expect("an entry");
                assert_eq!(before["health"]["snapshot"], true, "{before}");
                server.policies.put(hook, &format!("10-{name}.toml"), reuse);
                server.wait_for_policy((hook, name), |entry| entry["generation"] != before["generation"]);
            }
            Self::UsedAgain => {}
        }
    }
}

/// On a machine that compiles for other tests, too.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(600);

#[test]
fn a_validator_in_python_refuses_words_that_it_finds_in_the_prompt() {
    let component = python_validator();
    let words = |reuse: bool, word: &str| settings(&format!("reuse = {reuse}\nwords = [\"{word}\"]"));
    let server = Setup::new().component("validator", "10-words", &component, &words(false, "submarine")).start();
    server.wait_until_active("validator", "words", &component);
    for turn in Instances::ALL {
        let good = json!({"model": "demo", "prompt": "a boat", "max_tokens": 2, "temperature": 0});
        let text = server.client.ask(COMPLETIONS, &good)["choices"][0]["text"].clone();
        let error = refused(&server, COMPLETIONS, json!({"model": "demo", "prompt": "A Submarine", "max_tokens": 2}));
        assert_eq!((error["code"].clone(), error["param"].clone()), (json!("forbidden_word"), json!("prompt")));
        assert_eq!(error["message"], "the prompt contains the word 'submarine'");
        // The texts of a conversation, parts of a message among them; the names of its fields are none.
        let chat =
            |content| json!({"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": content}]});
        let error = refused(&server, CHAT, chat(json!([{"type": "text", "text": "a yellow submarine"}])));
        assert_eq!(error["param"], "messages");
        server.client.ask(CHAT, &chat(json!("a role")));
        assert_eq!(server.client.ask(COMPLETIONS, &good)["choices"][0]["text"], text, "nothing is left of the others");
        turn.end(&server, ("validator", "words"), &words(true, "submarine"));
    }
    // What the guest raises in `configure` is what the operator reads, and the old settings hold.
    server.policies.put("validator", "10-words.toml", settings("wrods = [\"boat\"]"));
    let why = rejected(&server, "validator", "words");
    assert!(why.contains("settings.wrods is not a setting"), "{why}");
    refused(&server, COMPLETIONS, json!({"model": "demo", "prompt": "a submarine", "max_tokens": 2}));
    let metrics = server.metrics();
    let of = |outcome| {
        let labels = [("hook", "validator"), ("plugin", "words"), ("outcome", outcome)];
        metrics.count("camshaft_policy_calls_total", &labels)
    };
    assert_eq!((of("accept"), of("refuse"), of("trap"), of("deadline")), (9.0, 7.0, 0.0, 0.0));
}

#[test]
fn given_node_an_auth_policy_in_javascript_knows_callers_by_their_keys() {
    let component = javascript_auth();
    let keys = |reuse: bool| {
        let key = |name: &str, limits: &str| {
            let digest = sha256_hex(format!("sk-{name}").as_bytes());
            format!("[[settings.keys]]\nsha256 = \"{digest}\"\nname = \"{name}\"\ntenant = \"{name}s\"\n{limits}")
        };
        let bounded = key("guest", "limits = { requests-per-minute = 2 }\n");
        settings(&format!("reuse = {reuse}\n{}{bounded}", key("owner", "")))
    };
    let server = Setup::new().component("auth", "10-keys", &component, &keys(false)).start();
    server.wait_until_active("auth", "keys", &component);
    let status = |credential: &str| {
        let response = server.client.send(&Request::get("/v1/models").header("authorization", credential));
        (response.status, if response.status == 200 { json!(null) } else { error_of(&response)["message"].clone() })
    };
    for turn in Instances::ALL {
        assert_eq!(
            server.client.get("/v1/models").status,
            401,
            "no credential: the next one decides, and there is none"
        );
        assert_eq!(status("Bearer sk-owner"), (200, json!(null)));
        for wrong in ["Bearer sk-nobody", "Bearer", "Basic sk-owner"] {
            assert_eq!(status(wrong), (401, json!("the API key is wrong")), "{wrong}");
        }
        let twice = Request::get("/v1/models").header("authorization", "Bearer sk-owner");
        let twice = server.client.send(&twice.header("authorization", "Bearer sk-guest"));
        assert!(matches!(twice.status, 400 | 401), "{}", twice.text());
        turn.end(&server, ("auth", "keys"), &keys(true));
    }
    // The limits that the policy sets are the tenant's.
    let guest = server.client.with_key("sk-guest");
    let body = json!({"model": "demo", "prompt": "1, 2,", "max_tokens": 1});
    let statuses: Vec<u16> = (0..3).map(|_| guest.post(COMPLETIONS, &body).status).collect();
    assert_eq!(statuses, [200, 200, 429]);
    server.client.with_key("sk-owner").ask(COMPLETIONS, &body);
    // What the guest throws in `configure` is what the operator reads.
    server.policies.put("auth", "10-keys.toml", settings("[[settings.keys]]\nsha256 = \"12\"\nname = \"a\""));
    let why = rejected(&server, "auth", "keys");
    assert!(why.contains("settings.keys[0] must have a name, a tenant"), "{why}");
    assert_eq!(status("Bearer sk-owner").0, 200, "the old keys hold");
}
