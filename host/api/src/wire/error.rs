//! Errors in a request's body alone, independent of models and callers.
use std::str::Utf8Error;

use axum::http::StatusCode;

use crate::wire::answer::{Answer, ErrorType, Retry};
use crate::wire::echo::Shown;
use crate::wire::names::Names;

/// `Retry-After` of a body that came too slowly, in seconds.
const SLOW_RETRY: u8 = 1;

/// A malformed request. The client is at fault, and reads the text.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RequestError {
    /// A field has an unacceptable value; `param` is its path (`messages[2].content`).
    #[error("{message}")]
    Field { param: String, message: String },
    #[error("the request body is not valid JSON: {0}")]
    Json(#[source] serde_json::Error),
    #[error("the request body must be a JSON object")]
    NotAnObject,
    #[error("the request body is not UTF-8 (at byte {})", .0.valid_up_to())]
    NotUtf8(#[source] Utf8Error),
    #[error("the request body was not sent in time")]
    BodyTimeout,
    #[error("the request body is larger than the limit of {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("the request body could not be read")]
    BodyBroken(#[source] axum::Error),
    #[error("compressed request bodies are not accepted")]
    CompressedBody,
    #[error("the content type must be {accepted}")]
    ContentType { accepted: &'static str },
    /// `bytes`: of the whole body.
    #[error(
        "inference-header-content-length must be the bytes of the JSON, at most the body's {bytes}, got {}",
        Shown(got)
    )]
    JsonLength { bytes: usize, got: String },
}

impl RequestError {
    pub(crate) fn field(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Field { param: param.into(), message: message.into() }
    }

    /// With the client's own names of fields.
    pub(crate) fn renamed(mut self, names: &Names) -> Self {
        if let Self::Field { param, message } = &mut self {
            names.rename(param, message);
        }
        self
    }

    pub(crate) fn answer(&self) -> Answer {
        let with = |status, code| Answer::new(status, ErrorType::InvalidRequest, self.to_string()).code(code);
        match self {
            Self::Field { param, .. } => Answer::invalid(self.to_string()).param(param.clone()),
            Self::Json(_) | Self::NotAnObject | Self::NotUtf8(_) => {
                Answer::invalid(self.to_string()).code("invalid_json")
            }
            // Clients retry it unasked.
            Self::BodyTimeout => with(StatusCode::REQUEST_TIMEOUT, "timeout").retry(Retry::After(SLOW_RETRY)),
            Self::BodyTooLarge { .. } => with(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large"),
            Self::CompressedBody | Self::ContentType { .. } => {
                with(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type")
            }
            Self::JsonLength { .. } => {
                Answer::invalid(self.to_string()).param("inference-header-content-length".to_owned())
            }
            Self::BodyBroken(_) => Answer::invalid(self.to_string()).code("invalid_body"),
        }
    }
}
