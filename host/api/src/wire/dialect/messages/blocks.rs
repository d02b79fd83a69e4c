//! Messages of the Messages API, with their content blocks, as messages of a chat.
use serde_json::Value;

use crate::wire::conversation::{Conversation, object};
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::wrong_type;
use crate::wire::names::Place;
use crate::wire::taken::Taken;

/// Adds `system`, a text or a list of text blocks.
///
/// # Errors
/// 400 that names the block.
pub(super) fn system(system: Value, conversation: &mut Conversation) -> Result<(), RequestError> {
    let texts = texts(system, "system")?;
    conversation.say("system", texts);
    Ok(())
}

/// What the last message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    /// The user's.
    Asked,
    /// The beginning of the answer, which continues it.
    Begun,
}

/// Adds `messages`.
///
/// # Errors
/// 400 that names the message and its field, such as `messages[2].content`.
pub(super) fn read(messages: Vec<Value>, conversation: &mut Conversation) -> Result<Ending, RequestError> {
    let mut left = messages.len();
    if left == 0 {
        return Err(RequestError::field("messages", "messages must hold at least one message"));
    }
    let mut ending = Ending::Asked;
    for (i, message) in messages.into_iter().enumerate() {
        left -= 1;
        let mut message = Taken::of(message, &format!("messages[{i}]"))?;
        let at = Place::item(i);
        conversation.read_at(at);
        let (role, path) = (message.required_text("role")?, message.path("content"));
        let content = message.take("content").ok_or_else(|| message.missing("content"))?;
        match role.as_str() {
            "user" => of_user(content, (&path, at), conversation)?,
            "assistant" => {
                let is_text = of_assistant(content, (&path, at), conversation)?;
                conversation.end_turn();
                if left == 0 && !is_text {
                    let why = "must be a text and nothing else, because the answer continues the last message";
                    return Err(RequestError::field(path.clone(), format!("{path} {why}")));
                }
                if left == 0 {
                    ending = Ending::Begun;
                }
            }
            "system" => {
                let message_text = "messages have the role user or assistant: use the field system";
                return Err(RequestError::field(message.path("role"), message_text));
            }
            other => {
                let message_text = format!("role must be user or assistant, got {:?}", Shown(other));
                return Err(RequestError::field(message.path("role"), message_text));
            }
        }
    }
    Ok(ending)
}

fn of_user(content: Value, (path, at): (&str, Place), conversation: &mut Conversation) -> Result<(), RequestError> {
    let mut said = Vec::new();
    for (part, block) in blocks(content, path)?.enumerate() {
        let mut block = block?;
        match block.required_text("type")?.as_str() {
            "text" => said.push(block.required_text("text")?),
            "tool_result" => {
                if !said.is_empty() {
                    conversation.say("user", std::mem::take(&mut said));
                }
                let call = block.required_text("tool_use_id")?;
                // The model reads from the text that it is an error.
                block.flag("is_error")?;
                let path = block.path("content");
                let text = block.take("content").map(|content| texts(content, &path)).transpose()?;
                conversation.read_at(at.part(part));
                conversation.result(call, text.unwrap_or_default().concat());
                conversation.read_at(at);
            }
            other => return Err(unsupported(&block, other)),
        }
    }
    if !said.is_empty() {
        conversation.say("user", said);
    }
    Ok(())
}

/// Whether it is a text that is not blank, and nothing else.
fn of_assistant(
    content: Value,
    (path, at): (&str, Place),
    conversation: &mut Conversation,
) -> Result<bool, RequestError> {
    let mut said = Vec::new();
    let mut calls = Vec::new();
    let mut thought = false;
    for (part, block) in blocks(content, path)?.enumerate() {
        let mut block = block?;
        match block.required_text("type")?.as_str() {
            "text" => said.push(block.required_text("text")?),
            "thinking" => {
                thought = true;
                conversation.thought(&block.required_text("thinking")?);
            }
            // Only another server can read it.
            "redacted_thinking" => {}
            "tool_use" => {
                let (id, name) = (block.required_text("id")?, block.required_text("name")?);
                let input = block.object("input")?.ok_or_else(|| block.missing("input"))?;
                calls.push((at.part(part), (id, name, Value::Object(input.rest()).to_string())));
            }
            other => return Err(unsupported(&block, other)),
        }
    }
    let is_text = said.iter().any(|text: &String| !text.trim().is_empty()) && calls.is_empty() && !thought;
    if !said.is_empty() || calls.is_empty() {
        conversation.said(said, None);
    }
    for (at, (id, name, arguments)) in calls {
        conversation.read_at(at);
        conversation.called(id, name, arguments);
    }
    Ok(is_text)
}

type Block = Result<Taken, RequestError>;

/// The blocks of a message. A text is one.
fn blocks(content: Value, path: &str) -> Result<impl Iterator<Item = Block>, RequestError> {
    let list = match content {
        Value::String(text) => vec![object([("type", "text".into()), ("text", text.into())])],
        Value::Array(list) => list,
        other => return Err(wrong_type(path, "a string or a list of content blocks", &other)),
    };
    let path = path.to_owned();
    Ok(list.into_iter().enumerate().map(move |(i, block)| Taken::of(block, &format!("{path}[{i}]"))))
}

/// Of a text, or of a list of text blocks.
fn texts(content: Value, path: &str) -> Result<Vec<String>, RequestError> {
    let one = |block: Block| {
        let mut block = block?;
        match block.required_text("type")?.as_str() {
            "text" => block.required_text("text"),
            other => Err(unsupported(&block, other)),
        }
    };
    blocks(content, path)?.map(one).collect()
}

fn unsupported(block: &Taken, kind: &str) -> RequestError {
    let message = format!(
        "content blocks of type {:?} are not supported here, only text, thinking, tool_use and tool_result",
        Shown(kind)
    );
    RequestError::field(block.path("type"), message)
}
