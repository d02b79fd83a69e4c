//! Keeps out of the KV cache what an entry cannot hold: numbers that are not finite, and those beyond 16 bits.
//!
//! Sequences share the memory of entries, one after the other and, in a pool, side by side. Attention multiplies by zero what a
//! row does not attend to, and zero times NaN is NaN: without flash attention always, with it wherever rows are computed
//! together. So one sequence could end its neighbours, in the batch that computes such numbers and in each one until others are
//! written in their place. To overwrite a sequence's entries when it ends would be too late for those, and would miss a sequence
//! that is cancelled before anybody reads its logits. Instead no such number is ever written: the node that hands a layer's keys,
//! or its values, to the cache computes nothing as llama.cpp makes it, a view. Here it looks at them, and tells whose are bad.
//! What restores and copies entries then has nothing to look for, and what it costs is one look at numbers that were just computed.
//! It does not hold where operations cannot be replaced: of layers on devices, and beside a library such as BLAS.
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use llama_cpp_sys_2 as sys;

use crate::custom;

/// The largest number of 16 bits. Quantized entries hold larger ones, but no model computes any.
const MOST: f32 = 65_504.0;

/// A token whose keys or values were not kept as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SpoiledToken {
    /// Of the rows that llama.cpp computed together.
    pub(crate) row: usize,
    pub(crate) rows: usize,
    /// Whose entries they are; 0 in a pool.
    pub(crate) stream: i32,
}

/// What was found in the graphs of a batch. Threads that compute them write it.
#[derive(Debug, Default)]
pub(crate) struct SpoiledTokens(Mutex<BTreeSet<SpoiledToken>>);

impl SpoiledTokens {
    pub(crate) fn tokens(&self) -> MutexGuard<'_, BTreeSet<SpoiledToken>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has a node look at what goes into the cache, if it hands that on. To be called for each node, in the order in which they are
/// computed, before any is.
///
/// # Safety
/// `spoiled` stays where it is for as long as the graph is computed.
pub(crate) unsafe fn replace(node: &mut sys::ggml_tensor, spoiled: *const SpoiledTokens) {
    // What a recurrent layer keeps of a sequence that ended is made the zeros of the next one by a product with zero.
    if node.op == sys::GGML_OP_SCALE && node.op_params[..2] == [0, 0] && is_plain(node) {
        node.op = sys::GGML_OP_FILL;
    }
    if node.op != sys::GGML_OP_SET_ROWS {
        return;
    }
    let (from, cells, cache) = (node.src[0], node.src[1], node.view_src);
    // SAFETY: the tensors of a graph are whole, and nobody else uses them during the call.
    let (Some(from), Some(to)) = (unsafe { from.as_mut() }, unsafe { cache.as_ref() }) else { return };
    // What stays from graph to graph has no operation.
    let is_kept = to.op == sys::GGML_OP_NONE && [1, to.ne[0]].contains(&from.ne[0]);
    let computes_nothing = from.op == sys::GGML_OP_VIEW || from.op == sys::GGML_OP_RESHAPE;
    // SAFETY: as above.
    let are_numbered = custom::is_here(cells) && unsafe { (*cells).type_ == sys::GGML_TYPE_I64 };
    if is_kept && computes_nothing && are_numbered && is_plain(from) && from.ne[2..] == [1, 1] {
        (from.src[1], from.src[2]) = (cells, cache);
        custom::map3(from, Some(look), spoiled.cast_mut().cast());
    }
}

/// Whether the tensor has rows of numbers of 32 bits in this process's memory.
fn is_plain(tensor: &sys::ggml_tensor) -> bool {
    tensor.type_ == sys::GGML_TYPE_F32 && tensor.nb[0] == size_of::<f32>() && custom::is_here(tensor)
}

/// Looks at the tokens that fall to thread `thread` of `threads`.
unsafe extern "C" fn look(
    to: *mut sys::ggml_tensor,
    _from: *const sys::ggml_tensor,
    cells: *const sys::ggml_tensor,
    cache: *const sys::ggml_tensor,
    thread: i32,
    threads: i32,
    data: *mut c_void,
) {
    // SAFETY: llama.cpp calls this with a node that `replace` changed and its sources, which are whole, and `replace` was given the
    // data by its caller's word.
    let (to, cells, cache, spoiled) = unsafe { (&*to, &*cells, &*cache, &*data.cast::<SpoiledTokens>()) };
    let size = |count: i64| usize::try_from(count).unwrap_or(0);
    let [width, cells_each, ..] = cache.ne.map(size);
    let count = size(to.ne[0]) * size(to.ne[1]);
    let rows = count / width.max(1);
    // Transposed values are numbers one by one, each with a place of its own, of all of a token's numbers together.
    let (step, places) = if size(to.ne[0]) == width { (to.nb[1], 1) } else { (width * size_of::<f32>(), width) };
    for row in (size(thread.into())..rows).step_by(size(threads.into()).max(1)) {
        // SAFETY: the node has so many numbers, a row after each `step`, and no other thread looks at this row.
        let numbers = unsafe { std::slice::from_raw_parts_mut(to.data.cast::<u8>().add(row * step).cast(), width) };
        if is_finite(numbers) {
            continue;
        }
        numbers.iter_mut().for_each(|x: &mut f32| *x = if x.is_nan() { 0.0 } else { x.clamp(-MOST, MOST) });
        // SAFETY: there is a place for each row, or each number, of the node.
        let place = unsafe { cells.data.cast::<i64>().add(row * places).read() };
        let stream = size(place) / (cells_each * places).max(1);
        spoiled.tokens().insert(SpoiledToken { row, rows, stream: i32::try_from(stream).unwrap_or(-1) });
    }
}

/// Whether an entry can hold all of them.
fn is_finite(numbers: &[f32]) -> bool {
    numbers.iter().fold(true, |all, x| all & (x.abs() <= MOST))
}

#[cfg(test)]
mod tests;
