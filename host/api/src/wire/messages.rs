//! Reads the messages of a chat request.
use camshaft_core::limits;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::{Fields, wrong_type};

const CONTINUE: &str = "continue_final_message";
const GENERATION_PROMPT: &str = "add_generation_prompt";

/// A message as chat templates see it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Message {
    pub(crate) role: Role,
    pub(crate) content: String,
    /// Of the assistant's: what it thought before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// Of the assistant's.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
    /// Of a tool's: the call that it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tool_call_id: Option<String>,
    /// Of a tool's: the name of the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// An earlier call of a function.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "type", rename = "function")]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    pub(crate) function: CalledFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// An object; of templates that write it as it is, its JSON.
    pub(crate) arguments: Value,
}

impl Message {
    pub(crate) fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning_content: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }
}

/// Messages with what else a chat template is given.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Conversation<'a> {
    pub(crate) messages: &'a [Message],
    /// The functions that the assistant knows, as templates see them.
    pub(crate) tools: &'a [Value],
    /// Further variables.
    pub(crate) variables: &'a Map<String, Value>,
    pub(crate) ending: Ending,
}

/// What the prompt of a conversation ends with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The beginning of the assistant's next message.
    #[default]
    Next,
    /// The end of the last message.
    Last,
    /// The text of the last message, which goes on.
    Open,
}

impl Ending {
    /// Reads `add_generation_prompt` and `continue_final_message`.
    ///
    /// # Errors
    /// 400: both are true, or the last message is none of the assistant's with a text that could go on.
    pub(crate) fn read(fields: &Fields<'_>, messages: &[Message]) -> Result<Self, RequestError> {
        let goes_on = fields.flag(CONTINUE)?.unwrap_or(false);
        let begins = fields.flag(GENERATION_PROMPT)?;
        let refuse = |why: &str| Err(RequestError::field(CONTINUE, format!("{CONTINUE} {why}")));
        match (goes_on, begins) {
            (false, None | Some(true)) => Ok(Self::Next),
            (false, Some(false)) => Ok(Self::Last),
            (true, Some(true)) => refuse(&format!("and {GENERATION_PROMPT} may not both be true")),
            (true, None | Some(false)) => match messages.last() {
                Some(last) if last.role == Role::Assistant && !last.content.trim().is_empty() => Ok(Self::Open),
                _ => refuse("needs a last message of the assistant with a text"),
            },
        }
    }
}

/// Reads `messages`.
///
/// # Errors
/// 400 that names the message and field, such as `messages[2].content`.
pub(crate) fn read(fields: &Fields<'_>) -> Result<Vec<Message>, RequestError> {
    fields.require("messages")?;
    let list = fields.list("messages")?.map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return Err(RequestError::field("messages", "messages must hold at least one message"));
    }
    if list.len() > limits::MESSAGES {
        let max = limits::MESSAGES;
        return Err(RequestError::field("messages", format!("messages may hold at most {max}, got {}", list.len())));
    }
    let one = |(i, value)| message(value, &format!("messages[{i}]"));
    let messages = list.iter().enumerate().map(one).collect::<Result<Vec<_>, RequestError>>()?;
    check_results(&messages)?;
    Ok(messages)
}

/// Checks that every result of a tool follows the assistant's message with its call, with nothing but other results between them, as
/// OpenAI demands it. (Calls without a result are fine here.)
fn check_results(messages: &[Message]) -> Result<(), RequestError> {
    let mut calls: &[ToolCall] = &[];
    for (i, message) in messages.iter().enumerate() {
        let Some(id) = &message.tool_call_id else {
            calls = &message.tool_calls;
            continue;
        };
        if calls.is_empty() {
            let path = format!("messages[{i}].role");
            let message = format!("{path}: the result of a tool must follow the assistant's message that calls it");
            return Err(RequestError::field(path, message));
        }
        if calls.iter().all(|call| call.id != *id) {
            let path = format!("messages[{i}].tool_call_id");
            let message =
                format!("{path} must be the id of a call in the assistant's message before it, got {:?}", Shown(id));
            return Err(RequestError::field(path, message));
        }
    }
    Ok(())
}

fn message(value: &Value, path: &str) -> Result<Message, RequestError> {
    let fields = Fields::of(value, path)?;
    fields.require("role")?;
    let role = match fields.text("role")?.unwrap_or_default() {
        // Newer clients call the role `developer` that templates know as `system`.
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        role => {
            let message = format!("role must be system, developer, user, assistant or tool, got {:?}", Shown(role));
            return Err(RequestError::field(fields.path("role"), message));
        }
    };
    let tool_calls = match role {
        Role::Assistant => tool_calls(&fields)?,
        _ => Vec::new(),
    };
    let path = fields.path("content");
    let content = match fields.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => text_of_parts(parts, &path)?,
        Some(other) => return Err(wrong_type(&path, "a string or a list of text parts", other)),
        None if role == Role::Assistant => String::new(),
        None => return Err(RequestError::field(path.clone(), format!("{path} is required"))),
    };
    let mut message = Message { tool_calls, ..Message::new(role, content) };
    match role {
        Role::Assistant => message.reasoning_content = fields.text("reasoning_content")?.map(str::to_owned),
        Role::Tool => {
            fields.require("tool_call_id")?;
            message.tool_call_id = fields.text("tool_call_id")?.map(str::to_owned);
            message.name = fields.text("name")?.map(str::to_owned);
        }
        Role::System | Role::User => {}
    }
    Ok(message)
}

