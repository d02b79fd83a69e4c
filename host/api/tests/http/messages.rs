//! Anthropic's Messages API over HTTP: answers, streams, errors in its shape.
use camshaft_core::ids::Token;
use camshaft_core::limits::STOP_STRINGS;
use camshaft_core::message::{FinishReason, Start, WorkerError};
use camshaft_core::policy::{AuthOutcome, ValidateOutcome};
use serde_json::{Value, json};

use crate::fixture::{CONTEXT, Reply, Server, merged, named, request};
use crate::policies::{Rules, refusal};
use crate::pool::{Step, hello};

impl Server {
    async fn message(&self, more: Value) -> Reply {
        let body = json!({"model": "demo", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]});
        self.post("/v1/messages", merged(body, more)).await
    }
}

impl Reply {
    /// Checks status and shape of an error of Anthropic's, and gives its type and its message.
    fn anthropic_error(&self, status: u16) -> (String, String) {
        assert_eq!(self.status.as_u16(), status, "{}", self.text);
        assert_eq!(self.header("content-type"), Some("application/json"));
        let body = self.json();
        assert_eq!(body["type"], "error");
        assert_eq!(body["request_id"].as_str(), self.header("x-request-id"));
        assert_eq!(body["request_id"].as_str(), self.header("request-id"));
        assert_eq!(body["error"].as_object().unwrap().len(), 2);
        let text = |name: &str| body["error"][name].as_str().unwrap().to_owned();
        (text("type"), text("message"))
    }
}

#[tokio::test]
async fn a_message_is_answered_by_a_message() {
    let server = Server::new();
    let mut sent = request(
        "POST",
        "/v1/messages?beta=true",
        r#"{"model":"demo","max_tokens":50,"system":"s","messages":[{"role":"user","content":"hi"}],"stop_sequences":["x"]}"#,
    );
    sent.headers_mut().insert("x-api-key", "sk".parse().unwrap());
    sent.headers_mut().insert("anthropic-version", "2023-06-01".parse().unwrap());
    let reply = server.send(sent).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    // Where Anthropic's clients look for it.
    assert_eq!(reply.header("request-id"), reply.header("x-request-id"));
    let mut body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("msg_"));
    body.as_object_mut().unwrap().remove("id");
    let usage =
        json!({"input_tokens": 29, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 5});
    let expected = json!({"type": "message", "role": "assistant", "model": "demo",
        "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn", "stop_sequence": null, "usage": usage});
    assert_eq!(body, expected);
    let start = server.start();
    assert_eq!((start.stop, start.max_tokens), (vec!["x".to_owned()], 50));
}

#[tokio::test]
async fn a_stream_has_its_events_in_order() {
    let server = Server::scripted(|_| {
        let text = [Step::Text("Hel"), Step::Text("lo"), Step::Finished(FinishReason::Length, 5)];
        [vec![Step::Started(2)], text.to_vec()].concat()
    });
    let reply = server.message(json!({"stream": true})).await;
    assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    let events = named(&reply.text);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(names, expected);
    assert!(events.iter().all(|(name, event)| event["type"] == *name));
    assert_eq!(events[0].1["message"]["usage"]["input_tokens"], 21);
    assert_eq!(events[5].1["delta"]["stop_reason"], "max_tokens");
    assert_eq!(
        (&events[5].1["usage"]["input_tokens"], &events[5].1["usage"]["output_tokens"]),
        (&json!(19), &json!(5))
    );
}

#[tokio::test]
async fn errors_have_anthropics_shape_whoever_finds_them() {
    let server = Server::new();
    let (kind, message) = server.message(json!({"max_tokens": 0})).await.anthropic_error(400);
    assert_eq!(kind, "invalid_request_error");
    assert!(message.starts_with("max_tokens ") && message.ends_with(", got 0"), "{message}");
    let many = json!({"stop_sequences": vec!["a"; STOP_STRINGS + 1]});
    let (_, message) = server.message(many).await.anthropic_error(400);
    assert!(message.starts_with("stop_sequences ") && message.contains("17"), "{message}");
    assert_eq!(server.message(json!({"model": "none"})).await.anthropic_error(404).0, "not_found_error");
    let unknown = server.post("/v1/messages/batches", json!({})).await;
    assert_eq!(unknown.anthropic_error(404).0, "not_found_error");
    assert_eq!(server.get("/v1/messages").await.anthropic_error(405).0, "invalid_request_error");
    assert_eq!(server.send(request("POST", "/v1/messages", "{")).await.anthropic_error(400).0, "invalid_request_error");
    let refused = Rules::default().auth(|_| AuthOutcome::Refuse(refusal(401, "invalid_api_key")));
    let reply = Server::with(refused, hello).message(json!({})).await;
    assert_eq!(reply.anthropic_error(401).0, "authentication_error");
    let refused = Rules::default().validator(|_| ValidateOutcome::Refuse(refusal(403, "policy_refused")));
    assert_eq!(Server::with(refused, hello).message(json!({})).await.anthropic_error(403).0, "permission_error");
    let failing = |error: WorkerError| Server::scripted(move |_| vec![Step::Failed(error.clone())]);
    let queue = failing(WorkerError::QueueFull).message(json!({"stream": true})).await;
    assert_eq!((queue.anthropic_error(429).0.as_str(), queue.header("retry-after")), ("rate_limit_error", Some("1")));
    let late = failing(WorkerError::DeadlineExceeded).message(json!({})).await;
    assert_eq!(late.anthropic_error(504).0, "timeout_error");
    let lost = failing(WorkerError::WorkerLost).message(json!({})).await;
    assert_eq!(lost.anthropic_error(503).0, "api_error");
    let busy = failing(WorkerError::SamplersBusy).message(json!({})).await;
    assert_eq!(busy.anthropic_error(529).0, "overloaded_error");
    let internal = failing(WorkerError::Engine("secret".into())).message(json!({})).await;
    assert_eq!(internal.anthropic_error(500), ("api_error".to_owned(), "the engine failed".to_owned()));
}

