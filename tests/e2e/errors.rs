//! Answers to bad requests: status, type, code, the field at fault, a helpful message.
use std::io::{Read, Write};

use camshaft_tests::{Client, Open, Request, Response, Server, Setup};
use serde_json::{Value, json};

pub(crate) const CHAT: &str = "/v1/chat/completions";
pub(crate) const COMPLETIONS: &str = "/v1/completions";
pub(crate) const INVALID: &str = "invalid_request_error";

/// What the headers say of the same request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// Nothing: clients do not repeat such a status unasked.
    Unsaid,
    /// It would fail again.
    Never,
    /// It may succeed after some seconds.
    Later,
}

/// A request that must be refused, and the expected error.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    /// Whose request it is; empty: it has none.
    pub(crate) key: &'static str,
    pub(crate) request: Request,
    pub(crate) status: u16,
    pub(crate) kind: &'static str,
    pub(crate) code: Option<&'static str>,
    pub(crate) param: Option<&'static str>,
    pub(crate) again: Again,
    /// Must appear in the message.
    pub(crate) words: &'static [&'static str],
}

/// A request at fault that needs no key.
pub(crate) fn case(name: &'static str, request: Request, status: u16) -> Case {
    Case { name, key: "", request, status, kind: INVALID, code: None, param: None, again: Again::Unsaid, words: &[] }
}

pub(crate) fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A chat with these additional fields.
pub(crate) fn chat(more: Value) -> Request {
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
    Request::post(CHAT, &with(body, more))
}

pub(crate) fn typed(content_type: &str, body: impl Into<Vec<u8>>) -> Request {
    Request::new("POST", CHAT).header("content-type", content_type).body(body)
}

fn text(body: &str) -> Request {
    typed("application/json", body)
}

/// Every error has all four fields, of the right types, and an id.
pub(crate) fn error_of(response: &Response) -> Value {
    assert!(response.header("x-request-id").is_some_and(|id| !id.is_empty()), "{response:?}");
    assert!(response.header("content-type").is_some_and(|kind| kind.starts_with("application/json")), "{response:?}");
    let body = response.json();
    let error = body["error"].as_object().unwrap_or_else(|| panic!("no error object: {body}"));
    let keys: Vec<&str> = error.keys().map(String::as_str).collect();
    assert!(["message", "type", "param", "code"].iter().all(|key| keys.contains(key)), "four fields: {body}");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}");
    assert!(error["type"].is_string(), "{body}");
    for nullable in ["param", "code"] {
        assert!(error[nullable].is_string() || error[nullable].is_null(), "{body}");
    }
    body["error"].clone()
}

/// Asserts what every error has, and these.
pub(crate) fn expect(response: &Response, status: u16, (kind, code): (&str, Option<&str>), again: Again) -> Value {
    assert_eq!(response.status, status, "{}", response.text());
    let error = error_of(response);
    assert_eq!((error["type"].as_str(), error["code"].as_str()), (Some(kind), code), "{error}");
    let after = response.header("retry-after").map(|seconds| seconds.parse::<u32>().expect("whole seconds"));
    let should = response.header("x-should-retry");
    match again {
        Again::Unsaid => assert_eq!((after, should), (None, None), "{error}"),
        Again::Never => assert_eq!((after, should), (None, Some("false")), "{error}"),
        Again::Later => {
            assert!(after.is_some_and(|seconds| (1..=120).contains(&seconds)), "{after:?}: {error}");
            assert_eq!(should, None, "{error}");
        }
    }
    let asks_for_a_key = response.header("www-authenticate").is_some_and(|scheme| scheme.starts_with("Bearer"));
    assert_eq!(asks_for_a_key, status == 401, "{error}");
    error
}

/// Sends the case's request and asserts its error.
pub(crate) fn check(client: &Client, case: &Case) -> Response {
    let response = match case.key {
        "" => client.send(&case.request),
        key => client.with_key(key).send(&case.request),
    };
    assert_eq!(response.status, case.status, "{}: {}", case.name, response.text());
    let error = expect(&response, case.status, (case.kind, case.code), case.again);
    assert_eq!(error["param"].as_str(), case.param, "{}: {error}", case.name);
    for word in case.words {
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains(word)),
            "{}: {word:?} in {error}",
            case.name
        );
    }
    response
}

