//! Schedulers: one long-lived instance per pool, with events and actions as parallel lists.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::policy::{
    Action, Arrival, Checkpoint, Fault, FaultKind, NamedScheduler, Rejection, Restored, Scheduler, SchedulerEvent,
    SchedulingPoint, WorkerFacts,
};
use camshaft_core::shown::on_one_line;
use wasmtime::Store;
use wasmtime::component::Resource;

use crate::bindings::checkpoint::Checkpoints;
use crate::bindings::scheduler as wit;
use crate::imports::pool::{MESSAGE_CHARS, Pool, PoolView, Wishes};
use crate::loaded::{HookPre, Loaded};
use crate::metrics::Outcome;
use crate::store::{self, GuestState, Subject};
use crate::tenants::Tenants;
use crate::text::{truncate_chars, truncated};

/// Maximum number of entries in a list of actions.
const ACTIONS: usize = 65_536;
/// Maximum bytes of what an instance leaves to the next one.
const CHECKPOINT_BYTES: usize = 1 << 20;
/// Maximum bytes of a plugin's name, and of the reason for which it refuses a checkpoint.
const NAME_BYTES: usize = 128;
const WHY_BYTES: usize = 1024;
/// Events of a replay for which a scheduler has another deadline.
const EVENTS_PER_DEADLINE: usize = 1000;

/// A fresh instance of a scheduler for a model's pool.
pub(crate) fn open(policy: &Arc<Loaded>, model: &str) -> Result<NamedScheduler, Fault> {
    let started = Instant::now();
    match Guest::start(policy, model) {
        Ok(guest) => Ok((policy.name.clone(), Box::new(guest))),
        Err(fault) => {
            policy.note_fault(&fault, started);
            Err(fault)
        }
    }
}

/// A pool's scheduler.
struct Guest {
    policy: Arc<Loaded>,
    store: Store<GuestState>,
    guest: wit::SchedulerPolicy,
    /// `None`: it leaves nothing to the next instance.
    legacy: Option<Legacy>,
    /// Refilled for every call, to reuse its lists' memory.
    point: wit::Point,
}

/// How an instance hands over what it knows.
struct Legacy {
    checkpoints: Checkpoints,
    /// What the plugin calls itself.
    plugin: String,
}

impl Guest {
    fn start(policy: &Arc<Loaded>, model: &str) -> Result<Self, Fault> {
        let HookPre::Scheduler(pre) = &policy.compiled.pre else {
            return Err(policy.fault(FaultKind::Unavailable, "not a scheduler policy"));
        };
        let mut store = policy.store(None);
        store.data_mut().subject = Subject::Pool(Box::new(Pool::new(model)));
        let mut call = || {
            let instance = pre.instance_pre().instantiate(&mut store)?;
            let guest = wit::SchedulerPolicy::new(&mut store, &instance)?;
            let legacy = if policy.compiled.has_checkpoint() {
                let checkpoints = Checkpoints::new(&mut store, &instance)?;
                let said = guest.camshaft_host_plugin().call_describe(&mut store)?;
                Some(Legacy { checkpoints, plugin: truncated(&said.name, NAME_BYTES).to_owned() })
            } else {
                None
            };
            let accepted = guest.camshaft_host_plugin().call_configure(
                &mut store,
                &policy.sidecar.settings,
                Resource::new_borrow(0),
            )?;
            Ok(accepted.map(|()| (guest, legacy)))
        };
        let answer = call().map_err(|error: wasmtime::Error| policy.fault_of(&error, store.data()))?;
        let (guest, legacy) = answer.map_err(|text: String| policy.refused_settings(&text))?;
        Ok(Self { policy: policy.clone(), store, guest, legacy, point: empty_point() })
    }

