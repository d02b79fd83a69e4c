//! Beginnings and ends: signals while streams run, clients that leave, readers that stop reading.
use std::net::TcpStream;

use camshaft_tests::{Request, Server, Setup, Stream, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
/// What the demo model's context leaves after the prompt, about.
const LONG: u32 = 900;

fn long(stream: bool) -> Value {
    json!({"model": "demo", "prompt": "Once upon a time", "max_tokens": LONG, "ignore_eos": true, "stream": stream})
}

/// Streams that have begun and have most of their way before them.
fn streams(server: &Server, count: usize) -> Vec<Stream> {
    let mut streams: Vec<Stream> = (0..count).map(|_| server.client.stream(COMPLETIONS, &long(true))).collect();
    for stream in &mut streams {
        assert!(stream.next().is_some(), "the stream has begun");
    }
    streams
}

/// Whether the public listener still takes new work.
fn admits(server: &Server) -> bool {
    // The listener is closed, or whoever came through last is told to go away.
    TcpStream::connect(server.client.address).is_ok()
        && server.client.post(COMPLETIONS, &json!({"model": "demo", "prompt": "a", "max_tokens": 1})).status == 200
}

fn refuses_soon(server: &Server) {
    eventually("new work is refused", || {
        let connected = TcpStream::connect(server.client.address);
        if connected.is_err() { Ok(()) } else { Err("a connection was accepted") }
    });
}

#[test]
fn streams_finish_after_sigterm_and_nothing_new_begins() {
    let mut server = Setup::new().start();
    assert!(admits(&server));
    let streams = streams(&server, 4);
    server.signal(Signal::TERM);
    refuses_soon(&server);
    server.assert_runs();
    for stream in streams {
        let collected = stream.finish();
        assert!(collected.is_good(), "a stream was cut: {:?}", collected.events.last());
        assert_eq!(collected.finish_reason(0), Some("length"));
    }
    assert_eq!(server.wait(), Some(0));
}

#[test]
fn an_idle_server_ends_at_sigterm_and_at_sigint() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut server = Setup::new().start();
        server.signal(signal);
        assert_eq!(server.wait(), Some(0), "{signal:?}");
    }
}

#[test]
fn a_second_sigterm_stops_at_once() {
    // A sampler that spins holds the stream for longer than a drained stream would take.
    let settings = "[policy]\ndeadline = \"10s\"\n[settings]\nbehave = \"spin\"\n";
    let mut server = Setup::new().guest("sampler", "10-hold", settings).set("shutdown.drain", "\"1h\"").start();
    let held = server.client.begin(&Request::post(COMPLETIONS, &long(true)));
    eventually("the stream runs", || {
        let running = server.metrics().get("camshaft_requests_running", &[]);
        if running == Some(1.0) { Ok(()) } else { Err(running) }
    });
    server.signal(Signal::TERM);
    refuses_soon(&server);
    server.assert_runs();
    server.signal(Signal::TERM);
    server.wait();
    drop(held);
}

#[test]
fn streams_that_outlast_the_drain_time_end_with_an_error() {
    let settings = "[policy]\ndeadline = \"5s\"\n[settings]\nbehave = \"spin\"\n";
    let setup = Setup::new().set("shutdown.drain", "\"100ms\"");
    let mut server = setup.start();
    let streams = streams(&server, 2);
    // From here on every further generation holds the worker, and with it the two streams, for seconds.
    server.policies.install("sampler", "10-hold", &camshaft_tests::guest("misbehave-sampler"), settings);
    server.wait_for_policy(("sampler", "hold"), |entry| entry["state"] == "active");
    let held = server.client.begin(&Request::post(COMPLETIONS, &long(true)));
    eventually("the third runs", || {
        let running = server.metrics().get("camshaft_requests_running", &[]);
        if running >= Some(1.0) { Ok(()) } else { Err(running) }
    });
    server.signal(Signal::TERM);
    for stream in streams {
        let collected = stream.finish();
        assert!(!collected.broken, "the body has a proper end");
        let cut = collected.error().is_some_and(|error| error["type"] == "server_error");
        assert!(collected.done != cut, "either done or an error, and never both: {:?}", collected.events.last());
    }
    assert_eq!(server.wait(), Some(0));
    drop(held);
}

#[test]
fn a_client_that_leaves_in_the_middle_frees_what_it_held() {
    let server = Setup::new().start();
    let mut streams = streams(&server, 3);
    streams.truncate(1);
    let gone = eventually("the two are gone", || {
        let gone = server.metrics().count("camshaft_requests_total", &[("status", "499")]);
        if gone == 2.0 { Ok(gone) } else { Err(gone) }
    });
    assert_eq!(gone, 2.0);
    assert!(streams.remove(0).finish().is_good(), "the third is not disturbed");
    server.wait_until_idle();
}

#[test]
fn a_client_that_leaves_before_the_first_token_frees_what_it_held() {
    let server = Setup::new().start();
    let word = "word ".repeat(900);
    let prompt = json!({"model": "demo", "prompt": &word[..2000], "max_tokens": LONG, "ignore_eos": true});
    for round in 0..20 {
        let mut body = prompt.clone();
        body["stream"] = json!(round % 2 == 0);
        body["n"] = json!(1 + round % 3);
        drop(server.client.begin(&Request::post(COMPLETIONS, &body)));
    }
    // Half a request is no request.
    drop(server.client.begin(
        &Request::new("POST", COMPLETIONS).header("content-type", "application/json").header("content-length", "9"),
    ));
    server.wait_until_idle();
    let metrics = server.metrics();
    assert_eq!(metrics.get("camshaft_kv_tokens", &[("state", "free")]), Some(8192.0));
    assert!(server.answer("What is 3 plus 4?").contains('7'));
}

#[test]
fn a_whole_answer_whose_client_leaves_is_given_up() {
    let server = Setup::new().start();
    let socket = server.client.begin(&Request::post(COMPLETIONS, &long(false)));
    eventually("it runs", || {
        let running = server.metrics().get("camshaft_requests_running", &[]);
        if running == Some(1.0) { Ok(()) } else { Err(running) }
    });
    drop(socket);
    server.wait_until_idle();
    let metrics = server.metrics();
    assert_eq!(metrics.get("camshaft_requests_total", &[("endpoint", COMPLETIONS), ("status", "499")]), Some(1.0));
}

#[test]
fn a_reader_that_stops_holds_up_nobody_and_misses_nothing() {
    let server = Setup::new().start();
    // Alternatives make the events large: more than any socket buffers.
    let body = json!({"model": "demo", "prompt": ["Once upon a time", "Long ago,", "One day"], "n": 8, "max_tokens": 300,
        "logprobs": 5, "ignore_eos": true, "stream": true, "temperature": 0});
    let mut slow = server.client.stream(COMPLETIONS, &body);
    assert!(slow.next().is_some());
    for _ in 0..5 {
        assert!(server.answer("What is 3 plus 4?").contains('7'));
    }
    let collected = slow.finish();
    assert!(collected.is_good(), "{:?}", collected.events.last());
    let whole = server.client.ask(COMPLETIONS, &{
        let mut body = body;
        body["stream"] = json!(false);
        body
    });
    for (index, choice) in (0..).zip(whole["choices"].as_array().unwrap()) {
        assert_eq!(collected.text(index), choice["text"].as_str().unwrap(), "choice {index}");
    }
    server.wait_until_idle();
}
