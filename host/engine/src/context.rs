//! One llama.cpp context as core's engine.
use std::fmt;
use std::mem::ManuallyDrop;
use std::num::NonZeroU32;
use std::ops::Range;
use std::sync::{Arc, PoisonError};

use camshaft_core::engine::{Batch, Engine, EngineError, EngineLimits, Reuse};
use camshaft_core::ids::SeqId;
use llama_cpp_2::DecodeError;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::{KvCacheType, LlamaContextParams};
use llama_cpp_2::context::session::LlamaStateSeqFlags;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::token::LlamaToken;

use crate::backend::{CONTEXT_CREATION, backend};
use crate::error::EngineLoadError;
use crate::load::{Adapter, LoadedModel};
use crate::state;
use crate::streams::Streams;

/// How keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvType {
    #[default]
    F16,
    Q8_0,
    Q4_0,
}

/// How the sequences divide the cache. In an even number of parts attention looks at a sequence's own cells only; in one
/// pool every sequence passes over the cells of all others, but can use what they leave and share prefixes without a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KvLayout {
    /// Any sequence may grow to the whole cache.
    #[default]
    Pooled,
    /// Each sequence has `kv_tokens / sequences` of its own, rounded up to 256.
    PerSequence,
}

/// Whose bytes saved state is: another llama.cpp may lay it out otherwise.
pub const LLAMA_CPP: &str = "llama-cpp-sys-2 0.1.161";

/// Size of a context.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// 1 to 255.
    pub sequences: u32,
    /// KV cache in tokens, of all sequences together.
    pub kv_tokens: u32,
    pub kv_layout: KvLayout,
    /// Tokens in one batch.
    pub batch_tokens: u32,
    /// 0: one for each core.
    pub threads: u32,
    pub kv_type: KvType,
}

impl EngineOptions {
    /// What the state that a context saves depends on, beside the weights.
    pub fn state_layout(&self) -> String {
        let layout = match self.kv_layout {
            KvLayout::Pooled => String::new(),
            KvLayout::PerSequence => format!("|{} parts", self.sequences),
        };
        format!("{LLAMA_CPP}|kv {:?}{layout}", self.kv_type)
    }
}

/// Runs a model on one thread.
pub struct LlamaEngine {
    /// Borrows from `model`; see `new` and `drop` for why the borrow may be `'static` here.
    context: ManuallyDrop<LlamaContext<'static>>,
    model: Arc<LoadedModel>,
    batch: LlamaBatch<'static>,
    limits: EngineLimits,
    /// Where each sequence has a part of its own.
    streams: Option<Streams>,
    /// Where each row of the last batch was in llama.cpp's.
    places: Vec<i32>,
    /// Its rows as llama.cpp wants them: sequence and row. Kept for its room.
    order: Vec<(i32, usize)>,
    /// The last sequence that was copied, while nothing was decoded since: many may want the same prefix at once.
    copied: Option<(SeqId, Vec<u8>)>,
}

