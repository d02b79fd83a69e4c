//! OpenAI's Responses API.
use serde_json::{Value, json};

use super::{body_of, left_out, refusal};
use crate::wire::dialect::Dialect::Responses;
use crate::wire::dialect::{AnswerFormat, Served};

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
    let function =
        |id: &str, name: &str, arguments: &str| json!({"id": id, "function": {"name": name, "arguments": arguments}});
    let expected = json!([
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "I look.", "reasoning_content": "thought",
            "tool_calls": [function("c1", "look", "{}"), function("c2", "add", "{\"a\":1}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "2"},
        {"role": "assistant", "refusal": "no"},
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
    assert_eq!(got["tools"], json!([{ "function": function }]));
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
        "tools": [{"function": {"name": "look"}}]}});
    assert_eq!(choice(allowed), expected);
    let format = |format: &str| body(&json!({"input": "hi", "text": {"format": {"type": format}}}));
    assert_eq!(format("json_object")["response_format"], json!({"type": "json_object"}));
    assert!(format("text").get("response_format").is_none());
}

#[test]
fn what_is_not_served_is_refused_by_its_name() {
    for name in ["previous_response_id", "conversation"] {
        check_refused(&json!({name: "x"}), name);
    }
    check_refused(&json!({"background": true}), "background");
    check_refused(&json!({"truncation": "auto"}), "truncation");
    check_refused(&json!({"max_tokens": 3}), "max_tokens");
    check_refused(&json!({"n": 2}), "n");
    check_refused(&json!({"tools": [{"type": "function"}]}), "tools[0].name");
    check_refused(&json!({"text": {"format": {"type": "xml"}}}), "text.format.type");
    check_refused(&json!({"text": {"format": {"type": "json_schema"}}}), "text.format.schema");
    check_refused(&json!({"metadata": {"a": 1}}), "metadata.a");
    check_refused(&json!({"metadata": {"a": "x".repeat(513)}}), "metadata");
    check_refused(&json!({"temperature": "hot"}), "temperature");
    check_refused(&json!({"include": [1]}), "include[0]");
    check_refused(&json!({"tool_choice": {"type": "web_search"}}), "tool_choice.type");
}

