//! Every status of the contract that is not about policies, in the one error shape.
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use camshaft_api::TextModel;
use camshaft_api::{
    Api, ApiOptions, Backend, FixedModels, LocalQuotas, PublicAccess, Readiness, Reloaded, StartError, public_router,
};
use camshaft_core::engine::ModelInfo;
use camshaft_core::fake::ByteTokenizer;
use camshaft_core::message::{FinishReason, WorkerError};
use camshaft_core::policy::Rejection;
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fixture::{BODY_BYTES, LIMITS, MAX_TOKENS, NoControl, Server, chat_body, request};
use crate::policies::{Fixed, Rules};
use crate::pool::{Pool, Step};

const CHAT: &str = "/v1/chat/completions";

async fn check_chat(more: Value, param: &str) {
    let (shape, message) = Server::new().chat(more.clone()).await.error(400);
    assert_eq!(shape, format!("invalid_request_error - {param}"), "{more}: {message}");
}

#[tokio::test]
async fn refuses_parameters_that_are_out_of_range_or_of_another_type() {
    check_chat(json!({"model": null}), "model").await;
    check_chat(json!({"model": 5}), "model").await;
    check_chat(json!({"messages": []}), "messages").await;
    check_chat(json!({"messages": [{"role": "wizard", "content": "x"}]}), "messages[0].role").await;
    check_chat(
        json!({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
        "messages[0].content[0].type",
    )
    .await;
    check_chat(json!({"temperature": 3.5}), "temperature").await;
    check_chat(json!({"temperature": "hot"}), "temperature").await;
    check_chat(json!({"max_tokens": 0}), "max_tokens").await;
    check_chat(json!({"max_completion_tokens": 0}), "max_completion_tokens").await;
    check_chat(json!({"min_tokens": MAX_TOKENS + 1}), "min_tokens").await;
    check_chat(json!({"n": 129}), "n").await;
    check_chat(json!({"top_logprobs": 21, "logprobs": true}), "top_logprobs").await;
    check_chat(json!({"top_logprobs": 1}), "top_logprobs").await;
    check_chat(json!({"logprobs": 3}), "logprobs").await;
    check_chat(json!({"logit_bias": {"258": 1}}), "logit_bias").await;
    check_chat(json!({"stream_options": {"include_usage": true}}), "stream_options").await;
    check_chat(json!({"stream": "yes"}), "stream").await;
    check_chat(json!({"samplers": ["nope"]}), "samplers[0]").await;
    check_chat(json!({"tools": [{"type": "function"}]}), "tools[0].function").await;
    check_chat(json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema").await;
    check_chat(json!({"chat_template_kwargs": []}), "chat_template_kwargs").await;
    check_chat(json!({"chat_template_kwargs": {"x": "<|end|>"}}), "chat_template_kwargs").await;
    for (more, param) in [
        (json!({"logprobs": 6}), "logprobs"),
        (json!({"best_of": 2, "stream": true}), "best_of"),
        (json!({"n": 2, "best_of": 1}), "best_of"),
        (json!({"suffix": "x"}), "suffix"),
    ] {
        let (shape, _) = Server::new().complete(more).await.error(400);
        assert_eq!(shape, format!("invalid_request_error - {param}"));
    }
    let (_, message) = Server::new().chat(json!({"temperature": 3.5})).await.error(400);
    assert!(message.starts_with("temperature ") && message.contains("2, got 3.5"), "{message}");
}

#[tokio::test]
async fn survives_every_number_at_its_extremes() {
    let server = Server::new();
    let names = [
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "repeat_penalty",
        "repeat_last_n",
        "frequency_penalty",
        "presence_penalty",
        "seed",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "top_logprobs",
        "best_of",
        "min_tokens",
        "max_duration",
        "truncate_prompt_tokens",
    ];
    for name in names {
        for number in ["-9223372036854775808", "18446744073709551615", "1e308", "-1e308", "1e-308", "1e400", "-0.0"] {
            let body = format!(r#"{{"model":"demo","messages":[{{"role":"user","content":"x"}}],"{name}":{number}}}"#);
            let reply = server.send(request("POST", CHAT, &body)).await;
            assert!(reply.status == 200 || reply.status == 400, "{name} = {number}: {}", reply.text);
        }
    }
}

#[tokio::test]
async fn refuses_bodies_that_are_not_json() {
    let check = |body: &'static [u8], part: &'static str| async move {
        let mut sent = request("POST", CHAT, "");
        *sent.body_mut() = Body::from(body);
        let (shape, message) = Server::new().send(sent).await.error(400);
        assert_eq!(shape, "invalid_request_error invalid_json -");
        assert!(message.contains(part), "{message}");
    };
    check(b"", "line 1 column 0").await;
    check(b"{\"model\": \"demo\",\n oops}", "line 2 column 2").await;
    check(b"{\"model\": \"de", "line 1").await;
    check(b"{\"model\": \"\xFF\"}", "not UTF-8 (at byte 11)").await;
    check(b"[]", "must be a JSON object").await;
    let deep: &'static [u8] = Box::leak(["{\"user\": ", &"[".repeat(50_000)].concat().into_boxed_str()).as_bytes();
    check(deep, "recursion limit").await;
}

#[tokio::test]
async fn refuses_other_content_types_and_compressed_bodies() {
    for (name, value) in [("content-type", "text/plain"), ("content-type", ""), ("content-encoding", "gzip")] {
        let mut sent = request("POST", CHAT, &chat_body(json!({})).to_string());
        sent.headers_mut().insert(name, value.parse().unwrap());
        let (shape, _) = Server::new().send(sent).await.error(415);
        assert_eq!(shape, "invalid_request_error unsupported_media_type -");
    }
    let mut sent = request("POST", CHAT, &chat_body(json!({})).to_string());
    sent.headers_mut().insert("content-type", "Application/JSON; charset=utf-8".parse().unwrap());
    assert_eq!(Server::new().send(sent).await.status, 200);
}

#[tokio::test]
async fn bounds_the_body_by_its_announced_and_its_real_length() {
    let body = |bytes: usize| {
        let empty = chat_body(json!({"user": ""})).to_string();
        chat_body(json!({"user": "u".repeat(bytes - empty.len())})).to_string()
    };
    let server = Server::new();
    assert_eq!(server.send(request("POST", CHAT, &body(BODY_BYTES))).await.status, 200);
    let reply = server.send(request("POST", CHAT, &body(BODY_BYTES + 1))).await;
    let (shape, message) = reply.error(413);
    assert_eq!(shape, "invalid_request_error request_too_large -");
    assert!(message.contains("65536 bytes"), "{message}");
    let mut announced = request("POST", CHAT, "{}");
    announced.headers_mut().insert("content-length", (BODY_BYTES + 1).to_string().parse().unwrap());
    server.send(announced).await.error(413);
    // Chunks without end: refused at the limit, not at the end that never comes.
    let mut endless = request("POST", CHAT, "");
    let chunks = stream::repeat_with(|| Ok::<_, Infallible>(Bytes::from_static(&[b' '; 4096])));
    *endless.body_mut() = Body::from_stream(chunks);
    server.send(endless).await.error(413);
}

#[tokio::test(start_paused = true)]
async fn gives_up_on_a_body_that_stalls_or_trickles() {
    let server = Server::new();
    let mut stalled = request("POST", CHAT, "");
    let begun = stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"{")) });
    *stalled.body_mut() = Body::from_stream(begun.chain(stream::pending()));
    let reply = server.send(stalled).await;
    assert_eq!(reply.error(408).0, "invalid_request_error timeout -");
    assert_eq!(reply.header("retry-after"), Some("1"), "clients repeat a 408 unasked");
    let mut trickle = request("POST", CHAT, "");
    let drops = stream::unfold((), |()| async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        Some((Ok::<_, Infallible>(Bytes::from_static(b" ")), ()))
    });
    *trickle.body_mut() = Body::from_stream(drops);
    server.send(trickle).await.error(408);
}

