//! Implements core's engine with one llama.cpp context.
mod spare;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use camshaft_core::adapters::{AdapterSet, AdapterUse};
use camshaft_core::engine::{Batch, Engine, EngineError, EngineLimits, Reuse, SavedPart};
use camshaft_core::ids::{AdapterDigest, SeqId, Token};
use camshaft_core::sizes::KvLayout;
use llama_cpp_sys_2 as sys;

use crate::error::EngineLoadError;
use crate::footprint::KvType;
use crate::graph::Replacing;
use crate::llama::{self, Context, NotDecoded, Rows};
use crate::load::LoadedModel;
use crate::state;
use crate::streams::StreamTable;
use spare::Spare;

/// Part of the identity of saved states, because another version of llama.cpp may lay them out differently.
pub const LLAMA_CPP: &str = "llama-cpp-sys-2 0.1.161";

/// Size of a context.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// 1 to 255.
    pub sequences: u32,
    /// Size of the KV cache of all sequences together.
    pub kv_tokens: u32,
    pub kv_layout: KvLayout,
    /// Maximum length of a batch.
    pub batch_tokens: u32,
    /// At least 1.
    pub threads: u32,
    pub kv_type: KvType,
    pub flash_attention: FlashAttention,
    /// Keep the KV entries of layers that are on a device there, too.
    pub kv_on_device: bool,
}

/// Whether attention is computed in one piece, without the matrix of all scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlashAttention {
    /// If the model and the device allow it.
    #[default]
    Auto,
    On,
    Off,
}

impl FlashAttention {
    pub(crate) fn llama(self) -> sys::llama_flash_attn_type {
        match self {
            Self::Auto => sys::LLAMA_FLASH_ATTN_TYPE_AUTO,
            Self::On => sys::LLAMA_FLASH_ATTN_TYPE_ENABLED,
            Self::Off => sys::LLAMA_FLASH_ATTN_TYPE_DISABLED,
        }
    }
}

/// A small context for one sequence.
impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            sequences: 1,
            kv_tokens: 512,
            kv_layout: KvLayout::default(),
            batch_tokens: 512,
            threads: 1,
            kv_type: KvType::default(),
            flash_attention: FlashAttention::default(),
            kv_on_device: true,
        }
    }
}

impl EngineOptions {
    /// Identifies the layout of saved states: everything that they depend on besides the weights.
    pub fn state_layout(&self) -> String {
        let layout = match self.kv_layout {
            KvLayout::Pooled => String::new(),
            KvLayout::PerSequence => format!("|{} parts", self.sequences),
        };
        // Values are transposed without it.
        let flash = if self.flash_attention == FlashAttention::Off { "|no flash" } else { "" };
        // What was saved before entries were kept finite may hold others.
        format!("{LLAMA_CPP}|kv {:?}{layout}{flash}|finite", self.kv_type)
    }
}

/// Runs a model for one worker.
#[derive(Debug)]
pub struct LlamaEngine {
    context: Context,
    rows: Rows,
    limits: EngineLimits,
    /// `None` with a pooled KV cache.
    streams: Option<StreamTable>,
    /// For each row of the last batch, its index in llama.cpp's batch.
    llama_rows: Vec<i32>,
    /// The stream and the index of each row of the last batch, in the order of llama.cpp's.
    order: Vec<(i32, usize)>,
    /// See [`Engine::is_spoiled`].
    spoiled: BTreeSet<SeqId>,
    /// The state of the sequence that was copied last, until the next decode: several sequences may share its prefix.
    last_copy: Option<(SeqId, Vec<u8>)>,
    spare: Spare,
    /// What the context applies, if that is known.
    adapters: Option<AdapterSet>,
}

