//! What the workers can still take while the dispatches of one scheduling point are gone through.
use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::ids::WorkerId;
use crate::policy::WorkerFacts;

/// The healthy workers with what is left of them.
#[derive(Debug)]
pub(super) struct FreeCapacity {
    workers: BTreeMap<WorkerId, WorkerFacts>,
    /// Requests that give way to others, of each worker.
    giving_way: BTreeMap<WorkerId, u32>,
}

impl FreeCapacity {
    pub(super) fn of(workers: impl Iterator<Item = WorkerFacts>) -> Self {
        let healthy = workers.filter(|facts| facts.healthy);
        Self { workers: healthy.map(|facts| (facts.worker, facts)).collect(), giving_way: BTreeMap::new() }
    }

    /// A request of the worker gives way: another may be sent there, and waits for the room that it needs. `most`: so many in
    /// all.
    pub(super) fn give_way(&mut self, worker: WorkerId, most: usize) {
        let count = self.giving_way.entry(worker).or_default();
        *count = (*count + 1).min(u32::try_from(most).unwrap_or(u32::MAX));
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
        let gives_way = self.giving_way.get(&worker).is_some_and(|&left| left > 0);
        self.workers.get(&worker).is_some_and(|facts| gives_way || fits(facts, need))
    }

    /// Of the workers that fit, the one with the fewest active sequences, then the most free KV.
    pub(super) fn least_busy(&self, need: u32) -> Option<WorkerId> {
        let fitting = self.workers.values().filter(|facts| fits(facts, need));
        fitting.min_by_key(|facts| (facts.running_sequences, Reverse(facts.kv_free))).map(|facts| facts.worker)
    }

    /// A worker that fits takes a request.
    pub(super) fn take(&mut self, worker: WorkerId, need: u32) {
        let Some(facts) = self.workers.get_mut(&worker) else { return };
        facts.running_sequences += 1;
        if fits(facts, need) {
            facts.free_sequences -= 1;
            facts.kv_free -= need;
        } else if let Some(left) = self.giving_way.get_mut(&worker) {
            *left = left.saturating_sub(1);
        }
    }
}

fn fits(facts: &WorkerFacts, need: u32) -> bool {
    facts.free_sequences > 0 && facts.kv_free >= need
}
