//! Models that come, go and change while the server runs.
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use camshaft_tests::{Open, Request, Response, Server, Setup, Stream, demo_model, eventually, pirate_model};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";
const MODELS: &str = "/admin/models";

fn admin(server: &Server, method: &str, path: &str, body: &Value) -> Response {
    let request = Request::new(method, path).header("content-type", "application/json").body(body.to_string());
    server.admin.send(&request)
}

/// An operation once it has ended.
fn ended(server: &Server, begun: &Response) -> Value {
    assert_eq!(begun.status, 202, "{}", begun.text());
    let location = begun.header("location").expect("where to ask").to_owned();
    assert_eq!(location, format!("/admin/operations/{}", begun.json()["id"].as_str().expect("an id")));
    eventually("the operation ends", || {
        let now = server.admin.get(&location).json();
        if now["state"] == "running" { Err(now) } else { Ok(now) }
    })
}

/// Swaps a model, and expects that it works.
fn swap(server: &Server, id: &str, settings: &Value) {
    let done = ended(server, &admin(server, "POST", &format!("{MODELS}/{id}/swap"), settings));
    assert_eq!(done["state"], "done", "{done}");
}

fn model(server: &Server, id: &str) -> Value {
    server.admin.get(&format!("{MODELS}/{id}")).json()
}

fn states(server: &Server) -> Value {
    server.client.get("/healthz").json()["models"].clone()
}

fn question(model: &str) -> Value {
    json!({"model": model, "prompt": "1, 2, 3, 4,", "max_tokens": 24, "temperature": 0, "ignore_eos": true})
}

fn text(server: &Server, model: &str) -> String {
    let answer = server.client.ask(COMPLETIONS, &question(model));
    answer["choices"][0]["text"].as_str().expect("a text").to_owned()
}

fn path(file: &std::path::Path) -> String {
    file.to_string_lossy().into_owned()
}

/// A file that is no model.
fn corrupt(server: &Server) -> PathBuf {
    let file = server.scratch().join("corrupt.gguf");
    let mut bytes = std::fs::read(demo_model()).expect("the demo model can be read");
    bytes.truncate(bytes.len() / 2);
    std::fs::write(&file, bytes).expect("a scratch file can be written");
    file
}

#[test]
fn sixteen_streams_go_on_while_their_model_is_swapped_twenty_times() {
    let server = Setup::new().config("[[model]]\nid = \"m\"\nthreads = 1\n").start();
    let (demo, pirate) = (path(&demo_model()), path(&pirate_model()));
    let first = text(&server, "m");
    swap(&server, "m", &json!({"path": pirate}));
    let second = text(&server, "m");
    assert_ne!(first, second, "the two models can be told apart");
    let (stop, streams, texts) = (AtomicBool::new(false), AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let mut body = question("m");
                    body["stream"] = true.into();
                    let collected = server.client.stream(COMPLETIONS, &body).finish();
                    assert!(collected.is_good(), "a stream failed: {:?}", collected.values().last());
                    texts.lock().expect("no panic").push(collected.text(0));
                    streams.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut after = Vec::new();
            for number in 0..20 {
                swap(&server, "m", &json!({"path": if number % 2 == 0 { &demo } else { &pirate }}));
                let before = streams.load(Ordering::Relaxed);
                eventually("streams of the new one end", || {
                    let more = streams.load(Ordering::Relaxed) - before;
                    if more >= 4 { Ok(()) } else { Err(more) }
                });
                after.push(server.resident_bytes());
            }
            let refused = admin(&server, "POST", "/admin/models/m/swap", &json!({"path": path(&corrupt(&server))}));
            let refused = ended(&server, &refused);
            assert_eq!(refused["state"], "failed");
            assert!(refused["error"].as_str().is_some_and(|why| why.contains("corrupt.gguf")), "{refused}");
            assert!(model(&server, "m")["last_error"].as_str().is_some_and(|why| why.contains("corrupt.gguf")));
            // What the allocator and the page cache keep is there after the first few. One sample may have any stream's peak in it;
            // what is kept for good is in all of them.
            let middle = |samples: &[u64]| {
                let mut sorted = samples.to_vec();
                sorted.sort_unstable();
                sorted[sorted.len() / 2]
            };
            let (early, late) = (middle(&after[5..10]), middle(&after[15..]));
            assert!(late < early + (24 << 20), "memory grows: {after:?}");
        }));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let texts = texts.into_inner().expect("no panic");
    for text in &texts {
        assert!(*text == first || *text == second, "a stream of two versions: {text:?}");
    }
    for version in [&first, &second] {
        assert!(texts.contains(version), "both served");
    }
    eventually("the versions before have ended", || {
        let draining = model(&server, "m")["draining"].clone();
        if draining == 0 { Ok(()) } else { Err(draining) }
    });
    assert_eq!(model(&server, "m")["swaps"], 21);
    assert_eq!(server.metrics().count("camshaft_worker_up", &[("model", "m"), ("worker", "0")]), 1.0);
}

