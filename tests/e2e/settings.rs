//! The command line: configuration from three sources, checks, exit codes.
use std::net::TcpListener;

use camshaft_tests::{Finished, Server, Setup, api_keys, guest, plugin, repository};
use serde_json::json;

fn assert_exit(finished: &Finished, code: i32, words: &[&str]) {
    assert_eq!(finished.code, Some(code), "{finished:?}");
    for word in words {
        assert!(finished.stderr.contains(word), "{word:?} in {}", finished.stderr);
    }
    assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
}

/// The bound of `max_tokens`, from the refusal of too many `min_tokens`.
fn bound(server: &Server) -> String {
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": "a"}], "min_tokens": 1_000_000});
    let message = server.client.post("/v1/chat/completions", &body).json()["error"]["message"].clone();
    let message = message.as_str().expect("a refusal");
    message.split('(').nth(1).and_then(|rest| rest.split(')').next()).expect("names the bound").to_owned()
}

#[test]
fn it_serves_from_an_empty_directory_without_any_arguments() {
    // The environment sets free ports, and nothing else is configured.
    let setup = Setup::new().env("CAMSHAFT_LISTEN", "127.0.0.1:0").env("CAMSHAFT_ADMIN__LISTEN", "127.0.0.1:0");
    let server = setup.start_as_is("serve");
    assert!(server.answer("What is 3 plus 4?").contains('7'));
    assert_eq!(server.client.get("/v1/models").json()["data"][0]["id"], "demo");
}

