//! Every misbehaviour of `tests/guests`, in every hook, under a real server.
use std::collections::BTreeSet;

use camshaft_tests::{Request, Response, Server, Setup, guest, repository};
use serde_json::{Value, json};

use crate::errors::error_of;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
/// Behaviours that fault when the guest is called, and the fault kind that the metric reports.
const FAULTS: [(&str, &[&str]); 8] = [
    ("spin", &["deadline"]),
    // The time that the host takes for a guest is the guest's.
    ("verify", &["deadline"]),
    // The host does not let guests wait: it ends the call at once.
    ("sleep", &["trap"]),
    ("trap", &["trap"]),
    ("recurse", &["trap"]),
    ("allocate", &["memory"]),
    ("nonsense", &["invalid_output"]),
    // The leaked answer does not fit 16 MiB.
    ("leak", &["memory", "invalid_output"]),
];
/// Behaviours after which a guest still answers.
const ANSWERS: [&str; 8] = [
    "well",
    "flood-log",
    "flood-metrics",
    "fill-state",
    "draw-at-start",
    "read-clock-at-start",
    "print-at-start",
    "count-starts",
];
/// After which it answers some calls of an instance before it faults; `rollback` has the tests.
const LATER: [&str; 1] = ["trap-later"];
/// After which it answers every time, if each call has its own instance.
const FRESH: [&str; 1] = ["remember"];
/// After which it says what its context tells.
const TELLS: [&str; 1] = ["tell"];
/// After which a scheduler rejects requests that ask for it, and says what it was told.
const TELLS_POOL: [&str; 1] = ["tell-pool"];
/// What only a scheduler can ask for, and a word of the fault.
const OF_SCHEDULERS: [(&str, &str); 5] = [
    ("needs-unknown", "is unknown"),
    ("needs-many", "1000000 ids, over the"),
    ("ask-forever", "ran past its deadline"),
    ("reject-twice", "is named twice"),
    ("reject-nonsense", "the code \"As asked!\""),
];
/// After which a scheduler still answers, whatever it asked for or left to the next one.
const SCHEDULES: [&str; 9] = [
    "wake-loop",
    "large-checkpoint",
    "leak-checkpoint",
    "long-checkpoint",
    "full-checkpoint",
    "refuse-checkpoint",
    "full-checkpoint",
    "trap-at-restore",
    "spin-at-save",
];
/// Behaviours that prevent loading, and a word of the reason.
const AT_START: [(&str, &str); 3] =
    [("trap-at-start", "traps at start"), ("spin-at-start", "spins"), ("refuse-settings", "refuses its settings")];
/// What only a filter can do, and a word of the fault.
const OF_FILTERS: [(&str, &str); 3] = [
    ("hold-forever", "at the end of the text"),
    ("rewind-forever", "rewinds more than 128 times"),
    ("split-character", "inside a character"),
];
/// What only a sampler can do for ever.
const OF_SAMPLERS: [&str; 1] = ["query-vocabulary"];
const HOOKS: [&str; 5] = ["auth", "validator", "scheduler", "sampler", "filter"];

fn settings(behave: &str, policy: &str) -> String {
    // Only a guest that would never return may meet its deadline, however busy the machine is.
    let never = matches!(behave, "spin" | "verify" | "query-vocabulary" | "ask-forever" | "spin-at-save");
    let deadline = if never { "" } else { "deadline = \"5s\"" };
    format!("[policy]\n{deadline}\n{policy}\n[settings]\nbehave = \"{behave}\"\n")
}

/// Changes how the hook's guest behaves.
fn behave(server: &Server, hook: &str, how: &str, policy: &str) {
    let before = server.policy(hook, "bad").map(|entry| entry["generation"].clone());
    server.policies.put(hook, "10-bad.toml", settings(how, policy));
    server.wait_for_policy((hook, "bad"), |entry| {
        // The pool calls a scheduler as soon as it is loaded, so it may have faulted already.
        let loaded = entry["state"] == "replaced" || (entry["state"] == "active" && entry["error"].is_null());
        loaded && Some(&entry["generation"]) != before.as_ref()
    });
}

