//! HTTP/2 that is cheap to send and costly to take.
use camshaft_tests::{Server, Setup, api_keys};
use serde_json::json;

use crate::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, Http2, PING, PRIORITY, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, frame, request,
};
use crate::{CHAT, COMPLETIONS, Row};

const JSON: (&str, &str) = ("content-type", "application/json");
/// What a server may grow by while frames without a request flood it.
const FLOOD_BYTES: u64 = 64 << 20;

/// A server with a key for the attacker, and one for the client that must be served meanwhile.
fn serve() -> Server {
    let keys = api_keys(&[("greedy", ""), ("polite", "")]);
    Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &keys).start()
}

fn assert_serves(server: &mut Server) {
    let hello = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    server.client.with_key("polite").ask(CHAT, &hello);
    server.assert_runs();
}

/// Whether the server says good-bye or closes.
fn is_ended(connection: &mut Http2) -> bool {
    while let Some((kind, ..)) = connection.next() {
        if kind == GOAWAY {
            return true;
        }
    }
    connection.is_closed()
}

#[test]
fn requests_that_are_reset_at_once_leave_nothing_behind() {
    let row = Row::begin("HTTP/2: 4000 requests, each reset at once");
    let mut server = serve();
    let body = json!({"model": "demo", "prompt": "Once", "max_tokens": 900, "ignore_eos": true, "stream": true});
    let body = body.to_string();
    let head = request("POST", COMPLETIONS, &[JSON, ("authorization", "Bearer greedy")]);
    let (mut sent, mut connections) = (0, 0);
    while sent < 4000 && connections < 400 {
        let mut connection = Http2::connect(&server.client);
        connections += 1;
        for stream in (0..200).map(|n| 2 * n + 1) {
            let parts = [
                frame(HEADERS, END_HEADERS, stream, &head),
                frame(DATA, END_STREAM, stream, body.as_bytes()),
                frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()),
            ];
            if !connection.send(&parts.concat()) {
                break;
            }
            sent += 1;
        }
        if connections % 5 == 0 {
            assert_serves(&mut server);
        }
    }
    assert!(sent >= 4000, "{sent}");
    server.wait_until_idle();
    assert_serves(&mut server);
    row.end(&format!("{connections} connections; then idle"));
}

#[test]
fn frames_without_a_request_are_bounded_in_what_they_take() {
    let row = Row::begin("HTTP/2: floods of SETTINGS, PING, PRIORITY, WINDOW_UPDATE, RST_STREAM, empty DATA");
    let mut server = serve();
    assert_serves(&mut server);
    let before = server.resident_bytes();
    let open = frame(HEADERS, END_HEADERS, 1, &request("POST", CHAT, &[JSON, ("authorization", "Bearer greedy")]));
    let floods = [
        frame(SETTINGS, 0, 0, &[]),
        frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]),
        frame(PING, 0, 0, b"camshaft"),
        frame(PRIORITY, 0, 3, &[0, 0, 0, 0, 1]),
        frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()),
        frame(WINDOW_UPDATE, 0, 1, &1_u32.to_be_bytes()),
        frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes()),
        frame(DATA, 0, 1, &[]),
    ];
    let mut ended = 0;
    for flood in &floods {
        let mut connection = Http2::connect(&server.client);
        assert!(connection.send(&open));
        let many = flood.repeat(1000);
        let taken = (0..100).take_while(|_| connection.send(&many)).count();
        ended += usize::from(taken < 100);
        assert_serves(&mut server);
        let grown = server.resident_bytes().saturating_sub(before);
        assert!(grown < FLOOD_BYTES, "{grown} bytes for {:?}", &flood[..9]);
    }
    server.wait_until_idle();
    row.end(&format!("{ended} of {} connections were closed, none grew by 64 MiB", floods.len()));
}

/// Frames of nobody's kind, which are ignored.
const UNKNOWN: u8 = 0xfe;
/// What a connection with a body that nobody reads may take: a quarter of what its frames were read with.
const UNREAD_BYTES: u64 = 2 << 20;

#[test]
fn regression_bodies_that_nobody_reads_hold_no_memory_of_frames_between_theirs() {
    let row =
        Row::begin("HTTP/2: refused bodies in small frames with large ones of no kind between them, answers not taken");
    let mut server = serve();
    assert_serves(&mut server);
    let before = server.resident_bytes();
    let window = [&4_u16.to_be_bytes()[..], &0_u32.to_be_bytes()].map(<[u8]>::to_vec).concat();
    let head = request("POST", "/v1/models", &[]);
    let pair = [frame(DATA, 0, 1, &[b'x'; 256]), frame(UNKNOWN, 0, 0, &[0; 16 << 10])].concat();
    let mut connections = Vec::new();
    for _ in 0..8 {
        let mut connection = Http2::connect(&server.client);
        let open = [frame(SETTINGS, 0, 0, &window), frame(HEADERS, END_HEADERS, 1, &head)].concat();
        assert!(connection.send(&open));
        // As many as fit into the window of the stream.
        let taken = (0..1000).take_while(|_| connection.send(&pair)).count();
        assert_eq!(taken, 1000, "the connection goes on");
        connections.push(connection);
    }
    assert_serves(&mut server);
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < UNREAD_BYTES * connections.len() as u64, "{grown} bytes for {} connections", connections.len());
    row.end(&format!("{grown} bytes more for {} connections", connections.len()));
}

