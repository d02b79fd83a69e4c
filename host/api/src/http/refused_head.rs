//! What a connection says of a request whose head cannot be read: nobody knows its path, its id, or who asks.
use axum::http::{HeaderMap, StatusCode};

use crate::http::error::ApiError;
use crate::http::request_id::{self, X_REQUEST_ID};
use crate::wire::answer::ErrorBody;

/// Header lines, each with its end, and the body that they announce, for an answer over HTTP/1 with this status.
/// `head_bytes`: the most that a head may have.
pub fn refused_head(status: StatusCode, head_bytes: usize) -> (String, Vec<u8>) {
    let error = match status {
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE | StatusCode::URI_TOO_LONG => ApiError::HeadTooLarge { head_bytes },
        _ => ApiError::UnreadableHead,
    };
    let (answer, id) = (error.answer(), request_id::of(&HeaderMap::new()));
    let body = serde_json::to_vec(&ErrorBody { error: &answer.note().object, request_id: &id }).unwrap_or_default();
    let length = body.len();
    let lines = format!("content-type: application/json\r\ncontent-length: {length}\r\n{X_REQUEST_ID}: {id}\r\n");
    (lines, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_that_cannot_be_read_has_the_error_of_its_status() {
        let check = |status: StatusCode, code: &str, word: &str| {
            let (lines, body) = refused_head(status, 77);
            assert!(lines.contains(&format!("\r\ncontent-length: {}\r\nx-request-id: req_", body.len())), "{lines}");
            let error: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(error["error"]["code"], code, "{error}");
            assert!(error["error"]["message"].as_str().unwrap().contains(word), "{error}");
        };
        check(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "head_too_large", "at most 77 bytes and 100 headers");
        check(StatusCode::URI_TOO_LONG, "head_too_large", "77");
        check(StatusCode::BAD_REQUEST, "invalid_head", "HTTP/1.1");
    }
}
