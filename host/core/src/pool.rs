//! A model's pool: the queue of waiting generations, the scheduler that chooses among them, the workers' accounts.
//!
//! The scheduler advises, the pool keeps correctness: every action is checked against the pool's own books before the
//! first one is carried out. A scheduler that faults is replaced by the native one at once and tried again later.
mod affinity;
mod gate;

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use affinity::{Affinity, PromptBlocks};
use gate::Gate;
pub use gate::Watermarks;

use crate::engine::EngineLimits;
use crate::fcfs::{Fcfs, aged_arrival};
use crate::ids::{Generation, PolicyName, RequestId, WorkerId};
use crate::message::{Command, Event, FinishReason, Start, WorkerError};
use crate::policy::{
    Action, Arrival, Fault, FaultKind, Scheduler, SchedulerEvent, SchedulerHook, SchedulingPoint, WorkerFacts,
};
use crate::report::Report;
use crate::request::{Cancelled, Stage};
use crate::reserve::{Reservation, Reserve};

const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const LONGEST_BACKOFF: Duration = Duration::from_secs(60);

/// What the pool wants done by whoever owns the threads.
#[derive(Debug, PartialEq)]
pub enum Output {
    /// Give the worker a generation. `waited`: time in the queue.
    Start { worker: WorkerId, start: Box<Start>, need: u32, waited: Duration },
    /// Give the worker another command.
    Send { worker: WorkerId, command: Command },
    /// Tell the client that its generation ended. A worker that has it is told by a `Send`.
    Fail { id: RequestId, error: WorkerError },
}

/// A generation that asks to wait. Times count from the pool's start.
#[derive(Debug)]
pub struct NewRequest {
    pub start: Box<Start>,
    pub arrived: Duration,
    /// Latest moment of the first token.
    pub deadline: Option<Duration>,
    pub weight: f64,
    /// Of the queue, for what its tenant has waiting.
    pub queue_share: Option<f64>,
}

/// The queue does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{waiting} requests wait; the queue accepts again at its low watermark")]
pub struct QueueFull {
    pub waiting: usize,
}

#[derive(Debug)]
struct Entry {
    stage: Stage,
    arrival: Arrival,
    /// Taken when it is dispatched.
    start: Option<Box<Start>>,
    blocks: PromptBlocks,
    /// Prompt and generated tokens, as its worker said last.
    progress: Option<(u32, u32)>,
    /// It waits inside its worker for the KV entries that were taken away.
    preempted: bool,
    /// Order of arrival.
    place: u64,
}

#[derive(Debug)]
struct WorkerAccount {
    /// What it said last of itself.
    facts: WorkerFacts,
    sequences: u32,
    running: u32,
    /// KV tokens of those that were sent and not admitted yet.
    on_their_way: HashMap<RequestId, u32>,
}

impl WorkerAccount {
    /// The worker's own facts with the pool's accounts, which know of dispatches still on their way.
    fn facts(&self) -> WorkerFacts {
        WorkerFacts {
            free_sequences: self.sequences - self.running,
            running_sequences: self.running,
            kv_free: self.facts.kv_free.saturating_sub(self.on_their_way.values().sum()),
            ..self.facts.clone()
        }
    }
}

/// Queue and scheduler of one model.
pub struct Pool {
    hook: Arc<dyn SchedulerHook>,
    scheduler: Box<dyn Scheduler>,
    /// The policy that schedules; `None`: the native scheduler.
    policy: Option<PolicyName>,
    generation: Generation,
    /// After a fault: when the policy is tried again, and how long the next wait is.
    retry: Option<Duration>,
    backoff: Duration,
    /// When the scheduler in force was opened.
    opened: Duration,
    /// The native scheduler decides in the place of this generation's policy, which faulted; the hook was told.
    replaced: Option<Generation>,
    replay: bool,
    entries: HashMap<RequestId, Entry>,
    next_place: u64,
    gate: Gate,
    reservation: Reservation,
    affinity: Affinity,
    workers: BTreeMap<WorkerId, WorkerAccount>,
    events: Vec<SchedulerEvent>,
    /// Worker facts that changed are a scheduling point too.
    changed: bool,
    now: Duration,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("entries", &self.entries).field("workers", &self.workers).finish_non_exhaustive()
    }
}

