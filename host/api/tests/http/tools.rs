//! Tools, thinking and formats of a chat: what the generation is held to, and what the answer is made of.
use camshaft_core::grammar::GrammarSpec;
use camshaft_core::ids::Token;
use camshaft_core::message::{FinishReason, Start};
use serde_json::{Value, json};

use crate::fixture::{Server, chat_body};
use crate::pool::Step;

const CALL: &str = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": [2, 3]}}\n</tool_call>";
const OTHER: &str = "\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "array"}}});
    json!([
        {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": parameters}},
        {"type": "function", "function": {"name": "now"}},
    ])
}

/// Answers with this text, cut into pieces of at most so many bytes.
fn saying(text: &'static str, piece: usize, reason: FinishReason) -> Server {
    Server::scripted(move |_: &Start| {
        let mut steps = vec![Step::Started(0)];
        let mut rest = text;
        while !rest.is_empty() {
            let mut end = piece.min(rest.len());
            while !rest.is_char_boundary(end) {
                end += 1;
            }
            let (now, later) = rest.split_at(end);
            steps.push(Step::Text(now));
            rest = later;
        }
        steps.push(Step::Finished(reason, text.len() as u32));
        steps
    })
}

/// The message and the reason of the only choice.
async fn answered(server: &Server, more: Value) -> (Value, String) {
    let reply = server.chat(more).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    let choice = reply.json()["choices"][0].clone();
    (choice["message"].clone(), choice["finish_reason"].as_str().unwrap().to_owned())
}

/// The same, put together from a stream as clients do it.
async fn streamed(server: &Server, mut more: Value) -> (Value, String) {
    more["stream"] = json!(true);
    let reply = server.chat(more).await;
    let (events, done) = reply.events();
    assert!(done, "{}", reply.text);
    let (mut content, mut reasoning, mut calls, mut reason) = (String::new(), String::new(), Vec::<Value>::new(), None);
    for event in &events {
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(call["id"].is_string() && call["function"]["name"].is_string(), "{call}");
                calls.push(json!({"id": call["id"], "type": call["type"], "function": call["function"]}));
                continue;
            }
            assert!(call.get("id").is_none() && call["function"].get("name").is_none(), "{call}");
            let before = calls[index]["function"]["arguments"].as_str().unwrap().to_owned();
            calls[index]["function"]["arguments"] = json!(before + call["function"]["arguments"].as_str().unwrap());
        }
        if let Some(told) = choice["finish_reason"].as_str() {
            assert_eq!(reason.replace(told.to_owned()), None);
        }
    }
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if content.is_empty() && !calls.is_empty() {
        message["content"] = Value::Null;
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    (message, reason.unwrap())
}

/// Takes the ids of the calls away, which are new each time.
fn without_ids(mut message: Value) -> Value {
    let calls = message.get_mut("tool_calls").and_then(Value::as_array_mut);
    for call in calls.into_iter().flatten() {
        let id = call["id"].take();
        let id = id.as_str().unwrap();
        assert!(id.starts_with("call_") && id.len() == 29, "{id}");
    }
    message
}

fn call(name: &str, arguments: &str) -> Value {
    json!({"id": null, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Asks whole and streamed, in pieces of several lengths, and expects the same.
async fn check(text: &'static str, reason: FinishReason, more: Value, expected: Value, expected_reason: &str) {
    for piece in [1, 3, 7, text.len().max(1)] {
        let (message, told) = answered(&saying(text, piece, reason), more.clone()).await;
        assert_eq!((without_ids(message), told.as_str()), (expected.clone(), expected_reason), "{text} by {piece}");
        let (message, told) = streamed(&saying(text, piece, reason), more.clone()).await;
        assert_eq!((without_ids(message), told.as_str()), (expected.clone(), expected_reason), "{text} by {piece}");
    }
}

#[tokio::test]
async fn calls_are_told_with_ids_and_arguments_whole_and_streamed() {
    let add = call("add", "{\"a\": 1, \"b\": [2, 3]}");
    let with_tools = json!({"tools": tools()});
    let expected = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [add]});
    check(CALL, FinishReason::Stop, with_tools.clone(), expected, "tool_calls").await;
    let both: &'static str = Box::leak(format!("Let me see.\n{CALL}{OTHER}").into_boxed_str());
    let expected =
        json!({"role": "assistant", "content": "Let me see.", "refusal": null, "tool_calls": [add, call("now", "{}")]});
    check(both, FinishReason::Stop, with_tools, expected, "tool_calls").await;
}

#[tokio::test]
async fn regression_ids_of_calls_are_the_servers_and_each_is_new() {
    const OWN: &str = "aB3dE6gH9";
    let text = "[TOOL_CALLS]add[CALL_ID]aB3dE6gH9[ARGS]{\"a\": 1}[TOOL_CALLS]now[CALL_ID]aB3dE6gH9[ARGS]{}";
    let server = Server::of_family("mistral-v11", move |_| {
        vec![Step::Started(0), Step::Text(text), Step::Finished(FinishReason::Stop, 9)]
    });
    let mut ids = Vec::new();
    for _ in 0..2 {
        let with_tools = json!({"tools": tools()});
        for (message, _) in [answered(&server, with_tools.clone()).await, streamed(&server, with_tools).await] {
            let calls = message["tool_calls"].as_array().unwrap();
            assert_eq!(calls.len(), 2, "{message}");
            ids.extend(calls.iter().map(|call| call["id"].as_str().unwrap().to_owned()));
        }
    }
    let in_form = |id: &String| id.len() == OWN.len() && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    assert!(ids.iter().all(|id| in_form(id) && id != OWN), "{ids:?}");
    let count = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), count, "{ids:?}");
}

