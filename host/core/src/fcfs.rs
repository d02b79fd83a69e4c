//! The native scheduler: first come, first served.
use std::collections::{BTreeMap, HashMap};

use crate::ids::RequestId;
use crate::policy::{Action, Fault, Scheduler, SchedulerEvent, SchedulingPoint};

/// Dispatches in order of arrival, each to the worker with the most free KV. A request that does not fit yet waits at
/// the head of the line, so that large ones are not starved.
#[derive(Debug, Default)]
pub struct Fcfs {
    /// By place in the line: request and KV tokens it may need.
    line: BTreeMap<u64, (RequestId, u32)>,
    places: HashMap<RequestId, u64>,
    next_place: u64,
}

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
                    let place = self.next_place;
                    self.next_place += 1;
                    self.line.insert(place, (arrival.id, arrival.prompt_tokens.saturating_add(arrival.max_tokens)));
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
        for &(id, kv_tokens) in self.line.values() {
            let room = workers.iter_mut().filter(|w| w.free_sequences > 0 && w.kv_free >= kv_tokens);
            let Some(worker) = room.max_by_key(|w| w.kv_free) else { break };
            worker.free_sequences -= 1;
            worker.kv_free -= kv_tokens;
            actions.push(Action::Dispatch { id, worker: worker.worker });
        }
        Ok(actions)
    }
}
