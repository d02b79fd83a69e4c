//! Authentication: API keys, the loopback default, addresses that need a policy.
use std::os::unix::fs::PermissionsExt;

use camshaft_tests::{Request, Server, Setup, api_keys, eventually, guarded_requests};
use serde_json::{Value, json};

use crate::errors::error_of;

const CHAT: &str = "/v1/chat/completions";

fn hello() -> Value {
    json!({"model": "demo", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello!"}]})
}

fn with_keys(keys: &[(&str, &str)], more: &str) -> Server {
    let settings = api_keys(keys).replace("[settings]\n", &format!("[settings]\n{more}\n"));
    Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &settings).start()
}

/// Asserts a 401 that says how to authenticate, and reveals no key.
fn assert_unauthorized(server: &Server, request: &Request) {
    let response = server.client.send(request);
    assert_eq!(response.status, 401, "{request:?}: {}", response.text());
    assert!(response.header("www-authenticate").is_some_and(|scheme| scheme.starts_with("Bearer")), "{response:?}");
    if response.json()["error"].is_string() {
        assert!(format!("{request:?}").contains("\"/v2"), "{request:?}: the Open Inference Protocol's shape");
        return;
    }
    if response.json()["type"] == json!("error") {
        assert!(format!("{request:?}").contains("\"/v1/messages"), "{request:?}: Anthropic's shape");
        assert_eq!(response.json()["error"]["type"], json!("authentication_error"));
        return;
    }
    let error = error_of(&response);
    assert_eq!((&error["type"], &error["code"]), (&json!("authentication_error"), &json!("invalid_api_key")));
}

#[test]
fn only_a_valid_key_is_accepted() {
    let server = with_keys(&[("sk-one", ""), ("sk-two", "")], "");
    let chat = Request::post(CHAT, &hello());
    for key in ["sk-one", "sk-two"] {
        assert_eq!(server.client.with_key(key).send(&chat).status, 200, "{key}");
        assert_eq!(server.client.with_header("x-api-key", key).send(&chat).status, 200, "{key} as x-api-key");
        assert_eq!(server.client.with_header("authorization", &format!("bearer {key}")).send(&chat).status, 200);
    }
    assert_unauthorized(&server, &chat);
    for value in [
        "Bearer sk-three",
        "Bearer sk-on",
        "Bearer sk-one ",
        "sk-one",
        "Bearer",
        "Bearer ",
        "Basic sk-one",
        "Bearer SK-ONE",
    ] {
        let request = chat.clone().header("authorization", value);
        // White space at the end of a header's value does not belong to the value.
        if value != "Bearer sk-one " {
            assert_unauthorized(&server, &request);
        }
    }
    assert_unauthorized(&server, &chat.clone().header("x-api-key", "sk-three"));
    let two = chat.clone().header("authorization", "Bearer sk-one").header("authorization", "Bearer sk-two");
    assert_unauthorized(&server, &two);
    // The server does not read the body of an unknown caller.
    assert_unauthorized(&server, &Request::post(CHAT, &json!({"model": "nope"})));
    let log = server.settled_log();
    assert!(!log.contains("sk-one") && !log.contains("sk-three"), "a key is in the log");
}

#[test]
fn every_route_except_health_requires_a_key() {
    let server = with_keys(&[("sk-one", "")], "");
    for path in ["/healthz", "/readyz", "/health", "/ready"] {
        assert_eq!(server.client.get(path).status, 200, "{path}");
    }
    for request in guarded_requests() {
        assert_unauthorized(&server, &request);
        // Variants of the path do not avoid the guard.
        assert_ne!(server.client.with_key("sk-one").send(&request).status, 401, "{request:?}");
    }
    for path in
        ["/healthz/../v1/models", "//v1/models", "/v1/models/", "/healthz/", "/v1/models%2f", "/HEALTHZ/v1/models"]
    {
        let status = server.client.get(path).status;
        assert!([401, 404].contains(&status), "{path}: {status}");
    }
}

#[test]
fn regression_a_key_sees_only_its_own_and_an_operators_key_sees_all() {
    let keys = api_keys(&[("sk-one", ""), ("sk-two", "")]);
    let tenant = keys.lines().find_map(|line| line.strip_prefix("tenant = ")).expect("keys have tenants").to_owned();
    let setup = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &keys);
    let server = setup.set("metrics.operators", &format!("[{tenant}]")).start();
    let tenants: Vec<&str> = keys.lines().filter_map(|line| line.strip_prefix("tenant = ")).collect();
    for (key, own) in ["sk-one", "sk-two"].into_iter().zip(tenants) {
        let operator = own == tenant;
        let client = server.client.with_key(key);
        assert_eq!(client.get("/metrics").status, if operator { 200 } else { 403 }, "{key}");
        let stats = client.get("/server/stats").json();
        assert_eq!(stats.get("policies").is_some(), operator, "{key}: {stats}");
    }
    assert_eq!(server.admin.get("/metrics").status, 200);
}