#[tokio::test]
async fn regression_a_result_without_its_call_is_refused() {
    let server = Server::new();
    let call = json!({"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}});
    let check = async |result: Value, expected: &str| {
        let user = json!({"role": "user", "content": "hi"});
        let messages = json!([user, {"role": "assistant", "tool_calls": [call]}, result]);
        let (shape, message) = server.chat(json!({"messages": messages})).await.error(400);
        assert_eq!(shape, format!("invalid_request_error - {expected}"), "{message}");
    };
    check(json!({"role": "tool", "tool_call_id": "c2", "content": "3"}), "messages[2].tool_call_id").await;
    check(json!({"role": "tool", "content": "3"}), "messages[2].tool_call_id").await;
    let alone = json!([{"role": "tool", "tool_call_id": "c1", "content": "3"}]);
    let (shape, _) = server.chat(json!({"messages": alone})).await.error(400);
    assert_eq!(shape, "invalid_request_error - messages[0].role");
}

#[tokio::test]
async fn a_format_beside_a_text_that_goes_on_is_of_the_continuation_alone() {
    let server = Server::new();
    let begun = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "[1, "}]);
    let more = json!({"messages": begun, "continue_final_message": true, "guided_regex": "[0-9]+\\]"});
    assert_eq!(server.chat(more).await.status, 200);
    let start = server.start();
    let expected = GrammarSpec::Regex { pattern: "[0-9]+\\]".to_owned() };
    assert_eq!(start.grammar.map(|grammar| grammar.spec().clone()), Some(expected));
    assert_eq!(start.prompt.last(), Some(&Token(u32::from(b' '))), "the prompt ends with the text");
}

#[tokio::test]
async fn whitespace_before_a_call_is_no_content_but_other_whitespace_is() {
    let add = call("add", "{\"a\": 1, \"b\": [2, 3]}");
    let with_tools = json!({"tools": tools()});
    let expected = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [add]});
    let text: &'static str = Box::leak(format!("\n \n{CALL}").into_boxed_str());
    check(text, FinishReason::Stop, with_tools.clone(), expected, "tool_calls").await;
    let expected = json!({"role": "assistant", "content": " one\n\ntwo \n", "refusal": null});
    check(" one\n\ntwo \n", FinishReason::Stop, with_tools, expected, "stop").await;
}

#[tokio::test]
async fn an_answer_that_is_cut_within_a_call_has_ended_for_its_length() {
    let expected =
        json!({"role": "assistant", "content": null, "refusal": null, "tool_calls": [call("add", "{\"a\": 1, \"b\"")]});
    let cut = &CALL[..CALL.find("\"b\"").unwrap() + 3];
    check(cut, FinishReason::Length, json!({"tools": tools()}), expected, "length").await;
}

#[tokio::test]
async fn without_tools_or_where_none_may_be_called_a_call_is_text() {
    let expected = json!({"role": "assistant", "content": CALL, "refusal": null});
    check(CALL, FinishReason::Stop, json!({}), expected.clone(), "stop").await;
    check(CALL, FinishReason::Stop, json!({"tools": tools(), "tool_choice": "none"}), expected, "stop").await;
}

#[tokio::test]
async fn thinking_is_told_apart_and_its_tokens_are_counted() {
    let text = "<think>\nlet me see\n</think>\n\nSeven.";
    let expected =
        json!({"role": "assistant", "content": "Seven.", "refusal": null, "reasoning_content": "let me see"});
    check(text, FinishReason::Stop, json!({}), expected, "stop").await;
    let server = Server::scripted(|_: &Start| {
        let parts = ["<think>", "let", " me", "</think>", "Seven", "."];
        let mut steps = vec![Step::Started(0)];
        steps.extend(parts.map(Step::Text));
        steps.push(Step::Finished(FinishReason::Stop, 30));
        steps
    });
    let counted = |usage: &Value| usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap();
    let whole = counted(&server.chat(json!({})).await.json()["usage"]);
    let events = server.chat(json!({"stream": true, "stream_options": {"include_usage": true}})).await.events().0;
    // What the fixture counts as tokens is up to it.
    assert!(whole > 0 && whole < 30, "{whole}");
    assert_eq!(counted(&events.last().unwrap()["usage"]), whole);
}