#[tokio::test]
async fn knows_unknown_urls_models_and_methods() {
    let server = Server::new();
    let (shape, message) = server.get("/v1/nope").await.error(404);
    assert_eq!(
        (shape.as_str(), message.as_str()),
        ("invalid_request_error unknown_url -", "unknown request URL: GET /v1/nope")
    );
    for (path, meant) in [
        ("/chat/completions", CHAT),
        ("/completions", "/v1/completions"),
        ("/v1/v1/chat/completions", CHAT),
        ("/v1/v1/models", "/v1/models"),
    ] {
        let (_, message) = server.get(path).await.error(404);
        assert_eq!(message, format!("unknown request URL: GET {path}; did you mean {meant}?"));
    }
    let model = "invalid_request_error model_not_found model";
    assert_eq!(server.chat(json!({"model": "gpt-9"})).await.error(404).0, model);
    assert_eq!(server.get("/v1/models/gpt-9").await.error(404).0, model);
    for (method, path, allow) in
        [("GET", CHAT, "POST"), ("POST", "/v1/models", "GET,HEAD"), ("DELETE", "/healthz", "GET,HEAD")]
    {
        let reply = server.send(request(method, path, "")).await;
        assert_eq!(reply.error(405).0, "invalid_request_error method_not_allowed -");
        assert_eq!(reply.header("allow"), Some(allow), "{path}");
    }
}