#[test]
fn a_head_without_end_is_refused() {
    let row = Row::begin("HTTP/2: heads without end, of empty and of full CONTINUATION frames");
    let mut server = serve();
    let before = server.resident_bytes();
    let name = [&[0, 1, b'x', 126][..], &[b'y'; 126]].concat();
    for part in [Vec::new(), name.clone(), name.repeat(100)] {
        let mut connection = Http2::connect(&server.client);
        connection.send(&frame(HEADERS, 0, 1, &request("GET", "/v1/models", &[])));
        let many = frame(CONTINUATION, 0, 1, &part).repeat(100);
        let most = (64 << 20) / many.len();
        let taken = (0..most.min(10_000)).take_while(|_| connection.send(&many)).count();
        assert!(is_ended(&mut connection), "{taken} times {} bytes were taken", many.len());
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < FLOOD_BYTES, "{grown} bytes");
    assert_serves(&mut server);
    row.end("closed each time");
}

#[test]
fn headers_past_the_bound_are_refused_and_not_dropped() {
    let row = Row::begin("HTTP/2: more than 100 headers, and a second key behind them");
    let mut server = serve();
    let ask = |count: usize, last: &[(&str, &str)]| {
        let mut headers = vec![("authorization", "Bearer polite")];
        headers.extend(std::iter::repeat_n(("x", "y"), count - 1 - last.len()));
        headers.extend(last);
        let mut connection = Http2::connect(&server.client);
        connection.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &request("GET", "/v1/models", &headers)));
        connection.status()
    };
    assert_eq!(ask(100, &[]), Some(200), "at the bound");
    assert_eq!(ask(101, &[]), Some(431), "one past it");
    let second = [("authorization", "Bearer greedy")];
    assert_eq!(ask(150, &second), Some(431));
    assert_eq!(ask(2, &second), Some(401), "two keys are none");
    assert_serves(&mut server);
    row.end("431");
}

#[test]
fn windows_that_break_the_rules_end_the_connection() {
    let row = Row::begin("HTTP/2: windows of nothing, past the largest, and of streams that are not");
    let mut server = serve();
    let largest = 0x7fff_ffff_u32.to_be_bytes();
    let tricks = [
        frame(WINDOW_UPDATE, 0, 0, &[0; 4]),
        frame(WINDOW_UPDATE, 0, 0, &largest).repeat(2),
        frame(WINDOW_UPDATE, 0, 9, &largest),
        frame(SETTINGS, 0, 0, &[0, 4, 0xff, 0xff, 0xff, 0xff]),
        frame(SETTINGS, 0, 0, &[0, 5, 0, 0, 0, 1]),
        frame(DATA, 0, 0, b"to no stream"),
        frame(HEADERS, END_HEADERS, 2, &request("GET", "/healthz", &[])),
        [&[0xff; 3][..], &[0; 6]].concat(),
    ];
    for trick in &tricks {
        let mut connection = Http2::connect(&server.client);
        connection.send(trick);
        assert!(is_ended(&mut connection), "{trick:?}");
    }
    assert_serves(&mut server);
    row.end(&format!("{} connections closed", tricks.len()));
}

#[test]
// Sends half a gigabyte.
fn long_attack_regression_half_sent_bodies_are_bounded_in_memory_and_starve_nobody() {
    let row = Row::begin("HTTP/2: 250 half-sent bodies of 2 MiB");
    let mut server = serve();
    assert_serves(&mut server);
    let before = server.resident_bytes();
    let length = (2 << 20).to_string();
    let head = request("POST", CHAT, &[JSON, ("authorization", "Bearer greedy"), ("content-length", &length)]);
    let (mut held, mut refused) = (Vec::new(), 0);
    for number in 0..250 {
        let mut connection = Http2::connect(&server.client);
        connection.send(&frame(HEADERS, END_HEADERS, 1, &head));
        match connection.send_body(1, (2 << 20) - 4096) {
            Ok(()) => held.push(connection),
            Err(status) => {
                // It does not fit beside those that are held, or one of those stalled while memory is tight.
                assert!(matches!(status, Some(503 | 408)), "{status:?}");
                refused += 1;
            }
        }
        if number % 50 == 49 {
            assert_serves(&mut server);
        }
    }
    let grown = server.resident_bytes().saturating_sub(before) >> 20;
    let kept = held.len();
    assert!(kept > 0, "none was taken");
    drop(held);
    server.wait_until_idle();
    assert_serves(&mut server);
    row.end(&format!("{grown} MiB at most; {kept} held, {refused} refused"));
    // A tenant's half of the budget, and what waits in the connections.
    assert!(grown < 300, "{grown} MiB");
}
