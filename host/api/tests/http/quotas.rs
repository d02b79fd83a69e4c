//! Quotas of the principal: refusals at the bound, headers, settling.
use std::time::{Duration, Instant};

use camshaft_core::policy::{AuthOutcome, Principal, Quotas};
use serde_json::json;
use tower::ServiceExt;

use crate::fixture::{HELD, MAX_TOKENS, Server, request};
use crate::policies::Rules;
use crate::pool::{Step, hello};

fn limited(quotas: Quotas) -> Server {
    let principal = Principal { quotas, ..Principal::anonymous() };
    Server::with(Rules::default().auth(move |_| AuthOutcome::Allow(principal.clone())), hello)
}

#[tokio::test]
async fn refuses_one_request_past_the_minutes_quota_and_says_when_to_come_back() {
    let server = limited(Quotas { requests_per_minute: Some(2), ..Quotas::default() });
    for remaining in ["1", "0"] {
        let reply = server.chat(json!({})).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("x-ratelimit-limit-requests"), Some("2"));
        assert_eq!(reply.header("x-ratelimit-remaining-requests"), Some(remaining));
        assert!(reply.header("x-ratelimit-reset-requests").is_some());
        assert_eq!(reply.header("x-ratelimit-limit-tokens"), None);
    }
    let reply = server.chat(json!({})).await;
    let (shape, message) = reply.error(429);
    assert_eq!(shape, "rate_limit_error rate_limit_exceeded -");
    assert_eq!(message, "your quota of 2 requests per minute is used up");
    assert_eq!((reply.header("retry-after"), reply.header("x-ratelimit-remaining-requests")), (Some("30"), Some("0")));
    assert_eq!(server.metric(r#"camshaft_rejections_total{reason="quota"}"#).await, 1.0);
    // What has no body has no quota.
    assert_eq!(server.get("/v1/models").await.status, 200);
}

#[tokio::test]
async fn regression_a_request_counts_before_its_body_is_read() {
    let server = limited(Quotas { requests_per_minute: Some(2), tokens_per_minute: Some(3), ..Quotas::default() });
    assert_eq!(server.chat(json!({"n": 0})).await.status, 400);
    // Too many tokens, which is known only after tokenizing.
    assert_eq!(server.complete(json!({})).await.error(429).0, "rate_limit_error insufficient_quota -");
    let long = "a ".repeat(100_000);
    assert_eq!(server.complete(json!({"prompt": long})).await.error(429).0, "rate_limit_error rate_limit_exceeded -");
}

#[tokio::test]
async fn regression_tokenizing_is_metered() {
    let server = limited(Quotas { requests_per_minute: Some(3), tokens_per_minute: Some(10), ..Quotas::default() });
    let tokenize = |text: &str| json!({"model": "demo", "text": text});
    assert_eq!(server.post("/v1/tokenize", tokenize("12345678")).await.status, 200);
    let (shape, _) = server.post("/v1/tokenize", tokenize("123")).await.error(429);
    assert_eq!(shape, "rate_limit_error rate_limit_exceeded -");
    let reply = server.post("/v1/tokenize", tokenize("1")).await;
    assert_eq!((reply.status.as_u16(), reply.header("x-ratelimit-remaining-tokens")), (200, Some("1")));
    let (_, message) = server.post("/v1/detokenize", json!({"model": "demo", "tokens": [1]})).await.error(429);
    assert_eq!(message, "your quota of 3 requests per minute is used up");
}

#[tokio::test]
async fn regression_tokenizing_in_vain_is_metered() {
    let server = limited(Quotas { tokens_per_minute: Some(1000), ..Quotas::default() });
    let tokenize = |bytes: usize| json!({"model": "demo", "text": "a".repeat(bytes)});
    let reply = server.post("/v1/tokenize", tokenize(1600)).await;
    assert_eq!((reply.status.as_u16(), reply.header("x-ratelimit-remaining-tokens")), (429, Some("900")));
    let reply = server.post("/v1/tokenize", tokenize(40_000)).await;
    assert_eq!((reply.status.as_u16(), reply.header("x-ratelimit-remaining-tokens")), (429, Some("0")));
}

#[tokio::test]
async fn regression_a_long_body_that_is_refused_is_paid_by_an_estimate() {
    let server = limited(Quotas { tokens_per_minute: Some(1000), ..Quotas::default() });
    let long = "a".repeat(64 * 99);
    assert_eq!(
        server.complete(json!({"prompt": long})).await.error(400).0,
        "invalid_request_error context_length_exceeded prompt"
    );
    let reply = server.post("/v1/tokenize", json!({"model": "demo", "text": "1"})).await;
    let remaining: u32 = reply.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    // A few come back while the test runs.
    assert!((899..950).contains(&remaining), "{remaining}");
}

#[tokio::test]
async fn regression_tokenizing_for_a_client_that_left_is_paid() {
    let server = limited(Quotas { tokens_per_minute: Some(1000), ..Quotas::default() });
    let body = json!({"model": "demo", "text": format!("{HELD}{}", "a".repeat(64 * 99))}).to_string();
    let reading = tokio::spawn(server.public.clone().oneshot(request("POST", "/v1/tokenize", &body)));
    let begun = Instant::now();
    while server.hold.held() == 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "the text is tokenized");
        tokio::task::yield_now().await;
    }
    reading.abort();
    assert!(reading.await.unwrap_err().is_cancelled(), "the client left");
    server.hold.release();
    let reply = server.post("/v1/tokenize", json!({"model": "demo", "text": "1"})).await;
    let remaining: u32 = reply.header("x-ratelimit-remaining-tokens").unwrap().parse().unwrap();
    // A few come back while the test runs.
    assert!((890..950).contains(&remaining), "{remaining}");
}

