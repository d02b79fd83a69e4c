//! OpenAI's Responses API, stateless: its requests as chats.
mod items;
mod request;
mod tools;

use serde_json::{Map, Value};

use crate::wire::error::RequestError;
use crate::wire::json::Body;
use crate::wire::names::{Names, Paths};
use crate::wire::translated::{Translated, held_bytes};

/// What the chat endpoint calls the fields of this one. (The role of a message is at fault only where a result answers no call.)
const PATHS: &Paths = &[
    ("messages[].tool_calls[].id", "input[].call_id"),
    ("messages[].tool_calls[].function", "input[]"),
    ("messages[].tool_calls", "input"),
    ("messages[].tool_call_id", "input[].call_id"),
    ("messages[].role", "input[].call_id"),
    ("messages[]", "input[]"),
    ("messages", "input"),
    ("max_completion_tokens", "max_output_tokens"),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
    ("tools[].function", "tools[]"),
    ("tool_choice.allowed_tools", "tool_choice"),
    ("tool_choice.function", "tool_choice"),
];

/// What the answer repeats of the request.
#[derive(Debug)]
pub(crate) struct ResponseEcho {
    pub(crate) fields: Map<String, Value>,
    /// They take this much memory.
    pub(crate) bytes: usize,
}

/// # Errors
/// 400 that names the field.
pub(super) fn read(body: Body) -> Result<Translated<ResponseEcho>, RequestError> {
    let request::Request { chat, origins, echo } = request::read(body)?;
    let bytes = held_bytes(&echo);
    let kept = ResponseEcho { fields: echo, bytes };
    Ok(Translated { body: chat.into(), kept, names: Names::new(PATHS, origins) })
}
