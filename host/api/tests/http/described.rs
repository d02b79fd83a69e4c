//! What the server says of itself: `/openapi.json` against what it does and against docs/api.md, and fields that it does not know.
use std::collections::{BTreeMap, BTreeSet};

use camshaft_api::{Access, ROUTES};
use camshaft_core::message::{FinishReason, Start};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Map, Value, json};

use crate::description::{Answered, check, description, resolved};
use crate::fixture::{Server, named};
use crate::pool::Step;

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COUNT_TOKENS: &str = "/v1/messages/count_tokens";
const GENERATE: &str = "/v1/generate";

/// A request that is served by the model `demo`.
fn request_of(path: &str) -> Value {
    let messages = json!([{"role": "user", "content": "hi"}]);
    match path {
        COMPLETIONS | GENERATE => json!({"model": "demo", "prompt": "ab"}),
        RESPONSES => json!({"model": "demo", "input": "hi"}),
        MESSAGES => json!({"model": "demo", "messages": messages, "max_tokens": 9}),
        _ => json!({"model": "demo", "messages": messages}),
    }
}

/// The fields of an endpoint's requests.
fn fields<'a>(api: &'a Value, path: &str) -> &'a Map<String, Value> {
    let schema = &api["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"];
    resolved(api, schema)["properties"].as_object().unwrap()
}

/// Every reference below a value.
fn references(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(map) => map.iter().for_each(|(name, below)| match below {
            Value::String(target) if name == "$ref" => visit(target),
            below => references(below, visit),
        }),
        Value::Array(list) => list.iter().for_each(|below| references(below, visit)),
        _ => {}
    }
}

#[tokio::test]
async fn every_reference_leads_somewhere_in_the_document() {
    let server = Server::new();
    let api = description(&server).await;
    assert_eq!(api["openapi"], "3.1.0");
    let mut count = 0;
    references(api, &mut |target| {
        count += 1;
        assert!(api.pointer(target.strip_prefix('#').unwrap()).is_some(), "{target}");
    });
    assert!(count > 100, "{count}");
}

#[tokio::test]
async fn every_public_route_is_described_and_no_other() {
    let server = Server::new();
    let api = description(&server).await;
    let paths = api["paths"].as_object().unwrap();
    let mut count = 0;
    for route in ROUTES {
        let (path, method) = (route.shown().replace("{*id}", "{id}"), route.method.as_str().to_lowercase());
        let operation = paths.get(&path).and_then(|path| path.get(&method));
        assert_eq!(operation.is_some(), route.access != Access::Operators, "{route:?}");
        count += usize::from(operation.is_some());
    }
    let described: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
    assert_eq!(described, count);
}

#[tokio::test]
async fn errors_of_messages_and_of_inference_are_described_in_their_own_shapes() {
    let server = Server::new();
    let api = description(&server).await;
    for (path, described, method) in [
        ("/v1/messages", "/v1/messages", "post"),
        ("/v2/models/none", "/v2/models/{id}", "get"),
        ("/v1/models/none", "/v1/models/{id}", "get"),
    ] {
        let reply = server.get(path).await;
        let (answer, status) = (reply.json(), reply.status.as_u16());
        check(api, (described, method), Answered::Error(status), &answer);
        let response = resolved(api, &api["paths"][described][method]["responses"][status.to_string()]);
        let schema = resolved(api, &response["content"]["application/json"]["schema"]);
        let members: BTreeSet<&String> = schema["properties"].as_object().expect(path).keys().collect();
        assert_eq!(members, answer.as_object().expect(path).keys().collect(), "{path}");
    }
}

#[tokio::test]
async fn the_page_shows_the_description_and_loads_nothing_from_elsewhere() {
    let server = Server::new();
    let reply = server.get("/docs").await;
    assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(reply.header("content-security-policy").unwrap().starts_with("default-src 'none';"));
    assert!(reply.text.contains("fetch(\"openapi.json\")"));
    for foreign in ["http://", "https://", "//cdn", "@import", "src="] {
        assert!(!reply.text.contains(foreign), "{foreign}");
    }
}

