use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::EngineLimits;
use crate::ids::{PolicyDigest, PolicyName, WorkerId};
use crate::message::{Event, FinishReason, Start, Usage};
use crate::policy::{Action, NamedScheduler, SchedulingPoint, Waits};
use crate::pool::{NewRequest, Output, Pool, VIRTUAL_WAITING, Watermarks};
use crate::report::Report;
use crate::reserve::Reserve;
use crate::sampling::SamplingParams;
use crate::segments::Namespace;

const W: WorkerId = WorkerId(0);
const LIMITS: EngineLimits = EngineLimits { sequences: 1, kv_tokens: 1000, batch_tokens: 64, context_tokens: 100 };

type Answer = fn(&SchedulingPoint) -> Result<Vec<Action>, Fault>;

/// The native scheduler is in force, and what the function answers is monitored.
#[derive(Debug)]
struct Hook {
    monitored: Mutex<Option<(u64, Answer)>>,
    opened: Mutex<u32>,
    seen: Mutex<Vec<String>>,
}

struct Scripted(Answer);

impl Scheduler for Scripted {
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
        (self.0)(point)
    }
}

impl SchedulerHook for Hook {
    fn generation(&self, _: Duration) -> Generation {
        Generation(1)
    }

    fn open(&self, _: Duration) -> Result<Option<NamedScheduler>, Fault> {
        Ok(None)
    }

    fn refused(&self, fault: &Fault) {
        panic!("{fault}");
    }

    fn replaced(&self, fault: &Fault) {
        panic!("{fault}");
    }

    fn returned(&self, _: Option<&PolicyName>) {}

    fn monitored(&self) -> Option<Generation> {
        self.monitored.lock().unwrap().as_ref().map(|(generation, _)| Generation(*generation))
    }

    fn open_monitored(&self) -> Result<Option<NamedScheduler>, Fault> {
        *self.opened.lock().unwrap() += 1;
        let scripted = self.monitored.lock().unwrap();
        Ok(scripted.as_ref().map(|(_, answer)| ("x".into(), Box::new(Scripted(*answer)) as Box<dyn Scheduler>)))
    }

    fn observed(&self, seen: Observation<'_>) {
        let told = match seen {
            Observation::Differs(kind) => kind.as_str().to_owned(),
            Observation::Waited(Waits { monitored, enforced }) => {
                format!("waited {} {}", monitored.as_millis(), enforced.as_millis())
            }
            Observation::Waiting(count) => format!("waiting {count}"),
            Observation::Skipped => "skipped".to_owned(),
            Observation::Refused(fault) => format!("refused {}", fault.detail),
            Observation::Opened { fault, .. } => format!("opened {}", fault.kind.as_str()),
            Observation::Closed => "closed".to_owned(),
        };
        self.seen.lock().unwrap().push(told);
    }
}

impl Hook {
    fn seen(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock().unwrap())
    }
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn pool(answer: Option<Answer>) -> (Arc<Hook>, Pool) {
    let monitored = Mutex::new(answer.map(|answer| (7, answer)));
    let hook = Arc::new(Hook { monitored, opened: Mutex::default(), seen: Mutex::default() });
    let high = 2 * VIRTUAL_WAITING;
    let mut pool = Pool::new(hook.clone(), Watermarks { high, low: 1 }, Reserve::Full);
    pool.add_worker(W, LIMITS);
    (hook, pool)
}

/// The same, with a scheduler that was asked before anything came.
fn opened(answer: Answer) -> (Arc<Hook>, Pool) {
    let (hook, mut pool) = pool(Some(answer));
    step(&mut pool, 0);
    assert_eq!(hook.seen(), ["waiting 0"]);
    (hook, pool)
}

fn submit(pool: &mut Pool, id: u64, max_tokens: u32, now: Duration) {
    let id = RequestId(id);
    let start = Start {
        id,
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
        prompt: vec![crate::ids::Token(1); 4].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens,
        stop: Vec::new(),
        ignore_eos: false,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
    };
    let start = Box::new(start);
    let new = NewRequest {
        start,
        first_choice: id,
        arrived: now,
        deadline: None,
        weight: 1.0,
        queue_share: None,
        hints: Arc::default(),
    };
    pool.submit(new).unwrap();
}