fn bodies() -> Vec<Case> {
    let json_error = |name, request| Case { code: Some("invalid_json"), ..case(name, request, 400) };
    vec![
        Case { words: &["JSON"], ..json_error("no JSON", text("Hello")) },
        json_error("an empty body", text("")),
        json_error("half a body", text("{\"model\": \"demo\", \"messages\": [")),
        json_error("two bodies", text("{} {}")),
        json_error("a list", text("[1, 2]")),
        json_error("a string", text("\"model\"")),
        json_error("not a number", text("{\"model\": \"demo\", \"temperature\": NaN}")),
        json_error("a number past all bounds", text("{\"model\": \"demo\", \"temperature\": 1e999}")),
        json_error("half a surrogate pair", text("{\"model\": \"\\ud800\"}")),
        json_error("not UTF-8", typed("application/json", b"{\"model\": \"\xff\"}")),
        json_error("nested without end", text(&"[".repeat(100_000))),
        json_error("an object nested without end", text(&format!("{}1{}", "{\"a\":".repeat(5000), "}".repeat(5000)))),
    ]
}

fn routes() -> Vec<Case> {
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hi"}]}).to_string();
    let unknown = |name, request| Case { code: Some("unknown_url"), ..case(name, request, 404) };
    let method = |name, request| Case { code: Some("method_not_allowed"), ..case(name, request, 405) };
    let media = |name, request| Case { code: Some("unsupported_media_type"), ..case(name, request, 415) };
    vec![
        Case { words: &["/v1/nope"], ..unknown("an unknown path", Request::get("/v1/nope")) },
        unknown("a path one too long", Request::post("/v1/chat/completions/x", &json!({}))),
        Case { words: &["GET"], ..method("the wrong method", Request::get(CHAT)) },
        method("another wrong method", Request::new("DELETE", "/v1/models")),
        media("a form", typed("application/x-www-form-urlencoded", body.as_bytes())),
        media("plain text", typed("text/plain", body.as_bytes())),
        media("no content type", Request::new("POST", CHAT).body(body.as_bytes())),
        media("a compressed body", text(&body).header("content-encoding", "gzip")),
    ]
}

fn fields() -> Vec<Case> {
    let unknown =
        |name, request| Case { code: Some("model_not_found"), param: Some("model"), ..case(name, request, 404) };
    let at = |name, param, more: Value| Case { param: Some(param), ..case(name, chat(more), 400) };
    let message = |value: Value| json!({"messages": [{"role": "user", "content": "Hi"}, value]});
    vec![
        Case { words: &["nope"], ..unknown("an unknown model", chat(json!({"model": "nope"}))) },
        unknown("an unknown model of completions", Request::post(COMPLETIONS, &json!({"model": "x", "prompt": "a"}))),
        unknown("an unknown model of tokenize", Request::post("/v1/tokenize", &json!({"model": "x", "text": "a"}))),
        unknown("an unknown model by id", Request::get("/v1/models/nope")),
        at("a model that is a number", "model", json!({"model": 3})),
        at("no messages", "messages", json!({"messages": null})),
        at("empty messages", "messages", json!({"messages": []})),
        at("messages that are text", "messages", json!({"messages": "Hi"})),
        at("a message that is text", "messages[1]", message(json!("Hi"))),
        Case {
            words: &["wizard"],
            ..at("an unknown role", "messages[1].role", message(json!({"role": "wizard", "content": "Hi"})))
        },
        at("no role", "messages[1].role", message(json!({"content": "Hi"}))),
        at("no content", "messages[1].content", message(json!({"role": "user"}))),
        at("content that is a number", "messages[1].content", message(json!({"role": "user", "content": 5}))),
        at(
            "an image",
            "messages[1].content[0].type",
            message(json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]})),
        ),
        at("stream that is text", "stream", json!({"stream": "yes"})),
        at("usage of a whole answer", "stream_options", json!({"stream_options": {"include_usage": true}})),
        at("a tool", "tools[0].function", json!({"tools": [{"type": "function"}]})),
        at("a response format", "response_format.json_schema", json!({"response_format": {"type": "json_schema"}})),
        at("alternatives without log-probabilities", "top_logprobs", json!({"top_logprobs": 2})),
        at("stop that is a number", "stop", json!({"stop": 3})),
        at("a stop string that is a number", "stop[1]", json!({"stop": ["a", 3]})),
        at("an empty stop string", "stop", json!({"stop": ""})),
        at("a seed that is text", "seed", json!({"seed": "abc"})),
        at("a bias that is a list", "logit_bias", json!({"logit_bias": [1]})),
        at("a bias on a word", "logit_bias", json!({"logit_bias": {"cat": 1}})),
        at("a bias that is text", "logit_bias.7", json!({"logit_bias": {"7": "much"}})),
        Case { words: &["nope"], ..at("an unknown sampler", "samplers[0]", json!({"samplers": ["nope"]})) },
        Case { param: Some("prompt"), ..case("no prompt", Request::post(COMPLETIONS, &json!({"model": "demo"})), 400) },
        Case {
            param: Some("prompt"),
            ..case("an empty list of prompts", Request::post(COMPLETIONS, &json!({"model": "demo", "prompt": []})), 400)
        },
        Case {
            param: Some("prompt"),
            ..case(
                "a prompt that is an object",
                Request::post(COMPLETIONS, &json!({"model": "demo", "prompt": {}})),
                400,
            )
        },
        Case {
            param: Some("prompt[1]"),
            ..case(
                "a token that is none",
                Request::post(COMPLETIONS, &json!({"model": "demo", "prompt": [1, -1]})),
                400,
            )
        },
        Case { param: Some("text"), ..case("no text", Request::post("/v1/tokenize", &json!({"model": "demo"})), 400) },
        Case {
            param: Some("tokens"),
            ..case("no tokens", Request::post("/v1/detokenize", &json!({"model": "demo"})), 400)
        },
    ]
}

