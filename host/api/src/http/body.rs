//! Reading a request's body: JSON only, bounded in bytes and in time.
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::BodyExt;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::wire::error::ApiError;

/// Longest silence within a body; past it 408.
pub(crate) const STALL: Duration = Duration::from_secs(30);
/// Longest time for a whole body, however steadily it trickles; past it 408.
const TOTAL: Duration = Duration::from_secs(120);

/// Reads the body as text. `limit` is in bytes.
///
/// # Errors
/// 415 for what is not JSON, 413 past the limit, 408 for a client that is too slow, 400 for what is not UTF-8.
pub(crate) async fn read(request: Request, limit: usize) -> Result<String, ApiError> {
    check_type(request.headers())?;
    let announced = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    if announced.and_then(|length| length.parse::<u64>().ok()).is_some_and(|length| length > limit as u64) {
        return Err(ApiError::BodyTooLarge { limit });
    }
    let bytes = timeout(TOTAL, collect(request.into_body(), limit)).await.map_err(|_| ApiError::BodyTimeout)??;
    String::from_utf8(bytes).map_err(|error| {
        invalid_json(format!("the request body is not UTF-8 (at byte {})", error.utf8_error().valid_up_to()))
    })
}

/// Reads a body's text as one JSON object. Nesting is bounded by the parser (128 levels).
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_str(text) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(_) => Err(invalid_json("the request body must be a JSON object".to_owned())),
        Err(error) => Err(invalid_json(format!("the request body is not valid JSON: {error}"))),
    }
}

async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    while let Some(frame) = timeout(STALL, body.frame()).await.map_err(|_| ApiError::BodyTimeout)? {
        let Ok(data) = frame.map_err(|_| ApiError::BodyBroken)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(ApiError::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

fn check_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let encoded = headers.get(header::CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity");
    if encoded {
        return Err(ApiError::MediaType("compressed request bodies are not accepted"));
    }
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    match essence.eq_ignore_ascii_case("application/json") {
        true => Ok(()),
        false => Err(ApiError::MediaType("the content type must be application/json")),
    }
}

fn invalid_json(message: String) -> ApiError {
    ApiError::Invalid { message, param: None, code: Some("invalid_json") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_where_json_is_broken_and_bounds_its_depth() {
        let message = |text: &str| parse(text).unwrap_err().to_string();
        assert!(message("{\"a\": 1,\n \"b\": }").ends_with("line 2 column 7"), "{}", message("{\"a\": 1,\n \"b\": }"));
        assert_eq!(message("[1]"), "the request body must be a JSON object");
        assert!(message(&"[".repeat(100_000)).contains("recursion limit"));
        let lone_surrogate = parse(r#"{"a": "\ud800"}"#).unwrap_err().answer().body.error;
        assert_eq!(lone_surrogate.code.as_deref(), Some("invalid_json"));
        assert!(parse(&format!("{{\"a\": {}{}}}", "[".repeat(120), "]".repeat(120))).is_ok());
    }
}
