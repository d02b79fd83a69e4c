//! Responses that are rendered whole: they hold their memory until the connection has taken them.
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::flow::budget::Share;
use crate::flow::error::FlowError;

/// Responses that take up to this are rendered on the task's own thread; longer ones on a thread that may block.
const INLINE_BYTES: u64 = 64 << 10;

/// A longer response goes piece by piece. What a connection has of a response counts with the connection, which counts more
/// than this for the head of each request in flight.
pub(crate) const PIECE_BYTES: usize = 16 << 10;
/// A client takes at least a piece in this time, or, while the memory for requests is tight, in the shorter one.
const UNTAKEN: Duration = Duration::from_secs(60);
const TIGHT_UNTAKEN: Duration = Duration::from_secs(5);

/// What is to be sent, and what it takes of the memory for all.
#[derive(Debug)]
struct Kept {
    source: Source,
    share: Share,
}

enum Source {
    Text(Box<[u8]>),
    /// Written piece by piece, as the client takes it.
    Pieces(Box<dyn Iterator<Item = Vec<u8>> + Send>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.len()),
            Self::Pieces(_) => f.write_str("Pieces"),
        }
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
pub(crate) fn json(value: &impl Serialize, share: Share) -> Result<Response, FlowError> {
    let text = serde_json::to_vec(value).map_err(FlowError::Serialize)?;
    Ok(([(CONTENT_TYPE, HeaderValue::from_static("application/json"))], body(text, share)).into_response())
}

/// The body of a response. What is left of the share holds it until the connection has taken it.
pub(crate) fn body(text: Vec<u8>, mut share: Share) -> Body {
    if text.len() <= PIECE_BYTES {
        return Body::from(text);
    }
    // It is there already, and the work is done.
    share.set(text.len());
    let bytes = text.len();
    Body::new(LongBody::new(bytes, Kept { source: Source::Text(text.into()), share }))
}

/// The body of a response of `bytes` that is never whole: each of `pieces`, which has about [`PIECE_BYTES`], is written when the
/// client takes it. Until then `held` bytes are kept, which the share counts.
pub(crate) fn pieces(
    bytes: usize,
    held: usize,
    pieces: impl Iterator<Item = Vec<u8>> + Send + 'static,
    mut share: Share,
) -> Body {
    share.set(held);
    Body::new(LongBody::new(bytes, Kept { source: Source::Pieces(Box::new(pieces)), share }))
}

/// A long response, piece by piece. A client that takes none for [`UNTAKEN`] has lost it: whatever else it does on the same
/// connection, others need the memory.
#[derive(Debug)]
struct LongBody {
    held: Arc<Mutex<Held>>,
    watch: JoinHandle<()>,
}

#[derive(Debug)]
struct Held {
    /// `None` once the client has lost it.
    kept: Option<Kept>,
    sent: usize,
    bytes: usize,
    moved: Instant,
}

/// Why the rest of a response does not come.
#[derive(Debug, thiserror::Error)]
#[error("the client took nothing of the response for too long")]
struct NotTaken;

impl LongBody {
    fn new(bytes: usize, kept: Kept) -> Self {
        let held = Arc::new(Mutex::new(Held { kept: Some(kept), sent: 0, bytes, moved: Instant::now() }));
        let watched = Arc::downgrade(&held);
        let watch = tokio::spawn(async move {
            while let Some(until) = watched.upgrade().and_then(|held| lock(&held).drop_stalled()) {
                sleep_until(until).await;
            }
        });
        Self { held, watch }
    }
}

impl Held {
    /// Gives the rest up if none of it was taken for long; returns when to look again.
    fn drop_stalled(&mut self) -> Option<Instant> {
        let until = self.moved + if self.kept.as_ref()?.share.is_tight() { TIGHT_UNTAKEN } else { UNTAKEN };
        if until <= Instant::now() {
            self.kept = None;
        }
        // It may become tight meanwhile.
        self.kept.as_ref().map(|_| until.min(Instant::now() + TIGHT_UNTAKEN))
    }

