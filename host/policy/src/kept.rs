//! Instances between their calls: those of plugins that allow several requests in one instance, one after another.
use std::sync::{Mutex, MutexGuard, PoisonError};

use wasmtime::Store;

use crate::bindings::HookGuest;
use crate::store::GuestState;

/// Instances of one policy that wait for a call. Each keeps the memory that its guest took.
const IDLE: usize = 32;
/// Calls of one instance, so that a guest that forgets to free a little in each does not reach its bound.
const CALLS: u32 = 10_000;

/// A configured instance.
pub(crate) struct Instance {
    pub(crate) store: Store<GuestState>,
    pub(crate) guest: HookGuest,
    calls: u32,
}

impl Instance {
    pub(crate) fn new(store: Store<GuestState>, guest: HookGuest) -> Self {
        Self { store, guest, calls: 0 }
    }
}

/// The idle instances of one load of a policy, the last used last.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    instances: Vec<Instance>,
    is_closed: bool,
}

impl std::fmt::Debug for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

impl Kept {
    /// One that was used before. The last one that was, whose memory is the likeliest to be in the CPU's caches.
    pub(crate) fn take(&self) -> Option<Instance> {
        self.idle().instances.pop()
    }

    /// Keeps an instance that has answered as it should, if its plugin allows that and there is room.
    pub(crate) fn put(&self, mut instance: Instance) {
        instance.calls += 1;
        if instance.calls >= CALLS || !instance.store.data().may_be_kept() {
            return;
        }
        instance.store.data_mut().forget_last_words();
        let mut idle = self.idle();
        if !idle.is_closed && idle.instances.len() < IDLE {
            idle.instances.push(instance);
        }
    }

    /// Gives all of them back, and keeps none any more: a newer load has taken the place of this one, which streams may hold
    /// for long.
    pub(crate) fn close(&self) {
        self.idle().is_closed = true;
        self.clear();
    }

    /// Gives all of them back.
    pub(crate) fn clear(&self) {
        let instances = std::mem::take(&mut self.idle().instances);
        // Outside of the lock: it takes a while.
        drop(instances);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.idle().instances.len()
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
