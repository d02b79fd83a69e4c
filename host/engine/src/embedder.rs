//! A llama.cpp context that computes embeddings.
use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::sync::{Arc, PoisonError};

use camshaft_core::embed::{Embedder, EmbedderLimits};
use camshaft_core::engine::EngineError;
use camshaft_core::ids::Token;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{LlamaContextParams, LlamaPoolingType};
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;

use crate::backend::{CONTEXT_CREATION, backend};
use crate::error::EngineLoadError;
use crate::gelu;
use crate::kind::Traits;
use crate::load::LoadedModel;

/// Maximum number of inputs in a batch.
const MAX_INPUTS: u32 = 64;
/// Tokens of a batch for each thread that computes it: larger batches take no less time for a token (docs/benchmarks.md).
const EFFICIENT_TOKENS: u32 = 128;
/// As `EFFICIENT_TOKENS`, without flash attention: the other one walks the tokens of all inputs for each token.
const EFFICIENT_WITHOUT_FLASH: u32 = 24;
/// Its attention has a bias, which llama.cpp's flash attention does not take.
const WITHOUT_FLASH: &str = "t5encoder";
/// Flash attention works in tiles in batches of at least this size, and leaves out tiles that lie between two inputs. In smaller
/// batches it takes twice as long as the other attention.
const TILED_TOKENS: u32 = 64;

/// Computes one vector per input, several inputs at a time, on the embedder's thread.
pub struct LlamaEmbedder {
    /// One for all batches, with flash attention, and for encoders a small one without, for short batches. They borrow from
    /// `model`; see `context` and `drop` for why the borrow may be `'static` here.
    contexts: ManuallyDrop<Vec<LlamaContext<'static>>>,
    model: Arc<LoadedModel>,
    batch: LlamaBatch<'static>,
    batch_tokens: u32,
    efficient_tokens: u32,
    input_tokens: u32,
}

impl fmt::Debug for LlamaEmbedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlamaEmbedder").field("model", &self.model).finish_non_exhaustive()
    }
}

impl LlamaEmbedder {
    /// Makes contexts for batches of up to `batch_tokens`, which should be at least the model's context, so that every input
    /// fits.
    ///
    /// Pools as the model's metadata says. Without it, an encoder's vector is the mean over all tokens, and a decoder's
    /// is that of the last token, which alone attends to all others.
    ///
    /// # Errors
    /// llama.cpp cannot make a context.
    pub fn new(model: Arc<LoadedModel>, batch_tokens: u32, threads: u32) -> Result<Self, EngineLoadError> {
        // An encoder attends in both directions, so an input must be in one batch.
        let input_tokens = model.info().trained_context_tokens.min(batch_tokens);
        let threads = threads.max(1);
        let traits = Traits::of(&model.model);
        let flash = traits.architecture != WITHOUT_FLASH;
        let mut contexts = vec![context(&model, batch_tokens, threads, flash)?];
        // A decoder's would hold KV, and rows of a large vocabulary.
        if flash && traits.encodes {
            contexts.push(context(&model, TILED_TOKENS, threads, false)?);
        }
        let contexts = ManuallyDrop::new(contexts);
        let batch = LlamaBatch::new(batch_tokens as usize, 1);
        let efficient = if flash { EFFICIENT_TOKENS } else { EFFICIENT_WITHOUT_FLASH };
        let efficient_tokens = efficient.saturating_mul(threads).min(batch_tokens);
        Ok(Self { contexts, model, batch, batch_tokens, efficient_tokens, input_tokens })
    }
}