    fn call(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
        if let Some(pool) = self.store.data_mut().pool() {
            fill(&mut self.point, &mut pool.tenants, point);
            pool.begin(point);
        }
        store::arm(&mut self.store, deadline_of(self.policy.sidecar.deadline, point));
        let answer =
            self.guest.camshaft_scheduler_policy().call_schedule(&mut self.store, &self.point, Resource::new_borrow(0));
        let wishes = self.store.data_mut().pool().map(Pool::end).unwrap_or_default();
        let answer = answer.map_err(|error| self.policy.fault_of(&error, self.store.data()))?;
        actions(answer, wishes).map_err(|text| self.policy.invalid(text))
    }

    /// What the instance leaves to the next one, if its plugin leaves anything.
    fn saved(&mut self) -> Option<Result<Vec<u8>, Fault>> {
        let Legacy { checkpoints, .. } = self.legacy.as_ref()?;
        store::arm(&mut self.store, self.policy.sidecar.deadline);
        let saved = checkpoints.camshaft_scheduler_checkpoint().call_save(&mut self.store);
        let saved = saved.map_err(|error| self.policy.fault_of(&error, self.store.data()));
        Some(saved.and_then(|bytes| match bytes.len() {
            ..=CHECKPOINT_BYTES => Ok(bytes),
            count => Err(self.policy.invalid(format!("a checkpoint of {count} bytes, over {CHECKPOINT_BYTES}"))),
        }))
    }
}

impl Scheduler for Guest {
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
        let started = Instant::now();
        let answer = self.call(point);
        // Those that have ended keep their tenants' names for the call.
        if let Some(pool) = self.store.data_mut().pool() {
            point.events.iter().filter_map(ended).for_each(|id| pool.tenants.leave(id));
        }
        match &answer {
            Ok(_) => {
                self.policy.note_call(Outcome::Actions, started);
                self.policy.health.judge_answer();
            }
            Err(fault) => self.policy.note_fault(fault, started),
        }
        answer
    }

    fn lineage(&self) -> Option<&str> {
        self.legacy.as_ref().map(|legacy| legacy.plugin.as_str())
    }

    fn save(&mut self) -> Option<Checkpoint> {
        let started = Instant::now();
        match self.saved()? {
            Ok(bytes) => Some(Checkpoint(bytes)),
            Err(fault) => {
                self.policy.note_fault(&fault, started);
                None
            }
        }
    }

    fn restore(&mut self, checkpoint: Checkpoint) -> Restored {
        let started = Instant::now();
        let Some(Legacy { checkpoints, plugin }) = &self.legacy else { return Restored::Refused };
        store::arm(&mut self.store, self.policy.sidecar.deadline);
        match checkpoints.camshaft_scheduler_checkpoint().call_restore(&mut self.store, &checkpoint.0) {
            Ok(Ok(())) => {
                tracing::info!(plugin, bytes = checkpoint.0.len(), "a scheduler goes on with what the last one left");
                Restored::Taken
            }
            Ok(Err(why)) => {
                let why = on_one_line(truncated(&why, WHY_BYTES));
                tracing::warn!(plugin, why, "a scheduler refused what the last one left, and begins without it");
                Restored::Refused
            }
            Err(error) => {
                let fault = self.policy.fault_of(&error, self.store.data());
                self.policy.note_fault(&fault, started);
                Restored::Refused
            }
        }
    }
}

