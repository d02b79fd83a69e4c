//! The native scheduler: first come, first served within each priority class.
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::ids::RequestId;
use crate::policy::{Action, Fault, Scheduler, SchedulerEvent, SchedulingPoint};

/// A request that has waited for so long counts as one of the next higher class.
const AGEING: Duration = Duration::from_secs(30);

/// Dispatches the first class with work, within it in order of arrival, each to the worker with the most free KV. A
/// request that does not fit yet waits at the head of the line, so that large ones are not starved.
#[derive(Debug, Default)]
pub struct Fcfs {
    /// By place in the line: request and KV tokens that it needs.
    line: BTreeMap<Place, (RequestId, u32)>,
    places: HashMap<RequestId, Place>,
    next_place: u64,
}

/// The arrival, which lies later for each class: so a request overtakes those of higher classes that came longer after it
/// than it ages. Then the order in which they were told of.
type Place = (Duration, u64);

impl Fcfs {
    fn leave(&mut self, id: RequestId) {
        if let Some(place) = self.places.remove(&id) {
            self.line.remove(&place);
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
                SchedulerEvent::Arrived(arrival) => {
                    let place = (arrival.arrived + AGEING * arrival.priority as u32, self.next_place);
                    self.next_place += 1;
                    self.line.insert(place, (arrival.id, arrival.need));
                    self.places.insert(arrival.id, place);
                }
                SchedulerEvent::Dispatched { id, .. }
                | SchedulerEvent::Cancelled { id }
                | SchedulerEvent::Finished { id, .. } => self.leave(*id),
                SchedulerEvent::Progressed { .. } | SchedulerEvent::Parked { .. } => {}
            }
        }
        let mut workers: Vec<_> = point.workers.iter().filter(|w| w.healthy).cloned().collect();
        let mut actions = Vec::new();
        for &(id, need) in self.line.values() {
            let room = workers.iter_mut().filter(|w| w.free_sequences > 0 && w.kv_free >= need);
            let Some(worker) = room.max_by_key(|w| w.kv_free) else { break };
            worker.free_sequences -= 1;
            worker.kv_free -= need;
            actions.push(Action::Dispatch { id, worker: worker.worker });
        }
        Ok(actions)
    }
}
