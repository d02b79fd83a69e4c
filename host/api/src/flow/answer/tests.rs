//! Answers of all APIs, from the same events to the bytes that clients read. The streams are files, which
//! `tests/clients/golden.py` reads with the types of the official clients.
use std::path::PathBuf;

use axum::http::StatusCode;
use camshaft_core::ids::Token;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use super::*;
use crate::flow::budget::Budget;
use crate::flow::request::Endpoint;
use crate::fuzz::Parsers;
use crate::wire::dialect::{Dialect, Framing, Served};
use crate::wire::error::ErrorType;

const RESPONSE: &str = r#"{"model":"demo","input":"hi","stream":true,"instructions":"be brief","metadata":{"a":"b"}}"#;
const MESSAGE: &str = r#"{"max_tokens":50,"messages":[{"role":"user","content":"hi"}]}"#;
const EVENTS: Dialect = Dialect::Native(Framing::Unspecified);
const LINES: Dialect = Dialect::Native(Framing::Lines);

/// What the format of an answer needs of its request.
fn format(dialect: Dialect, request: &str) -> AnswerFormat {
    match dialect.read(request).unwrap() {
        Served::Chat(request) => request.format,
        Served::Completion(request) => request.format,
    }
}

fn of_responses() -> AnswerFormat {
    format(Dialect::Responses, RESPONSE)
}

fn of_messages() -> AnswerFormat {
    format(Dialect::Messages, MESSAGE)
}

fn of_native(dialect: Dialect) -> AnswerFormat {
    format(dialect, r#"{"prompt":"ab"}"#)
}

/// A request for the model `demo` with a prompt of 21 tokens.
fn request(endpoint: Endpoint) -> GenerationRequest {
    let body = json!({"prompt": "x".repeat(21), "session_id": "s", "logprobs": 0, "stream_options": {"include_usage": true}, "stream": true});
    let mut request = Parsers::new().unwrap().parse(Dialect::Completions, &body.to_string()).unwrap();
    request.endpoint = endpoint;
    request.adapters.name = Some("demo".to_owned());
    request
}

fn endpoint(format: &AnswerFormat) -> Endpoint {
    if matches!(format, AnswerFormat::Native(_)) { Endpoint::Completion } else { Endpoint::Chat }
}

fn content(text: &str) -> AnswerPart {
    AnswerPart::Content(text.to_owned())
}

fn thought(text: &str) -> AnswerPart {
    AnswerPart::Reasoning(text.to_owned())
}

/// Two calls, the first in pieces.
fn calls() -> Vec<AnswerPart> {
    let call =
        |index, id: &str, name: &str| AnswerPart::Call { index, id: format!("call_{id}"), name: name.to_owned() };
    let arguments = |index, text: &str| AnswerPart::Arguments { index, text: text.to_owned() };
    vec![
        content("I look."),
        call(0, "a", "look"),
        arguments(0, "{\"at\":"),
        arguments(0, "\"sky\"}"),
        call(1, "b", "add"),
        arguments(1, "{\"a\":1}"),
    ]
}

fn delta(part: AnswerPart) -> AnswerDelta {
    AnswerDelta { parts: vec![part], logprobs: Vec::new() }
}

/// A token of a text that is held back, or of the text beside it.
fn scored(parts: Vec<AnswerPart>) -> AnswerDelta {
    let logprobs = vec![TokenLogprob { token: Token(72), logprob: -0.5, top: Vec::new(), skipped: 0 }];
    AnswerDelta { parts, logprobs }
}

fn failure(status: StatusCode, kind: ErrorType, code: &'static str) -> Result<AnswerEvent, Box<Answer>> {
    Err(Box::new(Answer::new(status, kind, "it failed").code(code)))
}

fn totals() -> Totals {
    Totals { prompt_tokens: 21, cached_tokens: 2, generated_tokens: 5, reasoning_tokens: 1, ..Totals::default() }
}

fn text_of(mut out: Pieces) -> String {
    String::from_utf8(std::iter::from_fn(|| out.take()).flatten().collect()).unwrap()
}

/// The stream of these events, and what follows those that do not fail.
fn stream_of(format: AnswerFormat, events: Vec<Result<AnswerEvent, Box<Answer>>>) -> String {
    let (request, mut out) = (Arc::new(request(endpoint(&format))), Pieces::default());
    let mut writer = writer(format, &request);
    let fails = events.last().is_some_and(Result::is_err);
    events.into_iter().for_each(|event| writer.event(&mut out, 0, event, "req_0"));
    if !fails {
        writer.end(&mut out, totals());
    }
    stable(&text_of(out))
}

/// The events of an answer that has these parts.
fn events(parts: Vec<AnswerPart>, finish: Finish) -> Vec<Result<AnswerEvent, Box<Answer>>> {
    let parts = parts.into_iter().map(|part| Ok(AnswerEvent::Delta(delta(part))));
    [Ok(AnswerEvent::Started)].into_iter().chain(parts).chain([Ok(AnswerEvent::Finished(finish))]).collect()
}

/// The whole answer of these deltas.
fn whole_of(format: AnswerFormat, deltas: Vec<AnswerDelta>, finish: Finish) -> Value {
    let request = Arc::new(request(endpoint(&format)));
    let mut choice = WholeChoice::new(&request, &request.prompts[0]);
    deltas.into_iter().for_each(|delta| choice.add(delta));
    choice.finish = finish;
    let share = Budget::new(1 << 20).share(&"a".into());
    let response = match format {
        AnswerFormat::OpenAi => openai::whole(&request, &[choice], totals(), share),
        AnswerFormat::Responses(echo) => responses::whole(echo, &request, vec![choice], totals(), share),
        AnswerFormat::Messages => messages::whole(&request, &[choice], totals(), share),
        AnswerFormat::Native(_) => native::whole(&request, &[choice], totals(), share),
    };
    let body = futures_util::FutureExt::now_or_never(response.unwrap().into_body().collect()).unwrap().unwrap();
    serde_json::from_str(&stable(std::str::from_utf8(&body.to_bytes()).unwrap())).unwrap()
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
    const KINDS: [&str; 6] = ["resp_", "msg_", "rs_", "fc_", "call_", "gen-"];
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
        for name in ["\"created_at\":", "\"created\":"] {
            let Some(after) = rest.strip_prefix(name) else { continue };
            out.push_str(&format!("{name}1700000000"));
            rest = after.trim_start_matches(|digit: char| digit.is_ascii_digit());
            continue 'text;
        }
        let next = rest.chars().next().unwrap();
        out.push(next);
        rest = &rest[next.len_utf8()..];
    }
    out
}

