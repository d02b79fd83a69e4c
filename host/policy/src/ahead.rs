//! Instances made ahead of the calls that need them, where making one takes long: those of interpreters.
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::kept::Instance;
use crate::pace::SLOW;

/// Instances of one version that are ready or being made.
const READY: usize = 4;
/// Instances whose making is timed, to find out whether it takes long.
const TIMED: u32 = 8;
/// So many of them are to take long: one of them does on a machine that is busy.
const TIMED_SLOW: u32 = 4;

/// The right to have one more instance ready: of each hook's instances, few are.
pub(crate) type Place = OwnedSemaphorePermit;

/// The instances of one version that are ready.
pub(crate) struct Ahead {
    state: Mutex<State>,
    timed: AtomicU32,
    timed_slow: AtomicU32,
    /// Whether making one takes long, and none has failed or noted what may be old when it is used.
    wanted: AtomicBool,
    /// Of all versions of the hook.
    places: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    ready: Vec<(Instance, Place)>,
    coming: usize,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}

impl Ahead {
    pub(crate) fn new(places: Arc<Semaphore>) -> Self {
        let (timed, timed_slow, wanted) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        Self { state: Mutex::default(), timed, timed_slow, wanted, places }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is ready.
    pub(crate) fn take(&self) -> Option<Instance> {
        if !self.is_wanted() {
            return None;
        }
        self.state().ready.pop().map(|(instance, _)| instance)
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// Whether the next making is to be timed.
    pub(crate) fn is_timed(&self) -> bool {
        self.timed.load(Ordering::Relaxed) < TIMED
    }

    /// Making one took so much CPU time.
    pub(crate) fn note(&self, took: Duration) {
        self.timed.fetch_add(1, Ordering::Relaxed);
        if took > SLOW && self.timed_slow.fetch_add(1, Ordering::Relaxed) + 1 == TIMED_SLOW {
            self.timed.store(TIMED, Ordering::Relaxed);
            self.wanted.store(true, Ordering::Relaxed);
        }
    }

    /// The right to make one more. Whoever has it calls `put`.
    pub(crate) fn claim(&self) -> Option<Place> {
        if !self.is_wanted() {
            return None;
        }
        let mut state = self.state();
        if state.ready.len() + state.coming >= READY {
            return None;
        }
        let place = self.places.clone().try_acquire_owned().ok()?;
        state.coming += 1;
        Some(place)
    }

    /// One was made, or could not be.
    pub(crate) fn put(&self, made: Made, place: Place) {
        let mut state = self.state();
        state.coming -= 1;
        match made {
            Made::Ready(instance) if self.is_wanted() => state.ready.push((*instance, place)),
            // It was begun another way than instances are made now.
            Made::Ready(_) => {}
            Made::NotNow => {}
            // Each call makes its own, and tells what is wrong.
            Made::Never => {
                self.wanted.store(false, Ordering::Relaxed);
                state.ready.clear();
            }
        }
    }

    /// Instances are made another way from now on: those that are ready are given up, and whether making one takes long is found
    /// out anew.
    pub(crate) fn begin_anew(&self) {
        self.wanted.store(false, Ordering::Relaxed);
        self.timed_slow.store(0, Ordering::Relaxed);
        self.timed.store(0, Ordering::Relaxed);
        let given_up = std::mem::take(&mut self.state().ready);
        // Outside of the lock: it takes a while.
        drop(given_up);
    }

    /// Nobody makes what was claimed.
    pub(crate) fn give_up(&self) {
        self.state().coming -= 1;
    }

    #[cfg(test)]
    pub(crate) fn ready(&self) -> usize {
        self.state().ready.len()
    }
}

/// What became of the making of an instance.
pub(crate) enum Made {
    Ready(Box<Instance>),
    /// There are too many instances.
    NotNow,
    /// It faulted, or noted something that may be old when the instance is used.
    Never,
}
