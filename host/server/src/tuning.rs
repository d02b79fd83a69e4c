//! What a reload changes for models that run.
use std::time::Duration;

use camshaft_core::message::Command;
use camshaft_core::pool::Watermarks;
use tokio::sync::watch;

use crate::cache_plan::CacheShare;
use crate::config::Live;

/// How the threads of models see the [`Tuning`] in force. The newest value is all that counts: it is there to be read
/// however busy its reader is, so that no change is lost or waits for room in a queue.
pub(crate) type Tuned = watch::Receiver<Tuning>;

/// What every model follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Bounds of each model's queue.
    pub(crate) watermarks: Watermarks,
    /// Of each worker's prefix cache.
    pub(crate) ram_bytes: u64,
    /// Of all of them.
    pub(crate) cache_bytes: u64,
    pub(crate) session_ttl: Duration,
}

impl Tuning {
    pub(crate) fn of(live: &Live, share: CacheShare) -> Self {
        Self {
            watermarks: live.queue.watermarks(),
            ram_bytes: share.of(&live.cache),
            cache_bytes: share.all(&live.cache),
            session_ttl: live.cache.session_ttl.0,
        }
    }

    pub(crate) fn cache_limits(&self) -> Command {
        Command::CacheLimits { ram_bytes: self.ram_bytes, session_ttl: self.session_ttl }
    }
}
