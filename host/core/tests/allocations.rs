//! A token of a running generation costs the worker's thread no allocation.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::{Batch, Engine, EngineError, EngineLimits, Reuse, SavedPart};
use camshaft_core::ids::{PolicyDigest, RequestId, SeqId, Token, WorkerId};
use camshaft_core::message::{Command, Event, Start};
use camshaft_core::policy::{Fault, Priority, SamplerHook, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{SamplingParams, StandardChain};
use camshaft_core::segments::Namespace;
use camshaft_core::vocabulary::Vocabulary;
use camshaft_core::worker::{Step, Worker, WorkerOptions};

const LIMITS: EngineLimits = EngineLimits { sequences: 8, kv_tokens: 8192, batch_tokens: 64, context_tokens: 1024 };

/// Gives every row the same logits, which leave all letters possible.
struct Even(Vec<f32>);

impl Engine for Even {
    fn limits(&self) -> EngineLimits {
        LIMITS
    }
    fn decode(&mut self, _: &Batch) -> Result<(), EngineError> {
        Ok(())
    }
    fn logits(&self, _: usize) -> &[f32] {
        &self.0
    }
    fn truncate(&mut self, _: SeqId, _: u32) {}
    fn reuse(&self) -> Reuse {
        Reuse::Ranges
    }
    fn share(&mut self, _: SeqId, _: SeqId, _: Range<u32>) -> bool {
        false
    }
    fn save(&mut self, _: SeqId, _: Range<u32>) -> Option<Vec<u8>> {
        None
    }
    fn restore(&mut self, _: SeqId, _: &[SavedPart<'_>]) -> bool {
        false
    }
}

#[derive(Debug)]
struct Native;

impl SamplerHook for Native {
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, Fault> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

fn start(id: u64, params: SamplingParams) -> Command {
    let start = Start {
        id: RequestId(id),
        model: "m".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        session: None,
        priority: Priority::Normal,
        sampler_chain: PolicyDigest::NATIVE,
        prompt: (0..20).map(Token).collect(),
        params,
        samplers: None,
        choice: 0,
        max_tokens: 900,
        // Neither ever comes: one that is held back for, and one that is not.
        stop: vec!["\u{1}never".to_owned(), "0a".to_owned()],
        ignore_eos: true,
        logprobs: None,
    };
    Command::Start { need: 20 + start.max_tokens, start: Box::new(start) }
}

#[test]
fn tokens_of_running_generations_allocate_nothing() {
    let pieces = (0..=255u8).map(|byte| vec![byte]).chain([Vec::new()]);
    let mut worker = Worker::new(WorkerOptions {
        id: WorkerId(0),
        limits: LIMITS,
        vocabulary: Arc::new(Vocabulary::new(pieces, vec![Token(256)])),
        samplers: Arc::new(Native),
        cache: PrefixCache::new(1 << 20),
        step_target: Duration::from_millis(50),
        speculation: None,
    });
    let mut engine = Even((0..257).map(|id| if (97..123).contains(&id) { 1.0 } else { -5.0 }).collect());
    let mut events = Vec::with_capacity(1024);
    let usual = SamplingParams::default();
    let penalties = SamplingParams { repeat_penalty: 1.1, frequency_penalty: 0.2, ..SamplingParams::default() };
    for (id, params) in (1..).zip([SamplingParams::greedy(), usual.clone(), penalties, usual]) {
        worker.handle(start(id, params), &mut engine, &mut events);
    }
    let mut now = Duration::ZERO;
    let mut steps = |count: usize| {
        let mut deltas = 0;
        for _ in 0..count {
            now += Duration::from_millis(1);
            assert!(matches!(worker.step(now, &mut engine, &mut events), Step::Decoded { .. }));
            deltas += events.iter().filter(|event| matches!(event, Event::Delta { .. })).count();
            events.clear();
        }
        deltas
    };
    // Prompts, and buffers that grow to their size.
    steps(300);
    let mut deltas = 0;
    let counted = allocation_counter::measure(|| deltas = steps(100));
    assert!(deltas > 300, "{deltas} pieces of text came of 400 tokens");
    assert_eq!(counted.count_total, 0, "allocations for 400 tokens");
}
