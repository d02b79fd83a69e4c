//! A model's file whose chat template runs away on some inputs, and on no others.
use camshaft_tests::{Open, Request, Setup, demo_model, patched};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{CHAT, COMPLETIONS, Row};

/// What each does that nothing bounds but the process it is rendered in, and the message that makes it do so.
pub(crate) const RUNS_AWAY: [(&str, &str); 5] = [
    // Compares two lists of lists that share their halves: each level doubles the work.
    (
        "compare",
        "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(40) %}{% set ns.a = [ns.a, ns.a] %}\
         {% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
    ),
    // Texts put together.
    ("join", "{% set s = 'ab' * 5000000 %}{% for i in range(90000) %}{% if s ~ 'x' == 'y' %}{% endif %}{% endfor %}"),
    // Memory.
    (
        "fill",
        "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = ns.l + ['ab' * 5000000 ~ i] %}{% endfor %}",
    ),
    (
        "double",
        "{% set ns = namespace(x='a' * 1000) %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
    ),
    // Lists that are nested so deep that they are not dropped on any stack.
    (
        "nest",
        "{% set ns = namespace(l=[]) %}{% for i in range(90000) %}{% for j in range(3) %}\
         {% set ns.l = [ns.l] %}{% endfor %}{% endfor %}",
    ),
];

pub(crate) fn chat(model: &str, content: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": content}], "max_tokens": 1})
}

pub(crate) fn template() -> String {
    let runs = RUNS_AWAY.map(|(word, does)| format!("{{% if messages[0].content == '{word}' %}}{does}{{% endif %}}"));
    format!("{}{{% for message in messages %}}{{{{ message.content }}}}{{% endfor %}}", runs.concat())
}

#[test]
fn a_template_that_runs_away_costs_nobody_but_its_request() {
    let row = Row::begin("a chat template that runs away for some inputs");
    let demo = std::fs::read(demo_model()).expect("the demo model can be read");
    let setup = Setup::new();
    let path = setup.scratch.path().join("bad.gguf");
    let bad = patched::with_text(&demo, "tokenizer.chat_template", Some(&template()));
    std::fs::write(&path, bad).expect("a scratch file can be written");
    let path = path.to_string_lossy().into_owned();
    let config = format!(
        "[shutdown]\ndrain = \"1s\"\n[[model]]\nid = \"demo\"\nthreads = 1\n\
         [[model]]\nid = \"bad\"\npath = {path:?}\nthreads = 1\n"
    );
    let mut server = setup.config(&config).start();
    let client = &server.client;
    assert_eq!(client.post(CHAT, &chat("bad", "hello")).status, 200, "on other inputs it does what templates do");
    for (word, _) in RUNS_AWAY {
        let running = client.begin(&Request::post(CHAT, &chat("bad", word)));
        // Nobody waits for what this one began.
        drop(client.begin(&Request::post(CHAT, &chat("bad", word))));
        assert_eq!(client.post(CHAT, &chat("demo", "hello")).status, 200);
        assert_eq!((client.get("/healthz").status, server.admin.get("/healthz").status), (200, 200));
        let answer = Open::read(running).expect("it is answered").response();
        let told = (answer.status, answer.header("x-should-retry"));
        assert_eq!(told, (503, Some("false")), "{word}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "chat_template_stopped");
        assert_eq!(client.post(CHAT, &chat("bad", "hello")).status, 200, "others are read by another process");
    }
    let prompt = json!({"model": "bad", "prompt": "Once", "max_tokens": 1});
    assert_eq!(client.post(COMPLETIONS, &prompt).status, 200);
    assert_eq!((client.post(CHAT, &chat("demo", "hello")).status, client.get("/readyz").status), (200, 200));

    server.signal(Signal::TERM);
    assert_eq!(server.wait(), Some(0), "{}", server.log());
    row.end("others answered meanwhile, exit 0");
}

#[test]
fn a_template_that_always_runs_away_leaves_its_model_without_chats() {
    let row = Row::begin("a chat template that runs away for every input");
    for (word, does) in [RUNS_AWAY[0], RUNS_AWAY[3]] {
        let setup = Setup::new();
        let path = setup.scratch.path().join("bad.jinja");
        std::fs::write(&path, does).expect("a scratch file can be written");
        let server = setup.config(&format!("[[model]]\nid = \"demo\"\nchat-template = {path:?}\n")).start();
        let answer = server.client.post(CHAT, &chat("demo", "hello"));
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (503, &json!("chat_template_invalid")), "{word}");
        assert_eq!(server.client.post(COMPLETIONS, &json!({"prompt": "Once", "max_tokens": 1})).status, 200);
    }
    row.end("completions answered");
}
