//! The native scheduler: first come, first served within each priority class.
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::ids::RequestId;
use crate::policy::{Action, Arrival, Fault, Priority, Scheduler, SchedulerEvent, SchedulingPoint};

/// A request that has waited this long counts as one of the next higher class.
const AGEING: Duration = Duration::from_secs(30);

/// The request's arrival, moved back by [`AGEING`] for each class below the first. The queue is ordered by it, so a request
/// overtakes those of a higher class that arrived more than the ageing later.
pub(crate) fn aged_arrival(arrival: &Arrival) -> Duration {
    arrival.arrived + AGEING * arrival.priority as u32
}

/// The class of a request that has waited for so long: 0 is the first.
pub(crate) fn aged_class(priority: Priority, waited: Duration) -> u32 {
    let classes = (waited.as_secs() / AGEING.as_secs()).min(u64::from(u32::MAX)) as u32;
    (priority as u32).saturating_sub(classes)
}

/// Dispatches the first class with work, within it in order of arrival, each to the worker with the fewest active
/// sequences among those that fit, then the most free KV. Strict head-of-line order: a request that fits no worker blocks
/// those behind it, so that small requests never starve a large one.
#[derive(Debug, Default)]
pub struct Fcfs {
    /// Waiting requests, and the KV tokens that each needs.
    queue: BTreeMap<QueueKey, (RequestId, u32)>,
    keys: HashMap<RequestId, QueueKey>,
    arrivals: u64,
}

/// The aged arrival, then the order in which arrivals were reported.
type QueueKey = (Duration, u64);

impl Fcfs {
    fn enter(&mut self, arrival: &Arrival) {
        let key = (aged_arrival(arrival), self.arrivals);
        self.arrivals += 1;
        self.queue.insert(key, (arrival.id, arrival.need));
        self.keys.insert(arrival.id, key);
    }

    fn leave(&mut self, id: RequestId) {
        if let Some(key) = self.keys.remove(&id) {
            self.queue.remove(&key);
        }
    }
}

impl Scheduler for Fcfs {
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
        if point.replay {
            *self = Self::default();
        }
        for event in &point.events {
            match event {
                SchedulerEvent::Arrived(arrival) => self.enter(arrival),
                SchedulerEvent::Dispatched { id, .. }
                | SchedulerEvent::Cancelled { id, .. }
                | SchedulerEvent::Finished { id, .. } => self.leave(*id),
                SchedulerEvent::Progressed { .. }
                | SchedulerEvent::Preempted { .. }
                | SchedulerEvent::Resumed { .. } => {}
            }
        }
        let mut workers: Vec<_> = point.workers.iter().filter(|w| w.healthy).cloned().collect();
        let mut actions = Vec::new();
        for &(id, need) in self.queue.values() {
            let fitting = workers.iter_mut().filter(|w| w.free_sequences > 0 && w.kv_free >= need);
            let Some(worker) = fitting.min_by_key(|w| (w.running_sequences, Reverse(w.kv_free))) else { break };
            worker.free_sequences -= 1;
            worker.running_sequences += 1;
            worker.kv_free -= need;
            actions.push(Action::Dispatch { id, worker: worker.worker });
        }
        Ok(actions)
    }
}
