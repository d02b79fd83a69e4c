//! Structured output on the demo model at temperature 1: what ends in order parses and follows its schema, whole and streamed, under
//! policies too.
mod schemas;

use std::sync::atomic::{AtomicUsize, Ordering};

use camshaft_tests::{Server, Setup};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const SCHEMAS: u64 = 300;
/// Beside the schemas of each family's calls.
const CALLS: u64 = 200;
/// How the answers of models have calls and thinking.
const FAMILIES: [&str; 13] = [
    "llama3",
    "hermes",
    "qwen3-coder",
    "mistral",
    "mistral-v11",
    "gemma",
    "functiongemma",
    "gemma4",
    "deepseek-r1",
    "deepseek-v3.1",
    "granite",
    "harmony",
    "generic",
];
/// Families whose arguments are no JSON. A strict tool with what they cannot follow is refused.
const NOT_JSON: [&str; 3] = ["qwen3-coder", "functiongemma", "gemma4"];
const CLIENTS: u64 = 4;
const MAX_TOKENS: u64 = 400;

/// What a client got of a choice.
#[derive(Debug, Clone, Default, PartialEq)]
struct Got {
    content: String,
    /// Names and arguments.
    calls: Vec<(String, String)>,
    reason: String,
}

fn ask(server: &Server, body: &Value, streamed: bool) -> Got {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if !streamed {
        let choice = server.client.ask(CHAT, body)["choices"][0].clone();
        let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten();
        return Got {
            content: text(&choice["message"]["content"]),
            calls: calls.map(|call| (text(&call["function"]["name"]), text(&call["function"]["arguments"]))).collect(),
            reason: text(&choice["finish_reason"]),
        };
    }
    let mut body = body.clone();
    body["stream"] = json!(true);
    let all = server.client.stream(CHAT, &body).finish();
    assert!(all.is_good(), "{:?}", all.error());
    let mut got = Got::default();
    for choice in all.choices() {
        got.content += &text(&choice["delta"]["content"]);
        for call in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
            match call["function"]["name"].as_str() {
                Some(name) => got.calls.push((name.to_owned(), text(&call["function"]["arguments"]))),
                None => got.calls.last_mut().unwrap().1 += &text(&call["function"]["arguments"]),
            }
        }
        got.reason += &text(&choice["finish_reason"]);
    }
    got
}

fn is_valid(schema: &Value, text: &str) -> bool {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    jsonschema::is_valid(schema, &value)
}

fn chat(seed: u64, more: Value) -> Value {
    let mut body = json!({"model": "demo", "temperature": 1, "top_p": 1, "top_k": 0, "min_p": 0, "seed": seed, "max_tokens": MAX_TOKENS,
        "messages": [{"role": "user", "content": "Tell me a story."}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// Runs all numbers on a few clients at once; returns how often `check` was true.
fn count(numbers: u64, check: impl Fn(u64) -> bool + Sync) -> usize {
    let count = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (check, count) = (&check, &count);
            scope.spawn(move || {
                let own = (client..numbers).step_by(CLIENTS as usize);
                count.fetch_add(own.filter(|number| check(*number)).count(), Ordering::Relaxed);
            });
        }
    });
    count.into_inner()
}

/// Asks for JSON of so many schemas, each whole and streamed: what has ended in order follows the schema. Returns how many have.
fn json_of_schemas(server: &Server, numbers: u64) -> usize {
    count(numbers, |number| {
        let schema = schemas::schema(number);
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
        let body = chat(number, json!({ "response_format": format }));
        let whole = ask(server, &body, false);
        // Equal seeds draw equal tokens from equal logits, which batches of other shapes may round differently.
        for got in [&whole, &ask(server, &body, true)] {
            match got.reason.as_str() {
                "stop" => assert!(is_valid(&schema, &got.content), "{schema}: {}", got.content),
                "length" => {}
                other => panic!("{other}: {schema}"),
            }
        }
        whole.reason == "stop"
    })
}

/// Asks for calls with arguments of so many schemas. Returns how many have ended in order.
fn calls_of_schemas(server: &Server, (first, numbers): (u64, u64), plain: bool) -> usize {
    count(numbers, |number| {
        let number = first + number;
        let (one, other) = (schemas::object(number, plain), schemas::object(number + 1000, plain));
        let tool = |name: &str, schema: &Value| json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": true}});
        let body =
            chat(number, json!({"tools": [tool("first", &one), tool("second", &other)], "tool_choice": "required"}));
        let whole = ask(server, &body, false);
        for got in [&whole, &ask(server, &body, true)] {
            match got.reason.as_str() {
                "tool_calls" => assert!(!got.calls.is_empty()),
                "length" => continue,
                other => panic!("{other}: {got:?}"),
            }
            for (name, arguments) in &got.calls {
                let schema = if name == "first" { &one } else { &other };
                assert!(is_valid(schema, arguments), "{name} {schema}: {arguments}");
            }
        }
        whole.reason == "tool_calls"
    })
}

fn serve(family: &str) -> Server {
    Setup::new().config(&format!("[[model]]\nid = \"demo\"\nfamily = {family:?}\n")).start()
}

#[test]
fn three_hundred_schemas_are_followed_whole_and_streamed() {
    let ended = json_of_schemas(&Setup::new().start(), SCHEMAS);
    assert!(ended as u64 > SCHEMAS / 2, "{ended} have ended in order: too few show anything");
}

#[test]
fn two_hundred_calls_over_all_families_are_well_formed_whole_and_streamed() {
    let (each, mut all) = (CALLS.div_ceil(FAMILIES.len() as u64), 0);
    for (index, family) in (0..).zip(FAMILIES) {
        let ended = calls_of_schemas(&serve(family), (index * each, each), NOT_JSON.contains(&family));
        // An answer of harmony may begin with a message to the user, which a small model seldom ends.
        assert!(ended > 0, "{family}: none of {each} has ended in order");
        all += ended;
    }
    assert!(all as u64 > CALLS / 2, "{all} have ended in order: too few show anything");
}

#[test]
fn policies_that_shape_the_text_leave_it_valid() {
    let settings = "[policy]\ndeadline = \"5s\"\n[settings]\nphrases = [\"a\", \"st\", \"1\"]\n";
    let server = Setup::new()
        .plugin("sampler", "10-avoid", "sampler-avoid-words", "[settings]\nwords = [\"e\", \"the\", \"tr\", \"2\"]\n")
        .plugin("filter", "10-rewind", "filter-rewind-phrases", settings)
        .start();
    // Where both rule out all that a schema allows, the request fails by that name, and no other does.
    let exhausted = AtomicUsize::new(0);
    let ended = count(SCHEMAS, |number| {
        let schema = schemas::schema(number);
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
        let body = chat(number, json!({ "response_format": format }));
        let response = server.client.post(CHAT, &body);
        if response.status == 400 {
            assert_eq!(response.json()["error"]["code"], "grammar_exhausted", "{}", response.text());
            exhausted.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        assert_eq!(response.status, 200, "{}", response.text());
        let choice = response.json()["choices"][0].clone();
        let content = choice["message"]["content"].as_str().unwrap().to_owned();
        if choice["finish_reason"] != "stop" {
            return false;
        }
        assert!(is_valid(&schema, &content), "{schema}: {content}");
        true
    });
    let exhausted = exhausted.into_inner();
    assert!(
        ended as u64 > SCHEMAS / 5,
        "{ended} have ended in order, {exhausted} were exhausted: too few show anything"
    );
    assert!(server.answer("What is 3 plus 4?").contains('7'), "the server goes on");
}
