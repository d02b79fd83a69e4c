//! The edges of HTTP: heads that are refused, content codings, web pages of other origins, what is repeated of a request.
use http_body_util::BodyExt as _;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use camshaft_api::backend::PoolMessage;
use camshaft_api::{Access, PublicAccess, ROUTES, Route};
use futures_util::{StreamExt, stream};
use serde_json::json;
use tower::ServiceExt;

use crate::fixture::{LIMITS, Server, chat_body, request};
use crate::policies::Rules;
use crate::pool::Pool;
use crate::surface::sample;

/// A request with one more header.
fn with(method: &str, path: &str, body: &str, (name, value): (&'static str, &'static str)) -> Request<Body> {
    let mut request = request(method, path, body);
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// Pages of this origin may call.
fn from(origin: &str) -> PublicAccess {
    PublicAccess { cors_origins: vec![origin.to_owned()], ..PublicAccess::default() }
}

#[tokio::test]
async fn compresses_whole_responses_for_who_asks_and_never_a_stream() {
    let server = Server::new();
    let gzip = ("accept-encoding", "gzip");
    let whole = server.public.clone().oneshot(with("GET", "/v1/models", "", gzip)).await.unwrap();
    assert_eq!(whole.headers()["content-encoding"], "gzip");
    // It was compressed before it was passed on: a compressor is not kept until the client takes it.
    let length = whole.headers().get("content-length").and_then(|length| length.to_str().ok()?.parse().ok());
    let frame = whole.into_body().frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(length, Some(frame.len()));
    let body = chat_body(json!({"stream": true})).to_string();
    let stream = server.public.clone().oneshot(with("POST", "/v1/chat/completions", &body, gzip)).await.unwrap();
    assert_eq!(stream.status(), 200);
    assert!(!stream.headers().contains_key("content-encoding"));
    assert_eq!(server.get("/v1/models").await.header("content-encoding"), None);
}

#[tokio::test]
async fn lets_web_pages_of_configured_origins_call_and_no_others() {
    let origin = |origin| ("origin", origin);
    let good = "https://chat.example.org";
    let server = Server::new();
    let router = camshaft_api::public_router(server.api.clone(), from(good));
    let ask = async |router: &axum::Router, from| {
        let reply = router.clone().oneshot(with("GET", "/v1/models", "", origin(from))).await.unwrap();
        reply.headers().get("access-control-allow-origin").map(|value| value.to_str().unwrap().to_owned())
    };
    assert_eq!(ask(&router, good).await.as_deref(), Some(good));
    assert_eq!(ask(&router, "https://evil.example.org").await, None);
    assert_eq!(ask(&server.public, good).await, None, "off unless it is configured");
    let mut preflight = with("OPTIONS", "/v1/chat/completions", "", origin(good));
    preflight.headers_mut().insert("access-control-request-method", "POST".parse().unwrap());
    let reply = router.oneshot(preflight).await.unwrap();
    assert_eq!(reply.status(), 200);
    let headers = reply.headers()["access-control-allow-headers"].to_str().unwrap().to_owned();
    assert!(["authorization", "x-api-key"].iter().all(|name| headers.contains(name)), "{headers}");
}

/// What OpenAI's JavaScript SDK sends from a page, and one that a later version may send.
const SDK_HEADERS: &str = "authorization, content-type, user-agent, idempotency-key, openai-organization, \
    x-stainless-lang, x-stainless-package-version, x-stainless-os, x-stainless-arch, x-stainless-runtime, \
    x-stainless-runtime-version, x-stainless-retry-count, x-stainless-timeout, x-stainless-new, x-request-timeout";

#[tokio::test]
async fn regression_a_page_may_send_what_the_sdks_send_and_read_what_they_read() {
    let good = "https://chat.example.org";
    let router = camshaft_api::public_router(Server::new().api, from(good));
    let ask = async |asked: &'static str| {
        let mut preflight = with("OPTIONS", "/v1/chat/completions", "", ("origin", good));
        preflight.headers_mut().insert("access-control-request-method", "POST".parse().unwrap());
        preflight.headers_mut().insert("access-control-request-headers", asked.parse().unwrap());
        let reply = router.clone().oneshot(preflight).await.unwrap();
        assert_eq!(reply.status(), 200);
        assert!(reply.headers().contains_key("x-request-id"), "preflights have ids, too");
        reply.headers()["access-control-allow-headers"].to_str().unwrap().to_owned()
    };
    let allowed = ask(SDK_HEADERS).await;
    let allowed: Vec<&str> = allowed.split(',').collect();
    for name in SDK_HEADERS.split(',').map(str::trim) {
        assert!(allowed.contains(&name), "{name}: {allowed:?}");
    }
    assert!(!ask("x-stainless-os,x-evil,cookie").await.contains("evil"));
    let reply = router.clone().oneshot(with("GET", "/v1/models", "", ("origin", good))).await.unwrap();
    let readable = reply.headers()["access-control-expose-headers"].to_str().unwrap().to_owned();
    let quotas = ["limit", "remaining", "reset"]
        .iter()
        .flat_map(|what| ["requests", "tokens"].map(|unit| format!("x-ratelimit-{what}-{unit}")));
    for name in quotas.chain(["x-should-retry", "retry-after", "x-request-id", "request-id"].map(str::to_owned)) {
        assert!(readable.split(',').any(|one| one == name), "{name}: {readable}");
    }
}

