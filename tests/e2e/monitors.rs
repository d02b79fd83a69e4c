//! Policies that are only monitored: what they would have changed is counted, and clients get what they got without them.
use camshaft_tests::{Server, Setup, eventually};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const MONITOR: &str = "[policy]\nmode = \"monitor\"\ndeadline = \"5s\"\n";

/// Sampled and greedy texts, streamed and not, as far as the client sees them: everything but ids and times.
fn answers(server: &Server) -> Vec<String> {
    let mut all = Vec::new();
    for seed in 0..6u64 {
        let mut body = json!({"model": "demo", "prompt": "Once upon a time", "seed": seed, "max_tokens": 48,
            "temperature": if seed == 0 { 0.0 } else { 1.0 }, "logprobs": 2, "stop": ["zebra"]});
        let answer = server.client.ask(COMPLETIONS, &body);
        all.push(format!("{} {}", answer["choices"], answer["usage"]["completion_tokens"]));
        body["stream"] = json!(true);
        let streamed = server.client.stream(COMPLETIONS, &body).finish();
        assert!(streamed.is_good(), "{:?}", streamed.error());
        let logprobs = streamed.values().map(|value| value["choices"][0]["logprobs"]["tokens"].clone());
        let tokens: Vec<Value> = logprobs.filter_map(|tokens| tokens.as_array().cloned()).flatten().collect();
        all.push(format!("{:?} {:?} {tokens:?}", streamed.text(0), streamed.finish_reason(0)));
    }
    all
}

fn differences(server: &Server, hook: &str, name: &str, kind: &str) -> f64 {
    let labels = [("hook", hook), ("plugin", name), ("kind", kind)];
    server.metrics().count("camshaft_policy_differences_total", &labels)
}

/// What `/admin/policies` says of a policy that is active in mode `monitor`.
fn health(server: &Server, hook: &str, name: &str) -> Value {
    let entry = server.policy(hook, name).expect("it is there");
    assert_eq!((&entry["mode"], &entry["state"]), (&json!("monitor"), &json!("active")), "{entry}");
    entry["health"].clone()
}

#[test]
fn a_monitored_sampler_tells_how_far_it_would_move_the_rows_and_moves_none() {
    let standard = Setup::new().plugin("sampler", "10-standard", "sampler-standard", "");
    let plain = answers(&standard.start());
    let settings = format!("{MONITOR}monitor-share = 0.5\n[settings]\nwords = [\"the\", \"a\", \"was\"]\n");
    let server = Setup::new()
        .plugin("sampler", "05-avoid", "sampler-avoid-words", &settings)
        .plugin("sampler", "10-standard", "sampler-standard", "")
        .start();
    assert_eq!(answers(&server), plain);
    let health = health(&server, "sampler", "avoid");
    let rows = &health["rows"];
    // Each second of 48 tokens, of 12 texts.
    let compared = rows["compared"].as_u64().expect("a count");
    assert!((100..=12 * 24).contains(&compared), "{rows}");
    let (mean, max) = (rows["mean_distance"].as_f64().unwrap(), rows["max_distance"].as_f64().unwrap());
    assert!(mean > 0.0 && mean < max && max <= 1.0, "{rows}");
    for kind in ["shape", "token"] {
        let count = health["differences"][kind].as_f64().unwrap_or_default();
        assert!(count > 0.0, "{kind}: {health}");
        assert_eq!(differences(&server, "sampler", "avoid", kind), count);
    }
    let count = server.metrics().count("camshaft_policy_monitor_distance_count", &[("plugin", "avoid")]);
    assert_eq!(count, compared as f64);
    server.wait_for_log("a monitored policy would have decided otherwise");
    // A client cannot choose it.
    let named = json!({"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 2, "samplers": ["avoid"]});
    assert_eq!(server.client.post(COMPLETIONS, &named).status, 400);
    // Enforced, it does what it said.
    let enforced = server.admin.post("/admin/policies/sampler/avoid/enforce", &json!({}));
    assert_eq!(enforced.status, 200, "{}", enforced.text());
    assert_ne!(answers(&server), plain);
    let back = server.admin.post("/admin/policies/sampler/avoid/monitor", &json!({}));
    assert_eq!(back.status, 200, "{}", back.text());
    assert_eq!(answers(&server), plain);
}

#[test]
fn a_monitored_filter_is_counted_by_kind_and_changes_holds_and_delays_nothing() {
    let plain = answers(&Setup::new().start());
    let deny = format!("{MONITOR}[settings]\npatterns = [\"the\", \"was\"]\nreplacement = \"<x>\"\n");
    let finish = format!("{MONITOR}[settings]\npatterns = [\"and\"]\naction = \"finish\"\n");
    let rewind = format!("{MONITOR}[settings]\nphrases = [\"the\"]\n");
    let server = Setup::new()
        .plugin("filter", "10-deny", "filter-deny-patterns", &deny)
        .plugin("filter", "20-finish", "filter-deny-patterns", &finish)
        .plugin("filter", "30-rewind", "filter-rewind-phrases", &rewind)
        .start();
    assert_eq!(answers(&server), plain);
    for (name, kind) in [("deny", "replace"), ("finish", "finish"), ("rewind", "rewind")] {
        let health = health(&server, "filter", name);
        let count = health["differences"][kind].as_f64().unwrap_or_default();
        assert!(count > 0.0, "{name}: {health}");
        assert_eq!((differences(&server, "filter", name, kind), &health["faults"]), (count, &json!(0)));
    }
    assert_eq!(server.metrics().count("camshaft_filter_rewinds_total", &[]), 0.0);
}

/// Answers to requests of very different lengths that queue for one sequence.
fn queued(server: &Server) -> Vec<String> {
    let lengths = [96, 80, 4, 4, 4, 4, 4, 4];
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..3 * lengths.len())
            .map(|index| {
                let body = json!({"model": "demo", "prompt": "Once upon a time", "seed": index, "temperature": 1,
                    "ignore_eos": true, "max_tokens": lengths[index % lengths.len()]});
                scope.spawn(move || server.client.ask(COMPLETIONS, &body)["choices"].to_string())
            })
            .collect();
        running.into_iter().map(|client| client.join().expect("it answers")).collect()
    })
}

