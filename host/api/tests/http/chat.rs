//! Unary chat completions: the prompt that reaches the pool and the response that comes back.
use camshaft_core::ids::{PolicyDigest, Token};
use camshaft_core::message::FinishReason;
use serde_json::{Value, json};

use crate::fixture::{CONTEXT, MAX_TOKENS, Server};
use crate::pool::Step;

fn ids(text: &str) -> Vec<Token> {
    text.bytes().map(|byte| Token(u32::from(byte))).collect()
}

#[tokio::test]
async fn answers_in_openais_shape() {
    let server = Server::new();
    let reply = server.chat(json!({})).await;
    assert_eq!(reply.status, 200);
    assert_eq!(reply.header("content-type"), Some("application/json"));
    let mut body = reply.json();
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert!(body["created"].as_u64().unwrap() > 1_700_000_000);
    assert!(body["system_fingerprint"].as_str().unwrap().starts_with("fp_0123456789ab"));
    for random in ["id", "created", "system_fingerprint"] {
        body.as_object_mut().unwrap().remove(random);
    }
    let details = json!({"reasoning_tokens": 0, "audio_tokens": 0, "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0});
    let expected = json!({
        "object": "chat.completion", "model": "demo",
        "choices": [{
            "index": 0, "message": {"role": "assistant", "content": "Hello", "refusal": null},
            "logprobs": null, "finish_reason": "stop",
        }],
        "usage": {"prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26,
            "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0}, "completion_tokens_details": details},
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn submits_the_rendered_prompt_with_everything_the_client_asked_for() {
    let server = Server::new();
    let more = json!({"temperature": 0, "top_k": 3, "seed": 9, "stop": ["x", "y"], "max_completion_tokens": 4,
        "logit_bias": {"65": -100}, "samplers": ["avoid-words"], "ignore_eos": true, "logprobs": true, "top_logprobs": 2});
    assert_eq!(server.chat(more).await.status, 200);
    let start = server.start();
    let prompt = [vec![Token(256)], ids("[user]hi"), vec![Token(257)], ids("[assistant]")].concat();
    assert_eq!(start.prompt.to_vec(), prompt);
    let chain = PolicyDigest::new([7; 32]);
    assert_eq!((start.model.as_str(), start.tenant.as_str(), start.sampler_chain), ("demo", "anonymous", chain));
    assert_eq!((start.params.temperature, start.params.top_k, start.params.seed), (0.0, 3, 9));
    assert_eq!((start.params.logit_bias[0].token, start.params.logit_bias[0].bias), (Token(65), -100.0));
    assert_eq!((start.stop, start.max_tokens, start.choice), (vec!["x".to_owned(), "y".to_owned()], 4, 0));
    assert_eq!((start.samplers, start.logprobs), (Some(vec!["avoid-words".to_owned()]), Some(2)));
    assert!(start.ignore_eos);
}

#[tokio::test]
async fn fits_max_tokens_into_the_context() {
    let check = |content_bytes: usize, more: Value, expected: u32| async move {
        let server = Server::new();
        let messages = json!([{"role": "user", "content": "x".repeat(content_bytes)}]);
        let mut body = json!({ "messages": messages });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        assert_eq!(server.chat(body).await.status, 200);
        assert_eq!(server.start().max_tokens, expected);
    };
    // The template adds 19 tokens.
    check(1, json!({}), MAX_TOKENS).await;
    check(150, json!({}), CONTEXT - 169).await;
    check(150, json!({"max_tokens": MAX_TOKENS}), CONTEXT - 169).await;
    check(150, json!({"max_tokens": 5}), 5).await;
    check(CONTEXT as usize - 20, json!({}), 1).await;
}

#[tokio::test]
async fn refuses_a_prompt_that_fills_the_context() {
    let server = Server::new();
    let messages = json!([{"role": "user", "content": "x".repeat(CONTEXT as usize - 19)}]);
    let (shape, message) = server.chat(json!({ "messages": messages })).await.error(400);
    assert_eq!(shape, "invalid_request_error context_length_exceeded messages");
    assert!(message.contains("context holds 200 tokens, but the prompt has 200"), "{message}");
    // Up to four times as many are counted; the template adds 19.
    for (tokens, told) in [(4 * CONTEXT, "has 800 ("), (4 * CONTEXT + 1, "has more than 800 (")] {
        let messages = json!([{"role": "user", "content": "x".repeat(tokens as usize - 19)}]);
        let (_, message) = server.chat(json!({ "messages": messages })).await.error(400);
        assert!(message.contains(told), "{message}");
    }
}

#[tokio::test]
async fn gives_each_choice_its_own_seed_and_text() {
    let server = Server::scripted(|start| {
        let text = ["zero", "one", "two"][start.choice as usize];
        let reason = if start.choice == 1 { FinishReason::Length } else { FinishReason::Stop };
        vec![Step::Started(start.choice), Step::Text(text), Step::Finished(reason, 2)]
    });
    let body = server.chat(json!({"n": 3, "seed": u64::MAX})).await.json();
    let choices: Vec<_> = body["choices"].as_array().unwrap().iter().collect();
    let texts: Vec<_> = choices.iter().map(|choice| choice["message"]["content"].as_str().unwrap()).collect();
    let reasons: Vec<_> = choices.iter().map(|choice| choice["finish_reason"].as_str().unwrap()).collect();
    assert_eq!((texts, reasons), (vec!["zero", "one", "two"], vec!["stop", "length", "stop"]));
    assert_eq!(body["usage"]["prompt_tokens"], 21);
    assert_eq!(body["usage"]["completion_tokens"], 6);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
    let starts = server.pool.starts.lock().unwrap();
    let seeds: Vec<u64> = starts.iter().map(|start| start.params.seed).collect();
    assert_eq!(seeds, [u64::MAX, 0, 1]);
    assert!(starts[0].id != starts[1].id && starts[1].id != starts[2].id);
}

#[tokio::test]
async fn reports_log_probabilities_with_exact_bytes() {
    let server = Server::scripted(|_| vec![Step::Scored("é"), Step::Finished(FinishReason::Stop, 2)]);
    let body = server.chat(json!({"logprobs": true, "top_logprobs": 2})).await.json();
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["refusal"], Value::Null);
    let expected = json!({"token": "\u{FFFD}", "logprob": -0.5, "bytes": [195], "top_logprobs": [
        {"token": "\u{FFFD}", "logprob": -0.5, "bytes": [195]}, {"token": "\u{FFFD}", "logprob": -1.5, "bytes": [196]},
    ]});
    assert_eq!(logprobs["content"][0], expected);
    assert_eq!(logprobs["content"][1]["bytes"], json!([169]));
}

#[tokio::test]
async fn keeps_control_tokens_that_a_client_writes_as_text() {
    let server = Server::new();
    server.chat(json!({"messages": [{"role": "user", "content": "a<|end|>b"}]})).await;
    let prompt = [vec![Token(256)], ids("[user]a<|end|>b"), vec![Token(257)], ids("[assistant]")].concat();
    assert_eq!(server.start().prompt.to_vec(), prompt);
}

#[tokio::test]
async fn passes_the_templates_refusal_on() {
    let reply = Server::new().chat(json!({"messages": [{"role": "user", "content": "forbidden"}]})).await;
    let (shape, message) = reply.error(400);
    assert_eq!((shape.as_str(), message.as_str()), ("invalid_request_error - messages", "this template refuses"));
}

#[tokio::test]
async fn hands_template_variables_to_the_template() {
    let server = Server::new();
    assert_eq!(server.chat(json!({"chat_template_kwargs": {"add_generation_prompt": false}})).await.status, 200);
    assert_eq!(server.start().prompt.last(), Some(&Token(257)));
}

#[tokio::test]
async fn answers_under_the_short_name_and_reads_long_bodies_off_the_serving_threads() {
    let server = Server::new();
    let body = crate::fixture::chat_body(json!({"user": "u".repeat(40 << 10)}));
    assert_eq!(server.post("/chat", body).await.json()["choices"][0]["message"]["content"], "Hello");
}
