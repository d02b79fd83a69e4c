//! Everything that can go wrong, and the one place that maps it to what a client is answered.
use std::borrow::Cow;

use axum::http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use camshaft_core::message::WorkerError;
use camshaft_core::policy::{Fault, Hook, Refusal};
use camshaft_core::quota::{Exceeded, Quota};
use serde::Serialize;

use crate::flow::quota;

const X_SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// A failure at start-up or of one request. The text is for clients unless [`ApiError::answer`] says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the chat template of model {model} does not compile: {source}")]
    ChatTemplate { model: String, source: minijinja::Error },
    #[error("a metric could not be registered: {0}")]
    Metric(#[from] prometheus::Error),
    #[error("two models are named {0}")]
    DuplicateModel(String),

    #[error("{message}")]
    Invalid { message: String, param: Option<String>, code: Option<&'static str> },
    #[error(
        "this model's context holds {context} tokens, but the prompt has {tokens} (and at least one must be left to generate)"
    )]
    ContextLength { tokens: usize, context: u32, param: &'static str },
    #[error("the model {0} does not exist")]
    UnknownModel(String),
    #[error("{0}")]
    UnknownPolicy(String),
    #[error("web pages may not post here")]
    WebPage,
    #[error("{}", .0.message)]
    AuthRefused(Box<Refusal>),
    #[error("the model {0} may not be used with these credentials")]
    ModelForbidden(String),
    #[error("{}", .0.message)]
    ValidatorRefused(Box<Refusal>),
    #[error("{}", quota_message(.0))]
    QuotaExceeded(Box<Exceeded>),
    #[error("{hook} policy failed: {fault}")]
    PolicyFault { hook: Hook, fault: Box<Fault> },
    #[error("validator {index} amended the request to something that is refused: {detail}")]
    BadAmendment { index: usize, detail: String },

    #[error("unknown request URL: {method} {path}")]
    UnknownUrl { method: String, path: String },
    #[error("{method} is not allowed on {path}")]
    MethodNotAllowed { method: String, path: String },
    #[error("the request body was not sent in time")]
    BodyTimeout,
    #[error("the request body is larger than the limit of {limit} bytes")]
    BodyTooLarge { limit: usize },
    #[error("{0}")]
    MediaType(&'static str),
    #[error("the request body could not be read")]
    BodyBroken,

    #[error("the model is still loading")]
    NotReady,
    #[error("the server is shutting down")]
    Draining,
    #[error("the server is overloaded")]
    Overloaded,
    #[error("the worker stopped before the generation was done")]
    PoolGone,
    #[error("the generation was cancelled by the server")]
    Cancelled,
    #[error("{0}")]
    Worker(#[from] WorkerError),
    #[error("internal error: {0}")]
    Internal(String),
}

/// Whether the same request may go better another time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retry {
    /// Nothing is said: the status speaks for itself.
    Unsaid,
    /// It would fail again.
    Never,
    /// After this many seconds.
    After(u8),
}

/// What a client is told.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: ErrorBody,
    retry: Retry,
}

/// The wire shape of every error.
#[derive(Debug, Serialize)]
pub(crate) struct ErrorBody {
    pub(crate) error: ErrorObject,
}

#[derive(Debug, Serialize)]
pub(crate) struct ErrorObject {
    pub(crate) message: String,
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) param: Option<String>,
    pub(crate) code: Option<Cow<'static, str>>,
}

/// Left in a response's extensions for the access log and the metrics.
#[derive(Debug, Clone)]
pub(crate) struct ErrorNote {
    pub(crate) code: String,
    /// Value of `camshaft_rejections_total{reason}`, if the failure is a rejection.
    pub(crate) reason: Option<&'static str>,
    /// The whole story where the client is told less.
    pub(crate) detail: Option<String>,
}