/// A value that no field of this type takes.
fn of_another_type(schema: &Value) -> Value {
    let text = schema.to_string();
    let takes = |name: &str| text.contains(&format!("\"{name}\""));
    [json!({"k": 1}), json!(true), json!("text")]
        .into_iter()
        .find(|value| match value {
            Value::Object(_) => !takes("object") && !takes("$ref"),
            Value::Bool(_) => !takes("boolean"),
            _ => true,
        })
        .unwrap()
}

#[tokio::test]
async fn a_field_is_read_as_its_type_says_refused_ignored_or_logged() {
    let server = Server::new();
    let api = description(&server).await;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for path in [CHAT, COMPLETIONS] {
        for (name, schema) in fields(api, path) {
            let support = schema["x-support"].as_str().unwrap_or("served");
            *seen.entry(support.to_owned()).or_default() += 1;
            check_field(&server, path, (name, schema)).await;
        }
    }
    assert!(seen["served"] > 80 && seen["refused"] > 6 && seen["ignored"] > 6 && seen["logged"] == 4, "{seen:?}");
}

#[tokio::test]
async fn a_field_of_other_apis_is_read_as_its_type_says_refused_ignored_or_logged() {
    let server = Server::new();
    let api = description(&server).await;
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for path in [RESPONSES, MESSAGES, GENERATE] {
        for (name, schema) in fields(api, path) {
            let support = schema["x-support"].as_str().unwrap_or("served");
            *seen.entry(support.to_owned()).or_default() += 1;
            check_field(&server, path, (name, schema)).await;
        }
    }
    assert!(seen["served"] > 120 && seen["refused"] > 35, "{seen:?}");
}

/// Checks that a field of a request is what its type says.
async fn check_field(server: &Server, path: &str, (name, schema): (&String, &Value)) {
    let ask = async |value: Value| {
        let mut body = request_of(path);
        body[name] = value;
        server.post(path, body).await
    };
    let (path_is_anthropics, support) = (path == MESSAGES, schema["x-support"].as_str().unwrap_or("served"));
    // Anthropic's errors name the field in their text alone.
    let refused = async |value: Value| {
        let reply = ask(value.clone()).await;
        assert_eq!(reply.status, 400, "{path} {name} {value}: {}", reply.text);
        let error = &reply.json()["error"];
        match path_is_anthropics {
            true => error["message"].as_str().unwrap().to_owned(),
            false => error["param"].as_str().unwrap_or_default().to_owned(),
        }
    };
    match support {
        // The answer of a response repeats it.
        "logged" if path == RESPONSES => assert_eq!(ask(json!("text")).await.status, 200, "{path} {name}"),
        "ignored" | "logged" => {
            for junk in [json!({"k": [1]}), json!("text"), json!(7), json!(true)] {
                let reply = ask(junk.clone()).await;
                assert_eq!(reply.status, 200, "{path} {name} {junk}: {}", reply.text);
            }
        }
        "refused" => {
            for asked in [json!({"k": 1}), json!([1]), json!("text"), json!(true)] {
                let named = refused(asked).await;
                assert!(named.split([' ', '.', '[']).next() == Some(name), "{path} {name}: {named}");
            }
            assert_eq!(ask(Value::Null).await.status, 200, "{path} {name}");
        }
        _ => {
            let wrong = of_another_type(schema);
            let named = refused(wrong.clone()).await;
            assert!(named.split([' ', '.', '[']).next() == Some(name), "{path} {name} {wrong}: {named}");
        }
    }
}

