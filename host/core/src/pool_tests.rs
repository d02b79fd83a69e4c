#[path = "pool_tests/placement.rs"]
mod placement;

use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::ids::PolicyDigest;
use crate::message::Usage;
use crate::policy::Priority;
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
    opened: Mutex<u32>,
    refusals: Mutex<Vec<String>>,
    /// What was told of take-overs (`true`) and returns.
    turns: Mutex<Vec<(bool, String)>>,
}

impl std::fmt::Debug for Scripted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Scripted")
    }
}

struct Closure(Answer);

impl Scheduler for Closure {
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault> {
        (self.0)(point)
    }
}

impl SchedulerHook for Scripted {
    fn generation(&self) -> Generation {
        Generation(*self.generation.lock().unwrap())
    }

    fn open(&self) -> Result<Option<(PolicyName, Box<dyn Scheduler>)>, Fault> {
        *self.opened.lock().unwrap() += 1;
        let answer = self.answers.lock().unwrap().pop();
        Ok(answer.map(|answer| (PolicyName::from("scripted"), Box::new(Closure(answer)) as Box<dyn Scheduler>)))
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
    }
}

fn start(id: u64) -> Box<Start> {
    Box::new(Start {
        id: RequestId(id),
        model: "m".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        session: None,
        priority: Default::default(),
        sampler_chain: PolicyDigest::NATIVE,
        prompt: vec![crate::ids::Token(1); 10].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 30,
        stop: Vec::new(),
        ignore_eos: false,
        logprobs: None,
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
    NewRequest { start: start(id), arrived: now, deadline: None, weight: 1.0, queue_share: None }
}

fn finished(id: u64) -> Event {
    Event::Finished { id: RequestId(id), reason: FinishReason::Stop, usage: Usage::default() }
}

/// A report of one event, by a worker with all its KV free.
fn tell_of(pool: &mut Pool, worker: WorkerId, event: Event) {
    let facts = pool.worker_facts().into_iter().find(|facts| facts.worker == worker).unwrap();
    let facts = WorkerFacts { kv_free: facts.kv_total, ..facts };
    pool.apply(worker, Report { events: vec![event], facts, cache: Default::default(), batches: Vec::new() });
}

fn tell(pool: &mut Pool, event: Event) {
    tell_of(pool, W, event);
}

fn started(outputs: &[Output]) -> Vec<u64> {
    outputs.iter().filter_map(|o| if let Output::Start { start, .. } = o { Some(start.id.0) } else { None }).collect()
}

#[test]
fn dispatches_in_order_of_arrival_as_room_comes_free() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(id)).unwrap());
    assert_eq!(submit(&mut pool, 5, ms(5)), Err(QueueFull { waiting: 4 }));
    assert_eq!(started(&pool.schedule(ms(10))), [1, 2]);
    assert_eq!((pool.waiting(), pool.running()), (2, 2));
    assert_eq!(started(&pool.schedule(ms(11))), [] as [u64; 0], "nothing happened");
    tell(&mut pool, finished(1));
    let out = pool.schedule(ms(12));
    assert!(matches!(&out[..], [Output::Start { start, waited, .. }] if start.id.0 == 3 && *waited == ms(9)));
    assert!(pool.check());
}

#[test]
fn stops_accepting_at_the_high_mark_and_accepts_again_at_the_low_one() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook, Watermarks { high: 4, low: 2 }, Reserve::Full);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    assert_eq!(submit(&mut pool, 5, ms(0)), Err(QueueFull { waiting: 4 }));
    pool.cancel(RequestId(1));
    assert_eq!(submit(&mut pool, 5, ms(0)), Err(QueueFull { waiting: 3 }), "between the marks nothing changes");
    pool.cancel(RequestId(2));
    assert!(pool.accepts() && submit(&mut pool, 5, ms(0)).is_ok());
    pool.set_watermarks(Watermarks { high: 3, low: 1 });
    assert!(!pool.accepts());
    pool.set_watermarks(Watermarks { high: 9, low: 1 });
    assert!(pool.accepts() && pool.check());
}

