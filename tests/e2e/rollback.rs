//! Versions that begin to fault under load, operators' orders, and files that can never serve.
use camshaft_tests::{Request, Server, Setup, eventually, guest, plugin, sha256_hex};
use serde_json::json;

use crate::under_load::{events, under_load, wait_for_more};

const COMPLETIONS: &str = "/v1/completions";
const STREAMS: usize = 4;
/// Opens after few faults, whatever answers come between.
const LAST_GOOD: &str =
    "[policy]\non-fault = \"last-good\"\ndeadline = \"5s\"\nbreaker = { faults = 3, share = 0.1, pause = \"60s\" }\n";

/// A version that begins to fault after some calls is rolled back, and no stream notices.
fn rolls_back_under_load(hook: &str, standard: &str) {
    let good = plugin(standard);
    let mut server = Setup::new().plugin(hook, "10-x", standard, LAST_GOOD).start();
    server.wait_until_active(hook, "x", &good);
    let bad = guest(&format!("misbehave-{hook}"));
    under_load(&server, STREAMS, |ended| {
        wait_for_more(ended, STREAMS);
        // What serves does not take these settings: they come into force with the new component.
        server.policies.put(hook, "10-x.toml", format!("{LAST_GOOD}[settings]\nbehave = \"trap-later\"\n"));
        server.wait_for_policy((hook, "x"), |entry| entry["state"] == "rejected");
        server.policies.put(hook, "10-x.wasm", &bad);
        eventually("the version is rolled back", || {
            let rolled_back = events(&server, "rolled-back");
            if rolled_back.len() == 1 { Ok(()) } else { Err(rolled_back) }
        });
        wait_for_more(ended, STREAMS);
    });
    let entry = server.policy(hook, "x").expect("it is there");
    assert_eq!((&entry["serving"], &entry["state"]), (&json!(sha256_hex(&good)), &json!("rejected")), "{entry}");
    let error = entry["error"].as_str().expect("a reason");
    assert!(error.contains("rolled back") && error.contains("breaker"), "{error}");
    assert_eq!((&entry["health"]["breaker"], &entry["health"]["faults"]), (&json!("closed"), &json!(0)), "{entry}");
    let change = events(&server, "rolled-back").pop().expect("one");
    assert_eq!((&change["who"], &change["digest"]), (&json!("breaker"), &json!(sha256_hex(&bad))), "{change}");
    let swaps = server.metrics().count("camshaft_policy_swaps_total", &[("hook", hook), ("result", "rolled-back")]);
    assert_eq!(swaps, 1.0);
    server.wait_for_log("policy rolled back to the version before");
    // It stays away, also after a reload.
    assert_eq!(server.admin.post("/admin/reload", &json!({})).status, 200);
    assert_eq!(server.policy(hook, "x").expect("it is there")["serving"], sha256_hex(&good).as_str());
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_scheduler_that_begins_to_fault_under_load_is_rolled_back_with_no_failed_stream() {
    rolls_back_under_load("scheduler", "scheduler-fcfs");
}

#[test]
fn a_sampler_that_begins_to_fault_under_load_is_rolled_back_with_no_failed_stream() {
    rolls_back_under_load("sampler", "sampler-standard");
}

fn complete(server: &Server) -> u16 {
    let body = json!({"model": "demo", "temperature": 0, "prompt": "1, 2, 3,", "max_tokens": 2});
    server.client.post(COMPLETIONS, &body).status
}

#[test]
fn an_open_breaker_denies_or_skips_without_asking_and_closes_again() {
    let settings = |how: &str, on_fault: &str| {
        format!(
            "[policy]\non-fault = \"{on_fault}\"\ndeadline = \"5s\"\nbreaker = {{ faults = 2, pause = \"60s\" }}\n\
             [settings]\nbehave = \"{how}\"\n"
        )
    };
    let server = Setup::new().guest("validator", "10-bad", &settings("trap", "deny")).start();
    let count = |outcome: &str| {
        let labels = [("hook", "validator"), ("plugin", "bad"), ("outcome", outcome)];
        server.metrics().count("camshaft_policy_calls_total", &labels)
    };
    for _ in 0..5 {
        assert_eq!(complete(&server), 500);
    }
    assert_eq!((count("trap"), count("open")), (2.0, 3.0), "two calls, and then none");
    let entry = server.policy("validator", "bad").expect("it is there");
    assert_eq!((&entry["health"]["breaker"], &entry["health"]["calls"]), (&json!("open"), &json!(2)), "{entry}");
    assert_eq!(entry["effect"], "fails", "{entry}");
    let labels = [("hook", "validator"), ("plugin", "bad")];
    assert_eq!(server.metrics().get("camshaft_policy_breaker_state", &labels), Some(2.0));
    assert_eq!(server.metrics().count("camshaft_policy_breaker_openings_total", &labels), 1.0);
    server.policies.put("validator", "10-bad.toml", settings("trap", "skip"));
    server.wait_for_policy(("validator", "bad"), |entry| entry["health"]["calls"] == 0);
    for _ in 0..4 {
        assert_eq!(complete(&server), 200, "as its on-fault says");
    }
    assert_eq!(server.policy("validator", "bad").unwrap()["effect"], "none", "requests pass without it");
    // A pause of 10 ms: it is tried again, and answers.
    let short = settings("well", "deny").replace("60s", "10ms");
    server.policies.put("validator", "10-bad.toml", short);
    server.wait_for_policy(("validator", "bad"), |entry| entry["health"]["breaker"] == "closed");
    assert_eq!(complete(&server), 200);
}

#[test]
fn operators_roll_back_promote_and_examine() {
    let setup = Setup::new().plugin("validator", "10-limits", "validator-limits", "[settings]\nmax-tokens = 5\n");
    let server = setup.start();
    let post = |path: &str| server.admin.post(&format!("/admin/policies/{path}"), &json!({}));
    for order in ["rollback", "promote"] {
        let refused = post(&format!("validator/limits/{order}"));
        let code = refused.json()["error"]["code"].clone();
        assert_eq!((refused.status, code), (409, json!("nothing_to_do")), "{order}: {}", refused.text());
    }
    let long = "n".repeat(200);
    let unknown = post(&format!("validator/{long}/rollback"));
    assert_eq!(unknown.status, 404);
    assert!(!unknown.text().contains(&"n".repeat(129)) && unknown.text().contains(&"n".repeat(128)));
    assert_eq!((complete(&server), post("validator/limits/explode").status), (200, 400));
    // The next version of the file is another plugin.
    let (old, new) = (plugin("validator-limits"), guest("misbehave-validator"));
    server.policies.put("validator", "10-limits.toml", "");
    server.policies.put("validator", "10-limits.toml", "settings = {}\n");
    server.wait_for_policy(("validator", "limits"), |entry| entry["error"].is_null());
    assert_eq!(complete(&server), 200);
    server.policies.put("validator", "10-limits.wasm", &new);
    let entry = server.wait_until_active("validator", "limits", &new);
    assert_eq!(entry["health"]["last_good"], sha256_hex(&old).as_str(), "{entry}");
    let back = post("validator/limits/rollback");
    assert_eq!((back.status, &back.json()["serving"]), (200, &json!(sha256_hex(&old))), "{}", back.text());
    assert_eq!(post("validator/limits/promote").status, 200);
    server.wait_until_active("validator", "limits", &new);
    for (event, count) in [("rolled-back", 1), ("promoted", 1)] {
        let changes = events(&server, event);
        assert_eq!(changes.len(), count, "{event}: {changes:?}");
        assert!(changes[0]["who"].as_str().is_some_and(|who| who == "admin 127.0.0.1"), "{changes:?}");
    }
    assert_eq!(server.client.post("/admin/policies/validator/limits/rollback", &json!({})).status, 404);
    assert!(server.settled_log().contains("audit: a policy changed"));
    // Examining changes nothing.
    let before = server.policy_page()["generation"].clone();
    let check = |path: &str, body: &[u8]| server.admin.send(&Request::new("POST", path).body(body));
    let accepted = check("/admin/policies/check?settings=%5Bsettings%5D%0Amax-tokens%20%3D%203", &old);
    assert_eq!(accepted.status, 200, "{}", accepted.text());
    let report = accepted.json();
    assert_eq!((&report["hook"], &report["sha256"]), (&json!("validator"), &json!(sha256_hex(&old))), "{report}");
    for (path, body, word) in [
        ("/admin/policies/check?settings=%5Bsettings%5D%0Amax-tokns%20%3D%203", &old[..], "max-tokns"),
        ("/admin/policies/check?settings=%5Bpolicy%5D%0Adeadline%20%3D%20%221h%22", &old[..], "policy.deadline"),
        ("/admin/policies/check?setings=", &old[..], "setings"),
        ("/admin/policies/check?settings=%5Bsettings%5D%0A%23%20%ff", &old[..], "UTF-8"),
        ("/admin/policies/check", &old[..1000], "truncated"),
        ("/admin/policies/check", b"", "empty"),
        ("/admin/policies/check", b"\0asm\x01\0\0\0", "core module"),
    ] {
        let refused = check(path, body);
        assert_eq!(refused.status, 400, "{path}: {}", refused.text());
        assert!(refused.text().contains(word), "{path} says {word}: {}", refused.text());
    }
    let length = (64u64 << 20) + 1;
    let large = Request::new("POST", "/admin/policies/check").body(vec![0; length as usize]);
    assert_eq!(server.admin.send(&large).status, 413);
    assert_eq!(server.client.send(&Request::new("POST", "/admin/policies/check")).status, 404);
    assert_eq!(server.policy_page()["generation"], before);
}

#[test]
fn what_can_never_serve_says_why_in_the_log_the_metric_and_the_page() {
    use std::os::unix::fs::symlink;
    let server = Setup::new().plugin("validator", "10-limits", "validator-limits", "").start();
    let at = |file: &str| server.policies.path("sampler", file);
    assert!(std::process::Command::new("mkfifo").arg(at("10-pipe.wasm")).status().expect("mkfifo runs").success());
    std::fs::create_dir(at("11-folder.wasm")).expect("a folder");
    symlink("/etc/passwd", at("12-out.wasm")).expect("a link");
    symlink("/nowhere", at("13-nowhere.wasm")).expect("a link");
    symlink("/dev/zero", at("14-endless.wasm")).expect("a link");
    std::fs::File::create(at("15-large.wasm")).and_then(|file| file.set_len(65 << 20)).expect("a file of holes");
    server.policies.put("sampler", "16-twin.wasm", plugin("sampler-standard"));
    server.policies.put("sampler", "17-twin.wasm", plugin("sampler-avoid-words"));
    for (name, word) in [
        ("pipe", "not a regular file"),
        ("folder", "not a regular file"),
        ("out", "not a WebAssembly component"),
        ("nowhere", "cannot read"),
        ("endless", "not a regular file"),
        ("large", "larger than the 67108864 bytes"),
    ] {
        let entry = server.wait_for_policy(("sampler", name), |entry| entry["state"] == "rejected");
        assert!(entry["error"].as_str().is_some_and(|error| error.contains(word)), "{name}: {entry}");
        let said = |line: &str| line.contains("policy rejected") && line.contains(name) && line.contains(word);
        eventually("the log says so", || if server.log().lines().any(said) { Ok(()) } else { Err(server.log()) });
        let noted = events(&server, "rejected").into_iter().any(|change| change["name"] == name);
        assert!(noted, "{name} is in the history");
    }
    let twins = || {
        let page = server.policy_page();
        let entries = page["policies"].as_array().expect("entries").clone();
        entries.into_iter().filter(|entry| entry["name"] == "twin").collect::<Vec<_>>()
    };
    let both = eventually("one of the two serves", || {
        let both = twins();
        let states: Vec<_> = both.iter().map(|entry| entry["state"].clone()).collect();
        if states == [json!("active"), json!("rejected")] { Ok(both) } else { Err(both) }
    });
    assert!(both[1]["error"].as_str().is_some_and(|error| error.contains("16-twin.wasm")), "{both:?}");
    let rejected =
        server.metrics().count("camshaft_policy_swaps_total", &[("hook", "sampler"), ("result", "rejected")]);
    assert!(rejected >= 7.0, "{rejected}");
    // The name is free when its file is renamed, and the other one gets it.
    std::fs::rename(at("16-twin.wasm"), at("16-single.wasm")).expect("a rename");
    server.wait_until_active("sampler", "single", &plugin("sampler-standard"));
    eventually("the other one says what it lacks", || {
        let left = twins();
        // It does not run without settings.
        let free = left.len() == 1 && !left[0]["error"].as_str().unwrap_or_default().contains("16-twin");
        if free { Ok(()) } else { Err(left) }
    });
    assert_eq!(complete(&server), 200);
}
