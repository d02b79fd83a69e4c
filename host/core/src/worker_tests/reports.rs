//! A pool and a worker that tell each other everything in commands and reports.
use std::collections::VecDeque;

use super::*;
use crate::engine_loop::EngineLoop;
use crate::ids::{Generation, PolicyName};
use crate::policy::{NamedScheduler, SchedulerHook};
use crate::pool::{NewRequest, Output, Pool, Watermarks};
use crate::report::{Report, Reporter};

#[derive(Debug)]
struct NativeScheduler;

impl SchedulerHook for NativeScheduler {
    fn generation(&self, _: Duration) -> Generation {
        Generation(0)
    }
    fn open(&self, _: Duration) -> Result<Option<NamedScheduler>, Fault> {
        Ok(None)
    }
    fn refused(&self, fault: &Fault) {
        panic!("the native scheduler faulted: {fault}");
    }
    fn replaced(&self, fault: &Fault) {
        panic!("the native scheduler was replaced: {fault}");
    }
    fn returned(&self, _: Option<&PolicyName>) {}
}

/// Runs requests through a pool and one worker; after each command and step the pool hears a report at once or, with
/// `late`, one step later. Returns the maximum that ran at once, and all events.
fn run(limits: EngineLimits, requests: Vec<Start>, late: bool) -> (usize, Vec<Event>) {
    let Bench { worker, mut engine, .. } =
        Bench::with(limits, Arc::new(Native), Reserve::Expected, PrefixCache::new(1 << 20));
    // Texts end well before what is expected of them, so nothing grows past its reserve.
    engine.end_logit = 9.0;
    let mut engine = EngineLoop::new(engine, worker);
    let count = requests.len();
    let mut pool = Pool::new(Arc::new(NativeScheduler), Watermarks { high: 1000, low: 900 }, Reserve::Expected);
    pool.add_worker(WorkerId(0), limits);
    for request in requests {
        let arrived = Duration::from_millis(request.id.0);
        let first_choice = request.id;
        let new = NewRequest {
            start: Box::new(request),
            first_choice,
            arrived,
            deadline: None,
            weight: 1.0,
            queue_share: None,
            hints: Arc::default(),
        };
        pool.submit(new).unwrap();
    }
    let (mut events, mut reports, mut max) = (Vec::new(), VecDeque::<Report>::new(), 0);
    for step in 0.. {
        assert!(step < 100_000, "it ends");
        for output in pool.schedule(Duration::from_millis(1000 + step)) {
            match output {
                Output::Start { start, need, .. } => {
                    engine.handle(Command::Start { start, need }, &mut events);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(late || engine.worker().roster.waiting.is_empty(), "what the pool dispatches is admitted");
        let decoded = engine.step(Duration::from_millis(step), &mut events);
        assert!(engine.worker().check() && pool.check());
        max = max.max(engine.worker().roster.running.len());
        reports.extend(engine.report());
        while reports.len() > usize::from(late && decoded != Step::Idle) {
            pool.apply(WorkerId(0), reports.pop_front().unwrap());
        }
        if decoded == Step::Idle && pool.running() + pool.waiting() == 0 {
            break;
        }
    }
    let ended = events.iter().filter(|event| matches!(event, Event::Finished { .. })).count();
    assert_eq!(ended, count, "every request finishes");
    (max, events)
}

/// A pool and a worker, for tests that look at both after each step.
pub(super) struct Pair {
    engine: EngineLoop<FakeEngine>,
    pub(super) pool: Pool,
    events: Vec<Event>,
}

impl Pair {
    pub(super) fn new(limits: EngineLimits) -> Self {
        let Bench { worker, engine, .. } = Bench::new(limits, Arc::new(Native));
        let watermarks = Watermarks { high: 1000, low: 900 };
        let mut pool = Pool::new(Arc::new(NativeScheduler), watermarks, Reserve::Expected);
        pool.add_worker(WorkerId(0), limits);
        Self { engine: EngineLoop::new(engine, worker), pool, events: Vec::new() }
    }

    pub(super) fn submit(&mut self, request: Start) {
        let arrived = Duration::from_millis(request.id.0);
        let first_choice = request.id;
        let new = NewRequest {
            start: Box::new(request),
            first_choice,
            arrived,
            deadline: None,
            weight: 1.0,
            queue_share: None,
            hints: Arc::default(),
        };
        self.pool.submit(new).unwrap();
    }

    pub(super) fn command(&mut self, command: Command) {
        self.engine.handle(command, &mut self.events);
        self.report();
    }

    fn report(&mut self) {
        self.engine.report().into_iter().for_each(|report| self.pool.apply(WorkerId(0), report));
        assert!(self.engine.worker().check() && self.pool.check());
    }

    fn step(&mut self) -> Step {
        for output in self.pool.schedule(Duration::from_secs(1)) {
            let Output::Start { start, need, .. } = output else { panic!("{output:?}") };
            self.command(Command::Start { start, need });
        }
        let step = self.engine.step(Duration::ZERO, &mut self.events);
        self.report();
        step
    }

    pub(super) fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| _ = self.step());
    }

    pub(super) fn run(&mut self) {
        while self.step() != Step::Idle || self.pool.waiting() > 0 {}
    }

    /// Text by request.
    pub(super) fn results(&self) -> BTreeMap<u64, String> {
        let mut out: BTreeMap<u64, String> = BTreeMap::new();
        for event in &self.events {
            if let Event::Delta { id, delta } = event {
                out.entry(id.0).or_default().push_str(&delta.text);
            }
        }
        out
    }
}

fn prompts(count: u64, tokens: usize, max_tokens: u32) -> Vec<Start> {
    let text = |id: u64| format!("{id:03}{}", "x".repeat(tokens - 3));
    (0..count).map(|id| Start { max_tokens, ..start(id, &text(id)) }).collect()
}

#[test]
fn regression_as_many_requests_run_as_their_need_allows() {
    // No max_tokens: the rest of the context, of which little is ever generated.
    let limits = EngineLimits { sequences: 32, kv_tokens: 8192, batch_tokens: 512, context_tokens: 8192 };
    let need = 500 + 128;
    assert_eq!(run(limits, prompts(40, 500, 7000), false).0, 8192 / need);
    let limits = EngineLimits { kv_tokens: 32 * need as u32, ..limits };
    assert_eq!(run(limits, prompts(40, 500, 7000), false).0, 32);
}

#[test]
fn regression_long_prompts_in_a_row_reach_the_worker_one_by_one_and_never_wait_there() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 8192, batch_tokens: 512, context_tokens: 8192 };
    for late in [false, true] {
        let (max, events) = run(limits, prompts(20, 5000, 8), late);
        assert_eq!(max, 1);
        assert!(!events.iter().any(|event| matches!(event, Event::Preempted { .. } | Event::Failed { .. })));
    }
}