#[test]
fn a_model_is_loaded_used_and_unloaded_while_streams_of_it_run() {
    let server = Setup::new().start();
    let settings = json!({"id": "org/pirate", "path": path(&pirate_model()), "threads": 1});
    let done = ended(&server, &admin(&server, "POST", MODELS, &settings));
    assert_eq!((&done["operation"], &done["state"]), (&json!("load"), &json!("done")), "{done}");
    assert_eq!(states(&server), json!({"demo": "ready", "org/pirate": "ready"}));
    let shown = model(&server, "org%2Fpirate");
    assert_eq!(
        (&shown["state"], &shown["origin"], &shown["kind"]),
        (&json!("ready"), &json!("admin"), &json!("generate"))
    );
    assert!(shown["memory_bytes"].as_u64().is_some_and(|bytes| bytes > 1 << 20), "{shown}");
    let mut body = question("org/pirate");
    (body["stream"], body["max_tokens"]) = (true.into(), 200.into());
    let mut stream = server.client.stream(COMPLETIONS, &body);
    stream.read_text(1);
    let unloading = admin(&server, "DELETE", "/admin/models/org%2Fpirate", &json!({}));
    eventually("it is served no more", || {
        let status = server.client.post(COMPLETIONS, &question("org/pirate")).status;
        if status == 404 { Ok(()) } else { Err(status) }
    });
    let collected = stream.finish();
    assert!(collected.is_good(), "{:?}", collected.values().last());
    assert_eq!(collected.finish_reason(0), Some("length"));
    assert_eq!(ended(&server, &unloading)["state"], "done");
    assert_eq!(states(&server), json!({"demo": "ready"}));
    assert_eq!(server.admin.get("/admin/models/org%2Fpirate").status, 404);
    assert!(!text(&server, "demo").is_empty());
    let listed = server.admin.get("/admin/operations").json();
    assert_eq!(listed["operations"].as_array().map(Vec::len), Some(2));
}

#[test]
fn orders_that_cannot_be_carried_out_are_refused_by_name() {
    let server = Setup::new().start();
    let error = |method, path: &str, body: Value| {
        let response = admin(&server, method, path, &body);
        (response.status, response.json()["error"]["message"].as_str().unwrap_or_default().to_owned())
    };
    let check = |(status, message): (u16, String), wanted: u16, words: &str| {
        assert_eq!(status, wanted, "{message}");
        assert!(message.contains(words), "{words}: {message}");
    };
    check(error("POST", MODELS, json!({"id": "x", "colour": "red"})), 400, "unknown key `colour`");
    let (_, message) = error("POST", MODELS, json!({"id": "x", "workers": 65}));
    assert_eq!(message, "workers must be between 1 and 64, got 65", "nothing of a file");
    check(error("POST", MODELS, json!({"id": "x", "aliases": ["demo"]})), 400, "demo");
    check(error("POST", MODELS, json!({"id": "@2"})), 400, "id");
    check(error("POST", MODELS, json!({"id": "x", "fallback": "x"})), 400, "fallback");
    check(error("POST", MODELS, json!([])), 400, "object");
    check(error("POST", MODELS, json!({"id": "demo"})), 409, "swap");
    check(error("POST", "/admin/models/nobody/swap", json!({})), 404, "nobody");
    check(error("DELETE", "/admin/models/nobody", json!({})), 404, "nobody");
    check(error("POST", "/admin/models/demo/swap", json!({"id": "other"})), 400, "id");
    check(error("POST", "/admin/models/demo/weight", json!({"weight": -1})), 400, "weight");
    check(error("POST", "/admin/models/demo/weight", json!({"weight": "1"})), 400, "weight");
    check(error("GET", "/admin/operations/op-77", json!({})), 404, "op-77");
    let missing = ended(&server, &admin(&server, "POST", MODELS, &json!({"id": "x", "path": "/nowhere/x.gguf"})));
    assert!(missing["error"].as_str().is_some_and(|why| why.contains("/nowhere/x.gguf")), "{missing}");
    assert_eq!(states(&server), json!({"demo": "ready"}), "nothing is left of it");
    let large = server.scratch().join("large.gguf");
    let file = std::fs::File::create(&large).expect("a scratch file can be made");
    file.set_len(1 << 43).expect("a sparse file has any length");
    let large = ended(&server, &admin(&server, "POST", MODELS, &json!({"id": "x", "path": path(&large)})));
    let why = large["error"].as_str().expect("a reason");
    assert!(why.contains("needs 8388608.0 MiB") && why.contains("MiB free"), "{why}");
}