#[test]
fn refuses_every_bad_request_with_the_field_and_the_reason_and_keeps_serving() {
    let server = Setup::new().start();
    let stalled = stall(&server);
    for case in bodies().iter().chain(&routes()).chain(&fields()) {
        check(&server.client, case);
    }
    // The client that never sent the rest of its body is still waiting.
    let response = Open::read(stalled).expect("an answer").response();
    assert_eq!(response.status, 408, "{}", response.text());
    let error = error_of(&response);
    assert_eq!((&error["type"], &error["code"]), (&json!(INVALID), &json!("timeout")));
    assert_eq!(response.header("retry-after"), Some("1"), "clients repeat a 408 unasked");

    assert!(server.answer("What is 3 plus 4?").contains('7'));
    server.wait_until_idle();
    assert_eq!(server.metrics().count("camshaft_requests_total", &[("status", "500")]), 0.0);
}

/// Sends a head and the start of a body, then stops.
fn stall(server: &Server) -> std::net::TcpStream {
    let request = Request::new("POST", CHAT).header("content-type", "application/json").header("content-length", "500");
    let mut socket = server.client.begin(&request);
    socket.write_all(b"{\"model\": \"demo\", ").expect("the connection is open");
    socket
}

#[test]
fn a_body_may_have_as_many_bytes_as_the_limit_and_not_one_more() {
    const LIMIT: usize = 64 << 10;
    let server = Setup::new().set("limits.body", "\"64KiB\"").start();
    let body = |bytes: usize| {
        let body =
            json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hi"}]}).to_string();
        format!("{body}{}", " ".repeat(bytes - body.len()))
    };
    let chunked = |body: &str| {
        let framed = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        Request::new("POST", CHAT)
            .header("content-type", "application/json")
            .header("transfer-encoding", "chunked")
            .raw_body(framed)
    };
    for request in [text(&body(LIMIT)), chunked(&body(LIMIT))] {
        let response = server.client.send(&request);
        assert_eq!(response.status, 200, "at the limit: {}", response.text());
    }
    for request in [text(&body(LIMIT + 1)), chunked(&body(LIMIT + 1)), text(&body(8 * LIMIT))] {
        let response = server.client.send(&request);
        assert_eq!(response.status, 413, "past the limit: {}", response.text());
        let error = error_of(&response);
        assert_eq!(error["code"], "request_too_large");
        assert!(error["message"].as_str().unwrap().contains("65536"), "names the bound: {error}");
    }
    // A declared length above the bound is refused without waiting for the body.
    let lie =
        Request::new("POST", CHAT).header("content-type", "application/json").header("content-length", "99999999999");
    assert_eq!(server.client.send(&lie).status, 413);
}

#[test]
fn the_default_limit_of_a_body_is_two_mebibytes() {
    let server = Setup::new().start();
    let start = "{\"model\": \"demo\", \"text\": \"Hi\"}";
    let body = |bytes: usize| format!("{start}{}", " ".repeat(bytes - start.len()));
    let send = |bytes| {
        let request = Request::new("POST", "/v1/tokenize").header("content-type", "application/json").body(body(bytes));
        server.client.send(&request).status
    };
    assert_eq!((send(2 << 20), send((2 << 20) + 1)), (200, 413));
}

