//! LoRA adapters of models that come, go and change while the server runs.
use std::path::{Path, PathBuf};

use camshaft_tests::{Request, Response, Server, Setup, demo_model, eventually, repository};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn adapter(name: &str) -> PathBuf {
    repository().join(format!("tests/fixtures/adapters/{name}.gguf"))
}

fn path(file: &Path) -> &str {
    file.to_str().unwrap()
}

fn entry(name: &str, file: &Path) -> String {
    format!("[[model.adapter]]\nid = \"{name}\"\npath = {file:?}\n")
}

fn admin(server: &Server, method: &str, path: &str, body: &Value) -> Response {
    let request = Request::new(method, path).header("content-type", "application/json").body(body.to_string());
    server.admin.send(&request)
}

/// An operation once it has ended.
fn ended(server: &Server, begun: &Response) -> Value {
    assert_eq!(begun.status, 202, "{}", begun.text());
    let location = begun.header("location").unwrap().to_owned();
    eventually("the operation ends", || {
        let now = server.admin.get(&location).json();
        if now["state"] == "running" { Err(now) } else { Ok(now) }
    })
}

fn load(server: &Server, model: &str, id: &str, file: &Path) -> Response {
    admin(server, "POST", &format!("/admin/models/{model}/adapters"), &json!({"id": id, "path": path(file)}))
}

fn model(server: &Server, id: &str) -> Value {
    server.admin.get(&format!("/admin/models/{id}")).json()
}