#[test]
fn responses_are_as_openais_client_reads_them() {
    let golden =
        |name: &str, events| check_golden(&format!("responses-{name}.sse"), &stream_of(of_responses(), events));
    golden("text", events(vec![content("Hel"), content("lo")], Finish::Stop));
    golden("reasoning-cut", events(vec![thought("hm"), thought("m"), content("Hi")], Finish::Length));
    golden("tools", events(calls(), Finish::ToolCalls));
    golden("empty", events(Vec::new(), Finish::Stop));
    let mut failed = events(vec![content("Hel")], Finish::Stop);
    failed[2] = failure(StatusCode::INTERNAL_SERVER_ERROR, ErrorType::Server, "server_error");
    golden("failed", failed);
    golden("failed-at-once", vec![failure(StatusCode::TOO_MANY_REQUESTS, ErrorType::RateLimit, "queue_full")]);
    let mut with_logprobs = events(vec![content("H")], Finish::Stop);
    with_logprobs[1] = Ok(AnswerEvent::Delta(scored(vec![content("H")])));
    golden("logprobs", with_logprobs);
}

#[test]
fn messages_are_as_anthropics_client_reads_them() {
    let golden = |name: &str, events| check_golden(&format!("messages-{name}.sse"), &stream_of(of_messages(), events));
    let mut text = events(vec![content("Hel"), content("lo")], Finish::Stop);
    text.insert(0, Ok(AnswerEvent::Queued(3)));
    // Once it has begun, it says a ping.
    text.insert(3, Ok(AnswerEvent::Queued(2)));
    golden("text", text);
    golden("thinking-cut", events(vec![thought("hm"), thought("m"), content("Hi")], Finish::Length));
    golden("tools", events(calls(), Finish::ToolCalls));
    golden("refusal", events(vec![content("I may not.")], Finish::ContentFilter));
    golden("empty", events(Vec::new(), Finish::Stop));
    let mut failed = events(vec![content("Hel")], Finish::Stop);
    failed[2] = failure(StatusCode::SERVICE_UNAVAILABLE, ErrorType::Server, "overloaded");
    golden("failed", failed);
    golden("failed-at-once", vec![failure(StatusCode::GATEWAY_TIMEOUT, ErrorType::Server, "deadline_exceeded")]);
}