#[test]
fn a_tenant_takes_no_more_of_the_queue_than_its_share() {
    let hook = Arc::new(Scripted::default());
    let mut pool = Pool::new(hook, Watermarks { high: 8, low: 2 }, Reserve::Full);
    let of = |pool: &mut Pool, id: u64, tenant: &str, share| {
        let start = Box::new(Start { tenant: tenant.into(), ..*start(id) });
        pool.submit(NewRequest { start, queue_share: share, ..new(id, ms(0)) }).is_ok()
    };
    assert!(
        of(&mut pool, 1, "a", Some(0.25)) && of(&mut pool, 2, "a", Some(0.25)) && !of(&mut pool, 3, "a", Some(0.25))
    );
    assert!(of(&mut pool, 4, "b", Some(0.01)) && !of(&mut pool, 5, "b", Some(0.01)), "one may always wait");
    assert!(of(&mut pool, 6, "c", None));
    pool.cancel(RequestId(1));
    assert!(of(&mut pool, 7, "a", Some(0.25)));
    assert!(pool.check());
}

#[test]
fn natively_the_first_class_goes_first_and_a_low_request_ages() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    let now = Duration::from_secs(100);
    let mut add = |id: u64, at: u64, priority| {
        let start = Box::new(Start { priority, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, Duration::from_secs(at)) }).unwrap();
    };
    add(1, 30, Priority::Low);
    add(2, 89, Priority::High);
    add(3, 91, Priority::High);
    add(4, 10, Priority::Normal);
    // 30 s lift by a class: the normal one stands where a high one of 40 s would, the low one where one of 90 s would.
    let mut order = started(&pool.schedule(now));
    while order.len() < 4 {
        tell(&mut pool, finished(order[order.len() - 1]));
        order.extend(started(&pool.schedule(now)));
    }
    assert_eq!(order, [4, 2, 1, 3]);
}

proptest! {
    #[test]
    fn the_queue_opens_and_closes_at_its_marks_only(acts in prop::collection::vec(any::<bool>(), 0..200)) {
        let mut pool = Pool::new(Arc::new(Scripted::default()), Watermarks { high: 10, low: 5 }, Reserve::Full);
        let (mut next, mut live, mut open) = (0, Vec::new(), true);
        for arrives in acts {
            if arrives {
                next += 1;
                prop_assert_eq!(submit(&mut pool, next, ms(0)).is_ok(), open);
                if open {
                    live.push(next);
                }
            } else if let Some(id) = live.pop() {
                pool.cancel(RequestId(id));
            }
            open = if live.len() >= 10 { false } else if live.len() <= 5 { true } else { open };
            prop_assert_eq!(pool.accepts(), open);
        }
    }
}

const CLASSES: [Priority; 3] = [Priority::High, Priority::Normal, Priority::Low];

proptest! {
    #[test]
    fn natively_they_start_in_order_of_class_age_and_arrival(
        arrivals in prop::collection::vec((0u64..200, 0usize..3), 1..30),
    ) {
        let hook = Arc::new(Scripted::default());
        let mut pool = Pool::new(hook, Watermarks { high: 100, low: 50 }, Reserve::Full);
        let mut expected: Vec<(Duration, u64)> = Vec::new();
        for (id, (seconds, class)) in (1..).zip(arrivals) {
            let (arrived, priority) = (Duration::from_secs(seconds), CLASSES[class]);
            let start = Box::new(Start { priority, ..*start(id) });
            pool.submit(NewRequest { start, ..new(id, arrived) }).unwrap();
            expected.push((arrived + Duration::from_secs(30) * class as u32, id));
        }
        expected.sort();
        pool.add_worker(W, LIMITS);
        let (mut order, mut running): (Vec<u64>, Vec<u64>) = Default::default();
        while order.len() < expected.len() {
            let begun = started(&pool.schedule(Duration::from_secs(1000)));
            prop_assert!(!begun.is_empty() || !running.is_empty(), "{} of {} started", order.len(), expected.len());
            order.extend(&begun);
            running.extend(begun);
            tell(&mut pool, finished(running.remove(0)));
        }
        prop_assert_eq!(order, expected.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
        prop_assert!(pool.check());
    }

    #[test]
    fn whoever_waits_past_its_deadline_is_answered_once_and_nobody_before(
        deadlines in prop::collection::vec(prop::option::of(1u64..100), 1..30),
        looks in prop::collection::btree_set(0u64..120, 1..10),
    ) {
        let hook = Arc::new(Scripted::default());
        let mut pool = Pool::new(hook, Watermarks { high: 100, low: 50 }, Reserve::Full);
        for (id, deadline) in (1..).zip(&deadlines) {
            pool.submit(NewRequest { deadline: deadline.map(ms), ..new(id, ms(0)) }).unwrap();
        }
        let mut before = None;
        for now in looks {
            let mut failed: Vec<u64> = pool.schedule(ms(now)).iter().map(|output| match output {
                Output::Fail { id, error: WorkerError::DeadlineExceeded } => id.0,
                other => panic!("{other:?}"),
            }).collect();
            failed.sort_unstable();
            let due = |&deadline: &u64| deadline <= now && before.is_none_or(|before| deadline > before);
            let expected: Vec<u64> = (1..).zip(&deadlines).filter(|(_, d)| d.as_ref().is_some_and(due)).map(|(id, _)| id).collect();
            prop_assert_eq!(failed, expected, "at {} ms", now);
            let left = deadlines.iter().flatten().filter(|&&deadline| deadline > now).min();
            prop_assert_eq!(pool.next_deadline(), left.map(|&left| ms(left)));
            before = Some(now);
        }
        prop_assert_eq!(pool.waiting(), deadlines.iter().filter(|d| d.is_none_or(|d| before.is_none_or(|now| d > now))).count());
        prop_assert!(pool.check());
    }
}

#[test]
fn a_cancelled_generation_leaves_the_queue_or_is_reported_to_its_worker_once() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=3).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    assert_eq!(pool.cancel(RequestId(3)), None);
    assert_eq!(pool.waiting(), 0);
    let tell = Output::Send { worker: W, command: Command::Cancel { id: RequestId(1) } };
    assert_eq!(pool.cancel(RequestId(1)), Some(tell));
    assert_eq!(pool.cancel(RequestId(1)), None);
    assert_eq!(pool.cancel(RequestId(77)), None);
    assert!(pool.check());
}

