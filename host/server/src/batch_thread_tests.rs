//! The thread with the fake embedder: what a panic costs, and what comes after it.
use std::time::Instant;

use camshaft_api::{EmbedJobs, NotTaken};
use camshaft_core::embed::fake::FakeEmbedder;
use camshaft_core::embed::{Embedder, EmbedderLimits};
use camshaft_core::engine::EngineError;
use camshaft_core::ids::Token;
use camshaft_core::jobs::{BatchLimits, Computed};
use camshaft_core::policy::Priority;
use camshaft_core::pool::Watermarks;
use crossbeam_channel::Receiver;
use tokio::sync::watch;

use super::*;
use crate::config::ModelConfig;
use crate::metrics::ServerMetrics;
use crate::thread_budget::ThreadBudget;
use crate::tuning::Tuning;

type Text = Arc<[Token]>;
type Job = camshaft_api::Job<Text>;
type Ticket = camshaft_api::Ticket<Text, Vec<f32>>;

const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: EmbedderLimits =
    EmbedderLimits { batch_tokens: 64, efficient_tokens: 64, batch_inputs: 8, input_tokens: 16, dimensions: 3 };
/// An input that begins with it makes the embedder panic.
const POISON: Token = Token(13);

/// Requests may be queued up to `high`, until the sender says otherwise.
fn tuning(high: usize) -> watch::Sender<Tuning> {
    let watermarks = Watermarks { high, low: high / 2 };
    watch::Sender::new(Tuning { watermarks, ram_bytes: 0, cache_bytes: 0, session_ttl: PATIENCE })
}

fn setup(registry: &prometheus::Registry, tuned: Tuned) -> BatchSetup {
    let metrics = ServerMetrics::new(registry).unwrap();
    let gauges = metrics.gauges("fake", "0", camshaft_api::Health::default());
    BatchSetup {
        seats: vec![("embedder-fake".to_owned(), gauges, ThreadBudget::new(1).seat(1))],
        metrics: Arc::new(metrics.queue("fake")),
        tuned,
        bounds: bounds(&ModelConfig::default()).subscribe(),
        batch: |limits, _| limits,
    }
}

fn bounds(config: &ModelConfig) -> watch::Sender<ModelBounds> {
    watch::Sender::new(ModelBounds::of(config))
}

fn job(tenant: &str, inputs: &[&[u32]]) -> Job {
    Job {
        inputs: inputs.iter().map(|input| input.iter().copied().map(Token).collect()).collect(),
        tenant: tenant.into(),
        priority: Priority::Normal,
        weight: 1.0,
        queue_share: None,
        deadline: None,
        span: tracing::Span::none(),
    }
}

/// Waits for the vectors.
fn answer(mut ticket: Ticket) -> Result<Vec<Vec<f32>>, WorkerError> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(ticket.answer()).expect("somebody answers")
}

/// Computes a batch for each message, so that a test says what is in between.
struct Gated {
    embedder: FakeEmbedder,
    go_on: Receiver<()>,
    /// Told before each batch, with its inputs.
    began: Sender<Vec<Text>>,
    warmed: Sender<Option<String>>,
}

impl BatchModel for Gated {
    type Input = Text;
    type Output = Vec<f32>;

    fn batch(&self) -> BatchLimits {
        LIMITS.batch()
    }

    fn warm_up(&mut self) -> Result<(), EngineError> {
        self.warmed.send(std::thread::current().name().map(str::to_owned)).unwrap();
        Ok(())
    }

    fn compute(&mut self, inputs: &[Text]) -> Result<Vec<Computed<Vec<f32>>>, EngineError> {
        self.began.send(inputs.to_vec()).unwrap();
        self.go_on.recv_timeout(PATIENCE).unwrap();
        self.embedder.compute(inputs)
    }
}

/// An embedder, the means to let it compute one batch, and the batches that it began.
struct Bench {
    supervisor: Supervisor,
    registry: prometheus::Registry,
    jobs: EmbedJobs,
    go_on: Sender<()>,
    began: Receiver<Vec<Text>>,
}

