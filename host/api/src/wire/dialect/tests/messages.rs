//! Anthropic's Messages API.
use serde_json::{Value, json};

use super::{body_of, refusal};
use crate::wire::dialect::Dialect::Messages;
use crate::wire::dialect::counted_chat;

fn request(more: &Value) -> Value {
    let mut request = json!({"model": "demo", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn body(more: &Value) -> Value {
    body_of(Messages, &request(more)).unwrap()
}

fn check_refused(more: &Value, expected: &str) {
    assert_eq!(refusal(Messages, &request(more)), expected);
}

#[test]
fn a_request_is_a_chat_with_the_same_fields_under_their_names() {
    let got =
        body(&json!({"system": "be brief", "stop_sequences": ["x"], "temperature": 0.5, "top_k": 3, "top_p": 0.9,
        "metadata": {"user_id": "u"}, "service_tier": "auto", "session_id": "s"}));
    let expected = json!({"model": "demo", "max_tokens": 50, "temperature": 0.5, "top_k": 3, "top_p": 0.9,
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}],
        "stop": ["x"], "user": "u", "service_tier": "auto", "session_id": "s"});
    assert_eq!(got, expected);
    assert_eq!(body(&json!({"stream": true}))["stream"], true);
    let parts = body(&json!({"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}));
    assert_eq!(parts["messages"][0], json!({"role": "system", "content": "a"}));
}

#[test]
fn blocks_are_messages_in_their_order() {
    let got = body(&json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "x"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "sky"}},
            {"type": "tool_use", "id": "t2", "name": "add", "input": {}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "rain"},
            {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "2"}], "is_error": true},
            {"type": "tool_result", "tool_use_id": "t3"},
            {"type": "text", "text": "so?"},
        ]},
        {"role": "assistant", "content": "Rain."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t4", "name": "look", "input": {}}]},
        {"role": "user", "content": "thanks"},
    ]}));
    let function = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
            "tool_calls": [function("t1", "look", "{\"at\":\"sky\"}"), function("t2", "add", "{}")]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "tool", "tool_call_id": "t2", "content": "2"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "so?"},
        {"role": "assistant", "content": "Rain."},
        {"role": "assistant", "content": null, "tool_calls": [function("t4", "look", "{}")]},
        {"role": "user", "content": "thanks"},
    ]);
    assert_eq!(got["messages"], expected);
}

#[test]
fn tools_and_thinking_are_the_chats() {
    let look = json!({"name": "look", "description": "d", "input_schema": {"type": "object"}});
    let got =
        body(&json!({"tools": [look.clone()], "tool_choice": {"type": "any", "disable_parallel_tool_use": true}}));
    let function = json!({"name": "look", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(got["tools"], json!([{"type": "function", "function": function}]));
    assert_eq!((&got["tool_choice"], &got["parallel_tool_calls"]), (&json!("required"), &json!(false)));
    let choice = |choice: Value| body(&json!({"tools": [look], "tool_choice": choice}))["tool_choice"].clone();
    assert_eq!(choice(json!({"type": "auto"})), "auto");
    assert_eq!(choice(json!({"type": "none"})), "none");
    let named = choice(json!({"type": "tool", "name": "look"}));
    assert_eq!(named, json!({"type": "function", "function": {"name": "look"}}));
    let effort = |more: Value| body(&more)["reasoning_effort"].clone();
    let enabled = |budget: u32| effort(json!({"thinking": {"type": "enabled", "budget_tokens": budget}}));
    let efforts = [1024, 4095, 4096, 16_383, 16_384].map(enabled);
    assert_eq!(efforts, ["low", "low", "medium", "medium", "high"]);
    assert_eq!(effort(json!({"thinking": {"type": "disabled"}})), "none");
    assert_eq!(effort(json!({"thinking": {"type": "adaptive"}})), Value::Null);
    let said = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"}});
    assert_eq!(effort(said), "xhigh");
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}});
    let schema = json!({"name": "output", "schema": {"a": 1}, "strict": true});
    assert_eq!(body(&format)["response_format"], json!({"type": "json_schema", "json_schema": schema}));
}

#[test]
fn what_is_not_served_is_refused_by_its_name() {
    check_refused(&json!({"max_tokens": null}), "max_tokens is required");
    check_refused(&json!({"messages": null}), "messages is required");
    check_refused(&json!({"messages": []}), "messages must hold at least one message");
    check_refused(&json!({"messages": ["x"]}), "messages[0] must be an object, got a string");
    check_refused(&json!({"messages": [{"role": "user"}]}), "messages[0].content is required");
    let system = "messages have the role user or assistant: use the field system";
    check_refused(&json!({"messages": [{"role": "system", "content": "x"}]}), system);
    let kinds = "only text, thinking, tool_use and tool_result";
    for kind in ["image", "document", "search_result"] {
        let messages = json!([{"role": "user", "content": [{"type": kind, "source": {}}]}]);
        let expected = format!("content blocks of type {kind:?} are not supported here, {kinds}");
        check_refused(&json!({"messages": messages}), &expected);
    }
    let called =
        json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "x"}]}]);
    check_refused(&json!({"messages": called}), "messages[0].content[0].input must be an object, got a string");
    let bash = "tools of type \"bash_20250124\" are not supported, only custom";
    check_refused(&json!({"tools": [{"type": "bash_20250124", "name": "bash"}]}), bash);
    let choice = "tool_choice.type must be auto, any, tool or none, got \"x\"";
    check_refused(&json!({"tool_choice": {"type": "x"}}), choice);
    check_refused(&json!({"stop": ["x"]}), "stop is no field of this endpoint: use stop_sequences");
    check_refused(&json!({"mcp_servers": []}), "mcp_servers is not supported: this server calls no tools by itself");
    let thread = "thread is not supported: this server keeps no conversations, so send all of it";
    check_refused(&json!({"thread": {"type": "create"}}), thread);
    let budget = "thinking.budget_tokens must be between 1024 and 4294967295, got 1023";
    check_refused(&json!({"thinking": {"type": "enabled", "budget_tokens": 1023}}), budget);
    check_refused(&json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens is required");
}

#[test]
fn counting_needs_no_bound_of_the_output() {
    let request = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}], "system": "s"});
    let body =
        serde_json::to_value(counted_chat(crate::wire::json::parse(&request.to_string()).unwrap()).unwrap().body)
            .unwrap();
    assert_eq!(body["messages"].as_array().unwrap().len(), 2);
}