#[tokio::test]
async fn regression_detokenizing_is_metered() {
    let server = limited(Quotas { tokens_per_minute: Some(10), ..Quotas::default() });
    let detokenize = |tokens: Vec<u32>| json!({"model": "demo", "tokens": tokens});
    let reply = server.post("/v1/detokenize", detokenize(vec![1; 8])).await;
    assert_eq!((reply.status.as_u16(), reply.header("x-ratelimit-remaining-tokens")), (200, Some("2")));
    let (shape, _) = server.post("/v1/detokenize", detokenize(vec![1; 3])).await.error(429);
    assert_eq!(shape, "rate_limit_error rate_limit_exceeded -");
    assert_eq!(server.post("/v1/detokenize", detokenize(vec![1; 2])).await.status, 200);
}

#[tokio::test]
async fn regression_each_choice_counts_as_running() {
    let server = limited(Quotas { concurrent_requests: Some(4), ..Quotas::default() });
    assert_eq!(server.complete(json!({"n": 4})).await.status, 200);
    assert_eq!(server.complete(json!({"prompt": ["a", "b"], "n": 2})).await.status, 200);
    for body in
        [json!({"n": 5}), json!({"prompt": ["a", "b", "c", "d", "e"]}), json!({"prompt": ["a", "b", "c"], "n": 2})]
    {
        let reply = server.complete(body).await;
        let (shape, message) = reply.error(429);
        assert_eq!(shape, "rate_limit_error insufficient_quota -");
        assert!(
            message.starts_with("your quota allows 4 requests at the same time, and this one counts as "),
            "{message}"
        );
        assert_eq!(reply.header("x-should-retry"), Some("false"));
    }
}

#[tokio::test]
async fn reserves_prompt_and_max_tokens_and_settles_for_what_was_used() {
    let server = limited(Quotas { tokens_per_minute: Some(100), ..Quotas::default() });
    // Three tokens of prompt, and what the pool says of "Hello".
    for (max_tokens, status, remaining) in [(60, 200, "37"), (62, 200, "27"), (98, 429, "84")] {
        let reply = server.complete(json!({"max_tokens": max_tokens})).await;
        assert_eq!((reply.status.as_u16(), reply.header("x-ratelimit-remaining-tokens")), (status, Some(remaining)));
    }
    let server = limited(Quotas { tokens_per_minute: Some(MAX_TOKENS), ..Quotas::default() });
    // A chat that names no number asks for as many as it may have.
    let reply = server.chat(json!({})).await;
    assert_eq!(reply.error(429).0, "rate_limit_error insufficient_quota -");
    assert_eq!((reply.header("x-should-retry"), reply.header("retry-after")), (Some("false"), None));
}

#[tokio::test]
async fn bounds_what_runs_at_the_same_time_until_a_client_leaves() {
    let principal =
        Principal { quotas: Quotas { concurrent_requests: Some(1), ..Quotas::default() }, ..Principal::anonymous() };
    let rules = Rules::default().auth(move |_| AuthOutcome::Allow(principal.clone()));
    let server = Server::with(rules, |_| vec![Step::Started(0), Step::Text("a"), Step::Hold]);
    let first = tokio::time::timeout(Duration::from_millis(300), server.chat(json!({})));
    let refused = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.chat(json!({})).await.error(429)
    };
    let (first, (shape, message)) = tokio::join!(first, refused);
    assert!(first.is_err(), "it holds");
    assert_eq!(shape, "rate_limit_error rate_limit_exceeded -");
    assert_eq!(message, "your quota allows 1 requests at the same time");
    // The first client left, which settled its account.
    let again = tokio::time::timeout(Duration::from_millis(300), server.chat(json!({}))).await;
    assert!(again.is_err(), "it is let through, and holds");
}
