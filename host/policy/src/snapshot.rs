//! Whether the instances of a load of a policy begin from a snapshot, and why they do not.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwapOption, Guard};
use camshaft_core::policy::Hook;

use crate::bindings::HookPre;
use crate::code::CodeName;
use crate::runtime::Runtime;
use crate::store::GuestState;

/// After what passes, it is tried again when this is over.
const PAUSE: Duration = Duration::from_secs(60);

/// What instances begin from.
pub(crate) struct Snapshot {
    pub(crate) pre: HookPre<GuestState>,
    /// The plugin allowed several requests in one instance when it was configured.
    pub(crate) reusable: bool,
    /// In the process that has taken it.
    pub(crate) code: Option<Kept>,
}

/// The code of a snapshot, kept for other processes as long as they may ask for it.
pub(crate) struct Kept {
    pub(crate) name: CodeName,
    runtime: Arc<Runtime>,
}

impl Kept {
    pub(crate) fn new(runtime: &Arc<Runtime>, hook: Hook, component: &[u8]) -> Self {
        Self { name: runtime.code_name(hook, component), runtime: runtime.clone() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.runtime.forget(&self.name);
    }
}

/// The snapshot of one load of a policy.
#[derive(Default)]
pub(crate) struct Snapshots {
    taken: ArcSwapOption<Snapshot>,
    begun: AtomicBool,
    /// When it could not be taken last, for a reason that passes.
    paused: Mutex<Option<Instant>>,
    /// Why there is none, once that is known.
    none: OnceLock<String>,
    /// Nobody waits for it any more.
    stopping: Arc<AtomicBool>,
}

impl std::fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshots").field("begun", &self.begun).finish_non_exhaustive()
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        self.close();
    }
}

impl Snapshots {
    pub(crate) fn get(&self) -> Guard<Option<Arc<Snapshot>>> {
        self.taken.load()
    }

    /// Instances begin from this one from now on.
    pub(crate) fn put(&self, snapshot: Snapshot) {
        self.taken.store(Some(Arc::new(snapshot)));
    }

    /// Set when nobody waits for it any more.
    pub(crate) fn stopping(&self) -> Arc<AtomicBool> {
        self.stopping.clone()
    }

    /// Whether it is to be taken now: nobody has begun to.
    pub(crate) fn begin(&self) -> bool {
        if self.begun.load(Ordering::Relaxed) {
            return false;
        }
        let paused = *self.paused.lock().unwrap_or_else(PoisonError::into_inner);
        paused.is_none_or(|since| since.elapsed() >= PAUSE) && !self.begun.swap(true, Ordering::Relaxed)
    }

    /// It cannot be taken now, and is to be tried again later.
    pub(crate) fn pause(&self) {
        *self.paused.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        self.begun.store(false, Ordering::Relaxed);
    }

    /// Instances begin as those of other plugins from now on, for good. Whether they did not before.
    pub(crate) fn give_up(&self, why: String) -> bool {
        // The first reason is the true one.
        let _ = self.none.set(why);
        self.taken.swap(None).is_some()
    }

    /// Why there is none, where one was wanted.
    pub(crate) fn why_none(&self) -> Option<&str> {
        self.none.get().map(String::as_str)
    }

    /// Nobody needs new instances any more.
    pub(crate) fn close(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_taken_once_and_tried_again_when_the_pause_is_over() {
        let snapshots = Snapshots::default();
        assert!(snapshots.begin() && !snapshots.begin());
        snapshots.pause();
        assert!(!snapshots.begin(), "it has just failed");
        *snapshots.paused.lock().unwrap() = Instant::now().checked_sub(PAUSE);
        assert!(snapshots.begin() && !snapshots.begin());
    }
}