#[test]
fn regression_a_sequence_that_waits_inside_a_worker_does_not_make_its_gauges_full() {
    let limits = EngineLimits { sequences: 4, kv_tokens: 256, batch_tokens: 64, context_tokens: 256 };
    let mut bench = Bench::with(limits, Arc::new(Native), Reserve::Full, PrefixCache::new(1 << 20));
    for id in [1, 2] {
        bench.begin(Start { max_tokens: 100, ..start(id, &"p".repeat(80)) });
    }
    let facts = bench.worker.facts();
    assert_eq!((facts.kv_free, facts.kv_used), (0, 180), "nothing is offered, and not all is used");
}

#[test]
fn regression_the_rate_of_an_idle_worker_is_zero() {
    let mut bench = Bench::native();
    bench.begin(Start { max_tokens: 40, ignore_eos: true, ..start(1, "abc") });
    for _ in 0..20 {
        bench.now += Duration::from_millis(100);
        bench.step();
    }
    assert!(bench.worker.facts().tokens_per_second > 5.0);
    bench.run();
    assert_eq!(bench.worker.facts().tokens_per_second, 0.0);
}

#[test]
fn a_report_carries_an_end_with_the_facts_after_it() {
    let mut bench = Bench::native();
    let mut reporter = Reporter::default();
    bench.begin(Start { max_tokens: 3, ignore_eos: true, ..start(1, "some prompt") });
    let mut ends = 0;
    while !bench.worker.is_idle() {
        bench.events.clear();
        if let Step::Decoded { tokens } = bench.step() {
            reporter.decoded(tokens, Duration::ZERO);
        }
        bench.events.iter().for_each(|event| reporter.note(event));
        let Some(report) = reporter.take(&mut bench.worker) else { continue };
        let ended = report.events.iter().any(|event| matches!(event, Event::Finished { .. }));
        assert_eq!(report.facts.kv_used == 0, ended);
        assert!(!report.events.iter().any(|event| matches!(event, Event::Delta { .. })));
        ends += usize::from(ended);
    }
    assert_eq!(ends, 1);
}
