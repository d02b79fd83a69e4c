//! What is made of a model's weights: engines, embedders, drafters, and the fakes that compute nothing.
use std::sync::Arc;

use camshaft_core::cache::PrefixCache;
use camshaft_core::embed::{Embedder, EmbedderLimits};
use camshaft_core::engine::{Batch, Engine, EngineError, EngineLimits, ModelInfo, ModelKind};
use camshaft_core::fake::FakeEngine;
use camshaft_core::ids::{SeqId, Token, WorkerId};
use camshaft_core::sizes::Sizes;
use camshaft_core::speculate::{Drafter, ModelDrafter, PromptLookup};
use camshaft_core::worker::Speculation;
use camshaft_engine::{EngineOptions, KvType, LlamaEmbedder, LlamaEngine, LoadedModel};

use crate::config::{KvTypeKey, ModelConfig};
use crate::error::{ModelProblem, ServerError};
use crate::models;

/// What the fake engines pretend to have been trained for.
pub(crate) const FAKE_TOKENS: u32 = 8192;
/// Numbers of a vector that they give.
const FAKE_DIMENSIONS: u32 = 64;
const FAKE_LIMITS: EngineLimits =
    EngineLimits { sequences: 1, kv_tokens: FAKE_TOKENS, batch_tokens: 512, context_tokens: FAKE_TOKENS };

/// Tokens of each sequence in the batches of a trial: drivers have kernels of their own for narrow ones.
const TRIAL_WIDTHS: [u32; 7] = [1, 2, 4, 1, 8, 100, 1];

/// What a fake engine of these sizes can hold.
pub(crate) fn fake_limits(sizes: &Sizes) -> EngineLimits {
    let Sizes { sequences, kv_tokens, batch_tokens, .. } = *sizes;
    EngineLimits { sequences, kv_tokens, batch_tokens, context_tokens: sizes.sequence_tokens() }
}

/// What the fake engines say that they are.
pub(crate) fn fake_info(kind: ModelKind) -> ModelInfo {
    ModelInfo { kind, ..FakeEngine::info(FAKE_LIMITS) }
}

/// A fake engine of a worker, and its cache of so many bytes.
pub(crate) fn fake_parts(
    limits: EngineLimits,
    worker: WorkerId,
    cache_bytes: u64,
) -> Result<(FakeEngine, PrefixCache), ServerError> {
    let mut engine = FakeEngine::new(limits, u64::from(worker.0));
    engine.memory = 8;
    Ok((engine, PrefixCache::new(cache_bytes)))
}

/// What a fake embedder of these sizes can hold.
pub(crate) fn fake_embedder_limits(sizes: &Sizes) -> EmbedderLimits {
    let Sizes { sequences, batch_tokens, input_tokens, .. } = *sizes;
    let (efficient_tokens, batch_inputs) = (batch_tokens, sequences as usize);
    EmbedderLimits { batch_tokens, efficient_tokens, batch_inputs, input_tokens, dimensions: FAKE_DIMENSIONS }
}

/// What a context of a model is made with.
pub(crate) fn engine_options(config: &ModelConfig, sizes: &Sizes) -> EngineOptions {
    let Sizes { sequences, kv_tokens, layout, batch_tokens, threads, .. } = *sizes;
    let chosen = if sizes.quantized { KvType::Q8_0 } else { KvType::F16 };
    EngineOptions {
        sequences,
        kv_tokens,
        kv_layout: layout,
        batch_tokens,
        threads,
        kv_type: config.kv_type.set().map_or(chosen, KvTypeKey::kv_type),
        flash_attention: config.flash_attention.wanted(),
        kv_on_device: config.kv_on_gpu,
    }
}

pub(crate) fn engine(
    config: &ModelConfig,
    model: &Arc<LoadedModel>,
    options: &EngineOptions,
) -> Result<LlamaEngine, ServerError> {
    LlamaEngine::new(model, options).map_err(|error| models::from_engine(config, error))
}

pub(crate) fn embedder(
    config: &ModelConfig,
    model: &Arc<LoadedModel>,
    sizes: &Sizes,
) -> Result<LlamaEmbedder, ServerError> {
    let flash = config.flash_attention.wanted();
    let embedder = LlamaEmbedder::new(model, sizes.batch_tokens, sizes.input_tokens, sizes.threads, flash);
    embedder.map_err(|error| models::from_engine(config, error))
}

/// Who drafts for a worker.
pub(crate) fn speculation(
    config: &ModelConfig,
    draft: Option<&Arc<LoadedModel>>,
    options: &EngineOptions,
) -> Result<Option<Speculation>, ServerError> {
    if config.draft_tokens() == 0 {
        return Ok(None);
    }
    let drafter: Box<dyn Drafter> = match draft {
        None => Box::new(PromptLookup),
        Some(draft) => Box::new(ModelDrafter::new(engine(config, draft, options)?)),
    };
    Ok(Some(Speculation { drafter, draft_tokens: config.draft_tokens() }))
}

/// Why layers on devices do not compute a model.
pub(crate) fn does_not_work(config: &ModelConfig, why: EngineError) -> ServerError {
    ServerError::model(&config.id, &config.origins, "gpu-layers", ModelProblem::from(why))
}

/// Computes what serving computes: a token, batches of several widths, several sequences at once, and a copy of what it knows of one.
///
/// # Errors
/// It does not work.
pub(crate) fn exercise(engine: &mut impl Engine) -> Result<(), EngineError> {
    engine.warm_up()?;
    let limits = engine.limits();
    let sequences = limits.sequences.min(2);
    let mut done = 0;
    for width in TRIAL_WIDTHS {
        let last = done + width;
        if width * sequences > limits.batch_tokens || last > limits.context_tokens {
            break;
        }
        let mut batch = Batch::default();
        for seq in 0..sequences {
            for position in done..last {
                batch.push(Token(position % 2), position, SeqId(seq), position + 1 == last);
            }
        }
        engine.decode(&batch)?;
        let logits = engine.logits(batch.len() - 1);
        if logits.is_empty() || logits.iter().any(|logit| !logit.is_finite()) {
            return Err(EngineError::Failed("logits that are no numbers".to_owned()));
        }
        done = last;
    }
    // Where the state of a model cannot be copied, prefixes are computed again.
    drop(engine.save(SeqId(0), 0..done));
    (0..sequences).for_each(|seq| engine.truncate(SeqId(seq), 0));
    Ok(())
}

/// As [`exercise`]: inputs alone and together, short and long.
///
/// # Errors
/// As there.
pub(crate) fn exercise_embedder(embedder: &mut impl Embedder) -> Result<(), EngineError> {
    embedder.warm_up()?;
    let most = embedder.limits().input_tokens;
    for (inputs, tokens) in [(1, 2), (1, 4), (2, 4), (3, 30), (1, 100), (1, 1)] {
        if inputs * tokens <= most {
            let input: Arc<[Token]> = (0..tokens).map(|token| Token(token % 2)).collect();
            let vectors = embedder.compute(&vec![input; inputs as usize])?;
            if vectors.iter().any(Result::is_err) {
                return Err(EngineError::Failed("a vector that holds no numbers".to_owned()));
            }
        }
    }
    Ok(())
}
