//! The pool's book: every request that has not ended, an account for each worker, and the transitions between them.
//!
//! The book decides nothing. It collects what the scheduler has not been told yet.
mod questions;
mod reports;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::account::WorkerAccount;
use super::affinity::{Affinity, PromptBlocks};
use super::groups::{Groups, Membership};
use super::offers::{Bounds, Living, Offers, Turn};
use crate::engine::EngineLimits;
use crate::fcfs::aged_arrival;
use crate::gate::{Fill, Gate, Watermarks};
use crate::ids::{RequestId, WorkerId};
use crate::message::Start;
use crate::policy::{Arrival, CancelReason, Ending, Hints, SchedulerEvent, WorkerFacts};
use crate::request::{Cancelled, Stage};
use crate::reserve::{Reservation, Reserve};

/// A request that asks to wait. Times count from the pool's start.
#[derive(Debug)]
pub struct NewRequest {
    pub start: Box<Start>,
    /// Of the HTTP request, whose choices enter a full queue together.
    pub first_choice: RequestId,
    pub arrived: Duration,
    /// Latest moment of the first token.
    pub deadline: Option<Duration>,
    pub weight: f64,
    /// Share of the queue that the tenant's waiting requests may take.
    pub queue_share: Option<f64>,
    /// What the client says for schedulers to read.
    pub hints: Arc<Hints>,
}

/// The queue does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} requests wait; the queue accepts again at its low watermark")]
pub struct QueueFull {
    pub waiting: usize,
}

#[derive(Debug, Clone)]
struct BookEntry {
    stage: Stage,
    arrival: Arrival,
    /// Taken when the request is dispatched.
    start: Option<Box<Start>>,
    blocks: PromptBlocks,
    /// Prompt and generated tokens, as the worker reported them last.
    progress: Option<(u32, u32)>,
    /// The request waits inside its worker because its KV was taken away.
    preempted: bool,
    /// Why its worker was told to end it.
    cancelled: Option<CancelReason>,
    membership: Membership,
    hints: Arc<Hints>,
    arrival_order: u64,
    /// The scheduler has been told of it.
    offered: bool,
}

/// A waiting request that was given to a worker.
#[derive(Debug)]
pub(super) struct Dispatched {
    pub(super) start: Box<Start>,
    pub(super) need: u32,
    pub(super) waited: Duration,
}

#[derive(Debug, Clone)]
pub(super) struct PoolBook {
    requests: HashMap<RequestId, BookEntry>,
    /// Requests that ended since the scheduler last answered, which it hears of at the next point.
    gone: HashMap<RequestId, BookEntry>,
    next_order: u64,
    gate: Gate,
    offers: Offers,
    bounds: Bounds,
    reservation: Reservation,
    affinity: Affinity,
    groups: Groups,
    workers: BTreeMap<WorkerId, WorkerAccount>,
    /// What the scheduler has not been told yet.
    events: Vec<SchedulerEvent>,
    /// The scheduler has not seen the newest facts of all workers.
    facts_changed: bool,
}

impl BookEntry {
    fn turn(&self) -> Turn {
        (aged_arrival(&self.arrival), self.arrival_order)
    }

    fn living(&self) -> Living {
        let waits = self.stage == Stage::Waiting;
        Living { id: self.arrival.id, turn: self.turn(), waits, offered: self.offered }
    }
}

impl PoolBook {
    pub(super) fn new(watermarks: Watermarks, reserve: Reserve) -> Self {
        Self {
            requests: HashMap::new(),
            gone: HashMap::new(),
            next_order: 0,
            gate: Gate::new(watermarks),
            offers: Offers::default(),
            bounds: Bounds::default(),
            reservation: Reservation::new(reserve),
            affinity: Affinity::default(),
            groups: Groups::default(),
            workers: BTreeMap::new(),
            events: Vec::new(),
            facts_changed: false,
        }
    }

