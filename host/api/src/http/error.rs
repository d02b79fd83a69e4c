//! The errors of the HTTP layer and those of the layers below, and the shapes that they have on the paths of each protocol.
use std::error::Error;

use axum::body::Body;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use camshaft_core::policy::{Fault, FaultKind, Hook, ModeError, PolicyAction, Refusal};
use tokio::task::JoinError;

use crate::flow::adapters::NotAdded;
use crate::flow::error::{self, FlowError};
use crate::flow::life::{AdapterRefusal, ModelRefusal};
use crate::http::head::{REQUEST_ID, X_REQUEST_ID};
use crate::http::paths;
use crate::wire::echo::Shown;
use crate::wire::error::{
    Answer, ErrorBody, ErrorNote, ErrorType, MessageError, MessageErrorObject, Rejection, RequestError, Retry,
    of_anthropic,
};
use crate::wire::open_inference::{InferenceError, VERSION};

/// Header lines of a request. Over HTTP/1 the connection refuses more where it parses them.
pub const MAX_HEADERS: usize = 100;

/// A request that failed. Its text is for the client unless [`ApiError::answer`] says otherwise.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// `retry`: after so many seconds, as the policy says.
    #[error("{}", refusal.message)]
    AuthRefused { refusal: Box<Refusal>, retry: Option<u8> },
    #[error("an auth policy failed")]
    AuthFault(#[source] Box<Fault>),
    #[error("the key in {header} is not UTF-8")]
    UnreadableKey { header: HeaderName },
    /// `meant`: there is such a path with one `/v1` more or less.
    #[error("unknown request URL: {} {}{}", Shown(.method.as_str()), Shown(.path), meant.map(|path| format!("; did you mean {path}?")).unwrap_or_default())]
    UnknownUrl { method: Method, path: String, meant: Option<&'static str> },
    /// `allowed`: another one is.
    #[error("{} is not allowed on {}{}", Shown(.method.as_str()), Shown(.path), allowed.as_ref().map(|method| format!("; use {method}")).unwrap_or_default())]
    MethodNotAllowed { method: Method, path: String, allowed: Option<Method> },
    #[error("the model {} has the version {VERSION}, and no version {}", Shown(.model), Shown(.version))]
    UnknownVersion { model: String, version: String },
    #[error("the path cannot be read: {0}")]
    Path(#[from] PathRejection),
    #[error("a request may have at most {MAX_HEADERS} headers, got {count}")]
    TooManyHeaders { count: usize },
    /// Over HTTP/1, whose parser does not say of which there are more.
    #[error("a request's head may have at most {head_bytes} bytes and {MAX_HEADERS} headers")]
    HeadTooLarge { head_bytes: usize },
    #[error("the request head is not valid HTTP/1.1")]
    UnreadableHead,
    #[error("{0}")]
    Host(&'static str),
    #[error("the transfer encoding must be chunked, or absent")]
    TransferEncoding,
    #[error("the only expectation that is met is 100-continue")]
    Expectation,
    #[error("responses are sent with the content coding gzip or identity, and the request accepts neither")]
    NotAcceptable,
    #[error("the Host header is not a name of this listener")]
    ForeignHost,
    #[error("the admin listener asks for its token (authorization: Bearer ...)")]
    NoToken,
    #[error("a request may have one authorization header")]
    TwoTokens,
    #[error("only operators see this: tenants that metrics.operators lists")]
    OperatorsOnly,
    #[error("web pages may not post here")]
    WebPage,
    #[error("there is no hook {:?}: {}", Shown(.name), Hook::ALL.map(Hook::as_str).join(", "))]
    UnknownHook { name: String },
    #[error("there is no action {:?}: {}", Shown(.name), PolicyAction::ALL.map(PolicyAction::as_str).join(", "))]
    UnknownAction { name: String },
    #[error(transparent)]
    Adapter(NotAdded),
    #[error("the model {} has no adapter {:?}", Shown(model), Shown(id))]
    NoAdapter { model: String, id: String },
    #[error("{0}")]
    Query(QueryRejection),
    #[error("the query is not UTF-8 once its percent-encoding is undone")]
    QueryText,
    #[error(transparent)]
    Policy(ModeError),
    #[error("a policy could not be changed or examined")]
    PolicyTask(#[source] JoinError),
    #[error(transparent)]
    Model(ModelRefusal),
    #[error("there is no operation {}: it never was, or it ended long ago", Shown(.id))]
    UnknownOperation { id: String },
    #[error("an order could not be carried out")]
    ModelTask(#[source] JoinError),
    #[error("the response could not be compressed")]
    Compression(#[source] axum::Error),
    #[error("the configuration could not be reloaded")]
    ReloadTask(#[source] JoinError),
    #[error("the metrics could not be rendered")]
    Metrics(#[source] prometheus::Error),
    #[error("a guarded route was reached without a caller")]
    NoCaller,
    #[error("a handler was reached without an exchange")]
    NoExchange,
    #[error("a handler panicked")]
    HandlerPanicked,
}

impl From<ModelRefusal> for ApiError {
    fn from(refusal: ModelRefusal) -> Self {
        Self::Model(refusal)
    }
}

impl From<AdapterRefusal> for ApiError {
    fn from(refusal: AdapterRefusal) -> Self {
        match refusal {
            AdapterRefusal::Model(refusal) => Self::Model(refusal),
            AdapterRefusal::Adapter(refusal) => Self::Adapter(refusal),
        }
    }
}

impl From<RequestError> for ApiError {
    fn from(error: RequestError) -> Self {
        Self::Flow(error.into())
    }
}

impl ApiError {
    /// The mapping from conditions to statuses, types and codes.
    pub(crate) fn answer(&self) -> Answer {
        let text = || self.to_string();
        let invalid = |status, code| Answer::new(status, ErrorType::InvalidRequest, text()).code(code);
        match self {
            Self::Flow(error) => error.answer(),
            Self::AuthRefused { refusal, retry } => {
                let answer = error::refused(refusal, auth_kind(refusal.status)).rejection(Rejection::Auth);
                retry.map(Retry::After).into_iter().fold(answer, Answer::retry)
            }
            Self::AuthFault(fault) if fault.kind == FaultKind::Exhausted => error::exhausted(),
            Self::AuthFault(_) => Answer::internal(text(), self).retry(Retry::Never).rejection(Rejection::PolicyFault),
            Self::UnreadableKey { .. } => {
                let answer = Answer::new(StatusCode::UNAUTHORIZED, ErrorType::Authentication, text());
                answer.code("invalid_api_key").rejection(Rejection::Auth)
            }
            Self::UnknownUrl { .. } => invalid(StatusCode::NOT_FOUND, "unknown_url"),
            Self::MethodNotAllowed { .. } => invalid(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::UnknownVersion { .. } => invalid(StatusCode::NOT_FOUND, "model_not_found").param("model".to_owned()),
            Self::Path(_) => invalid(StatusCode::BAD_REQUEST, "invalid_path"),
            Self::TooManyHeaders { .. } => invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "too_many_headers"),
            Self::HeadTooLarge { .. } => invalid(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large"),
            Self::UnreadableHead => invalid(StatusCode::BAD_REQUEST, "invalid_head"),
            Self::Host(_) => invalid(StatusCode::BAD_REQUEST, "invalid_host"),
            Self::TransferEncoding => invalid(StatusCode::BAD_REQUEST, "invalid_transfer_encoding"),
            Self::Expectation => invalid(StatusCode::EXPECTATION_FAILED, "expectation_failed"),
            Self::NotAcceptable => invalid(StatusCode::NOT_ACCEPTABLE, "not_acceptable"),
            Self::ForeignHost => Answer::new(StatusCode::FORBIDDEN, ErrorType::Permission, text()).code("foreign_host"),
            Self::NoToken => {
                let answer = Answer::new(StatusCode::UNAUTHORIZED, ErrorType::Authentication, text());
                answer.code("invalid_admin_token").rejection(Rejection::Auth)
            }
            Self::TwoTokens => invalid(StatusCode::BAD_REQUEST, "invalid_authorization"),
            Self::OperatorsOnly => {
                Answer::new(StatusCode::FORBIDDEN, ErrorType::Permission, text()).code("operators_only")
            }
            Self::WebPage => Answer::new(StatusCode::FORBIDDEN, ErrorType::Permission, text()).code("web_page"),
            Self::UnknownHook { .. } => Answer::invalid(text()).param("hook".to_owned()),
            Self::Policy(error) => match error {
                ModeError::NoPolicy { .. } => invalid(StatusCode::NOT_FOUND, "policy_not_found"),
                ModeError::Unreadable | ModeError::Removed | ModeError::FilesChanged { .. } => {
                    Answer::invalid(text()).param("action".to_owned())
                }
                // The component, its settings or both: its text says which.
                ModeError::Rejected(_) => Answer::invalid(text()),
                ModeError::Nothing(_) => invalid(StatusCode::CONFLICT, "nothing_to_do").retry(Retry::Never),
                ModeError::Checking => invalid(StatusCode::CONFLICT, "busy").retry(Retry::After(BUSY_RETRY)),
                ModeError::NoHost => invalid(StatusCode::CONFLICT, "no_policy_directory").retry(Retry::Never),
                ModeError::Superseded => invalid(StatusCode::CONFLICT, "superseded").retry(Retry::Never),
                ModeError::Busy => Answer::unavailable("busy", text(), BUSY_RETRY),
                ModeError::Unanswered => Answer::internal(INTERNAL, self),
            },
            Self::Adapter(error) => match error {
                NotAdded::Exists(_) | NotAdded::Full => {
                    invalid(StatusCode::CONFLICT, "adapter_conflict").retry(Retry::Never)
                }
                NotAdded::Busy => invalid(StatusCode::CONFLICT, "busy").retry(Retry::After(BUSY_RETRY)),
                NotAdded::Name(_) => Answer::invalid(text()).param("id".to_owned()),
                NotAdded::Scale(_) => Answer::invalid(text()).param("scale".to_owned()),
                NotAdded::File(_) => Answer::invalid(text()).param("path".to_owned()),
                NotAdded::NoSource => Answer::invalid(text()),
            },
            Self::NoAdapter { .. } => invalid(StatusCode::NOT_FOUND, "adapter_not_found"),
            Self::UnknownAction { .. } => Answer::invalid(text()).param("action".to_owned()),
            Self::Query(_) | Self::QueryText => invalid(StatusCode::BAD_REQUEST, "invalid_query"),
            Self::UnknownOperation { .. } => invalid(StatusCode::NOT_FOUND, "operation_not_found"),
            Self::Model(refusal) => match refusal {
                ModelRefusal::Invalid(_) => Answer::invalid(text()),
                ModelRefusal::Unknown(_) => invalid(StatusCode::NOT_FOUND, "model_not_found"),
                ModelRefusal::Exists(_) => invalid(StatusCode::CONFLICT, "model_exists").retry(Retry::Never),
                ModelRefusal::Busy { .. } => {
                    invalid(StatusCode::CONFLICT, "model_busy").retry(Retry::After(BUSY_RETRY))
                }
                ModelRefusal::Unsupported => invalid(StatusCode::CONFLICT, "unsupported").retry(Retry::Never),
                ModelRefusal::Ending | ModelRefusal::TooMany { .. } => Answer::unavailable("busy", text(), BUSY_RETRY),
            },
            Self::PolicyTask(_)
            | Self::ModelTask(_)
            | Self::Compression(_)
            | Self::ReloadTask(_)
            | Self::Metrics(_)
            | Self::NoCaller
            | Self::NoExchange
            | Self::HandlerPanicked => Answer::internal(INTERNAL, self as &dyn Error),
        }
    }
}

const INTERNAL: &str = "internal error";
/// `Retry-After` where too many orders run, or another one of the same thing, in seconds.
const BUSY_RETRY: u8 = 5;

fn auth_kind(status: u16) -> ErrorType {
    match status {
        401 => ErrorType::Authentication,
        403 => ErrorType::Permission,
        429 => ErrorType::RateLimit,
        _ => ErrorType::InvalidRequest,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = self.answer().into_response();
        if let Self::MethodNotAllowed { allowed: Some(method), .. } = &self
            && let Ok(value) = HeaderValue::from_str(method.as_str())
        {
            response.headers_mut().insert(header::ALLOW, value);
        }
        response
    }
}

/// A protocol, by which errors are told and requests named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    OpenAi,
    OpenInference,
    /// Anthropic's.
    Messages,
}

impl ErrorShape {
    /// Of a path, whether or not there is a route.
    pub(crate) fn of(path: &str) -> Self {
        let is_messages =
            path.strip_prefix(paths::MESSAGES).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match path {
            _ if is_messages => Self::Messages,
            path if paths::is_under(path) => Self::OpenInference,
            _ => Self::OpenAi,
        }
    }

    /// Gives a response its request's id, and a failed one the body that clients of the protocol read. Returns what failed.
    pub(crate) fn finish(self, id: &str, response: &mut Response) -> Option<ErrorNote> {
        let note = response.extensions_mut().remove::<ErrorNote>();
        if let Some(note) = &note {
            self.write(note, id, response);
        }
        if let Ok(id) = HeaderValue::from_str(id) {
            let headers = response.headers_mut();
            if self == Self::Messages {
                headers.insert(REQUEST_ID, id.clone());
            }
            headers.insert(X_REQUEST_ID, id);
        }
        note
    }

    fn write(self, note: &ErrorNote, id: &str, response: &mut Response) {
        let body = match self {
            Self::OpenAi => serde_json::to_vec(&ErrorBody { error: &note.object, request_id: id }),
            Self::OpenInference => serde_json::to_vec(&InferenceError { error: &note.naming_field(), request_id: id }),
            Self::Messages => {
                let (status, kind) = of_anthropic(response.status().as_u16(), note.code());
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(response.status());
                serde_json::to_vec(&MessageError::new(MessageErrorObject::new(kind, note), id))
            }
        };
        let text = body.unwrap_or_default();
        // Nothing below has compressed the response, which was empty.
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, text.len().into());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *response.body_mut() = Body::from(text);
    }
}

#[cfg(test)]
mod error_tests {
    use super::*;

    #[test]
    fn keeps_what_an_auth_policy_said_out_of_the_clients_sight() {
        let fault = Fault { plugin: "keys".into(), kind: FaultKind::Trap, detail: "secret backtrace".into() };
        let answer = ApiError::AuthFault(Box::new(fault)).answer();
        assert_eq!(answer.note().object.message, "an auth policy failed");
        assert!(answer.note().detail.as_ref().is_some_and(|detail| detail.contains("secret backtrace")));
    }
}

#[cfg(test)]
mod error_shape_tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::wire::error::Answer;

    #[tokio::test]
    async fn messages_name_the_field_where_nothing_beside_them_does() {
        for (param, message, expected) in [
            (Some("n"), "too many completions", "n: too many completions"),
            (Some("n"), "n is at most 4", "n is at most 4"),
            (Some("n"), "n_probs is at most 4", "n: n_probs is at most 4"),
            (Some("tools[0].name"), "tools[0].name: no name", "tools[0].name: no name"),
            (None, "no credentials", "no credentials"),
        ] {
            let note = Answer::invalid(message).param(param.map(str::to_owned)).note().clone();
            for (shape, pointer) in [(ErrorShape::Messages, "/error/message"), (ErrorShape::OpenInference, "/error")] {
                let mut response = Response::new(Body::empty());
                shape.write(&note, "req_1", &mut response);
                let body = response.into_body().collect().await.unwrap().to_bytes();
                let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
                assert_eq!(body.pointer(pointer).and_then(serde_json::Value::as_str), Some(expected), "{shape:?}");
            }
        }
    }

    #[test]
    fn only_paths_of_a_protocol_have_its_errors() {
        let check = |path: &str, expected: ErrorShape| assert_eq!(ErrorShape::of(path), expected, "{path}");
        check("/v1/messages", ErrorShape::Messages);
        check("/v1/messages/count_tokens", ErrorShape::Messages);
        check("/v1/messages/", ErrorShape::Messages);
        check("/v1/messagesx", ErrorShape::OpenAi);
        check("/messages", ErrorShape::OpenAi);
        check("/v2/models/a", ErrorShape::OpenInference);
        check("/v1/responses", ErrorShape::OpenAi);
    }
}