#[test]
fn an_operation_can_be_followed_as_events() {
    let server = Setup::new().start();
    let begun = admin(&server, "POST", "/admin/models/demo/swap", &json!({}));
    let location = begun.header("location").expect("where to ask").to_owned();
    let request = Request::get(&location).header("accept", "text/event-stream");
    let mut stream = camshaft_tests::Stream::new(server.admin.open(&request));
    let last = stream.by_ref().last().expect("at least one event");
    assert_eq!(last["state"], "done", "{last}");
    assert_eq!(last["progress"], 1.0);
}

#[test]
fn the_watched_file_adds_changes_and_removes_models() {
    let one = "[[model]]\nid = \"demo\"\npath = \"demo\"\nthreads = 1\n";
    let server = Setup::new().config(one).start();
    let two =
        format!("{one}[[model]]\nid = \"second\"\npath = {:?}\nthreads = 1\naliases = [\"other\"]\n", pirate_model());
    server.write_config(&two);
    eventually("the second model serves", || {
        let states = states(&server);
        if states == json!({"demo": "ready", "second": "ready"}) { Ok(()) } else { Err(states) }
    });
    let pirate = text(&server, "other");
    assert_eq!(pirate, text(&server, "second"));
    assert_ne!(pirate, text(&server, "demo"));
    server.write_config(&two.replace("second", "demo2").replace(&format!("{:?}", pirate_model()), "\"demo\""));
    eventually("one model took the place of the other", || {
        let states = states(&server);
        if states == json!({"demo": "ready", "demo2": "ready"}) { Ok(()) } else { Err(states) }
    });
    server.write_config(&format!("{one}sequences = 7\n"));
    eventually("the model was swapped for itself with other settings", || {
        let shown = model(&server, "demo");
        let done = shown["swaps"] == 1 && shown["origin"] == "file" && states(&server) == json!({"demo": "ready"});
        if done { Ok(()) } else { Err(shown) }
    });
    assert!(!text(&server, "demo").is_empty());
    // Names change without a swap.
    server.write_config(&format!("{one}sequences = 7\naliases = [\"nick\"]\n"));
    eventually("the alias is known", || {
        let status = server.client.post(COMPLETIONS, &question("nick")).status;
        if status == 200 { Ok(()) } else { Err(status) }
    });
    assert_eq!(model(&server, "demo")["swaps"], 1);
}

