//! Tracks what the workers can still take within one scheduling point.
use std::cmp::Reverse;

use super::lists::{Arrival, Worker};
use crate::bindings::scheduler::Workers;

/// The workers' free sequences and KV, less what the policy has placed on them in this point.
#[derive(Debug, Clone)]
pub struct Capacity {
    workers: Vec<Worker>,
}

impl Capacity {
    /// The healthy workers with a free sequence, in the host's order.
    pub fn of(workers: &Workers) -> Self {
        Self { workers: workers.iter().filter(|worker| worker.healthy && worker.free_sequences > 0).collect() }
    }

    /// Whether no worker can take anything more.
    pub fn is_exhausted(&self) -> bool {
        self.workers.is_empty()
    }

    /// Places a request and returns its worker: of the workers with a free sequence and enough free KV, the one with
    /// the fewest active sequences, and of those the one with the most free KV.
    ///
    /// `None` if the request fits nowhere now. It always fits on an idle worker.
    pub fn place(&mut self, arrival: &Arrival) -> Option<u32> {
        self.place_reserving(arrival, 0)
    }

    /// As [`Capacity::place`], but keeps `sequences` sequences of each worker free, or all but one if the worker has
    /// fewer.
    pub fn place_reserving(&mut self, arrival: &Arrival, sequences: u32) -> Option<u32> {
        let fits = |w: &Worker| {
            let reserved = sequences.min((w.free_sequences + w.running_sequences).saturating_sub(1));
            w.free_sequences > reserved && w.kv_free >= arrival.need
        };
        self.take(arrival, fits, |w| (w.running_sequences, Reverse(w.kv_free)))
    }

    /// As [`Capacity::place`], but on the worker with the smallest key.
    pub fn place_by<K: Ord>(&mut self, arrival: &Arrival, key: impl Fn(&Worker) -> K) -> Option<u32> {
        self.take(arrival, |worker| worker.kv_free >= arrival.need, key)
    }

    fn take<K: Ord>(
        &mut self,
        arrival: &Arrival,
        fits: impl Fn(&Worker) -> bool,
        key: impl Fn(&Worker) -> K,
    ) -> Option<u32> {
        let fitting = self.workers.iter_mut().filter(|worker| fits(worker));
        let worker = fitting.min_by_key(|worker| key(worker))?;
        let id = worker.id;
        worker.kv_free -= arrival.need;
        worker.running_sequences += 1;
        worker.free_sequences -= 1;
        self.workers.retain(|worker| worker.free_sequences > 0);
        Some(id)
    }
}

#[cfg(test)]
#[path = "capacity_tests.rs"]
mod tests;