    /// A copy: what is on its way to the client must not keep the whole.
    fn piece(&mut self) -> Option<Result<Bytes, NotTaken>> {
        if self.sent == self.bytes {
            return None;
        }
        let Some(kept) = &mut self.kept else { return Some(Err(NotTaken)) };
        let piece = match &mut kept.source {
            Source::Text(text) => Bytes::copy_from_slice(&text[self.sent..self.bytes.min(self.sent + PIECE_BYTES)]),
            Source::Pieces(pieces) => pieces.next().map(Bytes::from).unwrap_or_default(),
        };
        if piece.is_empty() {
            return Some(Err(NotTaken));
        }
        self.sent += piece.len();
        self.moved = Instant::now();
        if self.sent == self.bytes {
            self.kept = None;
        }
        Some(Ok(piece))
    }
}

fn lock(held: &Mutex<Held>) -> MutexGuard<'_, Held> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl http_body::Body for LongBody {
    type Data = Bytes;
    type Error = NotTaken;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, NotTaken>>> {
        Poll::Ready(lock(&self.held).piece().map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        let held = lock(&self.held);
        held.sent == held.bytes
    }

    fn size_hint(&self) -> SizeHint {
        let held = lock(&self.held);
        SizeHint::with_exact((held.bytes - held.sent) as u64)
    }
}

impl Drop for LongBody {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::budget::Budget;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn regression_a_response_holds_its_memory_until_the_connection_has_it() {
        let budget = Budget::new(4 * PIECE_BYTES as u64);
        let share = || budget.share(&"a".into());
        let room = || share().grow(2 * PIECE_BYTES).is_ok();
        let response = json(&"x".repeat(PIECE_BYTES), share()).unwrap();
        assert_eq!(response.headers()["content-type"], "application/json");
        assert!(!room(), "nobody has taken it");
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((bytes.len(), room()), (PIECE_BYTES + 2, true));
        drop(json(&"x".repeat(5 * PIECE_BYTES), share()).unwrap());
        assert!(room(), "everything was given back");
        let _short = json(&"x".repeat(PIECE_BYTES - 2), share()).unwrap();
        assert!(room(), "the head of its request counts more");
    }

    #[tokio::test(start_paused = true)]
    async fn regression_a_long_response_that_is_not_taken_gives_its_memory_back() {
        let budget = Budget::new(4 << 20);
        let room = || budget.share(&"a".into()).grow(2 << 20).is_ok();
        let long = || json(&"x".repeat(5 * PIECE_BYTES), budget.share(&"a".into())).unwrap().into_body();
        let mut slow = long();
        assert_eq!(http_body::Body::size_hint(&slow).exact(), Some(5 * PIECE_BYTES as u64 + 2));
        for taken in 1..=5 {
            tokio::time::sleep(UNTAKEN - Duration::from_secs(1)).await;
            let piece = slow.frame().await.unwrap().unwrap().into_data().unwrap();
            assert_eq!((piece.len(), room()), (PIECE_BYTES, false), "piece {taken}");
        }
        assert_eq!(slow.frame().await.unwrap().unwrap().into_data().unwrap(), "x\"");
        assert!(slow.frame().await.is_none() && room(), "what is taken holds nothing");
        let mut stalled = long();
        let piece = stalled.frame().await.unwrap().unwrap();
        tokio::time::sleep(UNTAKEN + Duration::from_secs(1)).await;
        assert!(room(), "although its client still has the stream and a piece of it");
        assert!(stalled.frame().await.unwrap().is_err());
        drop(piece);
        // More than half of what the tenant could take is taken.
        let mut much = budget.share(&"a".into());
        much.grow(3 << 19).unwrap();
        let mut stalled = long();
        tokio::time::sleep(TIGHT_UNTAKEN * 2).await;
        assert!(stalled.frame().await.unwrap().is_err(), "while memory is tight it goes sooner");
        drop(much);
        let whole = long().collect().await.unwrap().to_bytes();
        assert!(whole.len() == 5 * PIECE_BYTES + 2 && whole[1..=5 * PIECE_BYTES].iter().all(|byte| *byte == b'x'));
    }

    #[tokio::test]
    async fn responses_past_the_size_of_a_piece_go_in_pieces() {
        let budget = Budget::new(1 << 20);
        for (bytes, pieces) in [(PIECE_BYTES, 1), (PIECE_BYTES + 1, 2)] {
            // With its quotes.
            let response = json(&"x".repeat(bytes - 2), budget.share(&"a".into())).unwrap();
            let mut body = response.into_body();
            let mut sizes = Vec::new();
            while let Some(frame) = body.frame().await {
                sizes.push(frame.unwrap().into_data().unwrap().len());
            }
            assert_eq!((sizes.len(), sizes.iter().sum::<usize>()), (pieces, bytes));
        }
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
