//! The memory of requests in flight: what they hold, for how long, and what happens when there is no room.
use std::time::Duration;

use axum::body::{Body, Bytes};
use camshaft_api::ApiLimits;
use camshaft_core::message::{FinishReason, Start};
use camshaft_core::policy::{AuthOutcome, Principal};
use futures_util::stream;
use serde_json::json;
use tower::ServiceExt;

use crate::fixture::{LIMITS, Server, chat_body, request};
use crate::policies::Rules;
use crate::pool::{Step, hello};

/// A server whose requests may hold this much, of which a tenant may take half. The tenant is the header `x-tenant`.
fn small(bodies_bytes: u64) -> Server {
    let rules = Rules::default().auth(|request| {
        let sent = request.headers.iter().find(|(name, _)| name == "x-tenant");
        let tenant = sent.map_or("acme", |(_, value)| std::str::from_utf8(value).unwrap()).into();
        AuthOutcome::Allow(Principal { tenant, ..Principal::anonymous() })
    });
    let server = Server::with(rules, hello);
    server.api.set_limits(ApiLimits { bodies_bytes, ..LIMITS });
    server
}

/// A body of which the beginning is there and the rest never comes.
fn half(bytes: usize) -> axum::http::Request<Body> {
    let begun = stream::iter([Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes]))]);
    let body = Body::from_stream(futures_util::StreamExt::chain(begun, stream::pending()));
    request("POST", "/v1/chat/completions", "").map(|_| body)
}

#[tokio::test(start_paused = true)]
async fn regression_half_sent_bodies_together_have_a_bound() {
    let server = small(80 << 10);
    let mut waiting = Vec::new();
    // One more than a tenant's half holds.
    for _ in 0..5 {
        waiting.push(tokio::spawn(server.public.clone().oneshot(half(9 << 10))));
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    let ended: Vec<_> = waiting.iter().map(|request| request.is_finished()).collect();
    assert_eq!(ended.iter().filter(|ended| **ended).count(), 1, "{ended:?}");
    let refused = server.chat(json!({"user": "x".repeat(10 << 10)})).await;
    assert_eq!(refused.error(503).0, "server_error overloaded -");
    assert_eq!(refused.header("retry-after"), Some("1"));
    // It waits for no other thread: meanwhile the paused time would go on.
    let text = json!({"model": "demo", "text": "ab"});
    let mut other = request("POST", "/v1/tokenize", &text.to_string());
    other.headers_mut().insert("x-tenant", "polite".parse().unwrap());
    assert_eq!(server.send(other).await.status, 200, "another tenant finds room");
    // While memory is tight, who sends nothing is not waited for as long as usual.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(waiting.iter().filter(|request| request.is_finished()).count(), 3, "two were cut, and made room");
    tokio::time::sleep(Duration::from_secs(8)).await;
    for request in waiting {
        assert!(request.is_finished());
        let status = request.await.unwrap().unwrap().status().as_u16();
        assert!([408, 503].contains(&status), "{status}");
    }
    assert_eq!(server.chat(json!({})).await.status, 200, "everything was given back");
}

#[tokio::test(start_paused = true)]
async fn a_silent_body_has_its_usual_time_while_there_is_room() {
    let server = small(64 << 20);
    let waiting = tokio::spawn(server.public.clone().oneshot(half(9 << 10)));
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert!(!waiting.is_finished());
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(waiting.await.unwrap().unwrap().status(), 408);
}

#[tokio::test]
async fn regression_a_whole_response_has_a_bound() {
    const SCORED: &str = "The quick brown fox jumps over the lazy dog, and then it jumps over the next lazy dog.";
    let script = |_: &Start| vec![Step::Started(2), Step::Scored(SCORED), Step::Finished(FinishReason::Stop, 86)];
    let server = Server::scripted(script);
    let body = |stream: bool| json!({"logprobs": true, "top_logprobs": 20, "stream": stream, "n": 2});
    assert_eq!(server.chat(body(false)).await.status, 200);
    server.api.set_limits(ApiLimits { bodies_bytes: 64 << 10, ..LIMITS });
    let (shape, message) = server.chat(body(false)).await.error(413);
    assert_eq!(shape, "invalid_request_error request_too_large -", "it would never fit, and nothing was generated");
    assert!(message.contains("may take 32768 (half of limits.bodies)"), "{message}");
    assert_eq!(server.pool.starts.lock().unwrap().len(), 2, "those of the first request");
    for _ in 0..5 {
        assert!(server.chat(body(true)).await.events().1, "a stream keeps nothing, and everything was given back");
    }
}

#[tokio::test]
async fn regression_what_waits_in_the_queue_counts() {
    let server = Server::scripted(|_| vec![Step::Hold]);
    server.api.set_limits(ApiLimits { bodies_bytes: 64 << 10, ..LIMITS });
    let body = chat_body(json!({"n": 3})).to_string();
    let mut waiting = Vec::new();
    // Each choice counts, so that the third request finds no room.
    for _ in 0..2 {
        waiting.push(tokio::spawn(server.public.clone().oneshot(request("POST", "/v1/chat/completions", &body))));
    }
    let holds = async {
        while server.pool.starts.lock().unwrap().len() < 6 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), holds).await.expect("both wait");
    assert_eq!(server.chat(json!({"n": 3})).await.error(503).0, "server_error overloaded -");
    waiting.iter().for_each(|request| request.abort());
    for request in waiting {
        let _ = request.await;
    }
    assert!(server.api.readiness.is_ready());
    let kept = server.complete(json!({"n": 1, "stream": false, "max_tokens": 1}));
    // It waits as well, but it was let in.
    assert!(tokio::time::timeout(Duration::from_millis(200), kept).await.is_err());
    assert_eq!(server.pool.starts.lock().unwrap().len(), 7);
}