fn one_sequence() -> Setup {
    Setup::new().config("[[model]]\nid = \"demo\"\nsequences = 1\nthreads = 1\n")
}

#[test]
fn a_monitored_scheduler_tells_the_queueing_that_it_would_have_caused() {
    let plain = queued(&one_sequence().plugin("scheduler", "10-fcfs", "scheduler-fcfs", "").start());
    let server = one_sequence()
        .plugin("scheduler", "10-fcfs", "scheduler-fcfs", "[policy]\ndeadline = \"1s\"\n")
        .plugin("scheduler", "20-shortest", "scheduler-shortest-first", MONITOR)
        .start();
    assert_eq!(server.policy("scheduler", "fcfs").expect("it is there")["state"], "active");
    assert_eq!(queued(&server), plain);
    server.wait_until_idle();
    let health = eventually("all requests are compared", || {
        let health = health(&server, "scheduler", "shortest");
        let waits = &health["waits"]["demo"];
        if waits["compared"] == 24 && waits["waiting"] == 0 { Ok(health) } else { Err(health) }
    });
    let waits = &health["waits"]["demo"];
    let us = |name: &str| waits[name].as_u64().unwrap_or_else(|| panic!("no {name} in {waits}"));
    // Which of them is less depends on this machine's times; the tests of the virtual book have times of their own.
    assert!(us("monitored_mean_us") > 0 && us("enforced_mean_us") > 0, "{waits}");
    assert!(us("monitored_p99_us") > 0 && us("enforced_p99_us") > 0, "{waits}");
    let choices = health["differences"]["first-choice"].as_f64().unwrap_or_default();
    assert!(choices > 0.0, "{health}");
    assert_eq!(differences(&server, "scheduler", "shortest", "first-choice"), choices);
    for book in ["monitored", "enforced"] {
        let labels = [("plugin", "shortest"), ("model", "demo"), ("book", book)];
        assert_eq!(server.metrics().count("camshaft_policy_monitor_wait_seconds_count", &labels), 24.0);
    }
    // The native scheduler can be shadowed, too, and none of this moved the generation of what serves.
    let generation = server.policy("scheduler", "shortest").expect("it is there")["generation"].clone();
    server.policies.remove("scheduler", "10-fcfs.wasm");
    eventually("it is gone", || if server.policy("scheduler", "fcfs").is_none() { Ok(()) } else { Err(()) });
    assert_eq!(queued(&server), plain);
    let entry = server.policy("scheduler", "shortest").expect("it is there");
    assert_eq!((&entry["generation"], &entry["state"]), (&generation, &json!("active")), "{entry}");
}

#[test]
fn monitored_policies_that_trap_spin_or_hold_for_ever_disturb_nobody() {
    let standard = || one_sequence().plugin("scheduler", "10-fcfs", "scheduler-fcfs", "");
    let (plain, plain_queued) = {
        let server = standard().start();
        (answers(&server), queued(&server))
    };
    for behave in ["trap", "spin", "nonsense", "hold-forever", "rewind-forever", "allocate"] {
        // What only spins is stopped sooner; what behaves well is not stopped on a busy machine.
        let monitor = MONITOR.replace("5s", if behave == "spin" { "20ms" } else { "5s" });
        let settings = format!("{monitor}on-fault = \"last-good\"\n[settings]\nbehave = \"{behave}\"\n");
        let mut server = standard()
            .guest("scheduler", "20-bad", &settings)
            .guest("sampler", "20-bad", &settings)
            .guest("filter", "20-bad", &settings)
            .start();
        assert_eq!(answers(&server), plain, "{behave}");
        assert_eq!(queued(&server), plain_queued, "{behave}");
        server.assert_runs();
        server.wait_until_idle();
        let faults = matches!(behave, "trap" | "spin" | "nonsense" | "allocate");
        for hook in ["scheduler", "sampler", "filter"] {
            let health = health(&server, hook, "bad");
            let counted = match hook {
                "scheduler" => health["breaker"] == "open",
                _ => health["faults"] != 0,
            };
            assert_eq!(counted, faults, "{hook} {behave}: {health}");
        }
        assert_eq!(server.policy("scheduler", "fcfs").unwrap()["state"], "active");
        match behave {
            "hold-forever" => {
                // On a busy machine the pool leaves the candidate out, until there is time for it.
                let waits = eventually("the candidate holds what is queued", || {
                    let waits = health(&server, "scheduler", "bad")["waits"]["demo"].clone();
                    if waits["waiting"].as_u64() > Some(20) {
                        return Ok(waits);
                    }
                    queued(&server);
                    Err(waits)
                });
                assert_eq!(waits["compared"], 0, "{waits}");
                assert!(differences(&server, "filter", "bad", "hold-at-end") > 0.0);
            }
            "rewind-forever" => assert!(differences(&server, "filter", "bad", "rewind") > 0.0),
            _ => {}
        }
    }
}