#[test]
fn a_deadline_is_kept_at_the_bound() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(0));
    pool.submit(NewRequest { deadline: Some(ms(100)), ..new(3, ms(0)) }).unwrap();
    assert_eq!(pool.next_deadline(), Some(ms(100)));
    assert_eq!(pool.schedule(ms(99)), []);
    assert_eq!(pool.schedule(ms(100)), [Output::Fail { id: RequestId(3), error: WorkerError::DeadlineExceeded }]);
}

#[test]
fn refuses_actions_that_break_the_books_and_falls_back_to_native_at_once() {
    let dispatch = |id: u64, worker: u32| Action::Dispatch { id: RequestId(id), worker: WorkerId(worker) };
    let cases: Vec<(Vec<Action>, &str)> = vec![
        (vec![dispatch(9, 0)], "unknown"),
        (vec![dispatch(1, 7)], "worker 7"),
        (vec![dispatch(1, 0), dispatch(1, 0)], "twice"),
        (vec![dispatch(1, 0), dispatch(2, 0), dispatch(3, 0)], "full"),
        (vec![Action::Preempt { id: RequestId(1) }], "preempts"),
        (vec![Action::PrefillBudget { worker: WorkerId(3), tokens: 1 }], "budget"),
    ];
    for (actions, reason) in cases {
        let hook = Arc::new(Scripted::default());
        hook.answers.lock().unwrap().push(Box::new(move |_| Ok(actions.clone())));
        let mut pool = pool(&hook);
        (1..=3).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
        assert_eq!(started(&pool.schedule(ms(1))), [1, 2], "the native scheduler answers in its place");
        let refusals = hook.refusals.lock().unwrap();
        assert!(matches!(&refusals[..], [one] if one.contains(reason)), "{refusals:?} says {reason}");
        assert!(pool.check());
    }
}

#[test]
fn a_faulted_scheduler_is_tried_again_after_a_back_off_that_doubles() {
    let hook = Arc::new(Scripted::default());
    let fault = |_: &SchedulingPoint| Err(Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: String::new() });
    for _ in 0..3 {
        hook.answers.lock().unwrap().push(Box::new(fault));
    }
    let mut pool = pool(&hook);
    let opened = || *hook.opened.lock().unwrap();
    pool.schedule(ms(0));
    assert_eq!(opened(), 1);
    for (now, expected) in [(999, 1), (1000, 2), (2999, 2), (3000, 3), (6999, 3), (7000, 4)] {
        pool.schedule(ms(now));
        assert_eq!(opened(), expected, "at {now} ms");
    }
}