#[tokio::test]
async fn maps_what_the_worker_says_before_the_first_token() {
    let check = |error: WorkerError, status: u16, shape: &'static str, retry_after: Option<&'static str>| async move {
        for stream in [false, true] {
            let failed = error.clone();
            let server = Server::scripted(move |_| vec![Step::Failed(failed.clone())]);
            let reply = server.chat(json!({ "stream": stream })).await;
            assert_eq!(reply.error(status).0, shape);
            assert_eq!(reply.header("retry-after"), retry_after, "{error:?}");
        }
    };
    check(WorkerError::QueueFull, 429, "rate_limit_error queue_full -", Some("1")).await;
    check(WorkerError::DeadlineExceeded, 504, "server_error deadline_exceeded -", Some("5")).await;
    let rejection = Rejection::new("too busy");
    check(WorkerError::Rejected(Box::new(rejection.clone())), 503, "server_error overloaded -", Some("1")).await;
    let rejection = Rejection { code: "tier_full".into(), retry_after: Duration::from_millis(2500), ..rejection };
    check(WorkerError::Rejected(Box::new(rejection)), 503, "server_error tier_full -", Some("3")).await;
    check(WorkerError::WorkerLost, 503, "server_error worker_lost -", Some("1")).await;
    check(WorkerError::Refused("too long".into()), 400, "invalid_request_error - -", None).await;
    check(WorkerError::InvalidLogits, 500, "server_error server_error -", None).await;
    check(WorkerError::Engine("x".into()), 500, "server_error server_error -", None).await;
}

#[tokio::test]
async fn an_error_after_the_first_token_of_a_unary_request_is_still_a_status() {
    let failed = Step::Failed(WorkerError::Engine("x".into()));
    let server = Server::scripted(move |_| vec![Step::Started(0), Step::Text("Hel"), failed.clone()]);
    server.chat(json!({})).await.error(500);
    let cancelled = Server::scripted(|_| vec![Step::Started(0), Step::Finished(FinishReason::Cancelled, 0)]);
    assert_eq!(cancelled.chat(json!({})).await.error(503).0, "server_error overloaded -");
    let silent = Server::scripted(|_| Vec::new());
    assert_eq!(silent.chat(json!({})).await.error(503).0, "server_error worker_lost -");
}

