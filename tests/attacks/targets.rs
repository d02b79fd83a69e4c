//! Paths and hosts that are not what they seem.
use std::io::{Read, Write};

use camshaft_tests::{Setup, api_keys};

use crate::Row;

/// Sends bytes as they are and returns the status of the answer; `None` if the connection closes without one.
fn raw(address: std::net::SocketAddr, request: &str) -> Option<u16> {
    let mut socket = camshaft_tests::Client::new(address).connect();
    socket.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).split(' ').nth(1)?.parse().ok()
}

#[test]
fn no_spelling_of_a_path_or_host_passes_the_guard() {
    let row = Row::begin("spellings of guarded paths, hosts and credentials");
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("sk", "")])).start();
    let paths = [
        "/v1/models",
        "/v1//models",
        "//v1/models",
        "/V1/MODELS",
        "/v1/models/",
        "/v1/models/..",
        "/v1/%6dodels",
        "/healthz/../v1/models",
        "/healthz%2f..%2fv1/models",
        "/healthz;/v1/models",
        "/v1/models?healthz",
        "/v1/models%00",
        "http://healthz/v1/models",
        "/admin/config",
        "/healthz/../admin/config",
        "/metrics",
        "/server/stats",
        "/v1/models#/healthz",
        "*",
        "/.",
        "/%2e%2e/admin/config",
        "/v1/models/demo",
    ];
    let mut tried = 0;
    for path in paths {
        for method in ["GET", "HEAD", "POST", "OPTIONS", "get"] {
            for host in ["localhost", "127.0.0.1:1", "evil.example"] {
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
                );
                let status = raw(server.client.address, &request);
                tried += 1;
                assert!(!matches!(status, Some(200..=399 | 500..)), "{method} {path} for {host}: {status:?}");
            }
        }
    }
    row.end(&format!("{tried} requests, none let through"));
}
