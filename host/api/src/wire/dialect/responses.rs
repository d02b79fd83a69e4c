//! OpenAI's Responses API, stateless: its requests as chats, and the answers of chats in its shapes.
mod events;
mod items;
mod output;
mod request;
mod tools;

use serde_json::{Map, Value};

pub(super) use events::Events;

use crate::wire::chat_answer::ChatAnswer;
use crate::wire::error::RequestError;
use crate::wire::json::Body;
use crate::wire::translated::{Translated, held_bytes};

/// What the chat endpoint calls the fields of this one.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("max_completion_tokens", "max_output_tokens"),
    ("messages", "input"),
    ("response_format", "text.format"),
    ("reasoning_effort", "reasoning.effort"),
];

/// What the answer repeats of the request.
#[derive(Debug)]
pub(crate) struct Responses {
    pub(super) stream: bool,
    model: String,
    echo: Map<String, Value>,
}

impl Responses {
    /// # Errors
    /// 400 that names the field.
    pub(super) fn read(body: Body) -> Result<Translated<Self>, RequestError> {
        let request::Request { chat, echo, stream, model } = request::read(body)?;
        let kept_bytes = held_bytes(&echo) + model.len();
        Ok(Translated { body: chat.into(), kept: Self { stream, model, echo }, kept_bytes })
    }

    pub(super) fn events(self) -> Events {
        Events::new(self.model, self.echo, false)
    }

    /// A whole answer.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn answer(self, answer: ChatAnswer) -> Result<Vec<u8>, serde_json::Error> {
        let mut events = Events::new(self.model, self.echo, true);
        // The events say nothing that the response does not.
        let mut unsent = Vec::new();
        events.chunk(&mut unsent, answer);
        events.end(&mut unsent);
        events.response()
    }
}
