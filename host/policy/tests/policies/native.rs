//! The shipped schedulers in their native builds, behind core's hook: the SDK's trait without a component around it.
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use camshaft_core::ids::{Generation, PolicyName, RequestId, WorkerId};
use camshaft_core::policy::{
    Action, Arrival, Fault, NamedScheduler, Rejection, Scheduler, SchedulerEvent, SchedulerHook, SchedulingPoint,
    WorkerFacts,
};
use camshaft_plugin::scheduler as sdk;

/// A policy, opened: points in, actions out.
type Opened = Box<dyn FnMut(&sdk::Point<'_>) -> sdk::Actions>;

thread_local! {
    /// Core's schedulers are `Send`, the SDK's policies need not be: they stay on the thread that opened them.
    static OPENED: RefCell<BTreeMap<u64, Opened>> = const { RefCell::new(BTreeMap::new()) };
}

/// A shipped scheduler's native build with its default settings.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NativeBuild {
    pub(crate) name: &'static str,
    open: fn() -> Opened,
}

pub(crate) const NATIVE_BUILDS: [NativeBuild; 7] = [
    NativeBuild { name: "scheduler-fcfs", open: open::<scheduler_fcfs::FirstComeFirstServed> },
    NativeBuild { name: "scheduler-priority", open: open::<scheduler_priority::StrictClasses> },
    NativeBuild { name: "scheduler-fair", open: open::<scheduler_fair::FairShares> },
    NativeBuild { name: "scheduler-shortest-first", open: open::<scheduler_shortest_first::ShortestFirst> },
    NativeBuild { name: "scheduler-round-robin", open: open::<scheduler_round_robin::RoundRobin> },
    NativeBuild { name: "scheduler-least-loaded", open: open::<scheduler_least_loaded::LeastLoaded> },
    NativeBuild { name: "scheduler-memory-aware", open: open::<scheduler_memory_aware::MemoryAware> },
];

fn open<P>() -> Opened
where
    P: sdk::Policy,
    P::Settings: Default,
{
    let mut policy = P::new(P::Settings::default()).unwrap();
    Box::new(move |point| policy.schedule(point))
}

impl SchedulerHook for NativeBuild {
    fn generation(&self, _: Duration) -> Generation {
        Generation(0)
    }

    fn open(&self, _: Duration) -> Result<Option<NamedScheduler>, Fault> {
        let policy = (self.open)();
        let number = OPENED.with_borrow_mut(|opened| {
            let number = opened.last_key_value().map_or(0, |(last, _)| last + 1);
            opened.insert(number, policy);
            number
        });
        Ok(Some((PolicyName::from(self.name), Box::new(Adapter { number, tenants: Vec::new() }))))
    }

    fn refused(&self, _: &Fault) {}

    fn replaced(&self, _: &Fault) {}

    fn returned(&self, _: Option<&PolicyName>) {}
}

/// The native scheduler of core: no policy is in force.
#[derive(Debug)]
pub(crate) struct NoPolicy;

impl SchedulerHook for NoPolicy {
    fn generation(&self, _: Duration) -> Generation {
        Generation(0)
    }

    fn open(&self, _: Duration) -> Result<Option<NamedScheduler>, Fault> {
        Ok(None)
    }

    fn refused(&self, _: &Fault) {}

    fn replaced(&self, _: &Fault) {}

    fn returned(&self, _: Option<&PolicyName>) {}
}

/// Stands for a policy in [`OPENED`].
struct Adapter {
    number: u64,
    /// Names of tenants by their numbers.
    tenants: Vec<String>,
}

impl Drop for Adapter {
    fn drop(&mut self) {
        OPENED.with_borrow_mut(|opened| opened.remove(&self.number));
    }
}

impl Scheduler for Adapter {
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
        let point = translate(&mut self.tenants, point);
        let ask = |opened: &mut BTreeMap<u64, Opened>| opened.get_mut(&self.number).unwrap()(&point);
        Ok(actions(OPENED.with_borrow_mut(ask)))
    }
}

