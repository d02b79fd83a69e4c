//! LoRA adapters: the field `lora`, names of models with an adapter, who may use which, and operators who load them.
use camshaft_core::adapters::AdapterSet;
use camshaft_core::policy::{AuthOutcome, Principal, ValidateOutcome};
use camshaft_core::segments::Namespace;
use serde_json::{Value, json};

use crate::fixture::{Server, digest};
use crate::policies::Rules;
use crate::pool::hello;

const ADAPTERS: &str = "/admin/models/demo/adapters";

async fn load(server: &Server, id: &str, path: &str, scale: f32) {
    let body = json!({"id": id, "path": path, "scale": scale});
    let reply = server.order("POST", ADAPTERS, &body.to_string()).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
}

/// With the adapters `gale`, and `ember` whose usual scale is 0.5.
async fn server(rules: Rules) -> Server {
    let server = Server::with(rules, hello);
    load(&server, "gale", "gale", 1.0).await;
    load(&server, "ember", "ember", 0.5).await;
    server
}

/// Callers who may use these models.
fn allowed(models: &'static [&'static str]) -> Rules {
    let models: Vec<String> = models.iter().map(|&model| model.to_owned()).collect();
    Rules::default()
        .auth(move |_| AuthOutcome::Allow(Principal { allowed_models: Some(models.clone()), ..Principal::anonymous() }))
}

fn last(server: &Server) -> AdapterSet {
    server.pool.starts.lock().unwrap().last().unwrap().adapters.clone()
}

#[tokio::test]
async fn requests_choose_adapters_by_the_field_or_by_the_models_name() {
    let server = server(Rules::default()).await;
    let (gale, ember) = (digest("gale"), digest("ember"));
    for (body, expected) in [
        (json!({}), vec![]),
        (json!({"lora": null}), vec![]),
        (json!({"lora": []}), vec![]),
        (json!({"model": "demo:gale"}), vec![(gale, 1.0)]),
        (json!({"model": "demo:ember", "lora": []}), vec![(ember, 0.5)]),
        (json!({"lora": [{"id": "ember"}]}), vec![(ember, 0.5)]),
        (
            json!({"lora": [{"id": "gale", "scale": -0.25}, {"id": "ember", "scale": 2}]}),
            vec![(gale, -0.25), (ember, 2.0)],
        ),
        (json!({"lora": [{"id": "gale", "scale": 0}]}), vec![]),
    ] {
        for chat in [true, false] {
            let reply = if chat { server.chat(body.clone()).await } else { server.complete(body.clone()).await };
            assert_eq!(reply.status, 200, "{}", reply.text);
            assert_eq!(last(&server), AdapterSet::new(expected.clone()), "{body}");
            let name = body["model"].as_str().unwrap_or("demo");
            assert_eq!(reply.json()["model"], name, "the name that the client has");
            // To policies and in metrics it is the same model.
            assert_eq!(server.pool.starts.lock().unwrap().last().unwrap().model, "demo");
        }
    }
}

#[tokio::test]
async fn unknown_adapters_are_told_apart_from_unknown_models() {
    let server = server(Rules::default()).await;
    let (kind, message) = server.chat(json!({"model": "demo:none"})).await.error(404);
    assert_eq!(kind, "invalid_request_error model_not_found model");
    assert!(message.starts_with("the model demo:none does not exist"), "{message}");
    for model in ["org/secret:gale", "demo:gale:ember", "demo:", ":gale", "gale"] {
        server.chat(json!({"model": model})).await.error(404);
    }
    let (kind, message) = server.chat(json!({"lora": [{"id": "gale"}, {"id": "none"}]})).await.error(400);
    assert_eq!(kind, "invalid_request_error adapter_not_found lora[1].id");
    assert_eq!(message, "lora[1].id names an unknown adapter, \"none\"; there are: gale, ember");
    let (_, message) = server.chat(json!({"lora": [{"id": "x".repeat(100_000 / 2)}]})).await.error(400);
    assert!(message.len() < 300, "{} bytes", message.len());
}