#[test]
fn regression_a_take_over_and_a_return_are_told_once_each_and_success_resets_the_back_off() {
    let fault = || Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: "trapped".to_owned() };
    let hook = Arc::new(Scripted::default());
    // Opened from the last to the first: two faults, then one that answers three times and faults again, then none.
    let mut asked = 0;
    let lasting: Answer = Box::new(move |_| {
        asked += 1;
        if asked < 4 { Ok(Vec::new()) } else { Err(fault()) }
    });
    hook.answers.lock().unwrap().extend([lasting, Box::new(move |_| Err(fault())), Box::new(move |_| Err(fault()))]);
    let mut pool = pool(&hook);
    let turns = || std::mem::take(&mut *hook.turns.lock().unwrap());
    let told = |replaced, text: &str| vec![(replaced, text.to_owned())];
    pool.schedule(ms(0));
    assert_eq!(turns(), told(true, "trapped"));
    pool.schedule(ms(1000));
    assert_eq!(turns(), [], "replaced already");
    pool.schedule(ms(3000));
    assert_eq!(turns(), told(false, "scripted"));
    for (now, expected) in [(3001, vec![]), (7000, vec![]), (7001, told(true, "trapped")), (8000, vec![])] {
        submit(&mut pool, now, ms(now)).unwrap();
        pool.schedule(ms(now));
        assert_eq!(turns(), expected, "at {now} ms");
    }
    pool.schedule(ms(8001));
    assert_eq!(turns(), told(false, "native"), "the first back-off again, and no policy is left");
}

#[test]
fn regression_a_scheduler_that_faults_at_every_second_point_is_tried_ever_less_often() {
    let hook = Arc::new(Scripted::default());
    for _ in 0..8 {
        let mut asked = 0;
        hook.answers.lock().unwrap().push(Box::new(move |_| {
            asked += 1;
            let fault = || Fault { plugin: "s".into(), kind: FaultKind::Trap, detail: String::new() };
            if asked == 1 { Ok(Vec::new()) } else { Err(fault()) }
        }));
    }
    let mut pool = pool(&hook);
    // A point each 100 ms for 20 s: opened at 0, and after pauses of 1, 2, 4 and 8 s.
    for n in 0..200 {
        submit(&mut pool, n, ms(100 * n)).unwrap();
        pool.schedule(ms(100 * n));
        // It ends at once, wherever it is.
        pool.cancel(RequestId(n));
        tell(&mut pool, Event::Finished { id: RequestId(n), reason: FinishReason::Cancelled, usage: Usage::default() });
    }
    assert_eq!(*hook.opened.lock().unwrap(), 5);
}

#[test]
fn regression_cancelled_generations_do_not_shorten_what_is_reserved() {
    let mut pool = Pool::new(Arc::new(Scripted::default()), Watermarks { high: 100, low: 50 }, Reserve::Expected);
    pool.add_worker(W, EngineLimits { sequences: 4, kv_tokens: 10_000, batch_tokens: 64, context_tokens: 10_000 });
    let add = |pool: &mut Pool, id| {
        let start = Box::new(Start { max_tokens: 5000, ..*start(id) });
        pool.submit(NewRequest { start, ..new(id, ms(0)) }).unwrap();
        pool.queue()[0].need
    };
    let before = add(&mut pool, 1);
    pool.schedule(ms(0));
    for id in 1..30 {
        let reason = FinishReason::Cancelled;
        tell(&mut pool, Event::Finished { id: RequestId(id), reason, usage: Usage::default() });
        assert_eq!(add(&mut pool, id + 1), before);
        pool.schedule(ms(0));
    }
}

#[test]
fn regression_a_swapped_scheduler_gets_the_whole_state_replayed() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=4).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    tell(&mut pool, Event::Progressed { id: RequestId(1), prompt_tokens: 10, generated_tokens: 1 });
    tell(&mut pool, Event::Preempted { id: RequestId(1) });
    tell(&mut pool, Event::Preempted { id: RequestId(2) });
    tell(&mut pool, Event::Admitted { id: RequestId(2) });
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        assert!(point.replay);
        sink.lock().unwrap().clone_from(&point.events);
        Ok(Vec::new())
    }));
    *hook.generation.lock().unwrap() = 1;
    pool.schedule(ms(2));
    let a = |id| SchedulerEvent::Arrived(arrival(id, ms(0)));
    let d = |id| SchedulerEvent::Dispatched { id: RequestId(id), worker: W };
    let progress = SchedulerEvent::Progressed { id: RequestId(1), prompt_tokens: 10, generated_tokens: 1 };
    let preempted = SchedulerEvent::Preempted { id: RequestId(1) };
    assert_eq!(*seen.lock().unwrap(), [a(1), d(1), progress, preempted, a(2), d(2), a(3), a(4)]);
}

