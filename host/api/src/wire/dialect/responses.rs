//! OpenAI's Responses API, stateless: its requests as chats, and the answers of chats in its shapes.
mod events;
mod items;
mod output;
mod request;
mod tools;
mod whole;

use serde_json::{Map, Value};

pub(super) use events::Events;
use output::Head;

use crate::wire::chat_answer::ChatAnswer;
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
pub(crate) struct Responses {
    pub(super) stream: bool,
    model: String,
    echo: Map<String, Value>,
    echo_bytes: usize,
}

impl Responses {
    /// # Errors
    /// 400 that names the field.
    pub(super) fn read(body: Body) -> Result<Translated<Self>, RequestError> {
        let request::Request { chat, origins, echo, stream, model } = request::read(body)?;
        let echo_bytes = held_bytes(&echo) + model.len();
        let kept = Self { stream, model, echo, echo_bytes };
        Ok(Translated { body: chat.into(), kept, kept_bytes: echo_bytes, names: Names::new(PATHS, origins) })
    }

    pub(super) fn events(self) -> Events {
        Events::new(Head::new(self.model, self.echo), self.echo_bytes)
    }

    /// A whole answer.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn answer(self, answer: ChatAnswer) -> Result<Vec<u8>, serde_json::Error> {
        whole::write(Head::new(self.model, self.echo), answer)
    }
}