/// As the host fills a guest's point.
fn translate(tenants: &mut Vec<String>, point: &SchedulingPoint) -> sdk::Point<'static> {
    let mut arrivals = Vec::new();
    for event in &point.events {
        if let SchedulerEvent::Arrived(arrival) = event {
            let name = arrival.tenant.to_string();
            let index = tenants.iter().position(|tenant| *tenant == name).unwrap_or(tenants.len());
            if index == tenants.len() {
                tenants.push(name);
            }
            arrivals.push(sdk_arrival(arrival, index as u32));
        }
    }
    let workers: Vec<sdk::Worker> = point.workers.iter().map(sdk_worker).collect();
    let mut out = sdk::testing::point(&arrivals, &workers).tenants(tenants.iter().cloned());
    (out.now_ms, out.replay) = (point.now.as_millis() as u64, point.replay);
    for event in &point.events {
        match *event {
            SchedulerEvent::Arrived(_) => {}
            SchedulerEvent::Dispatched { id, worker } => {
                out.dispatched_ids.push(id.0);
                out.dispatched_workers.push(worker.0);
            }
            SchedulerEvent::Progressed { id, prompt_tokens, generated_tokens } => {
                out.progressed_ids.push(id.0);
                out.progressed_prompt.push(prompt_tokens);
                out.progressed_generated.push(generated_tokens);
            }
            SchedulerEvent::Finished { id, generated_tokens, .. } => {
                out.finished_ids.push(id.0);
                out.finished_generated.push(generated_tokens);
            }
            SchedulerEvent::Cancelled { id, .. } => out.cancelled_ids.push(id.0),
            SchedulerEvent::Preempted { id } => out.preempted_ids.push(id.0),
            SchedulerEvent::Resumed { .. } => {}
        }
    }
    out
}

fn sdk_arrival(arrival: &Arrival, tenant: u32) -> sdk::Arrival {
    sdk::Arrival {
        id: arrival.id.0,
        arrived_ms: arrival.arrived.as_millis() as u64,
        tenant,
        priority: arrival.priority.number(),
        weight: arrival.weight,
        deadline_ms: arrival.deadline.map_or(0, |deadline| deadline.as_millis() as u64),
        prompt_tokens: arrival.prompt_tokens,
        max_tokens: arrival.max_tokens,
        need: arrival.need,
        cached: arrival
            .cached
            .iter()
            .map(|cached| sdk::CachedPrefix { worker: cached.worker.0, tokens: cached.tokens })
            .collect(),
    }
}

fn sdk_worker(facts: &WorkerFacts) -> sdk::Worker {
    sdk::Worker {
        id: facts.worker.0,
        healthy: facts.healthy,
        free_sequences: facts.free_sequences,
        running_sequences: facts.running_sequences,
        kv_free: facts.kv_free,
        kv_total: facts.kv_total,
        prefilling_tokens: facts.prefilling_tokens,
        tokens_per_second: facts.tokens_per_second,
        can_preempt: facts.can_preempt,
    }
}

fn actions(answer: sdk::Actions) -> Vec<Action> {
    let preemptions = answer.preempt_ids.into_iter().map(|id| Action::Preempt { id: RequestId(id) });
    let rejections = answer.reject_ids.into_iter().zip(answer.reject_messages);
    let reject = |(id, message)| Action::Reject { id: RequestId(id), rejection: Rejection::new(message) };
    let rejections = rejections.map(reject);
    let dispatches = answer.dispatch_ids.into_iter().zip(answer.dispatch_workers);
    let dispatches = dispatches.map(|(id, worker)| Action::Dispatch { id: RequestId(id), worker: WorkerId(worker) });
    let budgets = answer.budget_workers.into_iter().zip(answer.budget_tokens);
    let budgets = budgets.map(|(worker, tokens)| Action::PrefillBudget { worker: WorkerId(worker), tokens });
    preemptions.chain(rejections).chain(dispatches).chain(budgets).collect()
}
