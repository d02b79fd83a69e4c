//! A generation of policies as one request sees it: where new versions are on trial, with those that it was assigned.
use std::fmt;
use std::sync::Arc;

use camshaft_core::policy::Hook;

use crate::set::{Chain, LoadedSet, Picks};

/// One generation, with the new versions that serve in it.
#[derive(Clone)]
pub(crate) struct View {
    pub(crate) set: Arc<LoadedSet>,
    /// In the order of `Hook::ALL`.
    pub(crate) picks: [Picks; Hook::ALL.len()],
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("set", &self.set).field("picks", &self.picks).finish()
    }
}

impl View {
    /// What served before, wherever something is on trial.
    pub(crate) fn stable(set: Arc<LoadedSet>) -> Self {
        Self { set, picks: Default::default() }
    }

    /// The same with these new versions of one hook.
    pub(crate) fn with(mut self, hook: Hook, picks: Picks) -> Self {
        self.picks[hook as usize] = picks;
        self
    }

    /// A new version whose breaker has opened since the request was assigned it would refuse each call: the one before serves.
    pub(crate) fn chain(&self, hook: Hook) -> &Chain {
        self.set.variant(hook, self.set.still_serving(hook, self.picks[hook as usize]))
    }
}
