//! Reads the messages of a chat request.
use camshaft_reader::Ending;
use camshaft_template::{CalledFunction, Message, Role, ToolCall};
use serde_json::{Map, Value};

use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::types::chat::{self, ChatMessage, ChatRequest, ContentPart, MessageFunctionCall, MessageToolCall};
use crate::wire::types::values::{TextOrList, TextOrObject};

const CONTINUE: &str = "continue_final_message";
const GENERATION_PROMPT: &str = "add_generation_prompt";

/// Reads `add_generation_prompt` and `continue_final_message`.
///
/// # Errors
/// 400: both are true, or the last message is none of the assistant's with a text that could go on.
pub(crate) fn ending(request: &ChatRequest, messages: &[Message]) -> Result<Ending, RequestError> {
    let goes_on = request.continue_final_message.unwrap_or(false);
    let begins = request.add_generation_prompt;
    let refuse = |why: &str| Err(RequestError::field(CONTINUE, format!("{CONTINUE} {why}")));
    match (goes_on, begins) {
        (false, None | Some(true)) => Ok(Ending::Next),
        (false, Some(false)) => Ok(Ending::Last),
        (true, Some(true)) => refuse(&format!("and {GENERATION_PROMPT} may not both be true")),
        (true, None | Some(false)) => match messages.last() {
            Some(last) if last.role == Role::Assistant && !last.text().trim().is_empty() => Ok(Ending::Open),
            _ => refuse("needs a last message of the assistant with a text"),
        },
    }
}

