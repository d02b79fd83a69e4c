//! Models that are not plain transformers, and adapters. Synthetic weights make downloads unnecessary.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]
mod synthetic;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::{Batch, Engine, ModelKind, Reuse};
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::{PolicyDigest, RequestId, SeqId, Token, WorkerId};
use camshaft_core::jobs::BatchModel;
use camshaft_core::message::{Command, Event, Start};
use camshaft_core::policy::{NoSampler, Priority, SamplerHook, SamplingRequest, TokenSampler};
use camshaft_core::sampling::{SamplingParams, StandardChain};
use camshaft_core::segments::Namespace;
use camshaft_core::speculate::PromptLookup;
use camshaft_core::worker::{Speculation, Step, Worker, WorkerOptions};
use camshaft_engine::{
    AdapterOptions, EngineOptions, FlashAttention, KvLayout, KvType, LlamaEmbedder, LlamaEngine, LoadOptions,
    LoadedModel,
};

#[derive(Debug)]
struct Native;

impl SamplerHook for Native {
    fn open(&self, _: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        Ok(Box::new(StandardChain::new(request.params.clone())))
    }
}

fn load(path: &Path) -> Arc<LoadedModel> {
    LoadedModel::from_file(path, &LoadOptions::default()).unwrap()
}

fn engine(model: &Arc<LoadedModel>, kv_tokens: u32) -> LlamaEngine {
    let options = EngineOptions {
        sequences: 6,
        kv_tokens,
        kv_layout: KvLayout::Pooled,
        batch_tokens: 64,
        ..EngineOptions::default()
    };
    LlamaEngine::new(model, &options).unwrap()
}

fn start(id: u64, prompt: &str, max_tokens: u32) -> Start {
    Start {
        id: RequestId(id),
        model: "synthetic".to_owned(),
        tenant: "t".into(),
        namespace: Namespace::Tenant("t".into()),
        adapters: Default::default(),
        session: None,
        priority: Priority::Normal,
        endpoint: camshaft_core::policy::Endpoint::Completion,
        sampler_chain: PolicyDigest::NATIVE,
        filter_chain: PolicyDigest::NATIVE,
        context: Default::default(),
        prompt: prompt.bytes().map(|byte| Token(u32::from(byte))).collect(),
        params: SamplingParams::greedy(),
        samplers: None,
        choice: 0,
        max_tokens,
        stop: Vec::new(),
        ignore_eos: true,
        ends: Default::default(),
        score_prompt: false,
        logprobs: Some(0),
        grammar: None,
        shown: Arc::default(),
    }
}

/// Runs all requests together on a worker with `kv_tokens`. Returns their tokens and the number of preemptions.
fn run(model: &Arc<LoadedModel>, kv_tokens: u32, requests: &[Start]) -> (BTreeMap<u64, Vec<Token>>, usize) {
    let mut engine = engine(model, kv_tokens);
    let mut worker = Worker::new(WorkerOptions {
        id: WorkerId(0),
        limits: engine.limits(),
        vocabulary: model.info().vocabulary.clone(),
        samplers: Arc::new(Native),
        filters: Arc::new(camshaft_core::fake::NoFilters),
        cache: PrefixCache::new(1 << 24),
        step_target: Duration::from_millis(50),
        grammars: Arc::new(GrammarStore::new(model.info().vocabulary.clone())),
        masks: None,
        speculation: Some(Speculation { drafter: Box::new(PromptLookup), draft_tokens: 4 }),
    });
    let mut events = Vec::new();
    for request in requests {
        let need = request.prompt.len() as u32 + 32;
        worker.handle(Command::Start { start: Box::new(request.clone()), need }, &mut engine, &mut events);
    }
    while worker.step(Duration::ZERO, &mut engine, &mut events) != Step::Idle {
        assert!(worker.check());
    }
    let (mut tokens, mut preemptions): (BTreeMap<u64, Vec<Token>>, usize) = (BTreeMap::new(), 0);
    for event in events {
        match event {
            Event::Delta { id, delta } => {
                tokens.entry(id.0).or_default().extend(delta.logprobs.iter().map(|scored| scored.token));
            }
            Event::Preempted { .. } => preemptions += 1,
            Event::Failed { id, error } => panic!("{id}: {error}"),
            _ => {}
        }
    }
    (tokens, preemptions)
}

