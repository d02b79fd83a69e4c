//! Structured output on the demo model at temperature 1: what ends in order parses and follows its schema, whole and streamed, under
//! policies too.
mod schemas;

use std::sync::atomic::{AtomicUsize, Ordering};

use camshaft_tests::{Server, Setup};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const SCHEMAS: u64 = 300;
/// Of each family: two hundred in all, and fewer where policies shape what schemas shape already.
const CALLS: u64 = 16;
const CALLS_UNDER_POLICIES: u64 = 4;
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

/// Asks once. `None`: the policies and the grammar together have ruled out every token, which the error must say.
fn ask(server: &Server, body: &Value, streamed: bool) -> Option<Got> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let is_exhausted = |error: &Value| assert_eq!(error["code"], "grammar_exhausted", "{error}");
    if !streamed {
        let response = server.client.post(CHAT, body);
        if response.status != 200 {
            is_exhausted(&response.json()["error"]);
            return None;
        }
        let choice = response.json()["choices"][0].clone();
        let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten();
        return Some(Got {
            content: text(&choice["message"]["content"]),
            calls: calls.map(|call| (text(&call["function"]["name"]), text(&call["function"]["arguments"]))).collect(),
            reason: text(&choice["finish_reason"]),
        });
    }
    let mut body = body.clone();
    body["stream"] = json!(true);
    let all = server.client.stream(CHAT, &body).finish();
    if let Some(error) = all.error() {
        is_exhausted(error);
        return None;
    }
    assert!(all.is_good());
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
    Some(got)
}

/// What came of many requests.
#[derive(Debug, Default)]
struct Tally {
    /// In order, and valid.
    ended: AtomicUsize,
    exhausted: AtomicUsize,
}

impl Tally {
    /// Asks whole and streamed. `check` says whether the answer has ended in order, and fails if it is then not valid.
    fn ask(&self, server: &Server, body: &Value, check: impl Fn(&Got) -> bool) {
        // Equal seeds draw equal tokens from equal logits, which batches of other shapes may round differently.
        for streamed in [false, true] {
            let counter = match ask(server, body, streamed) {
                None => &self.exhausted,
                Some(got) if check(&got) => &self.ended,
                Some(_) => continue,
            };
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn is_free(&self) {
        assert_eq!(self.exhausted.load(Ordering::Relaxed), 0, "no policy bans anything");
    }

    /// Of so many that were asked twice, this part at least has ended in order.
    fn shows(self, asked: u64, part: u64) {
        let (ended, exhausted) = (self.ended.into_inner(), self.exhausted.into_inner());
        let what = format!("of {asked} asked twice {ended} have ended in order, {exhausted} were exhausted");
        assert!(ended as u64 > 2 * asked / part, "{what}: too few show anything");
    }
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

/// Runs all numbers on a few clients at once.
fn each(numbers: std::ops::Range<u64>, run: impl Fn(u64) + Sync) {
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (run, numbers) = (&run, numbers.clone());
            scope.spawn(move || numbers.skip(client as usize).step_by(CLIENTS as usize).for_each(run));
        }
    });
}

/// Asks for JSON that follows a schema.
fn json_of(server: &Server, (number, schema): (u64, &Value), tally: &Tally) {
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "strict": true, "schema": schema}});
    tally.ask(server, &chat(number, json!({ "response_format": format })), |got| match got.reason.as_str() {
        "stop" => {
            assert!(is_valid(schema, &got.content), "{schema}: {}", got.content);
            true
        }
        "length" => false,
        other => panic!("{other}: {schema}"),
    });
}

/// Asks for calls with arguments of schemas.
fn calls_of(server: &Server, (number, plain): (u64, bool), tally: &Tally) {
    let (one, other) = (schemas::object(number, plain), schemas::object(number + 1000, plain));
    let tool = |name: &str, schema: &Value| json!({"type": "function", "function": {"name": name, "parameters": schema, "strict": true}});
    let body = chat(number, json!({"tools": [tool("first", &one), tool("second", &other)], "tool_choice": "required"}));
    tally.ask(server, &body, |got| {
        match got.reason.as_str() {
            "tool_calls" => assert!(!got.calls.is_empty()),
            "length" => return false,
            other => panic!("{other}: {got:?}"),
        }
        for (name, arguments) in &got.calls {
            let schema = if name == "first" { &one } else { &other };
            assert!(is_valid(schema, arguments), "{name} {schema}: {arguments}");
        }
        true
    });
}

/// Asks for so many calls of each family on servers that are set up like this. Returns how many were asked, what came of them,
/// and the families of which none has ended in order.
fn calls_of_families(of_each: u64, setup: impl Fn() -> Setup) -> (u64, Tally, Vec<&'static str>) {
    let (all, mut without) = (Tally::default(), Vec::new());
    for (index, family) in (0..).zip(FAMILIES) {
        let server = setup().config(&format!("[[model]]\nid = \"demo\"\nfamily = {family:?}\n")).start();
        let before = all.ended.load(Ordering::Relaxed);
        each(index * of_each..(index + 1) * of_each, |number| {
            calls_of(&server, (number, NOT_JSON.contains(&family)), &all);
        });
        if all.ended.load(Ordering::Relaxed) == before {
            without.push(family);
        }
    }
    (of_each * FAMILIES.len() as u64, all, without)
}

/// With a sampler that bans words and a filter that takes text back.
fn under_policies(words: &str, phrases: &str) -> Setup {
    let filter = format!("[policy]\ndeadline = \"5s\"\n[settings]\nphrases = {phrases}\n");
    Setup::new().plugin("sampler", "10-avoid", "sampler-avoid-words", &format!("[settings]\nwords = {words}\n")).plugin(
        "filter",
        "10-rewind",
        "filter-rewind-phrases",
        &filter,
    )
}

#[test]
fn three_hundred_schemas_are_followed_whole_and_streamed() {
    let (server, tally) = (Setup::new().start(), Tally::default());
    each(0..SCHEMAS, |number| json_of(&server, (number, &schemas::schema(number)), &tally));
    tally.is_free();
    tally.shows(SCHEMAS, 2);
}

#[test]
fn two_hundred_calls_over_all_families_are_well_formed_whole_and_streamed() {
    let (asked, tally, without) = calls_of_families(CALLS, Setup::new);
    tally.is_free();
    assert!(without.is_empty(), "none has ended in order of {without:?}");
    tally.shows(asked, 2);
}

#[test]
fn schemas_are_followed_under_policies_that_shape_the_text() {
    let server = under_policies(r#"["e", "the", "tr", "2"]"#, r#"["a", "st", "1"]"#).start();
    let tally = Tally::default();
    each(0..SCHEMAS, |number| json_of(&server, (number, &schemas::schema(number)), &tally));
    tally.shows(SCHEMAS, 5);
    assert!(server.answer("What is 3 plus 4?").contains('7'), "the server goes on");
}

/// Without words that the notations themselves need.
#[test]
fn calls_of_all_families_are_well_formed_under_policies_that_shape_the_text() {
    let (asked, tally, _) =
        calls_of_families(CALLS_UNDER_POLICIES, || under_policies(r#"["x", "z", "2"]"#, r#"["k", "1"]"#));
    tally.shows(asked, 5);
}
