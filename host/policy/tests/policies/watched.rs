//! A scheduler hook that remembers faults and can be swapped.
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::{Fault, NamedScheduler, SchedulerHook};

/// A scheduler hook, and the faults that it was told of.
#[derive(Debug)]
pub(crate) struct Watched {
    hook: Arc<dyn SchedulerHook>,
    faults: Mutex<Vec<String>>,
    /// How often the scheduler was swapped for a fresh instance.
    swaps: AtomicU64,
}

impl Watched {
    pub(crate) fn new(hook: Arc<dyn SchedulerHook>) -> Self {
        Self { hook, faults: Mutex::default(), swaps: AtomicU64::new(0) }
    }

    pub(crate) fn faults(&self) -> Vec<String> {
        self.faults.lock().unwrap().clone()
    }

    /// Another generation, with a fresh instance of the same scheduler.
    pub(crate) fn swap(&self) {
        self.swaps.fetch_add(1, Ordering::Relaxed);
    }
}

impl SchedulerHook for Watched {
    fn generation(&self, now: Duration) -> Generation {
        Generation(self.hook.generation(now).0 + self.swaps.load(Ordering::Relaxed))
    }

    fn open(&self, now: Duration) -> Result<Option<NamedScheduler>, Fault> {
        self.hook.open(now)
    }

    fn refused(&self, fault: &Fault) {
        self.faults.lock().unwrap().push(fault.to_string());
        self.hook.refused(fault);
    }

    fn replaced(&self, fault: &Fault) {
        self.faults.lock().unwrap().push(fault.to_string());
        self.hook.replaced(fault);
    }

    fn returned(&self, policy: Option<&PolicyName>) {
        self.hook.returned(policy);
    }
}