#[tokio::test]
async fn regression_tokens_of_thinking_are_counted_wherever_the_text_is_cut() {
    let text = "<think>let me see</think>Seven.";
    let mut counts = Vec::new();
    for piece in [1, 7, text.len()] {
        let server = saying(text, piece, FinishReason::Stop);
        for stream in [false, true] {
            let more = json!({"stream": stream, "stream_options": stream.then(|| json!({"include_usage": true}))});
            let reply = server.chat(more).await;
            let usage =
                if stream { reply.events().0.pop().unwrap()["usage"].clone() } else { reply.json()["usage"].clone() };
            counts.push(usage["completion_tokens_details"]["reasoning_tokens"].as_u64().unwrap());
        }
    }
    // In one piece a share of the tokens counts.
    assert!(counts.iter().all(|count| (10..=25).contains(count)), "{counts:?}");
    assert!(counts.chunks(2).all(|pair| pair[0] == pair[1]), "{counts:?}");
}

#[tokio::test]
async fn log_probabilities_come_with_every_token_of_a_call() {
    let server = Server::scripted(|_: &Start| {
        vec![Step::Started(0), Step::Scored(CALL), Step::Finished(FinishReason::Stop, CALL.len() as u32)]
    });
    let more = json!({"tools": tools(), "logprobs": true});
    let reply = server.chat(more.clone()).await.json();
    let told = |choice: &Value| choice["logprobs"]["content"].as_array().map_or(0, Vec::len);
    assert_eq!(told(&reply["choices"][0]), CALL.len());
    let mut streaming = more;
    streaming["stream"] = json!(true);
    let events = server.chat(streaming).await.events().0;
    assert_eq!(events.iter().map(|event| told(&event["choices"][0])).sum::<usize>(), CALL.len());
}

/// The grammar of the only generation.
async fn grammar(more: Value) -> Option<GrammarSpec> {
    let server = Server::new();
    let reply = server.chat(more).await;
    assert_eq!(reply.status, 200, "{}", reply.text);
    server.start().grammar.map(|grammar| grammar.spec().clone())
}

fn lark(grammar: Option<GrammarSpec>) -> String {
    match grammar {
        Some(GrammarSpec::Lark { text }) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_generation_is_held_to_the_notation_of_the_tools_that_may_be_called() {
    assert_eq!(grammar(json!({})).await, None);
    assert_eq!(grammar(json!({"tools": [], "tool_choice": "auto"})).await, None);
    assert_eq!(grammar(json!({"tools": tools(), "tool_choice": "none"})).await, None);
    let auto = lark(grammar(json!({"tools": tools()})).await);
    assert!(auto.contains("add") && auto.contains("now"), "{auto}");
    let named = json!({"type": "function", "function": {"name": "now"}});
    let named = lark(grammar(json!({"tools": tools(), "tool_choice": named})).await);
    assert!(named.contains("\"now\\\"") && !named.contains("add\\\""), "{named}");
    let required = lark(grammar(json!({"tools": tools(), "tool_choice": "required"})).await);
    assert_ne!(required, auto);
}

#[tokio::test]
async fn the_prompt_has_the_tools_earlier_calls_and_their_results() {
    let server = Server::new();
    let call = json!({"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\"a\": 1}"}});
    let messages = json!([
        {"role": "user", "content": "1+2?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "3"},
    ]);
    // A model whose template knows no tools.
    let body = json!({"model": "org/secret", "messages": messages, "tools": [tools()[1].clone()]});
    let reply = server.post("/v1/chat/template", body).await.json();
    let prompt = reply["prompt"].as_str().unwrap();
    for part in [
        "[system]You can call",
        "\"name\":\"now\"",
        "{\"name\": \"add\", \"arguments\": {\"a\":1}}",
        "<tool_response>\n3\n</tool_response>",
    ] {
        assert!(prompt.contains(part), "{part}: {prompt}");
    }
}

fn schema_format(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}})
}