/// The calls of an earlier answer.
fn tool_calls(fields: &Fields<'_>) -> Result<Vec<ToolCall>, RequestError> {
    let Some(list) = fields.list("tool_calls")? else { return Ok(Vec::new()) };
    if list.len() > limits::CALLS {
        let (path, max) = (fields.path("tool_calls"), limits::CALLS);
        let message = format!("{path} may hold at most {max} calls, got {}", list.len());
        return Err(RequestError::field(path, message));
    }
    let path = |i: usize| fields.path(&format!("tool_calls[{i}]"));
    list.iter().enumerate().map(|(i, call)| tool_call(&Fields::of(call, &path(i))?)).collect()
}

fn tool_call(fields: &Fields<'_>) -> Result<ToolCall, RequestError> {
    function_type(fields)?;
    fields.require("id")?;
    let id = fields.text("id")?.unwrap_or_default().to_owned();
    let function = Fields::of(fields.require("function")?, &fields.path("function"))?;
    function.require("name")?;
    let name = function.text("name")?.unwrap_or_default().to_owned();
    function.require("arguments")?;
    let text = function.text("arguments")?.unwrap_or_default();
    // What clients send for a function without arguments.
    let arguments = if text.trim().is_empty() { Ok(Value::Object(Map::new())) } else { serde_json::from_str(text) };
    match arguments {
        Ok(arguments @ Value::Object(_)) => Ok(ToolCall { id, function: CalledFunction { name, arguments } }),
        _ => {
            let path = function.path("arguments");
            let message = format!("{path} must be the JSON of an object, got {:?}", Shown(text));
            Err(RequestError::field(path, message))
        }
    }
}

/// # Errors
/// 400: `type` is there, and none of a function.
pub(crate) fn function_type(fields: &Fields<'_>) -> Result<(), RequestError> {
    match fields.text("type")? {
        None | Some("function") => Ok(()),
        Some(other) => {
            let message = format!("{} must be function, got {:?}", fields.path("type"), Shown(other));
            Err(RequestError::field(fields.path("type"), message))
        }
    }
}

