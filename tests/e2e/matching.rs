//! `[match]` over HTTP: tenants, models, endpoints, and attempts to get around a guard.
use camshaft_tests::{Request, Setup, api_keys, guarded_requests};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn chat() -> Value {
    json!({"model": "demo", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello!"}]})
}

fn completion() -> Value {
    json!({"model": "demo", "max_tokens": 9, "prompt": "Once"})
}

#[test]
fn a_validator_concerns_the_tenants_models_and_endpoints_that_it_names() {
    let limits = |matching: &str| format!("[match]\n{matching}\n[settings]\nmax-tokens = 5\n");
    let server = Setup::new()
        .plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("sk-0", ""), ("sk-1", "")]))
        .plugin(
            "validator",
            "10-tenant",
            "validator-limits",
            &limits("tenants = [\"tenant-1\"]\nendpoints = [\"completion\"]"),
        )
        .plugin("validator", "20-model", "validator-limits", &limits("models = [\"other-*\"]"))
        .start();
    let status = |key: &str, path: &str, body: &Value| server.client.with_key(key).post(path, body).status;
    assert_eq!(status("sk-0", COMPLETIONS, &completion()), 200);
    assert_eq!(status("sk-1", COMPLETIONS, &completion()), 400, "its tenant and endpoint");
    assert_eq!(status("sk-1", CHAT, &chat()), 200, "another endpoint");
    assert_eq!(status("sk-1", "/chat", &chat()), 200);
    let calls = |plugin: &str, outcome: &str| {
        let labels = [("hook", "validator"), ("plugin", plugin), ("outcome", outcome)];
        server.metrics().count("camshaft_policy_calls_total", &labels)
    };
    assert_eq!((calls("tenant", "refuse"), calls("tenant", "accept"), calls("model", "accept")), (1.0, 0.0, 0.0));
    server.policies.put("validator", "20-model.toml", limits("models = [\"dem*\"]"));
    server.wait_for_policy(("validator", "model"), |entry| entry["generation"] == 2);
    assert_eq!(status("sk-0", CHAT, &chat()), 400);
}

#[test]
fn regression_no_path_leads_around_an_auth_policy_that_matches_its_route() {
    // A strict policy for chats, and one that lets everybody do the rest.
    let strict =
        api_keys(&[("sk-0", "")]).replace("[settings]", "[match]\nendpoints = [\"/v1/chat/completions\"]\n[settings]");
    let server = Setup::new()
        .plugin("auth", "10-strict", "auth-api-keys", &strict)
        .guest("auth", "20-open", "[match]\nendpoints = [\"/v1/completions\", \"/v1/models*\"]\n")
        .start();
    assert_eq!(server.client.post(COMPLETIONS, &completion()).status, 200);
    assert_eq!(server.client.get("/v1/models").status, 200);
    assert_eq!(server.client.with_key("sk-0").post(CHAT, &chat()).status, 200);
    assert_eq!(server.client.with_key("sk-0").post("/chat", &chat()).status, 200, "its other name");
    for path in [
        CHAT,
        "/chat",
        "/v1/responses",
        "/v1/messages",
        "/chat/",
        "/v1/chat/completions/",
        "/v1/chat/completions?x=/v1/completions",
        "/v1/chat%2Fcompletions",
        "/v1/%63hat/completions",
        "/V1/chat/completions",
        "/v1/completions/../chat/completions",
        "/v1/models/../chat/completions",
        "/v1/models%2f..%2fchat/completions",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/completions/..%2fchat",
    ] {
        let status = server.client.send(&Request::post(path, &chat())).status;
        assert!([401, 404, 405].contains(&status), "{path}: {status}");
    }
    // No policy is asked about the other routes: they are closed, also to this machine.
    let open = [
        "/v1/chat/completions",
        "\"/chat\"",
        "\"/v1/responses\"",
        "\"/v1/messages\"",
        "/generate\"",
        "/v1/completions",
        "/v1/models",
        "\"/v2\"",
        "/v2/repository/index",
        "\"/v2/models/demo\"",
    ];
    for request in guarded_requests() {
        let shown = format!("{request:?}");
        if open.iter().any(|path| shown.contains(path)) {
            continue;
        }
        assert_eq!(server.client.send(&request).status, 401, "{shown}");
    }
    let log = server.settled_log();
    assert!(!log.contains("panicked"), "{log}");
}