/// Runs requests that need more KV tokens than there are. Each must draw the same tokens as alone, although the model's
/// state can only be saved whole.
fn check_preemption(model: &Arc<LoadedModel>) {
    assert_eq!(model.info().reuse, Reuse::Whole);
    let requests: Vec<Start> =
        (0..5).map(|id| start(id, &format!("the same beginning, and number {id}"), 70 + 5 * id as u32)).collect();
    let (together, preemptions) = run(model, 256, &requests);
    assert!(preemptions > 0, "256 tokens are too few for all");
    for request in requests {
        let alone = run(model, 512, std::slice::from_ref(&request)).0;
        let id = request.id.0;
        assert_eq!(together[&id].len(), request.max_tokens as usize);
        assert_eq!(together[&id], alone[&id], "request {id}");
    }
}

#[test]
fn a_recurrent_model_is_preempted_and_resumed() {
    check_preemption(&load(synthetic::mamba().path()));
}

#[test]
fn a_sliding_window_model_is_preempted_and_resumed() {
    check_preemption(&load(synthetic::sliding_window().path()));
}

#[test]
fn a_model_that_is_partly_recurrent_is_preempted_and_resumed() {
    check_preemption(&load(synthetic::hybrid().path()));
}

#[test]
fn an_encoder_attends_as_exactly_with_flash_attention_as_without() {
    let file = synthetic::encoder();
    let model = load(file.path());
    let embedder = |flash| LlamaEmbedder::new(&model, 512, 512, 2, flash).unwrap();
    let (mut exact, mut fast) = (embedder(FlashAttention::Off), embedder(FlashAttention::Auto));
    let input =
        |length: usize| -> Arc<[Token]> { (0..length).map(|at| Token((at * 7 + length) as u32 % 256)).collect() };
    let vectors = |embedder: &mut LlamaEmbedder, inputs: &[Arc<[Token]>]| -> Vec<f32> {
        embedder.compute(inputs).unwrap().into_iter().flat_map(Result::unwrap).collect()
    };
    // Where attention is llama.cpp's, long batches round keys and values to 16 bits.
    let is_ours = cfg!(target_arch = "x86_64") && has_avx2();
    // Short and long ones, alone and together, and the first ones again.
    for lengths in [&[1][..], &[3], &[63], &[3, 60, 1], &[64], &[200, 3, 3, 3, 100], &[512], &[3]] {
        let inputs: Vec<_> = lengths.iter().map(|length| input(*length)).collect();
        let (exact, fast) = (vectors(&mut exact, &inputs), vectors(&mut fast, &inputs));
        let most = exact.iter().zip(&fast).map(|(exact, fast)| (exact - fast).abs()).fold(0.0, f32::max);
        let size = exact.iter().map(|number| number.abs()).fold(0.0, f32::max);
        let bound = if is_ours || lengths.iter().sum::<usize>() < 64 { 5e-6 } else { 5e-3 };
        assert!(most < bound * size, "{lengths:?}: {most} of {size}");
    }
}