/// A replay of a long queue takes longer than any other point, and comes once: without the time for it, a scheduler that was
/// swapped under load would never take over.
fn deadline_of(deadline: Duration, point: &SchedulingPoint) -> Duration {
    let more = if point.replay { point.events.len() / EVENTS_PER_DEADLINE } else { 0 };
    deadline.saturating_mul(u32::try_from(more).unwrap_or(u32::MAX).saturating_add(1))
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn fill(out: &mut wit::Point, tenants: &mut Tenants, point: &SchedulingPoint) {
    clear(out);
    out.now_ms = ms(point.now);
    out.replay = point.replay;
    for event in &point.events {
        match event {
            SchedulerEvent::Arrived(arrival) => push_arrival(out, tenants, arrival, &point.workers),
            SchedulerEvent::Dispatched { id, worker } => {
                out.dispatched_ids.push(id.0);
                out.dispatched_workers.push(worker.0);
            }
            SchedulerEvent::Progressed { id, prompt_tokens, generated_tokens } => {
                out.progressed_ids.push(id.0);
                out.progressed_prompt.push(*prompt_tokens);
                out.progressed_generated.push(*generated_tokens);
            }
            SchedulerEvent::Finished { id, generated_tokens, .. } => {
                out.finished_ids.push(id.0);
                out.finished_generated.push(*generated_tokens);
            }
            SchedulerEvent::Cancelled { id, .. } => out.cancelled_ids.push(id.0),
            SchedulerEvent::Preempted { id } => out.preempted_ids.push(id.0),
            // A record cannot grow: `pool.resumed` tells.
            SchedulerEvent::Resumed { .. } => {}
        }
    }
    point.workers.iter().for_each(|facts| push_worker(&mut out.workers, facts));
}

/// The request that an event ends.
fn ended(event: &SchedulerEvent) -> Option<RequestId> {
    match event {
        SchedulerEvent::Finished { id, .. } | SchedulerEvent::Cancelled { id, .. } => Some(*id),
        _ => None,
    }
}

fn push_arrival(out: &mut wit::Point, tenants: &mut Tenants, arrival: &Arrival, workers: &[WorkerFacts]) {
    let list = &mut out.arrived;
    list.ids.push(arrival.id.0);
    list.arrived_ms.push(ms(arrival.arrived));
    list.tenants.push(tenants.enter(arrival.id, &arrival.tenant));
    list.priorities.push(arrival.priority.number());
    list.weights.push(arrival.weight);
    // Zero means no deadline, so a deadline at time zero is moved by a millisecond.
    list.deadlines_ms.push(arrival.deadline.map_or(0, |deadline| ms(deadline).max(1)));
    list.prompt_tokens.push(arrival.prompt_tokens);
    list.max_tokens.push(arrival.max_tokens);
    list.need.push(arrival.need);
    list.cached_tokens.extend(workers.iter().map(|facts| arrival.cached_on(facts.worker)));
}

fn push_worker(list: &mut wit::Workers, facts: &WorkerFacts) {
    list.ids.push(facts.worker.0);
    list.healthy.push(facts.healthy);
    list.free_sequences.push(facts.free_sequences);
    list.running_sequences.push(facts.running_sequences);
    list.kv_free.push(facts.kv_free);
    list.kv_total.push(facts.kv_total);
    list.prefilling_tokens.push(facts.prefilling_tokens);
    list.tokens_per_second.push(facts.tokens_per_second);
    list.can_preempt.push(facts.can_preempt);
}

/// The actions of a guest's answer, in the order in which they are carried out.
fn actions(answer: wit::Actions, wishes: Wishes) -> Result<Vec<Action>, String> {
    let equal = |what: &str, a: usize, b: usize| match a {
        _ if a != b => Err(format!("{what}: lists of {a} and {b}")),
        _ if a > ACTIONS => Err(format!("{what}: {a} entries, over {ACTIONS}")),
        _ => Ok(()),
    };
    equal("preemptions", answer.preempt_ids.len(), answer.preempt_ids.len())?;
    equal("rejections", answer.reject_ids.len(), answer.reject_messages.len())?;
    equal("dispatches", answer.dispatch_ids.len(), answer.dispatch_workers.len())?;
    equal("budgets", answer.budget_workers.len(), answer.budget_tokens.len())?;
    let preemptions = answer.preempt_ids.into_iter().map(|id| Action::Preempt { id: RequestId(id) });
    let rejections = answer.reject_ids.into_iter().zip(answer.reject_messages).map(|(id, message)| {
        let rejection = Rejection::new(truncate_chars(message, MESSAGE_CHARS));
        Action::Reject { id: RequestId(id), rejection }
    });
    let rejections = rejections.chain(wishes.rejections);
    let dispatches = answer.dispatch_ids.into_iter().zip(answer.dispatch_workers);
    let dispatches = dispatches.map(|(id, worker)| Action::Dispatch { id: RequestId(id), worker: WorkerId(worker) });
    let budgets = answer.budget_workers.into_iter().zip(answer.budget_tokens);
    let budgets = budgets.map(|(worker, tokens)| Action::PrefillBudget { worker: WorkerId(worker), tokens });
    Ok(preemptions.chain(rejections).chain(dispatches).chain(budgets).chain(wishes.wake).collect())
}

fn empty_point() -> wit::Point {
    wit::Point {
        now_ms: 0,
        replay: false,
        arrived: wit::Arrivals {
            ids: Vec::new(),
            arrived_ms: Vec::new(),
            tenants: Vec::new(),
            priorities: Vec::new(),
            weights: Vec::new(),
            deadlines_ms: Vec::new(),
            prompt_tokens: Vec::new(),
            max_tokens: Vec::new(),
            need: Vec::new(),
            cached_tokens: Vec::new(),
        },
        dispatched_ids: Vec::new(),
        dispatched_workers: Vec::new(),
        progressed_ids: Vec::new(),
        progressed_prompt: Vec::new(),
        progressed_generated: Vec::new(),
        finished_ids: Vec::new(),
        finished_generated: Vec::new(),
        cancelled_ids: Vec::new(),
        preempted_ids: Vec::new(),
        workers: wit::Workers {
            ids: Vec::new(),
            healthy: Vec::new(),
            free_sequences: Vec::new(),
            running_sequences: Vec::new(),
            kv_free: Vec::new(),
            kv_total: Vec::new(),
            prefilling_tokens: Vec::new(),
            tokens_per_second: Vec::new(),
            can_preempt: Vec::new(),
        },
    }
}

fn clear(point: &mut wit::Point) {
    let wit::Point { now_ms: _, replay: _, arrived, workers, .. } = point;
    arrived.ids.clear();
    arrived.arrived_ms.clear();
    arrived.tenants.clear();
    arrived.priorities.clear();
    arrived.weights.clear();
    arrived.deadlines_ms.clear();
    arrived.prompt_tokens.clear();
    arrived.max_tokens.clear();
    arrived.need.clear();
    arrived.cached_tokens.clear();
    workers.ids.clear();
    workers.healthy.clear();
    workers.free_sequences.clear();
    workers.running_sequences.clear();
    workers.kv_free.clear();
    workers.kv_total.clear();
    workers.prefilling_tokens.clear();
    workers.tokens_per_second.clear();
    workers.can_preempt.clear();
    point.dispatched_ids.clear();
    point.dispatched_workers.clear();
    point.progressed_ids.clear();
    point.progressed_prompt.clear();
    point.progressed_generated.clear();
    point.finished_ids.clear();
    point.finished_generated.clear();
    point.cancelled_ids.clear();
    point.preempted_ids.clear();
}

#[cfg(test)]
mod tests {
    use camshaft_core::policy::EmptyBooks;

    use super::*;

    #[test]
    fn only_a_replay_has_more_time_the_longer_it_is() {
        let deadline = Duration::from_millis(5);
        let events = |n| (0..n).map(|id| SchedulerEvent::Resumed { id: RequestId(id) }).collect();
        let point = |replay, n| SchedulingPoint {
            now: deadline,
            replay,
            events: events(n),
            workers: Vec::new(),
            books: Arc::new(EmptyBooks),
        };
        for (replay, events, times) in [(false, 10_000, 1), (true, 999, 1), (true, 1000, 2), (true, 10_000, 11)] {
            assert_eq!(deadline_of(deadline, &point(replay, events)), deadline * times, "{replay} {events}");
        }
    }
}
