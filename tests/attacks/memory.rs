//! Memory that requests take.
use camshaft_tests::{Request, Setup};
use serde_json::json;

use crate::frames::{END_HEADERS, END_STREAM, HEADERS, Http2, SETTINGS, block, frame, request};
use crate::{CHAT, COMPLETIONS, Row};

#[test]
// Measures memory, which other tests disturb.
fn long_attack_bodies_of_token_ids_take_a_bounded_multiple_of_their_size() {
    let row = Row::begin("24 bodies of 2 MB of token ids at once");
    let mut server = Setup::new().start();
    let before = server.resident_bytes();
    // The demo model's context is smaller, so each is read to its end and refused.
    let ids = json!({"model": "demo", "prompt": vec![1; 1_000_000]});
    let request = Request::post(COMPLETIONS, &ids);
    let most = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..24).map(|_| scope.spawn(|| server.client.send(&request).status)).collect();
        let mut most = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            most = most.max(server.resident_bytes());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        for client in clients {
            let status = client.join().unwrap();
            assert!([400, 503].contains(&status), "{status}");
        }
        most
    });
    server.assert_runs();
    let grown = most.saturating_sub(before) >> 20;
    row.end(&format!("{grown} MiB at most"));
    assert!(grown < 400, "{grown} MiB");
}

#[test]
fn long_attack_what_heads_of_open_requests_hold_is_not_underestimated() {
    let row = Row::begin("HTTP/2: 102,400 open requests with 90 headers each");
    let mut server = Setup::new().start();
    assert_eq!(server.client.get("/v1/models").status, 200);
    let before = server.resident_bytes();
    let names: Vec<String> = (0..90).map(|number| format!("x-{number}")).collect();
    let headers: Vec<(&str, &str)> =
        names.iter().map(|name| (name.as_str(), "v")).chain([("content-type", "application/json")]).collect();
    let head = request("POST", CHAT, &headers);
    let opened = |stream: u32| frame(HEADERS, END_HEADERS, 2 * stream + 1, &head);
    let requests: Vec<u8> = (0..256).flat_map(opened).collect();
    let (mut held, mut most) = (Vec::new(), before);
    for _ in 0..400 {
        let mut connection = Http2::connect(&server.client);
        // Those that hold the most are cut, so some of them end.
        connection.send(&requests);
        held.push(connection);
    }
    for _ in 0..100 {
        most = most.max(server.resident_bytes());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    server.assert_runs();
    let grown = most.saturating_sub(before) >> 20;
    drop(held);
    server.wait_until_idle();
    row.end(&format!("{grown} MiB at most"));
    // The bound of all heads, what each connection may hold past it, and what the connections hold themselves.
    assert!((32..512).contains(&grown), "{grown} MiB");
}

/// What 600 connections take at most that each send 255 such heads and end each request with 469 trailers. Answers that
/// nobody takes keep the streams.
fn trailers_of(heads: &[u8]) -> u64 {
    let mut server = Setup::new().start();
    assert_eq!(server.client.get("/v1/models").status, 200);
    let before = server.resident_bytes();
    let letters = || ('a'..='z').map(String::from);
    let names: Vec<String> = letters().flat_map(|first| letters().map(move |second| first.clone() + &second)).collect();
    let trailers: Vec<(&str, &str)> =
        names.iter().map(|name| (name.as_str(), "")).filter(|(name, _)| *name != "te").take(469).collect();
    let trailers = block(&trailers);
    let streams = || (0..255).map(|number| 2 * number + 1);
    let no_window = frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]);
    let heads = no_window.into_iter().chain(streams().flat_map(|stream| frame(HEADERS, END_HEADERS, stream, heads)));
    let heads: Vec<u8> = heads.collect();
    let ends: Vec<u8> =
        streams().flat_map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)).collect();
    let mut held: Vec<Http2> = (0..600).map(|_| Http2::connect(&server.client)).collect();
    // Those that hold the most are cut, so some of them end.
    for part in [heads, ends] {
        for connection in &mut held {
            connection.send(&part);
        }
    }
    let mut most = before;
    for _ in 0..150 {
        most = most.max(server.resident_bytes());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    server.assert_runs();
    drop(held);
    server.wait_until_idle();
    most.saturating_sub(before) >> 20
}

#[test]
fn long_attack_trailers_of_requests_that_nobody_reads_are_bounded() {
    let row = Row::begin("HTTP/2: 600 connections with 255 requests each that end with 469 trailers");
    let post = request("POST", CHAT, &[("content-type", "application/json")]);
    let connect = block(&[(":method", "CONNECT"), (":authority", "localhost")]);
    let grown = [post, connect].map(|head| trailers_of(&head));
    row.end(&format!("{grown:?} MiB at most (POST, CONNECT)"));
    assert!(grown.iter().all(|&grown| grown < 512), "{grown:?} MiB");
}
