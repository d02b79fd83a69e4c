//! Responses that are sent whole: they hold their memory until the client has taken them.
use axum::body::Bytes;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;

/// Text, and what it takes of the memory for all.
struct Kept {
    text: Box<[u8]>,
    _share: Share,
}

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.text
    }
}

/// A JSON response.
///
/// # Errors
/// The value cannot be written, or there is no room for its text.
pub(crate) fn json(value: &impl Serialize, mut share: Share) -> Result<Response, FlowError> {
    let text = serde_json::to_vec(value).map_err(FlowError::Serialize)?.into_boxed_slice();
    share.resize(text.len())?;
    let body = Bytes::from_owner(Kept { text, _share: share });
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::budget::Budget;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn regression_a_response_holds_its_memory_until_it_is_taken() {
        let budget = Budget::new(2000);
        let share = || budget.share(&"a".into());
        let response = json(&"x".repeat(500), share()).unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(bytes.len(), 502);
        assert!(share().grow(600).is_err(), "it is on its way");
        drop(bytes);
        share().grow(1000).unwrap();
        assert!(json(&"x".repeat(5000), share()).is_err());
    }
}