#[tokio::test]
async fn a_wrong_field_is_refused_by_its_name() {
    let server = server(Rules::default()).await;
    let entries = |count: usize| (0..count).map(|n| json!({"id": format!("a{n}")})).collect::<Vec<_>>();
    for (body, param) in [
        (json!({"lora": "gale"}), "lora"),
        (json!({"lora": {"id": "gale"}}), "lora"),
        (json!({"lora": [7]}), "lora[0]"),
        (json!({"lora": [{"scale": 1}]}), "lora[0].id"),
        (json!({"lora": [{"id": 0, "scale": 1}]}), "lora[0].id"),
        (json!({"lora": [{"id": "gale", "scale": 100.5}]}), "lora[0].scale"),
        (json!({"lora": [{"id": "gale", "scale": -101}]}), "lora[0].scale"),
        (json!({"lora": [{"id": "gale"}, {"id": "gale"}]}), "lora"),
        (json!({"lora": entries(9)}), "lora"),
        (json!({"model": "demo:gale", "lora": [{"id": "ember"}]}), "lora"),
    ] {
        for reply in [server.chat(body.clone()).await, server.complete(body.clone()).await] {
            assert!(reply.error(400).0.ends_with(&format!(" {param}")), "{body}: {}", reply.text);
        }
    }
    assert!(server.pool.starts.lock().unwrap().is_empty());
}

#[tokio::test]
async fn the_models_that_a_caller_may_use_name_adapters_like_models() {
    let status = |reply: crate::fixture::Reply| reply.status.as_u16();
    let by_field = json!({"lora": [{"id": "gale"}]});
    // Whoever may use the model alone has none of its adapters.
    let base = server(allowed(&["demo"])).await;
    assert_eq!(status(base.chat(json!({})).await), 200);
    assert_eq!(base.chat(json!({"model": "demo:gale"})).await.error(403).0, "permission_error model_not_allowed model");
    let (kind, message) = base.chat(by_field.clone()).await.error(403);
    assert_eq!(kind, "permission_error model_not_allowed model");
    assert!(message.contains("demo:gale"), "{message}");
    // Nor does an error name those that it may not use.
    let (_, message) = base.chat(json!({"lora": [{"id": "none"}]})).await.error(400);
    assert!(!message.contains("gale"), "{message}");
    // Whoever may use an adapter alone does not have the model as it is, not by leaving out its name either.
    let adapter = server(allowed(&["demo:gale"])).await;
    assert_eq!(status(adapter.chat(json!({"model": "demo:gale"})).await), 200);
    assert_eq!(status(adapter.chat(json!({})).await), 403);
    assert_eq!(status(adapter.chat(json!({"model": "demo:ember"})).await), 403);
    assert!(adapter.chat(json!({"model": null})).await.status.is_client_error());
    let both = server(allowed(&["demo", "demo:gale"])).await;
    assert_eq!(status(both.chat(by_field).await), 200);
    assert_eq!(status(both.chat(json!({"lora": [{"id": "gale"}, {"id": "ember"}]})).await), 403);
}