    /// A worker begins, for the first time or after it was lost. Whether requests that wait need less than was said: where
    /// one was made with less memory than the one before, the largest worker must have room for each.
    pub(super) fn add_worker(&mut self, worker: WorkerId, limits: EngineLimits) -> bool {
        let mut account = WorkerAccount::new(worker, limits);
        account.bound(self.bounds.sequences);
        self.workers.insert(worker, account);
        self.facts_changed = true;
        // One that is lost comes back as it was, or says then what it has.
        self.reservation.bound(self.workers.values().map(WorkerAccount::request_tokens).max().unwrap_or(u32::MAX));
        let mut changed = false;
        for request in self.requests.values_mut().filter(|request| request.stage == Stage::Waiting) {
            let need = self.reservation.bounded(request.arrival.need);
            changed |= need < request.arrival.need;
            request.arrival.need = need;
        }
        changed
    }

    /// A request arrives and waits from now on.
    pub(super) fn enter(&mut self, new: NewRequest) -> Result<(), QueueFull> {
        let NewRequest { start, first_choice, arrived, deadline, weight, queue_share, hints } = new;
        if !self.gate.enter(&start.tenant, queue_share, Fill::Open, first_choice.0) {
            return Err(QueueFull { waiting: self.waiting() });
        }
        let prompt_tokens = start.prompt.len() as u32;
        let blocks = self.affinity.blocks(&start.root(), &start.prompt);
        let membership = self.groups.enter(&start, first_choice);
        let arrival = Arrival {
            id: start.id,
            arrived,
            tenant: start.tenant.clone(),
            priority: start.priority,
            weight,
            deadline,
            prompt_tokens,
            max_tokens: start.max_tokens,
            need: self.reservation.need(prompt_tokens, start.max_tokens),
            cached: self.affinity.estimate(&blocks),
            attributes: start.context.attributes.clone(),
        };
        let turn = (aged_arrival(&arrival), self.next_order);
        let offered = self.offers.enter(&arrival.tenant, turn, arrival.id);
        if offered {
            self.events.push(SchedulerEvent::Arrived(arrival.clone()));
        }
        let request = BookEntry {
            stage: Stage::Waiting,
            arrival,
            start: Some(start),
            blocks,
            progress: None,
            preempted: false,
            cancelled: None,
            membership,
            hints,
            arrival_order: self.next_order,
            offered,
        };
        self.requests.insert(request.arrival.id, request);
        self.next_order += 1;
        Ok(())
    }

    /// A waiting request ends without having been dispatched: rejected, cancelled, or past its deadline.
    pub(super) fn leave_queue(&mut self, id: RequestId, reason: CancelReason) {
        if let Some(request) = self.requests.remove(&id) {
            self.gate.leave(&request.arrival.tenant);
            self.bury(request, SchedulerEvent::Cancelled { id, reason });
        }
    }

    /// A request has ended. The scheduler may ask about it until it has answered the point that tells of it, with `event`.
    fn bury(&mut self, request: BookEntry, event: SchedulerEvent) {
        self.groups.leave(request.membership);
        if request.offered {
            self.events.push(event);
        }
        let next = self.offers.leave(&request.arrival.tenant, request.turn(), request.offered);
        next.into_iter().for_each(|id| self.offer(id));
        let request = BookEntry { start: None, ..request };
        self.gone.insert(request.arrival.id, request);
    }

    /// The scheduler has heard of all that ended.
    pub(super) fn forget_gone(&mut self) {
        self.gone.clear();
    }

