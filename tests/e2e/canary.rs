//! New versions of policies on a share of the traffic, under load: whom they serve, and how their trials end.
use camshaft_tests::{Server, Setup, eventually, guest, plugin, sha256_hex};
use serde_json::{Value, json};

use crate::under_load::{events, under_load, wait_for_more};

const COMPLETIONS: &str = "/v1/completions";
const STREAMS: usize = 16;

/// Settings of the sampler under which the demo model's story has, or has not, its most frequent word.
const OLD: &str = "[policy]\ndeadline = \"5s\"\n[settings]\nwords = [\"nothing of this\"]\n";

fn new(policy: &str) -> String {
    format!("[policy]\ndeadline = \"5s\"\ncanary = 0.5\n{policy}\n[settings]\nwords = [\"the\"]\n")
}

/// The same component with other bytes: a custom section at its end.
fn variant(component: &[u8]) -> Vec<u8> {
    [component, &[0, 3, 1, b'v', 1]].concat()
}

/// Texts of the choices of one request, which draw the most probable tokens.
fn texts(server: &Server) -> Vec<String> {
    let body = json!({"model": "demo", "prompt": "Once upon a time", "temperature": 0, "max_tokens": 40, "n": 2,
        "ignore_eos": true});
    let answer = server.client.ask(COMPLETIONS, &body);
    let choices = answer["choices"].as_array().expect("choices");
    choices.iter().map(|choice| choice["text"].as_str().expect("a text").to_owned()).collect()
}

/// The text of a request, all of whose choices met the same version.
fn text(server: &Server) -> String {
    let mut texts = texts(server);
    let text = texts.pop().expect("a choice");
    assert!(texts.iter().all(|other| *other == text), "a request met two versions: {texts:?} {text:?}");
    text
}

/// Who wanted each change of this kind.
fn who(server: &Server, event: &str) -> Vec<Value> {
    events(server, event).into_iter().map(|change| change["who"].clone()).collect()
}

fn post(server: &Server, path: &str) -> u16 {
    server.admin.post(&format!("/admin/policies/{path}"), &json!({})).status
}

#[test]
fn a_sampler_is_tried_on_half_of_the_requests_until_an_operator_ends_that_under_load() {
    let server = Setup::new().plugin("sampler", "10-x", "sampler-avoid-words", OLD).start();
    let old = text(&server);
    assert!(old.contains("the"), "{old:?}");
    under_load(&server, STREAMS, |ended| {
        wait_for_more(ended, STREAMS);
        server.policies.put("sampler", "10-x.toml", new("canary-by = \"request\""));
        let entry = server.wait_for_policy(("sampler", "x"), |entry| !entry["canary"].is_null());
        let canary = &entry["canary"];
        assert_eq!((&canary["share"], &canary["by"]), (&json!(0.5), &json!("request")), "{entry}");
        assert_eq!((&canary["calls_wanted"], &canary["seconds_wanted"]), (&json!(1000), &json!(600)), "{entry}");
        assert!(
            canary["since"].is_u64() && canary["digest"] == entry["serving"],
            "the settings alone are others: {entry}"
        );
        let mut met = std::collections::BTreeMap::new();
        eventually("both versions are met", || {
            *met.entry(text(&server)).or_insert(0) += 1;
            if met.len() == 2 { Ok(()) } else { Err(met.clone()) }
        });
        let new = met.keys().find(|text| **text != old).expect("the new one").clone();
        assert!(met.contains_key(&old) && !new.contains("the"), "{met:?}");
        eventually("both are counted", || {
            let metrics = server.metrics();
            let count = |version: &str| {
                let labels = [("hook", "sampler"), ("plugin", "x"), ("version", version)];
                metrics.count("camshaft_policy_canary_calls_total", &labels)
            };
            let counts = (count("canary"), count("before"));
            if counts.0 > 0.0 && counts.1 > 0.0 { Ok(()) } else { Err(counts) }
        });
        let labels = [("hook", "sampler"), ("plugin", "x")];
        assert_eq!(server.metrics().get("camshaft_policy_canary_share", &labels), Some(0.5));
        assert_eq!(post(&server, "sampler/x/promote"), 200);
        assert!((0..8).all(|_| text(&server) == new), "it serves everything");
        assert_eq!(server.metrics().get("camshaft_policy_canary_share", &labels), None);
        assert_eq!(post(&server, "sampler/x/rollback"), 200);
        assert!((0..8).all(|_| text(&server) == old), "the version before serves everything");
        wait_for_more(ended, STREAMS);
    });
    assert_eq!((events(&server, "canary").len(), events(&server, "promoted").len()), (1, 1));
    server.wait_for_log("audit: a policy changed");
    server.wait_until_idle();
}

