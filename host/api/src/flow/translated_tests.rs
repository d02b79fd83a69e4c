//! Streams that are cut, and the memory of what is translated.
use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::flow::budget::Budget;

const BUDGET: u64 = 8 << 20;

/// An answer to a request of the Responses API with instructions of so many bytes.
fn begun(instructions: usize, body: Body) -> Begun<Asked> {
    let request = json!({"input": "hi", "stream": true, "instructions": "x".repeat(instructions)});
    let read = Dialect::Responses.read(json::parse(&request.to_string()).unwrap()).unwrap();
    Begun { response: Response::new(body), kept: read.kept, kept_bytes: read.kept_bytes, prompt_tokens: 21 }
}

fn chunk(text: &str) -> String {
    format!("data: {}\n\n", json!({"model": "demo", "choices": [{"delta": {"content": text}}]}))
}

/// A body of these pieces, and what comes behind them.
fn pieces<const N: usize>(pieces: [Result<String, &'static str>; N]) -> Body {
    Body::from_stream(stream::iter(pieces))
}

/// What a tenant with nothing else may not take any more, as another one does not find it.
fn taken(budget: &Arc<Budget>) -> u64 {
    let holds = |bytes: u64| budget.share(&"other".into()).grow(bytes as usize).is_err();
    let (mut least, mut most) = (0, BUDGET);
    while most - least > 1 {
        let middle = least.midpoint(most);
        *(if holds(middle) { &mut most } else { &mut least }) = middle;
    }
    // Of two tenants the second may hold half of what is free.
    BUDGET - 2 * least
}

async fn text_of(response: Response) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn a_stream_that_is_cut_or_fails_ends_with_an_error() {
    let budget = Budget::new(BUDGET);
    let half = "data: {\"model\"".to_owned();
    let cut = pieces([Ok(chunk("Hel")), Ok(half.clone())]);
    let failed = pieces([Ok(chunk("Hel")), Ok(half), Err("the connection broke")]);
    let garbled = pieces([Ok(chunk("Hel")), Ok("data: {\n\n".to_owned()), Ok(chunk("lo"))]);
    for body in [cut, failed, garbled] {
        let text = text_of(streamed(begun(0, body), budget.share(&"a".into()))).await;
        let last = text.trim_end().rsplit("\n\n").next().unwrap();
        assert!(last.starts_with("event: response.failed\n"), "{text}");
        let (_, data) = last.split_once("data: ").unwrap();
        let event: Value = serde_json::from_str(data).unwrap();
        assert_eq!(event["response"]["error"]["message"], "the stream ended before the generation was done");
        assert_eq!(event["response"]["output"][0]["content"][0]["text"], "Hel");
    }
    let done = pieces([Ok(chunk("Hel")), Ok("data: [DONE]\n\n".to_owned()), Ok(chunk("lo"))]);
    let text = text_of(streamed(begun(0, done), budget.share(&"a".into()))).await;
    assert!(text.contains("response.completed") && !text.contains("lo\""), "what follows the end is not read: {text}");
}

#[tokio::test]
async fn regression_a_stream_counts_its_texts_and_what_it_repeats_in_every_event() {
    const INSTRUCTIONS: usize = 100_000;
    let said = "x".repeat(50_000);
    let budget = Budget::new(BUDGET);
    let body = pieces([Ok(chunk(&said)), Ok("data: [DONE]\n\n".to_owned())]);
    let response = streamed(begun(INSTRUCTIONS, body), budget.share(&"a".into()));
    assert!(taken(&budget) >= 2 * INSTRUCTIONS as u64, "before it begins: {}", taken(&budget));
    let mut body = response.into_body().into_data_stream();
    let mut sizes = Vec::new();
    while let Some(piece) = body.next().await {
        sizes.push(piece.unwrap().len());
        assert!(taken(&budget) >= 2 * INSTRUCTIONS as u64 + 5 * said.len() as u64, "{}", taken(&budget));
    }
    // Each long event goes alone: two that repeat the request, a delta, three that repeat the text, and the last one with both.
    let long: Vec<usize> = sizes.into_iter().filter(|size| *size >= said.len()).collect();
    assert_eq!(long.len(), 7, "{long:?}");
    assert!(long.iter().all(|size| *size < INSTRUCTIONS + said.len() + 4096), "{long:?}");
    drop(body);
    assert!(taken(&budget) < 2, "everything was given back");
}

#[tokio::test]
async fn regression_a_whole_answer_counts_what_it_repeats() {
    const INSTRUCTIONS: usize = 1_000_000;
    let budget = Budget::new(BUDGET);
    let answer = json!({"model": "demo", "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]});
    let begun = begun(INSTRUCTIONS, Body::from(answer.to_string()));
    assert!(whole_bytes(7, begun.kept_bytes) >= 4 * INSTRUCTIONS);
    let response = whole(begun, budget.share(&"a".into())).await.unwrap();
    assert!(taken(&budget) >= INSTRUCTIONS as u64, "the client has taken nothing");
    let text = text_of(response).await;
    assert_eq!(text.matches(&"x".repeat(INSTRUCTIONS)).count(), 1);
    assert!(taken(&budget) < 2, "everything was given back");
}
