//! Every status with which requests fail: its type, code and headers, and all members of its error, in streams, too.
use std::io::Write;
use std::net::TcpStream;

use camshaft_tests::{Open, Request, Response, Server, Setup, api_keys, eventually};
use serde_json::{Value, json};

use crate::errors::{Again, CHAT, COMPLETIONS, Case, INVALID, case, chat, check, expect, typed, with};

const LIMITED: &str = "rate_limit_error";
const FAILED: &str = "server_error";
/// Of a body, where a test sets it.
const BODY_BYTES: usize = 64 << 10;

fn row(status: u16, kind: &'static str, code: &'static str, request: Request) -> Case {
    Case { key: "sk-any", kind, code: Some(code), ..case(code, request, status) }
}

fn malformed() -> Vec<Case> {
    let of_field = |param, more| Case { key: "sk-any", param: Some(param), ..case(param, chat(more), 400) };
    let long = Request::post(COMPLETIONS, &json!({"model": "demo", "prompt": vec![5; 5000]}));
    vec![
        row(400, INVALID, "invalid_json", typed("application/json", "{")),
        of_field("messages", json!({"messages": "Hi"})),
        of_field("temperature", json!({"temperature": 3})),
        Case { param: Some("prompt"), ..row(400, INVALID, "context_length_exceeded", long) },
        // The validator allows two.
        Case { param: Some("n"), ..row(400, INVALID, "policy_refused", chat(json!({"n": 3}))) },
        Case { param: Some("model"), ..row(404, INVALID, "model_not_found", chat(json!({"model": "nope"}))) },
        row(404, INVALID, "unknown_url", Request::get("/v1/nope")),
        row(405, INVALID, "method_not_allowed", Request::get(CHAT)),
        row(413, INVALID, "request_too_large", typed("application/json", vec![b' '; BODY_BYTES + 1])),
        row(415, INVALID, "unsupported_media_type", typed("text/plain", "{}")),
    ]
}

fn not_allowed() -> Vec<Case> {
    let denied = |key| Case { key, ..row(401, "authentication_error", "invalid_api_key", chat(json!({}))) };
    let forbidden = |code, request| row(403, "permission_error", code, request);
    vec![
        denied(""),
        denied("sk-wrong"),
        Case { key: "sk-none", param: Some("model"), ..forbidden("model_not_allowed", chat(json!({}))) },
        forbidden("operators_only", Request::get("/metrics")),
        Case { key: "sk-once", again: Again::Later, ..row(429, LIMITED, "rate_limit_exceeded", chat(json!({}))) },
        Case { key: "sk-few", again: Again::Never, ..row(429, LIMITED, "insufficient_quota", chat(json!({}))) },
    ]
}

#[test]
fn a_request_at_fault_is_told_its_status_type_code_field_and_whether_to_repeat_it() {
    let keys = [
        ("sk-any", ""),
        ("sk-none", "allowed-models = [\"other\"]"),
        ("sk-once", "requests-per-minute = 1"),
        ("sk-few", "tokens-per-minute = 2"),
    ];
    // A model that nobody can serve.
    let bad = "[[model]]\nid = \"bad\"\npath = \"/nowhere/bad.gguf\"\nload = \"on-demand\"\n";
    let server = Setup::new()
        .config(&format!("[limits]\nbody = \"64KiB\"\n[[model]]\nid = \"demo\"\nthreads = 1\n{bad}"))
        .plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&keys))
        .plugin("validator", "10-limits", "validator-limits", "[settings]\nmax-n = 2\n")
        .start();
    let once = server.client.with_key("sk-once").send(&chat(json!({})));
    assert_eq!(once.status, 200, "it has one request a minute");
    let down = Case { again: Again::Later, ..row(503, FAILED, "worker_lost", chat(json!({"model": "bad"}))) };
    for row in malformed().into_iter().chain(not_allowed()).chain([down]) {
        let response = check(&server.client, &row);
        assert!(row.status != 405 || response.header("allow") == Some("POST"), "{response:?}");
    }
    heads_that_cannot_be_read_are_told_so(&server);
}

/// Over HTTP/1 no router sees them.
fn heads_that_cannot_be_read_are_told_so(server: &Server) {
    let many = (0..120).fold(Request::get("/healthz"), |request, at| request.header(&format!("x-{at}"), "1"));
    let large = Request::get("/healthz").header("x-large", &"x".repeat(70 << 10));
    let path = |start: &str| Request::get(&format!("{start}{}", "x".repeat(70 << 10)));
    for request in [many, large, path("/"), path("/healthz?")] {
        expect(&server.client.send(&request), 431, (INVALID, Some("head_too_large")), Again::Unsaid);
    }
    let mut socket = server.client.connect();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\nno header\r\n\r\n").expect("the connection is open");
    let response = Open::read(socket).expect("an answer").response();
    expect(&response, 400, (INVALID, Some("invalid_head")), Again::Unsaid);
}