#[tokio::test]
async fn regression_a_client_that_accepts_no_response_costs_no_tokens() {
    let server = Server::new();
    let body = chat_body(json!({})).to_string();
    let reply = server.send(with("POST", "/v1/chat/completions", &body, ("accept-encoding", "identity;q=0"))).await;
    assert_eq!(reply.error(406).0, "invalid_request_error not_acceptable -");
    assert!(server.pool.starts.lock().unwrap().is_empty(), "nothing was generated");
    let streamed = chat_body(json!({"stream": true})).to_string();
    let gzip_only = with("POST", "/v1/chat/completions", &streamed, ("accept-encoding", "gzip, identity;q=0"));
    assert!(server.send(gzip_only).await.events().1, "what cannot be compressed goes out as it is");
}

#[tokio::test]
async fn regression_a_generation_is_as_old_as_its_whole_body() {
    let (pool, messages) = Pool::stuck(4);
    let server = Server::over(Rules::default(), pool);
    let body = chat_body(json!({})).to_string();
    let (head, rest) = (body[..10].to_owned(), body[10..].to_owned());
    let (whole, arrives) = tokio::sync::oneshot::channel();
    let rest = stream::once(async move {
        // Others come meanwhile.
        tokio::time::sleep(Duration::from_millis(1)).await;
        whole.send(Instant::now()).unwrap();
        rest
    });
    let mut slow = request("POST", "/v1/chat/completions", "");
    *slow.body_mut() = Body::from_stream(stream::once(async { head }).chain(rest).map(Ok::<_, Infallible>));
    let begun = Instant::now();
    let answer = tokio::spawn(server.public.clone().oneshot(slow));
    let whole = arrives.await.unwrap();
    let submitted = tokio::task::spawn_blocking(move || messages.recv_timeout(Duration::from_secs(60)));
    let PoolMessage::Submit(submission) = submitted.await.unwrap().unwrap() else { panic!("no submission") };
    assert!(submission.arrived >= whole, "those that came while its body did are before it");
    let deadline = submission.deadline.unwrap() - LIMITS.timeout;
    assert!((begun..whole).contains(&deadline), "its client waits since its head");
    answer.abort();
}

#[tokio::test]
async fn regression_a_path_that_is_no_text_is_refused_in_the_usual_shape() {
    let server = Server::new();
    assert_eq!(server.get("/v1/models/%ff").await.error(400).0, "invalid_request_error invalid_path -");
    let sent = request("POST", "/admin/policies/sampler/%ff/off", "");
    assert_eq!(server.admin.clone().oneshot(sent).await.unwrap().status(), 400);
}

#[tokio::test]
async fn regression_every_value_that_is_repeated_is_cut() {
    let server = Server::new();
    let long = "x".repeat(50_000);
    let check = |reply: crate::fixture::Reply, what: &str| {
        let message = reply.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(message.contains(&"x".repeat(127)) && message.chars().count() < 600, "{what}: {}", message.len());
    };
    for (path, body) in [
        ("/v1/chat/completions", chat_body(json!({ "model": long }))),
        ("/v1/chat/completions", chat_body(json!({"messages": [{"role": long, "content": "a"}]}))),
        ("/v1/chat/completions", chat_body(json!({"messages": [{"role": "user", "content": [{"type": long}]}]}))),
        ("/v1/chat/completions", chat_body(json!({ "samplers": [long] }))),
        ("/v1/chat/completions", chat_body(json!({"logit_bias": {long.clone(): 1}}))),
        ("/v1/chat/completions", chat_body(json!({"response_format": {"type": long}}))),
        ("/v1/tokenize", json!({"model": long, "text": "a"})),
    ] {
        check(server.post(path, body).await, path);
    }
    check(server.get(&format!("/v1/models/{long}")).await, "models");
    check(server.get(&format!("/{long}")).await, "path");
    let mut sent = request("POST", "/v1/chat/completions", &chat_body(json!({})).to_string());
    sent.headers_mut().insert("x-request-timeout", long.parse().unwrap());
    check(server.send(sent).await, "timeout");
    let sent = request("POST", &format!("/admin/policies/{long}/a/off"), "");
    let reply = server.admin.clone().oneshot(sent).await.unwrap();
    assert!(http_body_util::BodyExt::collect(reply.into_body()).await.unwrap().to_bytes().len() < 1000);
}

