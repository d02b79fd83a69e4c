//! OpenAI's Responses API over HTTP: what reaches the pool, and what comes back.
use camshaft_api::ApiLimits;
use camshaft_core::ids::Token;
use camshaft_core::limits::MESSAGES;
use camshaft_core::message::{FinishReason, WorkerError};
use camshaft_core::policy::ValidateOutcome;
use serde_json::{Value, json};

use crate::fixture::{LIMITS, Server, merged, named};
use crate::policies::{Rules, refusal};
use crate::pool::{Step, hello};

impl Server {
    async fn respond(&self, more: Value) -> crate::fixture::Reply {
        self.post("/v1/responses", merged(json!({"model": "demo", "input": "hi"}), more)).await
    }
}

#[tokio::test]
async fn a_text_is_answered_by_a_response() {
    let server = Server::new();
    let reply =
        server.respond(json!({"instructions": "be brief", "max_output_tokens": 50, "metadata": {"a": "b"}})).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("resp_"));
    assert_eq!(
        (&body["object"], &body["status"], &body["model"]),
        (&json!("response"), &json!("completed"), &json!("demo"))
    );
    assert_eq!(body["output"][0]["content"][0]["text"], "Hello");
    assert_eq!((&body["instructions"], &body["metadata"]), (&json!("be brief"), &json!({"a": "b"})));
    let details = json!({"cached_tokens": 2, "cache_write_tokens": 0});
    assert_eq!((&body["usage"]["input_tokens_details"], &body["usage"]["output_tokens"]), (&details, &json!(5)));
    let start = server.start();
    let prompt: String =
        start.prompt.iter().filter(|token| token.0 < 256).map(|Token(byte)| *byte as u8 as char).collect();
    assert_eq!(prompt, "[system]be brief[user]hi[assistant]");
    assert_eq!(start.max_tokens, 50);
}

