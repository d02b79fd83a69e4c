//! The APIs that ask for generations. A request of another API becomes one of the chat or of the completion, which serve it.
mod messages;
mod native;
mod responses;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::wire::error::RequestError;
use crate::wire::names::Names;
use crate::wire::read::rules::asks_for_nothing;
use crate::wire::read::{self, Body, Fields};
use crate::wire::types::chat::ChatRequest;
use crate::wire::types::completions::CompletionRequest;
use crate::wire::types::messages::CountTokensRequest;

pub(crate) use native::Framing;
pub(crate) use responses::{CUSTOM_INPUT, CallNames, CalledTool, ResponseEcho};

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

/// A request as the chat or the completion has it, and what its answer needs to know.
#[derive(Debug)]
pub(crate) struct Converted<T> {
    pub(crate) body: Arc<Body<T>>,
    pub(crate) format: AnswerFormat,
    /// What the client calls the fields.
    pub(crate) names: Names,
    /// What the client asked for and does not get, because the answer means the same without it.
    pub(crate) left_out: Vec<&'static str>,
}

impl<T> Converted<T> {
    /// Of a body that its own endpoint serves.
    fn own(body: Body<T>, left_out: Vec<&'static str>) -> Self {
        Self { body: Arc::new(body), format: AnswerFormat::OpenAi, names: Names::default(), left_out }
    }
}

impl<T: Fields> Converted<T> {
    /// Of a body of another endpoint, with the fields that nobody knows there.
    ///
    /// # Errors
    /// 400: something is out of the bounds that it has where it is served.
    fn new(
        request: T,
        mut unknown: Map<String, Value>,
        format: AnswerFormat,
        names: Names,
        mut left_out: Vec<&'static str>,
    ) -> Result<Self, RequestError> {
        // They are no fields of the endpoint that the client asks. A validator's change must not bring them to life.
        let asked = unknown.iter().filter(|(_, value)| !asks_for_nothing(value));
        left_out.extend(asked.filter_map(|(name, _)| T::known(name)));
        unknown.retain(|name, _| T::known(name).is_none());
        let body = Body { request, unknown };
        body.check().map_err(|error| error.renamed(&names))?;
        Ok(Self { body: Arc::new(body), format, names, left_out })
    }
}

/// A request of any API, as the endpoint has it that serves it.
#[derive(Debug)]
pub(crate) enum Served {
    Chat(Converted<ChatRequest>),
    Completion(Converted<CompletionRequest>),
}

impl Dialect {
    /// Reads a request.
    ///
    /// # Errors
    /// 400 that names the field, as the client has it.
    pub(crate) fn read(self, text: &str) -> Result<Served, RequestError> {
        Ok(match self {
            Self::Chat => {
                let body: Body<ChatRequest> = read::read(text)?;
                let left_out = left_out_of(&body.request);
                Served::Chat(Converted::own(body, left_out))
            }
            Self::Completions => Served::Completion(Converted::own(read::read(text)?, Vec::new())),
            Self::Responses => Served::Chat(responses::chat(read::read(text)?)?),
            Self::Messages => {
                let body: Body<CountTokensRequest> = read::read(text)?;
                if body.request.generation.max_tokens.is_none() {
                    return Err(RequestError::field("max_tokens", "max_tokens is required"));
                }
                Served::Chat(messages::chat(body)?)
            }
            Self::Native(framing) => Served::Completion(native::completion(read::read(text)?, framing)?),
        })
    }

    /// Whether the serving endpoint reads the body as the client sent it.
    pub(crate) fn is_own(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }
}

/// What a chat asks for that nothing here does.
fn left_out_of(request: &ChatRequest) -> Vec<&'static str> {
    let asked = [("prediction", &request.prediction), ("web_search_options", &request.web_search_options)];
    asked.into_iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name).collect()
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
pub(crate) fn counted_message(text: &str) -> Result<Converted<ChatRequest>, RequestError> {
    messages::chat(read::read(text)?)
}

/// The chat whose prompt OpenAI's `input_tokens` counts.
///
/// # Errors
/// 400 that names the field, as the client has it.
pub(crate) fn counted_response(text: &str) -> Result<Converted<ChatRequest>, RequestError> {
    responses::chat(read::read(text)?)
}

#[cfg(test)]
mod tests;
