//! A running server whose configuration changes, and that is drained and resumed.
use camshaft_tests::{Server, Setup, eventually};
use rustix::process::Signal;
use serde_json::{Value, json};

/// The refusal of too many `min_tokens`, which names the bound of `max_tokens` that holds now.
fn bound(server: &Server) -> String {
    let body = json!({"model": "demo", "messages": [{"role": "user", "content": "a"}], "min_tokens": 1_000_000});
    server.client.post("/v1/chat/completions", &body).json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

fn last_reload(server: &Server) -> Value {
    server.admin.get("/admin/config").json()["last_reload"].clone()
}

#[test]
fn a_changed_file_takes_effect_without_touching_a_stream_and_an_invalid_one_changes_nothing() {
    let server = Setup::new().config("[limits]\nmax-tokens = 600\n[log]\nlevel = \"info\"\n").start();
    let mut stream = server.client.stream(
        "/v1/completions",
        &json!({"model": "demo", "prompt": "Once", "max_tokens": 600, "ignore_eos": true, "stream": true}),
    );
    stream.next();
    server.write_config("[limits]\nmax-tokens = 22\n[log]\nlevel = \"debug\"\n[queue]\nhigh-watermark = 3\n");
    eventually("the new bound is in force", || {
        let message = bound(&server);
        if message.contains("(22)") { Ok(()) } else { Err(message) }
    });
    let report = last_reload(&server);
    assert_eq!(
        report["changed"],
        json!(["limits.max-tokens", "log.level", "queue.high-watermark", "queue.low-watermark"]),
        "{report}"
    );
    server.write_config("[limits]\nmax-tokens = 33\n[queue]\nhigh-watermrk = 1\n");
    eventually("the invalid file is reported", || {
        let report = last_reload(&server);
        let said = report["error"].as_str().unwrap_or_default().contains("high-watermark");
        if said { Ok(()) } else { Err(report) }
    });
    assert!(bound(&server).contains("(22)"));
    server.write_config("[limits]\nconnections = 77\nmax-tokens = 44\n[log]\n[queue]\n");
    server.signal(Signal::HUP);
    eventually("what needs a restart is said", || {
        let report = last_reload(&server);
        if report["needs_restart"] == json!(["limits.connections"]) { Ok(()) } else { Err(report) }
    });
    assert!(bound(&server).contains("(44)"));
    let keys = server.admin.get("/admin/config").json();
    // A key that needs a restart is shown with the value in force.
    assert_eq!(keys["keys"]["limits.connections"]["value"], 1024, "{keys}");
    let source = keys["keys"]["limits.max-tokens"]["source"].as_str().unwrap_or_default().to_owned();
    assert!(source.starts_with("file "), "{keys}");
    assert!(server.metrics().count("camshaft_config_reloads_total", &[("result", "rejected")]) >= 1.0);
    let answer = server.admin.post("/admin/reload", &json!({}));
    assert_eq!(answer.status, 200, "{}", answer.text());
    assert!(stream.finish().is_good(), "the stream that ran all the while ends well");
}

#[test]
fn requests_that_may_take_more_than_was_left_to_them_are_a_warning() {
    let server = Setup::new().config("[limits]\nbodies = \"64MiB\"\n").start();
    let said =
        || server.settled_log().lines().find(|line| line.contains("than was left to them when")).map(str::to_owned);
    let reload = |text: &str| {
        server.write_config(text);
        let report = server.admin.post("/admin/reload", &json!({})).json();
        assert!(report["error"].is_null(), "{report}");
    };
    // As much as before, said otherwise: each request counts 32 times.
    reload("[limits]\nbodies = \"1MiB\"\nbody = \"2MiB\"\n");
    assert_eq!(said(), None);
    reload("[limits]\nbodies = \"65MiB\"\n");
    assert!(said().is_some_and(|line| line.contains("requests may take 1.0 MiB more")), "{}", server.log());
}

#[test]
fn regression_a_configuration_file_that_is_emptied_or_cut_opens_no_door() {
    let setup = Setup::new();
    let dir = setup.scratch.path().join("served");
    let settings = camshaft_tests::api_keys(&[("sk-one", "")]);
    let settings = settings.replace("[settings]\n", "[settings]\nanonymous-loopback = false\n");
    std::fs::create_dir_all(dir.join("auth")).unwrap();
    std::fs::write(dir.join("auth/10-api-keys.wasm"), camshaft_tests::plugin("auth-api-keys")).unwrap();
    std::fs::write(dir.join("auth/10-api-keys.toml"), settings).unwrap();
    let whole = format!("[[model]]\nid = \"demo\"\nthreads = 1\n[limits]\nmax-tokens = 44\n[policy]\ndir = {dir:?}\n");
    let server = setup.config(&whole).start_as_is("serve");
    let refused = || server.client.post("/v1/completions", &json!({"model": "demo", "prompt": "a"})).status == 401;
    assert!(refused());
    let rejections = || server.settled_log().matches("the configuration is rejected").count();
    for (cut, word) in [("", "sets nothing"), (&whole[..whole.find("[policy]").unwrap()], "[policy]")] {
        let before = rejections();
        server.write_config(cut);
        eventually("what was cut is refused", || {
            let report = last_reload(&server);
            if report["error"].as_str().unwrap_or_default().contains(word) { Ok(()) } else { Err(report) }
        });
        let asked = server.admin.post("/admin/reload", &json!({}));
        assert_eq!(asked.status, 422, "{}", asked.text());
        assert!(refused() && rejections() > before, "{cut}");
    }
    server.write_config(&whole);
    assert_eq!(server.admin.post("/admin/reload", &json!({})).status, 200);
}

#[test]
fn a_drained_server_finishes_running_requests_refuses_new_ones_and_can_be_resumed() {
    let server = Setup::new().start();
    let mut stream = server.client.stream(
        "/v1/completions",
        &json!({"model": "demo", "prompt": "Once", "max_tokens": 300, "ignore_eos": true, "stream": true}),
    );
    stream.next();
    assert_eq!(server.admin.post("/admin/drain", &json!({})).json(), json!({"state": "draining"}));
    let refused = server.client.post("/v1/completions", &json!({"model": "demo", "prompt": "a"}));
    assert_eq!((refused.status, refused.json()["error"]["code"].as_str()), (503, Some("draining")));
    assert_eq!(server.client.get("/readyz").status, 503);
    assert_eq!(server.client.get("/healthz").status, 200);
    assert!(stream.finish().is_good());
    assert_eq!(server.admin.post("/admin/resume", &json!({})).json(), json!({"state": "ready"}));
    assert!(server.answer("What is 3 plus 4?").contains('7'));
}

#[test]
fn another_policy_directory_and_other_modes_take_effect_while_it_runs() {
    let setup = Setup::new();
    let (first, second) = (setup.scratch.path().join("first"), setup.scratch.path().join("second"));
    let component = camshaft_tests::plugin("validator-limits");
    for (dir, most) in [(&first, 10), (&second, 20)] {
        std::fs::create_dir_all(dir.join("validator")).unwrap();
        std::fs::write(dir.join("validator/10-limits.wasm"), &component).unwrap();
        std::fs::write(dir.join("validator/10-limits.toml"), format!("[settings]\nmax-tokens = {most}\n")).unwrap();
    }
    let config = |dir: &std::path::Path| {
        let listen =
            "listen = \"127.0.0.1:0\"\n[admin]\nlisten = \"127.0.0.1:0\"\n[[model]]\nid = \"demo\"\nthreads = 1\n";
        format!("{listen}[policy]\ndir = {dir:?}\n")
    };
    let server = setup.config(&config(&first)).start_as_is("serve");
    let status = |tokens: u32| {
        let body = json!({"model": "demo", "prompt": "a", "max_tokens": tokens});
        server.client.post("/v1/completions", &body).status
    };
    assert_eq!((status(10), status(11)), (200, 400));
    server.write_config(&config(&second));
    let report = server.admin.post("/admin/reload", &json!({})).json();
    assert_eq!((&report["changed"], &report["needs_restart"]), (&json!(["policy.dir"]), &json!([])), "{report}");
    assert_eq!((status(20), status(21)), (200, 400));
    server.write_config(&config(std::path::Path::new("/nowhere")));
    let answer = server.admin.post("/admin/reload", &json!({}));
    assert_eq!(answer.status, 422);
    assert!(answer.json()["error"].as_str().unwrap().contains("policy.dir"), "{}", answer.text());
    assert_eq!((status(20), status(21)), (200, 400));

    let set = |path: &str| server.admin.post(&format!("/admin/policies/{path}"), &json!({}));
    let off = set("validator/limits/off");
    assert_eq!((off.status, &off.json()["state"]), (200, &json!("off")), "{}", off.text());
    assert_eq!(status(21), 200);
    assert_eq!(set("validator/limits/enforce").json()["overridden"], true);
    assert_eq!(status(21), 400);
    for (path, status, param) in [
        ("validator/limits/on", 400, json!("action")),
        ("sampling/limits/off", 400, json!("hook")),
        ("auth/limits/off", 404, Value::Null),
    ] {
        let refused = set(path);
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (status, &param), "{path}: {}", refused.text());
    }
    assert_eq!(
        server.client.post("/admin/policies/validator/limits/off", &json!({})).status,
        404,
        "only for operators"
    );
    // A page in an operator's browser cannot do it either.
    let page = server.admin.with_header("origin", "https://evil.example");
    assert_eq!(page.post("/admin/policies/validator/limits/off", &json!({})).status, 403);
    assert_eq!((page.post("/admin/drain", &json!({})).status, status(21)), (403, 400));
}