fn text_of_parts(parts: &[Value], path: &str) -> Result<String, RequestError> {
    let mut text = String::new();
    for (i, part) in parts.iter().enumerate() {
        let fields = Fields::of(part, &format!("{path}[{i}]"))?;
        fields.require("type")?;
        let kind = fields.text("type")?.unwrap_or_default();
        if kind != "text" {
            let message = format!("content parts of type {:?} are not supported, only text", Shown(kind));
            return Err(RequestError::field(fields.path("type"), message));
        }
        fields.require("text")?;
        text.push_str(fields.text("text")?.unwrap_or_default());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(messages: &Value) -> Result<Vec<Message>, RequestError> {
        let body = json!({ "messages": messages });
        read(&Fields::of_body(body.as_object().unwrap()))
    }

    fn check_param(messages: &Value, param: &str) {
        let error = parse(messages).unwrap_err().answer().body().error;
        assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    }

    #[test]
    fn reads_roles_text_parts_and_a_null_assistant_content() {
        let got = parse(&json!([
            {"role": "developer", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": null, "refusal": null},
            {"role": "user", "content": "", "name": "ann"},
        ]));
        let expected = [(Role::System, "be brief"), (Role::User, "ab"), (Role::Assistant, ""), (Role::User, "")];
        let got = got.unwrap();
        let got: Vec<_> = got.iter().map(|message| (message.role, message.content.as_str())).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn names_the_message_and_field_at_fault() {
        let user = json!({"role": "user", "content": "hi"});
        check_param(&Value::Null, "messages");
        check_param(&json!("hi"), "messages");
        check_param(&json!([]), "messages");
        check_param(&json!([user, "hi"]), "messages[1]");
        check_param(&json!([{"content": "hi"}]), "messages[0].role");
        check_param(&json!([user, {"role": "wizard", "content": "hi"}]), "messages[1].role");
        check_param(&json!([{"role": "function", "content": "hi"}]), "messages[0].role");
        check_param(&json!([{"role": "tool", "content": "hi"}]), "messages[0].tool_call_id");
        check_param(&json!([{"role": "tool", "tool_call_id": "c"}]), "messages[0].content");
        check_param(&json!([user, user, {"role": "user"}]), "messages[2].content");
        check_param(&json!([{"role": "user", "content": null}]), "messages[0].content");
        check_param(&json!([{"role": "user", "content": 3}]), "messages[0].content");
        check_param(&json!([{"role": "user", "content": [{"type": "image_url"}]}]), "messages[0].content[0].type");
        check_param(&json!([{"role": "user", "content": [{"type": "text"}]}]), "messages[0].content[0].text");
    }

    #[test]
    fn reads_calls_with_their_arguments_as_objects_and_their_results() {
        let call = |arguments: &str| json!({"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}});
        let got = parse(&json!([
            {"role": "assistant", "reasoning_content": "hm", "tool_calls": [call(" {\"b\": 1, \"a\": [2]}"), call("")]},
            {"role": "tool", "tool_call_id": "c1", "name": "f", "content": [{"type": "text", "text": "9"}]},
        ]));
        let got = serde_json::to_value(got.unwrap()).unwrap();
        let call = |arguments: Value| json!({"type": "function", "id": "c1", "function": {"name": "f", "arguments": arguments}});
        let expected = json!([
            {"role": "assistant", "content": "", "reasoning_content": "hm",
             "tool_calls": [call(json!({"b": 1, "a": [2]})), call(json!({}))]},
            {"role": "tool", "content": "9", "tool_call_id": "c1", "name": "f"},
        ]);
        assert_eq!(got, expected);
    }

    #[test]
    fn regression_a_result_answers_a_call_of_the_assistants_message_before_it() {
        let user = json!({"role": "user", "content": "hi"});
        let said = json!({"role": "assistant", "content": "so", "tool_calls": []});
        let called = |ids: &[&str]| {
            let call = |id: &&str| json!({"id": id, "function": {"name": "f", "arguments": ""}});
            json!({"role": "assistant", "tool_calls": ids.iter().map(call).collect::<Vec<_>>()})
        };
        let result = |id: &str| json!({"role": "tool", "tool_call_id": id, "content": "9"});
        for fine in [
            json!([user, called(&["a", "b"]), result("b"), result("a"), said, user]),
            json!([called(&["a"]), result("a"), called(&["a"]), result("a"), result("a")]),
            // Nothing is said of calls without a result.
            json!([called(&["a", "b"]), result("a"), user, called(&["c"])]),
        ] {
            assert!(parse(&fine).is_ok(), "{fine}");
        }
        check_param(&json!([user, result("a")]), "messages[1].role");
        check_param(&json!([result("a")]), "messages[0].role");
        check_param(&json!([said, result("a")]), "messages[1].role");
        check_param(&json!([called(&["a"]), result("a"), user, result("a")]), "messages[3].role");
        check_param(&json!([called(&["a"]), result("a"), said, result("a")]), "messages[3].role");
        check_param(&json!([called(&["a", "b"]), result("b"), result("c")]), "messages[2].tool_call_id");
        check_param(&json!([called(&["a"]), result("a"), called(&["b"]), result("a")]), "messages[3].tool_call_id");
        check_param(&json!([called(&["a"]), result("")]), "messages[1].tool_call_id");
        let long = parse(&json!([called(&["a"]), result(&"x".repeat(10_000))])).unwrap_err().to_string();
        assert!(long.len() < 400, "{}", long.len());
    }

    #[test]
    fn names_what_is_wrong_with_a_call() {
        let check = |call: &Value, param: &str| {
            check_param(
                &json!([{"role": "assistant", "tool_calls": [call]}]),
                &format!("messages[0].tool_calls[0]{param}"),
            );
        };
        check(&json!(1), "");
        check(&json!({}), ".id");
        check(&json!({"id": "c", "type": "custom"}), ".type");
        check(&json!({"id": "c"}), ".function");
        check(&json!({"id": "c", "function": {"arguments": "{}"}}), ".function.name");
        check(&json!({"id": "c", "function": {"name": "f"}}), ".function.arguments");
        for arguments in [json!("{"), json!("[]"), json!("7"), json!({})] {
            check(&json!({"id": "c", "function": {"name": "f", "arguments": arguments}}), ".function.arguments");
        }
        let calls = |count| {
            json!([{"role": "assistant", "tool_calls": vec![
            json!({"id": "c", "function": {"name": "f", "arguments": "{}"}}); count]}])
        };
        assert_eq!(parse(&calls(limits::CALLS)).unwrap()[0].tool_calls.len(), limits::CALLS);
        check_param(&calls(limits::CALLS + 1), "messages[0].tool_calls");
    }

    #[test]
    fn accepts_as_many_messages_as_the_limit_and_not_one_more() {
        let messages = |count| json!(vec![json!({"role": "user", "content": "x"}); count]);
        assert_eq!(parse(&messages(limits::MESSAGES)).unwrap().len(), limits::MESSAGES);
        check_param(&messages(limits::MESSAGES + 1), "messages");
    }
}
