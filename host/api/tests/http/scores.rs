//! Completions that echo their prompt with its log-probabilities, as evaluation harnesses ask for them.
use camshaft_core::message::{FinishReason, Start};
use serde_json::{Value, json};

use crate::fixture::{CONTEXT, Server};
use crate::pool::Step;

/// Scores the prompt in two parts, then draws a byte if one is asked for.
fn scored(start: &Start) -> Vec<Step> {
    let (last, tokens) = (start.prompt.len() - 1, start.max_tokens.min(1));
    let mut steps = vec![Step::Started(0), Step::PromptScores(0, 1), Step::PromptScores(1, last)];
    steps.extend((tokens > 0).then_some(Step::Scored("z")));
    steps.push(Step::Finished(FinishReason::Length, tokens));
    steps
}

fn expected(drawn: bool) -> Value {
    let mut lists = json!({
        "tokens": ["", "a", "b"], "token_logprobs": [null, -2.0, -2.0],
        "top_logprobs": [null, {"a": -2.0}, {"b": -2.0}], "text_offset": [0, 0, 1],
    });
    if drawn {
        for (name, value) in [("tokens", json!("z")), ("token_logprobs", json!(-0.5)), ("text_offset", json!(2))] {
            lists[name].as_array_mut().unwrap().push(value);
        }
        lists["top_logprobs"].as_array_mut().unwrap().push(json!({"z": -0.5, "{": -1.5}));
    }
    lists
}

#[tokio::test]
async fn the_log_probabilities_of_the_prompt_come_before_those_of_the_text() {
    let server = Server::scripted(scored);
    let body = server.complete(json!({"echo": true, "logprobs": 1, "max_tokens": 1})).await.json();
    let choice = &body["choices"][0];
    assert_eq!((&choice["text"], &choice["logprobs"]), (&json!("abz"), &expected(true)));
    let start = server.start();
    assert_eq!((start.score_prompt, start.logprobs, start.max_tokens), (true, Some(1), 1));
}

#[tokio::test]
async fn a_prompt_is_scored_without_generating_anything() {
    let server = Server::scripted(scored);
    let body = server.complete(json!({"echo": true, "logprobs": 1, "max_tokens": 0})).await.json();
    let choice = &body["choices"][0];
    assert_eq!((&choice["text"], &choice["logprobs"]), (&json!("ab"), &expected(false)));
    assert_eq!((&choice["finish_reason"], &body["usage"]["completion_tokens"]), (&json!("length"), &json!(0)));
    assert_eq!(server.start().max_tokens, 0);
    // Only where the prompt is the answer.
    let (shape, message) = Server::new().complete(json!({"max_tokens": 0})).await.error(400);
    assert_eq!(shape, "invalid_request_error - max_tokens", "{message}");
    let (shape, _) = Server::new().chat(json!({"max_tokens": 0, "echo": true})).await.error(400);
    assert_eq!(shape, "invalid_request_error - max_tokens");
}

#[tokio::test]
async fn an_echo_without_log_probabilities_scores_nothing() {
    let server = Server::new();
    let body = server.complete(json!({"echo": true})).await.json();
    assert_eq!((&body["choices"][0]["text"], &body["choices"][0]["logprobs"]), (&json!("abHello"), &Value::Null));
    assert!(!server.start().score_prompt);
}

#[tokio::test]
async fn a_streamed_echo_has_the_same_lists_in_parts() {
    let server = Server::scripted(scored);
    let ask = json!({"echo": true, "logprobs": 1, "max_tokens": 1, "stream": true});
    let (events, done) = server.complete(ask).await.events();
    assert!(done);
    let mut joined = json!({"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []});
    let mut text = String::new();
    for event in &events {
        let choice = &event["choices"][0];
        text.push_str(choice["text"].as_str().unwrap());
        for (name, list) in choice["logprobs"].as_object().into_iter().flatten() {
            joined[name].as_array_mut().unwrap().extend(list.as_array().unwrap().clone());
        }
    }
    assert_eq!((text.as_str(), joined), ("abz", expected(true)));
    assert_eq!(events[0]["choices"][0]["text"], "ab", "the prompt comes first");
}

#[tokio::test]
async fn each_prompt_of_a_list_is_scored_and_so_is_each_choice() {
    let server = Server::scripted(scored);
    let ask = json!({"prompt": [[97, 98], [120, 121]], "n": 2, "echo": true, "logprobs": 0, "max_tokens": 0});
    let body = server.complete(ask).await.json();
    let lists = |index: usize| {
        let choice = &body["choices"][index];
        (choice["text"].clone(), choice["logprobs"]["tokens"].clone(), choice["logprobs"]["token_logprobs"].clone())
    };
    let expected = |text: &str, tokens: [&str; 2]| (json!(text), json!(tokens), json!([null, -2.0]));
    assert_eq!([lists(0), lists(1)], [expected("ab", ["a", "b"]), expected("ab", ["a", "b"])]);
    assert_eq!([lists(2), lists(3)], [expected("xy", ["x", "y"]), expected("xy", ["x", "y"])]);
}

#[tokio::test]
async fn the_likeliest_choice_is_told_by_its_own_tokens_and_not_by_the_prompts() {
    let script = |start: &Start| {
        let last = start.prompt.len() - 1;
        let logprob = [-1.0, -0.5][start.choice as usize];
        let text = ["p", "q"][start.choice as usize];
        vec![
            Step::Started(0),
            Step::PromptScores(0, last),
            Step::Likely(text, logprob),
            Step::Finished(FinishReason::Stop, 1),
        ]
    };
    let body = Server::scripted(script).complete(json!({"echo": true, "logprobs": 0, "best_of": 2})).await.json();
    assert_eq!(body["choices"][0]["text"], "abq");
    assert_eq!(body["choices"][0]["logprobs"]["token_logprobs"], json!([null, -2.0, -2.0, -0.5]));
}

#[tokio::test]
async fn a_prompt_of_which_the_end_is_left_is_echoed_as_it_was_read() {
    let server = Server::scripted(scored);
    let ask = json!({"prompt": "uvab", "truncate_prompt_tokens": 2, "echo": true, "logprobs": 0, "max_tokens": 0});
    let body = server.complete(ask).await.json();
    assert_eq!(body["choices"][0]["text"], "ab");
    assert_eq!(body["choices"][0]["logprobs"]["text_offset"], json!([0, 1]));
    assert_eq!(body["usage"]["prompt_tokens"], 2);
    // It fills the context less one token.
    let long = "x".repeat(2 * CONTEXT as usize);
    let ask = json!({"prompt": long, "truncate_prompt_tokens": -1, "echo": true, "max_tokens": 0});
    let server = Server::new();
    assert_eq!(server.complete(ask).await.status, 200);
    assert_eq!(server.start().prompt.len(), CONTEXT as usize - 1);
}
