//! The APIs that ask for generations. Requests of some are translated into those of the chat or the completion endpoint.
mod messages;
mod native;
mod responses;

use crate::wire::error::RequestError;
use crate::wire::json::Body;
use crate::wire::translated::Translated;
use crate::wire::types::known::{self, Known};

pub(crate) use native::Framing;
pub(crate) use responses::ResponseEcho;

/// An API.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    Chat,
    Completions,
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's Messages API.
    Messages,
    /// The server's own.
    Native(Framing),
}

/// How an answer is written, and what that needs of the request.
#[derive(Debug)]
pub(crate) enum AnswerFormat {
    /// Of chats and completions.
    OpenAi,
    Responses(ResponseEcho),
    Messages,
    Native(Framing),
}

impl Dialect {
    /// Translates a request of an API that another endpoint serves.
    ///
    /// # Errors
    /// 400 that names the field, as the client has it.
    pub(crate) fn read(self, body: Body) -> Result<Translated<AnswerFormat>, RequestError> {
        Ok(match self {
            Self::Chat | Self::Completions => Translated::own(body).map(|()| AnswerFormat::OpenAi),
            Self::Responses => responses::read(body)?.map(AnswerFormat::Responses),
            Self::Messages => messages::read(body)?.map(|()| AnswerFormat::Messages),
            Self::Native(framing) => native::read(body, framing)?.map(|()| AnswerFormat::Native(framing)),
        })
    }

    /// The fields that a request may have, where they are not counted when it is parsed.
    pub(crate) fn known(self) -> Option<&'static Known> {
        match self {
            Self::Chat | Self::Completions => None,
            Self::Responses => Some(&known::RESPONSES),
            Self::Messages => Some(&known::MESSAGES),
            Self::Native(_) => Some(&known::GENERATE),
        }
    }

    /// Whether the serving endpoint reads the body as the client sent it.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

impl AnswerFormat {
    /// What is kept of the request until its answer is written takes this much memory.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Responses(echo) => echo.bytes,
            Self::OpenAi | Self::Messages | Self::Native(_) => 0,
        }
    }
}

/// The chat whose prompt Anthropic's `count_tokens` counts.
///
/// # Errors
/// 400 that names the field, as the client has it.
pub(crate) fn counted_chat(body: Body) -> Result<Translated<()>, RequestError> {
    messages::counted(body)
}

#[cfg(test)]
mod tests;