#[test]
fn generations_are_events_or_lines() {
    let parts = || {
        let mut events = events(vec![content("Hel"), content("lo")], Finish::Stop);
        events.insert(0, Ok(AnswerEvent::Queued(2)));
        events
    };
    check_golden("generate.sse", &stream_of(of_native(EVENTS), parts()));
    let lines = stream_of(of_native(LINES), parts());
    check_golden("generate.ndjson", &lines);
    assert!(lines.lines().all(|line| serde_json::from_str::<Value>(line).unwrap().is_object()));
    let failed = [failure(StatusCode::SERVICE_UNAVAILABLE, ErrorType::Server, "worker_lost")];
    let failed = stream_of(of_native(LINES), failed.into());
    let error = json!({"message": "it failed", "type": "server_error", "param": null, "code": "worker_lost"});
    let expected = json!({"error": error, "request_id": "req_0"});
    assert_eq!(serde_json::from_str::<Value>(failed.lines().last().unwrap()).unwrap(), expected);
}

#[test]
fn a_whole_response_says_everything_that_its_events_say() {
    let asked = json!({"model": "demo", "input": "hi", "temperature": 0.5, "metadata": {"a": "b"},
        "tools": [{"type": "function", "name": "look", "parameters": {}}], "user": "u", "max_output_tokens": 50});
    let call = AnswerPart::Call { index: 0, id: "call_a".to_owned(), name: "look".to_owned() };
    let arguments = AnswerPart::Arguments { index: 0, text: "{}".to_owned() };
    let parts = [thought("hm"), content("I look."), call, arguments];
    let deltas = parts.into_iter().map(delta).collect();
    let got = whole_of(format(Dialect::Responses, &asked.to_string()), deltas, Finish::ToolCalls);
    let expected = json!({
        "id": "resp_0", "object": "response", "created_at": 1_700_000_000, "model": "demo", "status": "completed",
        "error": null, "incomplete_details": null,
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}],
                "status": "completed"},
            {"type": "message", "id": "msg_2", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "id": "fc_3", "call_id": "call_a", "name": "look", "arguments": "{}",
                "status": "completed"},
        ],
        "usage": {"input_tokens": 21, "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
            "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 1}, "total_tokens": 26},
        "background": false, "previous_response_id": null, "store": false, "truncation": "disabled", "user": "u",
        "safety_identifier": null, "prompt_cache_key": null, "service_tier": null, "temperature": 0.5, "top_p": null,
        "max_output_tokens": 50, "max_tool_calls": null, "top_logprobs": null, "parallel_tool_calls": true,
        "metadata": {"a": "b"}, "instructions": null,
        "tools": [{"type": "function", "name": "look", "parameters": {}}], "tool_choice": "auto",
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": null, "summary": null},
    });
    assert_eq!(got, expected);
    check_golden("responses-whole.json", &serde_json::to_string_pretty(&got).unwrap());
}

#[test]
fn a_whole_response_keeps_its_log_probabilities_and_says_why_it_is_incomplete() {
    let got = whole_of(of_responses(), vec![scored(vec![content("H")])], Finish::Length);
    let token = json!({"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": []});
    assert_eq!(got["output"][0]["content"][0]["logprobs"], json!([token]));
    assert_eq!((&got["status"], &got["output"][0]["status"]), (&json!("incomplete"), &json!("incomplete")));
    assert_eq!(got["incomplete_details"], json!({"reason": "max_output_tokens"}));
}

#[test]
fn regression_log_probabilities_beside_no_text_are_told() {
    let token = json!({"token": "H", "logprob": -0.5, "bytes": [72], "top_logprobs": []});
    for format in [of_responses(), AnswerFormat::OpenAi] {
        let mut all = events(vec![content("")], Finish::Stop);
        all[1] = Ok(AnswerEvent::Delta(scored(Vec::new())));
        let stream = stream_of(format, all);
        assert_eq!(stream.matches(&token.to_string()).count(), 1, "{stream}");
    }
    let got = whole_of(of_responses(), vec![scored(Vec::new())], Finish::Length);
    assert_eq!(got["output"][0]["content"][0]["logprobs"], json!([token]));
}

