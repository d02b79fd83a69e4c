//! A context of llama.cpp, with the model that it computes. Every call on it is here.
use std::ffi::{CStr, c_char};
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, PoisonError};

use camshaft_core::ids::AdapterDigest;
use llama_cpp_sys_2 as sys;

use crate::adapter::LoadedAdapter;
use crate::backend::{CONTEXT_CREATION, backend};
use crate::error::EngineLoadError;
use crate::finite::SpoiledTokens;
use crate::graph::Replacing;
use crate::load::{Adapter, LoadedModel};

/// Bytes of a reason that C++ gives.
const REASON_BYTES: usize = 512;

unsafe extern "C" {
    /// See `guard.cpp`.
    fn camshaft_decode(
        context: *mut sys::llama_context,
        batch: *const sys::llama_batch,
        why: *mut c_char,
        room: usize,
    ) -> i32;
}

/// Why a batch was not computed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotDecoded {
    /// There are no neighbouring free KV entries for it.
    NoRoom,
    /// It was refused before anything was computed.
    Refused,
    /// llama.cpp said only this.
    Code(i32),
}

/// Rows of a batch, each of one sequence.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    tokens: Vec<i32>,
    positions: Vec<i32>,
    sequences: Vec<i32>,
    wanted: Vec<i8>,
    /// What llama.cpp wants beside them: how many sequences each row belongs to, and where they are.
    counts: Vec<i32>,
    places: Vec<*mut i32>,
}

// SAFETY: the pointers are made anew before each use, see `batch`.
unsafe impl Send for Rows {}

impl Rows {
    pub(crate) fn clear(&mut self) {
        self.tokens.clear();
        self.positions.clear();
        self.sequences.clear();
        self.wanted.clear();
    }

    /// `wanted`: its logits or, with the other rows of the sequence, its vector.
    pub(crate) fn push(&mut self, token: u32, position: u32, sequence: i32, wanted: bool) {
        self.tokens.push(token as i32);
        self.positions.push(position as i32);
        self.sequences.push(sequence);
        self.wanted.push(i8::from(wanted));
    }

    /// What llama.cpp reads. It points to these rows.
    fn batch(&mut self) -> sys::llama_batch {
        self.counts.resize(self.tokens.len(), 1);
        self.places.clear();
        self.places.extend(self.sequences.iter_mut().map(|sequence| &raw mut *sequence));
        sys::llama_batch {
            n_tokens: self.tokens.len() as i32,
            token: self.tokens.as_mut_ptr(),
            embd: std::ptr::null_mut(),
            pos: self.positions.as_mut_ptr(),
            n_seq_id: self.counts.as_mut_ptr(),
            seq_id: self.places.as_mut_ptr(),
            logits: self.wanted.as_mut_ptr(),
        }
    }
}

impl fmt::Display for NotDecoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom => f.write_str("there is no room in the KV cache"),
            Self::Refused => f.write_str("llama.cpp refused the batch"),
            Self::Code(code) => write!(f, "llama.cpp failed with code {code}"),
        }
    }
}

/// What a context is made with unless something else is said.
pub(crate) fn defaults() -> sys::llama_context_params {
    // SAFETY: the function takes and touches nothing.
    unsafe { sys::llama_context_default_params() }
}

/// See the module.
pub(crate) struct Context {
    raw: NonNull<sys::llama_context>,
    model: Arc<LoadedModel>,
    /// It lives as long as the context that calls it.
    replacing: Replacing,
    /// What it applies beside the model's own adapter.
    applied: Vec<(Arc<LoadedAdapter>, f32)>,
    /// The next batch plans its graphs anew, and reads the list of the model's adapters for that.
    plans: bool,
    /// That it was made with, and that the next decode has.
    threads: (i32, i32),
}

// SAFETY: llama.cpp lets any thread use a context, one at a time: what changes it takes `&mut self`, and what reads it while the
// context computes nothing (`decode` waits for the end) changes nothing.
unsafe impl Send for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("model", &self.model).finish_non_exhaustive()
    }
}

impl Context {
    /// Makes a context on the model's weights, with its adapter.
    ///
    /// # Errors
    /// llama.cpp cannot make one, usually because there is not enough memory for the KV cache.
    pub(crate) fn new(
        model: &Arc<LoadedModel>,
        params: sys::llama_context_params,
        replacing: Replacing,
    ) -> Result<Self, EngineLoadError> {
        let params = replacing.of(params);
        let refused = || EngineLoadError::NoContext { sequences: params.n_seq_max, kv_tokens: params.n_ctx };
        backend()?;
        let raw = {
            let _guard = CONTEXT_CREATION.lock().unwrap_or_else(PoisonError::into_inner);
            let _held = model.model.hold_adapters();
            // SAFETY: the model is whole, and outlives the context, which keeps the `Arc`. Only one context is made at a time.
            // llama.cpp returns null where it throws.
            unsafe { sys::llama_init_from_model(model.model.raw(), params) }
        };
        let raw = NonNull::new(raw).ok_or_else(refused)?;
        let threads = (params.n_threads, params.n_threads);
        let mut context = Self { raw, model: model.clone(), replacing, applied: Vec::new(), plans: true, threads };
        if model.adapter.is_some() && !context.apply(Vec::new()) {
            return Err(refused());
        }
        Ok(context)
    }

