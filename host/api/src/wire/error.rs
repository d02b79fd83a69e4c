//! Errors: what is wrong with a body alone, the answer to a failed request, and its shape in Anthropic's API.
use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write as _;
use std::str::Utf8Error;
use std::time::Duration;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use camshaft_core::quota::{Standing, Standings};
use schemars::JsonSchema;
use serde::Serialize;

use crate::wire::echo::{self, Shown};
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
            write_standings(standings, headers);
        }
        response.extensions_mut().insert(note);
        response
    }
}

/// An error on any path of this API.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MessageError<'a> {
    /// `error`.
    r#type: &'static str,
    error: MessageErrorObject<'a>,
    request_id: &'a str,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MessageErrorObject<'a> {
    r#type: &'static str,
    message: Cow<'a, str>,
    /// Of an error about `thread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<MessageErrorDetails>,
}

/// By this its clients know that they must send whole conversations.
#[derive(Debug, Serialize, JsonSchema)]
struct MessageErrorDetails {
    /// `thread_unsupported_request`.
    error_code: &'static str,
}

/// The status of an overloaded server, which has a number of its own there.
pub(crate) const OVERLOADED: u16 = 529;
const OVERLOADED_KIND: &str = "overloaded_error";

impl<'a> MessageError<'a> {
    pub(crate) fn new(error: MessageErrorObject<'a>, request_id: &'a str) -> Self {
        Self { r#type: "error", error, request_id }
    }
}

impl<'a> MessageErrorObject<'a> {
    /// `kind`: see [`of_anthropic`].
    pub(crate) fn new(kind: &'static str, note: &'a ErrorNote) -> Self {
        let unthreaded = note.object.param.as_deref() == Some("thread");
        let details = unthreaded.then_some(MessageErrorDetails { error_code: "thread_unsupported_request" });
        Self { r#type: kind, message: note.naming_field(), details }
    }
}

/// The status and the type of an error that other endpoints tell with this status and code.
pub(crate) fn of_anthropic(status: u16, code: &str) -> (u16, &'static str) {
    match status {
        401 => (status, "authentication_error"),
        403 => (status, "permission_error"),
        404 => (status, "not_found_error"),
        413 => (status, "request_too_large"),
        429 => (status, "rate_limit_error"),
        503 if code == "overloaded" => (OVERLOADED, OVERLOADED_KIND),
        504 => (status, "timeout_error"),
        500.. => (status, "api_error"),
        _ => (status, "invalid_request_error"),
    }
}

/// OpenAI's headers for quotas: limit, what remains, and when all of it is back, of requests and of tokens.
pub(crate) const RATE_HEADERS: [&str; 6] = [
    "x-ratelimit-limit-requests",
    "x-ratelimit-remaining-requests",
    "x-ratelimit-reset-requests",
    "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
];

pub(crate) fn write_standings(standings: &Standings, headers: &mut HeaderMap) {
    let mut put = |limit, remaining, reset, standing: Option<Standing>| {
        let Some(standing) = standing else { return };
        headers.insert(HeaderName::from_static(limit), HeaderValue::from(standing.limit));
        headers.insert(HeaderName::from_static(remaining), HeaderValue::from(standing.remaining));
        if let Ok(value) = HeaderValue::from_str(&span(standing.reset)) {
            headers.insert(HeaderName::from_static(reset), value);
        }
    };
    let [limit, remaining, reset, token_limit, tokens_remaining, token_reset] = RATE_HEADERS;
    put(limit, remaining, reset, standings.requests);
    put(token_limit, tokens_remaining, token_reset, standings.tokens);
}

/// Formats a duration as OpenAI does: `17ms`, `7.66s`, `6m0s`.
fn span(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 {
        return format!("{}ms", time.as_millis());
    }
    if seconds < 60.0 {
        let text = format!("{seconds:.2}");
        return format!("{}s", text.trim_end_matches('0').trim_end_matches('.'));
    }
    let whole = seconds.ceil() as u64;
    format!("{}m{}s", whole / 60, whole % 60)
}

#[cfg(test)]
mod anthropic_error_tests {
    use super::*;
    use crate::wire::error::Answer;
    use serde_json::{Value, json};

    #[test]
    fn each_status_has_the_type_that_anthropics_clients_know() {
        let check = |status: u16, code: &str, expected: (u16, &str)| assert_eq!(of_anthropic(status, code), expected);
        check(400, "-", (400, "invalid_request_error"));
        check(401, "invalid_api_key", (401, "authentication_error"));
        check(403, "model_not_allowed", (403, "permission_error"));
        check(404, "model_not_found", (404, "not_found_error"));
        check(405, "method_not_allowed", (405, "invalid_request_error"));
        check(413, "request_too_large", (413, "request_too_large"));
        check(429, "queue_full", (429, "rate_limit_error"));
        check(500, "server_error", (500, "api_error"));
        check(503, "draining", (503, "api_error"));
        check(503, "overloaded", (529, "overloaded_error"));
        check(504, "deadline_exceeded", (504, "timeout_error"));
    }

    #[test]
    fn an_error_about_a_thread_has_what_its_clients_go_on_by() {
        let check = |param: &str, details: Option<Value>| {
            let note = Answer::invalid("m").param(param.to_owned()).note().clone();
            let error = MessageErrorObject::new("invalid_request_error", &note);
            let got = serde_json::to_value(MessageError::new(error, "r")).unwrap();
            let mut expected = json!({"type": "error", "request_id": "r",
                "error": {"type": "invalid_request_error", "message": format!("{param}: m")}});
            expected["error"].as_object_mut().unwrap().extend(details.map(|details| ("details".to_owned(), details)));
            assert_eq!(got, expected);
        };
        check("thread", Some(json!({"error_code": "thread_unsupported_request"})));
        check("model", None);
    }
}

#[cfg(test)]
mod quota_headers_tests {
    use super::*;

    #[test]
    fn writes_spans_as_openai_does() {
        for (ms, expected) in
            [(0, "0ms"), (17, "17ms"), (1000, "1s"), (7660, "7.66s"), (59_990, "59.99s"), (360_000, "6m0s")]
        {
            assert_eq!(span(Duration::from_millis(ms)), expected);
        }
    }
}
