//! The server's own generations, and the prompts of chats without one, over HTTP.
use camshaft_core::ids::Token;
use camshaft_core::message::WorkerError;
use serde_json::{Value, json};

use crate::fixture::{CONTEXT, Reply, Server, request};
use crate::pool::Step;

async fn accepting(server: &Server, accept: &'static str, body: Value) -> Reply {
    let mut sent = request("POST", "/v1/generate", &body.to_string());
    sent.headers_mut().insert("accept", accept.parse().unwrap());
    server.send(sent).await
}

#[tokio::test]
async fn answers_a_prompt_or_tokens_with_a_text_and_its_session() {
    for path in ["/v1/generate", "/generate"] {
        let server = Server::new();
        let body = json!({"model": "demo", "tokens": [97, 98], "session_id": "talk", "top_k": 3, "max_tokens": 9});
        let got = server.post(path, body).await.json();
        assert!(got["id"].as_str().unwrap().starts_with("gen-"));
        assert_eq!(
            (&got["text"], &got["finish_reason"], &got["session_id"]),
            (&json!("Hello"), &json!("stop"), &json!("talk"))
        );
        let usage = json!({"prompt_tokens": 2, "cached_tokens": 2, "completion_tokens": 5, "total_tokens": 7});
        assert_eq!((&got["usage"], &got["object"]), (&usage, &json!("generation")));
        let start = server.start();
        assert_eq!((start.prompt.to_vec(), start.max_tokens, start.params.top_k), (vec![Token(97), Token(98)], 9, 3));
        assert_eq!(start.session, Some("talk".into()));
    }
    let server = Server::new();
    let got = server.post("/v1/generate", json!({"model": "demo", "prompt": "ab"})).await.json();
    assert_eq!((&got["session_id"], &got["usage"]["prompt_tokens"]), (&Value::Null, &json!(3)));
}

#[tokio::test]
async fn streams_events_or_lines_as_the_client_accepts() {
    let server = Server::new();
    let body = || json!({"model": "demo", "prompt": "ab", "session_id": "talk"});
    let events = accepting(&server, "text/event-stream", body()).await;
    assert_eq!(events.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let (frames, done) = events.events();
    let lines = accepting(&server, "application/x-ndjson", body()).await;
    assert_eq!(lines.header("content-type"), Some("application/x-ndjson"));
    let lines: Vec<Value> = lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for got in [&frames, &lines] {
        let kinds: Vec<&str> = got.iter().map(|event| event["type"].as_str().unwrap()).collect();
        assert_eq!(kinds, ["start", "text", "text", "end"]);
        assert_eq!((&got[0]["session_id"], &got[0]["prompt_tokens"]), (&json!("talk"), &json!(3)));
        assert_eq!((&got[1]["text"], &got[2]["text"]), (&json!("Hel"), &json!("lo")));
        assert_eq!((&got[3]["finish_reason"], &got[3]["usage"]["completion_tokens"]), (&json!("stop"), &json!(5)));
    }
    assert!(done);
    let whole =
        accepting(&server, "application/x-ndjson", json!({"model": "demo", "prompt": "a", "stream": false})).await;
    assert_eq!(whole.json()["text"], "Hello");
}

#[tokio::test]
async fn a_failure_in_lines_is_the_last_line() {
    let server = Server::scripted(|_| vec![Step::Queued(2), Step::Started(0), Step::Failed(WorkerError::WorkerLost)]);
    let reply = accepting(&server, "application/x-ndjson", json!({"model": "demo", "prompt": "ab"})).await;
    let lines: Vec<Value> = reply.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({"type": "comment", "text": "x-queue-position: 2"}));
    assert_eq!(lines.last().unwrap()["error"]["code"], "worker_lost");
}

#[tokio::test]
async fn refuses_what_a_completion_refuses() {
    let server = Server::new();
    let check = async |body: Value, shape: &str| {
        assert_eq!(server.post("/v1/generate", body).await.error(400).0, shape);
    };
    check(json!({"model": "demo"}), "invalid_request_error - prompt").await;
    check(json!({"model": "demo", "prompt": "a", "tokens": [1]}), "invalid_request_error - tokens").await;
    check(json!({"model": "demo", "tokens": []}), "invalid_request_error - tokens").await;
    check(json!({"model": "demo", "prompt": "a", "session_id": "a b"}), "invalid_request_error - session_id").await;
    check(json!({"model": "demo", "prompt": "a", "temperature": 3}), "invalid_request_error - temperature").await;
}

#[tokio::test]
async fn regression_errors_name_tokens_where_the_prompt_is_tokens() {
    let server = Server::new();
    let check = async |body: Value, expected: (&str, &str)| {
        let (shape, message) = server.post("/v1/generate", body).await.error(400);
        assert_eq!(shape, expected.0, "{message}");
        assert!(message.starts_with(expected.1), "{message}");
    };
    let unknown = ("invalid_request_error - tokens[1]", "tokens[1] must be ");
    check(json!({"model": "demo", "tokens": [97, 300]}), unknown).await;
    let long = ("invalid_request_error context_length_exceeded tokens", "the prompt is too long");
    check(json!({"model": "demo", "tokens": vec![97; CONTEXT as usize]}), long).await;
    let long = ("invalid_request_error context_length_exceeded prompt", "the prompt is too long");
    check(json!({"model": "demo", "prompt": "a".repeat(CONTEXT as usize)}), long).await;
}

#[tokio::test]
async fn renders_a_chat_without_answering_it() {
    let server = Server::new();
    let render = |content: &str| {
        server.post("/v1/chat/template", json!({"model": "demo", "messages": [{"role": "user", "content": content}]}))
    };
    let got = render("hi").await.json();
    assert_eq!(got["prompt"], "<|bos|>[user]hi<|end|>[assistant]");
    let tokens: Vec<u64> = got["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
    assert_eq!((tokens.len(), tokens[0], tokens[9]), (21, 256, 257));
    // The spelling of a control token is text to the model, and text here.
    let got = render("<|end|>").await.json();
    assert_eq!(got["prompt"], "<|bos|>[user]<|end|><|end|>[assistant]");
    let ends = got["tokens"].as_array().unwrap().iter().filter(|token| **token == 257).count();
    assert_eq!(ends, 1);
    assert_eq!(render("forbidden").await.error(400).0, "invalid_request_error - messages");
    let (shape, _) = render(&"x".repeat(4 * CONTEXT as usize)).await.error(400);
    assert_eq!(shape, "invalid_request_error context_length_exceeded messages");
    assert!(server.pool.starts.lock().unwrap().is_empty());
}