/// A server with a well-behaved guest for this hook.
fn serve(hook: &str) -> Server {
    let server = Setup::new().guest(hook, "10-bad", &settings("well", "")).start();
    server.wait_until_active(hook, "bad", &guest(&format!("misbehave-{hook}")));
    server
}

fn complete(server: &Server, stream: bool) -> Response {
    let body = json!({"model": "demo", "temperature": 0, "prompt": "1, 2, 3,", "max_tokens": 6, "stream": stream});
    server.client.post(COMPLETIONS, &body)
}

fn text(response: &Response) -> String {
    assert_eq!(response.status, 200, "{}", response.text());
    response.json()["choices"][0]["text"].as_str().expect("a text").to_owned()
}

/// Asserts a 500 that tells clients not to retry and reveals nothing of the guest's message.
fn assert_failed(response: &Response, what: &str) {
    assert_eq!(response.status, 500, "{what}: {}", response.text());
    assert_eq!(response.header("x-should-retry"), Some("false"), "{what}");
    let error = error_of(response);
    assert_eq!(error["type"], "server_error", "{what}");
    assert!(!error["message"].as_str().unwrap().contains("as asked"), "{what}: {error}");
}

fn faults(server: &Server, hook: &str, kinds: &[&str]) -> f64 {
    let metrics = server.metrics();
    let of = |kind: &&str| {
        metrics.count("camshaft_policy_calls_total", &[("hook", hook), ("plugin", "bad"), ("outcome", kind)])
    };
    kinds.iter().map(of).sum()
}

#[test]
fn an_auth_policy_that_faults_denies_unless_the_operator_chose_otherwise() {
    let mut server = serve("auth");
    for (how, kinds) in FAULTS {
        behave(&server, "auth", how, "");
        let before = faults(&server, "auth", kinds);
        assert_failed(&complete(&server, false), how);
        assert_failed(&server.client.get("/v1/models"), how);
        assert_eq!(faults(&server, "auth", kinds) - before, 2.0, "{how} is counted as one of {kinds:?}");
        assert_eq!(server.client.get("/healthz").status, 200, "{how}");
        behave(&server, "auth", how, "on-fault = \"skip\"");
        assert_eq!(complete(&server, false).status, 401, "{how}: nobody else decides, so nobody is let in");
        behave(&server, "auth", how, "on-fault = \"fallback\"");
        assert_eq!(complete(&server, false).status, 200, "{how}: loopback is let in natively");
    }
    for how in ANSWERS.into_iter().chain(FRESH) {
        behave(&server, "auth", how, "");
        for _ in 0..3 {
            assert_eq!(complete(&server, false).status, 200, "{how}");
        }
    }
    server.assert_runs();
}

