//! Grammars that take all time and memory to compile, beside a client that wants neither.
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use camshaft_tests::{Client, Request, Setup, api_keys, eventually};
use serde_json::{Value, json};

use crate::readers::{most, readers};
use crate::table::Times;
use crate::{CHAT, Row};

const TENANTS: usize = 8;
/// Requests that are sent at once, and in all.
const AT_ONCE: usize = 40;
const ALL: usize = 200;

/// Rules or terminals, each of which names the next one so often.
fn fan(sizes: &[usize], name: &str, between: &str) -> String {
    let mut text = format!("start: {name}0\n");
    for (at, size) in sizes.iter().enumerate() {
        let next = if at + 1 < sizes.len() { format!("{name}{}", at + 1) } else { "\"x\"".to_owned() };
        writeln!(text, "{name}{at}: {}", vec![next; *size].join(between)).unwrap();
    }
    text
}

fn rules(count: usize) -> String {
    let rules: String = (1..=count).map(|at| format!("r{at}: \"(\" r{} \")\" | \"x\"\n", at + 1)).collect();
    format!("start: r1\n{rules}r{}: \"a\"", count + 1)
}

/// Each is a grammar in Lark, but for what is told apart by its field.
pub(crate) fn hostile() -> Vec<Value> {
    let lark = |text: &str| json!({"structured_outputs": {"grammar": text}});
    let schema = |schema: Value| json!({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}});
    let names: serde_json::Map<String, Value> = (0..3000).map(|at| (format!("p{at}"), json!(true))).collect();
    let patterns = |count: usize| -> Value {
        (0..count).map(|at| json!({"pattern": format!("(a|b)*{}(a|b){{{at}}}", ["a", "b"][at % 2])})).collect()
    };
    vec![
        lark(&fan(&[200, 100, 100, 90], "a", " ")),
        lark(&fan(&[200, 100, 100, 90], "a", " | ")),
        lark(&fan(&[200, 100, 100, 90], "A", " ")),
        // An intersection whose emptiness takes thousands of steps to find out.
        lark("start: W? C\nW: \"x\"\nA: /(a|b)*a(a|b){3000}/\nB: /(a|b)*b(a|b){2999}/\nC: A & B"),
        lark("start: W? C\nW: \"x\"\nC: /[ab]*a[ab]{16}/ & /[ab]*b[ab]{2000}c/"),
        lark("start: start start | start start start | \"a\" | \"\""),
        lark("start: A\nA: /((((a{1,50}){1,50}){1,50}){1,50}){1,50}/"),
        lark("start: X\nX: ~(~(~/a*b/ & /[ab]*/) & /.*a.{200}/)"),
        lark("start: a{100000}\na: b{100000}\nb: \"c\"{100000}"),
        lark(&rules(5000)),
        lark(&format!("start: {}\"a\"{}", "(".repeat(48), ")".repeat(48))),
        lark(&format!("start: A\nA: {}", (0..4000).map(|at| format!("\"{at}x\"")).collect::<Vec<_>>().join(" | "))),
        json!({"structured_outputs": {"regex": format!("{}a{}", "(".repeat(20), "{0,100000})".repeat(20))}}),
        json!({"structured_outputs": {"regex": "(a|b|c|d|e|f|g)*x.{0,2000}(a|b)*"}}),
        json!({"structured_outputs": {"regex": "(".repeat(10_000)}}),
        schema(json!({"type": "string", "allOf": patterns(40)})),
        schema(
            json!({"type": "object", "properties": names.clone(), "minProperties": 1, "additionalProperties": false}),
        ),
        schema(json!({"allOf": [{"multipleOf": 65_537}, {"multipleOf": 65_539}, {"multipleOf": 0.0001}]})),
        schema(json!({"type": "string", "minLength": 100_000, "maxLength": 100_000, "pattern": "^(a|b)*c"})),
        schema(
            json!({"allOf": (0..200).map(|at| json!({"anyOf": [{"minimum": at}, {"maximum": -at}]})).collect::<Value>()}),
        ),
    ]
}