impl LlamaEngine {
    /// Makes a context on the model's weights.
    ///
    /// # Errors
    /// KV entries cannot be stored so, or llama.cpp cannot make one, usually because there is not enough memory for the KV
    /// cache.
    pub fn new(model: &Arc<LoadedModel>, options: &EngineOptions) -> Result<Self, EngineLoadError> {
        model.outline().takes_kv_type(options.kv_type)?;
        let threads = options.threads.max(1) as i32;
        let kv_type = match options.kv_type {
            KvType::F16 => sys::GGML_TYPE_F16,
            KvType::Q8_0 => sys::GGML_TYPE_Q8_0,
            KvType::Q4_0 => sys::GGML_TYPE_Q4_0,
        };
        let pooled = options.kv_layout == KvLayout::Pooled;
        // A pool needs a scratch sequence for copies, see `save`.
        let llama_sequences = options.sequences + u32::from(pooled);
        // llama.cpp aborts unless a batch can hold a row of each of its sequences.
        let llama_batch = options.batch_tokens.max(llama_sequences);
        let on_devices = model.is_on_devices();
        let params = sys::llama_context_params {
            n_ctx: options.kv_tokens.max(llama_sequences),
            // llama.cpp computes a step as one batch. Splitting it would only add passes over the weights.
            n_batch: llama_batch,
            n_ubatch: llama_batch,
            n_seq_max: llama_sequences,
            kv_unified: pooled,
            n_threads: threads,
            n_threads_batch: threads,
            type_k: kv_type,
            type_v: kv_type,
            flash_attn_type: options.flash_attention.llama(),
            offload_kqv: on_devices && options.kv_on_device,
            op_offload: on_devices,
            no_perf: true,
            ..llama::defaults()
        };
        let context = Context::new(model, params, Replacing::new(false, on_devices, options.threads))?;
        if !context.has_cache() {
            return Err(EngineLoadError::NoCache);
        }
        let kv_tokens = context.kv_tokens();
        // llama.cpp aborts on positions beyond the trained ones if the model has learned position embeddings.
        let capacity = if pooled { kv_tokens } else { kv_tokens / options.sequences };
        let context_tokens = model.info().trained_context_tokens.min(capacity);
        let batch_tokens = options.batch_tokens.min(context.batch_tokens());
        let limits = EngineLimits { sequences: options.sequences, kv_tokens, batch_tokens, context_tokens };
        let streams = (!pooled).then(|| StreamTable::new(options.sequences));
        let rows = Rows::default();
        Ok(Self {
            context,
            rows,
            limits,
            streams,
            llama_rows: Vec::new(),
            order: Vec::new(),
            spoiled: BTreeSet::new(),
            last_copy: None,
            spare: Spare::default(),
            adapters: Some(AdapterSet::default()),
        })
    }

    /// Checks every number that llama.cpp would use as an index. llama.cpp itself does not check them all.
    fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        let bad = |why: String| Err(EngineError::BadBatch(why));
        let rows = batch.len();
        if rows == 0 || rows > self.limits.batch_tokens as usize {
            return bad(format!("{rows} rows, 1 to {} are possible", self.limits.batch_tokens));
        }
        if [batch.positions.len(), batch.seqs.len(), batch.wants_logits.len()] != [rows; 3] {
            return bad("lists of unequal length".to_owned());
        }
        let size = self.context.model().info().vocabulary.size();
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

impl Engine for LlamaEngine {
    fn limits(&self) -> EngineLimits {
        self.limits
    }

    fn set_threads(&mut self, threads: u32) {
        self.context.set_threads(threads);
    }

    /// OpenMP starts a team of threads for each thread that decodes, and ends the process if it cannot.
    fn warm_up(&mut self) -> Result<(), EngineError> {
        let mut batch = Batch::default();
        batch.push(Token(0), 0, SeqId(0), true);
        let decoded = self.decode(&batch);
        self.truncate(SeqId(0), 0);
        decoded
    }

    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        self.check(batch)?;
        self.apply(&batch.adapters)?;
        self.drop_last_copy();
        self.close_gaps();
        self.rows.clear();
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(batch.seqs.iter().enumerate().map(|(row, &seq)| (self.stream(seq), row)));
        // llama.cpp decodes neighbouring streams together only if their rows are in the order of the streams.
        order.sort_unstable();
        self.llama_rows.resize(batch.len(), 0);
        for (llama_row, &(stream, row)) in (0..).zip(&order) {
            self.llama_rows[row] = llama_row;
            self.rows.push(batch.tokens[row].0, batch.positions[row], stream, batch.wants_logits[row]);
        }
        self.order = order;
        let decoded = self.context.decode(&mut self.rows);
        self.note_spoiled(&batch.seqs);
        match decoded {
            Ok(()) => Ok(()),
            Err(NotDecoded::NoRoom) => Err(EngineError::KvFull { tokens: batch.len() }),
            Err(NotDecoded::Refused) => Err(EngineError::BadBatch("refused by llama.cpp".to_owned())),
            Err(error) => Err(EngineError::Failed(error.to_string())),
        }
    }

    fn forget_adapter(&mut self, adapter: AdapterDigest) {
        if self.context.applies(adapter) {
            self.adapters = self.context.apply(Vec::new()).then(AdapterSet::default);
        }
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.context.logits(self.llama_rows[row])
    }