/// The names of a model's adapters.
fn adapters(server: &Server, id: &str) -> Vec<String> {
    let list = server.admin.get(&format!("/admin/models/{id}/adapters")).json();
    list["adapters"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
}

fn ask(server: &Server, more: Value) -> Response {
    let mut body = json!({"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.client.post(COMPLETIONS, &body)
}

fn text(server: &Server, name: &str) -> String {
    let answer = ask(server, json!({"model": name}));
    assert_eq!(answer.status, 200, "{name}: {}", answer.text());
    answer.json()["choices"][0]["text"].as_str().unwrap().to_owned()
}

#[test]
fn a_swap_keeps_the_adapters_of_the_file_and_of_operators_with_their_texts() {
    let setup = Setup::new();
    let own = setup.scratch.path().join("own.gguf");
    std::fs::copy(adapter("ember"), &own).unwrap();
    let config = format!("[[model]]\nid = \"m\"\npath = \"demo\"\nthreads = 1\n{}", entry("gale", &adapter("gale")));
    let server = setup.config(&config).start();
    assert_eq!(load(&server, "m", "own", &own).status, 201);
    let names = ["m", "m:gale", "m:own"];
    let texts = || names.map(|name| text(&server, name));
    let before = texts();
    assert!(before[0] != before[1] && before[1] != before[2] && before[0] != before[2], "{before:?}");
    // A stream that has begun under an adapter ends under it, on the version that it began with.
    let story = json!({"model": "m:own", "prompt": "Once upon a time", "max_tokens": 400, "temperature": 0,
                       "ignore_eos": true, "stream": true});
    let mut stream = server.client.stream(COMPLETIONS, &story);
    stream.read_text(1);
    let done = ended(&server, &admin(&server, "POST", "/admin/models/m/swap", &json!({"sequences": 7})));
    assert_eq!(done["state"], "done", "{done}");
    assert_eq!((adapters(&server, "m"), &model(&server, "m")["swaps"]), (vec!["gale".into(), "own".into()], &json!(1)));
    assert_eq!(texts(), before);
    let streamed = stream.finish();
    assert!(streamed.is_good() && streamed.text(0).starts_with(&before[2]), "{streamed:?}");
    // The file has become bad: what would take the model's place could not serve what it serves.
    std::fs::write(&own, b"GGUF and nothing more").unwrap();
    let refused = ended(&server, &admin(&server, "POST", "/admin/models/m/swap", &json!({"sequences": 6})));
    assert_eq!(refused["state"], "failed", "{refused}");
    assert!(refused["error"].as_str().is_some_and(|why| why.contains("own.gguf")), "{refused}");
    assert_eq!(texts(), before, "the one before serves on");
    // Without it, it can.
    let without = json!({"sequences": 6, "adapter": [{"id": "gale", "path": path(&adapter("gale"))}]});
    let done = ended(&server, &admin(&server, "POST", "/admin/models/m/swap", &without));
    assert_eq!(done["state"], "done", "{done}");
    assert_eq!(adapters(&server, "m"), ["gale"]);
    assert_eq!((text(&server, "m:gale"), ask(&server, json!({"model": "m:own"})).status), (before[1].clone(), 404));
}

#[test]
fn a_request_for_an_adapter_wakes_its_model_by_any_of_its_names() {
    let config = format!(
        "[[model]]\nid = \"demo\"\nthreads = 1\n[[model]]\nid = \"p@2\"\npath = \"demo\"\nthreads = 1\nload = \"on-demand\"\n\
         keep-alive = \"1s\"\naliases = [\"nick\"]\nfallback = \"demo\"\n{}",
        entry("gale", &adapter("gale"))
    );
    let server = Setup::new().config(&config).start();
    let asleep = || {
        eventually("nobody asks any more", || {
            let state = model(&server, "p@2")["state"].clone();
            if state == "asleep" { Ok(()) } else { Err(state) }
        });
    };
    let base = text(&server, "demo");
    let gale = text(&server, "p@2:gale");
    assert_ne!(gale, base);
    for name in ["p:gale", "nick:gale"] {
        asleep();
        let answer = ask(&server, json!({"model": name}));
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(name)), "{}", answer.text());
        assert_eq!(answer.json()["choices"][0]["text"], gale, "{name}");
        assert_eq!(answer.header("x-camshaft-fallback-for"), None);
    }
    // It is looked up once the model is there.
    asleep();
    assert_eq!(ask(&server, json!({"model": "p:none"})).status, 404);
    assert_eq!(ask(&server, json!({"model": "none:gale"})).status, 404);
    asleep();
    let answer = ask(&server, json!({"model": "p", "lora": [{"id": "gale"}]}));
    assert_eq!(answer.json()["choices"][0]["text"], gale, "{}", answer.text());
    // What operators have loaded and unloaded stays so while it sleeps.
    assert_eq!(load(&server, "p@2", "ember", &adapter("ember")).status, 201);
    assert_eq!(admin(&server, "DELETE", "/admin/models/p@2/adapters/gale", &json!({})).status, 200);
    let ember = text(&server, "p:ember");
    asleep();
    let list = server.admin.get("/admin/models/p@2/adapters");
    assert_eq!(list.status, 503, "{}", list.text());
    assert_eq!(text(&server, "p:ember"), ember);
    assert_eq!(adapters(&server, "p@2"), ["ember"]);
}

#[test]
fn a_model_is_unloaded_while_requests_use_its_adapters() {
    let server = Setup::new().start();
    let settings = json!({"id": "m", "path": path(&demo_model()), "threads": 1,
                          "adapter": [{"id": "gale", "path": path(&adapter("gale"))}]});
    for _ in 0..2 {
        assert_eq!(ended(&server, &admin(&server, "POST", "/admin/models", &settings))["state"], "done");
        assert_eq!(load(&server, "m", "ember", &adapter("ember")).status, 201);
        let mut streams = ["m", "m:gale", "m:ember"].map(|name| {
            let body = json!({"model": name, "prompt": "Once upon a time", "max_tokens": 200, "temperature": 0,
                              "ignore_eos": true, "stream": true});
            server.client.stream(COMPLETIONS, &body)
        });
        for stream in &mut streams {
            stream.read_text(1);
        }
        let unloading = admin(&server, "DELETE", "/admin/models/m", &json!({}));
        eventually("it is served no more", || {
            let status = ask(&server, json!({"model": "m:gale"})).status;
            if status == 404 { Ok(()) } else { Err(status) }
        });
        for stream in streams {
            let collected = stream.finish();
            assert!(collected.is_good(), "{:?}", collected.values().last());
            assert_eq!(collected.finish_reason(0), Some("length"));
        }
        let done = ended(&server, &unloading);
        assert_eq!(done["state"], "done", "{done}");
        assert_eq!(server.admin.get("/admin/models/m/adapters").status, 404);
    }
    assert!(!text(&server, "demo").is_empty());
}

#[test]
fn the_watched_file_loads_and_unloads_adapters_without_a_swap() {
    let setup = Setup::new();
    let bad = setup.scratch.path().join("bad.gguf");
    std::fs::write(&bad, b"GGUF and nothing more").unwrap();
    let one = "[[model]]\nid = \"m\"\npath = \"demo\"\nthreads = 1\n";
    let server = setup.config(one).start();
    let base = text(&server, "m");
    assert_eq!(load(&server, "m", "own", &adapter("ember")).status, 201);
    let expect = |wanted: &[&str]| {
        eventually("the adapters are those of the file and of operators", || {
            let now = adapters(&server, "m");
            if now == wanted { Ok(()) } else { Err(now) }
        });
    };
    server.write_config(&format!("{one}{}", entry("gale", &adapter("gale"))));
    expect(&["gale", "own"]);
    let gale = text(&server, "m:gale");
    assert_ne!(gale, base);
    // Another file has the name.
    server.write_config(&format!("{one}{}", entry("gale", &adapter("ember"))));
    eventually("the name leads to another file", || {
        let now = text(&server, "m:gale");
        if now == gale { Err(now) } else { Ok(()) }
    });
    assert_eq!(text(&server, "m:gale"), text(&server, "m:own"));
    // One bad file, and all is as before.
    server.write_config(&format!("{one}{}{}", entry("gale", &adapter("gale")), entry("bad", &bad)));
    eventually("the file is refused", || {
        let error = model(&server, "m")["last_error"].clone();
        if error.as_str().is_some_and(|why| why.contains("bad.gguf")) { Ok(()) } else { Err(error) }
    });
    assert_eq!(adapters(&server, "m"), ["gale", "own"]);
    assert_eq!(text(&server, "m:gale"), text(&server, "m:own"));
    // What only ends earlier may have been cut.
    server.write_config(&format!("{one}# No adapters.\n"));
    expect(&["own"]);
    assert_eq!((text(&server, "m"), &model(&server, "m")["swaps"]), (base, &json!(0)));
    assert_eq!(model(&server, "m")["last_error"], Value::Null);
}

#[test]
fn an_adapter_that_there_is_no_memory_for_is_refused_with_what_there_is() {
    let setup = Setup::new();
    let large = setup.scratch.path().join("large.gguf");
    std::fs::File::create(&large).unwrap().set_len(1 << 43).unwrap();
    let server = setup.config("[[model]]\nid = \"m\"\npath = \"demo\"\nthreads = 1\n").start();
    let refused = load(&server, "m", "large", &large);
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("path")), "{}", refused.text());
    let why = refused.text();
    assert!(why.contains("needs 8388608.0 MiB, ") && why.contains(" MiB free"), "{why}");
    assert!(model(&server, "m")["last_error"].as_str().is_some_and(|why| why.contains("MiB free")));
    assert!(adapters(&server, "m").is_empty());
}

#[test]
fn adapters_of_models_that_there_are_not_or_that_have_the_name_of_another_model_are_refused() {
    let config = "[[model]]\nid = \"m\"\npath = \"demo\"\nthreads = 1\n[[model]]\nid = \"m:gale\"\npath = \"demo\"\nthreads = 1\n";
    let server = Setup::new().config(config).start();
    let refused = load(&server, "m", "gale", &adapter("gale"));
    assert_eq!(refused.status, 400, "{}", refused.text());
    assert!(refused.text().contains("m:gale"), "{}", refused.text());
    assert_eq!(load(&server, "none", "gale", &adapter("gale")).status, 404);
    assert_eq!(load(&server, "m", "a:b", &adapter("gale")).status, 400);
    assert_eq!(load(&server, "m", "ember", &adapter("ember")).status, 201);
    let twice = load(&server, "m", "ember", &adapter("gale"));
    assert_eq!((twice.status, &twice.json()["error"]["code"]), (409, &json!("adapter_conflict")), "{}", twice.text());
    assert_eq!(admin(&server, "DELETE", "/admin/models/m/adapters/none", &json!({})).status, 404);
}