#[test]
fn regression_batches_of_any_size_embed() {
    let file = synthetic::encoder();
    let model = load(file.path());
    for batch in [1, 63, 64, 65, 100, 127, 128, 129, 511, 512, 513, 1000] {
        for flash in [FlashAttention::Off, FlashAttention::Auto] {
            let mut embedder = LlamaEmbedder::new(&model, batch, 512, 2, flash).unwrap();
            let input: Arc<[Token]> = (0..batch.min(512)).map(|at| Token(at % 256)).collect();
            assert!(embedder.compute(&[input]).unwrap()[0].is_ok(), "{batch}");
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}

#[test]
fn regression_values_for_each_layer_are_sized_as_values_for_all() {
    let sizes = |file: tempfile::NamedTempFile| {
        let model = load(file.path());
        (model.outline().kv_token_bytes(KvType::F16), model.outline().batch_token_bytes())
    };
    let all = sizes(synthetic::gemma(&[2], &[128]));
    assert_eq!(sizes(synthetic::gemma(&[2, 2], &[128, 128])), all);
    // Two layers with two heads, whose keys and values have 16 numbers of two bytes.
    assert_eq!(all.0, 2 * 2 * (16 + 16) * 2);
    // The layer that does not attend keeps nothing for a token.
    assert_eq!(sizes(synthetic::hybrid()).0, all.0 / 2);
}

#[test]
fn regression_a_window_that_only_the_architecture_knows_of_is_one() {
    assert_eq!(load(synthetic::gemma_of(None).path()).info().reuse, Reuse::Whole);
}

/// The state of recurrent layers is what llama.cpp saves of a sequence, less some numbers of its format.
#[test]
fn regression_the_state_of_recurrent_layers_is_counted() {
    const FORMAT_BYTES: u64 = 512;
    for (file, bytes) in [(synthetic::mamba(), 2 * (3 * 128 + 16 * 128) * 4), (synthetic::hybrid(), 2 * 64 * 4)] {
        let model = load(file.path());
        assert_eq!(model.outline().sequence_bytes(), bytes);
        let mut engine = engine(&model, 256);
        let mut batch = Batch::default();
        batch.push(Token(5), 0, SeqId(0), true);
        engine.decode(&batch).unwrap();
        let saved = engine.save(SeqId(0), 0..1).unwrap().len() as u64 - model.outline().kv_token_bytes(KvType::F16);
        assert!((bytes..bytes + FORMAT_BYTES).contains(&saved), "{saved} of {bytes}");
    }
    assert_eq!(load(synthetic::sliding_window().path()).outline().sequence_bytes(), 0);
}

/// llama.cpp would end the process at the first step, or compute each step as if nothing had come before.
#[test]
fn regression_models_that_do_not_continue_texts_are_refused() {
    for architecture in ["t5", "dream", "llada"] {
        for kind in [None, Some(ModelKind::Generate), Some(ModelKind::Embed)] {
            let options = LoadOptions { kind, ..LoadOptions::default() };
            let file = synthetic::other(architecture);
            let error = LoadedModel::from_file(file.path(), &options).unwrap_err().to_string();
            assert!(error.contains(&format!("({architecture}) that neither continues texts")), "{error}");
        }
    }
}

fn demo() -> &'static Path {
    Path::new("../../config/models/demo.gguf")
}

/// Width of the demo model.
const DEMO_WIDTH: u64 = 192;

fn with_adapter(path: &Path, scale: f32) -> LoadOptions {
    let adapter = Some(AdapterOptions { path: path.to_owned(), scale });
    LoadOptions { adapter, digest: true, ..LoadOptions::default() }
}

#[test]
fn an_adapter_changes_the_logits_more_with_a_larger_scale() {
    let adapter = synthetic::adapter(DEMO_WIDTH);
    let logits = |options: &LoadOptions| -> Vec<f32> {
        let model = LoadedModel::from_file(demo(), options).unwrap();
        let mut engine = engine(&model, 256);
        let mut batch = Batch::default();
        for (position, token) in (0..).zip([0, 4, 300, 301]) {
            batch.push(Token(token), position, SeqId(0), position == 3);
        }
        engine.decode(&batch).unwrap();
        engine.logits(3).to_vec()
    };
    let distance = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let plain = logits(&LoadOptions::default());
    let (none, half, whole) = (
        logits(&with_adapter(adapter.path(), 0.0)),
        logits(&with_adapter(adapter.path(), 0.5)),
        logits(&with_adapter(adapter.path(), 1.0)),
    );
    assert!(distance(&plain, &none) < 1e-3);
    let (less, more) = (distance(&plain, &half), distance(&plain, &whole));
    assert!(less > 0.01 && more > less, "{less} {more}");
    // Segments saved under one identity must not be used under another.
    let identity =
        |options: &LoadOptions| LoadedModel::from_file(demo(), options).unwrap().identity().unwrap().to_owned();
    let digest = LoadOptions { digest: true, ..LoadOptions::default() };
    let identities = [&digest, &with_adapter(adapter.path(), 0.5), &with_adapter(adapter.path(), 1.0)].map(identity);
    assert!(identities[0] != identities[1] && identities[1] != identities[2]);
}

#[test]
fn refuses_an_adapter_of_another_model_and_files_that_are_no_adapter() {
    let other = synthetic::adapter(DEMO_WIDTH / 2);
    let missing = Path::new("no-such-adapter.gguf");
    // It would change every token instead of those after its invocation.
    let activated = synthetic::activated_adapter(DEMO_WIDTH);
    for (path, expected) in [
        (other.path(), "adapter"),
        (demo(), "adapter"),
        (missing, "no-such-adapter"),
        (activated.path(), "activated LoRA adapter"),
    ] {
        let error = LoadedModel::from_file(demo(), &with_adapter(path, 1.0)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}
