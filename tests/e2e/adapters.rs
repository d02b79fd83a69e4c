//! LoRA adapters of a model: side by side in one batch and alone, by both ways to name them, loaded and unloaded by operators.
use std::path::PathBuf;

use camshaft_tests::{Request, Server, Setup, eventually, repository};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const PROMPT: &str = "1, 2, 3, 4,";
const ADAPTERS: &str = "/admin/models/demo/adapters";

fn adapter(name: &str) -> PathBuf {
    repository().join(format!("tests/fixtures/adapters/{name}.gguf"))
}

/// Serves the demo model with both adapters, as many workers, and more keys.
fn setup(more: &str) -> Setup {
    let entry = |name: &str| format!("[[model.adapter]]\nid = \"{name}\"\npath = {:?}\n", adapter(name));
    let model = format!("[[model]]\nid = \"demo\"\nthreads = 1\n{more}\n{}{}", entry("gale"), entry("ember"));
    Setup::new().config(&model)
}

fn body(more: Value) -> Value {
    let mut body = json!({"model": "demo", "prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn text(server: &Server, more: Value) -> String {
    server.client.ask(COMPLETIONS, &body(more))["choices"][0]["text"].as_str().unwrap().to_owned()
}

/// Ways to ask, and which of them compute the same.
fn asked() -> Vec<(Value, usize)> {
    vec![
        (json!({}), 0),
        (json!({"model": "demo:gale"}), 1),
        (json!({"model": "demo:ember"}), 2),
        (json!({"lora": [{"id": "gale", "scale": 1.0}]}), 1),
        (json!({"lora": [{"id": "ember"}]}), 2),
        (json!({"lora": [{"id": "gale", "scale": 0.5}, {"id": "ember", "scale": 0.5}]}), 3),
        (json!({"lora": [{"id": "gale", "scale": 0}]}), 0),
        (json!({"lora": []}), 0),
    ]
}

#[test]
fn both_adapters_and_the_model_answer_side_by_side_as_each_alone() {
    for layout in ["pooled", "per-sequence"] {
        let more = format!("kv-layout = \"{layout}\"\nsequences = 8\ncontext-tokens = 4096");
        let server = setup(&more).start();
        let mut alone: Vec<Option<String>> = vec![None; 4];
        for (more, set) in asked() {
            let text = text(&server, more.clone());
            let before = alone[set].get_or_insert_with(|| text.clone());
            assert_eq!(*before, text, "{more}");
        }
        let alone: Vec<String> = alone.into_iter().flatten().collect();
        for (at, text) in alone.iter().enumerate() {
            assert!(!alone[..at].contains(text), "set {at} differs from the others: {text:?}");
        }
        let switches = || server.metrics().count("camshaft_adapter_switches_total", &[("model", "demo")]);
        let before = switches();
        // All at once, twice.
        std::thread::scope(|scope| {
            let (server, alone) = (&server, &alone);
            for (more, set) in asked().into_iter().chain(asked()) {
                scope.spawn(move || assert_eq!(text(server, more.clone()), alone[set], "{layout}: {more}"));
            }
        });
        server.wait_until_idle();
        assert!(switches() > before + 4.0, "they took turns: {} after {before}", switches());
    }
}

#[test]
fn requests_without_adapters_never_change_any() {
    let server = setup("").start();
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(|| text(&server, json!({}))))));
    server.wait_until_idle();
    assert_eq!(server.metrics().count("camshaft_adapter_switches_total", &[("model", "demo")]), 0.0);
}

#[test]
fn prefixes_and_sessions_are_found_under_the_same_adapters_only() {
    let server = setup("").start();
    let long = "A long beginning that is worth keeping, of a text that many ask for. ".repeat(3);
    let cached = |more: Value| {
        let mut asked = body(json!({"prompt": long, "max_tokens": 1}));
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.client.ask(COMPLETIONS, &asked);
        server.wait_until_idle();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    let session = |mut more: Value| {
        more["session_id"] = json!("s");
        more
    };
    for more in [json!({}), json!({"model": "demo:gale"}), json!({"lora": [{"id": "gale", "scale": 0.5}]})] {
        assert_eq!(cached(session(more.clone())), 0, "{more}");
        assert!(cached(session(more.clone())) > 0, "{more}");
    }
    // By the other name of the same adapter.
    assert!(cached(json!({"lora": [{"id": "gale"}]})) > 0);
    let close = |more: Value| {
        let mut asked = json!({"model": "demo", "session_id": "s"});
        asked.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.client.ask("/v1/session/close", &asked)["closed"].as_bool().unwrap()
    };
    assert!(!close(json!({"model": "demo:ember"})));
    assert!(close(json!({"model": "demo:gale"})) && !close(json!({"model": "demo:gale"})));
    assert!(close(json!({})));
}

#[test]
fn names_of_adapters_are_listed_and_unknown_ones_refused() {
    let server = setup("").start();
    let list = server.client.get("/v1/models").json();
    let ids: Vec<&str> = list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["demo", "demo:gale", "demo:ember"]);
    let unknown = server.client.post(COMPLETIONS, &body(json!({"model": "demo:none"})));
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    let unknown = server.client.post(COMPLETIONS, &body(json!({"lora": [{"id": "none"}]})));
    assert_eq!((unknown.status, &unknown.json()["error"]["param"]), (400, &json!("lora[0].id")));
    let answer = server.client.ask(COMPLETIONS, &body(json!({"model": "demo:gale"})));
    assert_eq!(answer["model"], "demo:gale");
    let count = server.client.ask("/v1/tokenize", &json!({"model": "demo:gale", "text": "abc"}));
    assert_eq!(count["tokens"], server.client.ask("/v1/tokenize", &json!({"model": "demo", "text": "abc"}))["tokens"]);
}

