//! A llama.cpp context that computes embeddings.
use std::sync::Arc;

use camshaft_core::embed::{Embedder, EmbedderLimits, no_vector};
use camshaft_core::engine::EngineError;
use camshaft_core::ids::Token;
use camshaft_core::jobs::{BatchLimits, BatchModel, Computed};
use llama_cpp_sys_2 as sys;

use crate::context::FlashAttention;
use crate::error::EngineLoadError;
use crate::footprint::MAX_INPUTS;
use crate::gelu;
use crate::graph::Replacing;
use crate::kind::Traits;
use crate::llama::{self, Context, Rows};
use crate::load::LoadedModel;

/// Tokens of a batch for each thread that computes it: larger batches take no less time for a token (docs/benchmarks.md).
const EFFICIENT_TOKENS: u32 = 128;
/// As `EFFICIENT_TOKENS`, without flash attention: the other one walks the tokens of all inputs for each token.
const EFFICIENT_WITHOUT_FLASH: u32 = 24;
/// llama.cpp's flash attention works in tiles in batches of at least this size, and leaves out tiles that lie between two inputs. In
/// smaller batches it takes twice as long as the other attention, and rounds keys and values to 16 bits, which tells there.
const TILED_TOKENS: u32 = 64;

/// Computes one vector per input, several inputs at a time, on the embedder's thread.
#[derive(Debug)]
pub struct LlamaEmbedder {
    context: Context,
    short: Short,
    threads: u32,
    rows: Rows,
    batch_tokens: u32,
    efficient_tokens: u32,
    input_tokens: u32,
}

/// What computes batches of less than [`TILED_TOKENS`].
#[derive(Debug)]
enum Short {
    /// The context that computes all others.
    Same,
    /// One without flash attention.
    Own(Context),
    /// The same one, if its attention is exact: see [`LlamaEmbedder::try_short`].
    Untried,
}

impl LlamaEmbedder {
    /// Makes a context for batches of up to `batch_tokens`. Inputs have `input_tokens` at most, and no more than a batch or the
    /// model's context.
    ///
    /// Pools as the model's metadata says. Without it, an encoder's vector is the mean over all tokens, and a decoder's
    /// is that of the last token, which alone attends to all others.
    ///
    /// # Errors
    /// llama.cpp cannot make a context.
    pub fn new(
        model: &Arc<LoadedModel>,
        batch_tokens: u32,
        input_tokens: u32,
        threads: u32,
        flash: FlashAttention,
    ) -> Result<Self, EngineLoadError> {
        // An encoder attends in both directions, so an input must be in one batch.
        let input_tokens = input_tokens.min(model.info().trained_context_tokens).min(batch_tokens);
        let threads = threads.max(1);
        let traits = Traits::of(&model.model);
        let flash = flash != FlashAttention::Off && traits.takes_flash();
        let context = context(model, batch_tokens, threads, flash)?;
        // A decoder's own one would hold KV, and rows of a large vocabulary.
        let short = if flash && traits.encodes { Short::Untried } else { Short::Same };
        let efficient = if flash { EFFICIENT_TOKENS } else { EFFICIENT_WITHOUT_FLASH };
        let efficient_tokens = efficient.saturating_mul(threads).min(batch_tokens);
        Ok(Self { context, short, threads, rows: Rows::default(), batch_tokens, efficient_tokens, input_tokens })
    }
}

/// A context for batches of up to `batch_tokens`.
fn context(model: &Arc<LoadedModel>, batch_tokens: u32, threads: u32, flash: bool) -> Result<Context, EngineLoadError> {
    let traits = Traits::of(&model.model);
    let pooling = match traits.pools {
        true => sys::LLAMA_POOLING_TYPE_UNSPECIFIED,
        false if traits.encodes => sys::LLAMA_POOLING_TYPE_MEAN,
        false => sys::LLAMA_POOLING_TYPE_LAST,
    };
    // llama.cpp aborts unless a batch holds as many rows of each input as of any other.
    let llama_batch = batch_tokens.next_multiple_of(MAX_INPUTS);
    let on_devices = model.is_on_devices();
    let params = sys::llama_context_params {
        n_ctx: llama_batch,
        n_batch: llama_batch,
        n_ubatch: llama_batch,
        n_seq_max: MAX_INPUTS,
        kv_unified: true,
        n_threads: threads as i32,
        n_threads_batch: threads as i32,
        embeddings: true,
        flash_attn_type: if flash { FlashAttention::Auto } else { FlashAttention::Off }.llama(),
        pooling_type: pooling,
        offload_kqv: on_devices,
        op_offload: on_devices,
        no_perf: true,
        ..llama::defaults()
    };
    Context::new(model, params, Replacing::new(gelu::is_exact(&traits.architecture), on_devices, threads))
}

