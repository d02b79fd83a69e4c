//! Renders conversations with many templates, for a comparison with Jinja2: `render CASES.json RENDERED.json`.
//!
//! Cases: `{"templates": {NAME: SOURCE}, "conversations": [{"name", "messages", "tools", "variables"}]}`, messages as OpenAI has them.
//! Rendered: `{"results": [{"template", "conversation", "variables", "prompt", "error"}], "capabilities": {NAME: TEXT}}`; the variables
//! are what the template was given, once the conversation was written for it.
#![forbid(unsafe_code)]
#![allow(clippy::expect_used, reason = "a tool of the tests")]

use camshaft_core::family::detect;
use camshaft_core::family::tools::{Tool, ToolChoice, Tools};
use camshaft_template::{CalledFunction, ChatTemplate, Conversation, Message, Role, Source, ToolCall, Written};
use serde_json::{Map, Value, json};

const SPECIAL: [&str; 2] = ["<s>", "</s>"];

fn main() {
    let [_, cases, rendered] = std::env::args().collect::<Vec<_>>().try_into().expect("CASES RENDERED");
    let cases = std::fs::read_to_string(cases).expect("cases can be read");
    let cases: Value = serde_json::from_str(&cases).expect("cases are JSON");
    let (mut results, mut capabilities) = (Vec::new(), Map::new());
    for (name, source) in cases["templates"].as_object().expect("templates by name") {
        let source = source.as_str().expect("a template is text");
        let [bos, eos] = SPECIAL;
        let compiled = ChatTemplate::compile(Source { template: Some(source), with_tools: None, bos, eos });
        if let Ok(template) = &compiled {
            capabilities.insert(name.clone(), format!("{:?}", template.traits().capabilities(false)).into());
        }
        for conversation in cases["conversations"].as_array().expect("a list of conversations") {
            let mut result = match &compiled {
                Ok(template) => rendered_by(template, source, conversation),
                Err(error) => json!({"variables": {}, "prompt": null, "error": format!("{error:#}")}),
            };
            result["template"] = name.as_str().into();
            result["conversation"] = conversation["name"].clone();
            results.push(result);
        }
    }
    let all = json!({"results": results, "capabilities": capabilities});
    std::fs::write(rendered, all.to_string()).expect("the results can be written");
}

fn rendered_by(template: &ChatTemplate, source: &str, conversation: &Value) -> Value {
    let list = |name: &str| conversation[name].as_array().cloned().unwrap_or_default();
    let messages = list("messages").iter().map(message).collect();
    let (shown, variables) = (list("tools"), conversation["variables"].as_object().cloned().unwrap_or_default());
    let tools = shown.iter().map(tool).collect();
    let tools = Tools::new(tools, &ToolChoice::Auto, true).expect("the tools are allowed");
    let written = template.traits().write(messages, &shown, &tools, detect::detect(source));
    let Written { messages, tools, has_tools } = &written;
    let rendered = template.render(*has_tools, Conversation { messages, tools, variables: &variables });
    let mut given = variables.clone();
    let tools = if tools.is_empty() { Value::Null } else { json!(tools) };
    let [bos, eos] = SPECIAL;
    given.extend([("messages".to_owned(), json!(messages)), ("tools".to_owned(), tools)]);
    given.extend([("bos_token".to_owned(), bos.into()), ("eos_token".to_owned(), eos.into())]);
    given.entry("add_generation_prompt").or_insert(true.into());
    let error = rendered.as_ref().err().map(|error| format!("{error:#}"));
    json!({"variables": given, "prompt": rendered.ok(), "error": error})
}

fn message(message: &Value) -> Message {
    let text = |name: &str| message[name].as_str().map(str::to_owned);
    let role = match text("role").as_deref() {
        Some("system") => Role::System,
        Some("assistant") => Role::Assistant,
        Some("tool") => Role::Tool,
        _ => Role::User,
    };
    let call = |call: &Value| {
        let arguments = &call["function"]["arguments"];
        let arguments =
            arguments.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or(arguments.clone());
        let name = call["function"]["name"].as_str().unwrap_or_default().to_owned();
        ToolCall {
            id: call["id"].as_str().unwrap_or_default().to_owned(),
            function: CalledFunction { name, arguments },
        }
    };
    Message {
        reasoning_content: text("reasoning_content"),
        tool_calls: message["tool_calls"].as_array().into_iter().flatten().map(call).collect(),
        tool_call_id: text("tool_call_id"),
        name: text("name"),
        ..Message::new(role, text("content").unwrap_or_default())
    }
}

fn tool(tool: &Value) -> Tool {
    let function = &tool["function"];
    Tool {
        name: function["name"].as_str().unwrap_or_default().to_owned(),
        description: function["description"].as_str().map(str::to_owned),
        parameters: function.get("parameters").cloned(),
        strict: false,
    }
}
