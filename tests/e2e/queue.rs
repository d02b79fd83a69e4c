//! The queue: its bound, deadlines, clients that leave, priorities.
use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use camshaft_tests::{Open, Request, Server, Setup, Stream, eventually};
use serde_json::{Value, json};

use crate::errors::error_of;

const COMPLETIONS: &str = "/v1/completions";

/// A server with one sequence, which a sampler holds: it spins in its first call until it is killed. So all other
/// requests wait, on a machine of any speed.
fn one_at_a_time(hold: &str) -> Setup {
    let settings = format!("[policy]\ndeadline = \"{hold}\"\n[settings]\nbehave = \"spin\"\n");
    Setup::new().config("[[model]]\nid = \"demo\"\nsequences = 1\nthreads = 1\n").guest("sampler", "10-hold", &settings)
}

fn body(tokens: u32) -> Value {
    json!({"model": "demo", "temperature": 0, "prompt": "1, 2, 3,", "max_tokens": tokens})
}

fn with_stream(tokens: u32) -> Value {
    json!({"model": "demo", "temperature": 0, "prompt": "1, 2, 3,", "max_tokens": tokens, "stream": true})
}

/// Starts a generation and waits until a worker has it.
fn hold(server: &Server) -> TcpStream {
    // The deadline that a test sets is for the other requests, so this one gets its own.
    let mut body = with_stream(4);
    body["timeout"] = json!(60);
    let socket = server.client.begin(&Request::post(COMPLETIONS, &body));
    wait_for(server, "camshaft_requests_running", 1.0);
    socket
}

fn wait_for(server: &Server, gauge: &str, value: f64) {
    eventually(&format!("{gauge} is {value}"), || {
        let now = server.metrics().get(gauge, &[]);
        if now == Some(value) { Ok(()) } else { Err(now) }
    });
}

fn finishes(socket: TcpStream) {
    let streamed = Stream::new(Open::read(socket).expect("an answer")).finish();
    assert!(streamed.is_good(), "{streamed:?}");
}

#[test]
fn a_full_queue_refuses_and_says_when_to_retry() {
    let server =
        one_at_a_time("2s").args(["--set", "queue.high-watermark=1", "--set", "queue.low-watermark=0"]).start();
    let running = hold(&server);
    let waiting = server.client.begin(&Request::post(COMPLETIONS, &with_stream(4)));
    wait_for(&server, "camshaft_requests_waiting", 1.0);
    for request in [Request::post(COMPLETIONS, &body(4)), Request::post(COMPLETIONS, &with_stream(4))] {
        let response = server.client.send(&request);
        assert_eq!(response.status, 429, "{}", response.text());
        assert_eq!(error_of(&response)["code"], "queue_full");
        let after: u32 = response.header("retry-after").expect("Retry-After").parse().expect("in seconds");
        assert!((1..=120).contains(&after), "{after}");
    }
    finishes(running);
    finishes(waiting);
    server.wait_until_idle();
    assert_eq!(server.metrics().get("camshaft_rejections_total", &[("reason", "queue_full")]), Some(2.0));
    assert_eq!(server.client.post(COMPLETIONS, &body(1)).status, 200);
}

#[test]
fn a_request_that_waits_past_its_deadline_gets_504() {
    let server = one_at_a_time("2s").set("queue.timeout", "\"300ms\"").start();
    let running = hold(&server);
    for request in [Request::post(COMPLETIONS, &body(4)), Request::post(COMPLETIONS, &with_stream(4))] {
        let response = server.client.send(&request);
        assert_eq!(response.status, 504, "{}", response.text());
        assert_eq!(error_of(&response)["code"], "deadline_exceeded");
    }
    drop(running);
    server.wait_until_idle();
    assert_eq!(server.metrics().get("camshaft_rejections_total", &[("reason", "deadline")]), Some(2.0));
}

#[test]
fn a_client_that_leaves_while_it_waits_frees_its_place() {
    let server = one_at_a_time("2s").start();
    let running = hold(&server);
    for request in [Request::post(COMPLETIONS, &body(4)), Request::post(COMPLETIONS, &with_stream(4))] {
        let waiting = server.client.begin(&request);
        wait_for(&server, "camshaft_requests_waiting", 1.0);
        drop(waiting);
        wait_for(&server, "camshaft_requests_waiting", 0.0);
    }
    wait_for(&server, "camshaft_requests_running", 1.0);
    finishes(running);
    server.wait_until_idle();
    assert_eq!(server.metrics().get("camshaft_requests_total", &[("status", "499")]), Some(2.0));
}

#[test]
fn regression_a_client_that_leaves_a_stream_that_has_begun_is_noticed_before_the_first_token() {
    let server = one_at_a_time("5s").start();
    let mut socket = server.client.begin(&Request::post(COMPLETIONS, &with_stream(4)));
    // Whoever leaves bytes unread is noticed at once, so all that comes before the first token is read.
    socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
    let (mut got, mut block) = (Vec::new(), [0; 1024]);
    while let Ok(count @ 1..) = socket.read(&mut block) {
        got.extend_from_slice(&block[..count]);
    }
    let got = String::from_utf8_lossy(&got);
    assert!(got.starts_with("HTTP/1.1 200 ") && !got.contains("data:"), "{got}");
    drop(socket);
    eventually("the client is missed", || {
        let missed = server.metrics().count("camshaft_requests_total", &[("status", "499")]);
        if missed == 1.0 { Ok(()) } else { Err(missed) }
    });
    let killed = server.metrics().count("camshaft_policy_calls_total", &[("hook", "sampler"), ("outcome", "deadline")]);
    assert_eq!(killed, 0.0, "the sampler still spins: there is no token yet");
}

#[test]
fn the_scheduler_policy_decides_which_request_runs_next() {
    for (package, first) in [("scheduler-fcfs", "long"), ("scheduler-shortest-first", "short")] {
        let server = one_at_a_time("2s").plugin("scheduler", "10-active", package, "").start();
        let running = hold(&server);
        let long = server.client.begin(&Request::post(COMPLETIONS, &with_stream(100)));
        wait_for(&server, "camshaft_requests_waiting", 1.0);
        let short = server.client.begin(&Request::post(COMPLETIONS, &with_stream(2)));
        wait_for(&server, "camshaft_requests_waiting", 2.0);
        let ended = |name, socket| {
            std::thread::spawn(move || {
                finishes(socket);
                (name, std::time::Instant::now())
            })
        };
        let threads = [ended("long", long), ended("short", short), ended("running", running)];
        let mut order = threads.map(|thread| thread.join().expect("the stream finishes"));
        order.sort_by_key(|(_, at)| *at);
        assert_eq!((order[0].0, order[1].0), ("running", first), "{package}: {order:?}");
        let name = package.trim_start_matches("scheduler-");
        let calls = server.metrics().get("camshaft_policy_calls_total", &[("hook", "scheduler"), ("plugin", "active")]);
        assert!(calls.is_some_and(|calls| calls > 0.0), "{name} was asked");
    }
}