#[test]
fn heads_have_at_most_100_headers_and_64_kib() {
    let server = Setup::new().start();
    let request =
        |count: usize| (0..count).fold(Request::get("/healthz"), |request, i| request.header(&format!("x-{i}"), "1"));
    // The client itself adds two headers.
    assert_eq!(server.client.send(&request(98)).status, 200);
    assert_eq!(server.client.send(&request(99)).status, 431);
    let long = |bytes: usize| {
        let line = format!("GET /healthz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\nx-long: ", server.client.address);
        let rest = bytes - line.len() - "\r\n\r\n".len();
        server.client.send(&Request::get("/healthz").header("x-long", &"x".repeat(rest))).status
    };
    assert_eq!((long(64 << 10), long((64 << 10) + 1), long(1 << 20)), (200, 431, 431), "bytes of a head");
    // Behind another request, hyper has read up to as much as it reads of a head.
    let behind = |target: &str, long: &str| {
        let mut socket = server.client.connect();
        let line = |target| format!("GET {target} HTTP/1.1\r\nhost: {}\r\n", server.client.address);
        let heads = format!("{}\r\n{}connection: close\r\nx-long: {long}\r\n\r\n", line("/healthz"), line(target));
        // The server may close before it has read everything.
        let _ = socket.write_all(heads.as_bytes());
        let mut answers = Vec::new();
        let _ = socket.read_to_end(&mut answers);
        String::from_utf8_lossy(&answers).into_owned()
    };
    // Path and query have a bound of their own there.
    let target = |bytes: usize| format!("/healthz?{}", "x".repeat(bytes - "/healthz?".len()));
    let fits = behind(&target(65_534), "");
    assert_eq!(fits.matches("HTTP/1.1 200").count(), 2, "{fits}");
    for (target, long, status) in [("/healthz", 128 << 10, 431), (&target(65_535), 0, 414)] {
        let answers = behind(target, &"x".repeat(long));
        let (first, second) = answers.split_once(&format!("HTTP/1.1 {status} ")).unwrap_or_else(|| panic!("{answers}"));
        assert!(first.starts_with("HTTP/1.1 200"), "{first}");
        assert!(second.contains("x-request-id: req_") && second.contains("\"head_too_large\""), "{second}");
    }
}

#[test]
fn every_response_has_an_id_and_repeats_an_acceptable_one() {
    let server = Setup::new().start();
    let with = |request: Request, id: &str| {
        let open = server.client.open(&request.header("x-request-id", id));
        let (status, got) = (open.status, open.header("x-request-id").expect("an id").to_owned());
        open.response();
        (status, got)
    };
    let mut seen = std::collections::BTreeSet::new();
    for (request, expected) in [
        (Request::get("/healthz"), 200),
        (Request::get("/metrics"), 200),
        (Request::get("/nope"), 404),
        (Request::get(CHAT), 405),
        (typed("text/plain", b"{}"), 415),
        (text("{"), 400),
        (chat(json!({})), 200),
        (chat(json!({"stream": true})), 200),
    ] {
        assert_eq!(with(request.clone(), "trace-1.a_B"), (expected, "trace-1.a_B".to_owned()));
        for insane in ["", "a b", "a\"b", "<script>", "é", &"x".repeat(2000)] {
            let (status, id) = with(request.clone(), insane);
            assert_eq!(status, expected);
            assert!(id != insane && !id.is_empty() && seen.insert(id), "{insane:?} came back, or an id came twice");
        }
        let id = server.client.send(&request).header("x-request-id").expect("an id").to_owned();
        assert!(seen.insert(id), "an id came twice");
    }
    let (_, longest) = with(Request::get("/healthz"), &"x".repeat(128));
    assert_eq!(longest, "x".repeat(128));
}

#[test]
fn a_client_cannot_forge_a_log_line() {
    let server = Setup::new().start();
    let forged = "x\", \"level\": \"FORGED";
    let response = server.client.send(&chat(json!({"model": format!("{forged}\n{{\"a\": 1}}")})));
    assert_eq!(response.status, 404);
    server.client.get("/%0aFORGED");
    server.client.get("/metrics");
    let log = server.settled_log();
    for line in log.lines() {
        let entry: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("not a JSON line ({error}): {line}"));
        assert_ne!(entry["level"], "FORGED");
    }
}