impl fmt::Debug for LlamaEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlamaEngine").field("model", &self.model).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl LlamaEngine {
    /// Makes a context on the model's weights.
    ///
    /// # Errors
    /// Where llama.cpp cannot make one (usually: not enough memory for the KV cache).
    pub fn new(model: Arc<LoadedModel>, options: &EngineOptions) -> Result<Self, EngineLoadError> {
        let refused =
            |source| EngineLoadError::NoContext { sequences: options.sequences, kv_tokens: options.kv_tokens, source };
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        let threads = if options.threads == 0 { cores } else { options.threads } as i32;
        let kv_type = match options.kv_type {
            KvType::F16 => KvCacheType::F16,
            KvType::Q8_0 => KvCacheType::Q8_0,
            KvType::Q4_0 => KvCacheType::Q4_0,
        };
        let pooled = options.kv_layout == KvLayout::Pooled;
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(options.kv_tokens))
            // A step is one llama.cpp batch and is computed whole: cutting it up again would only add passes over the weights.
            .with_n_batch(options.batch_tokens)
            .with_n_ubatch(options.batch_tokens)
            // One more for copies of state in a pool, see `save`.
            .with_n_seq_max(options.sequences + u32::from(pooled))
            .with_kv_unified(pooled)
            .with_n_threads(threads)
            .with_n_threads_batch(threads)
            .with_type_k(kv_type)
            .with_type_v(kv_type)
            .with_offload_kqv(false)
            .with_op_offload(false)
            .with_no_perf(true);
        let mut context = {
            let _one_at_a_time = CONTEXT_CREATION.lock().unwrap_or_else(PoisonError::into_inner);
            model.model.new_context(backend()?, params).map_err(|error| refused(Box::new(error)))?
        };
        if let Some(Adapter { adapter, scale }) = &model.adapter {
            let mut adapter = adapter.lock().unwrap_or_else(PoisonError::into_inner);
            context.lora_adapter_set(&mut adapter, *scale).map_err(|error| refused(Box::new(error)))?;
        }
        // SAFETY: the context borrows `model.model`, which lives in an `Arc` whose content never moves and which this
        // struct keeps until the context is dropped (`drop` below takes the context first). Nothing hands the context
        // or a borrow of it with the longer lifetime out of this struct.
        let context = unsafe { std::mem::transmute::<LlamaContext<'_>, LlamaContext<'static>>(context) };
        let kv_tokens = context.n_ctx();
        // Positions beyond the trained ones abort in models that learned them.
        let most = if pooled { kv_tokens } else { kv_tokens / options.sequences };
        let trained = model.info().trained_context_tokens;
        let context_tokens = trained.min(most);
        if kv_tokens / options.sequences > trained {
            tracing::warn!(
                model = model.info().name,
                context_tokens = kv_tokens,
                sequences = options.sequences,
                trained_context_tokens = trained,
                "the KV cache is larger than all sequences can use: none grows beyond the trained context"
            );
        }
        let batch_tokens = options.batch_tokens.min(context.n_batch());
        let limits = EngineLimits { sequences: options.sequences, kv_tokens, batch_tokens, context_tokens };
        // Each row belongs to one sequence.
        let batch = LlamaBatch::new(batch_tokens as usize, 1);
        let streams = (!pooled).then(|| Streams::new(options.sequences));
        let context = ManuallyDrop::new(context);
        Ok(Self { context, model, batch, limits, streams, places: Vec::new(), order: Vec::new(), copied: None })
    }

    /// llama.cpp checks less than it should: everything it would index with is checked here.
    fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let bad = |why: String| Err(EngineError::BadBatch(why));
        let rows = batch.len();
        if rows == 0 || rows > self.limits.batch_tokens as usize {
            return bad(format!("{rows} rows, 1 to {} are possible", self.limits.batch_tokens));
        }
        if [batch.positions.len(), batch.seqs.len(), batch.wants_logits.len()] != [rows; 3] {
            return bad("lists of unequal length".to_owned());
        }
        let size = self.model.info().vocabulary.size();
        if let Some(token) = batch.tokens.iter().find(|token| token.0 as usize >= size) {
            return bad(format!("token {token} is outside the vocabulary of {size}"));
        }
        if let Some(seq) = batch.seqs.iter().find(|seq| seq.0 >= self.limits.sequences) {
            return bad(format!("sequence {seq} of {}", self.limits.sequences));
        }
        if let Some(position) = batch.positions.iter().find(|&&position| position >= self.limits.context_tokens) {
            return bad(format!("position {position} in a context of {}", self.limits.context_tokens));
        }
        Ok(())
    }
}

impl Drop for LlamaEngine {
    fn drop(&mut self) {
        // SAFETY: dropped once, here, and not used afterwards. Its model is still alive: `self.model` is dropped after
        // this function returns.
        unsafe { ManuallyDrop::drop(&mut self.context) };
    }
}

impl Engine for LlamaEngine {
    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.check(batch)?;
        self.copied = None;
        self.move_together();
        self.batch.clear();
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(batch.seqs.iter().enumerate().map(|(row, &seq)| (self.stream(seq), row)));
        // One after the other, as llama.cpp wants parts of the cache that are to be decoded together.
        order.sort_unstable();
        self.places.resize(batch.len(), 0);
        for (place, &(stream, row)) in (0..).zip(&order) {
            self.places[row] = place;
            let token = LlamaToken::new(batch.tokens[row].0 as i32);
            let seq = [stream];
            let added = self.batch.add(token, batch.positions[row] as i32, &seq, batch.wants_logits[row]);
            added.map_err(|error| EngineError::BadBatch(error.to_string()))?;
        }
        self.order = order;
        match self.context.decode(&mut self.batch) {
            Ok(()) => Ok(()),
            Err(DecodeError::NoKvCacheSlot) => Err(EngineError::KvFull { tokens: batch.len() }),
            // Found while the batch was being prepared: nothing was decoded.
            Err(DecodeError::NTokensZero) => Err(EngineError::BadBatch("refused by llama.cpp".to_owned())),
            Err(error) => Err(EngineError::Failed(error.to_string())),
        }
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.context.get_logits_ith(self.places[row])
    }

    fn truncate(&mut self, seq: SeqId, from: u32) {
        self.forget_copy(seq);
        let whole = from == 0;
        let id = seq;
        let seq = self.stream(seq);
        if self.context.kv_cache_seq_rm(seq, Some(from), None).is_err() && !whole {
            // Recurrent state cannot be cut in the middle: without it the sequence is empty, which the next decode's
            // positions show.
            tracing::warn!(seq, from, "the model's state cannot be truncated; the sequence is dropped");
            // Removing a whole sequence never fails.
            let _ = self.context.kv_cache_seq_rm(seq, None, None);
        }
        if whole && let Some(streams) = &mut self.streams {
            streams.free(id);
        }
    }

    fn reuse(&self) -> Reuse {
        self.model.info().reuse
    }

    fn share(&mut self, from: SeqId, to: SeqId, range: Range<u32>) -> bool {
        if self.streams.is_some() {
            let Some(source) = self.copy_of(from) else { return false };
            let shared = self.extend(to, &range, &source);
            self.copied = Some((from, source));
            return shared;
        }
        self.context.kv_cache_seq_cp(from.0 as i32, to.0 as i32, Some(range.start), Some(range.end)).is_ok()
    }

    fn save(&mut self, seq: SeqId, range: Range<u32>) -> Option<Vec<u8>> {
        if self.reuse() == Reuse::Whole {
            let stream = self.stream(seq);
            return self.copy_state(stream);
        }
        if self.streams.is_some() {
            let whole = self.copy_of(seq)?;
            let cut = state::join(&[(&whole, range)]);
            self.copied = Some((seq, whole));
            return cut;
        }
        // llama.cpp copies whole sequences only, so the range becomes one for a moment; cells are not moved.
        let scratch = self.scratch();
        self.context.kv_cache_seq_cp(seq.0 as i32, scratch, Some(range.start), Some(range.end)).ok()?;
        let state = self.copy_state(scratch);
        // Removing a whole sequence never fails.
        let _ = self.context.kv_cache_seq_rm(scratch, None, None);
        state
    }

    fn restore(&mut self, seq: SeqId, range: Range<u32>, state: &[u8]) -> bool {
        if self.reuse() == Reuse::Whole {
            let stream = self.stream(seq);
            return self.set_state(stream, state);
        }
        if self.streams.is_some() {
            return self.extend(seq, &range, state);
        }
        let scratch = self.scratch();
        let whole = self.set_state(scratch, state);
        let shared = whole
            && self.context.kv_cache_seq_pos_max(scratch) + 1 >= range.end as i32
            && self.context.kv_cache_seq_cp(scratch, seq.0 as i32, Some(range.start), Some(range.end)).is_ok();
        let _ = self.context.kv_cache_seq_rm(scratch, None, None);
        shared
    }
}

