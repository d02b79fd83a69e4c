//! What a sampler may ask of the host, seen by a client: plans, refusals, forced tokens and an early end.
use camshaft_tests::{Server, Setup, guest};
use serde_json::{Value, json};

const COMPLETIONS: &str = "/v1/completions";

fn asks(what: &str, tokens: &[u64]) -> Server {
    let settings = format!("[settings]\nask = \"{what}\"\ntokens = {tokens:?}\n");
    let server = Setup::new().component("sampler", "10-asks", &guest("sampler-plans"), &settings).start();
    server.wait_for_policy(("sampler", "asks"), |entry| entry["state"] == "active");
    server
}

fn body(stream: bool) -> Value {
    json!({"model": "demo", "prompt": "1, 2, 3,", "temperature": 0, "max_tokens": 20, "stream": stream})
}

#[test]
fn a_refusal_of_a_sampler_reaches_the_client_streamed_or_not() {
    let server = asks("refuse", &[]);
    for stream in [false, true] {
        let response = server.client.post(COMPLETIONS, &body(stream));
        assert_eq!(response.status, 403, "{}", response.text());
        let error = &response.json()["error"];
        assert_eq!((&error["code"], &error["param"]), (&json!("not_today"), &json!("prompt")), "{error}");
        assert_eq!(error["message"], "not today");
    }
}

#[test]
fn forced_tokens_are_the_text_and_an_end_comes_before_the_next_one() {
    let plain = Setup::new().start();
    let tokens = |text: &str| -> Vec<u64> {
        let answer = plain.client.ask("/v1/tokenize", &json!({"model": "demo", "text": text}));
        answer["tokens"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect()
    };
    let forced = tokens(" seventeen cats");
    let server = asks("force-then-finish", &forced);
    for choices in [1, 2] {
        let mut body = body(false);
        body["logprobs"] = json!(0);
        body["n"] = json!(choices);
        let answer = server.client.ask(COMPLETIONS, &body);
        for choice in answer["choices"].as_array().unwrap() {
            assert_eq!(
                (&choice["text"], &choice["finish_reason"]),
                (&json!(" seventeen cats"), &json!("stop")),
                "{answer}"
            );
            assert_eq!(choice["logprobs"]["tokens"].as_array().unwrap().len(), forced.len());
        }
        assert_eq!(answer["choices"].as_array().unwrap().len(), choices);
        assert_eq!(answer["usage"]["completion_tokens"], json!(choices * forced.len()), "{answer}");
    }
}

#[test]
fn the_standard_sampler_is_called_for_no_token() {
    let server = Setup::new().plugin("sampler", "10-standard", "sampler-standard", "").start();
    server.wait_for_policy(("sampler", "standard"), |entry| entry["state"] == "active");
    let calls = |outcome: &str| {
        let labels = [("hook", "sampler"), ("plugin", "standard"), ("outcome", outcome)];
        server.metrics().count("camshaft_policy_calls_total", &labels)
    };
    server.client.ask(COMPLETIONS, &body(false));
    assert_eq!((calls("planned"), calls("shaped"), calls("drawn")), (1.0, 0.0, 0.0));
}