impl LlamaEmbedder {
    /// What computes short batches. Tried with one token, on the thread that embeds: a thread that computed once keeps threads that
    /// help it, and while the process has more of them than cores, none of them spins while it waits.
    fn try_short(&mut self) -> Result<Short, EngineError> {
        if !self.model().is_on_devices() {
            let mut rows = Rows::default();
            rows.push(0, 0, 0, true);
            self.context.clear();
            self.context.decode(&mut rows).map_err(|error| EngineError::Failed(error.to_string()))?;
            if self.context.attends_exactly() {
                return Ok(Short::Same);
            }
        }
        let own = context(&self.context.share_model(), TILED_TOKENS, self.threads, false);
        own.map(Short::Own).map_err(|error| EngineError::Failed(error.to_string()))
    }

    fn model(&self) -> &LoadedModel {
        self.context.model()
    }
}

impl Embedder for LlamaEmbedder {
    fn limits(&self) -> EmbedderLimits {
        EmbedderLimits {
            batch_tokens: self.batch_tokens,
            efficient_tokens: self.efficient_tokens,
            batch_inputs: MAX_INPUTS as usize,
            input_tokens: self.input_tokens,
            dimensions: self.model().dimensions(),
        }
    }
}

impl BatchModel for LlamaEmbedder {
    type Input = Arc<[Token]>;
    type Output = Vec<f32>;

    fn batch(&self) -> BatchLimits {
        self.limits().batch()
    }

    fn set_threads(&mut self, threads: u32) {
        self.context.set_threads(threads);
        if let Short::Own(context) = &mut self.short {
            context.set_threads(threads);
        }
    }

    /// See `LlamaEngine`.
    fn warm_up(&mut self) -> Result<(), EngineError> {
        let input: Arc<[Token]> = [Token(0)].into();
        for inputs in [1, TILED_TOKENS.min(MAX_INPUTS).min(self.batch_tokens)] {
            self.compute(&vec![input.clone(); inputs as usize])?;
        }
        Ok(())
    }

    fn compute(&mut self, inputs: &[Arc<[Token]>]) -> Result<Vec<Computed<Vec<f32>>>, EngineError> {
        let bad = |why: String| Err(EngineError::BadBatch(why));
        let total: usize = inputs.iter().map(|input| input.len()).sum();
        if inputs.is_empty() || inputs.len() > MAX_INPUTS as usize || total > self.batch_tokens as usize {
            return bad(format!("{} inputs of {total} tokens", inputs.len()));
        }
        let size = self.model().info().vocabulary.size();
        self.rows.clear();
        for (seq, input) in (0..).zip(inputs) {
            if input.is_empty() || input.len() > self.input_tokens as usize {
                return bad(format!("an input of {} tokens, 1 to {} are possible", input.len(), self.input_tokens));
            }
            for (position, token) in (0..).zip(input.iter()) {
                if token.0 as usize >= size {
                    return bad(format!("token {token} is outside the vocabulary of {size}"));
                }
                self.rows.push(token.0, position, seq, true);
            }
        }
        let is_short = total < TILED_TOKENS as usize;
        if is_short && matches!(self.short, Short::Untried) {
            self.short = self.try_short()?;
        }
        let context = match &mut self.short {
            Short::Own(context) if is_short => context,
            _ => &mut self.context,
        };
        // A decoder leaves KV entries behind, which must not affect this batch.
        context.clear();
        context.decode(&mut self.rows).map_err(|error| EngineError::Failed(error.to_string()))?;
        let finite = |vector: &&[f32]| vector.iter().all(|x| x.is_finite());
        let vector = |seq: i32| context.vector(seq).filter(finite).map(<[f32]>::to_vec).ok_or_else(no_vector);
        Ok((0..inputs.len() as i32).map(vector).collect())
    }
}
