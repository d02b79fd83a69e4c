//! Every bound of a request: accepted at the bound, refused one past it with the field, the value and the bound.
use camshaft_tests::{Request, Response, Server, Setup};
use serde_json::{Value, json};

use crate::errors::error_of;

fn chat(server: &Server, more: &Value) -> Response {
    let mut body = json!({"model": "demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.client.post("/v1/chat/completions", &body)
}

fn complete(server: &Server, more: &Value) -> Response {
    let mut body = json!({"model": "demo", "prompt": "1, 2,", "max_tokens": 1});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.client.post("/v1/completions", &body)
}

fn accepted(response: &Response, what: &Value) {
    assert_eq!(response.status, 200, "{what}: {}", response.text());
}

/// Asserts that the refusal names the field and contains the words.
fn refused(response: &Response, (field, words): (&str, &[&str]), what: &Value) {
    assert_eq!(response.status, 400, "{what}: {}", response.text());
    let error = error_of(response);
    assert_eq!(error["type"], "invalid_request_error", "{what}");
    assert!(error["param"].as_str().is_some_and(|param| param.starts_with(field)), "{what}: {error}");
    for word in words {
        assert!(error["message"].as_str().unwrap().contains(word), "{what}: {word:?} in {error}");
    }
}

/// A field, values at its bounds, values past them, and the bounds as the refusal words them.
type Bounds = (&'static str, Vec<Value>, Vec<Value>, [&'static str; 2]);

#[test]
fn numbers_are_accepted_at_their_bounds_and_refused_past_them() {
    let server = Setup::new().start();
    let numbers: [Bounds; 13] = [
        ("temperature", vec![json!(0), json!(2)], vec![json!(2.0001), json!(-0.1), json!(1e300)], ["0", "2"]),
        ("top_p", vec![json!(0), json!(1)], vec![json!(1.0001), json!(-0.0001)], ["0", "1"]),
        ("min_p", vec![json!(0), json!(1)], vec![json!(1.0001), json!(-0.0001)], ["0", "1"]),
        ("typical_p", vec![json!(0), json!(1)], vec![json!(1.0001), json!(-0.0001)], ["0", "1"]),
        ("frequency_penalty", vec![json!(-2), json!(2)], vec![json!(-2.001), json!(2.001)], ["-2", "2"]),
        ("presence_penalty", vec![json!(-2), json!(2)], vec![json!(-2.001), json!(2.001)], ["-2", "2"]),
        ("repeat_penalty", vec![json!(0.01), json!(10)], vec![json!(0), json!(10.001)], ["0.01", "10"]),
        ("top_k", vec![json!(0), json!(-1), json!(1_000_000)], vec![json!(-2), json!(1_000_001)], ["-1", "1000000"]),
        ("repeat_last_n", vec![json!(0), json!(4096)], vec![json!(-1), json!(4097)], ["0", "4096"]),
        (
            "n",
            vec![json!(1), json!(128), json!(1.0)],
            vec![json!(0), json!(129), json!(-1), json!(i64::MIN), json!(u64::MAX)],
            ["1", "128"],
        ),
        (
            "max_tokens",
            vec![json!(1), json!(4096), json!(4097), json!(u64::MAX)],
            vec![json!(0), json!(-5)],
            ["0", "1"],
        ),
        ("max_completion_tokens", vec![json!(1), json!(128_000)], vec![json!(0)], ["0", "1"]),
        ("top_logprobs", vec![json!(0), json!(20)], vec![json!(21), json!(-1)], ["0", "20"]),
    ];
    for (field, good, bad, bounds) in numbers {
        for value in good {
            let body = json!({field: value, "logprobs": true});
            accepted(&chat(&server, &body), &body);
        }
        for value in bad {
            let body = json!({field: value, "logprobs": true});
            let response = chat(&server, &body);
            refused(&response, (field, &[]), &body);
            let message = error_of(&response)["message"].as_str().unwrap().to_owned();
            assert!(bounds.iter().any(|bound| message.contains(bound)), "{body}: {message}");
        }
        for value in [json!("hot"), json!(true), json!([1]), json!({})] {
            let body = json!({field: value, "logprobs": true});
            refused(&chat(&server, &body), (field, &[]), &body);
        }
    }
    for field in ["n", "max_tokens", "top_k", "top_logprobs"] {
        let body = json!({field: 1.5, "logprobs": true});
        refused(&chat(&server, &body), (field, &["1.5"]), &body);
    }
    for (value, good) in [(0, true), (5, true), (6, false), (-1, false)] {
        let body = json!({"logprobs": value});
        let response = complete(&server, &body);
        if good { accepted(&response, &body) } else { refused(&response, ("logprobs", &[]), &body) }
    }
    for seed in [json!(i64::MIN), json!(u64::MAX), json!(0)] {
        let body = json!({ "seed": seed });
        accepted(&chat(&server, &body), &body);
    }
    server.wait_until_idle();
}

#[test]
fn lists_are_accepted_at_their_maximum_length_and_refused_past_it() {
    let server = Setup::new().start();
    let stops = |count: usize| json!({"stop": (0..count).map(|i| format!("stop {i}")).collect::<Vec<_>>()});
    accepted(&chat(&server, &stops(16)), &json!("16 stop strings"));
    refused(&chat(&server, &stops(17)), ("stop", &["16", "17"]), &json!("17 stop strings"));
    accepted(&chat(&server, &json!({"stop": "x".repeat(512)})), &json!("a stop string of 512 bytes"));
    refused(&chat(&server, &json!({"stop": "x".repeat(513)})), ("stop", &["512", "513"]), &json!("513 bytes"));

    let vocabulary = server.admin.get("/admin/models").json()["models"][0]["vocabulary_tokens"].as_u64().unwrap();
    let bias = |id: u64, value: Value| json!({"logit_bias": {id.to_string(): value}});
    accepted(&chat(&server, &bias(vocabulary - 1, json!(100))), &json!("the last token"));
    accepted(&chat(&server, &bias(0, json!(-100))), &json!("the first token"));
    let outside = vocabulary.to_string();
    refused(&chat(&server, &bias(vocabulary, json!(1))), ("logit_bias", &[&outside]), &json!("a token outside"));
    refused(&chat(&server, &bias(u64::MAX, json!(1))), ("logit_bias", &[]), &json!("a token far outside"));
    for value in [json!(100.1), json!(-100.1)] {
        refused(&chat(&server, &bias(7, value.clone())), ("logit_bias", &["100"]), &value);
    }
    // The same ids again with leading zeros, to have more entries than the vocabulary has tokens.
    let entries = |count: u64| -> Value {
        let key = |i: u64| if i < vocabulary { i.to_string() } else { format!("0{}", i - vocabulary) };
        json!({"logit_bias": (0..count).map(|i| (key(i), json!(0))).collect::<serde_json::Map<_, _>>()})
    };
    accepted(&chat(&server, &entries(1024)), &json!("1024 biases"));
    refused(&chat(&server, &entries(1025)), ("logit_bias", &["1024", "1025"]), &json!("1025 biases"));

    let prompts = |count: usize| json!({"prompt": vec!["1, 2,"; count]});
    accepted(&complete(&server, &prompts(128)), &json!("128 prompts"));
    refused(&complete(&server, &prompts(129)), ("prompt", &["128", "129"]), &json!("129 prompts"));
    let both = json!({"prompt": vec!["1, 2,"; 65], "n": 2});
    refused(&complete(&server, &both), ("n", &["128", "130"]), &both);

    let messages = |count: usize| json!({"messages": vec![json!({"role": "user", "content": ""}); count]});
    refused(&chat(&server, &messages(4097)), ("messages", &["4096", "4097"]), &json!("4097 messages"));
    server.wait_until_idle();
}

#[test]
fn a_prompt_may_fill_the_context_but_for_one_token() {
    let server = Setup::new().start();
    let models = server.admin.get("/admin/models").json();
    let context = models["models"][0]["context_tokens"].as_u64().unwrap() as usize;
    assert!(context >= 1024, "the demo model has a context of {context}");
    let token = server.client.ask("/v1/tokenize", &json!({"model": "demo", "text": "a"}))["tokens"][0].clone();
    let prompt = |count: usize| json!({"prompt": vec![token.clone(); count], "max_tokens": 4096});
    let longest = complete(&server, &prompt(context - 1));
    accepted(&longest, &json!("all but one"));
    assert_eq!(longest.json()["usage"]["completion_tokens"], 1, "room for one token is left");
    assert_eq!(longest.json()["choices"][0]["finish_reason"], "length");
    let words = [context.to_string()];
    for count in [context, context + 1, 10 * context] {
        let response = complete(&server, &prompt(count));
        refused(&response, ("prompt", &[&words[0]]), &json!(count));
        assert_eq!(error_of(&response)["code"], "context_length_exceeded");
    }
    let long = json!({"messages": [{"role": "user", "content": "word ".repeat(4 * context)}]});
    let response = chat(&server, &long);
    refused(&response, ("messages", &[&words[0]]), &json!("a long message"));
    assert_eq!(error_of(&response)["code"], "context_length_exceeded");
    server.wait_until_idle();
}

#[test]
fn the_operators_setting_is_the_bound_of_requests() {
    let server = Setup::new().set("limits.max-tokens", "9").start();
    accepted(&chat(&server, &json!({"max_tokens": 9})), &json!(9));
    for unbounded in [json!(null), json!(10), json!(32_000)] {
        let story = json!([{"role": "user", "content": "Tell me a story."}]);
        let answer = chat(&server, &json!({"max_tokens": unbounded, "messages": story})).json();
        assert_eq!(answer["usage"]["completion_tokens"], 9, "{unbounded}");
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{unbounded}");
    }
}

#[test]
fn json_may_be_nested_to_its_bound_and_no_deeper() {
    let server = Setup::new().start();
    // The body itself is the first level of nesting.
    let nested = |depth: usize| {
        let list = format!("{}{}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        let body = format!(
            "{{\"model\": \"demo\", \"max_tokens\": 1, \"messages\": [{{\"role\": \"user\", \"content\": \"Hi\"}}], \"x\": {list}}}"
        );
        let request =
            Request::new("POST", "/v1/chat/completions").header("content-type", "application/json").body(body);
        server.client.send(&request)
    };
    accepted(&nested(127), &json!("127 levels"));
    let deep = nested(128);
    assert_eq!((deep.status, &error_of(&deep)["code"]), (400, &json!("invalid_json")));
}
