//! Whom a document asks before a new version takes the place of the last good one.
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::version::Version;

/// Whether a policy takes this version of its document of this name, and why not. Called on a thread that reads documents.
pub(crate) type Accepts = dyn Fn(&str, &Arc<Version>) -> Result<(), String> + Send + Sync;

/// One load of a policy, as its documents know it. They ask it for as long as it is in force.
pub(crate) struct Judge(Mutex<Option<Arc<Accepts>>>);

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judge").finish_non_exhaustive()
    }
}

impl Judge {
    pub(crate) fn new(accepts: Arc<Accepts>) -> Self {
        Self(Mutex::new(Some(accepts)))
    }

    /// It is asked no more.
    pub(crate) fn dismiss(&self) {
        self.accepts().take();
    }

    fn accepts(&self) -> MutexGuard<'_, Option<Arc<Accepts>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Those that a document asks.
#[derive(Default)]
pub(super) struct Judges(Mutex<Vec<Weak<Accepts>>>);

impl fmt::Debug for Judges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Judges").finish_non_exhaustive()
    }
}

impl Judges {
    pub(super) fn add(&self, judge: &Judge) {
        let mut judges = self.judges();
        judges.retain(|judge| judge.strong_count() > 0);
        judges.extend(judge.accepts().as_ref().map(Arc::downgrade));
    }

    /// # Errors
    /// One of them does not take it. Says why.
    pub(super) fn ask(&self, name: &str, version: &Arc<Version>) -> Result<(), String> {
        let judges = self.judges().clone();
        judges.iter().filter_map(Weak::upgrade).try_for_each(|accepts| accepts(name, version))
    }

    fn judges(&self) -> MutexGuard<'_, Vec<Weak<Accepts>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
