//! The rig of the pool's tests: schedulers that are closures, requests of one kind, workers that the test plays.
#[path = "pool_tests/books.rs"]
mod books;
#[path = "pool_tests/bounds.rs"]
mod bounds;
#[path = "pool_tests/checkpoints.rs"]
mod checkpoints;
#[path = "pool_tests/placement.rs"]
mod placement;
#[path = "pool_tests/queue.rs"]
mod queue;
#[path = "pool_tests/requests.rs"]
mod requests;
#[path = "pool_tests/scheduler.rs"]
mod scheduler;

use std::sync::{Arc, Mutex};

use proptest::prelude::*;

use super::*;
use crate::breaker::BreakerSettings;
use crate::ids::{Generation, PolicyDigest, PolicyName};
use crate::message::{Event, FinishReason, Usage};
use crate::policy::{Checkpoint, Ending, FaultKind, Priority, Rejection, Restored, Scheduler, SchedulerEvent};
use crate::sampling::SamplingParams;
use crate::segments::Namespace;

const LIMITS: EngineLimits = EngineLimits { sequences: 2, kv_tokens: 100, batch_tokens: 64, context_tokens: 100 };
const W: WorkerId = WorkerId(0);

type Answer = Box<dyn FnMut(&SchedulingPoint) -> Result<Vec<Action>, Fault> + Send>;

/// A hook whose schedulers are closures; counts what it is asked.
#[derive(Default)]
struct Scripted {
    answers: Mutex<Vec<Answer>>,
    generation: Mutex<u64>,
    breaker: Mutex<Option<BreakerSettings>>,
    opened: Mutex<u32>,
    refusals: Mutex<Vec<String>>,
    /// What was told of take-overs (`true`) and returns.
    turns: Mutex<Vec<(bool, String)>>,
    /// What becomes of checkpoints; `None`: its schedulers leave none.
    legacy: Option<Arc<Mutex<Legacy>>>,
}

/// What schedulers of one plugin leave and take.
#[derive(Debug)]
struct Legacy {
    lineage: String,
    leaves: Option<Checkpoint>,
    answers: Restored,
    /// Checkpoints that were saved, and those that were given to an instance.
    saved: u32,
    given: Vec<Checkpoint>,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

struct Closure {
    answer: Answer,
    lineage: Option<String>,
    legacy: Option<Arc<Mutex<Legacy>>>,
}

impl Scheduler for Closure {
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
        (self.answer)(point)
    }

    fn lineage(&self) -> Option<&str> {
        self.lineage.as_deref()
    }

    fn save(&mut self) -> Option<Checkpoint> {
        let mut legacy = self.legacy.as_ref()?.lock().unwrap();
        legacy.saved += 1;
        legacy.leaves.clone()
    }

    fn restore(&mut self, checkpoint: Checkpoint) -> Restored {
        let mut legacy = self.legacy.as_ref().unwrap().lock().unwrap();
        legacy.given.push(checkpoint);
        legacy.answers
    }
}

impl SchedulerHook for Scripted {
    fn generation(&self, _: Duration) -> Generation {
        Generation(*self.generation.lock().unwrap())
    }

    fn breaker(&self, _: Duration) -> BreakerSettings {
        self.breaker.lock().unwrap().unwrap_or(BreakerSettings::SINGLE)
    }

    fn open(&self, _: Duration) -> Result<Option<(PolicyName, Box<dyn Scheduler>)>, Fault> {
        *self.opened.lock().unwrap() += 1;
        let answer = self.answers.lock().unwrap().pop();
        let legacy = self.legacy.clone();
        let lineage = legacy.as_ref().map(|legacy| legacy.lock().unwrap().lineage.clone());
        let scheduler = |answer| Box::new(Closure { answer, lineage, legacy }) as Box<dyn Scheduler>;
        Ok(answer.map(|answer| (PolicyName::from("scripted"), scheduler(answer))))
    }

    fn refused(&self, fault: &Fault) {
        self.refusals.lock().unwrap().push(fault.detail.clone());
    }

    fn replaced(&self, fault: &Fault) {
        self.turns.lock().unwrap().push((true, fault.detail.clone()));
    }

    fn returned(&self, policy: Option<&PolicyName>) {
        self.turns.lock().unwrap().push((false, policy.map_or("native", PolicyName::as_str).to_owned()));
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn arrival(id: u64, now: Duration) -> Arrival {
    Arrival {
        id: RequestId(id),
        arrived: now,
        tenant: "t".into(),
        priority: Default::default(),
        weight: 1.0,
        deadline: None,
        prompt_tokens: 10,
        max_tokens: 30,
        need: 40,
        cached: Vec::new(),
        attributes: Default::default(),
    }
}

fn start(id: u64) -> Box<Start> {
    Box::new(Start {
        id: RequestId(id),
        model: "m".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        adapters: Default::default(),
        session: None,
        priority: Default::default(),
        endpoint: crate::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        context: Default::default(),
        prompt: vec![crate::ids::Token(1); 10].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 30,
        stop: Vec::new(),
        ignore_eos: false,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
    })
}

fn pool(hook: &Arc<Scripted>) -> Pool {
    let mut pool = Pool::new(hook.clone(), Watermarks { high: 4, low: 3 }, Reserve::Full);
    pool.add_worker(W, LIMITS);
    pool
}

fn submit(pool: &mut Pool, id: u64, now: Duration) -> Result<(), QueueFull> {
    pool.submit(new(id, now))
}

fn new(id: u64, now: Duration) -> NewRequest {
    NewRequest {
        start: start(id),
        first_choice: RequestId(id),
        arrived: now,
        deadline: None,
        weight: 1.0,
        queue_share: None,
        hints: Arc::default(),
    }
}

fn finished(id: u64) -> Event {
    Event::Finished { id: RequestId(id), reason: FinishReason::Stop, usage: Usage::default() }
}

/// A report of one event, by a worker with all its KV free.
fn tell_of(pool: &mut Pool, worker: WorkerId, event: Event) {
    let facts = pool.worker_facts().into_iter().find(|facts| facts.worker == worker).unwrap();
    let facts = WorkerFacts { kv_free: facts.kv_total, ..facts };
    pool.apply(worker, Report { events: vec![event], ..Report::of(facts) });
}

fn tell(pool: &mut Pool, event: Event) {
    tell_of(pool, W, event);
}

fn started(outputs: &[Output]) -> Vec<u64> {
    outputs.iter().filter_map(|o| if let Output::Start { start, .. } = o { Some(start.id.0) } else { None }).collect()
}