impl Bench {
    fn new(tuned: Tuned) -> Self {
        let (supervisor, registry) = (Supervisor::new(), prometheus::Registry::new());
        let (go_on, wait) = crossbeam_channel::bounded(0);
        let (begins, began) = crossbeam_channel::bounded(1000);
        let (warms, warmed) = crossbeam_channel::bounded(1);
        let make = move |_, _| {
            let (go_on, began, warmed) = (wait.clone(), begins.clone(), warms.clone());
            let mut embedder = FakeEmbedder::new(LIMITS);
            embedder.fails_at = Some(POISON);
            Ok(Gated { embedder, go_on, began, warmed })
        };
        let (jobs, _) = spawn(&supervisor, setup(&registry, tuned), |_: &Gated| (), make).unwrap();
        let on = warmed.try_recv().expect("it is warm before it has jobs");
        assert_eq!(on.as_deref(), Some("embedder-fake"));
        Self { supervisor, registry, jobs, go_on, began }
    }

    fn submit(&self, job: Job) -> Ticket {
        self.jobs.submit(job).unwrap()
    }

    /// Waits for a batch to begin.
    fn begins(&self) -> Vec<Text> {
        self.began.recv_timeout(PATIENCE).unwrap()
    }

    fn metric(&self, line: &str) -> bool {
        let text = prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap();
        text.lines().any(|it| it == line)
    }

    /// Lets whatever is left be computed.
    fn end(self) {
        let Self { supervisor, jobs, go_on, began, .. } = self;
        drop(jobs);
        let pump = std::thread::spawn(move || while go_on.send_timeout((), Duration::from_secs(1)).is_ok() {});
        assert!(supervisor.end(PATIENCE));
        drop(began);
        pump.join().unwrap();
    }
}

#[test]
fn regression_an_embedder_that_panics_comes_back() {
    let (supervisor, registry) = (Supervisor::new(), prometheus::Registry::new());
    let setup = setup(&registry, tuning(8).subscribe());
    let gauges = setup.seats[0].1.clone();
    // The embedder panics while the test waits here, so that another job is queued before it is back.
    let (go_on, wait) = crossbeam_channel::bounded::<()>(0);
    let mut made = 0;
    let make = move |_, _| {
        made += 1;
        if made > 1 {
            wait.recv_timeout(PATIENCE).map_err(|error| ServerError::internal("make it", error))?;
        }
        let mut embedder = FakeEmbedder::new(LIMITS);
        embedder.panics_at = Some(POISON);
        Ok(embedder)
    };
    let (jobs, limits) = spawn(&supervisor, setup, FakeEmbedder::limits, make).unwrap();
    assert_eq!((limits, gauges.health.is_up()), (LIMITS, true));

    let lost = jobs.submit(job("t", &[&[1, 2], &[POISON.0]])).unwrap();
    assert_eq!(answer(lost), Err(WorkerError::WorkerLost), "who was on board is told");
    assert!(!gauges.health.is_up());
    let good = jobs.submit(job("t", &[&[1, 2], &[3]])).unwrap();
    go_on.send(()).unwrap();
    let vectors = answer(good).expect("what waits goes on waiting");
    assert_eq!((vectors.len(), vectors[0].len()), (2, 3));
    assert_eq!((gauges.restarts.get(), gauges.up.get(), gauges.health.is_up()), (1, 1, true));
    assert!(supervisor.end(PATIENCE));
    assert_eq!((gauges.up.get(), gauges.health.is_up()), (0, false));
    assert_eq!(jobs.submit(job("t", &[&[1]])).unwrap_err(), NotTaken::Gone, "nobody takes jobs any more");
}

#[test]
fn regression_an_input_without_a_finite_vector_fails_nobody_elses() {
    let bench = Bench::new(tuning(8).subscribe());
    let _on_board = bench.submit(job("other", &[&[1]]));
    bench.begins();
    let bad = bench.submit(job("t", &[&[2], &[POISON.0]]));
    let good = bench.submit(job("u", &[&[3]]));
    bench.go_on.send(()).unwrap();
    assert_eq!(bench.begins().len(), 3, "in one batch");
    bench.go_on.send(()).unwrap();
    let error = answer(bad).unwrap_err().to_string();
    assert!(error.contains("no finite vector"), "{error}");
    assert_eq!(answer(good).unwrap().len(), 1);
    bench.end();
}

#[test]
fn a_job_whose_deadline_has_passed_is_not_begun() {
    let bench = Bench::new(tuning(8).subscribe());
    let late = bench.submit(Job { deadline: Some(Instant::now()), ..job("t", &[&[1]]) });
    assert_eq!(answer(late), Err(WorkerError::DeadlineExceeded));
    assert!(bench.began.is_empty());
    bench.end();
}