#[tokio::test]
async fn regression_a_refusal_of_the_translators_names_the_clients_field_once() {
    let check = async |more: Value, expected: &str| {
        let (_, message) = Server::new().message(more).await.anthropic_error(400);
        assert!(message.starts_with(expected), "{message}");
    };
    let path = "messages[0].content is required";
    check(json!({"messages": [{"role": "user"}]}), path).await;
    let stop = "stop is no field of this endpoint: use stop_sequences";
    check(json!({"stop": ["x"]}), stop).await;
    let effort = "output_config.effort must be one of `none`, `minimal`, `low`,";
    check(json!({"output_config": {"effort": "much"}}), effort).await;
    let body = json!({"model": "demo", "messages": [{"role": "user"}]});
    let (_, message) = Server::new().post("/v1/messages/count_tokens", body).await.anthropic_error(400);
    assert_eq!(message, path);
}

#[tokio::test]
async fn regression_errors_have_the_whole_path_in_the_clients_body() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let check = async |more: Value, expected: &str| {
        let (_, message) = Server::new().message(more).await.anthropic_error(400);
        assert!(message.starts_with(expected), "{message}");
    };
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": schema}}});
    check(format, "output_config.format.schema.properties.a.uniqueItems: ").await;
    let tools = json!({"tools": [{"name": "f", "input_schema": {"type": "object"}},
        {"name": "g", "strict": true, "input_schema": schema}]});
    check(tools, "tools[1].input_schema.properties.a.uniqueItems: ").await;
    let described = json!({"tools": [{"name": "f", "input_schema": {"type": "object"}, "description": 3}]});
    check(described, "tools[0].description must be a string").await;
    let stop = json!({"stop_sequences": ["a", 3]});
    check(stop, "stop_sequences[1] must be a string").await;
    // Messages of a chat are counted otherwise: the system's is one, and each result.
    let called = json!({"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "f", "input": {}}]});
    let results = json!({"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": "1"},
        {"type": "tool_result", "tool_use_id": "t2", "content": "2"}]});
    let user = json!({"role": "user", "content": "hi"});
    let talk = json!({"system": "s", "messages": [user, called, results.clone()]});
    check(talk, "messages[2].content[1].tool_use_id must be the id of a call").await;
    let alone = json!({"messages": [results]});
    check(alone.clone(), "messages[0].content[0].tool_use_id: the result of a tool must follow").await;
    let counted = Server::new().post("/v1/messages/count_tokens", merged(json!({"model": "demo"}), alone)).await;
    let (_, message) = counted.anthropic_error(400);
    assert!(message.starts_with("messages[0].content[0].tool_use_id: "), "{message}");
}

#[tokio::test]
async fn a_last_message_of_the_assistants_is_continued() {
    let prompt = |start: &Start| -> String {
        start.prompt.iter().filter(|token| token.0 < 256).map(|Token(byte)| *byte as u8 as char).collect()
    };
    for content in [json!("It is"), json!([{"type": "text", "text": "It"}, {"type": "text", "text": " is"}])] {
        let server = Server::new();
        let begun = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]});
        let reply = server.message(begun).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.json()["content"], json!([{"type": "text", "text": "Hello"}]), "what follows it alone");
        assert_eq!(prompt(&server.start()), "[user]hi[assistant]It is");
    }
    let call =
        json!([{"type": "text", "text": "I look."}, {"type": "tool_use", "id": "t", "name": "look", "input": {}}]);
    for content in [json!(" "), json!([]), call] {
        let begun = json!({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": content}]});
        let (_, message) = Server::new().message(begun).await.anthropic_error(400);
        let expected =
            "messages[1].content must be a text and nothing else, because the answer continues the last message";
        assert_eq!(message, expected);
    }
    let count = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "It"}]});
    assert_eq!(Server::new().post("/v1/messages/count_tokens", count).await.json(), json!({"input_tokens": 23}));
}

#[tokio::test]
async fn a_failure_in_the_stream_is_an_error_event() {
    let server =
        Server::scripted(|_| vec![Step::Started(0), Step::Text("Hel"), Step::Failed(WorkerError::Engine("x".into()))]);
    let reply = server.message(json!({"stream": true})).await;
    let events = named(&reply.text);
    let (name, last) = events.last().unwrap();
    assert_eq!(name, "error");
    let error = json!({"type": "api_error", "message": "the engine failed"});
    assert_eq!(*last, json!({"type": "error", "error": error, "request_id": reply.header("x-request-id")}));
}

#[tokio::test]
async fn counts_the_tokens_of_a_prompt_and_generates_nothing() {
    let server = Server::new();
    let count = |content: &str| {
        let body = json!({"model": "demo", "messages": [{"role": "user", "content": content}]});
        server.post("/v1/messages/count_tokens", body)
    };
    assert_eq!(count("hi").await.json(), json!({"input_tokens": 21}));
    // Also of a prompt that is too long to be answered.
    let most = 4 * CONTEXT as usize;
    assert_eq!(count(&"x".repeat(most - 19)).await.json(), json!({"input_tokens": most}));
    let (kind, message) = count(&"x".repeat(most - 18)).await.anthropic_error(400);
    assert_eq!(kind, "invalid_request_error");
    assert!(message.contains("more than 800"), "{message}");
    assert!(server.pool.starts.lock().unwrap().is_empty());
}