#[tokio::test]
async fn models_are_listed_with_their_adapters() {
    let ids = |body: Value| -> Vec<String> {
        body["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = server(Rules::default()).await;
    let list = all.get("/v1/models").await.json();
    assert_eq!(list["data"][1]["parent"], "demo");
    assert!(list["data"][0].get("parent").is_none());
    assert_eq!(ids(list), ["demo", "demo:gale", "demo:ember", "org/secret"]);
    let some = server(allowed(&["demo:ember", "org/secret"])).await;
    assert_eq!(ids(some.get("/v1/models").await.json()), ["demo:ember", "org/secret"]);
    let one = all.get("/v1/models/demo:gale").await.json();
    assert_eq!((&one["id"], &one["parent"], &one["task"]), (&json!("demo:gale"), &json!("demo"), &json!("generate")));
    all.get("/v1/models/demo:none").await.error(404);
    some.get("/v1/models/demo:gale").await.error(403);
}

#[tokio::test]
async fn a_session_is_closed_where_it_was_used() {
    let server = server(Rules::default()).await;
    let whole = Namespace::Tenant("anonymous".into());
    for (body, adapters) in [
        (json!({"model": "demo"}), vec![]),
        (json!({"model": "demo:gale"}), vec![(digest("gale"), 1.0)]),
        (json!({"model": "demo", "lora": [{"id": "gale", "scale": 0.5}]}), vec![(digest("gale"), 0.5)]),
    ] {
        let body = crate::fixture::merged(body, json!({"session_id": "s"}));
        assert_eq!(server.post("/v1/session/close", body).await.status, 200);
        let closed = server.pool.closed_sessions.recv_timeout(std::time::Duration::from_secs(10)).unwrap();
        assert_eq!(closed.0, whole.under(&AdapterSet::new(adapters)));
    }
}

/// A guard of a model guards its adapters, too.
#[tokio::test]
async fn validators_are_asked_by_the_model_and_see_the_name_in_the_body() {
    let rules = Rules::default().validator(|request| {
        assert_eq!(request.model, "demo");
        match request.body.contains("demo:gale") {
            true => ValidateOutcome::Amend(r#"{"lora": null, "model": "demo"}"#.to_owned()),
            false => ValidateOutcome::Accept,
        }
    });
    let server = server(rules).await;
    assert_eq!(server.chat(json!({"model": "demo:gale"})).await.json()["model"], "demo");
    assert!(last(&server).is_empty());
}

#[tokio::test]
async fn operators_load_list_and_unload_adapters() {
    let server = server(Rules::default()).await;
    let list = server.admin(ADAPTERS).await.json();
    assert_eq!(list["adapters"][1]["id"], "ember");
    assert_eq!(list["adapters"][1]["model"], "demo:ember");
    assert_eq!((&list["adapters"][1]["scale"], &list["adapters"][1]["bytes"]), (&json!(0.5), &json!(7)));
    assert_eq!(list["adapters"][1]["sha256"], digest("ember").to_string());
    let reply = server.order("DELETE", &format!("{ADAPTERS}/gale"), "").await;
    assert_eq!((reply.status.as_u16(), reply.json()), (200, json!({"id": "gale", "deleted": true})));
    assert!(server.order("DELETE", &format!("{ADAPTERS}/gale"), "").await.error(404).0.contains("adapter_not_found"));
    server.chat(json!({"model": "demo:gale"})).await.error(404);
    // Another one may have its name.
    load(&server, "gale", "new", 1.0).await;
    assert_eq!(server.chat(json!({"model": "demo:gale"})).await.status, 200);
    assert_eq!(last(&server), AdapterSet::new([(digest("new"), 1.0)]));
}

/// A body of this many bytes.
fn padded(bytes: usize) -> Value {
    let body = |path: &str| json!({"id": "long", "path": path});
    body(&"x".repeat(bytes - body("").to_string().len()))
}

#[tokio::test]
async fn what_cannot_be_loaded_is_refused_by_what_is_wrong() {
    let server = server(Rules::default()).await;
    for (body, status, kind) in [
        (json!({"id": "gale", "path": "x"}), 409, "invalid_request_error adapter_conflict -"),
        (json!({"id": "a:b", "path": "x"}), 400, "invalid_request_error - id"),
        (json!({"id": "", "path": "x"}), 400, "invalid_request_error - id"),
        (json!({"id": "n".repeat(257), "path": "x"}), 400, "invalid_request_error - id"),
        (json!({"id": "a", "path": "x", "scale": 100.5}), 400, "invalid_request_error - scale"),
        (json!({"id": "a", "path": ".x"}), 400, "invalid_request_error - path"),
        (json!({"id": "a", "path": "x", "scale": "1"}), 400, "invalid_request_error - scale"),
        (json!({"id": "a", "path": "x", "weight": 1}), 400, "invalid_request_error - weight"),
        (json!({"id": "a"}), 400, "invalid_request_error - path"),
        (json!({"id": 1, "path": "x"}), 400, "invalid_request_error - id"),
        (json!({}), 400, "invalid_request_error - id"),
        (json!([]), 400, "invalid_request_error invalid_json -"),
        (padded(65_537), 413, "invalid_request_error request_too_large -"),
    ] {
        let reply = server.order("POST", ADAPTERS, &body.to_string()).await;
        assert_eq!(reply.error(status).0, kind, "{}", reply.text);
    }
    let reply = server.order("POST", ADAPTERS, &padded(16_384).to_string()).await;
    assert_eq!(reply.status, 201, "as large as a body may be: {}", reply.text);
    server.order("POST", ADAPTERS, "{").await.error(400);
    // A model without a source of adapters, and none at all.
    let body = json!({"id": "a", "path": "x"}).to_string();
    server.order("POST", "/admin/models/org%2Fsecret/adapters", &body).await.error(400);
    assert_eq!(server.admin("/admin/models/org%2Fsecret/adapters").await.json(), json!({"adapters": []}));
    server.order("POST", "/admin/models/none/adapters", &body).await.error(404);
    // Not on the public listener.
    server.post(ADAPTERS, json!({})).await.error(404);
}