    /// Applies these adapters of the model beside its own, in place of those before. False if llama.cpp refuses them.
    ///
    /// llama.cpp then plans its graphs anew, at the next batch.
    pub(crate) fn apply(&mut self, adapters: Vec<(Arc<LoadedAdapter>, f32)>) -> bool {
        let own = self.model.adapter.iter().map(|Adapter { lora, scale }| (lora.raw(), *scale));
        let (mut raw, mut scales): (Vec<_>, Vec<f32>) =
            own.chain(adapters.iter().map(|(adapter, scale)| (adapter.lora().raw(), *scale))).unzip();
        // SAFETY: both lists have this length. The model's own adapter lives as long as the model, and the others at least as long
        // as they are in `applied`, which is changed only after the context uses others.
        let code = unsafe {
            sys::llama_set_adapters_lora(self.raw.as_ptr(), raw.as_mut_ptr(), raw.len(), scales.as_mut_ptr())
        };
        self.plans = true;
        if code != 0 {
            // It may use any of them.
            self.applied.extend(adapters);
            return false;
        }
        self.applied = adapters;
        true
    }

    /// Whether it applies an adapter, beside the model's own.
    pub(crate) fn applies(&self, adapter: AdapterDigest) -> bool {
        self.applied.iter().any(|(applied, _)| applied.digest() == adapter)
    }

    pub(crate) fn model(&self) -> &LoadedModel {
        &self.model
    }

    pub(crate) fn share_model(&self) -> Arc<LoadedModel> {
        self.model.clone()
    }

    /// Whether attention has read keys and values that llama.cpp would have rounded to 16 bits, and did not.
    pub(crate) fn attends_exactly(&self) -> bool {
        self.replacing.attends_exactly()
    }

    /// What the KV cache could not hold of the last batch.
    pub(crate) fn spoiled(&self) -> &SpoiledTokens {
        self.replacing.spoiled()
    }

    /// Whether it keeps anything of the tokens that it has computed.
    pub(crate) fn has_cache(&self) -> bool {
        // SAFETY: the context is whole.
        unsafe { !sys::llama_get_memory(self.raw.as_ptr()).is_null() }
    }

    /// Tokens of its KV cache.
    pub(crate) fn kv_tokens(&self) -> u32 {
        // SAFETY: the context is whole.
        unsafe { sys::llama_n_ctx(self.raw.as_ptr()) }
    }

    pub(crate) fn batch_tokens(&self) -> u32 {
        // SAFETY: the context is whole.
        unsafe { sys::llama_n_batch(self.raw.as_ptr()) }
    }

    /// Computes a batch to its end.
    ///
    /// # Panics
    /// Something failed in the middle of it, or a device did: neither the context nor what lies on devices is to be used again.
    #[expect(clippy::panic, reason = "ends the incarnation of the thread: a new one is made")]
    pub(crate) fn decode(&mut self, rows: &mut Rows) -> Result<(), NotDecoded> {
        const { assert!(size_of::<sys::llama_batch>() == 56) };
        self.spoiled().tokens().clear();
        let (batch, mut why) = (rows.batch(), [0; REASON_BYTES]);
        let model = self.model.clone();
        let _held = std::mem::take(&mut self.plans).then(|| model.model.hold_adapters());
        // SAFETY: the batch points to lists of the length that it names, which nobody changes meanwhile. The callee writes
        // less than the room, and a zero at its end.
        let code = unsafe { camshaft_decode(self.raw.as_ptr(), &raw const batch, why.as_mut_ptr(), why.len()) };
        match code {
            0 => Ok(()),
            1 => Err(NotDecoded::NoRoom),
            -1 => Err(NotDecoded::Refused),
            i32::MIN => {
                // SAFETY: it ends with a zero.
                let why = unsafe { CStr::from_ptr(why.as_ptr()) }.to_string_lossy().into_owned();
                // In the middle of a batch: what the context holds is not to be relied on.
                self.model.lose();
                panic!("llama.cpp failed at model {:?}: {why}", self.model.info().name)
            }
            // Some devices report so that they failed. The incarnation of the thread ends, and the next one computes elsewhere.
            code if code < -1 && self.model.lose() => {
                panic!("a device of model {:?} failed with code {code}", self.model.info().name)
            }
            code => Err(NotDecoded::Code(code)),
        }
    }