#[test]
fn operators_load_and_unload_adapters_while_requests_use_them() {
    let server = Setup::new().config("[[model]]\nid = \"demo\"\nthreads = 1\n").start();
    let load = |id: &str, path: PathBuf| {
        server.admin.post(ADAPTERS, &json!({"id": id, "path": path.to_str().unwrap(), "scale": 1.0}))
    };
    let base = text(&server, json!({}));
    assert_eq!(server.client.post(COMPLETIONS, &body(json!({"model": "demo:gale"}))).status, 404);
    let loaded = load("gale", adapter("gale"));
    assert_eq!(loaded.status, 201, "{}", loaded.text());
    let gale = text(&server, json!({"model": "demo:gale"}));
    assert_ne!(gale, base);
    // One that is under way goes on under it.
    let story = body(json!({"model": "demo:gale", "stream": true, "max_tokens": 900}));
    let mut stream = server.client.stream(COMPLETIONS, &story);
    stream.read_text(1);
    let gone = server.admin.send(&Request::new("DELETE", &format!("{ADAPTERS}/gale")));
    assert_eq!(gone.status, 200, "{}", gone.text());
    assert_eq!(server.client.post(COMPLETIONS, &body(json!({"model": "demo:gale"}))).status, 404);
    assert_eq!(load("gale", adapter("ember")).status, 201, "another one has its name");
    let ember = text(&server, json!({"model": "demo:gale"}));
    let streamed = stream.finish();
    assert!(streamed.is_good(), "{streamed:?}");
    assert!(streamed.text(0).starts_with(&gale), "{:?} and {gale:?}", streamed.text(0));
    assert!(ember != gale && ember != base, "what was computed under the old one is of no use under the new one");
    assert_eq!(server.admin.get(ADAPTERS).json()["adapters"].as_array().unwrap().len(), 1);
}

#[test]
fn bad_files_are_refused_at_the_start_and_at_run_time() {
    let setup = Setup::new();
    let file = |name: &str, bytes: &[u8]| {
        let path = setup.scratch.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let good = std::fs::read(adapter("gale")).unwrap();
    let cut = file("cut.gguf", &good[..good.len() / 2]);
    let model = std::fs::canonicalize(camshaft_tests::demo_model()).unwrap();
    for (path, code, said) in [
        (cut.clone(), 65, "truncated"),
        (model, 65, "general.type must be \"adapter\""),
        (file("noise.gguf", &[b'a'; 2 << 20]), 65, "not a GGUF file"),
        (setup.scratch.path().join("none.gguf"), 66, "none.gguf"),
    ] {
        let key = format!("[[model]]\nid = \"demo\"\n[[model.adapter]]\nid = \"a\"\npath = {path:?}\n");
        let finished = Setup::new().config(&key).run(&["check"]);
        assert_eq!(finished.code, Some(code), "{finished:?}");
        assert!(finished.stderr.contains(said), "{said}: {}", finished.stderr);
    }
    let mut server = Setup::new().config("[[model]]\nid = \"demo\"\nthreads = 1\n").start();
    for path in [cut, setup.scratch.path().to_owned()] {
        let refused = server.admin.post(ADAPTERS, &json!({"id": "a", "path": path.to_str().unwrap()}));
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("path")), "{}", refused.text());
    }
    assert_eq!(server.client.get("/readyz").status, 200, "{}", server.client.get("/readyz").text());
    server.assert_runs();
}

#[test]
fn the_memory_of_adapters_that_come_and_go_is_freed() {
    let server = Setup::new().config("[[model]]\nid = \"demo\"\nthreads = 1\n").start();
    let round = |n: usize| {
        let id = format!("a{n}");
        let path = adapter(if n.is_multiple_of(2) { "gale" } else { "ember" });
        let loaded = server.admin.post(ADAPTERS, &json!({"id": id, "path": path.to_str().unwrap()}));
        assert_eq!(loaded.status, 201, "{}", loaded.text());
        text(&server, json!({"model": format!("demo:{id}"), "max_tokens": 4}));
        assert_eq!(server.admin.send(&Request::new("DELETE", &format!("{ADAPTERS}/{id}"))).status, 200);
    };
    (0..4).for_each(round);
    let before = server.resident_bytes();
    (4..16).for_each(round);
    eventually("memory is as before", || {
        let grown = server.resident_bytes().saturating_sub(before);
        if grown < 8 << 20 { Ok(()) } else { Err(grown) }
    });
    assert_eq!(server.admin.get(ADAPTERS).json(), json!({"adapters": []}));
}
