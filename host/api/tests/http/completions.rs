//! Plain completions: every form of prompt, echo, log-probabilities.
use camshaft_core::ids::Token;
use camshaft_core::message::FinishReason;
use serde_json::{Value, json};

use crate::fixture::Server;
use crate::pool::Step;

fn prompts(server: &Server) -> Vec<Vec<u32>> {
    let starts = server.pool.starts.lock().unwrap();
    starts.iter().map(|start| start.prompt.iter().map(|token| token.0).collect()).collect()
}

#[tokio::test]
async fn answers_in_openais_shape() {
    let body = Server::new().complete(json!({})).await.json();
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(body["object"], "text_completion");
    let choice = json!({"text": "Hello", "index": 0, "logprobs": null, "finish_reason": "stop"});
    assert_eq!(body["choices"], json!([choice]));
    assert_eq!(body["usage"]["total_tokens"], 8);
}

#[tokio::test]
async fn reads_every_form_of_prompt() {
    let check = |prompt: Value, expected: &'static [&'static [u32]]| async move {
        let server = Server::new();
        let reply = server.complete(json!({ "prompt": prompt })).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(prompts(&server), expected);
    };
    check(json!("ab"), &[&[256, 97, 98]]).await;
    check(json!(["a", "b"]), &[&[256, 97], &[256, 98]]).await;
    check(json!([5, 6]), &[&[5, 6]]).await;
    check(json!([[5, 6], [257]]), &[&[5, 6], &[257]]).await;
    // The vocabulary begins a text by itself.
    check(json!(""), &[&[256]]).await;
    // Control tokens come as ids, not as text.
    check(json!("<|end|>"), &[&[256, 60, 124, 101, 110, 100, 124, 62]]).await;
}

#[tokio::test]
async fn refuses_prompts_that_are_none() {
    let check = |prompt: Value, param: &'static str| async move {
        let (shape, _) = Server::new().complete(json!({ "prompt": prompt })).await.error(400);
        assert_eq!(shape, format!("invalid_request_error - {param}"), "{prompt}");
    };
    check(Value::Null, "prompt").await;
    check(json!([]), "prompt").await;
    check(json!(7), "prompt").await;
    check(json!({"a": 1}), "prompt").await;
    check(json!([[]]), "prompt").await;
    check(json!([1, 258]), "prompt[1]").await;
    check(json!([1, -1]), "prompt[1]").await;
    check(json!([["x"]]), "prompt[0][0]").await;
    check(json!(["a", 1]), "prompt[1]").await;
    check(json!(vec!["a"; 129]), "prompt").await;
}

#[tokio::test]
async fn numbers_choices_over_all_prompts_and_seeds_them_per_prompt() {
    let server = Server::new();
    let body = server.complete(json!({"prompt": ["a", "b"], "n": 2, "seed": 40})).await.json();
    let indices: Vec<_> = body["choices"].as_array().unwrap().iter().map(|choice| choice["index"].as_u64()).collect();
    assert_eq!(indices, [Some(0), Some(1), Some(2), Some(3)]);
    assert_eq!(body["usage"]["prompt_tokens"], 4);
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 4);
    let starts = server.pool.starts.lock().unwrap();
    let got: Vec<_> = starts.iter().map(|start| (start.choice, start.prompt[1], start.params.seed)).collect();
    assert_eq!(got, [(0, Token(97), 40), (1, Token(97), 41), (2, Token(98), 40), (3, Token(98), 41)]);
}

#[tokio::test]
async fn bounds_the_choices_of_one_request() {
    let prompts = |count| json!({"prompt": vec!["a"; count], "n": 2});
    let body = Server::new().complete(prompts(64)).await.json();
    assert_eq!(body["choices"].as_array().unwrap().len(), 128);
    let (shape, message) = Server::new().complete(prompts(65)).await.error(400);
    assert_eq!(shape, "invalid_request_error - n");
    assert_eq!(message, "prompts times n must be at most 128 choices, got 130");
}

#[tokio::test]
async fn echoes_the_prompt_as_it_came() {
    for prompt in [json!(["ab", "cd"]), json!([[97, 98], [99, 100]])] {
        let body = Server::new().complete(json!({"prompt": prompt, "echo": true})).await.json();
        assert_eq!(body["choices"][0]["text"], "abHello");
        assert_eq!(body["choices"][1]["text"], "cdHello");
    }
    let streamed = Server::new().complete(json!({"echo": true, "stream": true})).await.events().0;
    assert_eq!(streamed[0]["choices"][0]["text"], "ab");
}

#[tokio::test]
async fn reports_log_probabilities_as_parallel_lists() {
    let script = |_: &_| vec![Step::Scored("ab"), Step::Scored("c"), Step::Finished(FinishReason::Stop, 3)];
    let body = Server::scripted(script).complete(json!({"logprobs": 1})).await.json();
    let expected = json!({
        "tokens": ["a", "b", "c"], "token_logprobs": [-0.5, -0.5, -0.5],
        "top_logprobs": [{"a": -0.5, "b": -1.5}, {"b": -0.5, "c": -1.5}, {"c": -0.5, "d": -1.5}],
        "text_offset": [0, 1, 2],
    });
    assert_eq!(body["choices"][0]["logprobs"], expected);
    let events = Server::scripted(script).complete(json!({"logprobs": 1, "stream": true})).await.events().0;
    assert_eq!(events[1]["choices"][0]["logprobs"]["text_offset"], json!([2]));
}
