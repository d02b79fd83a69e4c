//! What the workers can still take while the dispatches of one scheduling point are gone through.
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::ids::WorkerId;
use crate::policy::WorkerFacts;

/// The healthy workers with what is left of them.
#[derive(Debug)]
pub(super) struct FreeCapacity {
    workers: BTreeMap<WorkerId, WorkerFacts>,
}

impl FreeCapacity {
    pub(super) fn of(workers: impl Iterator<Item = WorkerFacts>) -> Self {
        let healthy = workers.filter(|facts| facts.healthy);
        Self { workers: healthy.map(|facts| (facts.worker, facts)).collect() }
    }

    /// The healthy workers in order.
    pub(super) fn workers(&self) -> impl ExactSizeIterator<Item = WorkerId> + '_ {
        self.workers.keys().copied()
    }

    /// `None` if the worker is unknown or down.
    pub(super) fn left(&self, worker: WorkerId) -> Option<&WorkerFacts> {
        self.workers.get(&worker)
    }

    pub(super) fn fits(&self, worker: WorkerId, need: u32) -> bool {
        self.workers.get(&worker).is_some_and(|facts| fits(facts, need))
    }

    /// Of the workers that fit, the one with the fewest active sequences, then the most free KV.
    pub(super) fn least_busy(&self, need: u32) -> Option<WorkerId> {
        let fitting = self.workers.values().filter(|facts| fits(facts, need));
        fitting.min_by_key(|facts| (facts.running_sequences, Reverse(facts.kv_free))).map(|facts| facts.worker)
    }

    /// A worker that fits takes a request.
    pub(super) fn take(&mut self, worker: WorkerId, need: u32) {
        if let Some(facts) = self.workers.get_mut(&worker) {
            facts.free_sequences -= 1;
            facts.running_sequences += 1;
            facts.kv_free -= need;
        }
    }
}

fn fits(facts: &WorkerFacts, need: u32) -> bool {
    facts.free_sequences > 0 && facts.kv_free >= need
}
