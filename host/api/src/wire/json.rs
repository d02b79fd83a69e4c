//! Parses a body as one JSON object.
use serde_json::{Map, Value};

use crate::wire::error::RequestError;

/// Parses an object. The parser bounds its nesting (128 levels).
///
/// # Errors
/// 400 that says where the text is not JSON.
pub(crate) fn parse(text: &str) -> Result<Map<String, Value>, RequestError> {
    match serde_json::from_str(text).map_err(RequestError::Json)? {
        Value::Object(map) => Ok(map),
        _ => Err(RequestError::NotAnObject),
    }
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
        let lone_surrogate = parse(r#"{"a": "\ud800"}"#).unwrap_err().answer().body().error;
        assert_eq!(lone_surrogate.code.as_deref(), Some("invalid_json"));
        assert!(parse(&format!("{{\"a\": {}{}}}", "[".repeat(120), "]".repeat(120))).is_ok());
    }
}
