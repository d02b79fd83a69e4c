//! The request id of every response: the client's, if it sent an acceptable one.
use axum::http::{HeaderMap, HeaderName};

use crate::wire::stamp;

pub(crate) const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look for it.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("request-id");
const MAX_CHARS: usize = 128;

/// The client's id, or a fresh one.
pub(crate) fn of(headers: &HeaderMap) -> String {
    let sent = headers.get(X_REQUEST_ID).and_then(|value| value.to_str().ok());
    match sent.filter(|id| is_sane(id)) {
        Some(id) => id.to_owned(),
        None => stamp::id("req_"),
    }
}

/// Whether an id is safe to repeat in headers and logs.
fn is_sane(id: &str) -> bool {
    (1..=MAX_CHARS).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_a_sane_id_and_replaces_any_other() {
        let check = |id: &str, kept: bool| {
            let headers = HeaderMap::from_iter([(X_REQUEST_ID, id.parse().unwrap())]);
            assert_eq!(of(&headers) == id, kept, "{id}");
        };
        check("A-1_b.c", true);
        check(&"x".repeat(128), true);
        check(&"x".repeat(129), false);
        check("", false);
        check("a b", false);
        check("a\"b", false);
        assert_ne!(of(&HeaderMap::new()), of(&HeaderMap::new()));
    }
}
