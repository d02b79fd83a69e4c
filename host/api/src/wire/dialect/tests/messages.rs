//! Anthropic's Messages API.
use camshaft_core::limits;
use serde_json::{Value, json};

use super::{body_of, left_out, refusal};
use crate::wire::dialect::Dialect::Messages;
use crate::wire::dialect::counted_message;

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
        "stop": ["x"], "user": "u", "session_id": "s"});
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
    let function =
        |id: &str, name: &str, arguments: Value| json!({"id": id, "function": {"name": name, "arguments": arguments}});
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "I look.", "reasoning_content": "hm",
            "tool_calls": [function("t1", "look", json!({"at": "sky"})), function("t2", "add", json!({}))]},
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
        {"role": "tool", "tool_call_id": "t2", "content": "2"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {"role": "user", "content": "so?"},
        {"role": "assistant", "content": "Rain."},
        {"role": "assistant", "tool_calls": [function("t4", "look", json!({}))]},
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
    assert_eq!(got["tools"], json!([{ "function": function }]));
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
    let budget = |more: Value| body(&more)["thinking_budget"].clone();
    assert_eq!(budget(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})), 1024);
    assert_eq!(budget(json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "thinking_budget": 7})), 7);
    check_refused(&json!({"thinking_budget": -2}), "thinking_budget");
    let said = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "max"}});
    assert_eq!(effort(said), "max");
    let format = json!({"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}});
    let schema = json!({"name": "output", "schema": {"a": 1}, "strict": true});
    assert_eq!(body(&format)["response_format"], json!({"type": "json_schema", "json_schema": schema}));
}

#[test]
fn what_is_not_served_is_refused_by_its_name() {
    check_refused(&json!({"max_tokens": null}), "max_tokens");
    check_refused(&json!({"messages": null}), "messages");
    check_refused(&json!({"messages": []}), "messages");
    check_refused(&json!({"messages": ["x"]}), "messages[0]");
    check_refused(&json!({"messages": [{"role": "user"}]}), "messages[0].content");
    for kind in ["image", "document", "hologram"] {
        let messages = json!([{"role": "user", "content": [{"type": kind, "source": {}}]}]);
        check_refused(&json!({ "messages": messages }), "messages[0].content[0].type");
    }
    let called =
        json!([{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": "x"}]}]);
    check_refused(&json!({"messages": called}), "messages[0].content[0].input");
    check_refused(&json!({"tool_choice": {"type": "x"}}), "tool_choice.type");
    check_refused(&json!({"stop": ["x"]}), "stop");
    check_refused(&json!({"stop_sequences": [""]}), "stop_sequences[0]");
    check_refused(&json!({"stop_sequences": ["x".repeat(limits::STOP_BYTES + 1)]}), "stop_sequences[0]");
    check_refused(&json!({"tools": [{"input_schema": {}}]}), "tools[0].name");
    assert!(body(&json!({"stop_sequences": []})).is_object(), "it asks for nothing");
    check_refused(&json!({"mcp_servers": [{"url": "x"}]}), "mcp_servers");
    check_refused(&json!({"thread": {"type": "create"}}), "thread");
    check_refused(&json!({"thinking": {"type": "enabled", "budget_tokens": 1023}}), "thinking.budget_tokens");
    check_refused(&json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens");
}

#[test]
fn regression_what_agents_send_is_taken_and_what_is_left_out_is_said() {
    let edits = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    let tools = json!([
        {"type": "web_search_20260101", "name": "web_search"},
        {"type": "mcp_toolset", "mcp_server_name": "n"},
        {"name": "mcp.files.read", "input_schema": {"type": "object"}},
    ]);
    let asked = json!({
        "context_management": edits, "mcp_servers": [], "tools": tools,
        "stop_sequences": (0..16).map(|n| n.to_string()).collect::<Vec<_>>(),
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "system", "content": "be brief"},
            {"role": "assistant", "content": [
                {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "error", "error_code": "x"}},
                {"type": "text", "text": "so"},
            ]},
            {"role": "user", "content": [
                {"type": "search_result", "source": "https://example.org", "title": "T", "content": [{"type": "text", "text": "found"}]},
                {"type": "document", "title": "D", "source": {"type": "text", "media_type": "text/plain", "data": "read"}},
            ]},
        ],
    });
    let read = body(&asked);
    assert_eq!(read["tools"], json!([{"function": {"name": "mcp.files.read", "parameters": {"type": "object"}}}]));
    assert_eq!((&read["messages"][1]["role"], &read["messages"][2]["content"]), (&json!("system"), &json!("so")));
    let said = read["messages"][3]["content"].to_string();
    assert!(["T (https://example.org)", "found", "read"].iter().all(|text| said.contains(text)), "{said}");
    let expected = ["content blocks of Anthropic's server", "tools of Anthropic's server", "context_management"];
    assert_eq!(left_out(Messages, &request(&asked)), expected);
    assert!(left_out(Messages, &request(&json!({"context_management": {}}))).is_empty());
    let chosen = json!({"tools": tools, "tool_choice": {"type": "tool", "name": "web_search"}});
    assert_eq!(body(&chosen)["tool_choice"], "auto");
}

#[test]
fn counting_needs_no_bound_of_the_output() {
    let request = json!({"model": "demo", "messages": [{"role": "user", "content": "hi"}], "system": "s"});
    let counted = counted_message(&request.to_string()).unwrap();
    assert_eq!(counted.body.request.messages.as_ref().map(Vec::len), Some(2));
}

#[test]
fn regression_the_end_user_may_stand_where_a_chat_has_it() {
    assert_eq!(body(&json!({"user": "u"}))["user"], "u");
    assert_eq!(body(&json!({"user": "u", "metadata": {"user_id": "v"}}))["user"], "v");
}