    fn is_spoiled(&self, seq: SeqId) -> bool {
        self.spoiled.contains(&seq)
    }

    fn truncate(&mut self, seq: SeqId, from: u32) {
        self.drop_copy(seq);
        let whole = from == 0;
        let stream = self.stream(seq);
        if !self.context.remove(stream, from) && !whole {
            // Recurrent state cannot be truncated. Drop all of it, because it must not contain the tokens that were cut
            // off.
            tracing::warn!(seq = stream, from, "the model's state cannot be truncated; the sequence is dropped");
            // Removing a whole sequence never fails.
            self.context.remove(stream, 0);
        }
        if whole && let Some(streams) = &mut self.streams {
            streams.free(seq);
        }
    }

    fn reuse(&self) -> Reuse {
        self.context.model().info().reuse
    }

    fn share(&mut self, from: SeqId, to: SeqId, range: Range<u32>) -> bool {
        if self.streams.is_some() {
            let Some(source) = self.copy_of(from) else { return false };
            let shared = self.extend(to, &[SavedPart { range, state: &source }]);
            self.last_copy = Some((from, source));
            return shared;
        }
        self.context.share(from.0 as i32, to.0 as i32, range);
        true
    }

    fn save(&mut self, seq: SeqId, range: Range<u32>) -> Option<Vec<u8>> {
        if self.reuse() == Reuse::Whole {
            let stream = self.stream(seq);
            return self.copy_state(stream);
        }
        if self.streams.is_some() {
            let whole = self.copy_of(seq)?;
            let cut = state::join(&[SavedPart { range, state: &whole }]);
            self.last_copy = Some((seq, whole));
            return cut;
        }
        // llama.cpp saves whole sequences only. Give the range to the scratch sequence, which copies no entries in a
        // pool.
        let scratch = self.scratch();
        self.context.share(seq.0 as i32, scratch, range);
        let state = self.copy_state(scratch);
        // Removing a whole sequence never fails.
        self.context.remove(scratch, 0);
        state
    }

    fn restore(&mut self, seq: SeqId, parts: &[SavedPart<'_>]) -> bool {
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return true };
        if self.reuse() == Reuse::Whole {
            let stream = self.stream(seq);
            return parts.len() == 1 && self.set_state(stream, first.state);
        }
        if self.streams.is_some() {
            return self.extend(seq, parts);
        }
        let scratch = self.scratch();
        // The prefix may have been split since the state was saved: what lies before the range would take KV entries that
        // nobody reserved. A layout that cannot be cut is loaded whole.
        let state = match parts {
            [only] => Some(state::cut(only.state, &only.range).unwrap_or(Cow::Borrowed(only.state))),
            several => state::join(several).map(Cow::Owned),
        };
        let loaded = state.is_some_and(|state| self.set_state(scratch, &state));
        let (start, end) = (first.range.start, last.range.end);
        let shared = loaded && self.context.last_position(scratch) + 1 >= end as i32;
        if shared {
            self.context.share(scratch, seq.0 as i32, start..end);
        }
        // Removing a whole sequence never fails.
        self.context.remove(scratch, 0);
        shared
    }

    fn restores_in_place(&self) -> bool {
        self.streams.is_none()
    }
}

impl LlamaEngine {
    /// Has the context compute under these adapters, if it does not.
    fn apply(&mut self, adapters: &AdapterSet) -> Result<(), EngineError> {
        if self.adapters.as_ref() == Some(adapters) {
            return Ok(());
        }
        let find = |one: &AdapterUse| {
            let found = self.context.model().find_adapter(one.adapter);
            let missing = || EngineError::Failed(format!("the adapter {} is not in memory", one.adapter));
            Ok((found.ok_or_else(missing)?, one.scale()))
        };
        let found = adapters.uses().iter().map(find).collect::<Result<_, EngineError>>()?;
        // Where llama.cpp refuses, nobody knows what it applies.
        self.adapters = None;
        if !self.context.apply(found) {
            return Err(EngineError::Failed("llama.cpp refused the adapters".to_owned()));
        }
        self.adapters = Some(adapters.clone());
        Ok(())
    }

