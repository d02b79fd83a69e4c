//! Every bound, at it and one past it.
use super::*;
use camshaft_plugin::validator::{Facts, testing};
use serde_json::{Value, json};

fn policy(settings: &str) -> Result<Limits, String> {
    Limits::new(serde_json::from_str(settings).map_err(|error| error.to_string())?)
}

fn request() -> Facts {
    Facts {
        endpoint: "chat".to_owned(),
        model: "demo".to_owned(),
        prompt_tokens: 10,
        max_tokens: 100,
        max_tokens_set: true,
        temperature: 0.5,
        top_p: 1.0,
        n: 2,
        stream: false,
    }
}

/// What the policy says of a request with this body.
fn ask(settings: &str, request: &Facts, body: Value) -> Result<Verdict, Refusal> {
    policy(settings).unwrap().validate(&testing::request(request.clone(), "t", body))
}

fn check(settings: &str, request: &Facts, expected: Option<(&str, &str)>) {
    check_body(settings, request, json!({"messages": [], "max_tokens": 100}), expected);
}

/// The refused field, or `None` if the request is accepted.
fn check_body(settings: &str, request: &Facts, body: Value, expected: Option<(&str, &str)>) {
    let answer = ask(settings, request, body);
    match (answer, expected) {
        (Ok(Verdict::Accept), None) => {}
        (Err(refusal), Some((param, message))) => {
            assert_eq!((refusal.status, refusal.code.as_str()), (400, "policy_refused"));
            assert_eq!(refusal.param.as_deref(), Some(param));
            assert_eq!(refusal.message, message);
        }
        (answer, expected) => panic!("{settings}: {answer:?} instead of {expected:?}"),
    }
}

#[test]
fn accepts_everything_without_settings() {
    check("{}", &request(), None);
}

#[test]
fn accepts_at_each_bound_and_refuses_past_it() {
    let r = request();
    check(r#"{"max-tokens": 100}"#, &r, None);
    check(r#"{"max-tokens": 99}"#, &r, Some(("max_tokens", "max_tokens is 100, at most 99 is allowed")));
    check(r#"{"max-prompt-tokens": 10}"#, &r, None);
    let message = "the prompt has 10 tokens, at most 9 are allowed";
    check(r#"{"max-prompt-tokens": 9}"#, &r, Some(("messages", message)));
    check(r#"{"min-temperature": 0.5, "max-temperature": 0.5}"#, &r, None);
    let message = "temperature is 0.5, at least 0.75 is required";
    check(r#"{"min-temperature": 0.75}"#, &r, Some(("temperature", message)));
    let message = "temperature is 0.5, at most 0.25 is allowed";
    check(r#"{"max-temperature": 0.25}"#, &r, Some(("temperature", message)));
    check(r#"{"max-n": 2}"#, &r, None);
    check(
        r#"{"max-n": 1}"#,
        &r,
        Some(("n", "the request asks for 2 choices (prompts times n), at most 1 are allowed")),
    );
}

#[test]
fn names_the_field_that_the_client_used() {
    let mut r = request();
    let message = "max_completion_tokens is 100, at most 9 is allowed";
    let body = json!({"max_completion_tokens": 100});
    check_body(r#"{"max-tokens": 9}"#, &r, body, Some(("max_completion_tokens", message)));
    let body = json!({"max_completion_tokens": null, "max_tokens": 100});
    check_body(r#"{"max-tokens": 9}"#, &r, body, Some(("max_tokens", "max_tokens is 100, at most 9 is allowed")));
    r.endpoint = "completion".to_owned();
    let message = "the prompt has 10 tokens, at most 1 are allowed";
    check(r#"{"max-prompt-tokens": 1}"#, &r, Some(("prompt", message)));
}

#[test]
fn amends_the_hosts_default_instead_of_refusing() {
    let r = Facts { max_tokens_set: false, ..request() };
    let verdict = ask(r#"{"max-tokens": 64}"#, &r, json!({}));
    assert_eq!(verdict, Ok(Verdict::Amend("{\"max_tokens\": 64}".to_owned())));
    check(r#"{"max-tokens": 100}"#, &r, None);
}

#[test]
fn asks_of_embeddings_only_the_length_of_the_input() {
    let r = Facts { endpoint: "embedding".to_owned(), max_tokens: 0, max_tokens_set: false, ..request() };
    check(r#"{"max-tokens": 1, "max-n": 1, "max-temperature": 0.1}"#, &r, None);
    let message = "the prompt has 10 tokens, at most 9 are allowed";
    check(r#"{"max-prompt-tokens": 9}"#, &r, Some(("input", message)));
}

#[test]
fn regression_an_endpoint_of_another_name_is_judged_by_whether_it_generates() {
    let silent = Facts { endpoint: "rerank".to_owned(), max_tokens: 0, max_tokens_set: false, ..request() };
    check(r#"{"min-temperature": 1, "max-n": 1, "max-tokens": 1}"#, &silent, None);
    let refusal = ask(r#"{"max-prompt-tokens": 9}"#, &silent, json!({})).unwrap_err();
    assert_eq!((refusal.status, refusal.param), (400, None), "which field holds the prompt is unknown");
    let talks = Facts { endpoint: "responses".to_owned(), ..request() };
    check(r#"{"max-tokens": 99}"#, &talks, Some(("max_tokens", "max_tokens is 100, at most 99 is allowed")));
}

#[test]
fn refuses_settings_that_no_request_could_meet() {
    for (settings, expected) in [
        (r#"{"max-tokens": 0}"#, "settings.max-tokens must be at least 1"),
        (r#"{"max-prompt-tokens": 0}"#, "settings.max-prompt-tokens must be at least 1"),
        (r#"{"max-n": 0}"#, "settings.max-n must be at least 1"),
        (r#"{"max-temperature": -1}"#, "settings.max-temperature must be"),
        (r#"{"min-temperature": 2, "max-temperature": 1}"#, "min-temperature 2 is above max-temperature 1"),
        (r#"{"max-token": 1}"#, "unknown field `max-token`"),
    ] {
        let error = policy(settings).unwrap_err();
        assert!(error.contains(expected), "{settings}: {error}");
    }
}