#[test]
fn flags_beat_the_environment_which_beats_the_file_which_beats_the_defaults() {
    let file = "[limits]\nmax-tokens = 11\n";
    let serve = |with_file: bool, with_environment: bool, with_flag: bool| {
        let mut setup = Setup::new();
        if with_file {
            setup = setup.config(file);
        }
        if with_environment {
            setup = setup.env("CAMSHAFT_LIMITS__MAX_TOKENS", "22");
        }
        if with_flag {
            setup = setup.set("limits.max-tokens", "33");
        }
        bound(&setup.start())
    };
    assert_eq!(serve(false, false, false), "4096");
    assert_eq!(serve(true, false, false), "11");
    assert_eq!(serve(true, true, false), "22");
    assert_eq!(serve(true, true, true), "33");
    assert_eq!(serve(true, false, true), "33");
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() {
    for (text, key, nearest) in [
        ("[queue]\nhigh-watermrk = 64\n", "high-watermrk", "high-watermark"),
        ("listn = \"127.0.0.1:0\"\n", "listn", "listen"),
        ("[[model]]\nsequnces = 4\n", "sequnces", "sequences"),
        ("[shutdwon]\ndrain = \"1s\"\n", "shutdwon", "shutdown"),
    ] {
        for command in ["serve", "check"] {
            let finished = Setup::new().config(text).run(&[command]);
            assert_exit(&finished, 64, &[key, nearest]);
        }
    }
    assert_exit(&Setup::new().env("CAMSHAFT_QUEUE__HIHG_WATERMARK", "64").run(&["check"]), 64, &["high-watermark"]);
    assert_exit(&Setup::new().set("log.levle", "info").run(&["check"]), 64, &["level"]);
}

#[test]
fn wrong_values_and_wrong_flags_are_refused_by_name() {
    for (text, words) in [
        ("listen = \"nowhere\"\n", ["listen", "nowhere"]),
        ("[queue]\ntimeout = \"soon\"\n", ["timeout", "soon"]),
        ("[[model]]\nsequences = 257\n", ["sequences", "257"]),
        ("[log]\nlevel = \"=loud=\"\n", ["log.level", "loud"]),
        ("this is no TOML", ["config.toml", "TOML"]),
    ] {
        let finished = Setup::new().config(text).run(&["check"]);
        assert_exit(&finished, 64, &words);
    }
    assert_exit(&Setup::new().args(["--config", "nowhere.toml"]).run(&["check"]), 66, &["nowhere.toml"]);
    assert_exit(&Setup::new().args(["--lsten", "127.0.0.1:0"]).run(&["serve"]), 64, &["--lsten"]);
    assert_exit(&Setup::new().run(&["srve"]), 64, &["srve"]);
    assert_exit(&Setup::new().run(&[]), 64, &["Usage"]);
    for flag in ["--help", "--version"] {
        let finished = Setup::new().run(&[flag]);
        assert_eq!(finished.code, Some(0));
        assert!(finished.stdout.contains("camshaft"), "{finished:?}");
    }
}

#[test]
fn check_reports_a_good_configuration_and_fails_on_a_bad_one() {
    let good = Setup::new().plugin("sampler", "20-avoid", "sampler-avoid-words", "[settings]\nwords = [\"blue\"]\n");
    let dir = good.policies.root().to_string_lossy().into_owned();
    let good = good.args(["--policy-dir", &dir]);
    let finished = good.run_again(&["check"]);
    assert_exit(&finished, 0, &[]);
    for word in ["demo", "avoid"] {
        assert!(finished.stdout.contains(word), "{word:?} in {}", finished.stdout);
    }
    good.policies.put("sampler", "20-avoid.toml", "[settings]\nwords = []\n");
    let finished = good.run_again(&["check"]);
    let file = std::path::Path::new(&dir).join("sampler/20-avoid.wasm");
    // Once, and not below a folder that is named twice.
    assert_exit(&finished, 65, &[&format!("policy {}: ", file.display()), "words"]);
    assert!(finished.stdout.contains("20-avoid"), "{}", finished.stdout);
}

#[test]
fn regression_check_fails_over_policies_in_the_wrong_place() {
    let setup = Setup::new();
    let dir = setup.policies.root().to_string_lossy().into_owned();
    let setup = setup.args(["--policy-dir", &dir]);
    setup.policies.put("sampler", "30-alone.toml", "[settings]\n");
    let finished = setup.run_again(&["check"]);
    assert_exit(&finished, 65, &["30-alone.toml", "30-alone.wasm, which is not there"]);
}

#[test]
fn the_shipped_configuration_is_valid_and_sets_only_defaults() {
    let path = repository().join("config/camshaft.toml");
    let path = path.to_string_lossy();
    // The policy directory beside it has only settings; the components are build outputs.
    let setup = Setup::new();
    let dir = setup.policies.root().to_string_lossy().into_owned();
    let finished = setup.args(["--config", &path, "--policy-dir", &dir]).run(&["check"]);
    assert_exit(&finished, 0, &[]);
    assert!(!finished.stdout.contains("no effect"), "{}", finished.stdout);
    let server = Setup::new().args(["--config", &path]).start();
    assert_eq!(bound(&server), "4096");
}

#[test]
fn a_lower_high_watermark_needs_no_other_setting() {
    // The example of the documentation of environment variables.
    for value in ["64", "1"] {
        let finished = Setup::new().env("CAMSHAFT_QUEUE__HIGH_WATERMARK", value).run(&["check"]);
        assert_exit(&finished, 0, &[]);
    }
    assert_exit(&Setup::new().set("queue.high-watermark", "64").run(&["check"]), 0, &[]);
}

#[test]
fn an_address_in_use_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = taken.local_addr().expect("an address").to_string();
    let finished = Setup::new().args(["--listen", &address, "--admin-listen", "127.0.0.1:0"]).run(&["serve"]);
    assert_exit(&finished, 69, &[&address]);
    let finished = Setup::new().args(["--listen", "127.0.0.1:0", "--admin-listen", &address]).run(&["serve"]);
    assert_exit(&finished, 69, &[&address]);
}

#[test]
fn the_admin_listener_can_be_left_out() {
    let setup = Setup::new();
    let dir = setup.policies.root().to_string_lossy().into_owned();
    let setup = setup.args(["--listen", "127.0.0.1:0", "--admin-listen", "", "--policy-dir", &dir]);
    let line = setup.first_line(&["serve"]);
    assert!(line.starts_with("listening on http://127.0.0.1:"), "{line}");
}

