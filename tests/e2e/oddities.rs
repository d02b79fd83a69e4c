//! What lies in a policy directory and is no ordinary file there: each is rejected by name, and disturbs no stream.
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use camshaft_tests::{Server, Setup, eventually, plugin};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

/// Puts something at a path.
type Make = fn(&Path);

/// Names, and a word of the reason.
const ODD: [(&str, Make, &str); 5] = [
    ("pipe", |path| assert!(Command::new("mkfifo").arg(path).status().unwrap().success()), "not a regular file"),
    ("folder", |path| std::fs::create_dir(path).unwrap(), "not a regular file"),
    ("out", |path| symlink("/etc/hostname", path).unwrap(), "not a WebAssembly component"),
    ("nowhere", |path| symlink("/nonexistent/x.wasm", path).unwrap(), ""),
    ("large", |path| std::fs::File::create(path).unwrap().set_len(65 << 20).unwrap(), "68157440 bytes"),
];

fn story(server: &Server, seed: u64) -> Value {
    let body = json!({"model": "demo", "prompt": "Once upon a time", "seed": seed, "max_tokens": 600, "ignore_eos": true,
        "stream": true});
    let stream = server.client.stream(COMPLETIONS, &body).finish();
    assert!(stream.is_good());
    json!(stream.text(0))
}

#[test]
fn what_is_no_file_of_a_policy_is_rejected_by_name_and_streams_are_as_they_were() {
    let mut server = Setup::new().plugin("sampler", "10-standard", "sampler-standard", "").start();
    let stories: Vec<Value> = (0..4).map(|seed| story(&server, seed)).collect();
    for hook in ["auth", "validator", "scheduler", "sampler", "filter"] {
        let again = std::thread::scope(|scope| {
            let running = scope.spawn(|| (0..4).map(|seed| story(&server, seed)).collect::<Vec<_>>());
            for (name, make, word) in ODD {
                make(&server.policies.path(hook, &format!("30-{name}.wasm")));
                // A link to nothing is a file that comes later, or never.
                if word.is_empty() {
                    continue;
                }
                let entry = server.wait_for_policy((hook, name), |entry| entry["state"] == "rejected");
                assert!(entry["error"].as_str().is_some_and(|error| error.contains(word)), "{hook}/{name}: {entry}");
                server.wait_for_log(&format!("30-{name}.wasm"));
            }
            running.join().expect("streams end")
        });
        assert_eq!(again, stories, "{hook}");
        let rejected = server.metrics().count("camshaft_policy_swaps_total", &[("hook", hook), ("result", "rejected")]);
        assert!(rejected >= 4.0, "{hook}: {rejected}");
        for (name, ..) in ODD {
            let path = server.policies.path(hook, &format!("30-{name}.wasm"));
            if path.is_dir() { std::fs::remove_dir(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
        }
        eventually("only the good one is left", || {
            let page = server.policy_page();
            if page["policies"].as_array().is_some_and(|all| all.len() == 1) { Ok(()) } else { Err(page) }
        });
    }
    server.assert_runs();
}

#[test]
fn a_policy_that_is_renumbered_goes_on_and_two_of_one_name_are_told_apart() {
    let avoid = "[settings]\nwords = [\"the\"]\n";
    let server = Setup::new()
        .plugin("sampler", "10-standard", "sampler-standard", "")
        .plugin("sampler", "20-avoid", "sampler-avoid-words", avoid)
        .start();
    let words = |server: &Server| story(server, 1).as_str().unwrap().to_lowercase().contains("the");
    assert!(!words(&server));
    let component = plugin("sampler-avoid-words");
    server.policies.install("sampler", "30-avoid", &component, "[settings]\nwords = [\"a\"]\n");
    eventually("the second one is rejected", || {
        let page = server.policy_page();
        let entries = page["policies"].as_array().unwrap().iter().filter(|one| one["name"] == "avoid");
        let states: Vec<&str> = entries.map(|one| one["state"].as_str().unwrap()).collect();
        if states == ["active", "rejected"] { Ok(()) } else { Err(page.clone()) }
    });
    assert!(!words(&server), "the first one goes on");
    // The one that serves goes, so the other takes its place.
    server.policies.remove("sampler", "30-avoid.toml");
    server.policies.remove("sampler", "30-avoid.wasm");
    for kind in ["toml", "wasm"] {
        let [from, to] = ["20", "05"].map(|number| server.policies.path("sampler", &format!("{number}-avoid.{kind}")));
        std::fs::rename(from, to).unwrap();
    }
    server.wait_for_policy(("sampler", "avoid"), |entry| {
        entry["state"] == "active" && entry["file"].as_str().is_some_and(|file| file.contains("05-avoid"))
    });
    assert!(!words(&server), "as it was, at its new place");
}