impl ApiError {
    /// A field with a value that cannot be accepted; `param` is its path (`messages[2].content`).
    pub(crate) fn param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: Some(param.into()), code: None }
    }

    /// The one mapping from conditions to statuses, types and codes.
    pub(crate) fn answer(&self) -> Answer {
        use Retry::{After, Never, Unsaid};
        let invalid = "invalid_request_error";
        let server = "server_error";
        let (status, kind, code, retry) = match self {
            Self::Invalid { code, .. } => (400, invalid, *code, Unsaid),
            Self::ContextLength { .. } => (400, invalid, Some("context_length_exceeded"), Unsaid),
            Self::UnknownModel(_) => (404, invalid, Some("model_not_found"), Unsaid),
            Self::WebPage => (403, "permission_error", Some("web_page"), Unsaid),
            Self::UnknownPolicy(_) => (404, invalid, Some("policy_not_found"), Unsaid),
            Self::AuthRefused(refusal) => {
                (refusal.status, auth_kind(refusal.status), None, refusal_retry(refusal.status))
            }
            Self::ModelForbidden(_) => (403, "permission_error", Some("model_not_allowed"), Unsaid),
            Self::ValidatorRefused(refusal) => (refusal.status, invalid, None, refusal_retry(refusal.status)),
            Self::QuotaExceeded(exceeded) => quota_answer(exceeded),
            Self::UnknownUrl { .. } => (404, invalid, Some("unknown_url"), Unsaid),
            Self::MethodNotAllowed { .. } => (405, invalid, Some("method_not_allowed"), Unsaid),
            Self::BodyTimeout => (408, invalid, Some("timeout"), Unsaid),
            Self::BodyTooLarge { .. } => (413, invalid, Some("request_too_large"), Unsaid),
            Self::MediaType(_) => (415, invalid, Some("unsupported_media_type"), Unsaid),
            Self::BodyBroken => (400, invalid, Some("invalid_body"), Unsaid),
            Self::NotReady => (503, server, Some("not_ready"), After(5)),
            Self::Draining => (503, server, Some("draining"), After(5)),
            Self::Overloaded | Self::PoolGone | Self::Cancelled => (503, server, Some("overloaded"), After(1)),
            Self::Worker(error) => match error {
                WorkerError::QueueFull => (429, "rate_limit_error", Some("queue_full"), After(1)),
                WorkerError::SlowReader => (408, invalid, Some("slow_reader"), Never),
                WorkerError::Refused(_) => (400, invalid, None, Unsaid),
                WorkerError::Rejected(_) | WorkerError::WorkerGone => (503, server, Some("overloaded"), After(1)),
                WorkerError::DeadlineExceeded => (504, server, Some("deadline_exceeded"), After(5)),
                WorkerError::Engine(_) => (500, server, Some("server_error"), Unsaid),
                WorkerError::InvalidLogits | WorkerError::PolicyFault { .. } => {
                    (500, server, Some("server_error"), Never)
                }
            },
            Self::PolicyFault { .. } | Self::BadAmendment { .. } => (500, server, Some("server_error"), Never),
            Self::ChatTemplate { .. } | Self::Metric(_) | Self::DuplicateModel(_) | Self::Internal(_) => {
                (500, server, Some("server_error"), Unsaid)
            }
        };
        let code = match self {
            Self::AuthRefused(refusal) | Self::ValidatorRefused(refusal) => Some(Cow::Owned(refusal.code.clone())),
            _ => code.map(Cow::Borrowed),
        };
        let error = ErrorObject { message: self.client_message(), kind, param: self.param_path(), code };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Answer { status, body: ErrorBody { error }, retry }
    }

    /// What the client reads: never what a policy, the engine or a panic said about itself.
    fn client_message(&self) -> String {
        match self {
            Self::PolicyFault { hook, .. } => {
                let article = if *hook == Hook::Auth { "an" } else { "a" };
                format!("{article} {hook} policy failed")
            }
            Self::BadAmendment { .. } => "a validator policy failed".to_owned(),
            Self::Worker(WorkerError::Engine(_)) => "the engine failed".to_owned(),
            Self::Internal(_) | Self::ChatTemplate { .. } | Self::Metric(_) | Self::DuplicateModel(_) => {
                "internal error".to_owned()
            }
            _ => self.to_string(),
        }
    }

    /// What only the log may say.
    fn detail(&self) -> Option<String> {
        match self {
            Self::Worker(WorkerError::PolicyFault { detail }) => Some(detail.clone()),
            _ => Some(self.to_string()).filter(|text| *text != self.client_message()),
        }
    }

    fn param_path(&self) -> Option<String> {
        match self {
            Self::Invalid { param, .. } => param.clone(),
            Self::ContextLength { param, .. } => Some((*param).to_owned()),
            Self::UnknownModel(_) | Self::ModelForbidden(_) => Some("model".to_owned()),
            Self::AuthRefused(refusal) | Self::ValidatorRefused(refusal) => refusal.param.clone(),
            _ => None,
        }
    }

    fn rejection(&self) -> Option<&'static str> {
        match self {
            Self::AuthRefused(_) => Some("auth"),
            Self::ModelForbidden(_) => Some("model_not_allowed"),
            Self::ValidatorRefused(_) => Some("policy"),
            Self::QuotaExceeded(_) => Some("quota"),
            Self::PolicyFault { .. } | Self::BadAmendment { .. } => Some("policy_fault"),
            Self::NotReady => Some("not_ready"),
            Self::Draining => Some("draining"),
            Self::Overloaded => Some("overloaded"),
            Self::Worker(WorkerError::Rejected(_)) => Some("scheduler"),
            Self::Worker(WorkerError::QueueFull) => Some("queue_full"),
            Self::Worker(WorkerError::DeadlineExceeded) => Some("deadline"),
            Self::Worker(WorkerError::SlowReader) => Some("slow_reader"),
            _ => None,
        }
    }

    pub(crate) fn note(&self) -> ErrorNote {
        let error = self.answer().body.error;
        let code = error.code.map_or_else(|| error.kind.to_owned(), Cow::into_owned);
        ErrorNote { code, reason: self.rejection(), detail: self.detail() }
    }
}