impl Pool {
    /// `reserve`: how much of a worker's KV cache a generation is admitted with.
    pub fn new(hook: Arc<dyn SchedulerHook>, watermarks: Watermarks, reserve: Reserve) -> Self {
        let mut pool = Self {
            scheduler: Box::new(Fcfs::default()),
            policy: None,
            generation: hook.generation(),
            retry: None,
            backoff: FIRST_BACKOFF,
            opened: Duration::ZERO,
            replaced: None,
            replay: true,
            entries: HashMap::new(),
            next_place: 0,
            gate: Gate::new(watermarks),
            reservation: Reservation::new(reserve),
            affinity: Affinity::default(),
            workers: BTreeMap::new(),
            events: Vec::new(),
            changed: false,
            now: Duration::ZERO,
            hook,
        };
        pool.open();
        pool
    }

    /// A worker begins, or begins anew after [`Pool::worker_lost`].
    pub fn add_worker(&mut self, worker: WorkerId, limits: EngineLimits) {
        let facts = WorkerFacts {
            worker,
            healthy: true,
            free_sequences: limits.sequences,
            running_sequences: 0,
            kv_free: limits.kv_tokens,
            kv_used: 0,
            kv_total: limits.kv_tokens,
            prefilling_tokens: 0,
            tokens_per_second: 0.0,
            can_preempt: true,
        };
        let account = WorkerAccount { facts, sequences: limits.sequences, running: 0, on_their_way: HashMap::new() };
        self.reservation.bound(limits.context_tokens.min(limits.kv_tokens));
        self.workers.insert(worker, account);
        self.changed = true;
    }

    pub fn waiting(&self) -> usize {
        self.gate.waiting()
    }

    /// Generations that a worker has.
    pub fn running(&self) -> usize {
        self.entries.len() - self.waiting()
    }

    /// Whether any worker can run something.
    pub fn is_healthy(&self) -> bool {
        self.workers.values().any(|worker| worker.facts.healthy)
    }

    /// Facts about all workers as a scheduler would see them now.
    pub fn worker_facts(&self) -> Vec<WorkerFacts> {
        self.workers.values().map(WorkerAccount::facts).collect()
    }