#[test]
fn regression_a_small_request_joins_the_next_batch_of_a_large_one_and_the_gauges_tell_of_both() {
    let bench = Bench::new(tuning(8).subscribe());
    let large = bench.submit(job("greedy", &vec![&[1, 1, 1, 1][..]; 1000]));
    assert_eq!(bench.begins().len(), 8);
    assert!(bench.metric("camshaft_requests_running{model=\"fake\"} 1"));
    let small = bench.submit(job("polite", &[&[2], &[3]]));
    drop(bench.submit(job("polite", &[&[4][..]; 3])));
    let snapshot = bench.jobs.snapshot();
    assert_eq!((snapshot.waiting, snapshot.running, snapshot.workers.len()), (2, 1, 0), "while a batch is computed");
    bench.go_on.send(()).unwrap();
    let next = bench.begins();
    let first: Vec<u32> = next.iter().map(|input| input[0].0).collect();
    assert!(first.contains(&2) && first.contains(&3) && first.contains(&1), "{first:?}");
    assert!(!first.contains(&4), "nobody wants that one");
    assert!(bench.metric("camshaft_requests_running{model=\"fake\"} 2"));
    assert!(bench.metric("camshaft_requests_waiting{model=\"fake\"} 1"), "most of the large one");
    bench.go_on.send(()).unwrap();
    assert_eq!(answer(small).unwrap().len(), 2);
    bench.begins();
    // A client that leaves takes the rest of its inputs along.
    drop(large);
    let last = bench.submit(job("polite", &[&[5]]));
    bench.go_on.send(()).unwrap();
    assert_eq!(bench.begins().len(), 1);
    bench.go_on.send(()).unwrap();
    assert!(answer(last).is_ok());
    bench.end();
}

#[test]
fn regression_a_tenant_that_sends_thousands_while_a_batch_is_computed_keeps_nobody_out() {
    let bench = Bench::new(tuning(8).subscribe());
    let _on_board = bench.submit(job("greedy", &[&[1]]));
    bench.begins();
    let flood: Vec<_> = (0..2000).map(|_| bench.jobs.submit(job("greedy", &[&[1]]))).collect();
    assert_eq!(flood.iter().filter(|asked| asked.is_ok()).count(), 8, "its own places");
    let polite = bench.submit(job("polite", &[&[2]]));
    bench.go_on.send(()).unwrap();
    assert!(bench.begins().iter().any(|input| input[0].0 == 2), "in the next batch");
    bench.go_on.send(()).unwrap();
    assert!(answer(polite).is_ok());
    drop(flood);
    bench.end();
}

#[test]
fn regression_a_low_class_under_load_gets_its_deadline() {
    let bench = Bench::new(tuning(8).subscribe());
    let _load = bench.submit(job("t", &vec![&[1, 1, 1, 1][..]; 200]));
    bench.begins();
    let deadline = Some(Instant::now());
    let low = bench.submit(Job { priority: Priority::Low, deadline, ..job("t", &[&[9]]) });
    bench.go_on.send(()).unwrap();
    assert_eq!(answer(low), Err(WorkerError::DeadlineExceeded));
    assert!(bench.begins().iter().all(|input| input[0].0 == 1));
    bench.end();
}

#[test]
fn regression_how_many_requests_may_wait_follows_a_reload() {
    let tuning = tuning(2);
    let bench = Bench::new(tuning.subscribe());
    // One on board, and as many as may wait.
    let _first = bench.submit(job("t", &[&[1][..]; 8]));
    bench.begins();
    let mut waiting = Vec::new();
    let mut ask = || bench.jobs.submit(job("t", &[&[1]])).map(|ticket| waiting.push(ticket));
    assert_eq!([ask(), ask(), ask()], [Ok(()), Ok(()), Err(NotTaken::Full)]);
    // In the midst of a batch.
    tuning.send_modify(|tuning| tuning.watermarks.high = 4);
    assert_eq!([ask(), ask(), ask()], [Ok(()), Ok(()), Err(NotTaken::Full)]);
    // The same marks again do not open a queue that is closed until it has fallen to the low one.
    waiting.truncate(3);
    tuning.send_modify(|_| {});
    assert_eq!(bench.jobs.submit(job("t", &[&[1]])).unwrap_err(), NotTaken::Full);
    bench.go_on.send(()).unwrap();
    bench.begins();
    bench.end();
}