#[tokio::test]
async fn a_full_pool_is_overload_and_cancels_what_was_submitted() {
    let (pool, messages) = Pool::stuck(2);
    let server = Server::over(Rules::default(), pool);
    let reply = server.chat(json!({"n": 3})).await;
    assert_eq!(reply.error(503).0, "server_error overloaded -");
    assert_eq!(reply.header("retry-after"), Some("1"));
    for message in messages.try_iter() {
        let camshaft_api::backend::PoolMessage::Submit(submission) = message else { continue };
        assert!(submission.events.is_closed());
    }
    drop(messages);
    assert_eq!(server.chat(json!({})).await.error(503).0, "server_error overloaded -");
}

/// An API over one model in the state that a server has while it loads.
fn loading(template: &str) -> Result<Arc<Api>, StartError> {
    let (pool, _messages) = Pool::stuck(1);
    let demo = Server::over(Rules::default(), pool).api.model("demo").unwrap();
    let mut model = demo;
    let Backend::Generate(generator) = &mut model.backend else { panic!("it generates") };
    let info = ModelInfo { chat_template: Some(template.to_owned()), ..generator.text.info.clone() };
    generator.text = TextModel::local(info, Arc::new(ByteTokenizer), generator.grammars.clone(), None);
    Api::new(ApiOptions {
        models: vec![model],
        life: Arc::new(FixedModels),
        policies: Arc::new(Fixed(Arc::new(Rules::default()))),
        registry: prometheus::Registry::new(),
        limits: LIMITS,
        quotas: Arc::new(LocalQuotas::default()),
        control: Arc::new(NoControl(Reloaded::default)),
        vllm_aliases: true,
        operators: Vec::new(),
        kernels: "built-in".to_owned(),
        readiness: Arc::new(Readiness::new()),
    })
}

#[tokio::test]
async fn is_not_ready_while_it_loads() {
    let router = public_router(loading("x").unwrap(), PublicAccess::default());
    for (method, path) in [("GET", "/readyz"), ("POST", CHAT)] {
        let response = router.clone().oneshot(request(method, path, "{}")).await.unwrap();
        assert_eq!(response.status(), 503, "{path}");
        assert_eq!(response.headers()["retry-after"], "5");
    }
}

#[tokio::test]
async fn regression_a_template_that_takes_long_holds_up_no_other_request() {
    // Only for what is asked below: templates are tried when they are loaded.
    let slow = "{% if messages[0].content == 'hi' %}{% set s = 'ab' * 500000 %}{% for i in range(20000) %}\
                {% if s ~ 'x' == 'y' %}{% endif %}{% endfor %}{% endif %}x";
    let api = loading(slow).unwrap();
    api.readiness.set_ready();
    let router = public_router(api, PublicAccess::default());
    // There is one thread for both.
    let chat = tokio::spawn(router.clone().oneshot(request("POST", CHAT, &chat_body(json!({})).to_string())));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    let health = router.oneshot(request("GET", "/healthz", "")).await.unwrap();
    assert_eq!(health.status(), 200);
    assert!(!chat.is_finished(), "its template renders aside");
    assert_eq!(chat.await.unwrap().unwrap().status(), 503, "nobody takes what it submits");
}

#[tokio::test]
async fn a_template_that_does_not_compile_ends_nothing_but_chats() {
    let api = loading("{% for %}").unwrap();
    api.readiness.set_ready();
    let router = public_router(api, PublicAccess::default());
    let chat = router.clone().oneshot(request("POST", CHAT, &chat_body(json!({})).to_string())).await.unwrap();
    assert_eq!((chat.status().as_u16(), &chat.headers()["x-should-retry"]), (503, &"false".parse().unwrap()));
    let text = r#"{"model": "demo", "text": "hi"}"#;
    let text = router.oneshot(request("POST", "/v1/tokenize", text)).await.unwrap();
    assert_eq!(text.status(), 200);
}
