//! What is not generation: models, tokens, health, metrics, admin, request ids, authentication.
use axum::body::Body;
use axum::http::Request;
use camshaft_api::{Access, PolicyScan, ROUTES, Reloaded, Route};
use camshaft_core::policy::{AuthOutcome, Principal, guarded};
use camshaft_core::segments::Namespace;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::fixture::{Server, chat_body, request};
use crate::policies::{Rules, fault, refusal};
use crate::pool::{UNKNOWN_SESSION, hello};

/// A path of the route table with its placeholders filled in.
pub(crate) fn sample(route: &Route) -> String {
    let parts = route.path.split('/').map(|part| match part {
        "{*id}" | "{id}" => "demo",
        "{hook}" => "sampler",
        "{name}" => "avoid-words",
        "{mode}" => "off",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

#[tokio::test]
async fn guards_every_route_but_health() {
    let refused = Rules::default().auth(|_| AuthOutcome::Refuse(refusal(401, "invalid_api_key")));
    let server = Server::with(refused, hello);
    let mut guarded = 0;
    for route in ROUTES {
        let path = sample(route);
        let reply = server.send(request(route.method.as_str(), &path, "not even JSON")).await;
        match route.access {
            Access::Open => assert_eq!(reply.status, 200, "{route:?}"),
            Access::Guarded | Access::Monitoring => {
                guarded += 1;
                if path.starts_with("/v2") && path != "/v2/rerank" {
                    assert_eq!((reply.status.as_u16(), reply.json()["error"].is_string()), (401, true), "{route:?}");
                    continue;
                }
                if path.starts_with("/v1/messages") {
                    let kind = json!("authentication_error");
                    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["type"]), (401, &kind), "{route:?}");
                    continue;
                }
                assert_eq!(reply.error(401).0, "authentication_error invalid_api_key model", "{route:?}");
                assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
            }
            Access::Operators => assert_eq!(reply.status, 404, "{route:?}: never on the public listener"),
        }
    }
    assert_eq!(server.send(request("HEAD", "/metrics", "")).await.status, 401);
    assert_eq!(server.metric(r#"camshaft_rejections_total{reason="auth"}"#).await, f64::from(guarded + 1));
}

#[test]
fn policies_know_every_guarded_route_and_no_other() {
    let is_guarded = |route: &&Route| matches!(route.access, Access::Guarded | Access::Monitoring);
    let mut known: Vec<&str> = ROUTES.iter().filter(is_guarded).map(Route::canonical).collect();
    known.dedup();
    assert_eq!(known, guarded::ROUTES);
}

#[test]
fn only_health_and_the_description_are_open() {
    let open: Vec<_> = ROUTES.iter().filter(|route| route.access == Access::Open).map(|route| route.path).collect();
    let health = ["/healthz", "/health", "/v2/health/live", "/", "/readyz", "/ready", "/v2/health/ready"];
    assert_eq!(open, [&health[..], &["/openapi.json", "/docs"]].concat());
}

#[tokio::test]
async fn the_admin_listener_asks_for_no_credentials_and_has_no_clients_routes() {
    let refused = Rules::default().auth(|_| AuthOutcome::Refuse(refusal(401, "invalid_api_key")));
    let server = Server::with(refused, hello);
    for route in ROUTES {
        let sent = request(route.method.as_str(), &sample(route), "");
        let status = server.admin.clone().oneshot(sent).await.unwrap().status();
        assert_eq!(
            status == 404,
            // There are no adapters and operations with the names that the test asks for.
            route.access == Access::Guarded
                || route.path.contains("{mode}")
                || route.path.contains("{adapter}")
                || route.path == "/admin/operations/{id}",
            "{route:?}: {status}"
        );
    }
}

#[tokio::test]
async fn operators_reread_drain_and_resume() {
    let server = Server::new();
    let admin = async |method, path| {
        let reply = server.admin.clone().oneshot(request(method, path, "")).await.unwrap();
        (reply.status().as_u16(), reply)
    };
    assert_eq!(admin("POST", "/admin/reload").await.0, 200);
    assert_eq!(admin("GET", "/admin/config").await.0, 200);
    assert_eq!(admin("POST", "/admin/drain").await.0, 200);
    assert_eq!(server.chat(json!({})).await.error(503).0, "server_error draining -");
    assert_eq!(admin("POST", "/admin/resume").await.0, 200);
    assert_eq!(server.chat(json!({})).await.status, 200);
    assert_eq!(admin("GET", "/admin/workers").await.0, 200);
    for path in ["/admin/reload", "/admin/drain", "/admin/resume"] {
        assert_eq!(server.post(path, json!({})).await.status, 404, "never on the public listener");
    }
}

#[tokio::test]
async fn regression_a_reload_that_did_not_happen_is_no_success() {
    let cases: [(fn() -> Reloaded, u16); 4] = [
        (|| Reloaded { error: Some("why".to_owned()), ..Reloaded::default() }, 422),
        (|| Reloaded { error: Some("why".to_owned()), policies: PolicyScan::Busy, ..Reloaded::default() }, 503),
        (|| Reloaded { error: Some("why".to_owned()), policies: PolicyScan::Unanswered, ..Reloaded::default() }, 500),
        (|| panic!("as the test asked"), 500),
    ];
    for (reload, status) in cases {
        let reply = Server::reloading(reload).admin.oneshot(request("POST", "/admin/reload", "")).await.unwrap();
        assert_eq!(reply.status(), status);
    }
}

#[tokio::test]
async fn a_session_is_pinned_and_closed_within_the_callers_namespace() {
    let namespaces = [
        ("acme", "acme", Namespace::Tenant("acme".into())),
        // The name of another tenant's own leads to no tenant's own.
        ("acme", "research", Namespace::Named("research".into())),
        ("acme", "shared", Namespace::Shared),
        // One that is only called so has not chosen to share.
        ("shared", "shared", Namespace::Tenant("shared".into())),
    ];
    for (tenant, cache, expected) in namespaces {
        let principal =
            Principal { tenant: tenant.into(), cache_namespace: cache.to_owned(), ..Principal::anonymous() };
        let server = Server::with(Rules::default().auth(move |_| AuthOutcome::Allow(principal.clone())), hello);
        assert_eq!(server.complete(json!({"session_id": "talk-1"})).await.status, 200);
        let start = server.start();
        assert_eq!((start.namespace, start.session), (expected.clone(), Some("talk-1".into())));
        let reply = server.post("/v1/session/close", json!({"model": "demo", "session_id": "talk-1"})).await;
        assert_eq!(reply.json(), json!({"id": "talk-1", "object": "session.closed", "closed": true}));
        let closed = server.pool.closed_sessions.recv_timeout(std::time::Duration::from_secs(10));
        assert_eq!(closed.unwrap(), (expected, "talk-1".into()));
    }
    let server = Server::new();
    assert_eq!(server.chat(json!({"hints": {"tier": "batch"}})).await.status, 200);
    for (hints, param) in [(json!({"tier": 7}), "hints.tier"), (json!(["tier"]), "hints")] {
        let reply = server.chat(json!({ "hints": hints })).await;
        assert!(reply.error(400).0.ends_with(param), "{}", reply.text);
    }
    for (body, param) in [
        (json!({"model": "demo"}), "session_id"),
        (json!({"model": "demo", "session_id": "two words"}), "session_id"),
        (json!({"session_id": "s"}), "model"),
    ] {
        let reply = server.post("/v1/session/close", body).await;
        assert!(reply.error(400).0.ends_with(param), "{}", reply.text);
    }
}

#[tokio::test]
async fn regression_closing_an_unknown_session_does_not_say_that_one_was_closed() {
    let body = json!({"model": "demo", "session_id": UNKNOWN_SESSION});
    let reply = Server::new().post("/v1/session/close", body).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json(), json!({"id": UNKNOWN_SESSION, "object": "session.closed", "closed": false}));
}

#[tokio::test]
async fn regression_a_request_without_a_model_is_told_which_there_are() {
    let ask = async |server: Server| server.post("/v1/tokenize", json!({"text": "x"})).await.error(400);
    let (shape, message) = ask(Server::new()).await;
    assert_eq!(shape, "invalid_request_error - model");
    assert_eq!(message, "model is required where several are served: demo, org/secret");
    // Whoever may not use a model does not learn of it.
    let required = "model is required where several are served: ";
    assert_eq!(ask(Server::with(only(&[]), hello)).await.1, required);
}

/// Callers may use only these models.
fn only(models: &[&str]) -> Rules {
    let models: Vec<String> = models.iter().map(|&id| id.to_owned()).collect();
    Rules::default()
        .auth(move |_| AuthOutcome::Allow(Principal { allowed_models: Some(models.clone()), ..Principal::anonymous() }))
}

#[tokio::test]
async fn regression_a_request_without_a_model_gets_the_only_one_that_the_caller_may_use() {
    for id in ["demo", "org/secret"] {
        let server = Server::with(only(&[id, "not-served"]), hello);
        let reply = server.post("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "x"}]})).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(reply.json()["model"], id);
    }
}

#[tokio::test]
async fn maps_an_auth_refusal_and_a_fault() {
    let forbidden = Server::with(Rules::default().auth(|_| AuthOutcome::Refuse(refusal(403, "blocked"))), hello);
    assert_eq!(forbidden.get("/v1/models").await.error(403).0, "permission_error blocked model");
    let limited =
        Server::with(Rules::default().auth(|_| AuthOutcome::Refuse(refusal(429, "rate_limit_exceeded"))), hello);
    let reply = limited.get("/v1/models").await;
    assert_eq!(reply.error(429).0, "rate_limit_error rate_limit_exceeded model");
    assert_eq!(reply.header("retry-after"), Some("1"));
    let broken = Server::with(Rules::default().auth(|_| AuthOutcome::Fault(fault())), hello);
    let reply = broken.get("/v1/models").await;
    assert_eq!(reply.error(500), ("server_error server_error -".into(), "an auth policy failed".into()));
    assert_eq!(reply.header("x-should-retry"), Some("false"));
}

#[tokio::test]
async fn shows_auth_policies_the_head_of_the_request() {
    let rules = Rules::default().auth(|request| {
        let head = (request.method.as_str(), request.path.as_str(), request.remote_address.as_str(), request.loopback);
        let key = request.headers.iter().find(|(name, _)| name == "authorization").map(|(_, value)| &**value);
        let binary = request.headers.contains(&("x-binary".to_owned(), vec![0xFF]));
        match (head, key) {
            (("GET", "/v1/models", "127.0.0.1", true), Some(b"Bearer k")) if binary && request.query == "x=1" => {
                AuthOutcome::Allow(Principal::anonymous())
            }
            _ => AuthOutcome::Refuse(refusal(401, "invalid_api_key")),
        }
    });
    let mut sent = request("GET", "/v1/models?x=1", "");
    sent.headers_mut().insert("authorization", "Bearer k".parse().unwrap());
    sent.headers_mut().insert("x-binary", axum::http::HeaderValue::from_bytes(&[0xFF]).unwrap());
    // With its host, content type, key and the one that nobody can read: as many as there may be.
    for i in 0..96 {
        sent.headers_mut().append("x-many", i.to_string().parse().unwrap());
    }
    assert_eq!(Server::with(rules, hello).send(sent).await.status, 200);
}

#[tokio::test]
async fn a_peer_without_an_address_is_not_local() {
    let rules = Rules::default().auth(|request| match request.loopback {
        true => AuthOutcome::Allow(Principal::anonymous()),
        false => AuthOutcome::Refuse(refusal(401, "invalid_api_key")),
    });
    let server = Server::with(rules, hello);
    assert_eq!(server.get("/v1/models").await.status, 200);
    let unknown = Request::builder().uri("/v1/models").header("host", "a").body(Body::empty()).unwrap();
    assert_eq!(server.send(unknown).await.status, 401);
}

#[tokio::test]
async fn regression_what_a_proxy_forwards_is_not_local() {
    let rules = Rules::default().auth(|request| match request.loopback {
        true => AuthOutcome::Allow(Principal::anonymous()),
        false => AuthOutcome::Refuse(refusal(401, "invalid_api_key")),
    });
    let server = Server::with(rules, hello);
    for (name, value) in [
        ("forwarded", "for=192.0.2.7"),
        ("x-forwarded-for", "127.0.0.1"),
        ("X-Real-IP", ""),
        ("via", "1.1 proxy"),
        ("x-forwarded-for", "caf\u{e9}"),
    ] {
        let mut sent = request("GET", "/v1/models", "");
        for i in 0..97 {
            sent.headers_mut().append("x-many", i.to_string().parse().unwrap());
        }
        let name: axum::http::HeaderName = name.parse().unwrap();
        sent.headers_mut().append(&name, axum::http::HeaderValue::from_bytes(value.as_bytes()).unwrap());
        assert_eq!(server.send(sent).await.status, 401, "{name}: {value}");
    }
}

#[tokio::test]
async fn regression_a_page_that_points_its_name_here_is_not_local() {
    let rules = Rules::default().auth(|request| match request.loopback {
        true => AuthOutcome::Allow(Principal::anonymous()),
        false => AuthOutcome::Refuse(refusal(401, "invalid_api_key")),
    });
    let server = Server::with(rules, hello);
    let ask = async |path: &str, host: &str, origin: Option<&str>| {
        let mut sent = request("GET", path, "");
        sent.headers_mut().insert("host", host.parse().unwrap());
        origin.iter().for_each(|origin| _ = sent.headers_mut().insert("origin", origin.parse().unwrap()));
        server.send(sent).await.status.as_u16()
    };
    for path in ["/metrics", "/v1/models"] {
        assert_eq!(ask(path, "evil.example:8080", Some("http://evil.example:8080")).await, 401);
        assert_eq!(ask(path, "evil.example:8080", None).await, 401);
        assert_eq!(ask(path, "localhost:8080", Some("http://evil.example")).await, 401);
        assert_eq!(ask(path, "127.0.0.1:8080", Some("http://localhost:3000")).await, 200);
    }
}

#[tokio::test]
async fn regression_a_key_that_nobody_can_read_is_a_wrong_one() {
    let server = Server::new();
    for name in ["authorization", "x-api-key"] {
        let mut sent = request("GET", "/v1/models", "");
        sent.headers_mut().append(name, "sk-readable".parse().unwrap());
        sent.headers_mut().append(name, axum::http::HeaderValue::from_bytes(b"sk-\xff").unwrap());
        let reply = server.send(sent).await;
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        let (shape, message) = reply.error(401);
        assert_eq!(shape, "authentication_error invalid_api_key -");
        assert_eq!(message, format!("the key in {name} is not UTF-8"));
    }
}

#[tokio::test]
async fn lists_only_models_that_the_caller_may_use() {
    let server = Server::with(only(&["demo"]), hello);
    let mut demo = json!({"id": "demo", "object": "model", "created": 1_700_000_000, "owned_by": "camshaft",
        "display_name": "demo", "max_model_len": 200, "context_length": 200});
    assert_eq!(server.get("/v1/models").await.json(), json!({"object": "list", "data": [demo]}));
    let details = json!({
        "task": "generate", "state": "ready", "context_tokens": 200, "trained_context_tokens": 1024, "vocabulary_tokens": 258,
        "parameters": 3, "quantization": "Q4_0", "prefix_reuse": "ranges", "chat_template": true,
        "capabilities": ["chat", "completions", "tools", "structured_outputs", "reasoning", "logprobs", "adapters", "sessions"],
        "family": "hermes",
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0,
            "repeat_last_n": 64, "frequency_penalty": 0.0, "presence_penalty": 0.0},
    });
    demo.as_object_mut().unwrap().extend(details.as_object().unwrap().clone());
    assert_eq!(server.get("/v1/models/demo").await.json(), demo);
    let forbidden = "permission_error model_not_allowed model";
    assert_eq!(server.get("/v1/models/org/secret").await.error(403).0, forbidden);
    assert_eq!(server.chat(json!({"model": "org/secret"})).await.error(403).0, forbidden);
    assert_eq!(Server::new().get("/v1/models/org/secret").await.json()["id"], "org/secret");
}

#[tokio::test]
async fn regression_callers_see_only_their_own_and_operators_see_all() {
    let as_tenant = |tenant: &'static str| {
        let allowed_models = (tenant != "ops").then(|| vec!["demo".to_owned()]);
        let principal = Principal { tenant: tenant.into(), allowed_models, ..Principal::anonymous() };
        Server::with(Rules::default().auth(move |_| AuthOutcome::Allow(principal.clone())), hello)
    };
    let own = as_tenant("acme");
    assert_eq!(own.get("/metrics").await.error(403).0, "permission_error operators_only -");
    let stats = json!({
        "state": "ready", "tenant": "acme", "models": {"demo": {"waiting": 0}}, "version": env!("CARGO_PKG_VERSION"),
    });
    assert_eq!(own.get("/server/stats").await.json(), stats);
    let all = as_tenant("ops");
    assert_eq!(all.get("/metrics").await.status, 200);
    assert!(all.get("/server/stats").await.json()["models"]["org/secret"].is_object());
    // Without a tenant of its own: an operator only from this machine.
    let server = Server::new();
    assert_eq!(server.get("/metrics").await.status, 200);
    let mut forwarded = request("GET", "/metrics", "");
    forwarded.headers_mut().insert("x-forwarded-for", "192.0.2.7".parse().unwrap());
    assert_eq!(server.send(forwarded).await.status, 403);
    assert_eq!(server.admin("/server/stats").await.json()["policy_generation"], 7);
    assert_eq!(server.admin("/server/stats").await.json()["kernels"], "built-in");
}

#[tokio::test]
async fn tokenizes_and_detokenizes() {
    let server = Server::new();
    let reply = server.post("/v1/tokenize", json!({"model": "demo", "text": "é!"})).await.json();
    assert_eq!(reply, json!({"tokens": [195, 169, 33], "offsets": [[0, 1], [1, 2], [2, 3]]}));
    let special = json!({"model": "demo", "text": "<|end|>", "add_special": true, "parse_special": true});
    assert_eq!(server.post("/v1/tokenize", special).await.json()["tokens"], json!([256, 257]));
    let reply = server.post("/v1/detokenize", json!({"model": "demo", "tokens": [256, 195, 169, 33]})).await.json();
    assert_eq!(reply, json!({"text": "é!"}));
    let bad = |body: Value| server.post("/v1/detokenize", body);
    assert_eq!(bad(json!({"model": "demo", "tokens": [258]})).await.error(400).0, "invalid_request_error - tokens[0]");
    assert_eq!(bad(json!({"model": "demo"})).await.error(400).0, "invalid_request_error - tokens");
    let unknown = bad(json!({"model": "x", "tokens": []})).await.error(404).0;
    assert_eq!(unknown, "invalid_request_error model_not_found model");
}

#[tokio::test]
async fn repeats_a_sane_request_id_and_makes_one_otherwise() {
    let server = Server::new();
    let with_id = |id: &str| {
        let mut sent = request("GET", "/healthz", "");
        sent.headers_mut().insert("x-request-id", id.parse().unwrap());
        server.send(sent)
    };
    assert_eq!(with_id("abc-1.2_3").await.header("x-request-id"), Some("abc-1.2_3"));
    let made = with_id("a b").await;
    assert!(made.header("x-request-id").unwrap().starts_with("req_"));
    let chat = server.chat(json!({})).await;
    assert!(chat.header("x-request-id").unwrap().starts_with("req_"));
}

#[tokio::test]
async fn counts_requests_tokens_and_latencies() {
    let server = Server::new();
    assert_eq!(server.chat(json!({"n": 2})).await.status, 200);
    assert!(server.chat(json!({"stream": true})).await.events().1);
    server.get("/nope").await;
    for (series, expected) in [
        (r#"camshaft_requests_total{endpoint="/v1/chat/completions",status="200"}"#, 2.0),
        (r#"camshaft_requests_total{endpoint="other",status="404"}"#, 1.0),
        (r#"camshaft_request_duration_seconds_count{endpoint="/v1/chat/completions"}"#, 2.0),
        (r#"camshaft_time_to_first_token_seconds_count{model="demo"}"#, 2.0),
        // Two tokens in the second delta of each choice.
        (r#"camshaft_inter_token_latency_seconds_count{model="demo"}"#, 6.0),
        (r#"camshaft_prompt_tokens_total{model="demo"}"#, 63.0),
        (r#"camshaft_prompt_tokens_cached_total{model="demo"}"#, 6.0),
        (r#"camshaft_generated_tokens_total{model="demo"}"#, 15.0),
    ] {
        assert_eq!(server.metric(series).await, expected, "{series}");
    }
    let reply = server.get("/metrics").await;
    assert!(reply.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
}

#[tokio::test]
async fn admin_shows_policies_and_models_and_nothing_else() {
    let server = Server::new();
    let reply = server.admin("/admin/policies").await.json();
    assert_eq!(reply["generation"], 7);
    assert_eq!(reply["policies"][0]["name"], "avoid-words");
    assert_eq!(reply["policies"][0]["hook"], "sampler");
    assert_eq!(reply["policies"][0]["state"], "active");
    let models = server.admin("/admin/models").await.json();
    assert_eq!(models["models"][0]["context_tokens"], 200);
    assert_eq!(server.admin("/healthz").await.status, 200);
    server.admin("/v1/models").await.error(404);
    server.get("/admin/policies").await.error(404);
}

#[tokio::test]
async fn admits_nothing_before_it_is_ready_or_while_it_drains() {
    let server = Server::new();
    let fresh = camshaft_api::Readiness::new();
    assert!(!fresh.is_ready());
    server.api.readiness.set_draining();
    let reply = server.chat(json!({})).await;
    assert_eq!(reply.error(503).0, "server_error draining -");
    assert_eq!(reply.header("connection"), Some("close"));
    assert_eq!(reply.header("retry-after"), Some("5"));
    assert_eq!(server.get("/readyz").await.error(503).0, "server_error draining -");
    assert_eq!(server.get("/healthz").await.json()["status"], "ok");
    // Every guarded route says so, whoever asks, so that a client goes elsewhere.
    assert_eq!(server.get("/v1/models").await.error(503).0, "server_error draining -");
    let reply = server.get("/metrics").await;
    assert_eq!((reply.status.as_u16(), reply.header("connection")), (200, Some("close")));
    assert_eq!(server.metric(r#"camshaft_rejections_total{reason="draining"}"#).await, 3.0);
}

#[tokio::test]
async fn a_policy_that_panics_costs_one_request() {
    let server = Server::with(Rules::default().validator(|_| panic!("a bug")), hello);
    let reply = server.post("/v1/chat/completions", chat_body(json!({}))).await;
    assert_eq!(reply.error(500), ("server_error server_error -".into(), "internal error".into()));
    assert_eq!(server.get("/healthz").await.status, 200);
}