#[tokio::test]
async fn a_stream_has_its_events_in_order_and_no_done() {
    let server = Server::scripted(|_| {
        let text = [Step::Text("Hel"), Step::Text("lo"), Step::Finished(FinishReason::Length, 5)];
        [vec![Step::Queued(3), Step::Started(2)], text.to_vec()].concat()
    });
    let reply = server.respond(json!({"stream": true})).await;
    assert_eq!((reply.status.as_u16(), reply.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    assert!(reply.text.starts_with(": x-queue-position: 3\n\n"), "{}", reply.text);
    let events = named(&reply.text);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(names, expected);
    for (number, (name, event)) in events.iter().enumerate() {
        assert_eq!((&event["type"], &event["sequence_number"]), (&json!(name), &json!(number)));
    }
    let last = &events.last().unwrap().1["response"];
    assert_eq!(last["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(
        (&last["usage"]["total_tokens"], &last["output"][0]["content"][0]["text"]),
        (&json!(26), &json!("Hello"))
    );
}

#[tokio::test]
async fn errors_name_fields_as_the_client_has_them() {
    let check = |more: Value, status: u16, shape: &str, message: &str| {
        let (shape, message) = (shape.to_owned(), message.to_owned());
        async move {
            let (got, said) = Server::new().respond(more).await.error(status);
            assert_eq!(got, shape, "{said}");
            assert!(said.starts_with(&message), "{said}");
        }
    };
    let bound = "max_output_tokens must be at least 1, got 0";
    check(json!({"max_output_tokens": 0}), 400, "invalid_request_error - max_output_tokens", bound).await;
    let refused = "this template refuses";
    check(json!({"input": "forbidden"}), 400, "invalid_request_error - input", refused).await;
    let stored =
        "previous_response_id is not supported: this server stores no responses; send the whole conversation as input";
    let stored_shape = "invalid_request_error - previous_response_id";
    check(json!({"previous_response_id": "resp_1"}), 400, stored_shape, stored).await;
    let (shape, _) = Server::new().respond(json!({"input": "x".repeat(200)})).await.error(400);
    assert_eq!(shape, "invalid_request_error context_length_exceeded input");
    assert_eq!(
        Server::new().respond(json!({"model": "none"})).await.error(404).0,
        "invalid_request_error model_not_found model"
    );
}

#[tokio::test]
async fn regression_a_refusal_of_the_translators_names_the_clients_field_once() {
    let check = async |more: Value, expected: (&str, &str)| {
        let (shape, message) = Server::new().respond(more).await.error(400);
        assert_eq!(shape, expected.0, "{message}");
        assert!(message.starts_with(expected.1), "{message}");
    };
    let foreign = "max_tokens is no field of this endpoint: use max_output_tokens";
    check(json!({"max_tokens": 3}), ("invalid_request_error - max_tokens", foreign)).await;
    let newer = "max_completion_tokens is no field of this endpoint: use max_output_tokens";
    check(json!({"max_completion_tokens": 3}), ("invalid_request_error - max_completion_tokens", newer)).await;
    let messages = "messages is no field of this endpoint: use input";
    check(json!({"messages": [{}]}), ("invalid_request_error - messages", messages)).await;
    let path = ("invalid_request_error - input[1].content", "input[1].content is required");
    check(json!({"input": [{"role": "user", "content": "a"}, {"role": "user"}]}), path).await;
    let effort = "reasoning.effort must be one of `none`, `minimal`, `low`,";
    check(json!({"reasoning": {"effort": "much"}}), ("invalid_request_error - reasoning.effort", effort)).await;
}

#[tokio::test]
async fn regression_errors_have_the_whole_path_in_the_clients_body() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let check = async |more: Value, expected: &str| {
        let (shape, message) = Server::new().respond(more).await.error(400);
        assert_eq!(shape, format!("invalid_request_error - {expected}"), "{message}");
        assert!(message.starts_with(expected), "{message}");
    };
    let format = json!({"text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}});
    check(format, "text.format.schema.properties.a.uniqueItems").await;
    let named = json!({"text": {"format": {"type": "json_schema", "name": "n n", "schema": {}}}});
    check(named, "text.format.name").await;
    check(json!({"text": {"format": {"type": "json_schema", "name": "n"}}}), "text.format.schema").await;
    let function = |name: &str| json!({"type": "function", "name": name, "strict": true, "parameters": schema});
    let other = json!({"type": "function", "name": "f"});
    check(json!({"tools": [other, function("g")]}), "tools[1].parameters.properties.a.uniqueItems").await;
    let described = json!({"type": "function", "name": "f", "description": 3});
    check(json!({"tools": [described]}), "tools[0].description").await;
    let none = json!({"type": "allowed_tools", "mode": "auto", "tools": []});
    check(json!({"tools": [other], "tool_choice": none}), "tool_choice.tools").await;
    let mode = json!({"type": "allowed_tools", "mode": "must", "tools": [other]});
    check(json!({"tools": [other], "tool_choice": mode}), "tool_choice.mode").await;
    // Messages of a chat are counted otherwise: the instructions are one, and all that is said and called in a turn is another.
    let call = |id: &str, arguments: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": arguments});
    let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "1"});
    let user = json!({"role": "user", "content": "hi"});
    let input = |items: Value| json!({"instructions": "be brief", "input": items});
    check(input(json!([call("a", "{}"), call("b", "{}"), result("b"), result("c")])), "input[3].call_id").await;
    check(input(json!([user, result("a")])), "input[1].call_id").await;
}

#[tokio::test]
async fn results_may_come_anywhere_after_their_calls() {
    let server = Server::new();
    let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "f", "arguments": "{}"});
    let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": id});
    let said = json!({"role": "assistant", "content": "so"});
    let input = json!([call("a"), call("b"), said, result("b"), {"role": "user", "content": "and?"}, result("a")]);
    let reply = server.respond(json!({"input": input})).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let prompt: String =
        server.start().prompt.iter().filter(|token| token.0 < 256).map(|Token(byte)| *byte as u8 as char).collect();
    assert_eq!(prompt, "[assistant]so{}{}[tool]b[tool]a[user]and?[assistant]");
}