impl LlamaEngine {
    /// llama.cpp's number of the sequence.
    fn stream(&mut self, seq: SeqId) -> i32 {
        self.streams.as_mut().map_or(seq.0, |streams| streams.get_or_take(seq)) as i32
    }

    /// Closes gaps between the parts that sequences have.
    fn move_together(&mut self) {
        while let Some((from, to)) = self.streams.as_ref().and_then(Streams::closer) {
            // A sequence that holds nothing yet has nothing to move.
            let empty = self.context.kv_cache_seq_pos_max(from as i32) < 0;
            let moved = empty || self.copy_state(from as i32).is_some_and(|state| self.set_state(to as i32, &state));
            if !moved {
                tracing::warn!(from, to, "llama.cpp does not move a sequence's state; steps will take longer");
                return;
            }
            // Removing a whole sequence never fails.
            let _ = self.context.kv_cache_seq_rm(from as i32, None, None);
            if let Some(streams) = &mut self.streams {
                streams.moved(from, to);
            }
        }
    }

    /// The sequence after those that have ids: for a moment's use.
    fn scratch(&self) -> i32 {
        self.limits.sequences as i32
    }

    fn forget_copy(&mut self, seq: SeqId) {
        if self.copied.as_ref().is_some_and(|(of, _)| *of == seq) {
            self.copied = None;
        }
    }

    /// The whole state of the sequence.
    fn copy_of(&mut self, seq: SeqId) -> Option<Vec<u8>> {
        match self.copied.take() {
            Some((of, copy)) if of == seq => Some(copy),
            _ => {
                let stream = self.stream(seq);
                self.copy_state(stream)
            }
        }
    }

    /// Appends positions from a copy to what the sequence holds, which llama.cpp can only replace as a whole. False if they
    /// cannot be; the sequence is then as before.
    fn extend(&mut self, seq: SeqId, range: &Range<u32>, source: &[u8]) -> bool {
        self.forget_copy(seq);
        if range.end > self.limits.kv_tokens / self.limits.sequences {
            return false;
        }
        let stream = self.stream(seq);
        let joined = if range.start == 0 {
            state::join(&[(source, range.clone())])
        } else {
            self.copy_state(stream).and_then(|held| state::join(&[(&held, 0..range.start), (source, range.clone())]))
        };
        joined.is_some_and(|joined| self.set_state(stream, &joined))
    }

    fn copy_state(&self, seq: i32) -> Option<Vec<u8>> {
        let flags = LlamaStateSeqFlags::empty();
        let size = self.context.state_seq_get_size_ext(seq, flags);
        let mut state = vec![0; size];
        // SAFETY: the buffer has the size that llama.cpp just asked for, and nothing decodes in between.
        let written = unsafe { self.context.state_seq_get_data_ext(state.as_mut_ptr(), seq, flags) };
        (written == size && size > 0).then_some(state)
    }

    fn set_state(&mut self, seq: i32, state: &[u8]) -> bool {
        // SAFETY: the bytes are what `copy_state` wrote for a context of the same model and layout: segments stay in this
        // process's memory, or their keyed checksum was verified against the layout that they were saved under.
        unsafe { self.context.state_seq_set_data_ext(state, seq, LlamaStateSeqFlags::empty()) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn saved_state_names_the_llama_cpp_that_is_linked() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = super::LLAMA_CPP.rsplit_once(' ').unwrap().1;
        assert!(manifest.contains(&format!("llama-cpp-sys-2 = {{ version = \"={version}\"")));
    }
}