#[test]
fn regression_the_admin_listener_is_open_to_others_only_with_a_token() {
    const TOKEN: &str = "0123456789-admin-token";
    let setup = Setup::new();
    let file = setup.scratch.path().join("token");
    std::fs::write(&file, format!("{TOKEN}\n")).expect("a scratch file can be written");
    let mode =
        |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).expect("its mode can be set");
    mode(0o600);
    let path = format!("{:?}", file.to_string_lossy());
    let everywhere = ["--listen", "127.0.0.1:0", "--admin-listen", "0.0.0.0:0", "--policy-dir", "none"];
    let refused = |setup: &Setup| {
        let ended = setup.run_again(&["serve"]);
        assert_eq!(ended.code, Some(64), "{}", ended.stderr);
        assert!(ended.stderr.contains("admin.listen") && ended.stderr.contains("admin.token-file"), "{}", ended.stderr);
    };
    let setup = setup.args(everywhere);
    refused(&setup);
    let setup = setup.set("admin.allow-remote", "true");
    refused(&setup);
    let server = setup.set("admin.token-file", &path).start_as_is("serve");
    assert_eq!(server.admin.get("/healthz").status, 200);
    assert_eq!(server.admin.get("/admin/config").status, 401);
    let admin = server.admin.with_key(TOKEN);
    assert_eq!(admin.get("/admin/config").status, 200);
    std::fs::write(&file, "short").expect("a scratch file can be written");
    let reloaded = admin.post("/admin/reload", &json!({}));
    assert!(reloaded.text().contains("admin.token-file"), "{}", reloaded.text());
    std::fs::write(&file, "9876543210-admin-token").expect("a scratch file can be written");
    assert_eq!(admin.post("/admin/reload", &json!({})).status, 200, "the one before was in force");
    assert_eq!(admin.get("/admin/config").status, 401);
    mode(0o666);
    let reloaded = server.admin.with_key("9876543210-admin-token").post("/admin/reload", &json!({}));
    assert!(reloaded.text().contains("can be written to by others"), "{}", reloaded.text());
}

#[test]
fn a_key_may_be_limited_to_some_models() {
    let server = with_keys(
        &[("sk-all", ""), ("sk-none", "allowed-models = [\"other\"]"), ("sk-demo", "allowed-models = [\"demo\"]")],
        "",
    );
    for (key, status) in [("sk-all", 200), ("sk-demo", 200), ("sk-none", 403)] {
        let response = server.client.with_key(key).post(CHAT, &hello());
        assert_eq!(response.status, status, "{key}: {}", response.text());
        assert_eq!(server.client.with_key(key).get("/v1/models/demo").status, status, "{key}");
        let listed = server.client.with_key(key).get("/v1/models").json()["data"].as_array().unwrap().len();
        assert_eq!(listed, usize::from(status == 200), "{key}");
    }
    let error = error_of(&server.client.with_key("sk-none").post(CHAT, &hello()));
    assert_eq!(error["type"], "permission_error");
    assert_eq!(error["param"], "model");
}

#[test]
fn callers_without_a_key_may_be_allowed_from_loopback() {
    let server = with_keys(&[("sk-one", "")], "anonymous-loopback = true");
    assert_eq!(server.client.post(CHAT, &hello()).status, 200);
    assert_unauthorized(&server, &Request::post(CHAT, &hello()).header("authorization", "Bearer wrong"));
}

#[test]
fn regression_clients_that_insist_on_a_key_may_call_with_the_default_policies() {
    let path = camshaft_tests::repository().join("config/policy.d/auth/10-api-keys.toml");
    let settings = std::fs::read_to_string(path).expect("the default settings can be read");
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &settings).start();
    for _ in 0..5 {
        assert_eq!(server.client.with_key("sk-anything").post(CHAT, &hello()).status, 200);
        assert_eq!(server.client.with_header("x-api-key", "whatever").post(CHAT, &hello()).status, 200);
        assert_eq!(server.client.post(CHAT, &hello()).status, 200);
    }
    assert_eq!(server.settled_log().matches("no API key is configured").count(), 1, "{}", server.settled_log());
}

#[test]
fn regression_with_the_default_policies_a_proxy_on_this_machine_opens_nothing() {
    let path = camshaft_tests::repository().join("config/policy.d/auth/10-api-keys.toml");
    let settings = std::fs::read_to_string(path).expect("the default settings can be read");
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &settings).start();
    assert_eq!(server.client.post(CHAT, &hello()).status, 200);
    let forwarded = Request::post(CHAT, &hello()).header("x-forwarded-for", "192.0.2.7");
    assert_unauthorized(&server, &forwarded);
    assert_unauthorized(&server, &forwarded.header("authorization", "Bearer sk-anything"));
}