#[tokio::test]
async fn an_input_has_as_many_items_as_a_chat_has_messages_and_not_one_more() {
    let server = Server::new();
    server.api.set_limits(ApiLimits { body_bytes: 1 << 20, bodies_bytes: 1 << 30, ..LIMITS });
    let items = |count: usize| {
        let input: Vec<Value> = vec![json!({"role": "user", "content": "x"}); count];
        json!({"input": input, "truncate_prompt_tokens": 50})
    };
    assert_eq!(server.respond(items(MESSAGES)).await.status, 200);
    let (shape, message) = server.respond(items(MESSAGES + 1)).await.error(400);
    assert_eq!(shape, "invalid_request_error - input");
    assert!(message.contains("at most 4096") && message.contains("4097"), "{message}");
}

#[tokio::test]
async fn a_failure_in_the_stream_is_a_failed_response() {
    let failed = Step::Failed(WorkerError::Engine("decode returned -3".into()));
    let server = Server::scripted(move |_| vec![Step::Started(0), Step::Text("Hel"), failed.clone()]);
    let reply = server.respond(json!({"stream": true})).await;
    let events = named(&reply.text);
    let (name, last) = events.last().unwrap();
    assert_eq!(name, "response.failed");
    assert_eq!(last["response"]["error"], json!({"code": "server_error", "message": "the engine failed"}));
    assert_eq!(last["response"]["output"][0]["content"][0]["text"], "Hel");
    assert!(!reply.text.contains("decode returned"));
    let series = r#"camshaft_stream_errors_total{endpoint="/v1/responses",status="500"}"#;
    assert_eq!(server.metric(series).await, 1.0);
    let full = Server::scripted(|_| vec![Step::Failed(WorkerError::QueueFull)]);
    assert_eq!(full.respond(json!({"stream": true})).await.error(429).0, "rate_limit_error queue_full -");
}

#[tokio::test]
async fn validators_see_a_chat_and_change_it() {
    let rules = Rules::default().validator(|request| {
        assert_eq!(request.endpoint.as_str(), "chat");
        let body: Value = serde_json::from_str(&request.body).unwrap();
        match body["messages"][0]["content"].as_str().unwrap() {
            "bad" => ValidateOutcome::Refuse(refusal(400, "policy_refused")),
            _ => ValidateOutcome::Amend(r#"{"max_completion_tokens":7}"#.into()),
        }
    });
    let server = Server::with(rules, hello);
    assert_eq!(server.respond(json!({})).await.status, 200);
    assert_eq!(server.start().max_tokens, 7);
    let (shape, _) = server.respond(json!({"input": "bad"})).await.error(400);
    assert!(shape.starts_with("invalid_request_error policy_refused"), "{shape}");
}

#[tokio::test]
async fn regression_a_validator_cannot_give_an_answer_more_choices_than_it_has_room_for() {
    let server = Server::with(Rules::default().validator(|_| ValidateOutcome::Amend(r#"{"n":2}"#.into())), hello);
    let reply = server.respond(json!({"stream": true})).await;
    assert_eq!(reply.error(500).1, "a validator policy failed");
    assert_eq!(server.chat(json!({"stream": true})).await.status, 200, "a chat has several choices");
}

#[tokio::test]
async fn usage_is_told_whatever_a_validator_says_of_the_chats() {
    for patch in [r#"{"stream_options":null}"#, r#"{"stream_options":{"include_usage":false}}"#] {
        let server = Server::with(Rules::default().validator(move |_| ValidateOutcome::Amend(patch.into())), hello);
        let reply = server.respond(json!({"stream": true})).await;
        let last = reply.text.contains(r#""usage":{"input_tokens""#);
        assert!(reply.status == 200 && last, "{patch}: {}", reply.text);
    }
}

#[tokio::test]
async fn a_client_that_leaves_cancels_its_response() {
    let server = Server::scripted(|_| vec![Step::Started(0), Step::Text("Hel"), Step::Hold]);
    let request = crate::fixture::request("POST", "/v1/responses", r#"{"model":"demo","input":"hi","stream":true}"#);
    let response = tower::ServiceExt::oneshot(server.public.clone(), request).await.unwrap();
    let mut body = response.into_body();
    assert!(http_body_util::BodyExt::frame(&mut body).await.unwrap().is_ok());
    drop(body);
    let cancelled = server.pool.cancelled.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
    assert_eq!(cancelled, server.start().id);
}