#[tokio::test]
async fn regression_a_head_with_two_readings_is_refused() {
    let server = Server::new();
    let mut two = request("GET", "/v1/models", "");
    two.headers_mut().append("host", "b".parse().unwrap());
    assert_eq!(server.send(two).await.error(400).0, "invalid_request_error invalid_host -");
    let mut many = request("GET", "/v1/models", "");
    for i in 0..99 {
        many.headers_mut().append("x-many", i.to_string().parse().unwrap());
    }
    many.headers_mut().append("authorization", "Bearer k".parse().unwrap());
    assert_eq!(server.send(many).await.error(431).0, "invalid_request_error too_many_headers -");
    let coded = with("POST", "/v1/tokenize", "{}", ("transfer-encoding", "gzip, chunked"));
    assert_eq!(server.send(coded).await.error(400).0, "invalid_request_error invalid_transfer_encoding -");
    let expecting = with("POST", "/v1/tokenize", "{}", ("expect", "foo"));
    assert_eq!(server.send(expecting).await.error(417).0, "invalid_request_error expectation_failed -");
}

#[tokio::test]
async fn regression_pages_may_read_that_the_server_loads() {
    let page = "http://page.example";
    let router = camshaft_api::loading_router(std::sync::Arc::default(), &[page.to_owned()]);
    let reply = router.clone().oneshot(with("GET", "/v1/models", "", ("origin", page))).await.unwrap();
    assert_eq!(reply.status(), 503);
    assert_eq!(reply.headers()["access-control-allow-origin"], page);
    let mut preflight = with("OPTIONS", "/v1/chat/completions", "", ("origin", page));
    preflight.headers_mut().insert("access-control-request-method", "POST".parse().unwrap());
    let reply = router.oneshot(preflight).await.unwrap();
    assert_eq!(
        (reply.status().as_u16(), &reply.headers()["access-control-allow-origin"]),
        (200, &page.parse().unwrap())
    );
    assert!(reply.headers().contains_key("x-request-id"));
    let nobody = camshaft_api::loading_router(std::sync::Arc::default(), &[]);
    let reply = nobody.oneshot(with("GET", "/v1/models", "", ("origin", page))).await.unwrap();
    assert!(!reply.headers().contains_key("access-control-allow-origin"));
}

#[tokio::test]
async fn regression_the_admin_listener_answers_to_its_own_names_and_with_its_token() {
    let server = Server::new();
    let access = std::sync::Arc::new(camshaft_api::AdminAccess::default());
    let admin = camshaft_api::admin_router(server.api.clone(), access.clone());
    let ask = async |route: &Route, host: &'static str, token: &'static str| {
        let mut sent = request(route.method.as_str(), &sample(route), "");
        sent.headers_mut().insert("host", host.parse().unwrap());
        sent.headers_mut().insert("authorization", token.parse().unwrap());
        admin.clone().oneshot(sent).await.unwrap().status().as_u16()
    };
    let routes = || ROUTES.iter().filter(|route| route.access != Access::Guarded);
    for route in routes() {
        assert_eq!(ask(route, "evil.example:9090", "").await, 403, "{route:?}");
    }
    access.set_token("secret-0123456789".to_owned());
    for route in routes() {
        let open = route.access == Access::Open;
        assert_eq!(ask(route, "localhost", "Bearer wrong-0123456789").await == 401, !open, "{route:?}");
        assert_ne!(ask(route, "localhost", "Bearer secret-0123456789").await, 401, "{route:?}");
    }
}

#[tokio::test]
async fn regression_two_tokens_for_the_admin_listener_are_refused() {
    let server = Server::new();
    let access = std::sync::Arc::new(camshaft_api::AdminAccess::default());
    access.set_token("secret-0123456789".to_owned());
    let admin = camshaft_api::admin_router(server.api.clone(), access);
    for tokens in [["secret-0123456789", "other-0123456789"], ["other-0123456789", "secret-0123456789"]] {
        let mut sent = request("GET", "/admin/config", "");
        sent.headers_mut().remove("authorization");
        for token in tokens {
            sent.headers_mut().append("authorization", format!("Bearer {token}").parse().unwrap());
        }
        let status = admin.clone().oneshot(sent).await.unwrap().status().as_u16();
        assert_eq!(status, 400);
    }
}