    /// The scheduler is told of a request that was held back.
    fn offer(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.offered = true;
            self.events.push(SchedulerEvent::Arrived(request.arrival.clone()));
        }
    }

    /// Changes what may run at once. Requests that run go on. True if the scheduler was told of requests that it must wait with
    /// now: it has to be told everything anew.
    pub(super) fn set_bounds(&mut self, bounds: Bounds) -> bool {
        if bounds == self.bounds {
            return false;
        }
        self.bounds = bounds;
        self.workers.values_mut().for_each(|account| account.bound(bounds.sequences));
        self.facts_changed = true;
        let living = self.requests.values().map(|request| (&request.arrival.tenant, request.living()));
        let (offered, withdrawn) = self.offers.set_bound(bounds.tenant_sequences, living);
        offered.into_iter().for_each(|id| self.offer(id));
        for id in &withdrawn {
            if let Some(request) = self.requests.get_mut(id) {
                request.offered = false;
            }
        }
        !withdrawn.is_empty()
    }

    /// Nobody wants a request's output any more: its client left, or its deadline passed. Returns the worker to be told,
    /// which confirms with `Finished`; until then the request holds its sequence and its KV.
    pub(super) fn cancel(&mut self, id: RequestId, reason: CancelReason) -> Option<WorkerId> {
        let request = self.requests.get_mut(&id)?;
        match request.stage.cancel() {
            Cancelled::Forgotten => {
                self.leave_queue(id, reason);
                None
            }
            Cancelled::TellWorker(worker) => {
                request.cancelled = Some(reason);
                Some(worker)
            }
            Cancelled::AlreadyTold => None,
        }
    }

    /// Gives a waiting request to a worker. `None` if it does not wait.
    pub(super) fn dispatch(&mut self, id: RequestId, worker: WorkerId, now: Duration) -> Option<Dispatched> {
        let account = self.workers.get_mut(&worker)?;
        let request = self.requests.get_mut(&id)?;
        request.stage.dispatch(worker).ok()?;
        let mut start = request.start.take()?;
        let need = request.arrival.need;
        let waited = now.saturating_sub(request.arrival.arrived);
        start.ends.max_duration = start.ends.max_duration.map(|allowed| allowed.saturating_sub(waited));
        account.sent(id, need);
        self.affinity.dispatched(id, worker, &request.blocks);
        self.gate.leave(&request.arrival.tenant);
        self.events.push(SchedulerEvent::Dispatched { id, worker });
        Some(Dispatched { start, need, waited })
    }

    /// The client has read its first token, so the deadline does not bind any more.
    pub(super) fn deadline_kept(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.arrival.deadline = None;
        }
    }

    /// A worker died, and with it the requests that it had. Returns those.
    pub(super) fn lose_worker(&mut self, worker: WorkerId) -> Vec<RequestId> {
        let on_worker = |request: &&BookEntry| request.stage.worker() == Some(worker);
        let lost: Vec<RequestId> = self.requests.values().filter(on_worker).map(|r| r.arrival.id).collect();
        lost.iter().for_each(|&id| self.end_early(id, Ending::WorkerLost));
        self.affinity.lost(worker);
        if let Some(account) = self.workers.get_mut(&worker) {
            account.lost();
        }
        self.facts_changed = true;
        lost
    }

    pub(super) fn set_watermarks(&mut self, watermarks: Watermarks) {
        self.gate.set_watermarks(watermarks);
    }

    pub(super) fn accepts(&self) -> bool {
        self.gate.is_open()
    }

    pub(super) fn waiting(&self) -> usize {
        self.gate.waiting()
    }

    /// Requests that a worker has, without paused ones.
    pub(super) fn running(&self) -> usize {
        self.workers.values().map(WorkerAccount::running).sum()
    }

    /// Requests that a worker has.
    fn dispatched(&self) -> usize {
        self.requests.len() - self.waiting()
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.workers.values().any(WorkerAccount::is_healthy)
    }

    /// The workers as a scheduler sees them.
    pub(super) fn worker_facts(&self) -> impl Iterator<Item = WorkerFacts> + '_ {
        self.workers.values().map(WorkerAccount::facts)
    }

    pub(super) fn is_up(&self, worker: WorkerId) -> bool {
        self.workers.get(&worker).is_some_and(WorkerAccount::is_healthy)
    }

    pub(super) fn stage(&self, id: RequestId) -> Option<Stage> {
        self.requests.get(&id).map(|request| request.stage)
    }

    /// The worker that has a request.
    pub(super) fn worker_of(&self, id: RequestId) -> Option<WorkerId> {
        self.stage(id).and_then(Stage::worker)
    }

    /// The worker that has a request and would free something by preempting it.
    pub(super) fn may_give_way(&self, id: RequestId) -> Option<WorkerId> {
        self.worker_of(id).filter(|_| !self.is_away(id))
    }

    /// Whether a worker has the request and does not run it: it was preempted, or is paused.
    fn is_away(&self, id: RequestId) -> bool {
        let Some(request) = self.requests.get(&id) else { return false };
        let account = request.stage.worker().and_then(|worker| self.workers.get(&worker));
        request.preempted || account.is_some_and(|account| account.is_paused(id))
    }

    /// Requests that may be sent to a worker past what it runs at once.
    pub(super) fn crowd_left(&self, worker: WorkerId) -> usize {
        self.workers.get(&worker).map_or(0, WorkerAccount::crowd_left)
    }

    /// What a waiting request asks of a worker; `None` if it does not wait.
    pub(super) fn waiting_start(&self, id: RequestId) -> Option<(&Start, u32)> {
        let request = self.requests.get(&id)?;
        Some((request.start.as_deref()?, request.arrival.need))
    }

    /// Whether a request waits for others of its tenant to end, and the scheduler knows nothing of it.
    pub(super) fn is_held_back(&self, id: RequestId) -> bool {
        self.requests.get(&id).is_some_and(|request| !request.offered)
    }

    /// Waiting requests in the order in which the native scheduler would serve them.
    pub(super) fn queue(&self) -> Vec<&Arrival> {
        let mut waiting: Vec<&BookEntry> = self.requests.values().filter(|r| r.stage == Stage::Waiting).collect();
        waiting.sort_unstable_by_key(|request| request.turn());
        waiting.into_iter().map(|request| &request.arrival).collect()
    }

    /// Requests whose deadline has passed before their first token, wherever they are: in the queue, waiting for KV inside
    /// a worker, or with a prompt that is being computed.
    pub(super) fn overdue(&self, now: Duration) -> Vec<RequestId> {
        let deadlines = self.open_deadlines().filter(|&(_, at)| at <= now);
        deadlines.map(|(id, _)| id).collect()
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.open_deadlines().map(|(_, at)| at).min()
    }

    fn open_deadlines(&self) -> impl Iterator<Item = (RequestId, Duration)> + '_ {
        let awaiting = self.requests.values().filter(|request| request.stage.awaits_first_token());
        awaiting.filter_map(|request| Some((request.arrival.id, request.arrival.deadline?)))
    }

    /// Whether the scheduler has something to hear of.
    pub(super) fn has_news(&self) -> bool {
        !self.events.is_empty() || self.facts_changed
    }

    /// What happened since this was last called.
    pub(super) fn take_news(&mut self) -> Vec<SchedulerEvent> {
        self.facts_changed = false;
        std::mem::take(&mut self.events)
    }

    /// The whole book as events, in the order of arrival.
    pub(super) fn replay(&self) -> Vec<SchedulerEvent> {
        let mut requests: Vec<&BookEntry> = self.requests.values().filter(|request| request.offered).collect();
        requests.sort_unstable_by_key(|request| request.arrival_order);
        let mut events = Vec::with_capacity(requests.len());
        for request in requests {
            events.push(SchedulerEvent::Arrived(request.arrival.clone()));
            let Some(worker) = request.stage.worker() else { continue };
            let id = request.arrival.id;
            events.push(SchedulerEvent::Dispatched { id, worker });
            if let Some((prompt_tokens, generated_tokens)) = request.progress {
                events.push(SchedulerEvent::Progressed { id, prompt_tokens, generated_tokens });
            }
            if self.is_away(id) {
                events.push(SchedulerEvent::Preempted { id });
            }
        }
        events
    }

    /// Whether the counts add up: every dispatched request is in exactly one worker's account.
    pub(super) fn check(&self) -> bool {
        let waiting = self.requests.values().filter(|request| request.stage == Stage::Waiting).count();
        let living = self.requests.values().map(|request| (&request.arrival.tenant, request.living()));
        waiting == self.waiting()
            && self.offers.check(living)
            && self.gate.check()
            && self.workers.values().all(WorkerAccount::check)
            && self.workers.values().map(WorkerAccount::dispatched).sum::<usize>() == self.dispatched()
    }
}
