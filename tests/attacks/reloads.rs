//! Reloads, each of which publishes a generation: memory stays flat.
use camshaft_tests::{Request, Server, Setup, plugin};
use serde_json::json;

use crate::{COMPLETIONS, Row};

const STANDARD: [(&str, &str); 5] = [
    ("auth", "auth-api-keys"),
    ("validator", "validator-limits"),
    ("scheduler", "scheduler-fcfs"),
    ("sampler", "sampler-standard"),
    ("filter", "filter-mask-secrets"),
];

/// Every so many reloads have another settings file; those between another mode. (A file counts when it has not changed for a
/// while, so that ten thousand files would take an hour.)
const FILES: usize = 25;

fn settings(hook: &str, reload: usize) -> String {
    let own = if hook == "auth" { "[settings]\nanonymous-loopback = true\n" } else { "" };
    // At most 10 s.
    format!("[policy]\ndeadline = \"{}ms\"\n{own}", 1000 + reload % 9000)
}

/// Reloads, each time with a change of one hook, and with a request after every tenth. Returns the memory after each tenth part.
fn reload(server: &Server, reloads: usize) -> Vec<u64> {
    let body = json!({"model": "demo", "prompt": "a", "max_tokens": 2});
    let mut resident = Vec::new();
    let mut is_off = [false; STANDARD.len()];
    for number in 1..=reloads {
        let at = number % STANDARD.len();
        let (hook, _) = STANDARD[at];
        is_off[at] = !is_off[at] && number % FILES != 0;
        if number % FILES == 0 {
            server.policies.put(hook, "10-p.toml", settings(hook, number));
        } else {
            let mode = if is_off[at] { "off" } else { "enforce" };
            let changed = server.admin.post(&format!("/admin/policies/{hook}/p/{mode}"), &json!({}));
            assert_eq!(changed.status, 200, "{}", changed.text());
        }
        let reloaded = server.admin.send(&Request::new("POST", "/admin/reload"));
        assert_eq!(reloaded.status, 200, "{}", reloaded.text());
        if number % 10 == 0 {
            server.client.ask(COMPLETIONS, &body);
        }
        if number % (reloads / 10) == 0 {
            resident.push(server.resident_bytes());
        }
    }
    resident
}

fn serve() -> Server {
    let setup = STANDARD.iter().fold(Setup::new(), |setup, (hook, package)| {
        setup.component(hook, "10-p", &plugin(package), &settings(hook, 0))
    });
    setup.start()
}

#[test]
fn three_hundred_reloads_are_three_hundred_generations() {
    let row = Row::begin("300 reloads, each with a change");
    let mut server = serve();
    let before = server.policy_page()["generation"].as_u64().expect("a number");
    reload(&server, 300);
    let after = server.policy_page()["generation"].as_u64().expect("a number");
    assert_eq!(after, before + 300);
    server.assert_runs();
    server.wait_until_idle();
    row.end(&format!("{} generations", after - before));
}

#[test]
// Takes minutes, and measures memory, which other tests disturb.
fn long_attack_ten_thousand_reloads_leave_memory_flat() {
    let row = Row::begin("10,000 reloads, each with a change");
    let mut server = serve();
    let before = server.policy_page()["generation"].as_u64().expect("a number");
    let resident = reload(&server, 10_000);
    server.assert_runs();
    let after = server.policy_page()["generation"].as_u64().expect("a number");
    assert_eq!(after, before + 10_000);
    let mib: Vec<u64> = resident.iter().map(|bytes| bytes >> 20).collect();
    row.end(&format!("{} generations; MiB after each 1,000: {mib:?}", after - before));
    // From the first thousand on, at which every pool has its size.
    assert!(mib[9] <= mib[0] + 16, "{mib:?}");
}