fn wait_for(server: &Server, gauge: &str) {
    eventually(&format!("{gauge} is 1"), || {
        let now = server.metrics().get(gauge, &[]);
        if now == Some(1.0) { Ok(()) } else { Err(now) }
    });
}

#[test]
fn requests_to_a_busy_or_broken_model_are_told_so_and_one_whose_client_leaves_is_counted() {
    // One sampler holds whatever names it, another one fails.
    let server = Setup::new()
        .config(
            "[queue]\nhigh-watermark = 1\nlow-watermark = 0\n[[model]]\nid = \"demo\"\nsequences = 1\nthreads = 1\n",
        )
        .guest("sampler", "10-hold", "[policy]\ndeadline = \"10s\"\n[settings]\nbehave = \"spin\"\n")
        .guest("sampler", "20-bad", "[policy]\ndeadline = \"5s\"\non-fault = \"deny\"\n[settings]\nbehave = \"trap\"\n")
        .start();
    let body = |sampler: &str, seconds: u32| {
        let prompt = json!({"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 4, "samplers": [sampler]});
        with(prompt, json!({"timeout": seconds}))
    };
    let broken = server.client.post(COMPLETIONS, &body("bad", 60));
    expect(&broken, 500, (FAILED, Some("server_error")), Again::Never);
    an_error_is_the_last_frame_of_a_stream_that_has_begun(&server);
    server.wait_until_idle();

    let running = server.client.begin(&Request::post(COMPLETIONS, &body("hold", 60)));
    wait_for(&server, "camshaft_requests_running");
    let waiting = server.client.begin(&Request::post(COMPLETIONS, &body("hold", 4)));
    wait_for(&server, "camshaft_requests_waiting");
    let excess = server.client.post(COMPLETIONS, &body("hold", 60));
    expect(&excess, 429, (LIMITED, Some("queue_full")), Again::Later);
    let late = Open::read(waiting).expect("an answer").response();
    expect(&late, 504, (FAILED, Some("deadline_exceeded")), Again::Later);

    // Nobody is told of 499: it is counted and logged.
    drop(running);
    eventually("the client is missed", || {
        let missed = server.metrics().count("camshaft_requests_total", &[("endpoint", COMPLETIONS), ("status", "499")]);
        if missed == 1.0 { Ok(()) } else { Err(missed) }
    });
    eventually("the client is missed in the log", || {
        let log = server.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let missed = lines.filter(|line| line["status"] == 499 && line["path"] == COMPLETIONS).count();
        if missed == 1 { Ok(()) } else { Err(log) }
    });
}

fn an_error_is_the_last_frame_of_a_stream_that_has_begun(server: &Server) {
    // A prompt of more than one step, so that the stream begins before the sampler is called.
    let content = "word ".repeat(400);
    let messages = json!([{"role": "user", "content": content}]);
    let body = json!({"model": "demo", "stream": true, "samplers": ["bad"], "messages": messages});
    let streamed = server.client.stream(CHAT, &body).finish();
    assert!(!streamed.done && !streamed.broken, "no [DONE], and a proper end: {:?}", streamed.events.last());
    let events: Vec<&Value> = streamed.values().collect();
    let (last, before) = events.split_last().expect("an event");
    assert!(!before.is_empty() && before.iter().all(|event| event.get("error").is_none()), "{events:?}");
    let error = last["error"].as_object().unwrap_or_else(|| panic!("no error: {last}"));
    let members: Vec<&str> = error.keys().map(String::as_str).collect();
    assert!(["message", "type", "param", "code"].iter().all(|member| members.contains(member)), "{last}");
    assert!(error["message"].as_str().is_some_and(|text| !text.is_empty()), "{last}");
    assert_eq!((&error["type"], &error["code"]), (&json!(FAILED), &json!("server_error")));
    assert!(error["param"].is_null(), "{last}");
}

/// Whether something can be read.
fn is_answered(socket: &TcpStream) -> bool {
    socket.set_nonblocking(true).expect("a socket takes options");
    let answered = matches!(socket.peek(&mut [0]), Ok(1..));
    socket.set_nonblocking(false).expect("a socket takes options");
    answered
}

#[test]
fn bodies_past_the_memory_for_requests_are_refused_as_overload() {
    // The first tenant may hold half of it, the next one a quarter, and so on: the bodies of 16 requests, of 8 and of 4.
    let config = "[limits]\nbody = \"64KiB\"\nbodies = \"2MiB\"\n[[model]]\nid = \"demo\"\nthreads = 1\n";
    let keys = [("sk-a", ""), ("sk-b", ""), ("sk-c", "")];
    let server = Setup::new().config(config).plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&keys)).start();
    let begun = |key: &str| {
        Request::new("POST", CHAT)
            .header("authorization", &format!("Bearer {key}"))
            .header("content-type", "application/json")
            .header("content-length", &BODY_BYTES.to_string())
            .raw_body(vec![b' '; BODY_BYTES - 4096])
    };
    let all = [("sk-a", 24), ("sk-b", 12), ("sk-c", 8)];
    let mut silent: Vec<TcpStream> =
        all.iter().flat_map(|(key, count)| (0..*count).map(|_| server.client.begin(&begun(key)))).collect();
    let mut answers: Vec<Response> = Vec::new();
    eventually("one is refused", || {
        let (answered, rest): (Vec<_>, Vec<_>) = silent.drain(..).partition(is_answered);
        silent = rest;
        answers.extend(answered.into_iter().map(|socket| Open::read(socket).expect("an answer").response()));
        let statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
        if statuses.contains(&503) { Ok(()) } else { Err(statuses) }
    });
    for answer in &answers {
        match answer.status {
            // One that waited for its rest while memory was tight, on a machine that is slow.
            408 => expect(answer, 408, (INVALID, Some("timeout")), Again::Later),
            _ => expect(answer, 503, (FAILED, Some("overloaded")), Again::Later),
        };
    }
    drop(silent);
    eventually("the server is ready again", || match server.client.get("/readyz").status {
        200 => Ok(()),
        other => Err(other),
    });
}

