//! What the connections of a listener hold in memory besides the bodies of requests: the heads of requests in flight, and
//! the parts of responses that are not written yet.
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// What a request in flight takes besides its body: by itself, and for each header; and how often its head is held.
const REQUEST_BYTES: usize = 20 << 10;
const HEADER_BYTES: usize = 400;
const HEAD_COPIES: usize = 4;
/// What one connection may hold while all together hold more than they may, as a part of that.
const SHARE: usize = 1024;
/// Those on which somebody was let in are told apart from strangers until this part more is held.
const MARGIN: usize = 4;
/// What part of a response takes besides its bytes.
const PIECE_BYTES: usize = 512;

/// What a request with this many headers, and bytes of head, takes.
pub(crate) fn of_request(headers: usize, bytes: usize) -> usize {
    REQUEST_BYTES + headers * HEADER_BYTES + bytes * HEAD_COPIES
}

/// What part of a response takes until it is written.
pub(crate) fn of_piece(bytes: usize) -> usize {
    PIECE_BYTES + bytes
}

/// Bytes that all connections of a listener hold, and how many they may.
#[derive(Debug)]
pub(crate) struct Held {
    limit: usize,
    bytes: AtomicUsize,
    /// Told when they are too many.
    exceeded: Notify,
}

impl Held {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, bytes: AtomicUsize::new(0), exceeded: Notify::new() }
    }

    pub(crate) fn add(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limit {
            self.exceeded.notify_one();
        }
    }

    pub(crate) fn remove(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether a connection that holds `own` may hold more. Cutting connections takes a moment, in which a thousand of them
    /// could begin many requests each.
    pub(crate) fn admits(&self, own: usize, is_strange: bool) -> bool {
        let limit = if is_strange { self.limit } else { self.limit.saturating_add(self.limit / MARGIN) };
        self.bytes() <= limit || own <= self.limit / SHARE
    }

    /// Waits until more is held than may be.
    pub(crate) async fn exceeded(&self) {
        while self.bytes() <= self.limit {
            self.exceeded.notified().await;
        }
    }
}

impl Default for Held {
    /// Without a limit.
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}