/// As many that cost nobody anything.
pub(crate) fn harmless() -> Vec<Value> {
    (0..20).map(|at| json!({"structured_outputs": {"regex": format!("[a-z]{{1,{}}}", at + 1)}})).collect()
}

pub(crate) fn request(body: &Value, at: usize) -> Value {
    // Each is another grammar than the last of its kind, which the server would remember.
    let text = body.to_string().replace("start: ", &format!("// {at}\nstart: ").replace('\n', "\\n"));
    let text = text.replace("\"regex\":\"", &format!("\"regex\":\"(?:{at})?"));
    let mut body: Value = serde_json::from_str(&text).unwrap();
    if let Some(schema) = body.pointer_mut("/response_format/json_schema/schema") {
        schema["$defs"] = json!({ "unused": { "const": at } });
        schema["title"] = json!(at.to_string());
    }
    let messages = json!([{"role": "user", "content": "hi"}]);
    body.as_object_mut().unwrap().extend([("messages".to_owned(), messages), ("max_tokens".to_owned(), json!(4))]);
    body
}

/// Keys that `storm` sends with.
pub(crate) fn tenants() -> Vec<String> {
    (0..TENANTS).map(|at| format!("tenant{at}")).collect()
}

/// Has the tenants send grammars, some of whom leave at once: the milliseconds until the others were answered.
pub(crate) fn storm(client: &Client, grammars: &[Value]) -> Times {
    let (tenants, next) = (tenants(), AtomicUsize::new(0));
    let send = || {
        let mut times = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= ALL {
                return times;
            }
            let client = client.with_key(&tenants[at % TENANTS]);
            let request = Request::post(CHAT, &request(&grammars[at % grammars.len()], at));
            if at % 5 == 0 {
                drop(client.begin(&request));
                continue;
            }
            let begun = Instant::now();
            let answer = client.send(&request);
            assert!([200, 400, 429].contains(&answer.status), "{at}: {}", answer.text());
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    };
    std::thread::scope(|scope| {
        let senders: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(send)).collect();
        Times::of(senders.into_iter().flat_map(|sender| sender.join().unwrap()).collect())
    })
}

#[test]
fn two_hundred_hostile_grammars_cost_nobody_but_who_sends_them() {
    let row = Row::begin("200 hostile grammars from 8 tenants, 40 at once, of which some leave");
    let tenants = tenants();
    let keys: Vec<(&str, &str)> = tenants.iter().map(|name| (name.as_str(), "")).chain([("polite", "")]).collect();
    let server = Setup::new().plugin("auth", "10-api-keys", "auth-api-keys", &api_keys(&keys)).start();
    let polite = server.client.with_key("polite");
    let story = json!({"model": "demo", "temperature": 0, "max_tokens": 64,
                       "messages": [{"role": "user", "content": "Tell me a story."}]});
    let text = |answer: Value| answer["choices"][0]["message"]["content"].clone();
    let alone = text(polite.ask(CHAT, &story));
    let answers = std::thread::scope(|scope| {
        let storm = scope.spawn(|| storm(&server.client, &hostile()));
        for _ in 0..5 {
            assert_eq!(text(polite.ask(CHAT, &story)), alone, "it is told as it was");
        }
        storm.join().unwrap()
    });
    // Whatever was left behind has ended.
    eventually("forks are left", || Some(readers(&server).len()).filter(|left| *left <= most()).ok_or("too many"));
    assert_eq!(text(polite.ask(CHAT, &story)), alone);
    row.end(&format!("p50/p99/most ms to an answer {}, and the polite client's text is the same", answers.told()));
}

#[test]
fn regression_a_grammar_that_takes_too_long_is_refused_where_nobody_else_computes() {
    let server = Setup::new().start();
    let grammars = hostile();
    for at in 0..2 {
        let answer = server.client.post(CHAT, &request(&grammars[3], at));
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
}
