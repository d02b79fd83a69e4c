//! Input items of the Responses API as messages of a chat.
use serde_json::Value;

use crate::wire::conversation::Conversation;
use crate::wire::echo::Shown;
use crate::wire::error::RequestError;
use crate::wire::fields::wrong_type;
use crate::wire::names::Place;
use crate::wire::taken::Taken;

/// What is said of a list without items.
pub(super) const NONE: &str = "input must be a string or a list of items, at least one";

/// Adds `input`, a text or a list of items, to the conversation.
///
/// # Errors
/// 400 that names the item and its field, such as `input[2].content`.
pub(super) fn read(input: Value, conversation: &mut Conversation) -> Result<(), RequestError> {
    const PATH: &str = "input";
    match input {
        Value::String(text) => conversation.say("user", vec![text]),
        Value::Array(items) if !items.is_empty() => {
            for (i, item) in items.into_iter().enumerate() {
                conversation.read_at(Place::item(i));
                one(Taken::of(item, &format!("{PATH}[{i}]"))?, conversation)?;
            }
        }
        Value::Array(_) => return Err(RequestError::field(PATH, NONE)),
        other => return Err(wrong_type(PATH, "a string or a list of items", &other)),
    }
    Ok(())
}

fn one(mut item: Taken, conversation: &mut Conversation) -> Result<(), RequestError> {
    let kind = item.text("type")?.unwrap_or_else(|| "message".to_owned());
    match kind.as_str() {
        "message" => message(item, conversation),
        "function_call" => {
            let (call, name) = (item.required_text("call_id")?, item.required_text("name")?);
            conversation.called(call, name, item.required_text("arguments")?);
            Ok(())
        }
        "function_call_output" => {
            let call = item.required_text("call_id")?;
            let path = item.path("output");
            let text = match item.take("output").ok_or_else(|| item.missing("output"))? {
                Value::String(text) => text,
                Value::Array(parts) => parts_of(parts, &path)?.texts.concat(),
                other => return Err(wrong_type(&path, "a string or a list of text parts", &other)),
            };
            conversation.result(call, text);
            Ok(())
        }
        "reasoning" => {
            // What was thought, or else what is told of it. What only another server can read is left out.
            let told = texts(&mut item, "summary")?;
            let thought = texts(&mut item, "content")?;
            let text = if thought.is_empty() { told } else { thought };
            if !text.is_empty() {
                conversation.thought(&text);
            }
            Ok(())
        }
        "item_reference" => {
            Err(RequestError::field(item.path("type"), "an item_reference leads nowhere: no response is stored here"))
        }
        other => {
            let message = format!(
                "items of type {:?} are not supported, only message, function_call, function_call_output and reasoning",
                Shown(other)
            );
            Err(RequestError::field(item.path("type"), message))
        }
    }
}

fn message(mut item: Taken, conversation: &mut Conversation) -> Result<(), RequestError> {
    let role = item.required_text("role")?;
    if !["user", "assistant", "system", "developer"].contains(&role.as_str()) {
        let message = format!("role must be system, developer, user or assistant, got {:?}", Shown(&role));
        return Err(RequestError::field(item.path("role"), message));
    }
    let path = item.path("content");
    let Parts { texts, refusal } = match item.take("content").ok_or_else(|| item.missing("content"))? {
        Value::String(text) => Parts { texts: vec![text], refusal: None },
        Value::Array(parts) => parts_of(parts, &path)?,
        other => return Err(wrong_type(&path, "a string or a list of parts", &other)),
    };
    match role.as_str() {
        "assistant" => conversation.said(texts, refusal),
        _ => conversation.say(&role, texts),
    }
    Ok(())
}

struct Parts {
    texts: Vec<String>,
    refusal: Option<String>,
}

fn parts_of(parts: Vec<Value>, path: &str) -> Result<Parts, RequestError> {
    let mut read = Parts { texts: Vec::with_capacity(parts.len()), refusal: None };
    for (i, part) in parts.into_iter().enumerate() {
        let mut part = Taken::of(part, &format!("{path}[{i}]"))?;
        match part.required_text("type")?.as_str() {
            "input_text" | "output_text" | "text" => read.texts.push(part.required_text("text")?),
            "refusal" => read.refusal.get_or_insert_default().push_str(&part.required_text("refusal")?),
            other => {
                let message = format!("content parts of type {:?} are not supported, only text", Shown(other));
                return Err(RequestError::field(part.path("type"), message));
            }
        }
    }
    Ok(read)
}

/// The texts of a list of `{"text":…}`, one after the other.
fn texts(item: &mut Taken, name: &str) -> Result<String, RequestError> {
    let path = item.path(name);
    let mut text = String::new();
    for (i, part) in item.list(name)?.unwrap_or_default().into_iter().enumerate() {
        text.push_str(&Taken::of(part, &format!("{path}[{i}]"))?.required_text("text")?);
    }
    Ok(text)
}
