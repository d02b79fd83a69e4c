//! Responses that are sent whole: they hold their memory until the client has taken them.
use axum::body::Bytes;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::flow::budget::Share;
use crate::flow::error::FlowError;

/// Responses that take up to this are rendered on the task's own thread; longer ones on a thread that may block.
const INLINE_BYTES: u64 = 64 << 10;

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

/// Runs `render` where it delays no other connection. The share holds what rendering takes.
///
/// # Errors
/// Those of `render`.
pub(crate) async fn rendered(
    share: Share,
    render: impl FnOnce(Share) -> Result<Response, FlowError> + Send + 'static,
) -> Result<Response, FlowError> {
    if share.bytes() <= INLINE_BYTES {
        return render(share);
    }
    let rendering = tokio::task::spawn_blocking(move || render(share));
    rendering.await.map_err(|source| FlowError::Task { task: "rendering a response", source })?
}

/// A JSON response.
///
/// # Errors
/// The value cannot be written.
pub(crate) fn json(value: &impl Serialize, mut share: Share) -> Result<Response, FlowError> {
    let text = serde_json::to_vec(value).map_err(FlowError::Serialize)?.into_boxed_slice();
    // It is there already, and the work is done.
    share.set(text.len());
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
        drop(json(&"x".repeat(5000), share()).unwrap());
        assert!(share().grow(1000).is_ok(), "everything was given back");
    }

    #[tokio::test]
    async fn regression_a_long_response_is_rendered_aside() {
        let budget = Budget::new(1 << 20);
        for (bytes, aside) in [(INLINE_BYTES, false), (INLINE_BYTES + 1, true)] {
            let mut share = budget.share(&"a".into());
            share.grow(bytes as usize).unwrap();
            let here = std::thread::current().id();
            let render = move |share| {
                assert_eq!(std::thread::current().id() != here, aside);
                json(&"x", share)
            };
            assert_eq!(rendered(share, render).await.unwrap().status(), 200);
        }
    }
}
