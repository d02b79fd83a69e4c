//! What tests of the worker share: an engine that computes nothing, a request, and a worker for both.
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::{Batch, Engine, EngineError, EngineLimits, Reuse, SavedPart};
use camshaft_core::fake::NoFilters;
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::{PolicyDigest, RequestId, SeqId, Token, WorkerId};
use camshaft_core::message::{Command, Start};
use camshaft_core::policy::{NoSampler, Priority, SamplerHook, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{SamplingParams, StandardChain};
use camshaft_core::segments::Namespace;
use camshaft_core::vocabulary::Vocabulary;
use camshaft_core::worker::{Worker, WorkerOptions};

/// Gives every row the same logits.
pub(crate) struct Even<F: FnMut(&Batch)> {
    pub(crate) limits: EngineLimits,
    /// Shape: [257].
    pub(crate) logits: Vec<f32>,
    pub(crate) on_decode: F,
}

impl<F: FnMut(&Batch)> Engine for Even<F> {
    fn limits(&self) -> EngineLimits {
        self.limits
    }
    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        (self.on_decode)(batch);
        Ok(())
    }
    fn logits(&self, _: usize) -> &[f32] {
        &self.logits
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
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

/// A worker whose vocabulary is the 256 bytes and an end of generation.
pub(crate) fn worker(limits: EngineLimits, cache: u64, step_target: Duration) -> Worker {
    let pieces = (0..=255u8).map(|byte| vec![byte]).chain([Vec::new()]);
    let vocabulary = Arc::new(Vocabulary::new(pieces, vec![Token(256)]));
    Worker::new(WorkerOptions {
        id: WorkerId(0),
        limits,
        vocabulary: vocabulary.clone(),
        samplers: Arc::new(Native),
        filters: Arc::new(NoFilters),
        cache: PrefixCache::new(cache),
        step_target,
        grammars: Arc::new(GrammarStore::new(vocabulary)),
        masks: None,
        speculation: None,
    })
}

/// Starts a request that goes on to its last token.
pub(crate) fn start(
    id: u64,
    prompt: Vec<Token>,
    max_tokens: u32,
    params: SamplingParams,
    stop: Vec<String>,
) -> Command {
    let need = prompt.len() as u32 + max_tokens;
    let start = Start {
        id: RequestId(id),
        model: "m".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        adapters: Default::default(),
        session: None,
        priority: Priority::Normal,
        endpoint: camshaft_core::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        context: Default::default(),
        prompt: prompt.into(),
        params,
        samplers: None,
        choice: 0,
        max_tokens,
        stop,
        ignore_eos: true,
        ends: Default::default(),
        score_prompt: false,
        logprobs: None,
        grammar: None,
        shown: Arc::default(),
    };
    Command::Start { need, start: Box::new(start) }
}