    /// Finds out whose tokens the cache could not hold, of a batch of these sequences.
    fn note_spoiled(&mut self, seqs: &[SeqId]) {
        self.spoiled.clear();
        let found = self.context.spoiled().tokens();
        if found.is_empty() {
            return;
        }
        // llama.cpp computes a pool's rows in one piece and in this order. A recurrent model's it does not, but there what is not finite
        // stays in the sequence's state, and comes out in its logits.
        let is_found = |row: usize, stream: i32| match &self.streams {
            Some(_) => found.iter().any(|token| token.stream == stream),
            None => found.iter().any(|token| (token.rows, token.row) == (seqs.len(), row)),
        };
        let spoiled = self.order.iter().enumerate().filter(|&(row, (stream, _))| is_found(row, *stream));
        self.spoiled = spoiled.map(|(_, &(_, index))| seqs[index]).collect();
    }

    /// llama.cpp's number for the sequence: its stream, or its id in a pool.
    fn stream(&mut self, seq: SeqId) -> i32 {
        self.streams.as_mut().map_or(seq.0, |streams| streams.get_or_assign(seq)) as i32
    }

    /// Moves sequences until the used streams are neighbours.
    fn close_gaps(&mut self) {
        while let Some((from, to)) = self.streams.as_ref().and_then(StreamTable::next_move) {
            // A sequence without KV entries has no state to move.
            let empty = self.context.last_position(from as i32) < 0;
            let moved = empty || self.move_state(from as i32, to as i32);
            if !moved {
                tracing::warn!(from, to, "cannot move a sequence's state to another stream; steps will take longer");
                return;
            }
            // Removing a whole sequence never fails.
            self.context.remove(from as i32, 0);
            if let Some(streams) = &mut self.streams {
                streams.moved(from, to);
            }
        }
    }

    /// The extra sequence of a pool, for copies. It is empty between calls.
    fn scratch(&self) -> i32 {
        self.limits.sequences as i32
    }

    fn drop_copy(&mut self, seq: SeqId) {
        if self.last_copy.as_ref().is_some_and(|(of, _)| *of == seq) {
            self.drop_last_copy();
        }
    }

    fn drop_last_copy(&mut self) {
        if let Some((_, copy)) = self.last_copy.take() {
            self.spare.keep(copy);
        }
    }

    /// A copy of a stream's state to read and to give back to `spare`.
    fn read_state(&mut self, stream: i32) -> Option<Vec<u8>> {
        self.context.state(stream, |bytes| self.spare.take(bytes))
    }

    fn move_state(&mut self, from: i32, to: i32) -> bool {
        let Some(state) = self.read_state(from) else { return false };
        let moved = self.set_state(to, &state);
        self.spare.keep(state);
        moved
    }

    /// The whole state of a sequence, from the last copy if that is of the same sequence.
    fn copy_of(&mut self, seq: SeqId) -> Option<Vec<u8>> {
        match self.last_copy.take_if(|(of, _)| *of == seq) {
            Some((_, copy)) => Some(copy),
            None => {
                self.drop_last_copy();
                let stream = self.stream(seq);
                self.read_state(stream)
            }
        }
    }

    /// Appends saved entries to a sequence. llama.cpp can only replace the whole state, so this joins all. Returns false,
    /// and leaves the sequence unchanged, if that is not possible.
    fn extend(&mut self, seq: SeqId, parts: &[SavedPart<'_>]) -> bool {
        self.drop_copy(seq);
        let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return true };
        if last.range.end > self.limits.kv_tokens / self.limits.sequences {
            return false;
        }
        let (stream, start) = (self.stream(seq), first.range.start);
        let joined = if start == 0 {
            state::join(parts)
        } else {
            self.read_state(stream).and_then(|held| {
                let part = SavedPart { range: 0..start, state: &held };
                let joined = state::join(&[&[part], parts].concat());
                self.spare.keep(held);
                joined
            })
        };
        joined.is_some_and(|joined| self.set_state(stream, &joined))
    }

    /// A copy of a stream's state to keep.
    fn copy_state(&self, stream: i32) -> Option<Vec<u8>> {
        self.context.state(stream, Vec::with_capacity)
    }

    fn set_state(&mut self, seq: i32, state: &[u8]) -> bool {
        // SAFETY: `Context::state` wrote these bytes for a context of the same model and layout. Segments either stay in
        // this process's memory, or come from the directory of the same layout with a keyed checksum that was verified.
        unsafe { self.context.set_state(seq, state) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_identity_of_saved_states_names_the_linked_llama_cpp() {
        let manifest = include_str!("../../../Cargo.toml");
        let version = super::LLAMA_CPP.rsplit_once(' ').unwrap().1;
        assert!(manifest.contains(&format!("llama-cpp-sys-2 = {{ version = \"={version}\"")));
    }
}