/// Begins a body of 2 MiB that lacks its end.
fn begin_body(server: &Server, key: &str) -> TcpStream {
    const BYTES: usize = (2 << 20) - (64 << 10);
    let text = json!({"model": "demo", "text": "Hi"}).to_string();
    let begun = format!("{BYTES:x}\r\n{text}{}\r\n", " ".repeat(BYTES - text.len()));
    let request = Request::new("POST", "/v1/tokenize")
        .header("content-type", "application/json")
        .header("transfer-encoding", "chunked")
        .raw_body(begun);
    server.client.with_key(key).begin(&request)
}

/// What `/readyz` answers while a byte more of each body arrives: a silent one would be cut where memory is tight, one that
/// brought this much is not within a minute. One that was cut, because this process had to wait, is begun again.
fn readiness(server: &Server, bodies: &mut [(&str, TcpStream)]) -> Response {
    for (key, socket) in bodies {
        if is_answered(socket) || socket.write_all(b"1\r\n \r\n").is_err() {
            *socket = begin_body(server, key);
        }
    }
    server.client.get("/readyz")
}

#[test]
fn the_server_is_not_ready_while_bodies_hold_over_three_quarters_of_the_memory_for_requests() {
    // The bodies of 32 requests. A tenant may hold as much as all leave free, so nine tenants have room for three each, in
    // whatever order they come, and five are left.
    const KEYS: [&str; 10] = ["sk-a", "sk-b", "sk-c", "sk-d", "sk-e", "sk-f", "sk-g", "sk-h", "sk-i", "sk-other"];
    const EACH: usize = 3;
    let config = "[limits]\nbody = \"2MiB\"\nbodies = \"64MiB\"\n[[model]]\nid = \"demo\"\nthreads = 1\n";
    let keys = api_keys(&KEYS.map(|key| (key, "")));
    let server = Setup::new().config(config).plugin("auth", "10-api-keys", "auth-api-keys", &keys).start();
    let mut bodies: Vec<(&str, TcpStream)> =
        KEYS[..9].iter().flat_map(|key| (0..EACH).map(|_| (*key, begin_body(&server, key)))).collect();
    let pressed = eventually("the server is not ready", || match readiness(&server, &mut bodies) {
        pressed if pressed.status == 503 => Ok(pressed),
        other => Err(other),
    });
    expect(&pressed, 503, (FAILED, Some("overloaded")), Again::Later);
    assert_eq!(server.client.get("/healthz").status, 200, "it lives");
    let other = server.client.with_key("sk-other");
    other.ask("/v1/tokenize", &json!({"model": "demo", "text": "whoever has room is served"}));

    // Seven tenants hold 21 of 32.
    bodies.truncate(7 * EACH);
    eventually("the server is ready while others' bodies arrive", || match readiness(&server, &mut bodies) {
        ready if ready.status == 200 => Ok(()),
        other => Err(other),
    });
    // One that was held is still served.
    let (_, mut socket) = bodies.pop().expect("21 are there");
    socket.write_all(b"0\r\n\r\n").expect("the connection is open");
    let answer = Open::read(socket).expect("an answer").response();
    assert_eq!(answer.status, 200, "{}", answer.text());
    drop(bodies);
    server.wait_until_idle();
    assert_eq!(server.client.get("/readyz").status, 200);
}
