//! A tenant that sends as much as it can, beside one that asks for eight tokens now and then.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use camshaft_tests::{Client, Request, Server, Setup, api_keys};
use serde_json::{Value, json};

use crate::table::Times;
use crate::{CHAT, COMPLETIONS, Row};

const POLITE: usize = 60;
const ABUSERS: usize = 24;
/// Between two requests of an abuser: the attackers run on the same machine, and shall not be what takes its cores.
const PAUSE: Duration = Duration::from_millis(100);

/// Two tenants. The abusive one has quotas that forbid nearly all of what it sends.
fn serve() -> Server {
    let quotas = "requests-per-minute = 60\nconcurrent-requests = 2\ntokens-per-minute = 1000";
    Setup::new()
        .plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("abusive", quotas), ("polite", "")]))
        .plugin("scheduler", "10-fair", "scheduler-fair", "")
        .start()
}

/// The 99th percentile of the polite tenant's times, in milliseconds.
fn polite_p99(client: &Client) -> f64 {
    let hello = json!({"model": "demo", "max_tokens": 8, "messages": [{"role": "user", "content": "Hello!"}]});
    let times: Vec<f64> = (0..POLITE)
        .map(|_| {
            let begun = Instant::now();
            client.ask(CHAT, &hello);
            std::thread::sleep(Duration::from_millis(50));
            (begun.elapsed().as_secs_f64() - 0.05) * 1e3
        })
        .collect();
    Times::of(times).at(0.99)
}

/// Has clients send `bodies`, and leave half of them unanswered, until the polite tenant is done.
fn beside(server: &Server, bodies: &[Value]) -> (f64, usize) {
    let (stop, sent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let abusive = server.client.with_key("abusive");
    let p99 = std::thread::scope(|scope| {
        for number in 0..ABUSERS {
            let (abusive, stop, sent) = (&abusive, &stop, &sent);
            scope.spawn(move || {
                let request = Request::post(COMPLETIONS, &bodies[number % bodies.len()]);
                while !stop.load(Ordering::Relaxed) {
                    if number % 2 == 0 {
                        let status = abusive.send(&request).status;
                        assert!([200, 400, 429, 503].contains(&status), "{status}");
                    } else {
                        drop(abusive.begin(&request));
                    }
                    sent.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(PAUSE);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(500));
        let p99 = polite_p99(&server.client.with_key("polite"));
        stop.store(true, Ordering::Relaxed);
        p99
    });
    (p99, sent.into_inner())
}

#[test]
// Measures times, which other tests disturb.
fn long_attack_a_tenant_past_its_quotas_costs_another_at_most_twice_its_time() {
    let row = Row::begin("24 clients past their quotas beside a polite tenant");
    let server = serve();
    let alone = polite_p99(&server.client.with_key("polite"));
    let long = json!({"model": "demo", "prompt": "a".repeat((2 << 20) - 4096)});
    let many = json!({"model": "demo", "prompt": vec!["a b c"; 128], "max_tokens": 64, "n": 1});
    let ids = json!({"model": "demo", "prompt": vec![1; 500_000]});
    let (p99, sent) = beside(&server, &[long, many, ids]);
    row.end(&format!("p99 {p99:.0} ms, alone {alone:.0} ms, beside {sent} requests"));
    // A floor, so that a machine on which eight tokens take a few milliseconds does not count its own jitter.
    assert!(p99 <= 2.0 * alone.max(50.0), "{p99:.0} ms, alone {alone:.0} ms");
}