#[test]
fn plugin_check_says_what_a_component_is() {
    let setup = Setup::new();
    let file = |name: &str, content: &[u8]| {
        let path = setup.scratch.path().join(name);
        std::fs::write(&path, content).expect("a scratch file can be written");
        path.to_string_lossy().into_owned()
    };
    let good = file("good.wasm", &plugin("sampler-avoid-words"));
    let finished = setup.run_again(&["plugin", "check", &good]);
    assert_exit(&finished, 0, &[]);
    for word in ["camshaft:sampler@0.2.0", "settings file: none, but the plugin refuses to run without: ", "words"] {
        assert!(finished.stdout.contains(word), "{word:?} in {}", finished.stdout);
    }
    // Where a server would load it, it would be refused.
    setup.policies.put("sampler", "20-avoid.wasm", plugin("sampler-avoid-words"));
    let installed = setup.policies.path("sampler", "20-avoid.wasm").to_string_lossy().into_owned();
    assert_exit(&setup.run_again(&["plugin", "check", &installed]), 65, &["20-avoid.wasm", "words"]);
    setup.policies.put("sampler", "20-avoid.toml", "[settings]\nwords = [\"blue\"]\n");
    assert_exit(&setup.run_again(&["plugin", "check", &installed]), 0, &[]);
    let core = file("core.wasm", b"\0asm\x01\0\0\0");
    let text = file("text.wasm", b"not at all");
    let cut = file("cut.wasm", &guest("misbehave-auth")[..5000]);
    for (path, word) in [(&core, "core module"), (&text, "component"), (&cut, "truncated")] {
        let finished = setup.run_again(&["plugin", "check", path]);
        assert_exit(&finished, 65, &[path, word]);
        assert_eq!(finished.stderr.matches(path.as_str()).count(), 1, "said once: {}", finished.stderr);
        assert!(!finished.stdout.contains(path.as_str()), "and in one place: {}", finished.stdout);
    }
    let both = setup.run_again(&["plugin", "check", &good, &core]);
    assert_exit(&both, 65, &["core module"]);
    assert!(both.stdout.contains("good.wasm"), "the good one is described all the same: {}", both.stdout);
    assert_exit(&setup.run_again(&["plugin", "check", "nowhere.wasm"]), 66, &["nowhere.wasm"]);
    let pipe = setup.scratch.path().join("pipe.wasm").to_string_lossy().into_owned();
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    assert_exit(&setup.run_again(&["plugin", "check", &pipe]), 65, &["not a regular file"]);
}

#[test]
fn regression_a_server_that_gets_no_threads_says_so() {
    // No thread has room for a stack of this size.
    let setup = Setup::new().env("RUST_MIN_STACK", "1125899906842624");
    assert_exit(&setup.run(&["serve"]), 70, &["start the threads of the runtime"]);
}

#[test]
fn regression_check_says_that_connections_do_not_fit_the_files_that_may_be_open() {
    let finished = Setup::new().args(["--policy-dir", "none"]).open_files(64).run(&["check"]);
    assert_exit(&finished, 0, &[]);
    let words = "limits.connections = 1024, but this process may have 64 files open";
    assert!(finished.stdout.contains(words), "{}", finished.stdout);
    let few = Setup::new().args(["--policy-dir", "none"]).set("limits.connections", "4").open_files(64);
    let finished = few.run(&["check"]);
    assert!(!finished.stdout.contains("ulimit"), "{}", finished.stdout);
}

#[test]
fn regression_check_refuses_what_serve_refuses() {
    for (text, key, word) in [
        ("[tls]\ncert = \"none.pem\"\nkey = \"none.key\"\n", "tls.", "none."),
        ("[[model]]\nkind = \"embed\"\ndimensions = [9999]\n", "dimensions", "9999"),
        ("[telemetry]\notlp-endpoint = \"collector:4317\"\n", "telemetry.otlp-endpoint", "config.toml:2"),
        ("[log]\nlevel = \"verbose\"\n", "log.level", "debug"),
        ("[cache]\ndisk = \"1GiB\"\n", "cache.disk", "disk-dir"),
        ("listen = \"no.such.host.invalid:1\"\n", "listen", "no.such.host.invalid"),
    ] {
        // The tests' own addresses would override the file's.
        let (key_of_listen, flags) = (text.starts_with("listen"), ["--listen", "no.such.host.invalid:1"]);
        for command in ["serve", "check"] {
            let setup = Setup::new().config(text);
            let setup = if key_of_listen { setup.args(flags) } else { setup };
            let finished = setup.run(&[command]);
            assert_exit(&finished, 64, &[key, word]);
        }
    }
    let everywhere = Setup::new().args(["--listen", "0.0.0.0:0", "--policy-dir", "none"]);
    assert_exit(&everywhere.run_again(&["check"]), 64, &["--allow-anonymous"]);
    assert_exit(&everywhere.args(["--allow-anonymous"]).run(&["check"]), 0, &[]);
}

