//! Anthropic's Messages API: its requests as chats.
mod blocks;
mod request;
mod tools;

use crate::wire::error::RequestError;
use crate::wire::json::Body;
use crate::wire::names::{Names, Paths};
use crate::wire::translated::Translated;

/// What the chat endpoint calls the fields of this one. (The role of a message is at fault only where a result answers no call.)
const PATHS: &Paths = &[
    ("messages[].tool_calls[].function.arguments", "messages[].content[].input"),
    ("messages[].tool_calls[].function", "messages[].content[]"),
    ("messages[].tool_calls[]", "messages[].content[]"),
    ("messages[].tool_calls", "messages[].content"),
    ("messages[].tool_call_id", "messages[].content[].tool_use_id"),
    ("messages[].role", "messages[].content[].tool_use_id"),
    ("messages[]", "messages[]"),
    ("continue_final_message", "messages"),
    ("stop", "stop_sequences"),
    ("response_format.json_schema", "output_config.format"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("tools[].function.parameters", "tools[].input_schema"),
    ("tools[].function", "tools[]"),
    ("tool_choice.function", "tool_choice"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    ("user", "metadata.user_id"),
];

/// # Errors
/// 400 that names the field.
pub(super) fn read(body: Body) -> Result<Translated<()>, RequestError> {
    let (chat, origins) = request::read(body)?;
    Ok(Translated { names: Names::new(PATHS, origins), ..Translated::own(chat.into()) })
}

/// The chat whose prompt `count_tokens` counts.
///
/// # Errors
/// 400 that names the field.
pub(super) fn counted(body: Body) -> Result<Translated<()>, RequestError> {
    let (chat, origins) = request::counted(body)?;
    Ok(Translated { names: Names::new(PATHS, origins), ..Translated::own(chat.into()) })
}
