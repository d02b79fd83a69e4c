//! The answer to a failed request: a status, the error object, and whether to retry.
use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use camshaft_core::quota::Standings;
use schemars::JsonSchema;
use serde::Serialize;

use crate::wire::names::Names;
use crate::wire::{echo, quota_headers};

pub(crate) const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The answer to a request that failed. Every layer's error enum maps its conditions to one.
#[derive(Debug)]
pub(crate) struct Answer {
    status: StatusCode,
    note: ErrorNote,
    retry: Retry,
    standings: Option<Standings>,
}

/// Whether the same request may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// No header, because the status says enough.
    Unspecified,
    /// The request would fail again.
    Never,
    /// After this many seconds.
    After(u8),
}

/// What a failed request is answered with, and the last event of a stream that fails.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ErrorBody<'a> {
    pub(crate) error: &'a ErrorObject,
    pub(crate) request_id: &'a str,
}

#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ErrorObject {
    pub(crate) message: String,
    #[serde(rename = "type")]
    #[schemars(with = "String")]
    pub(crate) kind: ErrorType,
    /// The field at fault (`messages[2].content`).
    pub(crate) param: Option<String>,
    pub(crate) code: Option<Cow<'static, str>>,
}

/// `type` of an error object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorType {
    InvalidRequest,
    Authentication,
    Permission,
    RateLimit,
    Server,
}

/// Why a request was turned away: `reason` of `camshaft_rejections_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rejection {
    Auth,
    Deadline,
    Draining,
    ModelNotAllowed,
    NotReady,
    Overloaded,
    Policy,
    PolicyFault,
    QueueFull,
    Quota,
    Scheduler,
    SlowReader,
}

/// What went wrong. In the extensions of a response, whose body is yet to be written in the shape of its API.
#[derive(Debug, Clone)]
pub(crate) struct ErrorNote {
    pub(crate) object: ErrorObject,
    pub(crate) rejection: Option<Rejection>,
    /// Details for the log that the client is not told.
    pub(crate) detail: Option<String>,
}

impl ErrorNote {
    pub(crate) fn code(&self) -> &str {
        self.object.code.as_deref().unwrap_or(self.object.kind.as_str())
    }

    /// The message where the client is told no field beside it.
    pub(crate) fn naming_field(&self) -> Cow<'_, str> {
        let ErrorObject { message, param, .. } = &self.object;
        let Some(param) = param else { return message.as_str().into() };
        // A name that only begins with the field's is another one.
        let rest = message.strip_prefix(param.as_str());
        let is_named = rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'));
        if is_named { message.as_str().into() } else { format!("{param}: {message}").into() }
    }
}

impl Answer {
    pub(crate) fn new(status: StatusCode, kind: ErrorType, message: impl Into<String>) -> Self {
        let message = message.into();
        let message = match echo::message(&message) {
            Cow::Borrowed(_) => message,
            Cow::Owned(cut) => cut,
        };
        let object = ErrorObject { message, kind, param: None, code: None };
        let note = ErrorNote { object, rejection: None, detail: None };
        Self { status, note, retry: Retry::Unspecified, standings: None }
    }

    /// 400.
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorType::InvalidRequest, message)
    }

    /// 503 with a `Retry-After` in seconds.
    pub(crate) fn unavailable(code: &'static str, message: impl Into<String>, seconds: u8) -> Self {
        let answer = Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorType::Server, message);
        answer.code(code).retry(Retry::After(seconds))
    }

    /// 500. Only the log names the cause.
    pub(crate) fn internal(message: impl Into<String>, cause: &dyn Error) -> Self {
        let answer = Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorType::Server, message);
        answer.code("server_error").detail(chain(cause))
    }

    pub(crate) fn code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.note.object.code = Some(code.into());
        self
    }

    pub(crate) fn param(mut self, param: impl Into<Option<String>>) -> Self {
        self.note.object.param = param.into();
        self
    }

    /// Names the field as the client has it, with its whole path.
    pub(crate) fn renamed(mut self, names: &Names) -> Self {
        let object = &mut self.note.object;
        if let Some(param) = &mut object.param {
            names.rename(param, &mut object.message);
        }
        self
    }

    pub(crate) fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    pub(crate) fn rejection(mut self, rejection: Rejection) -> Self {
        self.note.rejection = Some(rejection);
        self
    }

    pub(crate) fn detail(mut self, detail: String) -> Self {
        self.note.detail = Some(detail);
        self
    }

    pub(crate) fn standings(mut self, standings: Standings) -> Self {
        self.standings = Some(standings);
        self
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn note(&self) -> &ErrorNote {
        &self.note
    }

    #[cfg(test)]
    pub(crate) fn check(&self, status: u16, code: Option<&str>, retry: Retry) {
        assert_eq!(self.status.as_u16(), status, "{self:?}");
        assert_eq!(self.note.object.code.as_deref(), code, "{self:?}");
        assert_eq!(self.retry, retry, "{self:?}");
    }
}

impl ErrorType {
    fn as_str(self) -> &'static str {
        match self {
            ErrorType::InvalidRequest => "invalid_request_error",
            ErrorType::Authentication => "authentication_error",
            ErrorType::Permission => "permission_error",
            ErrorType::RateLimit => "rate_limit_error",
            ErrorType::Server => "server_error",
        }
    }
}

impl Serialize for ErrorType {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Rejection {
    pub(crate) const ALL: [Self; 12] = [
        Self::Auth,
        Self::Deadline,
        Self::Draining,
        Self::ModelNotAllowed,
        Self::NotReady,
        Self::Overloaded,
        Self::Policy,
        Self::PolicyFault,
        Self::QueueFull,
        Self::Quota,
        Self::Scheduler,
        Self::SlowReader,
    ];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Rejection::Auth => "auth",
            Rejection::Deadline => "deadline",
            Rejection::Draining => "draining",
            Rejection::ModelNotAllowed => "model_not_allowed",
            Rejection::NotReady => "not_ready",
            Rejection::Overloaded => "overloaded",
            Rejection::Policy => "policy",
            Rejection::PolicyFault => "policy_fault",
            Rejection::QueueFull => "queue_full",
            Rejection::Quota => "quota",
            Rejection::Scheduler => "scheduler",
            Rejection::SlowReader => "slow_reader",
        }
    }
}

/// An error and its sources in one line, without sources whose text the error repeats.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let part = inner.to_string();
        if !text.contains(&part) {
            // Writing into a string never fails.
            let _ = write!(text, ": {part}");
        }
        source = inner.source();
    }
    text
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        let Self { status, note, retry, standings } = self;
        let mut response = status.into_response();
        let headers = response.headers_mut();
        match retry {
            Retry::Unspecified => None,
            Retry::Never => headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false")),
            Retry::After(seconds) => headers.insert(RETRY_AFTER, HeaderValue::from(u16::from(seconds))),
        };
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(standings) = &standings {
            quota_headers::write(standings, headers);
        }
        response.extensions_mut().insert(note);
        response
    }
}
