//! Guests that take long, and those who must not notice.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use camshaft_tests::{Server, Setup, api_keys, eventually};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const CONNECTIONS: usize = 32;
/// A breaker that never opens, so that the guest spins at every call.
const SPINS: &str = "[policy]\nbreaker = { faults = 0 }\n[settings]\nbehave = \"spin\"\n";

fn story(stream: bool) -> Value {
    json!({"model": "demo", "prompt": "Once upon a time", "seed": 7, "max_tokens": 60, "ignore_eos": true, "stream": stream})
}

/// Connections that make a guest spin, one request after the other, while `meanwhile` runs. Every one of them is answered as
/// `is_right` says.
fn under_spinning(server: &Server, is_right: fn(u16) -> bool, meanwhile: impl FnOnce(&AtomicUsize)) {
    let (stop, answered) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CONNECTIONS {
            let (stop, answered, client) = (&stop, &answered, server.client.with_header("x-who", "a stranger"));
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let status = client.post(COMPLETIONS, &story(false)).status;
                    assert!(is_right(status), "{status}");
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        // A panic here must not leave the clients running for ever.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| meanwhile(&answered)));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn an_auth_guest_that_spins_under_32_connections_delays_neither_health_checks_nor_streams_of_others() {
    let keys = api_keys(&[("sk-alice", "")]);
    let mut server =
        Setup::new().plugin("auth", "10-keys", "auth-api-keys", &keys).guest("auth", "20-bad", SPINS).start();
    let alice = server.client.with_key("sk-alice");
    let quiet = alice.stream(COMPLETIONS, &story(true)).finish();
    assert!(quiet.is_good());
    under_spinning(
        &server,
        |status| status == 500 || status == 503,
        |answered| {
            eventually("guests spin", || {
                let so_far = answered.load(Ordering::Relaxed);
                if so_far >= CONNECTIONS { Ok(()) } else { Err(so_far) }
            });
            for _ in 0..5 {
                let mut stream = alice.stream(COMPLETIONS, &story(true));
                stream.read_text(1);
                (0..20).for_each(|_| assert_eq!(server.client.get("/healthz").status, 200));
                let busy = stream.finish();
                assert!(busy.is_good() && busy.text(0) == quiet.text(0), "{:?}", busy.error());
            }
        },
    );
    let spun = [("hook", "auth"), ("plugin", "bad"), ("outcome", "deadline")];
    assert!(server.metrics().count("camshaft_policy_calls_total", &spun) >= CONNECTIONS as f64);
    server.assert_runs();
    server.wait_until_idle();
}

#[test]
fn a_validator_that_spins_under_32_connections_holds_up_no_other_request() {
    let mut server = Setup::new().guest("validator", "10-bad", SPINS).start();
    under_spinning(
        &server,
        |status| status == 500 || status == 503,
        |answered| {
            eventually("guests spin", || {
                let so_far = answered.load(Ordering::Relaxed);
                if so_far >= CONNECTIONS { Ok(()) } else { Err(so_far) }
            });
            for _ in 0..50 {
                assert_eq!(server.client.get("/healthz").status, 200);
                assert_eq!(server.client.get("/v1/models").status, 200);
            }
        },
    );
    server.assert_runs();
    server.wait_until_idle();
}