#[test]
fn the_generations_of_a_lost_worker_are_named_and_nothing_is_dispatched_to_it() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=3).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    let mut lost = pool.worker_lost(W);
    lost.sort();
    assert_eq!(lost, [RequestId(1), RequestId(2)]);
    assert!(!pool.is_healthy() && pool.check());
    assert_eq!(pool.schedule(ms(2)), []);
}

proptest! {
    #[test]
    fn the_books_add_up_under_any_order_of_events(acts in prop::collection::vec((0u8..5, 0u64..12), 0..150)) {
        let hook = Arc::new(Scripted::default());
        let mut pool = pool(&hook);
        let (mut now, mut on_worker, mut next) = (ms(0), Vec::new(), 0);
        for (act, n) in acts {
            now += ms(n);
            match act {
                0 | 1 => { next += 1; let _ = submit(&mut pool, next, now); }
                2 => { pool.cancel(RequestId(n)); }
                3 if !on_worker.is_empty() => {
                    let id = on_worker.remove(n as usize % on_worker.len());
                    tell(&mut pool, finished(id));
                }
                _ => on_worker.extend(started(&pool.schedule(now))),
            }
            prop_assert!(pool.check());
            prop_assert_eq!(pool.running(), on_worker.len());
        }
    }
}

#[test]
fn regression_a_deadline_binds_until_the_first_token_wherever_a_generation_is() {
    let hook = Arc::new(Scripted::default());
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| pool.submit(NewRequest { deadline: Some(ms(100)), ..new(id, ms(0)) }).unwrap());
    assert_eq!(started(&pool.schedule(ms(1))), [1, 2]);
    // The prompt of one is computed, the other one drew its first token.
    tell(&mut pool, Event::Started { id: RequestId(1), cached_tokens: 0 });
    tell(&mut pool, Event::Progressed { id: RequestId(2), prompt_tokens: 10, generated_tokens: 1 });
    assert_eq!(pool.next_deadline(), Some(ms(100)));
    assert_eq!(pool.schedule(ms(99)), []);
    let cancel = Output::Send { worker: W, command: Command::Cancel { id: RequestId(1) } };
    let fail = Output::Fail { id: RequestId(1), error: WorkerError::DeadlineExceeded };
    assert_eq!(pool.schedule(ms(100)), [fail, cancel], "the client hears of it before the worker can answer");
    assert_eq!((pool.next_deadline(), pool.running()), (None, 2), "its KV is not back yet");
    assert_eq!(pool.schedule(ms(200)), []);
    let reason = FinishReason::Cancelled;
    tell(&mut pool, Event::Finished { id: RequestId(1), reason, usage: Usage::default() });
    assert!(pool.running() == 1 && pool.check());
}

#[test]
fn regression_a_running_generation_that_is_cancelled_reaches_the_scheduler_as_cancelled() {
    let hook = Arc::new(Scripted::default());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = seen.clone();
    hook.answers.lock().unwrap().push(Box::new(move |point| {
        sink.lock().unwrap().extend(point.events.clone());
        let waits = |event: &SchedulerEvent| if let SchedulerEvent::Arrived(a) = event { Some(a.id) } else { None };
        Ok(point.events.iter().filter_map(waits).map(|id| Action::Dispatch { id, worker: W }).collect())
    }));
    let mut pool = pool(&hook);
    (1..=2).for_each(|id| submit(&mut pool, id, ms(0)).unwrap());
    pool.schedule(ms(1));
    pool.cancel(RequestId(1));
    seen.lock().unwrap().clear();
    tell(&mut pool, Event::Finished { id: RequestId(1), reason: FinishReason::Cancelled, usage: Usage::default() });
    tell(&mut pool, finished(2));
    pool.schedule(ms(2));
    let ends = [
        SchedulerEvent::Cancelled { id: RequestId(1) },
        SchedulerEvent::Finished { id: RequestId(2), generated_tokens: 0 },
    ];
    assert!(seen.lock().unwrap().ends_with(&ends), "{seen:?}");
}
