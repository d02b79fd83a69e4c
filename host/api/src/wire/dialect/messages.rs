//! Anthropic's Messages API: its requests as chats, and the answers of chats in its shapes.
mod answer;
mod blocks;
mod events;
mod request;
mod tools;

pub(super) use events::Events;

use crate::wire::chat_answer::ChatAnswer;
use crate::wire::error::RequestError;
use crate::wire::json::Body;
use crate::wire::translated::Translated;

/// What the chat endpoint calls the fields of this one.
pub(super) const NAMES: &[(&str, &str)] = &[
    ("stop", "stop_sequences"),
    ("response_format", "output_config.format"),
    ("reasoning_effort", "output_config.effort"),
    ("continue_final_message", "messages"),
    ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
];

/// What the answer needs of the request.
#[derive(Debug)]
pub(crate) struct Messages {
    pub(super) stream: bool,
}

impl Messages {
    /// # Errors
    /// 400 that names the field.
    pub(super) fn read(body: Body) -> Result<Translated<Self>, RequestError> {
        let request::Request { chat, stream } = request::read(body)?;
        Ok(Translated { body: chat.into(), kept: Self { stream }, kept_bytes: 0 })
    }

    pub(super) fn events(self, prompt_tokens: u64) -> Events {
        Events::new(prompt_tokens)
    }

    /// A whole answer.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn answer(self, answer: ChatAnswer) -> Result<Vec<u8>, serde_json::Error> {
        answer::whole(answer)
    }
}

/// The chat whose prompt `count_tokens` counts.
///
/// # Errors
/// 400 that names the field.
pub(super) fn counted(body: Body) -> Result<Body, RequestError> {
    request::counted(body).map(Body::from)
}