#[test]
fn a_model_sleeps_until_it_is_asked_for_and_when_nobody_asks_any_more() {
    let config = format!(
        "[[model]]\nid = \"demo\"\nthreads = 1\n[[model]]\nid = \"p\"\npath = {:?}\nthreads = 1\nload = \"on-demand\"\n\
         keep-alive = \"1s\"\n",
        pirate_model()
    );
    let server = Setup::new().config(&config).start();
    assert_eq!(states(&server), json!({"demo": "ready", "p": "asleep"}));
    assert_eq!(server.client.get("/readyz").status, 200, "who sleeps makes nobody unready");
    let asleep = server.client.get("/v1/models/p");
    assert_eq!((asleep.status, &asleep.json()["state"], &asleep.json()["id"]), (200, &json!("asleep"), &json!("p")));
    assert_eq!(server.client.get("/v1/models/demo").json()["state"], "ready");
    let answers: Vec<String> = std::thread::scope(|scope| {
        let askers: Vec<_> = (0..8).map(|_| scope.spawn(|| text(&server, "p"))).collect();
        askers.into_iter().map(|asker| asker.join().expect("it is answered")).collect()
    });
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let loads = |server: &Server| {
        let listed = server.admin.get("/admin/operations").json();
        let all = listed["operations"].as_array().cloned().unwrap_or_default();
        all.iter().filter(|operation| operation["operation"] == "load").count()
    };
    assert_eq!(loads(&server), 1, "eight who ask at once load it once");
    eventually("nobody asks any more", || {
        let states = states(&server);
        if states["p"] == "asleep" { Ok(()) } else { Err(states) }
    });
    assert_eq!(text(&server, "p"), answers[0], "it comes again");
}

#[test]
fn regression_no_fallback_tells_of_a_model_or_of_its_tokens() {
    let more = "[[model]]\nid = \"big\"\npath = \"demo\"\nthreads = 1\nload = \"on-demand\"\nfallback = \"demo\"\n";
    let asleep = || Setup::new().config(&format!("[[model]]\nid = \"demo\"\nthreads = 1\n{more}")).start();
    let shown = asleep().client.get("/v1/models/big").json();
    assert_eq!((&shown["id"], &shown["state"]), (&json!("big"), &json!("asleep")), "{shown}");
    for (path, body) in [
        ("/v1/tokenize", json!({"model": "big", "text": "hello"})),
        ("/v1/detokenize", json!({"model": "big", "tokens": [300]})),
        ("/v1/completions", json!({"model": "big", "prompt": [300, 301], "max_tokens": 1})),
        ("/v1/chat/template", json!({"model": "big", "messages": [{"role": "user", "content": "hi"}]})),
    ] {
        let response = asleep().client.post(path, &body);
        assert_eq!((response.status, response.header("x-camshaft-fallback-for")), (200, None), "{path}");
    }
}

#[test]
fn regression_a_model_that_sleeps_behind_a_fallback_is_woken_by_who_asks_for_it() {
    let more = "[[model]]\nid = \"big\"\npath = \"demo\"\nthreads = 1\nload = \"on-demand\"\nfallback = \"demo\"\n";
    let server = Setup::new().config(&format!("[[model]]\nid = \"demo\"\nthreads = 1\n{more}")).start();
    let first = server.client.ask(COMPLETIONS, &question("big"));
    assert_eq!(first["model"], "demo", "the fallback answers meanwhile");
    eventually("the model has come", || {
        let states = states(&server);
        if states["big"] == "ready" { Ok(()) } else { Err(states) }
    });
    assert_eq!(server.client.ask(COMPLETIONS, &question("big"))["model"], "big");
}

#[test]
fn a_model_that_sleeps_and_cannot_be_loaded_fails_its_requests_and_is_not_tried_each_time() {
    let config = "[[model]]\nid = \"demo\"\nthreads = 1\n[[model]]\nid = \"bad\"\npath = \"/nowhere/b.gguf\"\n\
                  load = \"on-demand\"\n[[model]]\nid = \"worse\"\npath = \"/nowhere/w.gguf\"\nload = \"on-demand\"\n\
                  fallback = \"demo\"\n";
    let server = Setup::new().config(config).start();
    for _ in 0..3 {
        let response = server.client.post(COMPLETIONS, &question("bad"));
        assert_eq!(response.status, 503, "{}", response.text());
        assert!(response.text().contains("could not be loaded"), "{}", response.text());
        assert!(!response.text().contains("/nowhere"), "clients learn no paths");
    }
    let listed = server.admin.get("/admin/operations").json();
    assert_eq!(listed["operations"].as_array().map(Vec::len), Some(1), "{listed}");
    assert!(model(&server, "bad")["last_error"].as_str().is_some_and(|why| why.contains("/nowhere/b.gguf")));
    let instead = server.client.post(COMPLETIONS, &question("worse"));
    assert_eq!((instead.status, instead.header("x-camshaft-fallback-for")), (200, Some("worse")));
    assert_eq!(instead.json()["model"], "demo");
}

