//! The shapes that errors have on the paths of each protocol, and where its clients look for a request's id.
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;

use crate::http::request_id::{REQUEST_ID, X_REQUEST_ID};
use crate::http::{open_inference, paths};
use crate::wire::answer::{ErrorBody, ErrorNote};
use crate::wire::anthropic_error::{self, MessageError, MessageErrorObject};
use crate::wire::open_inference::InferenceError;

/// A protocol.
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
            path if open_inference::is_under(path) => Self::OpenInference,
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
            Self::OpenInference => serde_json::to_vec(&InferenceError { error: &note.naming_field() }),
            Self::Messages => {
                let (status, kind) = anthropic_error::of_answer(response.status().as_u16(), note.code());
                *response.status_mut() = StatusCode::from_u16(status).unwrap_or(response.status());
                serde_json::to_vec(&MessageError::new(MessageErrorObject::new(kind, note), id))
            }
        };
        let text = body.unwrap_or_default();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, text.len().into());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        *response.body_mut() = Body::from(text);
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;
    use crate::wire::answer::Answer;

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