#[tokio::test]
async fn a_bound_that_the_description_names_is_a_bound() {
    let server = Server::new();
    let api = description(&server).await;
    let mut count = 0;
    for (name, schema) in fields(api, CHAT) {
        let fraction = schema["type"].to_string().contains("number");
        let past =
            |bound: f64, step: f64| if fraction { json!(bound + step / 128.0) } else { json!((bound + step) as i64) };
        let bounds = [(&schema["minimum"], -1.0), (&schema["maximum"], 1.0)];
        for (bound, step) in bounds.into_iter().filter_map(|(bound, step)| Some((bound.as_f64()?, step))) {
            count += 1;
            // Beside what makes it a fault of its own, if anything: its bounds are looked at first.
            let (shape, message) = server.chat(json!({ name: past(bound, step) })).await.error(400);
            assert_eq!(shape, format!("invalid_request_error - {name}"), "{message}");
        }
    }
    assert!(count > 25, "{count}");
}

#[tokio::test]
async fn unknown_fields_are_ignored_and_counted_by_name() {
    let server = Server::new();
    let count = async |field: &str| server.metric(&format!("camshaft_unknown_fields_total{{field=\"{field}\"}}")).await;
    assert_eq!(count("other").await, 0.0, "the series is there from the start");
    for _ in 0..2 {
        assert_eq!(
            server.chat(json!({"max_token": 5, "store": true, "n": 1, "x\n\"y": [1], "absent": null})).await.status,
            200
        );
    }
    assert_eq!(server.complete(json!({"max_token": 5, "messages": []})).await.status, 200);
    server.post("/v1/tokenize", json!({"model": "demo", "text": "a", "txt": 1})).await;
    server.post("/v1/detokenize", json!({"model": "demo", "tokens": [1], "tok": 1})).await;
    for (path, own) in [(RESPONSES, "inputs"), (MESSAGES, "message"), (GENERATE, "promt"), (COUNT_TOKENS, "sytem")] {
        let mut body = request_of(path);
        // The chat and the completion read the first two.
        for name in ["seed", "top_k", own] {
            body[name] = json!(1);
        }
        let reply = server.post(path, body).await;
        assert_eq!(reply.status, 200, "{path}: {}", reply.text);
        assert_eq!(count(own).await, 1.0, "{path} {own}");
    }
    let chat = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}], "varibles": {}});
    assert_eq!(server.post("/v1/chat/template", chat).await.status, 200);
    // Of these it knows only that they were misspelt: the model does not rank.
    server.post("/v1/rerank", json!({"model": "demo", "query": "q", "documents": ["a"], "topn": 1})).await;
    server.post("/v1/score", json!({"model": "demo", "text_1": "q", "text_2": "a", "text_3": "b"})).await;
    for own in ["varibles", "topn", "text_3"] {
        assert_eq!(count(own).await, 1.0, "{own}");
    }
    for (field, times) in [("max_token", 3.0), ("x__y", 2.0), ("messages", 1.0), ("txt", 1.0), ("tok", 1.0)] {
        assert_eq!(count(field).await, times, "{field}");
    }
    for known in
        ["store", "n", "absent", "seed", "top_k", "input", "max_completion_tokens", "prompt", "tokens", "system"]
    {
        assert_eq!(count(known).await, 0.0, "{known}");
    }
    // Of one body only so many are looked at.
    let many: Map<String, Value> = (0..1000).map(|n| (format!("f{n:04}"), json!(1))).collect();
    server.chat(Value::Object(many)).await;
    let text = server.admin("/metrics").await.text;
    assert_eq!(text.lines().filter(|line| line.starts_with("camshaft_unknown_fields_total{field=\"f")).count(), 16);
}

#[tokio::test]
async fn models_say_what_they_are_and_what_may_be_asked_of_them() {
    let server = Server::new();
    let show = async |id: &str| {
        let reply = server.get(&format!("/v1/models/{id}")).await;
        let model = reply.json();
        check(description(&server).await, ("/v1/models/{id}", "get"), Answered::Whole, &model);
        model
    };
    let demo = show("demo").await;
    assert_eq!(
        (&demo["context_tokens"], &demo["parameters"], &demo["quantization"]),
        (&json!(200), &json!(3), &json!("Q4_0"))
    );
    assert_eq!(
        demo["capabilities"],
        json!(["chat", "completions", "tools", "structured_outputs", "reasoning", "logprobs", "adapters", "sessions"])
    );
    assert_eq!(
        show("org/secret").await["capabilities"],
        json!(["chat", "completions", "tools", "structured_outputs", "reasoning", "logprobs", "infill", "sessions"])
    );
    let list = server.get("/v1/models").await.json();
    check(description(&server).await, ("/v1/models", "get"), Answered::Whole, &list);
}

