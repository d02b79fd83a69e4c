//! Validator policies: accept, amend, refuse, fail.
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use camshaft_core::policy::{ValidateOutcome, ValidateRequest};
use serde_json::{Value, json};

use crate::fixture::{MAX_TOKENS, Server, request};
use crate::policies::{PERMITS, Rules, fault, refusal};
use crate::pool::hello;

fn server(rules: Rules) -> Server {
    Server::with(rules, hello)
}

#[tokio::test]
async fn shows_validators_what_was_parsed() {
    let seen: Arc<Mutex<Vec<ValidateRequest>>> = Arc::default();
    let record = seen.clone();
    let rules = Rules::default().validator(move |request| {
        record.lock().unwrap().push(request.clone());
        ValidateOutcome::Accept
    });
    let server = server(rules);
    let body = r#"{"model":"demo","messages":[{"role":"user","content":"hi"}],"temperature":0.5,"n":2}"#;
    assert_eq!(server.send(request("POST", "/v1/chat/completions", body)).await.status, 200);
    // A second one could be read by the server, and the first one by a policy.
    let twice = body.replace("\"n\":2", "\"n\":2,\"n\":3");
    let (shape, _) = server.send(request("POST", "/v1/chat/completions", &twice)).await.error(400);
    assert_eq!(shape, "invalid_request_error - n");
    let seen = seen.lock().unwrap();
    let request = &seen[0];
    assert_eq!(
        (request.endpoint.as_str(), request.model.as_str(), request.tenant.as_str()),
        ("chat", "demo", "anonymous")
    );
    assert_eq!((request.prompt_tokens, request.max_tokens, request.max_tokens_set), (21, MAX_TOKENS, false));
    assert_eq!((request.temperature, request.n, request.stream), (0.5, 2, false));
    assert_eq!(request.body.matches("\"n\"").count(), 1);
    assert_eq!(serde_json::from_str::<Value>(&request.body).unwrap()["n"], 2);
}

#[tokio::test]
async fn applies_amendments_in_chain_order_before_anything_runs() {
    let rules = Rules::default()
        .validator(|_| {
            ValidateOutcome::Amend(r#"{"max_tokens":7,"messages":[{"role":"user","content":"amended"}]}"#.into())
        })
        .validator(|request| {
            // Sees what the one before made of the request.
            assert_eq!((request.max_tokens, request.max_tokens_set, request.prompt_tokens), (7, true, 26));
            ValidateOutcome::Amend(r#"{"temperature":null,"seed":3}"#.into())
        });
    let server = server(rules);
    assert_eq!(server.chat(json!({"temperature": 2, "max_tokens": 50})).await.status, 200);
    let start = server.start();
    assert_eq!((start.max_tokens, start.params.seed, start.params.temperature), (7, 3, 1.0));
    let prompt: String =
        start.prompt.iter().filter_map(|token| char::from_u32(token.0).filter(char::is_ascii)).collect();
    assert_eq!(prompt, "[user]amended[assistant]");
}

#[tokio::test]
async fn a_validator_that_takes_long_holds_up_nobody_else_and_is_asked_once() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let rules = Rules::default().validator(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        ValidateOutcome::Amend(r#"{"seed":3}"#.into())
    });
    let pace = rules.pace.clone();
    let server = Arc::new(server(rules));
    for (long, chats) in [(2, 1), (4096, 2)] {
        let all = pace.acquire_many(PERMITS as u32).await.unwrap();
        let chatting = server.clone();
        let body = json!({"user": "x".repeat(long)});
        let chat = tokio::spawn(async move { chatting.chat(body).await });
        tokio::task::yield_now().await;
        // All tests' tasks share one thread.
        assert_eq!(server.get("/healthz").await.status, 200);
        assert!(!chat.is_finished());
        drop(all);
        assert_eq!(chat.await.unwrap().status, 200, "{long}");
        assert_eq!(asked.load(Ordering::Relaxed), chats, "{long}");
    }
    assert!(server.pool.starts.lock().unwrap().iter().all(|start| start.params.seed == 3));
}

#[tokio::test(start_paused = true)]
async fn a_validator_that_takes_longer_than_the_request_may_is_waited_for_no_longer() {
    let rules = Rules::default().validator(|_| ValidateOutcome::Accept);
    let pace = rules.pace.clone();
    let server = server(rules);
    let _all = pace.acquire_many(PERMITS as u32).await.unwrap();
    let (shape, _) = server.chat(json!({})).await.error(504);
    assert_eq!(shape, "server_error deadline_exceeded -");
}

#[tokio::test]
async fn answers_a_refusal_with_the_policys_status_code_and_param() {
    for status in [400, 403, 422, 429] {
        let rules = Rules::default().validator(move |_| ValidateOutcome::Refuse(refusal(status, "policy_refused")));
        let server = server(rules);
        let (shape, message) = server.chat(json!({})).await.error(status);
        assert_eq!(shape, "invalid_request_error policy_refused model");
        assert_eq!(message, "not like this");
        assert!(server.pool.starts.lock().unwrap().is_empty());
        assert_eq!(server.metric(r#"camshaft_rejections_total{reason="policy"}"#).await, 1.0);
    }
}

#[tokio::test]
async fn answers_a_fault_with_500_and_without_its_detail() {
    let server = server(Rules::default().validator(|_| ValidateOutcome::Fault(fault())));
    let reply = server.chat(json!({})).await;
    let (shape, message) = reply.error(500);
    assert_eq!((shape.as_str(), message.as_str()), ("server_error server_error -", "a validator policy failed"));
    assert_eq!(reply.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn takes_an_amendment_that_cannot_stand_for_the_policys_failure() {
    for patch in [
        r#"{"model":"org/secret"}"#,
        r#"{"stream":true}"#,
        r#"{"temperature":3}"#,
        r#"{"messages":[]}"#,
        r#"[1]"#,
        "not JSON",
    ] {
        let server = server(Rules::default().validator(move |_| ValidateOutcome::Amend(patch.into())));
        let reply = server.chat(json!({})).await;
        assert_eq!(
            reply.error(500),
            ("server_error server_error -".into(), "a validator policy failed".into()),
            "{patch}"
        );
        assert_eq!(reply.header("x-should-retry"), Some("false"));
        assert!(server.pool.starts.lock().unwrap().is_empty());
    }
    let too_long = format!(r#"{{"user":"{}"}}"#, "x".repeat(1 << 20));
    let server = server(Rules::default().validator(move |_| ValidateOutcome::Amend(too_long.clone())));
    server.chat(json!({})).await.error(500);
}
