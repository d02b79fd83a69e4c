//! The book of a monitored scheduler: the requests and workers are the real ones, and what it does with them happens here only.
//!
//! A request that it dispatches takes as long as the real one took. As long as that is not known, because the real one still
//! waits or runs, it takes as long as requests of its size took so far, and longer than the real one has run. What is
//! cancelled, rejected or too late in reality leaves this book, too.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use super::account::CROWD;
use super::check::{Books, check_against};
use super::pace::Pace;
use crate::ids::{RequestId, WorkerId};
use crate::policy::{
    Action, Arrival, CancelReason, Difference, Ending, Hints, PoolBooks, RequestFacts, SchedulerEvent, SchedulingPoint,
    Waits, WorkerFacts,
};

/// Requests that may wait in a virtual book.
pub const VIRTUAL_WAITING: usize = 16_384;
/// Events that are kept for the scheduler. It is told the whole state if there are more.
const EVENTS: usize = 4096;

/// What became of a request in reality.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Real {
    Waits,
    /// `order`: among all that were dispatched.
    Served {
        since: Duration,
        order: u64,
    },
    Ended {
        served: Duration,
        order: Option<u64>,
    },
}

/// Where a request is in this book.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Virtual {
    Waits,
    /// `served`: before it was preempted.
    Runs {
        worker: WorkerId,
        since: Duration,
        served: Duration,
    },
    Preempted {
        worker: WorkerId,
        served: Duration,
    },
    /// It has ended here, and not in reality.
    Ended,
}

#[derive(Debug, Clone)]
struct Entry {
    arrival: Arrival,
    order: u64,
    real: Real,
    place: Virtual,
    generated_tokens: u32,
    /// It was dispatched before the book was opened: its waits say nothing of this scheduler.
    seeded: bool,
    real_wait: Option<Duration>,
    virtual_wait: Option<Duration>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Load {
    running: u32,
    preempted: u32,
    kv_tokens: u64,
}

/// What a monitored scheduler may ask: of requests that reality knows what it knows of them, of others what their arrival says.
#[derive(Debug)]
struct VirtualBooks {
    real: Arc<dyn PoolBooks>,
    requests: Arc<HashMap<RequestId, Entry>>,
    /// In the order of the point.
    workers: Vec<WorkerId>,
}

impl PoolBooks for VirtualBooks {
    fn requests(&self) -> usize {
        self.real.requests().max(self.requests.len())
    }

    fn request(&self, id: RequestId) -> Option<RequestFacts<'_>> {
        static NO_HINTS: LazyLock<Hints> = LazyLock::new(Hints::default);
        let ended = || {
            let arrival = &self.requests.get(&id)?.arrival;
            Some(RequestFacts {
                need: arrival.need,
                // A group of its own.
                group: id.0.max(1),
                turns: 0,
                prefix_blocks: &[],
                hints: &NO_HINTS,
                attributes: &arrival.attributes,
            })
        };
        self.real.request(id).or_else(ended)
    }

