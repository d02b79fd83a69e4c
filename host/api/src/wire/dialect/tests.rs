//! Requests and answers of all shapes, from the bodies that clients send to the bytes that they read. The streams are files, which
//! `tests/clients/golden.py` reads with the types of the official clients.
mod messages;
mod native;
mod responses;

use std::path::PathBuf;

use serde_json::{Value, json};

use super::*;
use crate::wire::json;
use crate::wire::sse::Frames;

fn read(dialect: Dialect, request: &Value) -> Result<Translated<Asked>, RequestError> {
    dialect.read(json::parse(&request.to_string()).unwrap())
}

/// The body that the serving endpoint reads.
fn body_of(dialect: Dialect, request: &Value) -> Result<Value, String> {
    let read = read(dialect, request).map_err(|error| error.to_string())?;
    Ok(serde_json::to_value(&read.body).unwrap())
}

/// What the client is told about a request that is refused.
fn refusal(dialect: Dialect, request: &Value) -> String {
    body_of(dialect, request).expect_err("it is refused")
}

/// The stream that a client reads where the serving endpoint writes `frames`.
fn stream_of(dialect: Dialect, request: &Value, frames: &[Frame<'_>]) -> String {
    let mut events = read(dialect, request).unwrap().kept.events(21);
    let mut out = Pieces::default();
    frames.iter().for_each(|frame| events.take(&mut out, frame));
    assert!(events.ended());
    stable(&text_of(out))
}

fn text_of(mut out: Pieces) -> String {
    String::from_utf8(std::iter::from_fn(|| out.take()).flatten().collect()).unwrap()
}

/// The answer that a client reads where the serving endpoint gives `answer`.
fn answer_of(dialect: Dialect, request: &Value, answer: &Value) -> Value {
    let asked = read(dialect, request).unwrap().kept;
    let text = String::from_utf8(asked.answer(answer.to_string().as_bytes()).unwrap()).unwrap();
    serde_json::from_str(&stable(&text)).unwrap()
}

/// Compares with the file of this name. With `CAMSHAFT_WRITE_GOLDEN` it is written.
fn check_golden(name: &str, got: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("CAMSHAFT_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(got, expected, "{}", path.display());
}

/// The same text with ids that are counted and with a fixed time.
fn stable(text: &str) -> String {
    const KINDS: [&str; 7] = ["resp_", "msg_", "rs_", "fc_", "call_", "toolu_", "gen-"];
    let mut seen: Vec<String> = Vec::new();
    let mut out = String::new();
    let mut rest = text;
    'text: while !rest.is_empty() {
        for kind in KINDS {
            let Some(id) = rest.strip_prefix(kind).and_then(|after| after.get(..32)) else { continue };
            if id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                let at = seen.iter().position(|known| known == id).unwrap_or(seen.len());
                if at == seen.len() {
                    seen.push(id.to_owned());
                }
                out.push_str(&format!("{kind}{at}"));
                rest = &rest[kind.len() + 32..];
                continue 'text;
            }
        }
        if let Some(after) = rest.strip_prefix("\"created_at\":") {
            out.push_str("\"created_at\":1700000000");
            rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
            continue;
        }
        let next = rest.chars().next().unwrap();
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    out
}

/// A chunk of a chat.
fn chunk(delta: &Value, finish_reason: Option<&str>) -> Frame<'static> {
    let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
    data(&json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "demo",
        "choices": [choice], "usage": null}))
}

fn data(value: &Value) -> Frame<'static> {
    Frame::Data(value.to_string().into())
}

/// The chunks of a chat between those that every stream has. `finish_reason`: how it ends.
fn chat(deltas: &[Value], finish_reason: &str) -> Vec<Frame<'static>> {
    let first = chunk(&json!({"role": "assistant", "content": "", "refusal": null}), None);
    let mut frames = vec![first];
    frames.extend(deltas.iter().map(|delta| chunk(delta, None)));
    frames.push(chunk(&json!({}), Some(finish_reason)));
    frames.push(data(&json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_700_000_000,
        "model": "demo", "choices": [], "usage": usage()})));
    frames.push(Frame::Done);
    frames
}

fn usage() -> Value {
    json!({"prompt_tokens": 21, "completion_tokens": 5, "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 2}, "completion_tokens_details": {"reasoning_tokens": 1}})
}

/// A whole answer of a chat.
fn chat_answer(message: &Value, finish_reason: &str) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1_700_000_000, "model": "demo",
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason}],
        "usage": usage()})
}

/// A part of a tool call.
fn call(index: usize, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    let mut call = json!({"index": index, "function": {"arguments": arguments}});
    if let (Some(id), Some(name)) = (id, name) {
        call =
            json!({"index": index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    }
    json!({"tool_calls": [call]})
}

/// Two calls, the first in pieces.
fn calls() -> Vec<Value> {
    vec![
        json!({"content": "I look."}),
        call(0, Some("call_a"), Some("look"), ""),
        call(0, None, None, "{\"at\":"),
        call(0, None, None, "\"sky\"}"),
        call(1, Some("call_b"), Some("add"), "{\"a\":1}"),
    ]
}

/// The error that ends a stream.
fn failure(kind: &str, code: &str) -> Frame<'static> {
    data(&json!({"error": {"message": "it failed", "type": kind, "param": null, "code": code}}))
}

#[test]
fn frames_that_arrive_in_pieces_give_the_same_stream() {
    let request = json!({"input": "hi", "stream": true});
    let frames = chat(&[json!({"content": "Hel"}), json!({"content": "lo"})], "stop");
    let mut written = Vec::new();
    for frame in &frames {
        match frame {
            Frame::Data(data) => written.extend_from_slice(format!("data: {data}\n\n").as_bytes()),
            Frame::Done | Frame::Comment(_) => written.extend_from_slice(sse::DONE),
        }
    }
    let expected = stream_of(Dialect::Responses, &request, &frames);
    for size in [1, 7, 100] {
        let mut events = read(Dialect::Responses, &request).unwrap().kept.events(21);
        let (mut split, mut out) = (Frames::default(), Pieces::default());
        written.chunks(size).for_each(|piece| split.push(piece, |frame| events.take(&mut out, frame)));
        assert_eq!(stable(&text_of(out)), expected, "in pieces of {size}");
    }
}

#[test]
fn a_stream_that_is_cut_ends_with_an_error() {
    for dialect in [Dialect::Responses, Dialect::Messages, Dialect::Native(Framing::Lines)] {
        let request = match dialect {
            Dialect::Responses => json!({"input": "hi", "stream": true}),
            Dialect::Messages => {
                json!({"max_tokens": 5, "messages": [{"role": "user", "content": "hi"}], "stream": true})
            }
            Dialect::Native(_) => json!({"prompt": "hi"}),
        };
        let mut events = read(dialect, &request).unwrap().kept.events(21);
        let mut out = Pieces::default();
        events.take(&mut out, &chunk(&json!({"content": "Hel"}), None));
        assert!(!events.ended());
        events.fail(&mut out, StreamError::cut());
        let text = text_of(out);
        assert!(events.ended() && text.contains("the stream ended before"), "{text}");
    }
}