fn quota_message(exceeded: &Exceeded) -> String {
    let limit = exceeded.limit;
    match exceeded.quota {
        Quota::Requests => format!("your quota of {limit} requests per minute is used up"),
        Quota::Concurrency => format!("your quota allows {limit} requests at the same time"),
        Quota::Tokens if exceeded.retry_after.is_none() => {
            format!("prompt and max_tokens together are over your whole quota of {limit} tokens per minute")
        }
        Quota::Tokens => format!("your quota of {limit} tokens per minute does not hold prompt and max_tokens now"),
    }
}

/// A quota that will hold the request later is a rate limit, one that never will is insufficient.
fn quota_answer(exceeded: &Exceeded) -> (u16, &'static str, Option<&'static str>, Retry) {
    let kind = "rate_limit_error";
    match (exceeded.quota, exceeded.retry_after) {
        (_, Some(wait)) => (429, kind, Some("rate_limit_exceeded"), Retry::After(seconds(wait))),
        (Quota::Concurrency, None) if exceeded.limit > 0 => (429, kind, Some("rate_limit_exceeded"), Retry::After(1)),
        (_, None) => (429, kind, Some("insufficient_quota"), Retry::Never),
    }
}

/// Whole seconds, at least one and at most what clients wait for.
fn seconds(wait: std::time::Duration) -> u8 {
    wait.as_secs_f64().ceil().clamp(1.0, 120.0) as u8
}

fn auth_kind(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        429 => "rate_limit_error",
        _ => "invalid_request_error",
    }
}

/// Clients retry 408 and 409 unasked, although a policy would refuse again; a 429 is about time.
fn refusal_retry(status: u16) -> Retry {
    match status {
        408 | 409 => Retry::Never,
        429 => Retry::After(1),
        _ => Retry::Unsaid,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let Answer { status, body, retry } = self.answer();
        let mut response = (status, axum::Json(body)).into_response();
        let headers = response.headers_mut();
        match retry {
            Retry::Unsaid => None,
            Retry::Never => headers.insert(X_SHOULD_RETRY, HeaderValue::from_static("false")),
            Retry::After(seconds) => headers.insert(RETRY_AFTER, HeaderValue::from(u16::from(seconds))),
        };
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::QuotaExceeded(exceeded) = &self {
            quota::write_headers(&exceeded.standings, response.headers_mut());
        }
        response.extensions_mut().insert(self.note());
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(error: &ApiError, status: u16, code: Option<&str>, retry: Retry) {
        let answer = error.answer();
        assert_eq!(answer.status.as_u16(), status, "{error:?}");
        assert_eq!(answer.body.error.code.as_deref(), code, "{error:?}");
        assert_eq!(answer.retry, retry, "{error:?}");
    }

    #[test]
    fn maps_every_worker_error_to_its_status() {
        use Retry::{After, Never, Unsaid};
        let check = |error: WorkerError, status, code, retry| check(&error.into(), status, code, retry);
        check(WorkerError::InvalidLogits, 500, Some("server_error"), Never);
        check(WorkerError::PolicyFault { detail: "trap at 0x10".into() }, 500, Some("server_error"), Never);
        check(WorkerError::Refused("prompt too long".into()), 400, None, Unsaid);
        check(WorkerError::Rejected("not today".into()), 503, Some("overloaded"), After(1));
        check(WorkerError::Engine("decode returned -3".into()), 500, Some("server_error"), Unsaid);
        check(WorkerError::QueueFull, 429, Some("queue_full"), After(1));
        check(WorkerError::DeadlineExceeded, 504, Some("deadline_exceeded"), After(5));
        check(WorkerError::WorkerGone, 503, Some("overloaded"), After(1));
    }

    #[test]
    fn keeps_what_a_policy_or_the_engine_said_out_of_the_clients_sight() {
        let fault = Fault {
            plugin: "keys".into(),
            kind: camshaft_core::policy::FaultKind::Trap,
            detail: "secret backtrace".into(),
        };
        let errors = [
            ApiError::PolicyFault { hook: Hook::Auth, fault: Box::new(fault) },
            ApiError::BadAmendment { index: 1, detail: "secret backtrace".into() },
            WorkerError::PolicyFault { detail: "secret backtrace".into() }.into(),
            WorkerError::Engine("secret backtrace".into()).into(),
            ApiError::Internal("secret backtrace".into()),
        ];
        for error in errors {
            assert!(!error.answer().body.error.message.contains("secret"), "{error:?}");
            assert!(error.note().detail.is_some_and(|detail| detail.contains("secret backtrace")), "{error:?}");
        }
    }

    #[test]
    fn tells_clients_not_to_retry_a_refusal_that_sdks_would_retry() {
        let refuse = |status| {
            let refusal = Refusal { status, code: "policy_refused".into(), message: "no".into(), param: None };
            ApiError::ValidatorRefused(Box::new(refusal))
        };
        check(&refuse(409), 409, Some("policy_refused"), Retry::Never);
        check(&refuse(429), 429, Some("policy_refused"), Retry::After(1));
        check(&refuse(422), 422, Some("policy_refused"), Retry::Unsaid);
    }
}