#[test]
fn several_threads_share_a_queue_and_all_of_them_end_with_it() {
    let (supervisor, registry) = (Supervisor::new(), prometheus::Registry::new());
    let (go_on, wait) = crossbeam_channel::bounded(0);
    let (begins, began) = crossbeam_channel::bounded(1000);
    let (warms, warmed) = crossbeam_channel::bounded(2);
    let make = move |_, _| {
        let (go_on, began, warmed) = (wait.clone(), begins.clone(), warms.clone());
        Ok(Gated { embedder: FakeEmbedder::new(LIMITS), go_on, began, warmed })
    };
    let metrics = ServerMetrics::new(&registry).unwrap();
    let seat = |number: u32| {
        let gauges = metrics.gauges("fake", &number.to_string(), camshaft_api::Health::default());
        (format!("fake-{number}"), gauges, ThreadBudget::new(2).seat(1))
    };
    let (queue, tuned) = (metrics.queue("fake"), tuning(8).subscribe());
    let seats = vec![seat(0), seat(1)];
    let setup = BatchSetup { seats, metrics: Arc::new(queue), ..setup(&prometheus::Registry::new(), tuned) };
    let (jobs, ()) = spawn(&supervisor, setup, |_: &Gated| (), make).unwrap();
    let names: Vec<_> = warmed.try_iter().flatten().collect();
    assert_eq!(names, ["fake-0", "fake-1"]);
    // One request of two batches: whoever takes the first wakes the other.
    let inputs: Vec<&[u32]> = vec![&[1]; 2 * LIMITS.batch_inputs];
    let ticket = jobs.submit(job("t", &inputs)).unwrap();
    for _ in 0..2 {
        assert_eq!(began.recv_timeout(PATIENCE).unwrap().len(), LIMITS.batch_inputs, "before any has ended");
    }
    (0..2).for_each(|_| go_on.send_timeout((), PATIENCE).unwrap());
    assert_eq!(answer(ticket).unwrap().len(), 2 * LIMITS.batch_inputs);
    drop(jobs);
    assert!(supervisor.end(PATIENCE));
}

#[test]
fn a_bound_of_batches_that_changes_holds_from_the_next_one_on() {
    let config = |most| ModelConfig { max_step_tokens: most, ..ModelConfig::default() };
    let (supervisor, registry) = (Supervisor::new(), prometheus::Registry::new());
    let (go_on, wait) = crossbeam_channel::bounded(0);
    let (begins, began) = crossbeam_channel::bounded(1000);
    let (warms, _warmed) = crossbeam_channel::bounded(2);
    let make = move |_, _| {
        let (go_on, began, warmed) = (wait.clone(), begins.clone(), warms.clone());
        Ok(Gated { embedder: FakeEmbedder::new(LIMITS), go_on, began, warmed })
    };
    let (tuned, bounds) = (tuning(8), bounds(&config(Some(3))));
    let setup =
        BatchSetup { bounds: bounds.subscribe(), batch: ModelBounds::of_texts, ..setup(&registry, tuned.subscribe()) };
    let (jobs, ()) = spawn(&supervisor, setup, |_: &Gated| (), make).unwrap();
    let inputs: Vec<&[u32]> = vec![&[1]; 6];
    let ticket = jobs.submit(job("t", &inputs)).unwrap();
    assert_eq!(began.recv_timeout(PATIENCE).unwrap().len(), 3, "at the bound");
    bounds.send_replace(ModelBounds::of(&config(Some(1))));
    for _ in 0..3 {
        go_on.send_timeout((), PATIENCE).unwrap();
        assert_eq!(began.recv_timeout(PATIENCE).unwrap().len(), 1, "and with a lower one");
    }
    go_on.send_timeout((), PATIENCE).unwrap();
    assert_eq!(answer(ticket).unwrap().len(), 6);
    bounds.send_replace(ModelBounds::of(&config(None)));
    let ticket = jobs.submit(job("t", &inputs)).unwrap();
    assert_eq!(began.recv_timeout(PATIENCE).unwrap().len(), 6, "without one");
    go_on.send_timeout((), PATIENCE).unwrap();
    assert_eq!(answer(ticket).unwrap().len(), 6);
}
