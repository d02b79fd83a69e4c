//! The shapes in which other endpoints ask for generations and answer them. Each is a translation: of its request into one of the
//! chat or the completion endpoint, and of that one's answer back.
mod messages;
mod native;
mod responses;

use crate::wire::chat_answer::{ChatAnswer, StreamError};
use crate::wire::error::RequestError;
use crate::wire::json::Body;
use crate::wire::sse::{self, Frame, Pieces};
use crate::wire::translated::Translated;
use crate::wire::types::known::{self, Known};

pub(crate) use native::Framing;

/// A shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's Responses API.
    Responses,
    /// Anthropic's Messages API.
    Messages,
    /// The server's own.
    Native(Framing),
}

/// A request in one of the shapes, and what its answer needs of it.
#[derive(Debug)]
pub(crate) enum Asked {
    Responses(responses::Responses),
    Messages(messages::Messages),
    Native(native::Native),
}

/// The events of an answer that is streamed.
#[derive(Debug)]
pub(crate) enum Events {
    Responses(Box<responses::Events>),
    Messages(Box<messages::Events>),
    Native(Box<native::Events>),
}

impl Dialect {
    /// Translates a request.
    ///
    /// # Errors
    /// 400 that names the field, as the client has it.
    pub(crate) fn read(self, body: Body) -> Result<Translated<Asked>, RequestError> {
        Ok(match self {
            Self::Responses => responses::Responses::read(body)?.map(Asked::Responses),
            Self::Messages => messages::Messages::read(body)?.map(Asked::Messages),
            Self::Native(framing) => native::Native::read(body, framing)?.map(Asked::Native),
        })
    }

    /// The fields that a request may have.
    pub(crate) fn known(self) -> &'static Known {
        match self {
            Self::Responses => &known::RESPONSES,
            Self::Messages => &known::MESSAGES,
            Self::Native(_) => &known::GENERATE,
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

impl Asked {
    pub(crate) fn streams(&self) -> bool {
        match self {
            Self::Responses(asked) => asked.stream,
            Self::Messages(asked) => asked.stream,
            Self::Native(asked) => asked.stream,
        }
    }

    /// The content type of the stream, if it is none of server-sent events.
    pub(crate) fn content_type(&self) -> Option<&'static str> {
        match self {
            Self::Native(asked) => asked.content_type(),
            Self::Responses(_) | Self::Messages(_) => None,
        }
    }

    /// `prompt_tokens`: of the request.
    pub(crate) fn events(self, prompt_tokens: u64) -> Events {
        match self {
            Self::Responses(asked) => Events::Responses(Box::new(asked.events())),
            Self::Messages(asked) => Events::Messages(Box::new(asked.events(prompt_tokens))),
            Self::Native(asked) => Events::Native(Box::new(asked.events(prompt_tokens))),
        }
    }

    /// A whole answer.
    ///
    /// # Errors
    /// The answer cannot be read or written.
    pub(crate) fn answer(self, answer: &[u8]) -> Result<Vec<u8>, serde_json::Error> {
        let answer = serde_json::from_slice(answer)?;
        match self {
            Self::Responses(asked) => asked.answer(answer),
            Self::Messages(asked) => asked.answer(answer),
            Self::Native(asked) => asked.answer(answer),
        }
    }
}

impl Events {
    /// Translates a frame of the stream that the serving endpoint writes.
    pub(crate) fn take(&mut self, out: &mut Pieces, frame: &Frame<'_>) {
        match frame {
            Frame::Comment(text) => match self {
                Self::Responses(_) => sse::say(out.next(), text),
                Self::Messages(events) => events.comment(out, text),
                Self::Native(events) => events.comment(out, text),
            },
            Frame::Done => match self {
                Self::Responses(events) => events.end(out),
                Self::Messages(events) => events.end(out),
                Self::Native(events) => events.end(out),
            },
            Frame::Data(data) => match serde_json::from_str::<ChatAnswer>(data) {
                Ok(chunk) => self.chunk(out, chunk),
                // Cannot be: this server has written it.
                Err(_) => self.fail(out, StreamError::cut()),
            },
        }
    }

    /// Ends a stream that ended without its last frame.
    pub(crate) fn fail(&mut self, out: &mut Pieces, error: StreamError) {
        self.chunk(out, ChatAnswer { error: Some(error), ..ChatAnswer::default() });
    }

    /// Whether the last event was written.
    pub(crate) fn ended(&self) -> bool {
        match self {
            Self::Responses(events) => events.ended(),
            Self::Messages(events) => events.ended(),
            Self::Native(events) => events.ended(),
        }
    }

    /// What the stream takes in memory besides the request, at most.
    pub(crate) fn held_bytes(&self) -> usize {
        match self {
            Self::Responses(events) => events.held_bytes(),
            Self::Messages(_) | Self::Native(_) => 0,
        }
    }

    fn chunk(&mut self, out: &mut Pieces, chunk: ChatAnswer) {
        match self {
            Self::Responses(events) => events.chunk(out, chunk),
            Self::Messages(events) => events.chunk(out, chunk),
            Self::Native(events) => events.chunk(out, chunk),
        }
    }
}

#[cfg(test)]
mod tests;
