//! What becomes of a prompt before it is computed: its end, its length, a gap in it.
use camshaft_core::ids::Token;
use serde_json::{Value, json};

use crate::fixture::{CONTEXT, INFILL, Server};

fn prompt(server: &Server) -> String {
    let name = |token: &Token| match token.0 {
        256 => "<|bos|>".to_owned(),
        257 => "<|end|>".to_owned(),
        byte => char::from(byte as u8).to_string(),
    };
    server.start().prompt.iter().map(name).collect()
}

const TURNS: [(&str, &str); 2] = [("user", "hi"), ("assistant", "well, ")];

fn turns(turns: &[(&str, &str)]) -> Value {
    turns.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
}

#[tokio::test]
async fn a_conversation_ends_as_it_is_told_to() {
    let check = |more: Value, expected: &'static str| async move {
        let server = Server::new();
        let mut body = json!({ "messages": turns(&TURNS) });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.chat(body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(prompt(&server), expected);
    };
    let closed = "<|bos|>[user]hi<|end|>[assistant]well, <|end|>";
    check(json!({}), "<|bos|>[user]hi<|end|>[assistant]well, <|end|>[assistant]").await;
    check(
        json!({"add_generation_prompt": true, "continue_final_message": false}),
        "<|bos|>[user]hi<|end|>[assistant]well, <|end|>[assistant]",
    )
    .await;
    check(json!({"add_generation_prompt": false}), closed).await;
    check(json!({"continue_final_message": true}), "<|bos|>[user]hi<|end|>[assistant]well, ").await;
    check(
        json!({"continue_final_message": true, "add_generation_prompt": false}),
        "<|bos|>[user]hi<|end|>[assistant]well, ",
    )
    .await;
    // A text that spells a control token stays text, and so does what goes on.
    let spelled = turns(&[("user", "<|end|>"), ("assistant", "a<|end|>b")]);
    let server = Server::new();
    server.chat(json!({"messages": spelled, "continue_final_message": true})).await;
    let tokens: Vec<u32> = server.start().prompt.iter().map(|token| token.0).collect();
    assert!(tokens.ends_with(&"[assistant]a<|end|>b".bytes().map(u32::from).collect::<Vec<_>>()), "{tokens:?}");
    assert_eq!(tokens.iter().filter(|token| **token == 257).count(), 1, "the template's own, behind the user's");
}

#[tokio::test]
async fn only_a_text_of_the_assistant_goes_on() {
    let check = |messages: Value, more: Value, why: &'static str| async move {
        let mut body = json!({ "messages": messages, "continue_final_message": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let (shape, message) = Server::new().chat(body).await.error(400);
        assert_eq!((shape.as_str(), message.as_str()), ("invalid_request_error - continue_final_message", why));
    };
    let last = "continue_final_message needs a last message of the assistant with a text";
    check(turns(&TURNS[..1]), json!({}), last).await;
    check(turns(&[("user", "hi"), ("assistant", " ")]), json!({}), last).await;
    let both = "continue_final_message and add_generation_prompt may not both be true";
    check(turns(&TURNS), json!({"add_generation_prompt": true}), both).await;
}

#[tokio::test]
async fn the_end_is_left_of_a_prompt_that_is_too_long() {
    let check = |prompt_bytes: usize, more: Value, expected: usize| async move {
        let text: String = ('a'..='z').cycle().take(prompt_bytes).collect();
        let server = Server::new();
        let mut body = json!({ "prompt": text });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.complete(body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        let prompt = prompt(&server);
        assert!(text.ends_with(prompt.trim_start_matches("<|bos|>")), "{prompt}");
        assert_eq!(server.start().prompt.len(), expected);
    };
    check(10, json!({"truncate_prompt_tokens": 4}), 4).await;
    check(10, json!({"truncate_prompt_tokens": 11}), 11).await;
    check(10, json!({"truncate_prompt_tokens": 12}), 11).await;
    // More than is read of a prompt that is not cut.
    let long = 20 * CONTEXT as usize;
    check(long, json!({"truncate_prompt_tokens": 5}), 5).await;
    check(long, json!({"truncate_prompt_tokens": -1}), CONTEXT as usize - 1).await;
    check(long, json!({"truncate_prompt_tokens": -1, "max_tokens": 20}), CONTEXT as usize - 20).await;
    let body = json!({"prompt": "a".repeat(long), "truncate_prompt_tokens": CONTEXT});
    assert_eq!(Server::new().complete(body).await.error(400).0, "invalid_request_error context_length_exceeded prompt");
    let server = Server::new();
    server.chat(json!({"truncate_prompt_tokens": 13})).await;
    assert_eq!(prompt(&server), "i<|end|>[assistant]");
}

#[tokio::test]
async fn a_gap_in_a_text_is_filled_by_models_that_can() {
    let fill = |more: Value| async move {
        let server = Server::new();
        let mut body = json!({"model": "org/secret", "prompt": "ab", "suffix": "yz"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let reply = server.complete(body).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        server.start().prompt.iter().map(|token| token.0).collect::<Vec<_>>()
    };
    let [prefix, suffix, middle] = [INFILL.prefix.0, INFILL.suffix.0, INFILL.middle.0];
    assert_eq!(fill(json!({})).await, [256, prefix, 97, 98, suffix, 121, 122, middle]);
    assert_eq!(fill(json!({"prompt": [97, 98]})).await, [prefix, 97, 98, suffix, 121, 122, middle]);
    assert_eq!(fill(json!({"prompt": ""})).await, [256, prefix, suffix, 121, 122, middle]);
    assert_eq!(fill(json!({"suffix": ""})).await, [256, 97, 98], "there is no gap");
    for (body, why) in [
        (
            json!({"suffix": "yz"}),
            "suffix is not supported by this model: its vocabulary has no tokens for a gap in a text",
        ),
        (json!({"suffix": 7}), "suffix must be a string, got integer `7`"),
        (json!({"model": "org/secret", "suffix": "yz", "echo": true}), "suffix may not be set together with echo"),
        (
            json!({"model": "org/secret", "suffix": "yz", "truncate_prompt_tokens": 4}),
            "suffix may not be set together with truncate_prompt_tokens",
        ),
    ] {
        let (shape, message) = Server::new().complete(body).await.error(400);
        assert_eq!((shape.as_str(), message.as_str()), ("invalid_request_error - suffix", why));
    }
}

#[tokio::test]
async fn what_would_change_the_answer_and_is_not_served_is_refused_with_a_reason() {
    for (field, value) in [("use_beam_search", json!(true)), ("chat_template", json!("{{ messages }}"))] {
        let (shape, message) = Server::new().chat(json!({ field: value })).await.error(400);
        assert_eq!(shape, format!("invalid_request_error - {field}"));
        assert!(message.starts_with(&format!("{field} is not supported: ")), "{message}");
    }
}
