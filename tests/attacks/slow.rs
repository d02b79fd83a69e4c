//! Connections that say nothing, too little, or take nothing, beside a client that must be served.
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use camshaft_tests::{Request, Server, Setup, api_keys, eventually};
use serde_json::json;

use crate::{CHAT, Row};

/// Beginnings that make no request, in plain text and in TLS.
const BEGINNINGS: [&[u8]; 6] = [
    b"",
    b"G",
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-",
    b"PRI * HTTP/2.0",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01",
];

fn assert_serves(server: &mut Server) {
    let hello = json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]});
    server.client.with_key("polite").ask(CHAT, &hello);
    server.assert_runs();
}

/// Whether the server has closed each of the connections.
fn assert_closed(sockets: Vec<TcpStream>) {
    for mut socket in sockets {
        let end = std::io::copy(&mut socket, &mut std::io::sink());
        let kept = end.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
        assert!(!kept, "{socket:?} is open");
    }
}

/// A server that asks for keys, where so many connections may be open.
fn serve(connections: usize) -> Server {
    let limits = format!("[limits]\nconnections = {connections}\nheader-timeout = \"5s\"\n");
    Setup::new()
        .plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("polite", "")]))
        .config(&format!("{limits}[[model]]\nid = \"demo\"\nthreads = 1\n"))
        .start()
}

#[test]
fn a_caller_with_a_key_is_served_beside_500_silent_sockets() {
    let row = Row::begin("500 silent connections, where 1024 and where 40 may be open");
    for connections in [1024, 40] {
        let mut server = serve(connections);
        let mut sockets = Vec::new();
        for number in 0..500 {
            let mut socket = server.client.connect();
            // One that was closed for the others is as good.
            let _ = socket.write_all(BEGINNINGS[number % BEGINNINGS.len()]);
            sockets.push(socket);
            if number % 50 == 49 {
                assert_serves(&mut server);
            }
        }
        assert_eq!(server.admin.get("/healthz").status, 200);
        assert_closed(sockets);
        assert_serves(&mut server);
    }
    row.end("22 requests served; all were closed");
}

/// Opens connections that stay silent, some of them after a request.
fn flood(server: &Server, count: usize) -> Vec<TcpStream> {
    let connect = |number: usize| {
        let mut socket = server.client.connect();
        if number.is_multiple_of(2) {
            let _ = socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        }
        socket
    };
    (0..count).map(connect).collect()
}

fn assert_both_answer(server: &mut Server) {
    for _ in 0..3 {
        assert_eq!(server.admin.get("/healthz").status, 200);
        assert_serves(server);
    }
}

/// Bounds that no silent connection reaches while a test waits.
const PATIENT: &str =
    "[limits]\nheader-timeout = \"10m\"\nidle-timeout = \"1h\"\n[[model]]\nid = \"demo\"\nthreads = 1\n";

#[test]
fn regression_silent_connections_leave_files_to_those_who_ask() {
    let row = Row::begin("200 silent connections, where 64 files may be open");
    let mut server = Setup::new().config(PATIENT).open_files(64).start();
    let sockets = flood(&server, 200);
    assert_both_answer(&mut server);
    let log = server.settled_log();
    assert!(log.contains("limits.connections = 1024, but this process may have 64 files open"), "{log}");
    drop(sockets);
    row.end("6 requests served on both listeners");
}

#[test]
fn regression_silent_connections_make_room_where_no_file_is_free() {
    let row = Row::begin("100 silent connections, where 8 more files may be open than at the start");
    let mut server = Setup::new().config(PATIENT).start();
    server.bound_open_files(8);
    let sockets = flood(&server, 100);
    assert_both_answer(&mut server);
    let log = server.settled_log();
    assert!(log.contains("no file is free for a new connection"), "{log}");
    drop(sockets);
    row.end("6 requests served on both listeners");
}

#[test]
fn bodies_that_drip_delay_nobody() {
    let row = Row::begin("30 bodies that come byte by byte, where 40 connections may be open");
    let mut server = Setup::new().config("[limits]\nconnections = 40\n[[model]]\nid = \"demo\"\nthreads = 1\n").start();
    let stop = AtomicBool::new(false);
    let head = Request::new("POST", CHAT).header("content-type", "application/json").header("content-length", "100000");
    let mut sockets: Vec<_> = (0..30).map(|_| server.client.begin(&head)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Bounded, should the server fail.
            for _ in 0..2000 {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                sockets.iter_mut().for_each(|socket| drop(socket.write_all(b" ")));
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        for _ in 0..20 {
            assert_serves(&mut server);
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(sockets);
    server.wait_until_idle();
    row.end("20 requests served");
}

#[test]
fn readers_that_take_nothing_keep_no_place() {
    let row = Row::begin("48 choices that nobody reads, where 32 sequences may run");
    // So many at once that each takes far longer than the second after which a slow reader's are paused.
    let config = "[[model]]\nid = \"demo\"\nthreads = 1\nsequences = 32\n";
    let mut server = Setup::new().config(config).start();
    // Alternatives make the events larger than the connection's buffers.
    let story = json!({"model": "demo", "messages": [{"role": "user", "content": "Tell me a story."}], "n": 16,
        "max_tokens": 1000, "logprobs": true, "top_logprobs": 20, "ignore_eos": true, "stream": true});
    let sockets: Vec<_> = (0..3).map(|_| server.client.begin_unread(&Request::post(CHAT, &story))).collect();
    let paused = eventually("more were paused than may run", || {
        let pauses = server.metrics().count("camshaft_pauses_total", &[]);
        if pauses >= 48.0 { Ok(pauses) } else { Err(pauses) }
    });
    for _ in 0..5 {
        assert_serves(&mut server);
    }
    drop(sockets);
    server.wait_until_idle();
    row.end(&format!("5 requests served; {paused} were paused before"));
}