/// The messages of a request as chat templates see them.
///
/// # Errors
/// 400 that names the message and field, such as `messages[2].content`.
pub(crate) fn read(request: &ChatRequest) -> Result<Vec<Message>, RequestError> {
    let messages = request.messages.as_deref().unwrap_or_default();
    let messages = messages.iter().enumerate().map(|(i, message)| read_one(i, message));
    let messages = messages.collect::<Result<Vec<_>, RequestError>>()?;
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

fn read_one(i: usize, message: &ChatMessage) -> Result<Message, RequestError> {
    let role = match message.role {
        // Newer clients call the role `developer` that templates know as `system`.
        chat::Role::System | chat::Role::Developer => Role::System,
        chat::Role::User => Role::User,
        chat::Role::Assistant => Role::Assistant,
        chat::Role::Tool | chat::Role::Function => Role::Tool,
    };
    let required = |name: &str| {
        let path = format!("messages[{i}].{name}");
        RequestError::field(path.clone(), format!("{path} is required"))
    };
    let content = match (&message.content, &message.refusal) {
        (Some(TextOrList::Text(text)), _) => text.clone(),
        (Some(TextOrList::List(parts)), _) => text_of_parts(parts, role, i)?,
        (None, refusal) if role == Role::Assistant => refusal.clone().unwrap_or_default(),
        (None, _) => return Err(required("content")),
    };
    let mut read = Message::new(role, content);
    match role {
        Role::Assistant => {
            read.reasoning_content = message.reasoning_content.clone().or_else(|| message.reasoning.clone());
            read.tool_calls = message.tool_calls.iter().flatten().map(tool_call).collect();
            read.tool_calls.extend(
                message
                    .function_call
                    .as_ref()
                    .map(|call| ToolCall { id: id_of_function(&call.name), function: called(call) }),
            );
        }
        Role::Tool => {
            let of_function = || match message.role {
                chat::Role::Function => message.name.as_deref().map(id_of_function),
                _ => None,
            };
            let id = message.tool_call_id.clone().or_else(of_function);
            read.tool_call_id = Some(id.ok_or_else(|| required("tool_call_id"))?);
            read.name.clone_from(&message.name);
        }
        Role::System | Role::User => {}
    }
    Ok(read)
}

/// The id of a call in the older form, which has none.
fn id_of_function(name: &str) -> String {
    format!("call_{name}")
}

fn tool_call(call: &MessageToolCall) -> ToolCall {
    ToolCall { id: call.id.clone(), function: called(&call.function) }
}

fn called(MessageFunctionCall { name, arguments }: &MessageFunctionCall) -> CalledFunction {
    let arguments = match arguments {
        None => Value::Object(Map::new()),
        Some(TextOrObject::Object(arguments)) => Value::Object(arguments.clone()),
        // What clients send for a function without arguments.
        Some(TextOrObject::Text(text)) if text.trim().is_empty() => Value::Object(Map::new()),
        Some(TextOrObject::Text(text)) => match serde_json::from_str(text) {
            Ok(arguments @ Value::Object(_)) => arguments,
            _ => Value::String(text.clone()),
        },
    };
    CalledFunction { name: name.clone(), arguments }
}

/// In a tool's result, what is no text is named in its place: the model cannot see it, and goes on all the same.
fn text_of_parts(parts: &[ContentPart], role: Role, i: usize) -> Result<String, RequestError> {
    let mut text = String::new();
    for (at, part) in parts.iter().enumerate() {
        match (part.r#type.as_str(), &part.text, &part.refusal) {
            ("text", Some(part), _) | ("refusal", _, Some(part)) => text.push_str(part),
            ("text", None, _) => {
                let path = format!("messages[{i}].content[{at}].text");
                return Err(RequestError::field(path.clone(), format!("{path} is required")));
            }
            (kind, ..) if role == Role::Tool => text.push_str(&placeholder(kind)),
            (kind, ..) => {
                let path = format!("messages[{i}].content[{at}].type");
                let message = format!("{path}: parts of type {:?} are not supported, only text", Shown(kind));
                return Err(RequestError::field(path, message));
            }
        }
    }
    Ok(text)
}

/// What stands in a result for what the model cannot read.
pub(crate) fn placeholder(kind: &str) -> String {
    format!("[{} that cannot be shown]", Shown(kind))
}

#[cfg(test)]
mod tests {
    use camshaft_core::limits;
    use serde_json::json;

    use super::*;

    fn parse(messages: &Value) -> Result<Vec<Message>, RequestError> {
        let body = json!({ "messages": messages }).to_string();
        read(&crate::wire::read::read(&body)?.request)
    }

    fn check_param(messages: &Value, param: &str) {
        let error = parse(messages).unwrap_err().answer().note().object.clone();
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
        let got: Vec<_> = got.iter().map(|message| (message.role, message.text())).collect();
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
        check_param(&json!([{"role": "function", "content": "hi"}]), "messages[0].tool_call_id");
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
        check(&json!({"id": "c", "function": {"name": "f", "arguments": 7}}), ".function.arguments");
        let calls = |count| {
            json!([{"role": "assistant", "tool_calls": vec![
            json!({"id": "c", "function": {"name": "f", "arguments": "{}"}}); count]}])
        };
        assert_eq!(parse(&calls(limits::CALLS)).unwrap()[0].tool_calls.len(), limits::CALLS);
        check_param(&calls(limits::CALLS + 1), "messages[0].tool_calls");
    }

    #[test]
    fn regression_calls_are_taken_as_they_come_back() {
        let arguments = |arguments: Value| {
            let call = json!({"id": "c", "function": {"name": "f", "arguments": arguments}});
            let got = parse(&json!([{"role": "assistant", "tool_calls": [call]}])).unwrap();
            got[0].tool_calls[0].function.arguments.clone()
        };
        assert_eq!(arguments(Value::Null), json!({}));
        assert_eq!(arguments(json!({"a": 1})), json!({"a": 1}), "as an object");
        for cut in ["{\"a\": \"b", "[]", "7"] {
            assert_eq!(arguments(json!(cut)), json!(cut), "as it is");
        }
        let older = parse(&json!([
            {"role": "assistant", "reasoning": "hm", "function_call": {"name": "f", "arguments": "{\"a\":1}"}},
            {"role": "function", "name": "f", "content": "9"},
        ]));
        let older = older.unwrap();
        assert_eq!(older[0].reasoning_content.as_deref(), Some("hm"));
        assert_eq!(older[0].tool_calls[0].function.arguments, json!({"a": 1}));
        assert_eq!(older[1].tool_call_id.as_deref(), Some(older[0].tool_calls[0].id.as_str()));
    }

    #[test]
    fn what_is_no_text_in_a_result_is_named_in_its_place() {
        let got = parse(&json!([
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": ""}}]},
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]},
        ]));
        assert_eq!(got.unwrap()[1].text(), format!("a{}", placeholder("image_url")));
    }

    #[test]
    fn accepts_as_many_messages_as_the_limit_and_not_one_more() {
        let messages = |count| json!(vec![json!({"role": "user", "content": "x"}); count]);
        assert_eq!(parse(&messages(limits::MESSAGES)).unwrap().len(), limits::MESSAGES);
        check_param(&messages(limits::MESSAGES + 1), "messages");
    }
}