#[test]
fn regression_log_probabilities_amid_a_call_open_no_text() {
    let mut all = events(calls(), Finish::ToolCalls);
    // Between the two parts of the first call's arguments.
    all.insert(4, Ok(AnswerEvent::Delta(scored(Vec::new()))));
    let stream = stream_of(of_responses(), all);
    assert!(stream.contains(r#""arguments":"{\"at\":\"sky\"}","status":"completed""#), "{stream}");
    assert_eq!(stream.matches("event: response.output_item.added").count(), 3, "{stream}");
    let got = whole_of(
        of_responses(),
        calls().into_iter().skip(1).map(|part| scored(vec![part])).collect(),
        Finish::ToolCalls,
    );
    let kinds: Vec<_> = got["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect();
    assert_eq!(kinds, ["function_call", "function_call"]);
}

#[test]
fn only_lines_have_another_content_type() {
    let kind = |format: AnswerFormat| writer(format, &Arc::new(request(Endpoint::Chat))).content_type();
    assert_eq!((kind(of_native(LINES)), kind(of_native(EVENTS))), ("application/x-ndjson", EVENT_STREAM));
}

#[test]
fn a_message_has_a_block_for_each_thing_that_the_model_did() {
    let mut parts = vec![thought("hm"), content("I look.")];
    for (index, (id, arguments)) in
        [("a", " {\"at\": \"sky\"}"), ("b", ""), ("c", "{\"at\": \"s")].into_iter().enumerate()
    {
        parts.push(AnswerPart::Call { index, id: format!("call_{id}"), name: "look".to_owned() });
        parts.push(AnswerPart::Arguments { index, text: arguments.to_owned() });
    }
    let got = whole_of(of_messages(), parts.into_iter().map(delta).collect(), Finish::ToolCalls);
    let expected = json!({
        "id": "msg_0", "type": "message", "role": "assistant", "model": "demo",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_a", "name": "look", "input": {"at": "sky"}},
            {"type": "tool_use", "id": "call_b", "name": "look", "input": {}},
            {"type": "tool_use", "id": "call_c", "name": "look", "input": {"incomplete_arguments": "{\"at\": \"s"}},
        ],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": {"input_tokens": 19, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 2, "output_tokens": 5},
    });
    assert_eq!(got, expected);
    check_golden("messages-whole.json", &serde_json::to_string_pretty(&got).unwrap());
}

#[test]
fn each_reason_to_stop_has_its_name() {
    let check = |finish: Finish, openai: &str, messages: &str| {
        let answer = |format| whole_of(format, vec![delta(content("x"))], finish);
        let choice = answer(AnswerFormat::OpenAi)["choices"][0].clone();
        assert_eq!(
            (&choice["finish_reason"], choice.get("camshaft").is_some()),
            (&json!(openai), finish == Finish::Expired)
        );
        assert_eq!(answer(of_messages())["stop_reason"], messages);
    };
    check(Finish::Stop, "stop", "end_turn");
    check(Finish::StopString(0), "stop", "stop_sequence");
    check(Finish::Length, "length", "max_tokens");
    check(Finish::Expired, "length", "max_tokens");
    check(Finish::ContentFilter, "content_filter", "refusal");
    check(Finish::ToolCalls, "tool_calls", "tool_use");
}

#[test]
fn a_whole_generation_has_no_choices() {
    let got = whole_of(of_native(EVENTS), vec![scored(vec![content("H")])], Finish::Length);
    let logprobs =
        json!({"tokens": ["H"], "token_logprobs": [-0.5], "top_logprobs": [{"H": -0.5}], "text_offset": [0]});
    let expected = json!({"id": "gen-0", "object": "generation", "created": 1_700_000_000, "model": "demo",
        "session_id": "s", "text": "H", "logprobs": logprobs, "finish_reason": "length",
        "usage": {"prompt_tokens": 21, "cached_tokens": 2, "completion_tokens": 5, "total_tokens": 26}});
    assert_eq!(got, expected);
}

#[test]
fn regression_a_stream_counts_its_texts_and_what_it_repeats_in_every_event() {
    const INSTRUCTIONS: usize = 100_000;
    let said = "x".repeat(50_000);
    let asked = json!({"input": "hi", "stream": true, "instructions": "x".repeat(INSTRUCTIONS)});
    let format = format(Dialect::Responses, &asked.to_string());
    assert!(format.held_bytes() >= INSTRUCTIONS);
    let (mut writer, mut out) = (writer(format, &Arc::new(request(Endpoint::Chat))), Pieces::default());
    assert!(writer.held_bytes() >= 2 * INSTRUCTIONS, "before it begins");
    for event in events(vec![content(&said)], Finish::Stop) {
        writer.event(&mut out, 0, event, "req_0");
    }
    writer.end(&mut out, totals());
    assert!(writer.held_bytes() >= 2 * INSTRUCTIONS + 5 * said.len());
    // Each long event goes alone: two that repeat the request, a delta, three that repeat the text, and the last one with both.
    let sizes = std::iter::from_fn(|| out.take()).map(|piece| piece.len());
    let long: Vec<usize> = sizes.filter(|size| *size >= said.len()).collect();
    assert_eq!(long.len(), 7, "{long:?}");
    assert!(long.iter().all(|size| *size < INSTRUCTIONS + said.len() + 4096), "{long:?}");
}
