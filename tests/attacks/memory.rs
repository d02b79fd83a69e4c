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

/// What a connection may take that opens as many requests as it may, each with the largest head, and ends each with the largest
/// trailers.
const CONNECTION_BYTES: u64 = 64 << 20;

#[test]
fn what_one_connection_holds_with_all_the_requests_that_it_may_open_is_bounded() {
    let row =
        Row::begin("HTTP/2: a connection with 256 requests, each with 100 headers and 470 trailers, answers not taken");
    let mut server = Setup::new().start();
    assert_eq!(server.client.get("/v1/models").status, 200);
    let before = server.resident_bytes();
    let letters = || ('a'..='z').map(String::from);
    let names: Vec<String> = letters().flat_map(|first| letters().map(move |second| first.clone() + &second)).collect();
    let fields = |count: usize, value| -> Vec<(&str, &str)> {
        names.iter().filter(|name| *name != "te").map(|name| (name.as_str(), value)).take(count).collect()
    };
    let long = "v".repeat(120);
    let head =
        request("POST", CHAT, &[&fields(94, long.as_str())[..], &[("content-type", "application/json")]].concat());
    let trailers = block(&fields(470, ""));
    let mut connection = Http2::connect(&server.client);
    connection.send(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]));
    let streams = || (0..256).map(|number| 2 * number + 1);
    let heads: Vec<u8> = streams().flat_map(|stream| frame(HEADERS, END_HEADERS, stream, &head)).collect();
    let ends: Vec<u8> =
        streams().flat_map(|stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &trailers)).collect();
    assert!(connection.send(&heads) && connection.send(&ends));
    let mut most = before;
    for _ in 0..100 {
        most = most.max(server.resident_bytes());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    server.assert_runs();
    let grown = most.saturating_sub(before);
    drop(connection);
    server.wait_until_idle();
    row.end(&format!("{} MiB at most", grown >> 20));
    assert!(grown < CONNECTION_BYTES, "{grown} bytes");
}
