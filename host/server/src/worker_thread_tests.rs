//! A worker thread with the fake engine: what a panic costs, and what comes after it.
use std::ops::Range;
use std::sync::{Arc, Mutex};

use camshaft_api::backend::Shared;
use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::{Batch, EngineError, Reuse, SavedPart};
use camshaft_core::fake::FakeEngine;
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::{PolicyDigest, RequestId, SeqId, Token};
use camshaft_core::message::Event;
use camshaft_core::policy::{NoSampler, Priority, SamplerHook, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{SamplingParams, StandardChain};
use camshaft_core::segments::{ColdTier, Namespace, SegmentId, SegmentInfo, State};
use camshaft_core::worker::WorkerOptions;
use tokio::sync::mpsc;

use super::*;
use crate::metrics::ServerMetrics;
use crate::streams::tests::NoPolicies;

const ID: WorkerId = WorkerId(3);
const PATIENCE: Duration = Duration::from_secs(60);
const LIMITS: EngineLimits = EngineLimits { sequences: 4, kv_tokens: 256, batch_tokens: 32, context_tokens: 128 };

#[derive(Debug)]
struct Native;

impl SamplerHook for Native {
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

/// Panics at its first decode if it is told to, and notes on which threads it was warmed up.
pub(crate) struct Fragile {
    pub(crate) engine: FakeEngine,
    pub(crate) panics: bool,
    pub(crate) warmed: Arc<Mutex<Vec<Option<String>>>>,
}

impl Engine for Fragile {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }
    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        assert!(!self.panics, "as the test asked");
        self.engine.decode(batch)
    }
    fn warm_up(&mut self) -> Result<(), EngineError> {
        self.warmed.lock().unwrap().push(std::thread::current().name().map(str::to_owned));
        Ok(())
    }
    fn logits(&self, row: usize) -> &[f32] {
        self.engine.logits(row)
    }
    fn truncate(&mut self, seq: SeqId, from: u32) {
        self.engine.truncate(seq, from);
    }
    fn reuse(&self) -> Reuse {
        self.engine.reuse()
    }
    fn share(&mut self, from: SeqId, to: SeqId, range: Range<u32>) -> bool {
        self.engine.share(from, to, range)
    }
    fn save(&mut self, seq: SeqId, range: Range<u32>) -> Option<Vec<u8>> {
        self.engine.save(seq, range)
    }
    fn restore(&mut self, seq: SeqId, parts: &[SavedPart<'_>]) -> bool {
        self.engine.restore(seq, parts)
    }
}

fn options(cache: PrefixCache) -> WorkerOptions {
    WorkerOptions {
        id: ID,
        limits: LIMITS,
        vocabulary: FakeEngine::info(LIMITS).vocabulary,
        samplers: Arc::new(Native),
        filters: Arc::new(camshaft_core::fake::NoFilters),
        cache,
        step_target: Duration::from_millis(50),
        grammars: Arc::new(GrammarStore::new(FakeEngine::info(LIMITS).vocabulary)),
        masks: None,
        speculation: None,
    }
}

fn start(id: u64) -> (WorkerMessage, mpsc::Receiver<Event>) {
    let (sender, events) = mpsc::channel(64);
    let start = Start {
        id: RequestId(id),
        model: "fake".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        adapters: Default::default(),
        session: None,
        priority: Priority::Normal,
        endpoint: camshaft_core::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        context: Default::default(),
        prompt: [Token(97)].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 4,
        stop: Vec::new(),
        ignore_eos: true,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
    };
    let stream = Stream::new(sender, Shared::default(), Arc::new(NoPolicies));
    (WorkerMessage::Start { start: Box::new(start), need: 5, stream }, events)
}

/// A tier that is closed when the test says: by dropping the sender.
struct Stalled(Receiver<Infallible>);

impl ColdTier for Stalled {
    fn put(&mut self, _: SegmentId, _: &SegmentInfo, _: &State) {}
    fn get(&mut self, _: SegmentId) -> Option<State> {
        None
    }
    fn remove(&mut self, _: SegmentId) {}
    fn lost(&mut self, _: &mut Vec<SegmentId>) {}
}

impl Drop for Stalled {
    fn drop(&mut self) {
        assert!(self.0.recv().is_err());
    }
}

#[test]
fn regression_a_panicked_worker_is_down_before_its_disk_tier_is_closed() {
    let metrics = ServerMetrics::new(&prometheus::Registry::new()).unwrap();
    let gauges = metrics.gauges("fake", "3", camshaft_api::Health::default());
    let supervisor = Supervisor::new();
    let (reports_in, reports) = crossbeam_channel::bounded(64);
    let (release, stalled) = crossbeam_channel::bounded(0);
    let mut tier = Some(Stalled(stalled));
    let make = move || {
        let panics = tier.is_some();
        let cache = PrefixCache::new(0);
        let cache = match tier.take() {
            Some(tier) => cache.with_cold(Box::new(tier), Vec::new()),
            None => cache,
        };
        let engine = Fragile { engine: FakeEngine::new(LIMITS, 1), panics, warmed: Arc::default() };
        Ok((engine, Worker::new(options(cache))))
    };
    let setup = WorkerSetup {
        id: ID,
        reports: reports_in,
        slow_reader: PATIENCE,
        frame_interval: Duration::ZERO,
        cores: Vec::new(),
        seat: crate::thread_budget::ThreadBudget::new(1).seat(1),
    };
    let worker = spawn(&supervisor, gauges.clone(), setup, make).unwrap();
    let (message, mut events) = start(1);
    worker.messages.try_send(message).unwrap();
    let next = || loop {
        match reports.recv_timeout(PATIENCE).unwrap() {
            WorkerReport::Step(..) => {}
            report => return report,
        }
    };
    assert!(matches!(next(), WorkerReport::Down(ID)));
    assert_eq!((gauges.up.get(), gauges.health.is_up()), (0, false));
    assert!(matches!(events.blocking_recv(), Some(Event::Started { .. })), "it was about to be computed");
    assert_eq!(events.blocking_recv(), None, "the client does not wait for the disk");
    // Nor does who was on the way to the worker, once the pool has let go of its end, as it does when a worker is down.
    let (message, mut late) = start(2);
    let _ = worker.messages.try_send(message);
    drop(worker);
    assert_eq!(late.blocking_recv(), None);
    assert!(reports.try_recv().is_err(), "it does not come back yet: the directory is still in use");
    drop(release);
    assert!(matches!(next(), WorkerReport::Up(ID, _)));
}

#[test]
fn a_panicked_worker_loses_what_it_ran_and_comes_back() {
    let metrics = ServerMetrics::new(&prometheus::Registry::new()).unwrap();
    let gauges = metrics.gauges("fake", "3", camshaft_api::Health::default());
    let supervisor = Supervisor::new();
    let (reports_in, reports) = crossbeam_channel::bounded(64);
    let (mut lives, warmed) = (0, Arc::<Mutex<Vec<Option<String>>>>::default());
    let warm_in = warmed.clone();
    let make = move || {
        lives += 1;
        if lives == 2 {
            return Err(ServerError::internal("make it", anyhow::anyhow!("no memory at the moment")));
        }
        let engine = Fragile { engine: FakeEngine::new(LIMITS, 1), panics: lives == 1, warmed: warm_in.clone() };
        Ok((engine, Worker::new(options(PrefixCache::new(0)))))
    };
    let setup = WorkerSetup {
        id: ID,
        reports: reports_in,
        slow_reader: PATIENCE,
        frame_interval: Duration::ZERO,
        cores: Vec::new(),
        seat: crate::thread_budget::ThreadBudget::new(1).seat(1),
    };
    let first = spawn(&supervisor, gauges.clone(), setup, make).unwrap();
    let on_worker = || Some("worker-3".to_owned());
    // Regression: what the first decode needs was missed when the first request came.
    assert_eq!(*warmed.lock().unwrap(), [on_worker()], "before anybody is served");
    let (message, mut events) = start(1);
    first.messages.try_send(message).unwrap();
    let next = || loop {
        // What it says of single requests is not of interest here.
        match reports.recv_timeout(PATIENCE).unwrap() {
            WorkerReport::Step(..) => {}
            report => return report,
        }
    };
    assert!(matches!(next(), WorkerReport::Down(ID)));
    assert!(matches!(events.blocking_recv(), Some(Event::Started { .. })), "it was about to be computed");
    assert_eq!(events.blocking_recv(), None, "the client is told by the end of its channel");
    let WorkerReport::Up(ID, second) = next() else { panic!("it comes back") };
    assert_eq!((second.limits, gauges.restarts.get()), (LIMITS, 1));
    let (message, mut events) = start(2);
    second.messages.try_send(message).unwrap();
    let mut last = None;
    while let Some(event) = events.blocking_recv() {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Finished { usage, .. }) if usage.generated_tokens == 4), "{last:?}");
    assert_eq!(*warmed.lock().unwrap(), [on_worker(), on_worker()]);
    // It ends with its sender, and nobody restarts what ended in order.
    drop(second);
    assert!(matches!(next(), WorkerReport::Down(ID)));
    assert_eq!((gauges.up.get(), gauges.restarts.get()), (0, 1));
}
