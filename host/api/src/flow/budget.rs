//! The memory of requests in flight: their bodies, what is parsed from them, and whole responses.
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use camshaft_core::ids::TenantId;
use http_body::{Frame, SizeHint};
use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use crate::flow::error::FlowError;

/// What a token of a prompt takes, here and with the worker.
pub(crate) const TOKEN_BYTES: usize = 8;
/// What a candidate of a token takes: as numbers, and as text in the response.
const CANDIDATE_BYTES: usize = 160;
/// One request may take half of the budget: with it, its tenant leaves as much.
const REQUEST_PART: u64 = 2;

/// What a text takes until its response is sent: as it is, and in the response.
pub(crate) fn text_bytes(text: usize) -> usize {
    3 * text
}

/// Upper bound of what the log-probabilities of `tokens` tokens take until their response is sent.
pub(crate) fn logprob_bytes(tokens: usize, alternatives: u32) -> usize {
    tokens.saturating_mul((alternatives as usize + 2) * CANDIDATE_BYTES)
}

/// What all requests may take together.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: AtomicU64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    tenants: HashMap<TenantId, u64>,
}

/// There is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error("the server holds as many and as large requests as it may (limits.bodies)")]
    Now,
    /// The request alone is over what a tenant may ever take.
    #[error(
        "this request with its response may take {bytes} bytes of memory, and one request may take {most} (half of \
         limits.bodies): ask for fewer inputs, choices, tokens or alternatives at once"
    )]
    Ever { bytes: u64, most: u64 },
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(bytes), taken: Mutex::default() })
    }

    /// Sets the budget. Requests that hold more now keep it.
    pub(crate) fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// A request's share, empty at first.
    pub(crate) fn share(self: &Arc<Self>, tenant: &TenantId) -> Share {
        Share { budget: self.clone(), tenant: tenant.clone(), bytes: 0 }
    }

    /// Whether more than three quarters are taken, which one tenant alone cannot do by what it sends.
    pub(crate) fn is_pressed(&self) -> bool {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).bytes > self.pressure()
    }

    /// Whether it is pressed, or the tenant holds more than half of what it leaves free.
    fn is_tight(&self, tenant: &TenantId) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.tenants.get(tenant).copied().unwrap_or(0);
        let free = self.bytes.load(Ordering::Relaxed).saturating_sub(taken.bytes);
        taken.bytes > self.pressure() || own > free / 2
    }

    fn pressure(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) / 4 * 3
    }
}

/// What one request takes. Dropping it gives all of it back.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    tenant: TenantId,
    bytes: u64,
}

