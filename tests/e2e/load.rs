//! Overload: fair shares, clients that disconnect, readers that stop reading.
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camshaft_tests::{Request, Setup, api_keys, eventually};
use serde_json::json;

const COMPLETIONS: &str = "/v1/completions";

/// Service, at the fair scheduler's token prices.
fn service(prompt: u64, generated: u64) -> u64 {
    prompt + 2 * generated
}

#[test]
fn shares_ten_times_the_load_by_weight_and_refuses_the_excess() {
    const WEIGHTS: [(&str, u64); 3] = [("sk-one", 1), ("sk-two", 2), ("sk-four", 4)];
    let keys: Vec<(&str, String)> =
        WEIGHTS.iter().map(|(key, weight)| (*key, format!("weight = {weight}.0\nqueue-share = 0.34"))).collect();
    let keys: Vec<(&str, &str)> = keys.iter().map(|(key, more)| (*key, more.as_str())).collect();
    let server = Setup::new()
        .config("[queue]\nhigh-watermark = 30\n[cache]\nram = \"16MiB\"\n[[model]]\nid = \"demo\"\nthreads = 1\nsequences = 4\n")
        .plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&keys))
        .plugin("scheduler", "10-fair", "scheduler-fair", "")
        .start();
    let (stop, counting) = (AtomicBool::new(false), AtomicBool::new(false));
    let served: Mutex<BTreeMap<&str, u64>> = Mutex::default();
    let refused = Mutex::new(0u32);
    std::thread::scope(|scope| {
        for (key, _) in WEIGHTS {
            for client in 0..14 {
                let (server, stop, counting, served, refused) = (&server, &stop, &counting, &served, &refused);
                scope.spawn(move || {
                    let asking = server.client.with_key(key);
                    let prompt = format!("{key} {client} tells a story of some length about a shy wolf");
                    let body = json!({"model": "demo", "prompt": prompt, "max_tokens": 24, "ignore_eos": true});
                    while !stop.load(Ordering::Relaxed) {
                        let answer = asking.post(COMPLETIONS, &body);
                        if answer.status == 200 {
                            let usage = answer.json()["usage"].clone();
                            let number = |name: &str| usage[name].as_u64().unwrap();
                            if counting.load(Ordering::Relaxed) {
                                let got = service(number("prompt_tokens"), number("completion_tokens"));
                                *served.lock().unwrap().entry(key).or_default() += got;
                            }
                        } else {
                            assert!([429, 503].contains(&answer.status), "{} {}", answer.status, answer.text());
                            assert!(answer.header("retry-after").is_some());
                            *refused.lock().unwrap() += 1;
                            std::thread::sleep(Duration::from_millis(5));
                        }
                    }
                });
            }
        }
        std::thread::sleep(Duration::from_secs(2));
        counting.store(true, Ordering::Relaxed);
        // By then the prefix cache is full.
        let before = server.resident_bytes();
        std::thread::sleep(Duration::from_secs(10));
        let grown = server.resident_bytes().saturating_sub(before);
        assert!(grown < 32 << 20, "{grown} bytes more after ten seconds");
        counting.store(false, Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
    });
    let served = served.into_inner().unwrap();
    let total: u64 = served.values().sum();
    for (key, weight) in WEIGHTS {
        let share = served[key] as f64 / total as f64 * 7.0 / weight as f64;
        assert!((0.9..=1.1).contains(&share), "{key} got {share} of its share: {served:?}");
    }
    assert!(refused.into_inner().unwrap() > 50, "there was too much");
    server.wait_until_idle();
}

#[test]
fn the_server_is_idle_after_two_hundred_clients_left_at_any_moment() {
    let server = Setup::new().config("[[model]]\nid = \"demo\"\nthreads = 1\nsequences = 8\n").start();
    std::thread::scope(|scope| {
        for client in 0..200u64 {
            let server = &server;
            scope.spawn(move || {
                let prompt =
                    "a long prompt that takes a while to compute ".repeat(if client % 3 == 0 { 15 } else { 1 });
                let body = json!({"model": "demo", "prompt": format!("{client} {prompt}"), "max_tokens": 600,
                    "ignore_eos": true, "stream": client % 2 == 0});
                let mut socket = server.client.begin(&Request::post(COMPLETIONS, &body));
                // A client that receives data reads it meanwhile.
                socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                let stay = Duration::from_millis(100 + client * 2);
                let begun = Instant::now();
                while begun.elapsed() < stay {
                    let mut buffer = [0; 4096];
                    if matches!(socket.read(&mut buffer), Ok(0)) {
                        break;
                    }
                }
            });
        }
    });
    server.wait_until_idle();
    assert!(server.metrics().count("camshaft_requests_total", &[("status", "499")]) > 100.0);
    assert!(server.answer("What is 3 plus 4?").contains('7'));
}

#[test]
fn a_reader_that_stops_reading_holds_up_nobody_and_is_cut() {
    let server = Setup::new()
        // Long enough for the channels to fill before the connection is cut, however slow the machine.
        .config("[limits]\nslow-reader = \"10s\"\n[[model]]\nid = \"demo\"\nthreads = 1\nsequences = 16\n")
        .start();
    // Log-probabilities make the response larger than socket buffers.
    let much = json!({"model": "demo", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 1000,
        "ignore_eos": true, "stream": true, "n": 16, "logprobs": true, "top_logprobs": 20});
    let socket = server.client.begin_unread(&Request::post("/v1/chat/completions", &much));
    eventually("its sequences are paused", || {
        let pauses = server.metrics().count("camshaft_pauses_total", &[]);
        if pauses > 0.0 { Ok(()) } else { Err(pauses) }
    });
    for _ in 0..15 {
        assert!(server.answer("What is 3 plus 4?").contains('7'));
    }
    eventually("it is cut", || {
        let metrics = server.metrics();
        let gone = metrics.get("camshaft_requests_running", &[]) == Some(0.0);
        if gone { Ok(()) } else { Err(metrics.get("camshaft_requests_running", &[])) }
    });
    drop(socket);
    server.wait_until_idle();
    let metrics = server.metrics();
    let whole = metrics.get("camshaft_requests_total", &[("endpoint", "/v1/chat/completions"), ("status", "200")]);
    assert_eq!(whole, Some(15.0), "the stream was cut, not completed");
    let made = metrics.count("camshaft_generated_tokens_total", &[]);
    assert!(made < 16_000.0, "{made} tokens were made for nobody");
}