/// The rows of a table below a heading of docs/api.md: the cells of each.
fn table(heading: &str) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string("../../docs/api.md").unwrap();
    let (_, below) = text.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading}"));
    let rows = below.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).skip(2);
    let inner = |line: &str| line.trim().strip_prefix('|').and_then(|line| line.strip_suffix('|')).unwrap().to_owned();
    let cells = |line: &str| inner(line).split('|').map(|cell| cell.trim().to_owned()).collect();
    rows.map(cells).collect()
}

/// What stands in backquotes.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[tokio::test]
async fn the_manual_says_of_each_field_of_openais_what_the_types_say() {
    let server = Server::new();
    let api = description(&server).await;
    let sections =
        [("#### Chat completions", CHAT), ("#### Plain completions", COMPLETIONS), ("#### Vectors", "/v1/embeddings")];
    for (heading, path) in sections {
        let said: BTreeMap<String, String> = table(heading)
            .iter()
            .flat_map(|row| quoted(&row[0]).into_iter().map(|name| (name, row[1].clone())))
            .collect();
        let is = |(name, schema): (&String, &Value)| {
            let own = schema["x-own"] == true;
            (!own).then(|| (name.clone(), schema["x-support"].as_str().unwrap_or("served").to_owned()))
        };
        let typed: BTreeMap<String, String> = fields(api, path).iter().filter_map(is).collect();
        assert_eq!(said, typed, "{heading}");
    }
}

#[tokio::test]
async fn the_manual_names_every_field() {
    let server = Server::new();
    let api = description(&server).await;
    let text = std::fs::read_to_string("../../docs/api.md").unwrap();
    let others = ["/v1/embeddings", "/v1/tokenize", "/v1/detokenize", "/v1/session/close", "/v1/rerank", "/v1/score"];
    for path in [CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT_TOKENS, GENERATE].into_iter().chain(others) {
        for name in fields(api, path).keys() {
            assert!(text.contains(&format!("`{name}`")) || text.contains(&format!("`{name}.")), "{path} {name}");
        }
    }
}

#[tokio::test]
async fn the_manuals_table_of_errors_is_the_descriptions() {
    let server = Server::new();
    let api = description(&server).await;
    let (mut said, mut status) = (BTreeSet::new(), String::new());
    for row in table("## Errors") {
        if !row[0].is_empty() {
            status.clone_from(&row[0]);
        }
        // A policy's own codes are its own.
        let Ok(number) = status.parse::<u64>() else { continue };
        let codes = quoted(&row[2]).into_iter().filter(|code| code.len() > 3);
        said.extend(codes.map(|code| (number, code)));
    }
    let of = |error: &Value| Some((error["status"].as_u64()?, error["code"].as_str()?.to_owned()));
    let described: BTreeSet<(u64, String)> = api["x-errors"].as_array().unwrap().iter().filter_map(of).collect();
    assert_eq!(said, described);
}

/// What a choice of a generated answer does.
fn script() -> impl Strategy<Value = Vec<Step>> {
    let texts = prop::sample::select(vec!["", "a", "some text", "\u{e4}\u{1f600}", "\"\\\n", "}]"]);
    let part = prop_oneof![
        texts.clone().prop_map(Step::Text),
        texts.clone().prop_map(Step::Scored),
        (texts, prop::sample::select(vec![-0.1f32, -3.25, f32::NEG_INFINITY, 0.0]))
            .prop_map(|(text, logprob)| Step::Likely(text, logprob)),
    ];
    let reason = prop::sample::select(vec![
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Filtered,
        FinishReason::Expired,
    ]);
    (0u32..5, prop::collection::vec(part, 0..5), reason, 0u32..9).prop_map(|(cached, parts, reason, tokens)| {
        let mut steps = vec![Step::Started(cached)];
        steps.extend(parts);
        steps.push(Step::Finished(reason, tokens));
        steps
    })
}

