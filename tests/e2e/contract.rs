//! Every endpoint of both listeners, under each of its names: what it answers, and how it refuses what is not for it.
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::PathBuf;

use camshaft_tests::{
    Client, Open, Request, Response, Server, Setup, Stream, demo_model, eventually, plugin, repository,
};
use serde_json::{Value, json};

use crate::errors::error_of;

const JSON: &str = "application/json";
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// An endpoint, and a request that it serves.
struct Endpoint {
    method: &'static str,
    path: &'static str,
    body: Sent,
    status: u16,
    /// What its answer has; empty: the answer is a list or no JSON.
    members: &'static [&'static str],
}

/// What a request has as its body.
enum Sent {
    Nothing,
    Json(Value),
    Bytes(Vec<u8>),
}

fn get(path: &'static str, members: &'static [&'static str]) -> Endpoint {
    Endpoint { method: "GET", path, body: Sent::Nothing, status: 200, members }
}

fn post(path: &'static str, body: Value, members: &'static [&'static str]) -> Endpoint {
    Endpoint { method: "POST", body: Sent::Json(body), ..get(path, members) }
}

fn delete(path: &'static str, members: &'static [&'static str]) -> Endpoint {
    Endpoint { method: "DELETE", ..get(path, members) }
}

/// One that answers before what it begins has ended.
fn begins(endpoint: Endpoint) -> Endpoint {
    Endpoint { status: 202, members: &["id", "operation", "state"], ..endpoint }
}

impl Endpoint {
    fn request(&self) -> Request {
        match &self.body {
            Sent::Nothing => Request::new(self.method, self.path),
            Sent::Json(body) => Request::post(self.path, body),
            Sent::Bytes(bytes) => Request::new(self.method, self.path).body(bytes.clone()),
        }
    }
}

fn chat() -> Value {
    json!({"model": "demo", "temperature": 0, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]})
}

fn generate() -> Value {
    json!({"model": "demo", "temperature": 0, "max_tokens": 4, "prompt": "1, 2, 3,", "session_id": "numbers"})
}

fn rerank() -> Value {
    json!({"model": "embedder", "query": "rain", "documents": ["sun"]})
}

fn embed() -> Value {
    json!({"model": "embedder", "input": "ab"})
}

fn predict() -> Value {
    json!({"model": "linear", "input": [[1, 2, 3]]})
}

/// All of the public listener.
fn public() -> Vec<Endpoint> {
    const HEALTH: &[&str] = &["status", "uptime_seconds", "models"];
    const GENERATED: &[&str] = &["id", "model", "choices", "usage"];
    const PREDICTED: &[&str] = &["model", "outputs", "output", "inference_ms"];
    let message = json!({"role": "user", "content": "Hi"});
    let infer = json!({"inputs": [{"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]});
    vec![
        get("/", &[]),
        get("/healthz", HEALTH),
        get("/health", HEALTH),
        get("/readyz", &["status"]),
        get("/ready", &["status"]),
        get("/metrics", &[]),
        get("/server/stats", &["state", "models", "policies"]),
        get("/openapi.json", &["openapi", "paths", "x-errors"]),
        get("/docs", &[]),
        get("/v1/models", &["object", "data"]),
        get("/v1/models/demo", &["id", "object", "task", "state"]),
        post("/v1/chat/completions", chat(), GENERATED),
        post("/chat", chat(), GENERATED),
        post("/v1/completions", json!({"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 4}), GENERATED),
        post(
            "/v1/responses",
            json!({"model": "demo", "input": "Hi", "max_output_tokens": 16}),
            &["id", "output", "usage"],
        ),
        post("/v1/messages", json!({"model": "demo", "max_tokens": 4, "messages": [message]}), &["content", "usage"]),
        post("/v1/responses/input_tokens", json!({"model": "demo", "input": "hi"}), &["object", "input_tokens"]),
        post("/v1/messages/count_tokens", json!({"model": "demo", "messages": [message]}), &["input_tokens"]),
        post("/v1/chat/template", json!({"model": "demo", "messages": [message]}), &["prompt", "tokens"]),
        post("/v1/generate", generate(), &["text", "session_id", "usage"]),
        post("/generate", generate(), &["text", "session_id", "usage"]),
        get("/v1/sessions", &["object", "data"]),
        post("/v1/session/close", json!({"model": "demo", "session_id": "numbers"}), &["id", "closed"]),
        post("/v1/tokenize", json!({"model": "demo", "text": "ab"}), &["tokens", "offsets"]),
        post("/v1/detokenize", json!({"model": "demo", "tokens": [5]}), &["text"]),
        post("/v1/embeddings", embed(), &["data", "usage"]),
        post("/embeddings", embed(), &["data", "usage"]),
        post("/v1/rerank", rerank(), &["results"]),
        post("/rerank", rerank(), &["results"]),
        post("/v2/rerank", rerank(), &["results"]),
        post("/v1/score", json!({"model": "embedder", "text_1": "rain", "text_2": "sun"}), &["data"]),
        post("/predict", predict(), PREDICTED),
        post("/v1/models/linear/predict", json!({"input": [[1, 2, 3]]}), PREDICTED),
        get("/model/info", &["name", "inputs", "outputs"]),
        get("/v2", &["name", "version"]),
        get("/v2/health/live", &["live"]),
        get("/v2/health/ready", &["ready"]),
        get("/v2/models/linear", &["name", "inputs", "outputs"]),
        get("/v2/models/linear/ready", &["name", "ready"]),
        post("/v2/models/linear/infer", infer, &["model_name", "outputs"]),
        post("/v2/repository/index", json!({}), &[]),
    ]
}

/// One model of each kind: `demo` generates, `embedder` embeds, `linear` computes tensors.
fn serve() -> Server {
    let linear = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/linear.onnx");
    let embedder = format!("[[model]]\nid = \"embedder\"\npath = {:?}\nembeddings = true\nthreads = 1\n", demo_model());
    let others = format!("{embedder}[[model]]\npath = {linear:?}\n");
    Setup::new().config(&format!("[[model]]\nid = \"demo\"\nthreads = 1\n{others}")).start()
}

#[test]
fn every_public_endpoint_answers_under_each_of_its_names_and_refuses_what_is_not_for_it() {
    let mut server = serve();
    let (client, endpoints) = (&server.client, public());
    for endpoint in &endpoints {
        answers(client, endpoint);
    }
    has_no_other_endpoint(client, &endpoints);
    names_of_one_endpoint_are_answered_alike(client);
    is_generated_whole_in_events_and_in_lines(client);
    for (path, methods) in by_path(&endpoints) {
        refuses_other_methods(client, path, &methods);
    }
    for endpoint in &endpoints {
        match &endpoint.body {
            // The body of a request for the index is not read.
            Sent::Json(body) if endpoint.path != "/v2/repository/index" => {
                refuses_other_bodies(client, endpoint.path, body);
            }
            _ => {}
        }
    }
    server.assert_runs();
}

/// What an endpoint answers has its members, and the id that the client sent.
fn answers(client: &Client, endpoint: &Endpoint) -> Response {
    let Endpoint { method, path, status, members, .. } = endpoint;
    let response = client.send(&endpoint.request().header("x-request-id", "row-1"));
    assert_eq!(response.status, *status, "{method} {path}: {}", response.text());
    assert_eq!(response.header("x-request-id"), Some("row-1"), "{method} {path}");
    assert!(!response.body.is_empty(), "{method} {path}");
    for member in *members {
        let answer = response.json();
        assert!(answer.get(*member).is_some(), "{method} {path}: no {member} in {answer}");
    }
    response
}

/// Whoever adds an endpoint adds it here.
fn has_no_other_endpoint(client: &Client, endpoints: &[Endpoint]) {
    let named = |path: &str| path.replace("/models/demo", "/models/{id}").replace("/models/linear", "/models/{id}");
    let rows: BTreeSet<(String, String)> =
        endpoints.iter().map(|endpoint| (endpoint.method.to_lowercase(), named(endpoint.path))).collect();
    let description = client.get("/openapi.json").json();
    let paths = description["paths"].as_object().expect("it describes paths");
    for (path, operations) in paths {
        for method in operations.as_object().expect("each has operations").keys() {
            assert!(rows.contains(&(method.clone(), path.clone())), "{method} {path} is tested nowhere here");
        }
    }
}

fn names_of_one_endpoint_are_answered_alike(client: &Client) {
    for (names, body, part) in [
        (["/v1/chat/completions", "/chat"], chat(), "/choices/0/message/content"),
        (["/v1/generate", "/generate"], generate(), "/text"),
        (["/v1/embeddings", "/embeddings"], embed(), "/data/0/embedding"),
        (["/predict", "/v1/models/linear/predict"], predict(), "/output"),
    ] {
        let [long, short] = names.map(|path| client.ask(path, &body).pointer(part).cloned());
        assert!(long.is_some() && long == short, "{names:?}: {long:?} and {short:?}");
    }
}

/// `POST /v1/generate` streams server-sent events or lines of JSON, as the client accepts.
fn is_generated_whole_in_events_and_in_lines(client: &Client) {
    let whole = client.ask("/v1/generate", &generate());
    let accepting = |kind: &str| Request::post("/v1/generate", &generate()).header("accept", kind);
    let events = Stream::new(client.open(&accepting("text/event-stream"))).finish();
    assert!(events.is_good(), "{events:?}");
    let events: Vec<Value> = events.values().cloned().collect();
    let lines = client.send(&accepting("application/x-ndjson"));
    assert_eq!((lines.status, lines.header("content-type")), (200, Some("application/x-ndjson")));
    let lines = lines.text().lines().map(|line| serde_json::from_str::<Value>(line).expect("each line is JSON"));
    let lines: Vec<Value> = lines.filter(|line| line["type"] != "comment").collect();
    for parts in [events, lines] {
        let text: String = parts.iter().filter_map(|part| part["text"].as_str()).collect();
        assert_eq!(Value::String(text), whole["text"], "{parts:?}");
        let (first, last) = (&parts[0], &parts[parts.len() - 1]);
        assert_eq!((&first["type"], &first["session_id"]), (&json!("start"), &json!("numbers")));
        assert_eq!((&last["type"], &last["finish_reason"]), (&json!("end"), &whole["finish_reason"]));
    }
}

/// The methods of each path.
fn by_path(endpoints: &[Endpoint]) -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for endpoint in endpoints {
        all.entry(endpoint.path).or_default().insert(endpoint.method);
    }
    all
}

fn refuses_other_methods(client: &Client, path: &str, methods: &BTreeSet<&str>) {
    for method in METHODS.into_iter().filter(|method| !methods.contains(method)) {
        let response = client.send(&Request::new(method, path));
        refused(&response, path, (405, "method_not_allowed"));
        let allowed = response.header("allow").unwrap_or_default();
        let names = |method: &&str| allowed.split(',').any(|one| one.trim() == *method);
        assert!(methods.iter().all(names), "{method} {path}: allowed are {allowed:?}");
    }
}

fn refuses_other_bodies(client: &Client, path: &str, body: &Value) {
    let typed = |kind: &str| Request::new("POST", path).header("content-type", kind);
    let check = |request: Request, expected| refused(&client.send(&request), path, expected);
    check(typed("text/plain").body(body.to_string()), (415, "unsupported_media_type"));
    check(typed(JSON).header("content-length", "99999999999"), (413, "request_too_large"));
    check(typed(JSON).body("{"), (400, "invalid_json"));
    if body.get("model").is_some() {
        let mut unknown = body.clone();
        unknown["model"] = json!("nope");
        check(Request::post(path, &unknown), (404, "model_not_found"));
    }
}

/// Asserts a refusal in the shape of the path's protocol.
fn refused(response: &Response, path: &str, (status, code): (u16, &str)) {
    assert_eq!(response.status, status, "{path}: {}", response.text());
    assert!(response.header("x-request-id").is_some_and(|id| !id.is_empty()), "{path}: {response:?}");
    let body = response.json();
    if path == "/v2" || path.starts_with("/v2/") && path != "/v2/rerank" {
        assert!(body["error"].as_str().is_some_and(|text| !text.is_empty()), "{path}: {body}");
    } else if path.starts_with("/v1/messages") {
        assert!(body["type"] == "error" && body["error"]["message"].is_string(), "{path}: {body}");
    } else {
        let error = error_of(response);
        assert_eq!(
            (&error["type"], &error["code"]),
            (&json!("invalid_request_error"), &json!(code)),
            "{path}: {error}"
        );
    }
}

/// What operators may do, in an order in which all of it can be done.
fn of_operators() -> Vec<Endpoint> {
    const CHECKED: &[&str] = &["hook", "name", "sha256"];
    const POLICY: &[&str] = &["hook", "name", "mode", "state"];
    let other = json!({"id": "other", "path": demo_model(), "threads": 1});
    let gale = repository().join("tests/fixtures/adapters/gale.gguf");
    let adapter = post("/admin/models/other/adapters", json!({"id": "gale", "path": gale}), &["id", "model", "scale"]);
    let component = Sent::Bytes(plugin("validator-limits"));
    let order = |path| post(path, json!({}), POLICY);
    vec![
        get("/admin/policies", &["generation", "policies", "history"]),
        get("/admin/workers", &["models"]),
        get("/admin/config", &["keys"]),
        get("/admin/models", &["models"]),
        begins(post("/admin/models", other, &[])),
        get("/admin/models/other", &["id", "state"]),
        post("/admin/models/other/limits", json!({"max-tenant-sequences": 4}), &["id"]),
        post("/admin/models/other/weight", json!({"weight": 1}), &["id"]),
        Endpoint { status: 201, ..adapter },
        get("/admin/models/other/adapters", &["adapters"]),
        delete("/admin/models/other/adapters/gale", &["id", "deleted"]),
        get("/admin/operations", &["operations"]),
        // The first that was begun.
        get("/admin/operations/op-1", &["id", "operation", "state"]),
        begins(post("/admin/models/other/swap", json!({}), &[])),
        begins(delete("/admin/models/other", &[])),
        Endpoint { body: component, ..post("/admin/policies/check", json!({}), CHECKED) },
        order("/admin/policies/validator/limits/monitor"),
        order("/admin/policies/validator/limits/off"),
        order("/admin/policies/validator/limits/enforce"),
        post("/admin/reload", json!({}), &["changed", "needs_restart"]),
        post("/admin/drain", json!({}), &["state"]),
        post("/admin/resume", json!({}), &["state"]),
    ]
}

#[test]
fn every_order_of_an_operator_is_taken_by_the_admin_listener_under_its_own_name_and_by_no_other() {
    let mut server = Setup::new().plugin("validator", "10-limits", "validator-limits", "").start();
    let endpoints = of_operators();
    no_other_is_open_to_operators(&server, &endpoints);
    for endpoint in &endpoints {
        let response = answers(&server.admin, endpoint);
        if endpoint.status == 202 {
            is_done(&server, &response);
        }
        if let Some(mode) = endpoint.path.strip_prefix("/admin/policies/validator/limits/") {
            assert_eq!(response.json()["mode"], mode);
        }
    }
    assert_eq!(server.client.get("/readyz").status, 200, "it was resumed");
    for Endpoint { method, path, .. } in &endpoints {
        refused(&server.client.send(&Request::new(method, path)), path, (404, "unknown_url"));
        let foreign = named(&server, (*method, *path), "evil.example");
        let error = error_of(&foreign);
        assert_eq!((foreign.status, &error["type"]), (403, &json!("permission_error")), "{method} {path}: {error}");
        assert_eq!(error["code"], "foreign_host", "{method} {path}");
    }
    for (path, methods) in by_path(&endpoints) {
        refuses_other_methods(&server.admin, path, &methods);
    }
    refused(&server.admin.post("/v1/chat/completions", &chat()), "/v1/chat/completions", (404, "unknown_url"));
    server.assert_runs();
}

/// Whoever adds one adds it here: the server names those that it has when it starts.
fn no_other_is_open_to_operators(server: &Server, endpoints: &[Endpoint]) {
    let named = |path: &str| {
        let path = path.replace("/models/other", "/models/{id}").replace("/adapters/gale", "/adapters/{adapter}");
        match path.strip_prefix("/admin/policies/validator/limits/") {
            Some(_) => "/admin/policies/{hook}/{name}/{action}".to_owned(),
            None => path.replace("/op-1", "/{id}"),
        }
    };
    let rows: BTreeSet<String> =
        endpoints.iter().map(|endpoint| format!("{} {}", endpoint.method, named(endpoint.path))).collect();
    let log = server.settled_log();
    let (_, after) = log.split_once("open to operators at ").expect("the log says what is open");
    let (_, list) = after.split_once(": ").expect("the address comes first");
    let (list, _) = list.split_once('"').expect("the message ends");
    let open: BTreeSet<String> = list.split(", ").map(str::to_owned).collect();
    assert_eq!(rows, open, "those that are tested here, and those that there are");
}

/// Waits until what was begun has ended well.
fn is_done(server: &Server, begun: &Response) {
    let location = begun.header("location").expect("where to ask").to_owned();
    let ended = eventually("the operation ends", || {
        let now = server.admin.get(&location).json();
        if now["state"] == "running" { Err(now) } else { Ok(now) }
    });
    assert_eq!(ended["state"], "done", "{ended}");
}

/// The answer to a request that names the admin listener so.
fn named(server: &Server, (method, path): (&str, &str), host: &str) -> Response {
    let mut socket = server.admin.connect();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
    socket.write_all(head.as_bytes()).expect("the connection is open");
    Open::read(socket).expect("an answer").response()
}