/// Schedules and asks the monitored one; who was started.
fn step(pool: &mut Pool, now: u64) -> Vec<u64> {
    let outputs = pool.schedule(ms(now));
    pool.monitor(ms(now), false);
    assert!(pool.check());
    let started = |output: Output| match output {
        Output::Start { start, .. } => Some(start.id.0),
        _ => None,
    };
    outputs.into_iter().filter_map(started).collect()
}

fn finish(pool: &mut Pool, id: u64) {
    let facts = crate::policy::WorkerFacts {
        free_sequences: 1,
        running_sequences: 0,
        kv_free: 1000,
        ..pool.worker_facts().pop().unwrap()
    };
    let usage = Usage { generated_tokens: 9, ..Usage::default() };
    let event = Event::Finished { id: RequestId(id), reason: FinishReason::Stop, usage };
    pool.apply(W, Report { events: vec![event], ..Report::of(facts) });
}

/// The last of those that arrived first.
fn last(point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
    let free = point.workers[0].free_sequences > 0;
    let arrived = point.events.iter().rev().find_map(|event| match event {
        SchedulerEvent::Arrived(arrival) => Some(arrival.id),
        _ => None,
    });
    Ok(arrived.filter(|_| free).map(|id| Action::Dispatch { id, worker: W }).into_iter().collect())
}

#[test]
fn what_it_would_do_otherwise_is_told_and_changes_nothing() {
    let run = |answer: Option<Answer>| {
        let (hook, mut pool) = answer.map_or_else(|| pool(None), opened);
        (1..=3).for_each(|id| submit(&mut pool, id, 9, ms(0)));
        let mut started = vec![step(&mut pool, 1)];
        for (id, now) in [(1, 10), (2, 20), (3, 30)] {
            finish(&mut pool, id);
            started.push(step(&mut pool, now));
        }
        (started, hook.seen())
    };
    let (started, seen) = run(Some(last));
    assert_eq!(started, [vec![1], vec![2], vec![3], vec![]]);
    assert_eq!(started, run(None).0);
    assert_eq!(seen[..2], ["first-choice", "waiting 2"]);
    assert!(seen.contains(&"waited 1 20".to_owned()), "{seen:?}");
}

#[test]
fn one_that_faults_is_asked_again_after_its_breakers_pause() {
    let refused: Answer = |_| Ok(vec![Action::Dispatch { id: RequestId(99), worker: W }]);
    let (hook, mut pool) = pool(Some(refused));
    submit(&mut pool, 1, 9, ms(0));
    assert_eq!(step(&mut pool, 1), [1]);
    assert_eq!(hook.seen(), ["refused request 99 is unknown", "opened invalid_output"]);
    submit(&mut pool, 2, 9, ms(2));
    step(&mut pool, 999);
    assert_eq!((hook.seen(), *hook.opened.lock().unwrap()), (Vec::new(), 1));
    step(&mut pool, 1001);
    assert_eq!(hook.seen(), ["refused request 99 is unknown", "opened invalid_output"], "twice as long now");
    *hook.monitored.lock().unwrap() = Some((8, last));
    step(&mut pool, 1002);
    assert_eq!(hook.seen(), ["waiting 1"], "another one");
    *hook.monitored.lock().unwrap() = None;
    submit(&mut pool, 3, 9, ms(1003));
    step(&mut pool, 1003);
    assert!(hook.seen().is_empty(), "none any more");
}

#[test]
fn while_the_pool_is_behind_it_is_not_asked_and_misses_nothing() {
    let (hook, mut pool) = opened(last);
    submit(&mut pool, 1, 9, ms(0));
    pool.schedule(ms(1));
    pool.monitor(ms(1), true);
    assert_eq!(hook.seen(), ["skipped"]);
    pool.monitor(ms(2), false);
    assert_eq!(hook.seen(), ["waited 2 1", "waiting 0"]);
}

#[test]
fn one_that_holds_for_ever_is_given_up_when_its_book_is_full() {
    let (hook, mut pool) = opened(|_| Ok(Vec::new()));
    for id in 0..=VIRTUAL_WAITING as u64 {
        submit(&mut pool, id, 9, ms(0));
        if id + 1 == VIRTUAL_WAITING as u64 {
            step(&mut pool, 1);
            assert_eq!(hook.seen(), [format!("waiting {VIRTUAL_WAITING}")]);
        }
    }
    step(&mut pool, 2);
    assert_eq!(hook.seen(), ["overflow"]);
    finish(&mut pool, 0);
    assert_eq!(step(&mut pool, 3), [1], "the others are served");
    assert!(hook.seen().is_empty());
}