/// What a client asks for, which the shape of the answer depends on: a path and a body.
fn asked() -> impl Strategy<Value = (&'static str, Value)> {
    let path = prop::sample::select(vec![CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE]);
    let flags = (path, any::<bool>(), any::<bool>(), any::<bool>(), 1u32..4, prop::option::of(0u32..3));
    flags.prop_map(|(path, stream, usage, echo, n, logprobs)| {
        let mut body = request_of(path);
        body["stream"] = json!(stream);
        if [CHAT, COMPLETIONS].contains(&path) {
            (body["n"], body["max_tokens"]) = (json!(n), json!(9));
            if stream && usage {
                body["stream_options"] = json!({"include_usage": true});
            }
        }
        if usage {
            body["session_id"] = json!("s");
        }
        match (path, logprobs) {
            (CHAT, Some(top)) => (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(top)),
            (COMPLETIONS | GENERATE, logprobs) => (body["logprobs"], body["echo"]) = (json!(logprobs), json!(echo)),
            (RESPONSES, Some(top)) => {
                body["include"] = json!(["message.output_text.logprobs"]);
                (body["top_logprobs"], body["metadata"], body["temperature"]) =
                    (json!(top), json!({"a": "b"}), json!(0.5));
            }
            _ => {}
        }
        (path, body)
    })
}

#[test]
fn every_answer_is_what_the_description_says() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut runner = TestRunner::new(Config { cases: 256, failure_persistence: None, ..Config::default() });
    let run = runner.run(&(asked(), script()), |((path, body), steps)| {
        // The fixture compares each answer with the description.
        let reply = runtime.block_on(Server::scripted(move |_: &Start| steps.clone()).post(path, body));
        prop_assert_eq!(reply.status.as_u16(), 200, "{}", reply.text);
        Ok(())
    });
    run.unwrap();
}

/// The answers of other APIs that clients' libraries are tested with: tool calls, thinking, failures.
#[tokio::test]
async fn every_golden_answer_is_what_the_description_says() {
    let (server, mut count) = (Server::new(), 0);
    let api = description(&server).await;
    for entry in std::fs::read_dir("tests/golden").unwrap() {
        let path = entry.unwrap().path();
        let (name, text) = (path.file_name().unwrap().to_str().unwrap(), std::fs::read_to_string(&path).unwrap());
        let operation = if name.starts_with("responses") { (RESPONSES, "post") } else { (MESSAGES, "post") };
        let (answered, answers): (_, Vec<Value>) = match name.ends_with(".json") {
            true => (Answered::Whole, vec![serde_json::from_str(&text).unwrap()]),
            false if name.starts_with("generate") => continue,
            false => (Answered::Event, named(&text).into_iter().map(|(_, event)| event).collect()),
        };
        count += answers.len();
        answers.iter().for_each(|answer| check(api, operation, answered, answer));
    }
    assert!(count > 100, "{count}");
}

#[tokio::test]
async fn the_messages_api_is_described_with_its_own_errors() {
    let server = Server::new();
    let api = description(&server).await;
    for (path, shared, own) in
        [(MESSAGES, "529", "messages-529"), (COUNT_TOKENS, "400", "messages-400"), (RESPONSES, "400", "400")]
    {
        let target = &api["paths"][path]["post"]["responses"][shared]["$ref"];
        assert_eq!(*target, json!(format!("#/components/responses/{own}")), "{path}");
    }
    let error = &api["components"]["responses"]["messages-400"]["content"]["application/json"]["schema"];
    assert!(resolved(api, error)["properties"]["request_id"].is_object());
    assert!(api["components"]["responses"]["529"].is_null());
}