#[test]
fn regression_check_and_serve_say_what_is_enforced() {
    let finished = Setup::new().args(["--policy-dir", "none"]).run(&["check"]);
    assert_exit(&finished, 0, &[]);
    let cwd = finished.stdout.lines().find_map(|line| line.strip_prefix("policies are read from "));
    assert!(cwd.is_some_and(|dir| dir.starts_with('/') && dir.ends_with("/none")), "{}", finished.stdout);
    for line in [
        "open to everybody: GET /healthz",
        "guarded by auth natively: ",
        "POST /v1/chat/completions",
        "without credentials, from this machine: admitted as tenant anonymous",
        "without credentials, from elsewhere (who cannot reach this address): refused with 401",
    ] {
        assert!(finished.stdout.contains(line), "{line:?} in {}", finished.stdout);
    }
    let settings = api_keys(&[("sk-one", "")]);
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &settings).start();
    let log = server.settled_log();
    let dir = format!("policies are read from {}", server.policies.root().display());
    for words in [&dir, "guarded by auth api-keys", "without credentials, from this machine: refused with 401"] {
        assert!(log.contains(words), "{words:?} in {log}");
    }
}

#[test]
fn regression_variables_of_a_kubernetes_service_do_not_stop_the_server() {
    let server = Setup::new()
        .env("CAMSHAFT_PORT", "tcp://10.0.0.7:8080")
        .env("CAMSHAFT_SERVICE_HOST", "10.0.0.7")
        .env("CAMSHAFT_PORT_8080_TCP_ADDR", "10.0.0.7")
        .start();
    let log = server.settled_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("CAMSHAFT_PORT_8080_TCP_ADDR")).collect();
    assert!(lines.len() == 1 && lines[0].contains("CAMSHAFT_SERVICE_HOST"), "{log}");
    let finished = Setup::new().env("CAMSHAFT_PORT", "8080").run(&["check"]);
    assert_exit(&finished, 64, &["CAMSHAFT_PORT"]);
}

#[test]
fn regression_no_server_of_the_tests_takes_the_default_ports() {
    let server = Setup::new().args(["--policy-dir", "none"]).start_as_is("serve");
    assert_ne!(server.client.address.port(), 8080);
    assert_ne!(server.admin.address.port(), 9090);
}

#[test]
fn regression_a_host_name_is_listened_on() {
    let server = Setup::new().args(["--listen", "localhost:0", "--policy-dir", "none"]).start_as_is("serve");
    assert_eq!(server.client.get("/healthz").status, 200);
}

#[test]
fn regression_it_prints_completions_a_manual_page_and_what_it_is_made_of() {
    let out = |command: &[&str]| {
        let finished = Setup::new().run(command);
        assert_exit(&finished, 0, &[]);
        finished.stdout
    };
    for shell in ["bash", "zsh", "fish"] {
        let script = out(&["completions", shell]);
        assert!(script.contains("policy-dir") && script.contains("camshaft"), "{shell}: {script}");
    }
    let page = out(&["man"]);
    assert!(page.contains(".TH camshaft") && page.contains("completions"), "{page}");
    let version = out(&["--version"]);
    for part in ["camshaft 0.", "commit: ", "llama.cpp: ", "wasmtime: ", "cpu: "] {
        assert!(version.contains(part), "{part:?} in {version}");
    }
}

#[test]
fn regression_the_bundled_model_needs_no_directory_for_temporary_files() {
    let server = Setup::new().env("TMPDIR", "/nonexistent").start();
    let answer = server.client.ask("/v1/completions", &json!({"model": "demo", "prompt": "once", "max_tokens": 4}));
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 0, "{answer}");
}

#[test]
fn regression_what_a_terminal_acts_on_is_escaped_in_errors() {
    let named = Setup::new().config("\"a\\u001b[31m\\u009b\\u202e\" = 1\n").run(&["check"]);
    let given = Setup::new().set("\u{1b}[31m.x", "1").run(&["check"]);
    let missing = Setup::new().run(&["check", "--config", "/nonexistent/\u{1b}[31m.toml"]);
    // clap itself leaves terminal sequences out.
    let unknown = Setup::new().run(&["check", "--\u{202e}x"]);
    for (finished, escaped) in
        [(named, "u{1b}[31m"), (given, "u{1b}[31m"), (missing, "u{1b}[31m"), (unknown, "u{202e}x")]
    {
        assert!(finished.stderr.contains(escaped), "{finished:?}");
        assert!(finished.stderr.chars().all(|c| c == '\n' || !c.is_control() && c != '\u{202e}'), "{finished:?}");
    }
}