#[test]
fn replace_ends_the_old_one_first_and_brings_it_back_where_the_new_one_fails() {
    let server = Setup::new().config("[[model]]\nid = \"m\"\nthreads = 1\nswap = \"replace\"\n").start();
    let first = text(&server, "m");
    let refused = admin(&server, "POST", "/admin/models/m/swap", &json!({"path": path(&corrupt(&server))}));
    assert_eq!(ended(&server, &refused)["state"], "failed");
    assert_eq!(text(&server, "m"), first, "the one before serves again");
    // Who asks meanwhile waits.
    let (stop, streams) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    text(&server, "m");
                    streams.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            swap(&server, "m", &json!({"path": path(&pirate_model())}));
        }));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    assert_ne!(text(&server, "m"), first);
}

#[test]
fn versions_of_a_name_share_its_requests_by_their_weights() {
    let config = format!(
        "[[model]]\nid = \"m@1\"\nthreads = 1\n[[model]]\nid = \"m@2\"\npath = {:?}\nthreads = 1\nweight = 0\n",
        pirate_model()
    );
    let server = Setup::new().config(&config).start();
    let (one, two) = (text(&server, "m@1"), text(&server, "m@2"));
    assert_ne!(one, two);
    assert_eq!(text(&server, "m"), one);
    let changed = admin(&server, "POST", "/admin/models/m@2/weight", &json!({"weight": 2}));
    assert_eq!((changed.status, &changed.json()["weight"]), (200, &json!(2.0)));
    assert_eq!(admin(&server, "POST", "/admin/models/m@1/weight", &json!({"weight": 0})).status, 200);
    assert_eq!(text(&server, "m"), two);
    let listed = server.client.get("/v1/models").json();
    let ids: Vec<&str> =
        listed["data"].as_array().expect("a list").iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!(ids, ["m", "m@1", "m@2"]);
}

/// Requests that run and wait, by the model's pool.
fn load(server: &Server) -> (Vec<u64>, u64) {
    let page = server.admin.get("/admin/workers").json();
    let running = page["models"]["demo"].as_array().unwrap_or_else(|| panic!("no workers in {page}")).iter();
    let running = running.map(|worker| worker["running_sequences"].as_u64().expect("a number")).collect();
    let waiting = server.metrics().count("camshaft_requests_waiting", &[("model", "demo")]);
    (running, waiting as u64)
}