#[test]
fn an_input_that_cannot_be_read_names_the_item_and_its_field() {
    let check = |input: Value, param: &str| assert_eq!(refusal(Responses, &json!({"input": input})), param, "{input}");
    assert_eq!(refusal(Responses, &json!({})), "input");
    check(json!(3), "input");
    check(json!([1, 2]), "input[0]");
    check(json!([]), "input");
    check(json!(["x"]), "input[0]");
    check(json!([{"content": "x"}]), "input[0].role");
    check(json!([{"role": "wizard", "content": "x"}]), "input[0].role");
    check(json!([{"role": "user"}]), "input[0].content");
    let image = json!([{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]);
    check(image, "input[0].content[0].type");
    check(json!([{"type": "function_call", "name": "f", "arguments": "{}"}]), "input[0].call_id");
    check(json!([{"type": "function_call_output", "call_id": "c"}]), "input[0].output");
    check(json!([{"type": "item_reference", "id": "msg_1"}]), "input[0].type");
    check(json!([{"type": "x".repeat(10_000)}]), "input[0].type");
}

#[test]
fn regression_what_agents_send_is_taken_and_what_is_left_out_is_said() {
    let patch = json!({"type": "custom", "name": "apply_patch", "description": "d",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}});
    let shell = json!({"type": "function", "name": "exec", "parameters": {"type": "object"}});
    let request = json!({
        "tools": [{"type": "namespace", "name": "fs", "tools": [shell]}, patch, {"type": "web_search"}, {"type": "tool_search"}],
        "tool_choice": {"type": "custom", "name": "apply_patch"},
        "input": [
            {"type": "additional_tools", "tools": []},
            {"role": "user", "content": "hi"},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin"},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "done"},
            {"type": "function_call", "call_id": "c2", "namespace": "fs", "name": "exec", "arguments": "{\"cut"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_image", "image_url": "x"}]},
            {"type": "compaction", "encrypted_content": "x"},
        ],
    });
    let read = body(&request);
    let names: Vec<&Value> = read["tools"].as_array().unwrap().iter().map(|tool| &tool["function"]["name"]).collect();
    assert_eq!(names, ["fs__exec", "apply_patch"]);
    assert_eq!(read["tools"][1]["function"]["parameters"]["required"], json!(["input"]));
    assert_eq!(read["tool_choice"]["function"]["name"], "apply_patch");
    let call = |at: usize| &read["messages"][at]["tool_calls"][0]["function"];
    assert_eq!(call(1), &json!({"name": "apply_patch", "arguments": {"input": "*** Begin"}}));
    assert_eq!(call(3), &json!({"name": "fs__exec", "arguments": "{\"cut"}), "a call that was cut, as it is");
    assert_eq!(read["messages"].as_array().unwrap().len(), 5);
    let expected = ["items of OpenAI's server", "the grammar of a custom tool", "tools of OpenAI's server"];
    assert_eq!(left_out(Responses, &request), expected);
    let Served::Chat(converted) = Responses.read(&request.to_string()).unwrap() else { panic!("it is a chat") };
    let AnswerFormat::Responses(echo) = converted.format else { panic!("it is a response") };
    let tool = echo.calls.of("fs__exec").unwrap();
    assert_eq!((tool.name.as_str(), tool.namespace.as_deref(), tool.is_custom), ("exec", Some("fs"), false));
    assert!(echo.calls.of("apply_patch").unwrap().is_custom);
    assert_eq!(converted.names.own("tools[0].function.parameters").as_deref(), Some("tools[0].tools[0].parameters"));
}

#[test]
fn regression_a_choice_is_of_the_tool_that_is_offered_so_before_one_of_a_namespace() {
    let function = json!({"type": "function", "name": "b"});
    let within = |name: &str| json!({"type": "namespace", "name": name, "tools": [function]});
    let called = |tools: Value, choice: Value| {
        let read = body(&json!({"input": "hi", "tools": tools, "tool_choice": choice}));
        read["tool_choice"]["function"]["name"].clone()
    };
    assert_eq!(called(json!([function, within("a")]), function.clone()), "b");
    assert_eq!(called(json!([within("a"), within("z")]), function.clone()), "a__b");
    let of_z = json!({"type": "function", "name": "b", "namespace": "z"});
    assert_eq!(called(json!([within("a"), within("z")]), of_z), "z__b");
}

#[test]
fn regression_what_a_chat_has_and_this_api_has_not_comes_to_life_by_no_amendment() {
    let request = json!({"input": "hi", "continue_final_message": true, "add_generation_prompt": false, "other": 1});
    let read = body(&request);
    assert_eq!((read.get("continue_final_message"), read.get("add_generation_prompt")), (None, None));
    assert_eq!(read["other"], 1);
    assert_eq!(left_out(Responses, &request), ["continue_final_message"]);
    assert!(left_out(Responses, &json!({"input": "hi", "continue_final_message": false})).is_empty());
}

#[test]
fn regression_the_bounds_of_a_chat_are_those_of_what_becomes_one() {
    check_refused(&json!({"input": [{"type": "compaction", "encrypted_content": "x"}]}), "input");
    let within: Vec<Value> = (0..200).map(|i| json!({"type": "function", "name": format!("f{i}")})).collect();
    check_refused(&json!({"tools": [{"type": "namespace", "name": "a", "tools": within}]}), "tools");
    let call = |i: usize| json!({"type": "function_call", "call_id": format!("c{i}"), "name": "f", "arguments": "{}"});
    let calls = |count: usize| json!({"input": (0..count).map(call).collect::<Vec<_>>()});
    assert_eq!(body(&calls(128))["messages"][0]["tool_calls"].as_array().unwrap().len(), 128);
    check_refused(&calls(129), "input");
}
