//! A worker thread with the fake engine: what a panic costs, and what comes after it.
use std::ops::Range;
use std::sync::Arc;

use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::{Batch, EngineError, Reuse};
use camshaft_core::fake::FakeEngine;
use camshaft_core::ids::{PolicyDigest, RequestId, SeqId, Token};
use camshaft_core::policy::{Fault, Priority, SamplerHook, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{SamplingParams, StandardChain};
use camshaft_core::segments::Namespace;
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
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, Fault> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

/// Panics at its first decode if it is told to.
struct Fragile {
    engine: FakeEngine,
    panics: bool,
}

impl Engine for Fragile {
    fn limits(&self) -> EngineLimits {
        self.engine.limits()
    }
    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        assert!(!self.panics, "as the test asked");
        self.engine.decode(batch)
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
    fn restore(&mut self, seq: SeqId, range: Range<u32>, state: &[u8]) -> bool {
        self.engine.restore(seq, range, state)
    }
}

fn start(id: u64) -> (WorkerMessage, mpsc::Receiver<Event>) {
    let (sender, events) = mpsc::channel(64);
    let start = Start {
        id: RequestId(id),
        model: "fake".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        session: None,
        priority: Priority::Normal,
        sampler_chain: PolicyDigest::NATIVE,
        prompt: [Token(97)].into(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens: 4,
        stop: Vec::new(),
        ignore_eos: true,
        logprobs: None,
    };
    let stream = Stream::new(sender, Arc::new(NoPolicies));
    (WorkerMessage::Start { start: Box::new(start), need: 5, stream }, events)
}

#[test]
fn a_panicked_worker_loses_what_it_ran_and_comes_back() {
    let metrics = ServerMetrics::new(&prometheus::Registry::new()).unwrap();
    let gauges = metrics.gauges("fake", "3", camshaft_api::Health::default());
    let supervisor = Supervisor::new();
    let (reports_in, reports) = crossbeam_channel::bounded(64);
    let mut lives = 0;
    let make = move || {
        lives += 1;
        if lives == 2 {
            return Err(ServerError::BadData("no memory at the moment".to_owned()));
        }
        let engine = Fragile { engine: FakeEngine::new(LIMITS, 1), panics: lives == 1 };
        let options = WorkerOptions {
            id: ID,
            limits: LIMITS,
            vocabulary: FakeEngine::info(LIMITS).vocabulary,
            samplers: Arc::new(Native),
            cache: PrefixCache::new(0),
            step_target: Duration::from_millis(50),
            speculation: None,
        };
        Ok((engine, Worker::new(options)))
    };
    let setup = WorkerSetup { id: ID, reports: reports_in, slow_reader: PATIENCE, frame_interval: Duration::ZERO };
    let first = spawn(&supervisor, gauges.clone(), setup, make).unwrap();
    let (message, mut events) = start(1);
    first.messages.send(message).unwrap();
    let next = || loop {
        // What it says of single requests is not of interest here.
        match reports.recv_timeout(PATIENCE).unwrap() {
            WorkerReport::Step(..) => {}
            report => return report,
        }
    };
    assert!(matches!(next(), WorkerReport::Down(ID)));
    assert_eq!(events.blocking_recv(), None, "the client is told by the end of its channel");
    let WorkerReport::Up(ID, second) = next() else { panic!("it comes back") };
    assert_eq!((second.limits, gauges.restarts.get()), (LIMITS, 1));
    let (message, mut events) = start(2);
    second.messages.send(message).unwrap();
    let mut last = None;
    while let Some(event) = events.blocking_recv() {
        last = Some(event);
    }
    assert!(matches!(last, Some(Event::Finished { usage, .. }) if usage.generated_tokens == 4), "{last:?}");
    // It ends with its sender, and nobody restarts what ended in order.
    drop(second);
    assert!(matches!(next(), WorkerReport::Down(ID)));
    assert_eq!((gauges.up.get(), gauges.restarts.get()), (0, 1));
}