    /// A generation arrives.
    pub fn submit(&mut self, new: NewRequest) -> Result<(), QueueFull> {
        let NewRequest { start, arrived, deadline, weight, queue_share } = new;
        if !self.gate.enter(&start.tenant, queue_share) {
            return Err(QueueFull { waiting: self.waiting() });
        }
        let prompt_tokens = start.prompt.len() as u32;
        let blocks = self.affinity.blocks(&start.namespace, &start.prompt);
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
        };
        self.events.push(SchedulerEvent::Arrived(arrival.clone()));
        let entry = Entry {
            stage: Stage::Waiting,
            arrival,
            start: Some(start),
            blocks,
            progress: None,
            preempted: false,
            place: self.next_place,
        };
        self.entries.insert(entry.arrival.id, entry);
        self.next_place += 1;
        Ok(())
    }

    /// Bounds the queue anew; what waits already goes on waiting.
    pub fn set_watermarks(&mut self, watermarks: Watermarks) {
        self.gate.set_watermarks(watermarks);
    }

    /// Whether a generation may come.
    pub fn accepts(&self) -> bool {
        self.gate.is_open()
    }

    /// Waiting generations in the order in which the native scheduler would serve them.
    pub fn queue(&self) -> Vec<&Arrival> {
        let mut waiting: Vec<&Entry> = self.entries.values().filter(|e| e.stage == Stage::Waiting).collect();
        waiting.sort_unstable_by_key(|entry| (aged_arrival(&entry.arrival), entry.place));
        waiting.into_iter().map(|entry| &entry.arrival).collect()
    }

    /// The client of a generation is gone.
    pub fn cancel(&mut self, id: RequestId) -> Option<Output> {
        let entry = self.entries.get_mut(&id)?;
        match entry.stage.cancel() {
            Cancelled::Forgotten => {
                self.forget_waiting(id);
                None
            }
            Cancelled::TellWorker(worker) => Some(Output::Send { worker, command: Command::Cancel { id } }),
            Cancelled::AlreadyTold => None,
        }
    }

    fn forget_waiting(&mut self, id: RequestId) {
        if let Some(entry) = self.entries.remove(&id) {
            self.gate.leave(&entry.arrival.tenant);
        }
        self.events.push(SchedulerEvent::Cancelled { id });
    }

    /// Ends every generation whose deadline passed before its first token, wherever it is: in the queue, waiting for KV
    /// inside a worker, or with a prompt that is being computed.
    fn expire(&mut self, out: &mut Vec<Output>) {
        let now = self.now;
        let late = |e: &Entry| e.stage.awaits_first_token() && e.arrival.deadline.is_some_and(|at| at <= now);
        let ids: Vec<RequestId> = self.entries.values().filter(|e| late(e)).map(|e| e.arrival.id).collect();
        for id in ids {
            // The client first: a worker that confirms the cancellation at once must not answer it otherwise.
            out.push(Output::Fail { id, error: WorkerError::DeadlineExceeded });
            out.extend(self.cancel(id));
        }
    }

    /// The earliest deadline that may still pass.
    pub fn next_deadline(&self) -> Option<Duration> {
        let awaiting = self.entries.values().filter(|entry| entry.stage.awaits_first_token());
        awaiting.filter_map(|entry| entry.arrival.deadline).min()
    }

    /// Takes in what a worker did and the facts that hold after it, as one.
    pub fn apply(&mut self, worker: WorkerId, report: Report) {
        report.events.iter().for_each(|event| self.take_in(worker, event));
        if let Some(account) = self.workers.get_mut(&worker)
            && account.facts != report.facts
        {
            account.facts = report.facts;
            self.changed = true;
        }
    }

    fn take_in(&mut self, worker: WorkerId, event: &Event) {
        match *event {
            Event::Started { id, cached_tokens } => self.affinity.started(id, cached_tokens),
            Event::Progressed { id, prompt_tokens, generated_tokens } => {
                let Some(entry) = self.entries.get_mut(&id) else { return };
                // Only a worker that has it reports its progress.
                let _ = entry.stage.draw();
                entry.progress = Some((prompt_tokens, generated_tokens));
                self.events.push(SchedulerEvent::Progressed { id, prompt_tokens, generated_tokens });
            }
            Event::Finished { id, reason, usage } => {
                // One that was cancelled says nothing of how long outputs are.
                if reason != FinishReason::Cancelled {
                    self.reservation.learn(usage.generated_tokens);
                }
                self.finish(
                    id,
                    match reason {
                        FinishReason::Cancelled => SchedulerEvent::Cancelled { id },
                        _ => SchedulerEvent::Finished { id, generated_tokens: usage.generated_tokens },
                    },
                );
            }
            Event::Failed { id, .. } => self.finish_early(id),
            Event::Admitted { id } => {
                if let Some(account) = self.workers.get_mut(&worker) {
                    account.on_their_way.remove(&id);
                }
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.preempted = false;
                }
            }
            Event::Preempted { id } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    entry.preempted = true;
                }
                self.events.push(SchedulerEvent::Preempted { id });
            }
            Event::Queued { .. } | Event::Delta { .. } | Event::SessionClosed { .. } => {}
        }
    }

    /// A generation ended before its time, with what it had generated by its last progress.
    fn finish_early(&mut self, id: RequestId) {
        let progress = self.entries.get(&id).and_then(|entry| entry.progress);
        let generated_tokens = progress.map_or(0, |(_, generated)| generated);
        self.finish(id, SchedulerEvent::Finished { id, generated_tokens });
    }

    fn finish(&mut self, id: RequestId, event: SchedulerEvent) {
        let Some(worker) = self.entries.get(&id).and_then(|entry| entry.stage.worker()) else { return };
        self.entries.remove(&id);
        self.affinity.ended(id);
        self.events.push(event);
        if let Some(account) = self.workers.get_mut(&worker) {
            account.on_their_way.remove(&id);
            account.running -= 1;
        }
    }

    /// A worker died: its generations are lost.
    pub fn worker_lost(&mut self, worker: WorkerId) -> Vec<RequestId> {
        let lost: Vec<RequestId> =
            self.entries.values().filter(|e| e.stage.worker() == Some(worker)).map(|e| e.arrival.id).collect();
        lost.iter().for_each(|&id| self.finish_early(id));
        self.affinity.lost(worker);
        if let Some(account) = self.workers.get_mut(&worker) {
            account.facts.healthy = false;
            (account.facts.kv_used, account.facts.tokens_per_second) = (0, 0.0);
        }
        self.changed = true;
        lost
    }

    /// Whether the books add up: every dispatched generation is in exactly one worker's account.
    pub fn check(&self) -> bool {
        let waiting = self.entries.values().filter(|e| e.stage == Stage::Waiting).count();
        let on_workers = self.entries.len() - waiting;
        waiting == self.waiting()
            && self.gate.check()
            && self.workers.values().all(|w| w.running <= w.sequences && w.on_their_way.len() <= w.running as usize)
            && self.workers.values().map(|w| w.running as usize).sum::<usize>() == on_workers
    }

    /// A scheduling point, if anything happened since the last one. `now` counts from the pool's start.
    pub fn schedule(&mut self, now: Duration) -> Vec<Output> {
        self.now = now;
        let mut out = Vec::new();
        self.expire(&mut out);
        if self.hook.generation() != self.generation {
            self.generation = self.hook.generation();
            self.backoff = FIRST_BACKOFF;
            self.open();
        } else if self.retry.is_some_and(|at| at <= now) {
            self.open();
        }
        if self.events.is_empty() && !self.changed && !self.replay {
            return out;
        }
        let actions = match self.ask() {
            Ok(actions) => actions,
            Err(fault) => self.ask_native(&fault),
        };
        for action in actions {
            self.carry_out(action, &mut out);
        }
        out
    }

    /// Takes a fresh instance of the policy in force, or the native scheduler.
    fn open(&mut self) {
        self.retry = None;
        self.replay = true;
        self.opened = self.now;
        match self.hook.open() {
            Ok(Some((name, scheduler))) => {
                self.scheduler = scheduler;
                self.policy = Some(name);
            }
            Ok(None) => {
                self.use_native();
                self.note_return();
            }
            Err(fault) => self.replace(&fault),
        }
    }

    /// The native scheduler decides until the policy is tried again.
    fn replace(&mut self, fault: &Fault) {
        self.use_native();
        self.retry_later();
        if self.replaced != Some(self.generation) {
            self.replaced = Some(self.generation);
            self.hook.replaced(fault);
        }
    }

    /// What is in force decides, after it was replaced.
    fn note_return(&mut self) {
        if self.replaced.take().is_some() {
            self.hook.returned(self.policy.as_ref());
        }
    }

    fn use_native(&mut self) {
        self.scheduler = Box::new(Fcfs::default());
        self.policy = None;
        self.replay = true;
    }

    fn retry_later(&mut self) {
        self.retry = Some(self.now + self.backoff);
        self.backoff = (self.backoff * 2).min(LONGEST_BACKOFF);
    }

    fn ask(&mut self) -> Result<Vec<Action>, Fault> {
        let events = std::mem::take(&mut self.events);
        let events = if self.replay { self.whole_state() } else { events };
        let point = SchedulingPoint { now: self.now, replay: self.replay, events, workers: self.worker_facts() };
        (self.replay, self.changed) = (false, false);
        let actions = self.scheduler.schedule(&point)?;
        match self.refuse(&actions) {
            None => {
                if self.policy.is_some() {
                    // One good answer is no recovery: a policy that faults at every second point would be tried for ever.
                    if self.now.saturating_sub(self.opened) >= self.backoff {
                        self.backoff = FIRST_BACKOFF;
                    }
                    self.note_return();
                }
                Ok(actions)
            }
            Some(detail) => {
                let plugin = self.policy.clone().unwrap_or_else(|| PolicyName::from("native"));
                let fault = Fault { plugin, kind: FaultKind::InvalidOutput, detail };
                self.hook.refused(&fault);
                Err(fault)
            }
        }
    }

    /// The native scheduler takes over. It never faults on a true replay.
    fn ask_native(&mut self, fault: &Fault) -> Vec<Action> {
        self.replace(fault);
        self.ask().unwrap_or_default()
    }

    /// Everything as events, in order of arrival.
    fn whole_state(&self) -> Vec<SchedulerEvent> {
        let mut entries: Vec<&Entry> = self.entries.values().collect();
        entries.sort_unstable_by_key(|entry| entry.place);
        let mut events = Vec::with_capacity(entries.len());
        for entry in entries {
            events.push(SchedulerEvent::Arrived(entry.arrival.clone()));
            if let Some(worker) = entry.stage.worker() {
                let id = entry.arrival.id;
                events.push(SchedulerEvent::Dispatched { id, worker });
                if let Some((prompt_tokens, generated_tokens)) = entry.progress {
                    events.push(SchedulerEvent::Progressed { id, prompt_tokens, generated_tokens });
                }
                if entry.preempted {
                    events.push(SchedulerEvent::Preempted { id });
                }
            }
        }
        events
    }

    /// Why the actions cannot be carried out; `None` if they can.
    fn refuse(&self, actions: &[Action]) -> Option<String> {
        let mut workers: BTreeMap<WorkerId, WorkerFacts> =
            self.workers.iter().map(|(&id, account)| (id, account.facts())).collect();
        let mut chosen = std::collections::HashSet::new();
        for action in actions {
            match action {
                Action::Preempt { id } => {
                    let on_worker = self.entries.get(id).is_some_and(|entry| entry.stage.worker().is_some());
                    if !on_worker {
                        return Some(format!("preempts request {id}, which does not run"));
                    }
                }
                Action::PrefillBudget { worker, .. } if !workers.contains_key(worker) => {
                    return Some(format!("sets the budget of unknown worker {worker}"));
                }
                Action::PrefillBudget { .. } => {}
                Action::Reject { id, .. } | Action::Dispatch { id, .. } => {
                    match self.entries.get(id) {
                        Some(entry) if entry.stage == Stage::Waiting => {}
                        Some(_) => return Some(format!("request {id} is not waiting")),
                        None => return Some(format!("request {id} is unknown")),
                    }
                    if !chosen.insert(*id) {
                        return Some(format!("request {id} is named twice"));
                    }
                }
            }
            if let Action::Dispatch { id, worker } = action {
                let Some(facts) = workers.get_mut(worker).filter(|w| w.healthy) else {
                    return Some(format!("worker {worker} is unknown or down"));
                };
                let need = self.entries.get(id).map_or(0, |entry| entry.arrival.need);
                if facts.free_sequences == 0 || facts.kv_free < need {
                    let (sequences, kv) = (facts.free_sequences, facts.kv_free);
                    return Some(format!(
                        "worker {worker} is full: request {id} needs {need} KV tokens, {kv} and {sequences} sequences are free"
                    ));
                }
                facts.free_sequences -= 1;
                facts.kv_free -= need;
            }
        }
        None
    }

    /// Where a dispatched generation really goes: to the worker that keeps its session if that has room, otherwise where
    /// the scheduler said, unless one of another session took that place.
    fn place_for(&self, id: RequestId, said: WorkerId) -> WorkerId {
        let Some(entry) = self.entries.get(&id) else { return said };
        let need = entry.arrival.need;
        let session = entry.start.as_ref().and_then(|start| start.session.as_ref());
        let home = session.and_then(|session| {
            let healthy: Vec<WorkerId> =
                self.workers.iter().filter(|(_, account)| account.facts.healthy).map(|(&id, _)| id).collect();
            let mut hash = DefaultHasher::new();
            (session, entry.start.as_ref().map(|start| &start.namespace)).hash(&mut hash);
            healthy.get(hash.finish() as usize % healthy.len().max(1)).copied()
        });
        let fits = |worker: &WorkerId, need: u32| {
            self.workers
                .get(worker)
                .map(WorkerAccount::facts)
                .is_some_and(|facts| facts.healthy && facts.free_sequences > 0 && facts.kv_free >= need)
        };
        home.filter(|home| fits(home, need))
            .or_else(|| Some(said).filter(|said| fits(said, 0)))
            .or_else(|| self.workers.keys().copied().find(|worker| fits(worker, 0)))
            .unwrap_or(said)
    }

    fn carry_out(&mut self, action: Action, out: &mut Vec<Output>) {
        match action {
            Action::Preempt { id } => {
                if let Some(worker) = self.entries.get(&id).and_then(|entry| entry.stage.worker()) {
                    out.push(Output::Send { worker, command: Command::Preempt { id } });
                }
            }
            Action::PrefillBudget { worker, tokens } => {
                // A worker that is down begins again with its own choice.
                if !self.workers.get(&worker).is_some_and(|account| account.facts.healthy) {
                    return;
                }
                out.push(Output::Send { worker, command: Command::PrefillBudget { tokens } });
            }
            Action::Reject { id, message } => {
                self.forget_waiting(id);
                out.push(Output::Fail { id, error: WorkerError::Rejected(message) });
            }
            Action::Dispatch { id, worker } => {
                let worker = self.place_for(id, worker);
                let (Some(entry), Some(account)) = (self.entries.get_mut(&id), self.workers.get_mut(&worker)) else {
                    return;
                };
                let (Ok(()), Some(start)) = (entry.stage.dispatch(worker), entry.start.take()) else { return };
                let need = entry.arrival.need;
                account.on_their_way.insert(id, need);
                account.running += 1;
                self.affinity.dispatched(id, worker, &entry.blocks);
                self.events.push(SchedulerEvent::Dispatched { id, worker });
                let waited = self.now.saturating_sub(entry.arrival.arrived);
                self.gate.leave(&entry.arrival.tenant);
                out.push(Output::Start { worker, start, need, waited });
            }
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