#[tokio::test]
async fn a_format_holds_the_generation_and_its_text_is_content() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let held = lark(grammar(json!({"response_format": schema_format(&schema)})).await);
    assert!(held.contains("city"), "{held}");
    assert!(lark(grammar(json!({"response_format": {"type": "json_object"}})).await).contains("object"));
    let regex = GrammarSpec::Regex { pattern: "a+".to_owned() };
    assert_eq!(grammar(json!({"guided_regex": "a+"})).await, Some(regex));
    // What looks like a call or like thinking in JSON is none.
    let text = "{\"city\": \"<think>x</think><tool_call>\"}";
    let expected = json!({"role": "assistant", "content": text, "refusal": null});
    check(text, FinishReason::Stop, json!({"response_format": schema_format(&schema)}), expected.clone(), "stop").await;
    check(
        "<think>",
        FinishReason::Stop,
        json!({"guided_regex": ".*"}),
        json!({"role": "assistant", "content": "<think>", "refusal": null}),
        "stop",
    )
    .await;
}

#[tokio::test]
async fn completions_are_held_to_formats_as_they_are() {
    let server = Server::new();
    let schema = json!({"type": "integer"});
    assert_eq!(server.complete(json!({"guided_json": schema, "prompt": ["a", "b"]})).await.status, 200);
    let starts = server.pool.starts.lock().unwrap();
    let expected = GrammarSpec::JsonSchema { schema: schema.to_string() };
    for start in starts.iter() {
        assert_eq!(start.grammar.as_ref().map(|grammar| grammar.spec()), Some(&expected));
    }
    assert_eq!(starts.len(), 2);
}

#[tokio::test]
async fn what_is_not_supported_is_refused_by_keyword_and_path() {
    let server = Server::new();
    let refused = async |more: Value| {
        let (shape, message) = server.chat(more).await.error(400);
        (shape.rsplit(' ').next().unwrap().to_owned(), message)
    };
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let (param, message) = refused(json!({"response_format": schema_format(&schema)})).await;
    assert_eq!(param, "response_format.json_schema.schema.properties.a.uniqueItems", "{message}");
    assert!(message.contains("not supported"), "{message}");
    let (param, _) = refused(json!({"guided_regex": "(?=a)"})).await;
    assert_eq!(param, "guided_regex");
    let (param, _) = refused(json!({"grammar": "root ::= nothing"})).await;
    assert_eq!(param, "grammar");
    let (param, message) = refused(json!({"tools": tools(), "guided_regex": "a"})).await;
    assert_eq!(param, "guided_regex", "{message}");
    assert!(message.contains("tools"), "{message}");
    // A strict function must be held to its schema, another one takes any object.
    let function =
        |strict: bool| json!([{"type": "function", "function": {"name": "f", "strict": strict, "parameters": schema}}]);
    let (param, _) = refused(json!({"tools": function(true)})).await;
    assert_eq!(param, "tools[0].function.parameters.properties.a.uniqueItems");
    assert!(lark(grammar(json!({"tools": function(false)})).await).contains("object"));
}

#[tokio::test]
async fn efforts_are_told_to_the_template() {
    let server = Server::new();
    let (shape, message) = server.chat(json!({"reasoning_effort": "huge"})).await.error(400);
    assert_eq!(shape, "invalid_request_error - reasoning_effort", "{message}");
    for effort in ["none", "minimal", "low", "medium", "high", "xhigh"] {
        assert_eq!(server.chat(json!({"reasoning_effort": effort})).await.status, 200, "{effort}");
    }
}

#[tokio::test]
async fn the_shapes_of_other_apis_tell_calls_and_thinking() {
    let text: &'static str = Box::leak(format!("<think>hm</think>{CALL}").into_boxed_str());
    let server = saying(text, 5, FinishReason::Stop);
    let mut function = tools()[0]["function"].clone();
    function["type"] = json!("function");
    let body = json!({"model": "demo", "input": "hi", "tools": [function]});
    let reply = server.post("/v1/responses", body).await.json();
    let kinds: Vec<&str> =
        reply["output"].as_array().unwrap().iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(kinds, ["reasoning", "function_call"], "{reply}");
    let tool = json!({"name": "add", "input_schema": tools()[0]["function"]["parameters"]});
    let body =
        json!({"model": "demo", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], "tools": [tool]});
    let reply = server.post("/v1/messages", body).await.json();
    let kinds: Vec<&str> =
        reply["content"].as_array().unwrap().iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!((kinds, reply["stop_reason"].as_str()), (vec!["thinking", "tool_use"], Some("tool_use")), "{reply}");
    assert_eq!(reply["content"][1]["input"], json!({"a": 1, "b": [2, 3]}));
}

#[tokio::test]
async fn a_chat_with_a_grammar_on_a_busy_thread_is_read_aside() {
    // The first request compiles, the second finds what was compiled: both are served.
    let server = Server::new();
    let body = chat_body(json!({"tools": tools(), "tool_choice": "required"}));
    for _ in 0..2 {
        assert_eq!(server.post("/v1/chat/completions", body.clone()).await.status, 200);
    }
}