#[test]
fn a_sampler_on_trial_serves_whole_tenants_and_is_promoted_by_its_rule_under_load() {
    let server = Setup::new().plugin("sampler", "10-x", "sampler-avoid-words", OLD).start();
    let old = text(&server);
    under_load(&server, STREAMS, |ended| {
        wait_for_more(ended, STREAMS);
        // There is one tenant, so one version is met until the trial ends.
        server.policies.put(
            "sampler",
            "10-x.toml",
            new("canary-calls = 20\ncanary-time = \"3s\"").replace("0.5", "0.999999"),
        );
        server.wait_for_policy(("sampler", "x"), |entry| !entry["canary"].is_null());
        let new = text(&server);
        let more: Vec<String> = (0..4).map(|_| text(&server)).collect();
        assert!(new != old && more.iter().all(|text| *text == new), "before {old:?}, now {new:?}, then {more:?}");
        let entry = server.wait_for_policy(("sampler", "x"), |entry| entry["canary"].is_null());
        assert_eq!((&entry["state"], &entry["error"]), (&json!("active"), &Value::Null), "{entry}");
        assert_eq!(who(&server, "promoted"), ["canary"]);
        wait_for_more(ended, STREAMS);
        assert_eq!(text(&server), new);
    });
    server.wait_until_idle();
}

const SLOTS: &str =
    "[policy]\ndeadline = \"5s\"\ncanary = 0.5\ncanary-slot = \"1s\"\ncanary-calls = 20\ncanary-time = \"2s\"\n";

#[test]
fn a_scheduler_on_trial_has_its_slots_and_is_promoted_with_no_failed_stream() {
    let fcfs = plugin("scheduler-fcfs");
    let server = Setup::new().component("scheduler", "10-x", &fcfs, "[policy]\ndeadline = \"5s\"\n").start();
    let next = variant(&fcfs);
    under_load(&server, STREAMS, |ended| {
        wait_for_more(ended, STREAMS);
        server.policies.put("scheduler", "10-x.toml", SLOTS);
        server.policies.put("scheduler", "10-x.wasm", &next);
        let entry = server.wait_for_policy(("scheduler", "x"), |entry| !entry["canary"].is_null());
        assert_eq!(
            (&entry["serving"], &entry["canary"]["digest"]),
            (&json!(sha256_hex(&fcfs)), &json!(sha256_hex(&next)))
        );
        server.wait_for_policy(("scheduler", "x"), |entry| {
            entry["canary"].is_null() && entry["serving"] == sha256_hex(&next).as_str()
        });
        assert_eq!(who(&server, "promoted"), ["canary"]);
        wait_for_more(ended, STREAMS);
    });
    server.wait_until_idle();
}

#[test]
fn a_scheduler_that_faults_in_its_slot_is_rolled_back_at_once_with_no_failed_stream() {
    let (fcfs, bad) = (plugin("scheduler-fcfs"), guest("misbehave-scheduler"));
    // It runs with and without settings.
    let server = Setup::new().component("scheduler", "10-x", &fcfs, "[policy]\ndeadline = \"5s\"\n").start();
    under_load(&server, STREAMS, |ended| {
        wait_for_more(ended, STREAMS);
        server.policies.put("scheduler", "10-x.toml", format!("{SLOTS}[settings]\nbehave = \"trap-later\"\n"));
        server.policies.put("scheduler", "10-x.wasm", &bad);
        eventually("the trial is over", || {
            let rolled_back = events(&server, "rolled-back");
            if rolled_back.len() == 1 { Ok(()) } else { Err(rolled_back) }
        });
        wait_for_more(ended, STREAMS);
    });
    let entry = server.policy("scheduler", "x").expect("it is there");
    assert_eq!((&entry["serving"], &entry["state"]), (&json!(sha256_hex(&fcfs)), &json!("rejected")), "{entry}");
    assert!(entry["error"].as_str().is_some_and(|error| error.contains("canary") && error.contains("trap")), "{entry}");
    assert!(entry["canary"].is_null(), "{entry}");
    server.wait_until_idle();
}
