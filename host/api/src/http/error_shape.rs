//! The shapes that errors have on paths of other protocols than OpenAI's, and where their clients look for a request's id.
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

use crate::http::request_id::REQUEST_ID;
use crate::http::{open_inference, paths};
use crate::wire::answer::ErrorNote;
use crate::wire::anthropic_error;
use crate::wire::open_inference::ErrorText;

/// A protocol with a shape of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorShape {
    OpenInference,
    /// Anthropic's.
    Messages,
}

impl ErrorShape {
    /// Of a path, whether or not there is a route. `None`: OpenAI's.
    pub(crate) fn of(path: &str) -> Option<Self> {
        let is_messages =
            path.strip_prefix(paths::MESSAGES).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        match path {
            _ if is_messages => Some(Self::Messages),
            path if open_inference::is_under(path) => Some(Self::OpenInference),
            _ => None,
        }
    }

    /// The header in which clients of the protocol look for the id of any request, besides the one that all responses have.
    pub(crate) fn id_header(self) -> Option<HeaderName> {
        (self == Self::Messages).then_some(REQUEST_ID)
    }

    /// Gives a failed request's response the body that clients of the protocol read. `id`: of the request.
    pub(crate) fn write(self, note: &ErrorNote, id: &str, response: &mut Response) {
        match self {
            Self::OpenInference => replace(&ErrorText { error: &note.naming_field() }, response),
            Self::Messages => {
                let (status, kind) = anthropic_error::of_answer(response.status().as_u16(), &note.code);
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(response.status());
                let message = note.naming_field();
                let body = anthropic_error::body(kind, &message).about(note.param.as_deref());
                replace(&body.request(id), response);
            }
        }
    }
}

fn replace(body: &impl Serialize, response: &mut Response) {
    let text = serde_json::to_vec(body).unwrap_or_default();
    let headers = response.headers_mut();
    // It was perhaps compressed.
    headers.remove(header::CONTENT_ENCODING);
    headers.insert(header::CONTENT_LENGTH, text.len().into());
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    *response.body_mut() = Body::from(text);
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn messages_name_the_field_where_nothing_beside_them_does() {
        for (param, message, expected) in [
            (Some("n"), "too many completions", "n: too many completions"),
            (Some("n"), "n is at most 4", "n is at most 4"),
            (Some("n"), "n_probs is at most 4", "n: n_probs is at most 4"),
            (Some("tools[0].name"), "tools[0].name: no name", "tools[0].name: no name"),
            (None, "no credentials", "no credentials"),
        ] {
            let (code, param) = (String::new(), param.map(str::to_owned));
            let note = ErrorNote { code, message: message.to_owned(), param, rejection: None, detail: None };
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
        let check = |path: &str, expected: Option<ErrorShape>| assert_eq!(ErrorShape::of(path), expected, "{path}");
        check("/v1/messages", Some(ErrorShape::Messages));
        check("/v1/messages/count_tokens", Some(ErrorShape::Messages));
        check("/v1/messages/", Some(ErrorShape::Messages));
        check("/v1/messagesx", None);
        check("/messages", None);
        check("/v2/models/a", Some(ErrorShape::OpenInference));
        check("/v1/responses", None);
    }
}