#[test]
fn what_a_model_and_a_tenant_run_at_once_changes_while_their_requests_run() {
    // The sampler spins in its first call until it is killed, so no request ends before the test has counted it.
    let hold = "[policy]\ndeadline = \"2s\"\n[settings]\nbehave = \"spin\"\n";
    let model = "[[model]]\nid = \"demo\"\nthreads = 1\nmax-tenant-sequences = 1\n";
    let server = Setup::new().config(model).guest("sampler", "10-hold", hold).start();
    let limits = |body: Value| admin(&server, "POST", "/admin/models/demo/limits", &body);
    let body = json!({"model": "demo", "prompt": "1, 2, 3,", "max_tokens": 4, "stream": true});
    let begin = |_| server.client.begin(&Request::post(COMPLETIONS, &body));
    let expect = |what: &str, expected: (u64, u64)| {
        eventually(what, || {
            let (running, waiting) = load(&server);
            if (running[0], waiting) == expected { Ok(()) } else { Err((running, waiting)) }
        });
    };
    let sockets: Vec<_> = (0..6).map(begin).collect();
    expect("one runs, by the file", (1, 5));
    let changed = limits(json!({"max-tenant-sequences": 4}));
    assert_eq!((changed.status, &changed.json()["limits"]["max-tenant-sequences"]), (200, &json!(4)));
    expect("four run", (4, 2));
    limits(json!({"max-tenant-sequences": null, "max-sequences": 5}));
    expect("five run, on the one worker", (5, 1));
    server.write_config("[[model]]\nid = \"demo\"\nthreads = 1\nmax-step-tokens = 64\n");
    expect("the file says no more", (6, 0));
    for socket in sockets {
        let streamed = Stream::new(Open::read(socket).expect("an answer")).finish();
        assert!(streamed.is_good(), "{streamed:?}");
    }
    assert_eq!(model_swaps(&server), 0, "without a swap");
    for (body, named) in [
        (json!({"max-sequences": 0}), "max-sequences must be between 1 and 255, got 0"),
        (json!({"max-sequences": 256}), "max-sequences must be between 1 and 255, got 256"),
        (json!({"max-tenant-sequences": 16_321}), "max-tenant-sequences must be between 1 and 16320, got 16321"),
        (json!({"max-step-tokens": 65_537}), "max-step-tokens must be between 1 and 65536, got 65537"),
        (json!({"batch-size": 5}), "batch-size = 5: only for models that compute tensors"),
        (json!({"path": "demo"}), "unknown key \"path\""),
    ] {
        let refused = limits(body);
        let text = refused.text();
        assert!(refused.status == 400 && text.contains(&named.replace('"', "\\\"")), "{text}");
    }
    assert_eq!(limits(json!({"max-tenant-sequences": 16_320, "max-sequences": 255})).status, 200);
    assert_eq!(admin(&server, "POST", "/admin/models/none/limits", &json!({})).status, 404);
}

#[test]
fn what_is_set_while_a_model_is_being_changed_is_refused_and_not_lost() {
    let hold = "[policy]\ndeadline = \"2s\"\n[settings]\nbehave = \"spin\"\n";
    let models = "[[model]]\nid = \"demo\"\nthreads = 1\n[[model]]\nid = \"other\"\npath = \"demo\"\nthreads = 1\n";
    let server = Setup::new().config(models).guest("sampler", "10-hold", hold).start();
    let body = json!({"model": "other", "prompt": "1, 2, 3,", "max_tokens": 400, "stream": true});
    let socket = server.client.begin(&Request::post(COMPLETIONS, &body));
    eventually("it runs", || {
        let running = server.metrics().count("camshaft_requests_running", &[("model", "other")]);
        if running == 1.0 { Ok(()) } else { Err(running) }
    });
    // Its last request keeps it.
    let begun = admin(&server, "DELETE", "/admin/models/other", &json!({}));
    let operation = begun.json()["id"].as_str().expect("an id").to_owned();
    for (path, body) in [("limits", json!({"max-sequences": 3})), ("weight", json!({"weight": 2})), ("swap", json!({}))]
    {
        let refused = admin(&server, "POST", &format!("{MODELS}/other/{path}"), &body);
        assert_eq!((refused.status, &refused.json()["error"]["code"]), (409, &json!("model_busy")), "{path}");
        assert_eq!(refused.header("retry-after"), Some("5"), "{path}");
        assert!(refused.text().contains(&operation), "{}", refused.text());
    }
    // The others are not disturbed.
    assert_eq!(admin(&server, "POST", "/admin/models/demo/limits", &json!({"max-sequences": 3})).status, 200);
    drop(socket);
    assert_eq!(ended(&server, &begun)["state"], "done");
}

#[test]
fn regression_a_file_with_more_new_models_than_operators_may_order_at_once_loads_them_all() {
    let demo = "[[model]]\nid = \"demo\"\nthreads = 1\n";
    let server = Setup::new().config(demo).start();
    let linear = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/models/linear.onnx");
    let models: String = (0..20).map(|n| format!("[[model]]\nid = \"m{n}\"\npath = {linear:?}\n")).collect();
    server.write_config(&format!("{demo}{models}"));
    eventually("all serve", || {
        let states = states(&server);
        let ready = states.as_object().expect("states").values().filter(|state| **state == "ready").count();
        if ready == 21 { Ok(()) } else { Err(states) }
    });
}

fn model_swaps(server: &Server) -> u64 {
    model(server, "demo")["swaps"].as_u64().expect("a number")
}
