//! Which of llama.cpp's nodes are computed here, and where their numbers are.
use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

use super::divide;
use super::entries::Entries;
use super::kernel::{Kernel, LANES};
use super::shared::Shared;
use super::views::{Attention, Numbers, Shape, View};
use crate::custom;

/// Where the parameters of a node go, which begin with those of the custom operation from then on.
const KEPT: usize = 8;
const _: () = assert!(custom::PARAMETER_BYTES <= KEPT * size_of::<i32>());

/// `None`: it is not attention of a kind that is computed here. `parameters` are the node's.
fn attention_of(node: &sys::ggml_tensor, parameters: [f32; 3], entries_of: &Entries) -> Option<Attention> {
    let [q, k, v, mask, sinks, ..] = node.src;
    if !sinks.is_null() || ![&raw const *node, q, k, v].into_iter().all(custom::is_here) {
        return None;
    }
    // SAFETY: the tensors of a graph are whole.
    let (q, k, v) = unsafe { (&*q, &*k, &*v) };
    // SAFETY: as above; there may be none.
    let mask = unsafe { mask.as_ref() };
    let size = |count: i64| usize::try_from(count).unwrap_or(0);
    let [width, rows, heads, streams] = q.ne.map(size);
    let [k_width, entries, kv_heads, k_streams] = k.ne.map(size);
    let [value_width, v_entries, v_heads, v_streams] = v.ne.map(size);
    let [scale, max_bias, cap] = parameters;
    let is_of = |tensor: &sys::ggml_tensor, kind, bytes| tensor.type_ == kind && tensor.nb[0] == bytes;
    let (f16, f32) = (sys::GGML_TYPE_F16, sys::GGML_TYPE_F32);
    let masks = mask.map_or(1, |mask| size(mask.ne[3]));
    let mask_fits = mask.is_none_or(|mask| {
        custom::is_here(mask)
            && is_of(mask, f16, 2)
            && size(mask.ne[0]) >= entries
            && size(mask.ne[1]) >= rows
            && mask.ne[2] == 1
            && (masks == 1 || masks == streams)
    });
    let is_ours = is_of(q, f32, 4)
        && is_of(k, f16, 2)
        && is_of(v, f16, 2)
        && is_of(node, f32, 4)
        && mask_fits
        && cap == 0.0
        && [width, value_width].iter().all(|width| *width > 0 && width.is_multiple_of(16))
        && (k_width, v_entries, v_heads) == (width, entries, kv_heads)
        && (k_streams, v_streams) == (streams, streams)
        && kv_heads > 0
        && heads.is_multiple_of(kv_heads)
        && heads / kv_heads <= LANES
        && node.ne.map(size) == [value_width, heads, rows, streams];
    let view = |tensor: &sys::ggml_tensor| View {
        data: tensor.data.cast::<u8>().cast_const(),
        steps: [tensor.nb[1], tensor.nb[2], tensor.nb[3]],
    };
    let shape = Shape { width, value_width, rows, entries, heads, kv_heads, streams, masks, scale, max_bias };
    let (numbers, [k, v]) = match entries_of.of(k, v) {
        Some(copies) => (Numbers::F32, copies),
        None => (Numbers::F16, [view(k), view(v)]),
    };
    is_ours.then(|| Attention { shape, q: view(q), numbers, k, v, mask: mask.map(view), to: view(node) })
}

/// See [`super::replace`].
///
/// # Safety
/// Nobody uses `shared` during the call.
pub(super) unsafe fn replace(node: &mut sys::ggml_tensor, threads: usize, shared: *mut Shared) {
    // SAFETY: by the caller's word. Nodes keep the pointer itself, not this reference.
    let common = unsafe { &mut *shared };
    common.entries.see(node);
    if node.op == sys::GGML_OP_MAP_CUSTOM3 {
        // Of the graph before, which is computed again.
        common.begin();
    }
    if node.op != sys::GGML_OP_FLASH_ATTN_EXT || Kernel::of_this_processor().is_none() {
        return;
    }
    let parameters = std::array::from_fn(|index| f32::from_bits(node.op_params[index] as u32));
    // What is divided are rows and heads, not always into equal parts; llama.cpp divides also the entries of one row.
    let pays = |Attention { shape: Shape { rows, streams, kv_heads, .. }, .. }: Attention| {
        let parts = rows * streams * kv_heads;
        parts >= 4 * threads || rows * streams == 1 && kv_heads.is_multiple_of(threads)
    };
    let Some(attention) = attention_of(node, parameters, &common.entries) else { return };
    // SAFETY: `shared` is whole.
    let entries = unsafe { &raw mut (*shared).entries };
    let take = |common: &mut Shared| common.entries.take([node.src[1], node.src[2]], entries);
    if attention.numbers == Numbers::F32 || take(common) || pays(attention) {
        common.begin();
        custom::map3(node, Some(attend), shared.cast());
        for (index, parameter) in parameters.into_iter().enumerate() {
            node.op_params[KEPT + index] = parameter.to_bits() as i32;
        }
    }
}

/// Computes the part of a node that falls to thread `thread` of `threads`.
unsafe extern "C" fn attend(
    to: *mut sys::ggml_tensor,
    _q: *const sys::ggml_tensor,
    _k: *const sys::ggml_tensor,
    _v: *const sys::ggml_tensor,
    thread: i32,
    threads: i32,
    data: *mut c_void,
) {
    // SAFETY: llama.cpp calls this with a node of its graph.
    let node = unsafe { &*to };
    let parameters = std::array::from_fn(|index| f32::from_bits(node.op_params[KEPT + index] as u32));
    // SAFETY: `data` is what `replace` was given, which does not move and which nobody changes while a graph is computed.
    let shared = unsafe { &*data.cast::<Shared>() };
    let attention = attention_of(node, parameters, &shared.entries);
    let (Some(kernel), Some(attention)) = (Kernel::of_this_processor(), attention) else {
        debug_assert!(false, "only attention that can be computed here is replaced");
        if thread == 0 {
            // SAFETY: the node is whole, and nobody else writes it.
            let numbers =
                unsafe { std::slice::from_raw_parts_mut(node.data.cast::<f32>(), sys::ggml_nelements(to) as usize) };
            numbers.fill(f32::NAN);
        }
        return;
    };
    let mask = node.src[3];
    // SAFETY: the mask is whole. What the graph is given stays the same for all of its nodes.
    let is_given = mask.is_null() || unsafe { (*mask).op } == sys::GGML_OP_NONE;
    let graph = is_given.then(|| shared.graph());
    // SAFETY: the tensors are as the node says. llama.cpp calls this once for each thread, and the parts of the threads are apart.
    unsafe { divide::attend(kernel, &attention, graph, (thread.max(0) as usize, threads.max(1) as usize)) };
}
