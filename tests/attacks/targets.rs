//! Paths and hosts that are not what they seem.
use std::io::{Read, Write};

use camshaft_tests::{Server, Setup, api_keys, guarded_routes};

use crate::Row;

/// Sends bytes as they are and returns the status of the answer; `None` if the connection closes without one.
fn raw(address: std::net::SocketAddr, request: &str) -> Option<u16> {
    let mut socket = camshaft_tests::Client::new(address).connect();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
}

fn serve() -> Server {
    Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("sk", "")])).start()
}

/// Other spellings of a path, and ways to it through others.
fn spellings(path: &str) -> Vec<String> {
    let slash = path.rfind('/').unwrap();
    let (before, last) = path.split_at(slash);
    vec![
        path.to_owned(),
        format!("/{path}"),
        format!("{path}/"),
        format!("{path}//"),
        format!("{path}%2f"),
        format!("{path}%00"),
        format!("{path}%ff"),
        format!("{path}?/healthz"),
        format!("{path}#/healthz"),
        format!("{path};/healthz"),
        format!("{path}/../healthz"),
        format!("{path}/%2e%2e/%2e%2e/healthz"),
        format!("/healthz/..{path}"),
        format!("/healthz/%2e%2e{path}"),
        format!("/healthz%2f..{path}"),
        format!("/healthz\\..{path}"),
        format!("/.{path}"),
        format!("{before}/.{last}"),
        format!("{before}//{}", &last[1..]),
        format!("{before}%2f{}", &last[1..]),
        format!("{before}%5c{}", &last[1..]),
        path.replacen('/', "/%2e/", 1),
        path.to_uppercase(),
        format!("http://healthz{path}"),
        format!("http://localhost/healthz/..{path}"),
        format!("http://localhost{path}"),
    ]
}

#[test]
fn no_spelling_of_a_path_or_host_passes_the_guard() {
    let row = Row::begin("spellings of every guarded path, for three hosts");
    let mut server = serve();
    // Routes of operators are not on this listener at all.
    let more = ["/admin/config", "/admin/policies", "/.", "/%2e%2e/admin/config"].map(|path| ("GET", path.to_owned()));
    let guarded = guarded_routes();
    let guarded = guarded.iter().map(|(method, path)| (method.as_str(), path.clone())).chain(more);
    let mut tried = 0;
    for (method, path) in guarded {
        for path in spellings(&path) {
            for (method, host) in [(method, "localhost"), ("HEAD", "127.0.0.1:1"), ("OPTIONS", "evil.example")] {
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                );
                let status = raw(server.client.address, &request);
                tried += 1;
                assert!(matches!(status, Some(400..=499)), "{method} {path} for {host}: {status:?}");
            }
        }
    }
    server.assert_runs();
    row.end(&format!("{tried} requests, none let through"));
}

#[test]
fn no_head_is_read_in_two_ways() {
    let row = Row::begin("heads with two hosts, lengths, codings or keys");
    let mut server = serve();
    let post =
        "POST /v1/tokenize HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk\r\ncontent-type: application/json\r\n";
    let get = "GET /v1/models HTTP/1.1\r\nauthorization: Bearer sk\r\nconnection: close\r\n";
    // Were it found in a body, it would be answered.
    let hidden = "GET /v1/models HTTP/1.1\r\nhost: a\r\nauthorization: Bearer sk\r\nconnection: close\r\n\r\n";
    let bad = [
        format!("{get}\r\n"),
        format!("{get}host: a\r\nhost: b\r\n\r\n"),
        format!("{get}host: a\r\nhost: a\r\n\r\n"),
        format!("{get}host: a, b\r\n\r\n"),
        format!("{get}host: a@b\r\n\r\n"),
        format!("{get}host : a\r\n\r\n"),
        format!("{get}host: a\r\n folded\r\n\r\n"),
        format!("{post}content-length: 0\r\ncontent-length: 5\r\n\r\n{hidden}"),
        format!("{post}content-length: 0, 5\r\n\r\n{hidden}"),
        format!("{post}content-length: +0\r\n\r\n{hidden}"),
        format!("{post}content-length: -1\r\n\r\n{hidden}"),
        format!("{post}content-length: 0x0\r\n\r\n{hidden}"),
        format!("{post}content-length: 18446744073709551616\r\n\r\n{hidden}"),
        format!("{post}transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{post}transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{post}transfer-encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{post}transfer-encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("{post}transfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n{hidden}"),
        format!("{post}transfer-encoding: chunked\r\n\r\n-1\r\n{hidden}"),
    ];
    for request in &bad {
        let status = raw(server.client.address, request);
        assert!(matches!(status, Some(400..=499)), "{request:?}: {status:?}");
    }
    let twice = "GET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\nauthorization: Bearer sk\r\nauthorization: Bearer x\r\n\r\n";
    assert_eq!(raw(server.client.address, twice), Some(401));
    assert_eq!(raw(server.client.address, &format!("{get}host: a\r\n\r\n")), Some(200));
    server.assert_runs();
    row.end(&format!("{} refused", bad.len() + 1));
}

#[test]
fn the_admin_listener_answers_no_name_but_this_machines() {
    let row = Row::begin("foreign hosts on the admin listener");
    let server = serve();
    let port = server.admin.address.port();
    let ask = |target: &str, host: &str| {
        let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        raw(server.admin.address, &request)
    };
    // An address names no page that could be made to point here.
    let foreign = ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "a@localhost", "localhost,evil"];
    for name in foreign {
        for host in [name.to_owned(), format!("{name}:{port}")] {
            for path in ["/admin/config", "/admin/policies", "/metrics", "/server/stats"] {
                let status = ask(path, &host);
                assert!(matches!(status, Some(400..=499)), "{path} for {host}: {status:?}");
            }
        }
        let target = format!("http://{name}/admin/config");
        let status = ask(&target, "localhost");
        assert!(matches!(status, Some(400..=499)), "{target}: {status:?}");
    }
    assert_eq!(ask("/admin/config", &format!("127.0.0.1:{port}")), Some(200));
    assert_eq!(ask("/admin/config", &format!("localhost:{port}")), Some(200));
    for path in ["/admin/drain", "/admin/reload", "/admin/policies/auth/x/off"] {
        let page = format!(
            "POST {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\norigin: http://evil.example\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        );
        assert_eq!(raw(server.admin.address, &page), Some(403), "{path} from a page");
    }
    row.end(&format!("{} names and pages of others refused", foreign.len()));
}