/// A context for batches of up to `batch_tokens`.
fn context(
    model: &Arc<LoadedModel>,
    batch_tokens: u32,
    threads: u32,
    flash: bool,
) -> Result<LlamaContext<'static>, EngineLoadError> {
    let llama = &model.model;
    let traits = Traits::of(llama);
    let pooling = match traits.pools {
        true => LlamaPoolingType::Unspecified,
        false if traits.encodes => LlamaPoolingType::Mean,
        false => LlamaPoolingType::Last,
    };
    // llama.cpp aborts unless a batch can hold a row of each input.
    let llama_batch = batch_tokens.max(MAX_INPUTS);
    let params = LlamaContextParams::default()
        .with_n_ctx(NonZeroU32::new(llama_batch))
        .with_n_batch(llama_batch)
        .with_n_ubatch(llama_batch)
        .with_n_seq_max(MAX_INPUTS)
        .with_kv_unified(true)
        .with_n_threads(threads as i32)
        .with_n_threads_batch(threads as i32)
        .with_embeddings(true)
        .with_flash_attention_policy(match flash {
            // If the model allows it.
            true => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_AUTO,
            false => llama_cpp_sys_2::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        })
        .with_pooling_type(pooling)
        .with_offload_kqv(false)
        .with_op_offload(false)
        .with_no_perf(true);
    let params = gelu::exact(params, &traits.architecture);
    let context = {
        let _guard = CONTEXT_CREATION.lock().unwrap_or_else(PoisonError::into_inner);
        llama.new_context(backend()?, params).map_err(|error| EngineLoadError::NoContext {
            sequences: MAX_INPUTS,
            kv_tokens: batch_tokens,
            source: Box::new(error),
        })?
    };
    // SAFETY: as in `LlamaEngine::new`: the model is in an `Arc` that the embedder keeps until it has dropped the context.
    Ok(unsafe { std::mem::transmute::<LlamaContext<'_>, LlamaContext<'static>>(context) })
}

impl Embedder for LlamaEmbedder {
    fn limits(&self) -> EmbedderLimits {
        EmbedderLimits {
            batch_tokens: self.batch_tokens,
            efficient_tokens: self.efficient_tokens,
            batch_inputs: MAX_INPUTS as usize,
            input_tokens: self.input_tokens,
            dimensions: self.model.model.n_embd().max(0) as u32,
        }
    }

    /// See `LlamaEngine`.
    fn warm_up(&mut self) -> Result<(), EngineError> {
        let input: Arc<[Token]> = [Token(0)].into();
        for inputs in [1, TILED_TOKENS.min(MAX_INPUTS).min(self.batch_tokens)] {
            self.embed(&vec![input.clone(); inputs as usize])?;
        }
        Ok(())
    }

    fn embed(&mut self, inputs: &[Arc<[Token]>]) -> Result<Vec<Vec<f32>>, EngineError> {
        let bad = |why: String| Err(EngineError::BadBatch(why));
        let total: usize = inputs.iter().map(|input| input.len()).sum();
        if inputs.is_empty() || inputs.len() > MAX_INPUTS as usize || total > self.batch_tokens as usize {
            return bad(format!("{} inputs of {total} tokens", inputs.len()));
        }
        let size = self.model.info().vocabulary.size();
        self.batch.clear();
        for (seq, input) in (0..).zip(inputs) {
            if input.is_empty() || input.len() > self.input_tokens as usize {
                return bad(format!("an input of {} tokens, 1 to {} are possible", input.len(), self.input_tokens));
            }
            for (position, token) in (0..).zip(input.iter()) {
                if token.0 as usize >= size {
                    return bad(format!("token {token} is outside the vocabulary of {size}"));
                }
                let added = self.batch.add(LlamaToken::new(token.0 as i32), position, &[seq], true);
                added.map_err(|error| EngineError::BadBatch(error.to_string()))?;
            }
        }
        let context = match &mut self.contexts[..] {
            [_, short] if total < TILED_TOKENS as usize => short,
            [context, ..] => context,
            [] => return bad("there is no context".to_owned()),
        };
        // A decoder leaves KV entries behind, which must not affect this batch.
        context.clear_kv_cache();
        context.decode(&mut self.batch).map_err(|error| EngineError::Failed(error.to_string()))?;
        let vector = |seq: i32| match context.embeddings_seq_ith(seq) {
            Ok(vector) if vector.iter().all(|x| x.is_finite()) => Ok(vector.to_vec()),
            Ok(_) => Err(EngineError::Failed("the model gave a vector that is not finite".to_owned())),
            Err(error) => Err(EngineError::Failed(error.to_string())),
        };
        (0..inputs.len() as i32).map(vector).collect()
    }
}

impl Drop for LlamaEmbedder {
    fn drop(&mut self) {
        // SAFETY: the contexts are dropped only here, and not used afterwards. `self.model` is dropped after this function
        // returns.
        unsafe { ManuallyDrop::drop(&mut self.contexts) };
    }
}