#[test]
fn regression_removing_the_last_key_is_logged_as_a_warning() {
    let server = with_keys(&[("sk-one", "")], "anonymous-loopback = true");
    assert_unauthorized(&server, &Request::post(CHAT, &hello()).header("x-api-key", "sk-two"));
    assert!(!server.settled_log().contains("no API key is configured"), "{}", server.settled_log());
    let none = api_keys(&[]).replace("[settings]\n", "[settings]\nanonymous-loopback = true\n");
    server.policies.edit("auth", "10-api-keys.toml", &none);
    eventually("it is said who may call now", || {
        let log = server.log();
        let said = log.lines().any(|line| line.contains("WARN") && line.contains("callers on loopback addresses pass"));
        if said { Ok(()) } else { Err(log) }
    });
}

#[test]
fn without_an_auth_policy_loopback_may_call() {
    let server = Setup::new().start();
    assert_eq!(server.client.post(CHAT, &hello()).status, 200);
    assert_unauthorized(&server, &Request::post(CHAT, &hello()).header("forwarded", "for=192.0.2.7"));
    // Credentials are ignored.
    assert_eq!(server.client.with_key("whatever").post(CHAT, &hello()).status, 200);
}

#[test]
fn a_non_loopback_address_needs_an_auth_policy_or_an_explicit_setting() {
    let setup = Setup::new();
    let dir = setup.policies.root().to_string_lossy().into_owned();
    let everywhere = ["--listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0", "--policy-dir", &dir];
    let finished = setup.args(everywhere).run(&["serve"]);
    assert_eq!(finished.code, Some(64), "{}", finished.stderr);
    assert!(finished.stderr.contains("--allow-anonymous"), "says what would help: {}", finished.stderr);
    assert!(finished.stdout.is_empty(), "{}", finished.stdout);

    let setup = Setup::new();
    let dir = setup.policies.root().to_string_lossy().into_owned();
    let everywhere = ["--listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0", "--policy-dir", &dir];
    let server = setup.args(everywhere).args(["--allow-anonymous"]).start_as_is("serve");
    assert_eq!(server.client.post(CHAT, &hello()).status, 200);

    let setup = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&[("sk-one", "")]));
    let dir = setup.policies.root().to_string_lossy().into_owned();
    let everywhere = ["--listen", "0.0.0.0:0", "--admin-listen", "127.0.0.1:0", "--policy-dir", &dir];
    let server = setup.args(everywhere).start_as_is("serve");
    assert_eq!(server.client.with_key("sk-one").post(CHAT, &hello()).status, 200);
    assert_unauthorized(&server, &Request::post(CHAT, &hello()));
}

#[test]
fn regression_a_policy_directory_that_vanishes_opens_no_door() {
    let server = with_keys(&[("sk-one", "")], "");
    let keyless = Request::post(CHAT, &hello());
    let with_key = server.client.with_header("authorization", "Bearer sk-one");
    assert_unauthorized(&server, &keyless);
    let root = server.policies.root().to_owned();
    std::fs::rename(&root, root.with_extension("away")).unwrap();
    assert_eq!(server.admin.post("/admin/reload", &json!({})).status, 200);
    assert_unauthorized(&server, &keyless);
    assert_eq!(with_key.send(&keyless).status, 200, "and its keys are still good");
    let entry = server.policy("auth", "api-keys").expect("it is still listed");
    assert!(entry["error"].as_str().is_some_and(|why| why.contains("goes on serving")), "{entry}");
    assert_eq!(server.metrics().get("camshaft_policies_without_files", &[("hook", "auth")]), Some(1.0));
    server.wait_for_log("policy goes on serving without its file");
    std::fs::rename(root.with_extension("away"), &root).unwrap();
    server.wait_for_policy(("auth", "api-keys"), |entry| entry["error"].is_null());
    std::fs::remove_dir_all(&root).unwrap();
    server.wait_for_policy(("auth", "api-keys"), |entry| !entry["error"].is_null());
    assert_unauthorized(&server, &keyless);
    // Only somebody who says so opens it.
    assert_eq!(server.admin.post("/admin/policies/auth/api-keys/off", &json!({})).status, 200);
    assert_eq!(server.client.send(&keyless).status, 200);
}

#[test]
fn regression_a_start_without_policies_needs_a_word() {
    for dir in ["none", "."] {
        let setup = Setup::new().args(["--policy-dir", dir]).env("CAMSHAFT_POLICY__ALLOW_EMPTY", "false");
        for command in ["serve", "check"] {
            let finished = setup.run_again(&[command]);
            assert_eq!(finished.code, Some(64), "{finished:?}");
            for word in ["policy.dir = ", "policy.allow-empty = true", "(flag --policy-dir)"] {
                assert!(finished.stderr.contains(word), "{word:?} in {finished:?}");
            }
        }
        assert_eq!(setup.args(["--allow-anonymous"]).run(&["check"]).code, Some(0), "that is a word, too");
    }
}