#[test]
fn a_validator_that_faults_denies_unless_the_operator_chose_otherwise() {
    let mut server = serve("validator");
    for (how, kinds) in FAULTS {
        behave(&server, "validator", how, "");
        let before = faults(&server, "validator", kinds);
        assert_failed(&complete(&server, false), how);
        assert_failed(&complete(&server, true), how);
        assert_eq!(faults(&server, "validator", kinds) - before, 2.0, "{how} is counted as one of {kinds:?}");
        assert_eq!(server.client.get("/v1/models").status, 200, "{how}");
        for on_fault in ["skip", "fallback"] {
            behave(&server, "validator", how, &format!("on-fault = \"{on_fault}\""));
            assert_eq!(complete(&server, false).status, 200, "{how}, {on_fault}");
        }
    }
    for how in ANSWERS.into_iter().chain(FRESH) {
        behave(&server, "validator", how, "");
        for _ in 0..3 {
            assert_eq!(complete(&server, false).status, 200, "{how}");
        }
    }
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_scheduler_that_faults_is_replaced_natively_at_once() {
    let mut server = serve("scheduler");
    let expected = text(&complete(&server, false));
    for (how, kinds) in FAULTS {
        let before = faults(&server, "scheduler", kinds);
        behave(&server, "scheduler", how, "");
        for _ in 0..3 {
            assert_eq!(text(&complete(&server, false)), expected, "{how}");
        }
        assert!(faults(&server, "scheduler", kinds) > before, "{how} is counted as one of {kinds:?}");
        let entry = server.policy("scheduler", "bad").expect("it is there");
        assert_eq!((&entry["state"], &entry["effect"]), (&json!("replaced"), &json!("none")), "{how}: {entry}");
        let error = entry["error"].as_str().expect("an error");
        assert!(error.contains("model demo: replaced by the native scheduler since a fault: "), "{how}: {error}");
    }
    let take_overs = server.settled_log().matches("the native scheduler takes over").count();
    assert_eq!(take_overs, FAULTS.len(), "told once for each, however often it is tried again");
    for how in ANSWERS {
        behave(&server, "scheduler", how, "");
        assert_eq!(text(&complete(&server, false)), expected, "{how}");
        server.wait_for_policy(("scheduler", "bad"), |entry| entry["state"] == "active" && entry["error"].is_null());
    }
    assert_eq!(server.settled_log().matches("the scheduler policy decides again").count(), 1);
    // The last file of a directory is not removed by deleting it.
    server.policies.install("sampler", "10-standard", &camshaft_tests::plugin("sampler-standard"), "");
    server.wait_until_active("sampler", "standard", &camshaft_tests::plugin("sampler-standard"));
    let native = server.policies.path("scheduler", "10-bad.wasm");
    std::fs::remove_file(native).expect("the guest was there");
    server.wait_for_policy(("scheduler", "bad"), Value::is_null);
    assert_eq!(text(&complete(&server, false)), expected, "without a policy");
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_scheduler_that_asks_for_too_much_is_replaced_and_one_that_leaves_nonsense_is_not() {
    let mut server = serve("scheduler");
    let expected = text(&complete(&server, false));
    for (how, word) in OF_SCHEDULERS {
        behave(&server, "scheduler", how, "");
        assert_eq!(text(&complete(&server, false)), expected, "{how}");
        server.wait_for_policy(("scheduler", "bad"), |entry| {
            entry["state"] == "replaced" && entry["error"].as_str().is_some_and(|error| error.contains(word))
        });
    }
    for how in SCHEDULES {
        behave(&server, "scheduler", how, "");
        for _ in 0..3 {
            assert_eq!(text(&complete(&server, false)), expected, "{how}");
        }
        let entry = server.policy("scheduler", "bad").expect("it is there");
        assert_eq!((&entry["state"], entry["error"].is_null()), (&json!("active"), true), "{how}: {entry}");
    }
    server.wait_for_log("refused what the last one left");
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_scheduler_rejects_with_a_code_and_a_time_and_is_told_what_the_client_hints() {
    let [how] = TELLS_POOL;
    let mut server = Setup::new().guest("scheduler", "10-bad", &settings(how, "")).start();
    assert_eq!(complete(&server, false).status, 200, "nothing was hinted");
    let body = json!({"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 6, "hints": {"tell": "me"}});
    let told = server.client.post(COMPLETIONS, &body);
    assert_eq!((told.status, told.header("retry-after")), (503, Some("3")), "{}", told.text());
    let error = error_of(&told);
    assert_eq!(error["code"], "told");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.starts_with("needs [") && message.contains("hint Some(\"me\") attribute None; 1 alike"),
        "{message}"
    );
    let bad = json!({"model": "demo", "prompt": "1", "hints": {"tell": 1}});
    let refused = server.client.post(COMPLETIONS, &bad);
    assert_eq!((refused.status, error_of(&refused)["param"].clone()), (400, json!("hints.tell")));
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_sampler_that_faults_is_replaced_natively_or_ends_its_own_request() {
    // The standard chain comes first and makes the request greedy; the guest does nothing until it faults.
    let setup = Setup::new().plugin("sampler", "05-standard", "sampler-standard", "");
    let mut server = setup.guest("sampler", "10-bad", &settings("well", "")).start();
    let expected = text(&complete(&server, false));
    for (how, kinds) in FAULTS {
        behave(&server, "sampler", how, "");
        let before = faults(&server, "sampler", kinds);
        assert_eq!(text(&complete(&server, false)), expected, "{how}");
        assert_eq!(faults(&server, "sampler", kinds) - before, 1.0, "{how}: one of {kinds:?}, then native to the end");
        behave(&server, "sampler", how, "on-fault = \"skip\"");
        assert_eq!(text(&complete(&server, false)), expected, "{how}, skip");
        behave(&server, "sampler", how, "on-fault = \"deny\"");
        assert_failed(&complete(&server, false), how);
        denied_in_a_stream(&server, how);
    }
    for how in ANSWERS {
        behave(&server, "sampler", how, "");
        assert_eq!(text(&complete(&server, false)), expected, "{how}");
    }
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_filter_that_faults_ends_its_own_text_or_is_left_out() {
    let mut server = serve("filter");
    let expected = text(&complete(&server, false));
    for (how, kinds) in FAULTS {
        behave(&server, "filter", how, "");
        let before = faults(&server, "filter", kinds);
        assert_failed(&complete(&server, false), how);
        denied_in_a_stream(&server, how);
        assert_eq!(faults(&server, "filter", kinds) - before, 2.0, "{how}: one of {kinds:?} for each text");
        behave(&server, "filter", how, "on-fault = \"skip\"");
        assert_eq!(text(&complete(&server, false)), expected, "{how}, skip");
        assert_eq!(server.client.get("/healthz").status, 200, "{how}");
    }
    for how in ANSWERS {
        behave(&server, "filter", how, "");
        assert_eq!(text(&complete(&server, false)), expected, "{how}");
    }
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_filter_that_holds_or_rewinds_for_ever_or_divides_characters_faults_by_name() {
    let mut server = serve("filter");
    // Bytes of characters beyond ASCII, whether they make whole ones or not.
    let tokens = server.client.ask("/v1/tokenize", &json!({"model": "demo", "text": "é", "add_special": false}));
    let bias: serde_json::Map<String, Value> =
        tokens["tokens"].as_array().unwrap().iter().map(|token| (token.to_string(), json!(100))).collect();
    let wide = |stream: bool| {
        let body = json!({"model": "demo", "temperature": 0, "prompt": "1, 2, 3,", "max_tokens": 6, "logit_bias": bias,
            "ignore_eos": true, "stream": stream});
        server.client.post(COMPLETIONS, &body)
    };
    let expected = text(&wide(false));
    assert!(!expected.is_ascii(), "{expected:?}");
    for (how, word) in OF_FILTERS {
        behave(&server, "filter", how, "");
        assert_failed(&wide(false), how);
        server.wait_for_log(word);
        let streamed = wide(true);
        assert!(streamed.status == 500 || !streamed.text().contains("[DONE]"), "{how}: {}", streamed.text());
        behave(&server, "filter", how, "on-fault = \"skip\"");
        // After the last rewind other tokens follow than would have without.
        let left = text(&wide(false));
        assert!(left == expected || how == "rewind-forever", "{how}: {left:?}");
    }
    server.assert_runs();
    server.wait_until_idle();
}

/// The error comes before the stream begins, like any error, or as its last event, without `[DONE]`.
fn denied_in_a_stream(server: &Server, how: &str) {
    let response = complete(server, true);
    if response.status != 200 {
        return assert_failed(&response, how);
    }
    let text = response.text();
    assert!(!text.contains("[DONE]"), "{how}: {text}");
    let last = text.lines().rfind(|line| line.starts_with("data:")).expect("an event");
    let event: Value = serde_json::from_str(last.trim_start_matches("data:")).expect("JSON");
    assert_eq!(event["error"]["type"], "server_error", "{how}: {event}");
    for field in ["message", "param", "code"] {
        assert!(event["error"].get(field).is_some(), "{how}: {event}");
    }
}

#[test]
fn one_request_with_a_faulting_sampler_does_not_disturb_the_others() {
    let good = settings("well", "");
    let server = Setup::new()
        .plugin("sampler", "05-standard", "sampler-standard", "")
        .guest("sampler", "10-good", &good)
        .guest("sampler", "20-bad", &settings("trap", "on-fault = \"deny\""))
        .start();
    // An answer without near ties, which a different batch composition could decide differently.
    let body = |samplers: &[&str]| {
        json!({"model": "demo", "temperature": 0, "max_tokens": 200, "samplers": samplers, "stream": true,
            "messages": [{"role": "user", "content": "Count from 1 to 18."}]})
    };
    let expected = server.client.stream(CHAT, &body(&["standard", "good"])).finish().text(0);
    let mut running = server.client.stream(CHAT, &body(&["standard", "good"]));
    assert!(running.next().is_some());
    for _ in 0..5 {
        let mut body = body(&["standard", "bad"]);
        body["stream"] = json!(false);
        assert_failed(&server.client.post(CHAT, &body), "trap");
    }
    let collected = running.finish();
    assert!(collected.is_good());
    assert_eq!(collected.text(0), expected);
    server.wait_until_idle();
}

#[test]
fn a_flood_of_metrics_is_bounded_counted_and_gone_with_its_plugin() {
    for hook in HOOKS {
        let server = Setup::new()
            .guest(hook, "10-bad", &settings("flood-metrics", ""))
            .plugin("sampler", "05-standard", "sampler-standard", "")
            .start();
        assert_eq!(complete(&server, false).status, 200, "{hook}");
        let metrics = server.metrics();
        let own = |text: &str| text.lines().filter(|line| line.starts_with("camshaft_plugin_")).count();
        // 31 names beside the one with 64 label sets, in whatever order they came.
        assert!((32..=31 + 64).contains(&own(metrics.text())), "{hook}: {}", own(metrics.text()));
        let dropped = metrics.count("camshaft_policy_metrics_dropped_total", &[("hook", hook), ("plugin", "bad")]);
        assert!(dropped >= 1000.0, "{hook}: {dropped}");
        // The last guard does not go just because its file does.
        server.policies.put(hook, "10-bad.toml", "settings = {}\n[policy]\nmode = \"off\"\n");
        server.wait_for_policy((hook, "bad"), |entry| entry["state"] == "off");
        server.policies.remove(hook, "10-bad.wasm");
        server.wait_for_policy((hook, "bad"), Value::is_null);
        camshaft_tests::eventually("nothing is left of its metrics", || {
            let text = server.metrics().text().to_owned();
            let left: Vec<&str> = text.lines().filter(|line| line.contains("plugin=\"bad\"")).collect();
            if own(&text) == 0 && left.is_empty() { Ok(()) } else { Err(left.join("\n")) }
        });
    }
}

#[test]
fn a_sampler_that_looks_up_texts_for_ever_faults_and_the_others_go_on() {
    let setup = Setup::new().plugin("sampler", "05-standard", "sampler-standard", "");
    let mut server = setup.guest("sampler", "10-bad", &settings("well", "")).start();
    let expected = text(&complete(&server, false));
    for how in OF_SAMPLERS {
        behave(&server, "sampler", how, "");
        assert_eq!(text(&complete(&server, false)), expected, "{how}");
        assert_eq!(faults(&server, "sampler", &["deadline"]), 1.0, "{how}");
    }
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_flood_of_log_lines_is_limited() {
    let server = serve("validator");
    behave(&server, "validator", "flood-log", "");
    for _ in 0..3 {
        assert_eq!(complete(&server, false).status, 200);
    }
    let lines = server.settled_log().lines().filter(|line| line.contains("line ") && line.contains("bad")).count();
    assert!((1..2000).contains(&lines), "{lines} of 30000 lines were written");
}

#[test]
fn a_broken_guard_refuses_everything_and_another_broken_policy_is_left_out() {
    for (how, word) in AT_START {
        for hook in HOOKS {
            let mut server = Setup::new().guest(hook, "10-bad", &settings(how, "")).start();
            let entry = server.policy(hook, "bad").expect("an entry");
            assert_eq!(entry["state"], "rejected", "{hook}, {how}: {entry}");
            assert!(entry["error"].as_str().is_some_and(|error| error.contains(word)), "{hook}, {how}: {entry}");
            let response = complete(&server, false);
            if matches!(hook, "auth" | "validator" | "filter") {
                assert_failed(&response, &format!("{hook}, {how}"));
                assert_eq!(server.client.get("/healthz").status, 200);
                server.policies.put(hook, "10-bad.toml", settings("well", ""));
                server.wait_for_policy((hook, "bad"), |entry| entry["state"] == "active");
                assert_eq!(complete(&server, false).status, 200, "the repaired file admits requests");
            } else {
                assert_eq!(response.status, 200, "{hook}, {how}: {}", response.text());
            }
            server.assert_runs();
        }
    }
}

#[test]
fn contexts_tell_of_the_request_that_the_client_has_sent() {
    let [how] = TELLS;
    let server = Setup::new().guest("auth", "10-bad", &settings(how, "")).start();
    let request = Request::get("/v1/models?page=%31").header("X-A", "one").header("x-a", "two");
    let told = server.client.send(&request.header("x-request-id", "mine-7"));
    assert_eq!((told.status, error_of(&told)["code"].clone()), (403, json!("told")));
    let message = error_of(&told)["message"].as_str().unwrap().to_owned();
    let id = told.header("x-request-id").unwrap();
    let begins =
        format!("auth/bad on {} None; {id} page=%31 [[111, 110, 101], [116, 119, 111]] ", env!("CARGO_PKG_VERSION"));
    assert!(
        message.starts_with(&begins)
            && message.contains("\"x-a\"")
            && message.contains("requests-per-day")
            && message.ends_with(" [] None 4"),
        "{message}"
    );
    // And a validator, of the body and whose it is.
    let server = Setup::new().guest("validator", "10-bad", &settings(how, "")).start();
    let told = complete(&server, false);
    let message = error_of(&told)["message"].as_str().unwrap().to_owned();
    assert!(message.starts_with("anonymous/anonymous None ") && message.ends_with("[Some(\"6\"), None]"), "{message}");
    // And a scheduler, of the model and the tenant.
    let server = Setup::new().guest("scheduler", "10-bad", &settings(how, "")).start();
    let told = complete(&server, false);
    assert_eq!((told.status, error_of(&told)["message"].clone()), (503, json!("demo 0 anonymous")));
    // And a filter, of the text before.
    let server = Setup::new().guest("filter", "10-bad", &settings(how, "")).start();
    let told = complete(&server, false);
    assert_eq!((told.status, error_of(&told)["code"].clone()), (451, json!("told")), "{}", told.text());
    let message = error_of(&told)["message"].as_str().unwrap().to_owned();
    // Its tokens with their log-probabilities, no attribute, and a field of the request.
    let begins = "demo anonymous 0 true None Some(\"6\") ";
    assert!(message.starts_with(begins) && message.len() == begins.len() + 5, "{message}");
    // And a sampler.
    let server = Setup::new().guest("sampler", "10-bad", &settings(how, "")).start();
    assert!(!text(&complete(&server, false)).is_empty());
    server.wait_for_log("told: demo anonymous None Some(");
}

#[test]
fn every_bad_guest_and_every_behaviour_has_a_test_here() {
    let folder = repository().join("tests/guests");
    let entries = std::fs::read_dir(&folder).expect("there are guests");
    let names: BTreeSet<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    let tested: BTreeSet<String> = HOOKS
        .iter()
        .map(|hook| format!("misbehave-{hook}"))
        .chain(["misbehave".to_owned(), "sampler-plans".to_owned()])
        .collect();
    assert_eq!(names, tested);

    let source = std::fs::read_to_string(folder.join("misbehave/src/lib.rs")).expect("the behaviours can be read");
    let body = source.split("pub enum Behaviour {").nth(1).and_then(|rest| rest.split("\n}").next()).expect("the enum");
    let variants = body.lines().map(str::trim).filter(|line| line.starts_with(char::is_uppercase));
    let known: BTreeSet<String> = variants.map(|line| kebab(line.trim_end_matches(','))).collect();
    let tested = FAULTS
        .iter()
        .map(|(how, _)| *how)
        .chain(ANSWERS)
        .chain(LATER)
        .chain(FRESH)
        .chain(TELLS)
        .chain(OF_SAMPLERS)
        .chain(TELLS_POOL)
        .chain(OF_SCHEDULERS.iter().map(|(how, _)| *how))
        .chain(SCHEDULES)
        .chain(OF_FILTERS.iter().map(|(how, _)| *how))
        .chain(AT_START.iter().map(|(how, _)| *how));
    assert_eq!(known, tested.map(str::to_owned).collect());
}

fn kebab(name: &str) -> String {
    let mut text = String::new();
    for (index, letter) in name.char_indices() {
        if letter.is_uppercase() && index > 0 {
            text.push('-');
        }
        text.push(letter.to_ascii_lowercase());
    }
    text
}
