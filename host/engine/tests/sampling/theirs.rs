//! llama.cpp's samplers, to compare with.
#![allow(dead_code, reason = "the benchmark compiles this file, too, and each uses a part of it")]
use std::mem::ManuallyDrop;

use llama_cpp_sys_2 as sys;

pub(crate) struct Sampler(*mut sys::llama_sampler);

/// The tokens that samplers work on.
#[derive(Clone)]
pub(crate) struct Candidates {
    pub(crate) list: Vec<sys::llama_token_data>,
    pub(crate) sorted: bool,
    /// In the list.
    pub(crate) selected: Option<usize>,
}

impl Sampler {
    /// Samplers one after the other.
    pub(crate) fn chain(parts: impl IntoIterator<Item = Self>) -> Self {
        // SAFETY: the parameters are whole.
        let chain = unsafe { sys::llama_sampler_chain_init(sys::llama_sampler_chain_params { no_perf: true }) };
        for part in parts {
            let part = ManuallyDrop::new(part);
            // SAFETY: both are whole. From now on the part belongs to the chain, which frees it.
            unsafe { sys::llama_sampler_chain_add(chain, part.0) };
        }
        Self(chain)
    }

    pub(crate) fn logit_bias(size: i32, biases: &[sys::llama_logit_bias]) -> Self {
        // SAFETY: the list has so many elements, and is copied.
        Self(unsafe { sys::llama_sampler_init_logit_bias(size, biases.len() as i32, biases.as_ptr()) })
    }

    /// Of the last tokens that were accepted.
    pub(crate) fn repeat_penalty(size: i32, last: i32, penalty: f32) -> Self {
        // SAFETY: the function takes numbers only.
        Self(unsafe { sys::llama_sampler_init_penalties(size, last, penalty, 0.0, 0.0) })
    }

    pub(crate) fn top_k(k: i32) -> Self {
        // SAFETY: the function takes numbers only.
        Self(unsafe { sys::llama_sampler_init_top_k(k) })
    }

    pub(crate) fn typical(p: f32) -> Self {
        // SAFETY: the function takes numbers only.
        Self(unsafe { sys::llama_sampler_init_typical(p, 1) })
    }

    pub(crate) fn top_p(p: f32) -> Self {
        // SAFETY: the function takes numbers only.
        Self(unsafe { sys::llama_sampler_init_top_p(p, 1) })
    }

    pub(crate) fn min_p(p: f32) -> Self {
        // SAFETY: the function takes numbers only.
        Self(unsafe { sys::llama_sampler_init_min_p(p, 1) })
    }

    pub(crate) fn temperature(temperature: f32) -> Self {
        // SAFETY: the function takes numbers only.
        Self(unsafe { sys::llama_sampler_init_temp(temperature) })
    }

    /// Selects a token.
    pub(crate) fn draw(seed: u32) -> Self {
        // SAFETY: the function takes numbers only.
        Self(unsafe { sys::llama_sampler_init_dist(seed) })
    }

    pub(crate) fn accept(&mut self, token: u32) {
        // SAFETY: the sampler is whole.
        unsafe { sys::llama_sampler_accept(self.0, token as i32) };
    }

    pub(crate) fn apply(&mut self, candidates: &mut Candidates) {
        let Candidates { list, sorted, selected } = candidates;
        let data = list.as_mut_ptr();
        let mut array = sys::llama_token_data_array { data, size: list.len(), selected: -1, sorted: *sorted };
        // SAFETY: the array has so many elements.
        unsafe { sys::llama_sampler_apply(self.0, &raw mut array) };
        assert!(array.data == data && array.size <= list.len(), "llama.cpp left its results elsewhere");
        list.truncate(array.size);
        *sorted = array.sorted;
        *selected = usize::try_from(array.selected).ok().filter(|&at| at < list.len());
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        // SAFETY: nobody uses it after this.
        unsafe { sys::llama_sampler_free(self.0) };
    }
}

impl Candidates {
    /// All tokens of a row.
    pub(crate) fn of(logits: &[f32]) -> Self {
        let mut candidates = Self { list: Vec::with_capacity(logits.len()), sorted: false, selected: None };
        candidates.fill(logits);
        candidates
    }

    /// Copies a row, as `llama_sampler_sample` does.
    pub(crate) fn fill(&mut self, logits: &[f32]) {
        self.list.clear();
        self.list.extend((0..).zip(logits).map(|(id, &logit)| sys::llama_token_data { id, logit, p: 0.0 }));
        (self.selected, self.sorted) = (None, false);
    }

    pub(crate) fn selected_token(&self) -> Option<i32> {
        self.selected.map(|at| self.list[at].id)
    }
}
