//! A model's file whose chat template runs for hours on one input, and on no other.
use camshaft_tests::{Open, Request, Setup, demo_model, patched};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, Row};

/// Texts put together are what nothing counts but the clock.
const RUNS_AWAY: &str = "{% if messages[0].content == 'x' %}{% set s = 'ab' * 5000000 %}{% for i in range(90000) %}\
    {% if s ~ 'x' == 'y' %}{% endif %}{% endfor %}{% endif %}\
    {% for message in messages %}{{ message.content }}{% endfor %}";

fn chat(model: &str, content: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1})
}

#[test]
fn a_template_that_runs_away_holds_up_neither_another_model_nor_the_end() {
    let row = Row::begin("a chat template that runs away for one input");
    let demo = std::fs::read(demo_model()).expect("the demo model can be read");
    let setup = Setup::new();
    let path = setup.scratch.path().join("bad.gguf");
    let bad = patched::with_text(&demo, "tokenizer.chat_template", Some(RUNS_AWAY));
    std::fs::write(&path, bad).expect("a scratch file can be written");
    let path = path.to_string_lossy().into_owned();
    let config = format!(
        "[shutdown]\ndrain = \"1s\"\n[[model]]\nid = \"demo\"\nthreads = 1\n\
         [[model]]\nid = \"bad\"\npath = {path:?}\nthreads = 1\n"
    );
    let mut server = setup.config(&config).start();
    let client = &server.client;
    assert_eq!(client.post(CHAT, &chat("bad", "hello")).status, 200, "on other inputs it does what templates do");

    let running = client.begin(&Request::post(CHAT, &chat("bad", "x")));
    // Whoever leaves leaves the thread behind.
    drop(client.begin(&Request::post(CHAT, &chat("bad", "x"))));
    // Without an end of the rendering in sight.
    assert_eq!(client.post(CHAT, &chat("demo", "hello")).status, 200);
    assert_eq!((client.get("/healthz").status, server.admin.get("/healthz").status), (200, 200));
    let answer = Open::read(running).expect("it is answered").response();
    assert_eq!((answer.status, answer.header("x-should-retry")), (503, Some("false")), "{}", answer.text());
    assert_eq!(answer.json()["error"]["code"], "chat_template_stopped");

    assert_eq!(client.post(CHAT, &chat("bad", "hello")).json()["error"]["code"], "chat_template_stopped");
    let prompt = json!({"model": "bad", "prompt": "Once", "max_tokens": 1});
    assert_eq!(client.post(COMPLETIONS, &prompt).status, 200);
    assert_eq!((client.post(CHAT, &chat("demo", "hello")).status, client.get("/readyz").status), (200, 200));
    assert_eq!(server.settled_log().matches("the chat template takes too long").count(), 1, "{}", server.log());

    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0), "{}", server.log());
    row.end("others answered meanwhile, exit 0");
}