impl Share {
    /// Takes more. A tenant may hold as much as it leaves free: the first one half, the next a quarter, and so on, so that some
    /// is left for whoever holds nothing, and equal parts where all take a little at a time (Choudhury and Hahne, "Dynamic
    /// Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
    ///
    /// # Errors
    /// There is no room for the tenant. The share stays as it is.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let (bytes, all) = (bytes as u64, self.budget.bytes.load(Ordering::Relaxed));
        let (alone, most) = (self.bytes.saturating_add(bytes), all / REQUEST_PART);
        if alone > most {
            return Err(NoRoom::Ever { bytes: alone, most });
        }
        let mut taken = self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.tenants.get(&self.tenant).copied().unwrap_or(0);
        let (total, own) = (taken.bytes.saturating_add(bytes), own.saturating_add(bytes));
        if own > all.saturating_sub(total) {
            return Err(NoRoom::Now);
        }
        taken.bytes = total;
        taken.tenants.insert(self.tenant.clone(), own);
        self.bytes = alone;
        Ok(())
    }

    /// Takes more, whether or not there is room, for work that is too far to refuse: the text of generations that run.
    /// Others are refused sooner then.
    pub(crate) fn add(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut taken = self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes += bytes as u64;
        *taken.tenants.entry(self.tenant.clone()).or_default() += bytes as u64;
        self.bytes += bytes as u64;
    }

    /// Takes as much as this and no more, whether or not there is room.
    pub(crate) fn set(&mut self, bytes: usize) {
        match (bytes as u64).checked_sub(self.bytes) {
            Some(more) => self.add(more as usize),
            None => self.give_back(self.bytes - bytes as u64),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes as much as this and no more.
    ///
    /// # Errors
    /// As [`Share::grow`].
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), NoRoom> {
        match (bytes as u64).checked_sub(self.bytes) {
            Some(more) => self.grow(usize::try_from(more).unwrap_or(usize::MAX)),
            None => {
                self.give_back(self.bytes - bytes as u64);
                Ok(())
            }
        }
    }

    /// Whether others may soon find no room, so that nobody should hold much for long.
    pub(crate) fn is_tight(&self) -> bool {
        self.budget.is_tight(&self.tenant)
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        let mut taken = self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes -= bytes;
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= bytes;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// Responses that take up to this are rendered on the task's own thread; longer ones on a thread that may block.
const INLINE_BYTES: u64 = 64 << 10;

/// A longer response goes piece by piece, so that a connection has little of what its client does not take.
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
mod budget_tests {
    use super::*;

    #[test]
    fn three_quarters_are_no_pressure_and_a_byte_more_is() {
        let budget = Budget::new(1024);
        let mut shares: Vec<Share> = ["a", "b", "c"].map(|name| budget.share(&TenantId::from(name))).into();
        assert!(shares[0].grow(512).is_ok() && shares[0].grow(1).is_err(), "all that one tenant can take");
        assert!(shares[1].grow(256).is_ok() && !budget.is_pressed());
        assert!(shares[2].grow(1).is_ok() && budget.is_pressed());
        shares.pop();
        assert!(!budget.is_pressed());
    }

    #[test]
    fn regression_all_requests_together_have_a_bound() {
        let budget = Budget::new(100);
        let [mut first, mut second, mut third] = ["a", "b", "c"].map(|tenant| budget.share(&tenant.into()));
        first.grow(50).unwrap();
        assert_eq!(second.grow(26), Err(NoRoom::Now));
        second.grow(25).unwrap();
        assert_eq!(third.grow(13), Err(NoRoom::Now));
        third.grow(12).unwrap();
        second.resize(24).unwrap();
        third.grow(1).unwrap();
        assert_eq!(third.grow(1), Err(NoRoom::Now));
        drop(first);
        third.grow(24).unwrap();
        budget.set(10);
        assert_eq!(second.resize(50), Err(NoRoom::Ever { bytes: 50, most: 5 }));
        second.resize(1).unwrap();
        drop((second, third));
        assert!(budget.taken.lock().unwrap().tenants.is_empty());
        assert_eq!(budget.taken.lock().unwrap().bytes, 0);
    }

    #[test]
    fn regression_what_will_never_fit_says_so() {
        let budget = Budget::new(100);
        let mut share = budget.share(&"a".into());
        share.grow(20).unwrap();
        assert_eq!(share.grow(31), Err(NoRoom::Ever { bytes: 51, most: 50 }));
        share.grow(30).unwrap();
        assert_eq!(share.grow(usize::MAX), Err(NoRoom::Ever { bytes: u64::MAX, most: 50 }));
    }

    #[test]
    fn what_must_be_held_counts_but_is_not_refused() {
        let budget = Budget::new(100);
        let [mut first, mut second] = ["a", "b"].map(|tenant| budget.share(&tenant.into()));
        first.add(90);
        assert_eq!((first.bytes(), second.grow(6)), (90, Err(NoRoom::Now)));
        first.set(195);
        assert_eq!((first.bytes(), second.grow(1)), (195, Err(NoRoom::Now)));
        first.set(40);
        second.grow(30).unwrap();
        drop((first, second));
        assert!(budget.taken.lock().unwrap().tenants.is_empty());
        assert_eq!(budget.taken.lock().unwrap().bytes, 0);
    }

    #[test]
    fn a_tenant_leaves_room_for_others() {
        let budget = Budget::new(100);
        let mut greedy = [budget.share(&"a".into()), budget.share(&"a".into())];
        greedy[0].grow(33).unwrap();
        assert!(!greedy[0].is_tight());
        greedy[1].grow(1).unwrap();
        assert!(greedy[0].is_tight(), "of its own part");
        assert!(!budget.share(&"b".into()).is_tight());
        assert_eq!(greedy[1].grow(17), Err(NoRoom::Now));
        greedy[1].grow(16).unwrap();
        let mut polite = [budget.share(&"b".into()), budget.share(&"c".into())];
        polite[0].grow(25).unwrap();
        assert!(!budget.share(&"d".into()).is_tight());
        polite[1].grow(1).unwrap();
        assert!(budget.share(&"d".into()).is_tight(), "of all");
    }

    #[test]
    fn regression_a_few_tenants_do_not_take_all() {
        let budget = Budget::new(1 << 20);
        let mut greedy: Vec<Share> = Vec::new();
        for tenant in ["a", "b", "c", "d", "e"] {
            let mut share = budget.share(&tenant.into());
            while share.grow(64).is_ok() {}
            greedy.push(share);
        }
        // A 64th of all: half of what five leave free.
        let mut honest = budget.share(&"f".into());
        assert_eq!(honest.grow((16 << 10) + 64), Err(NoRoom::Now));
        honest.grow(16 << 10).unwrap();
    }
}

#[cfg(test)]
mod kept_tests {
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