#[test]
fn statistics_show_waiting_and_running_requests() {
    let server = Setup::new().config("[[model]]\nid = \"demo\"\nthreads = 1\nsequences = 1\n").start();
    let body =
        json!({"model": "demo", "prompt": "Once", "max_tokens": 900, "n": 12, "ignore_eos": true, "stream": true});
    let mut running = server.client.stream("/v1/completions", &body);
    running.next();
    let mut stats = Value::Null;
    eventually("one runs and others wait", || {
        let got = server.client.get("/server/stats").json();
        let queue = &got["models"]["demo"]["queue"];
        // Between two of them nothing is held.
        let held = got["models"]["demo"]["kv_tokens"]["held"].as_u64();
        let busy = queue["waiting"].as_u64() > Some(0) && queue["running"] == 1 && held > Some(0);
        stats = got;
        if busy { Ok(()) } else { Err(stats.clone()) }
    });
    let demo = &stats["models"]["demo"];
    let waiting = demo["queue"]["waiting"].clone();
    assert_eq!(demo["queue"]["waiting_by_priority"], json!({"normal": waiting}), "{stats}");
    assert_eq!(demo["queue"]["waiting_by_tenant"], json!({"anonymous": waiting}));
    assert!(demo["time_to_first_token_seconds"]["p50"].as_f64().is_some_and(|seconds| seconds > 0.0));
    assert!(demo["kv_tokens"]["held"].as_u64().is_some_and(|held| held > 0));
    assert_eq!(stats["state"], "ready");
    assert!(running.finish().is_good());
}
