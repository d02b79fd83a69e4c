//! A scheduler's own record of the queue, built from events.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::capacity::Capacity;
use super::lists::Arrival;
use super::point::Point;
use crate::bindings::scheduler::{Actions, Workers};

/// All live requests, with the waiting ones ordered by a key `K`, the smallest first.
///
/// The book removes a request when it ends, so it holds the same requests as the host. Each event costs the logarithm
/// of the queue's length. The maps are ordered ones, because hash maps would import a source of random numbers.
pub struct Book<K> {
    key: Box<dyn Fn(&Arrival) -> K>,
    requests: BTreeMap<u64, Arrival>,
    by_key: BTreeSet<(K, u64)>,
    by_age: BTreeSet<(u64, u64)>,
}

impl<K: fmt::Debug> fmt::Debug for Book<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").field("requests", &self.requests).field("by_key", &self.by_key).finish_non_exhaustive()
    }
}

impl<K: Ord> Book<K> {
    /// An empty book. Orders requests with equal keys by their ids, which grow in the order of arrival.
    pub fn new(key: impl Fn(&Arrival) -> K + 'static) -> Self {
        Self { key: Box::new(key), requests: BTreeMap::new(), by_key: BTreeSet::new(), by_age: BTreeSet::new() }
    }

    /// Applies the events of a point.
    pub fn apply(&mut self, point: &Point<'_>) {
        if point.replay {
            // Build the maps at once: inserting a long queue one by one takes milliseconds.
            self.requests = point.arrivals().map(|a| (a.id, a)).collect();
            self.by_key = self.requests.values().map(|a| ((self.key)(a), a.id)).collect();
            self.by_age = self.requests.values().map(|a| (a.arrived_ms, a.id)).collect();
        } else {
            for arrival in point.arrivals() {
                let id = arrival.id;
                self.forget(id);
                self.requests.insert(id, arrival);
                self.wait(id);
            }
        }
        point.dispatched_ids.iter().for_each(|&id| self.leave(id));
        point.finished_ids.iter().chain(&point.cancelled_ids).for_each(|&id| self.forget(id));
    }

    /// The waiting request with the smallest key.
    pub fn first(&self) -> Option<&Arrival> {
        self.by_key.first().and_then(|(_, id)| self.requests.get(id))
    }

    /// The request that has been waiting longest.
    pub fn oldest(&self) -> Option<&Arrival> {
        self.by_age.first().and_then(|(_, id)| self.requests.get(id))
    }

    /// Removes a dispatched request from the queue. It stays with its worker, which resumes it even after a preemption.
    pub fn leave(&mut self, id: u64) {
        if let Some(arrival) = self.requests.get(&id) {
            self.by_key.remove(&((self.key)(arrival), id));
            self.by_age.remove(&(arrival.arrived_ms, id));
        }
    }

    /// Dispatches waiting requests in their order, until one has no place: `place` finds the worker.
    pub fn dispatch(
        &mut self,
        workers: &Workers,
        mut place: impl FnMut(&mut Capacity, &Arrival) -> Option<u32>,
    ) -> Actions {
        let (mut actions, mut capacity) = (Actions::none(), Capacity::of(workers));
        while let Some(request) = self.first().filter(|_| !capacity.is_exhausted()) {
            let Some(worker) = place(&mut capacity, request) else { break };
            let id = request.id;
            self.leave(id);
            actions.dispatch(id, worker);
        }
        actions
    }

    /// Number of waiting requests.
    pub fn waiting(&self) -> usize {
        self.by_age.len()
    }

    /// Number of live requests, waiting or running.
    pub fn live(&self) -> usize {
        self.requests.len()
    }

    fn wait(&mut self, id: u64) {
        if let Some(arrival) = self.requests.get(&id) {
            self.by_key.insert(((self.key)(arrival), id));
            self.by_age.insert((arrival.arrived_ms, id));
        }
    }

    fn forget(&mut self, id: u64) {
        self.leave(id);
        self.requests.remove(&id);
    }
}