    fn cached(&self, id: RequestId, cached: &mut Vec<u32>) {
        if self.real.request(id).is_some() {
            self.real.cached(id, cached);
        } else if let Some(request) = self.requests.get(&id) {
            cached.extend(self.workers.iter().map(|worker| request.arrival.cached_on(*worker)));
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct VirtualBook {
    /// Shared with the scheduler while it answers, and with nobody otherwise.
    requests: Arc<HashMap<RequestId, Entry>>,
    arrivals: u64,
    dispatches: u64,
    waiting: usize,
    /// Of those that wait here.
    deadlines: BTreeSet<(Duration, RequestId)>,
    /// What waits here and was dispatched in reality, in that order.
    passed: BTreeMap<u64, RequestId>,
    /// Preempted requests, the one first that was preempted first.
    preempted: Vec<RequestId>,
    workers: BTreeMap<WorkerId, WorkerFacts>,
    loads: BTreeMap<WorkerId, Load>,
    pace: Pace,
    events: Vec<SchedulerEvent>,
    /// There were more events than are kept.
    events_lost: bool,
    facts_changed: bool,
    compared: Vec<Waits>,
}

impl VirtualBook {
    /// A book that begins as the real one, given as a replay of it.
    pub(super) fn of(replay: &[SchedulerEvent], now: Duration) -> Self {
        let mut book = Self::default();
        for event in replay {
            book.note(event, now);
            let SchedulerEvent::Dispatched { id, worker } = event else { continue };
            book.dispatched(*id, now);
            book.run(*id, *worker, now);
            if let Some(request) = Arc::make_mut(&mut book.requests).get_mut(id) {
                request.seeded = true;
            }
        }
        book.compared.clear();
        book.events.clear();
        book.events_lost = true;
        book
    }

    /// Takes in what happened in reality, but for dispatches.
    pub(super) fn note(&mut self, event: &SchedulerEvent, now: Duration) {
        match event {
            SchedulerEvent::Arrived(arrival) => self.enter(arrival),
            SchedulerEvent::Progressed { id, generated_tokens, .. } => {
                let Some(request) = Arc::make_mut(&mut self.requests).get_mut(id) else { return };
                request.generated_tokens = *generated_tokens;
                if matches!(request.place, Virtual::Runs { .. }) {
                    self.tell(event.clone());
                }
            }
            SchedulerEvent::Finished { id, generated_tokens, .. } => self.ended(*id, *generated_tokens, now),
            SchedulerEvent::Cancelled { id, reason } => self.forget(*id, *reason),
            _ => {}
        }
    }

    fn enter(&mut self, arrival: &Arrival) {
        let entry = Entry {
            arrival: arrival.clone(),
            order: self.arrivals,
            real: Real::Waits,
            place: Virtual::Waits,
            generated_tokens: 0,
            seeded: false,
            real_wait: None,
            virtual_wait: None,
        };
        if self.requests.contains_key(&arrival.id) {
            return;
        }
        Arc::make_mut(&mut self.requests).insert(arrival.id, entry);
        self.arrivals += 1;
        self.waiting += 1;
        self.deadlines.extend(arrival.deadline.map(|at| (at, arrival.id)));
        self.tell(SchedulerEvent::Arrived(arrival.clone()));
    }

    /// The scheduler in force has dispatched a request.
    pub(super) fn dispatched(&mut self, id: RequestId, now: Duration) {
        let order = self.dispatches;
        let Some(request) = Arc::make_mut(&mut self.requests).get_mut(&id) else { return };
        if request.real != Real::Waits {
            return;
        }
        self.dispatches += 1;
        request.real = Real::Served { since: now, order };
        request.real_wait = Some(now.saturating_sub(request.arrival.arrived));
        if request.place == Virtual::Waits {
            self.passed.insert(order, id);
        }
        self.compare(id);
    }

    fn ended(&mut self, id: RequestId, generated_tokens: u32, now: Duration) {
        let Some(request) = Arc::make_mut(&mut self.requests).get_mut(&id) else { return };
        request.generated_tokens = generated_tokens;
        let (served, order) = match request.real {
            Real::Served { since, order } => (now.saturating_sub(since), Some(order)),
            Real::Waits => (Duration::ZERO, None),
            Real::Ended { .. } => return,
        };
        request.real = Real::Ended { served, order };
        if !request.seeded {
            self.pace.learn(&request.arrival, generated_tokens, served);
        }
        if request.place == Virtual::Ended {
            Arc::make_mut(&mut self.requests).remove(&id);
        }
    }

    /// Nobody wants it any more.
    fn forget(&mut self, id: RequestId, reason: CancelReason) {
        self.leave(id);
        if let Some(request) = Arc::make_mut(&mut self.requests).remove(&id)
            && request.place != Virtual::Ended
        {
            self.tell(SchedulerEvent::Cancelled { id, reason });
        }
    }

    /// The workers as they are in reality, which are what this book has, too.
    pub(super) fn set_workers(&mut self, facts: Vec<WorkerFacts>) {
        let before = self.facts();
        self.workers = facts.into_iter().map(|facts| (facts.worker, facts)).collect();
        let down = |worker: &WorkerId| self.workers.get(worker).is_none_or(|facts| !facts.healthy);
        let on_it = |request: &Entry| match request.place {
            Virtual::Runs { worker, .. } | Virtual::Preempted { worker, .. } => down(&worker),
            Virtual::Waits | Virtual::Ended => false,
        };
        let lost: Vec<RequestId> =
            self.requests.values().filter(|request| on_it(request)).map(|request| request.arrival.id).collect();
        lost.into_iter().for_each(|id| self.finish(id));
        // What changes with every step alone is no reason to ask.
        let timeless = |facts: Vec<WorkerFacts>| -> Vec<WorkerFacts> {
            facts.into_iter().map(|facts| WorkerFacts { tokens_per_second: 0.0, ..facts }).collect()
        };
        self.facts_changed |= timeless(before) != timeless(self.facts());
    }

    /// Ends what has been served for its time, and what waits past its deadline; resumes what was preempted. Returns the
    /// number of those that came too late.
    pub(super) fn advance(&mut self, now: Duration) -> usize {
        let due = |request: &&Entry| self.is_served(request, now);
        let done: Vec<RequestId> = self.requests.values().filter(due).map(|request| request.arrival.id).collect();
        done.into_iter().for_each(|id| self.finish(id));
        let mut late = 0;
        while let Some(&(at, id)) = self.deadlines.first()
            && at <= now
        {
            // What is too late in reality, too, is about to leave the real book.
            late += usize::from(self.requests.get(&id).is_some_and(|request| request.real != Real::Waits));
            self.end_waiting(id, CancelReason::Deadline);
        }
        self.resume(now);
        late
    }

    fn is_served(&self, request: &Entry, now: Duration) -> bool {
        let Virtual::Runs { since, served, .. } = request.place else { return false };
        let served = served + now.saturating_sub(since);
        let expected = || self.pace.estimate(&request.arrival);
        match request.real {
            Real::Ended { served: real, .. } => served >= real,
            // As long as the real one runs that has been served for no shorter, this one does.
            Real::Served { since, .. } => {
                served > now.saturating_sub(since) && expected().is_some_and(|expected| served >= expected)
            }
            Real::Waits => expected().is_some_and(|expected| served >= expected),
        }
    }

    fn resume(&mut self, now: Duration) {
        for id in self.preempted.clone() {
            let Some(request) = self.requests.get(&id) else { continue };
            let Virtual::Preempted { worker, served } = request.place else { continue };
            let need = request.arrival.need;
            let fits = self.workers.get(&worker).map(|facts| self.virtual_facts(facts));
            if fits.is_some_and(|facts| facts.free_sequences > 0 && facts.kv_free >= need) {
                self.leave(id);
                self.take(id, Virtual::Runs { worker, since: now, served });
            }
        }
    }

    /// Requests that wait here.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn is_full(&self) -> bool {
        self.waiting > VIRTUAL_WAITING
    }

    /// Whether the scheduler has something to hear of.
    pub(super) fn has_news(&self) -> bool {
        self.events_lost || self.facts_changed || !self.events.is_empty()
    }

    /// What the scheduler is told: the whole state at first, and where there were too many events.
    pub(super) fn point(&mut self, now: Duration, real: Arc<dyn PoolBooks>) -> SchedulingPoint {
        self.facts_changed = false;
        let (events, replay) = (std::mem::take(&mut self.events), std::mem::take(&mut self.events_lost));
        let events = if replay { self.replay() } else { events };
        let workers = self.facts();
        let order = workers.iter().map(|facts| facts.worker).collect();
        let books = Arc::new(VirtualBooks { real, requests: self.requests.clone(), workers: order });
        SchedulingPoint { now, replay, events, workers, books }
    }

    fn replay(&self) -> Vec<SchedulerEvent> {
        let here = |request: &&Entry| request.place != Virtual::Ended;
        let mut requests: Vec<&Entry> = self.requests.values().filter(here).collect();
        requests.sort_unstable_by_key(|request| request.order);
        let mut events = Vec::with_capacity(requests.len());
        for request in requests {
            let id = request.arrival.id;
            events.push(SchedulerEvent::Arrived(request.arrival.clone()));
            match request.place {
                Virtual::Runs { worker, .. } => events.push(SchedulerEvent::Dispatched { id, worker }),
                Virtual::Preempted { worker, .. } => {
                    events.push(SchedulerEvent::Dispatched { id, worker });
                    events.push(SchedulerEvent::Preempted { id });
                }
                Virtual::Waits | Virtual::Ended => {}
            }
        }
        events
    }

    /// # Errors
    /// Why the actions cannot be carried out in this book.
    pub(super) fn check_actions(&self, actions: &[Action]) -> Result<(), String> {
        let waiting = |id: RequestId| match self.requests.get(&id) {
            Some(request) if request.place == Virtual::Waits => Ok(request.arrival.need),
            Some(_) => Err(format!("request {id} is not waiting")),
            None => Err(format!("request {id} is unknown")),
        };
        let running = |id: RequestId| match self.requests.get(&id)?.place {
            Virtual::Runs { worker, .. } => Some((worker, Some(self.crowd_left(worker)))),
            Virtual::Preempted { worker, .. } => Some((worker, None)),
            Virtual::Waits | Virtual::Ended => None,
        };
        check_against(&Books { workers: self.facts(), waiting: &waiting, running: &running }, actions)
    }

    fn crowd_left(&self, worker: WorkerId) -> usize {
        let sequences = self.workers.get(&worker).map_or(0, |facts| facts.free_sequences + facts.running_sequences);
        let load = self.loads.get(&worker).copied().unwrap_or_default();
        (CROWD * sequences as usize).saturating_sub((load.running + load.preempted) as usize)
    }

    /// Carries out actions that were checked, in this book, and returns what differs from reality.
    pub(super) fn carry_out(&mut self, actions: &[Action], now: Duration) -> Vec<Difference> {
        let mut differences = Vec::new();
        let first = actions.iter().find_map(|action| match action {
            Action::Dispatch { id, .. } => Some(*id),
            _ => None,
        });
        differences.extend(first.filter(|id| self.is_another_choice(*id)).map(|_| Difference::FirstChoice));
        for action in actions {
            match action {
                Action::Preempt { id } => {
                    let Some(Virtual::Runs { worker, since, served }) = self.requests.get(id).map(|r| r.place) else {
                        continue;
                    };
                    let served = served + now.saturating_sub(since);
                    self.leave(*id);
                    self.take(*id, Virtual::Preempted { worker, served });
                    self.tell(SchedulerEvent::Preempted { id: *id });
                    differences.push(Difference::Preempt);
                }
                Action::Reject { id, .. } => {
                    self.end_waiting(*id, CancelReason::Rejected);
                    differences.push(Difference::Reject);
                }
                Action::Dispatch { id, worker } => self.run(*id, *worker, now),
                // Its time goes on with reality's.
                Action::PrefillBudget { .. } | Action::WakeAt { .. } => {}
            }
        }
        differences
    }

    /// Whether another request waits here that the scheduler in force preferred to this one.
    fn is_another_choice(&self, id: RequestId) -> bool {
        let order = match self.requests.get(&id).map(|request| request.real) {
            Some(Real::Served { order, .. } | Real::Ended { order: Some(order), .. }) => order,
            _ => u64::MAX,
        };
        self.passed.first_key_value().is_some_and(|(&first, _)| first < order)
    }

    fn run(&mut self, id: RequestId, worker: WorkerId, now: Duration) {
        self.leave(id);
        self.take(id, Virtual::Runs { worker, since: now, served: Duration::ZERO });
        self.tell(SchedulerEvent::Dispatched { id, worker });
        if let Some(request) = Arc::make_mut(&mut self.requests).get_mut(&id) {
            request.virtual_wait = Some(now.saturating_sub(request.arrival.arrived));
        }
        self.compare(id);
    }

    fn compare(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id).filter(|request| !request.seeded) else { return };
        if let (Some(monitored), Some(enforced)) = (request.virtual_wait, request.real_wait) {
            self.compared.push(Waits { monitored, enforced });
        }
    }

    /// The waits of requests that both have dispatched, since this was last called.
    pub(super) fn take_compared(&mut self) -> Vec<Waits> {
        std::mem::take(&mut self.compared)
    }

    /// A request that waits here ends without having been dispatched.
    fn end_waiting(&mut self, id: RequestId, reason: CancelReason) {
        self.end(id);
        self.tell(SchedulerEvent::Cancelled { id, reason });
    }

    /// A request that runs here ends.
    fn finish(&mut self, id: RequestId) {
        let generated_tokens = self.requests.get(&id).map_or(0, |request| request.generated_tokens);
        self.end(id);
        self.tell(SchedulerEvent::Finished { id, generated_tokens, ending: Ending::Stop });
    }

    fn end(&mut self, id: RequestId) {
        self.leave(id);
        let Some(request) = Arc::make_mut(&mut self.requests).get_mut(&id) else { return };
        request.place = Virtual::Ended;
        if matches!(request.real, Real::Ended { .. }) {
            Arc::make_mut(&mut self.requests).remove(&id);
        }
    }

    /// Takes a request out of the counts of where it is.
    fn leave(&mut self, id: RequestId) {
        let Some(request) = self.requests.get(&id) else { return };
        let need = u64::from(request.arrival.need);
        match request.place {
            Virtual::Waits => {
                self.waiting -= 1;
                if let Some(at) = request.arrival.deadline {
                    self.deadlines.remove(&(at, id));
                }
                if let Real::Served { order, .. } | Real::Ended { order: Some(order), .. } = request.real {
                    self.passed.remove(&order);
                }
            }
            Virtual::Runs { worker, .. } => {
                let load = self.loads.entry(worker).or_default();
                load.running = load.running.saturating_sub(1);
                load.kv_tokens = load.kv_tokens.saturating_sub(need);
            }
            Virtual::Preempted { worker, .. } => {
                self.preempted.retain(|preempted| *preempted != id);
                let load = self.loads.entry(worker).or_default();
                load.preempted = load.preempted.saturating_sub(1);
            }
            Virtual::Ended => {}
        }
    }

    /// Puts a request on a worker, after it has left where it was.
    fn take(&mut self, id: RequestId, place: Virtual) {
        let Some(request) = Arc::make_mut(&mut self.requests).get_mut(&id) else { return };
        request.place = place;
        match place {
            Virtual::Runs { worker, .. } => {
                let load = self.loads.entry(worker).or_default();
                load.running += 1;
                load.kv_tokens += u64::from(request.arrival.need);
            }
            Virtual::Preempted { worker, .. } => {
                self.loads.entry(worker).or_default().preempted += 1;
                self.preempted.push(id);
            }
            Virtual::Waits | Virtual::Ended => {}
        }
    }

    fn tell(&mut self, event: SchedulerEvent) {
        if self.events.len() >= EVENTS {
            self.events.clear();
            self.events_lost = true;
        }
        if !self.events_lost {
            self.events.push(event);
        }
    }

    /// The workers as the scheduler sees them: with what it has given them.
    fn facts(&self) -> Vec<WorkerFacts> {
        self.workers.values().map(|facts| self.virtual_facts(facts)).collect()
    }

    fn virtual_facts(&self, real: &WorkerFacts) -> WorkerFacts {
        let load = self.loads.get(&real.worker).copied().unwrap_or_default();
        let sequences = real.free_sequences + real.running_sequences;
        let kv_used = u32::try_from(load.kv_tokens).unwrap_or(u32::MAX);
        WorkerFacts {
            free_sequences: sequences.saturating_sub(load.running),
            running_sequences: load.running + load.preempted,
            kv_free: real.kv_total.saturating_sub(kv_used),
            kv_used,
            prefilling_tokens: 0,
            ..real.clone()
        }
    }

    /// Whether the counts agree with the requests.
    #[cfg(test)]
    pub(super) fn check(&self) -> bool {
        let waits = |request: &&Entry| request.place == Virtual::Waits;
        let mut loads: BTreeMap<WorkerId, Load> = BTreeMap::new();
        for request in self.requests.values() {
            match request.place {
                Virtual::Runs { worker, .. } => {
                    let load = loads.entry(worker).or_default();
                    load.running += 1;
                    load.kv_tokens += u64::from(request.arrival.need);
                }
                Virtual::Preempted { worker, .. } => loads.entry(worker).or_default().preempted += 1,
                Virtual::Waits | Virtual::Ended => {}
            }
        }
        let counted = |request: &Entry| match request.real {
            Real::Served { order, .. } | Real::Ended { order: Some(order), .. } => self.passed.contains_key(&order),
            _ => true,
        };
        let gone = |request: &Entry| request.place == Virtual::Ended && matches!(request.real, Real::Ended { .. });
        let empty = |load: &Load| *load == Load::default();
        self.waiting == self.requests.values().filter(waits).count()
            && self.requests.values().filter(waits).all(counted)
            && self.passed.len() <= self.waiting
            && self.deadlines.len() <= self.waiting
            && !self.requests.values().any(gone)
            && self.loads.iter().all(|(worker, load)| loads.remove(worker).unwrap_or_default() == *load)
            && loads.values().all(empty)
    }
}

#[cfg(test)]
#[path = "virtual_book_tests.rs"]
mod tests;