    /// Logits of a row of the last batch that wanted them; none if it did not.
    pub(crate) fn logits(&self, row: i32) -> &[f32] {
        // SAFETY: nothing computes, and llama.cpp checks the row.
        let logits = unsafe { sys::llama_get_logits_ith(self.raw.as_ptr(), row) };
        let size = self.model.info().vocabulary.size();
        // SAFETY: a row has a number for each token of the vocabulary, and stays until the next batch, which takes `&mut self`.
        if logits.is_null() { &[] } else { unsafe { std::slice::from_raw_parts(logits, size) } }
    }

    /// The vector of a sequence of the last batch.
    pub(crate) fn vector(&self, sequence: i32) -> Option<&[f32]> {
        // SAFETY: nothing computes, and llama.cpp checks the sequence.
        let vector = unsafe { sys::llama_get_embeddings_seq(self.raw.as_ptr(), sequence) };
        // SAFETY: a vector has as many numbers as the model's output is wide (no context pools to a rank), and stays until the
        // next batch.
        (!vector.is_null()).then(|| unsafe { std::slice::from_raw_parts(vector, self.model.dimensions() as usize) })
    }

    /// Threads of later decodes. No more than it was made with: what replaces operations has room for those.
    pub(crate) fn set_threads(&mut self, threads: u32) {
        let (most, now) = self.threads;
        let threads = i32::try_from(threads).unwrap_or(most).clamp(1, most.max(1));
        if threads != now {
            self.threads = (most, threads);
            // SAFETY: the context is ours, and nothing decodes.
            unsafe { sys::llama_set_n_threads(self.raw.as_ptr(), threads, threads) };
        }
    }

    /// Empties the KV cache. What its entries held is only forgotten: to overwrite it would be work for a device, and throw where
    /// it is lost.
    pub(crate) fn clear(&mut self) {
        // SAFETY: llama.cpp takes a memory that is null, which encoders have.
        unsafe { sys::llama_memory_clear(self.memory(), false) };
    }

    /// Removes the KV entries of a sequence from `from` on. False if its state cannot be cut there: it is as before. The whole
    /// sequence can always be removed.
    pub(crate) fn remove(&mut self, sequence: i32, from: u32) -> bool {
        // SAFETY: as `clear`; the end is open.
        unsafe { sys::llama_memory_seq_rm(self.memory(), sequence, from as i32, -1) }
    }

    /// Gives `to` the KV entries of `from` in the range, too.
    pub(crate) fn share(&mut self, from: i32, to: i32, range: Range<u32>) {
        // SAFETY: as `clear`.
        unsafe { sys::llama_memory_seq_cp(self.memory(), from, to, range.start as i32, range.end as i32) };
    }

    /// The last position of a sequence; -1 if it is empty.
    pub(crate) fn last_position(&self, sequence: i32) -> i32 {
        // SAFETY: as `clear`.
        unsafe { sys::llama_memory_seq_pos_max(self.memory(), sequence) }
    }

    /// A copy of a sequence's state, in an empty vector from `room`, which is given its size in bytes. `None` if there is no state.
    /// A device that is lost during this ends the process: llama.cpp reads what it has in a destructor, from which nothing can be thrown.
    pub(crate) fn state(&self, sequence: i32, room: impl FnOnce(usize) -> Vec<u8>) -> Option<Vec<u8>> {
        // SAFETY: llama.cpp catches what it throws.
        let size = unsafe { sys::llama_state_seq_get_size_ext(self.raw.as_ptr(), sequence, 0) };
        if size == 0 {
            return None;
        }
        let mut state = room(size);
        assert!(state.is_empty() && state.capacity() >= size, "there is room for a state of {size} bytes");
        let bytes = state.as_mut_ptr();
        // SAFETY: the buffer has the size that llama.cpp has just asked for, and no decode happens in between.
        let written = unsafe { sys::llama_state_seq_get_data_ext(self.raw.as_ptr(), bytes, size, sequence, 0) };
        if written != size {
            return None;
        }
        // SAFETY: so many bytes were written, of as many that there is room for.
        unsafe { state.set_len(size) };
        Some(state)
    }

    /// Gives a sequence a state that [`Self::state`] wrote for the same model and layout. False if it does not fit. As with that,
    /// a device that is lost meanwhile ends the process.
    ///
    /// # Safety
    /// Nobody else wrote or changed it.
    pub(crate) unsafe fn set_state(&mut self, sequence: i32, state: &[u8]) -> bool {
        // SAFETY: by the caller's word, it is what llama.cpp wrote.
        let read =
            unsafe { sys::llama_state_seq_set_data_ext(self.raw.as_ptr(), state.as_ptr(), state.len(), sequence, 0) };
        read > 0
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is whole.
        unsafe { sys::llama_get_memory(self.raw.as_ptr()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // To free what lies on a device that is lost would end the process.
        if !self.model.is_lost() {
            // SAFETY: nobody uses it after this, and its model lives until this function returns.
            unsafe { sys::llama_free(self.raw.as_ptr()) };
        }
    }
}
