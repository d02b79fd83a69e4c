//! OpenAI's Responses API.
use serde_json::{Value, json};

use super::{body_of, refusal};
use crate::wire::dialect::Dialect::Responses;

fn body(request: &Value) -> Value {
    body_of(Responses, request).unwrap()
}

fn messages(input: &Value) -> Value {
    body(&json!({"input": input}))["messages"].clone()
}

fn check_refused(more: &Value, expected: &str) {
    let mut request = json!({"input": "hi"});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    assert_eq!(refusal(Responses, &request), expected);
}

#[test]
fn a_text_is_a_users_message_and_instructions_are_the_systems() {
    let got = body(&json!({"model": "demo", "instructions": "be brief", "input": "hi", "max_output_tokens": 9,
        "temperature": 0.5, "top_p": 0.9, "store": true, "include": [], "truncation": "disabled",
        "session_id": "s", "user": "u", "stream_options": {"include_obfuscation": false}}));
    let expected = json!({"model": "demo", "temperature": 0.5, "top_p": 0.9, "user": "u", "session_id": "s",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "max_completion_tokens": 9});
    assert_eq!(got, expected);
    assert_eq!(body(&json!({"input": "hi", "stream": true}))["stream"], true);
}

#[test]
fn items_are_messages_in_their_order() {
    let got = messages(&json!([
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "told"}],
            "content": [{"type": "reasoning_text", "text": "thought"}], "encrypted_content": "x"},
        {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
            "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "look", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "add", "arguments": "{\"a\":1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
        {"type": "reasoning", "summary": []},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]));
    let function = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let expected = json!([
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "I look.", "reasoning_content": "thought",
            "tool_calls": [function("c1", "look", "{}"), function("c2", "add", "{\"a\":1}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "content": null, "refusal": "no"},
    ]);
    assert_eq!(got, expected);
}

#[test]
fn tools_formats_and_effort_are_the_chats() {
    let look = json!({"type": "function", "name": "look", "description": "d", "parameters": {"type": "object"}, "strict": true});
    let got = body(&json!({"input": "hi", "tools": [look], "tool_choice": {"type": "function", "name": "look"},
        "parallel_tool_calls": false, "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": true}},
        "include": ["message.output_text.logprobs"], "top_logprobs": 2}));
    let function = json!({"name": "look", "description": "d", "parameters": {"type": "object"}, "strict": true});
    assert_eq!(got["tools"], json!([{"type": "function", "function": function}]));
    assert_eq!(got["tool_choice"], json!({"type": "function", "function": {"name": "look"}}));
    assert_eq!((&got["parallel_tool_calls"], &got["reasoning_effort"]), (&json!(false), &json!("low")));
    let schema = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": {"a": 1}, "strict": true}});
    assert_eq!((&got["response_format"], &got["verbosity"]), (&schema, &json!("low")));
    assert_eq!((&got["logprobs"], &got["top_logprobs"]), (&json!(true), &json!(2)));
    assert!(got.get("text").is_none() && got.get("reasoning").is_none() && got.get("include").is_none());
    let choice = |choice: Value| body(&json!({"input": "hi", "tool_choice": choice}))["tool_choice"].clone();
    assert_eq!(choice(json!("required")), "required");
    let allowed = json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]});
    let expected = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required",
        "tools": [{"type": "function", "function": {"name": "look"}}]}});
    assert_eq!(choice(allowed), expected);
    let format = |format: &str| body(&json!({"input": "hi", "text": {"format": {"type": format}}}));
    assert_eq!(format("json_object")["response_format"], json!({"type": "json_object"}));
    assert!(format("text").get("response_format").is_none());
}

#[test]
fn what_is_not_served_is_refused_by_its_name() {
    let stateless = "this server stores no responses; send the whole conversation as input";
    for name in ["previous_response_id", "conversation"] {
        check_refused(&json!({name: "x"}), &format!("{name} is not supported: {stateless}"));
    }
    check_refused(&json!({"background": true}), &format!("background is not supported: {stateless}"));
    check_refused(&json!({"truncation": "auto"}), "truncation must be disabled, got \"auto\": no input is left out");
    check_refused(&json!({"max_tokens": 3}), "max_tokens is no field of this endpoint: use max_output_tokens");
    check_refused(&json!({"n": 2}), "n is no field of this endpoint: use several requests");
    let web = json!({"tools": [{"type": "web_search"}]});
    check_refused(&web, "tools of type \"web_search\" are not supported, only function");
    check_refused(&json!({"tools": [{"type": "function"}]}), "tools[0].name is required");
    let format = "text.format.type must be text, json_object or json_schema, got \"xml\"";
    check_refused(&json!({"text": {"format": {"type": "xml"}}}), format);
    check_refused(&json!({"metadata": {"a": 1}}), "metadata.a must be a string, got 1");
    check_refused(&json!({"temperature": "hot"}), "temperature must be a number, got a string");
    check_refused(&json!({"include": [1]}), "include must be a list of strings, got 1");
}

#[test]
fn an_input_that_cannot_be_read_names_the_item_and_its_field() {
    let check = |input: Value, expected: &str| assert_eq!(refusal(Responses, &json!({"input": input})), expected);
    assert_eq!(refusal(Responses, &json!({})), "input is required");
    check(json!(3), "input must be a string or a list of items, got 3");
    check(json!([1, 2]), "input must be a string or a list of items, at least one");
    check(json!([]), "input must be a string or a list of items, at least one");
    check(json!(["x"]), "input[0] must be an object, got a string");
    check(json!([{"content": "x"}]), "input[0].role is required");
    let wizard = "role must be system, developer, user or assistant, got \"wizard\"";
    check(json!([{"role": "wizard", "content": "x"}]), wizard);
    check(json!([{"role": "user"}]), "input[0].content is required");
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    check(image, "content parts of type \"input_image\" are not supported, only text");
    check(json!([{"type": "function_call", "name": "f", "arguments": "{}"}]), "input[0].call_id is required");
    check(json!([{"type": "function_call_output", "call_id": "c"}]), "input[0].output is required");
    let stored = "an item_reference leads nowhere: no response is stored here";
    check(json!([{"type": "item_reference", "id": "msg_1"}]), stored);
    let long = refusal(Responses, &json!({"input": [{"type": "x".repeat(10_000)}]}));
    assert!(long.chars().count() < 400, "a client's value is cut: {long}");
}
