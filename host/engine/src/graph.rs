//! What is computed otherwise than llama.cpp does it: operations of its graphs are replaced before they are computed.
use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

use crate::{attention, gelu, matmul};

/// What a context is made with, so that its operations are replaced: activations where they are to be exact, and products and
/// attention where all of the model is computed here.
pub(crate) fn replacing(exact_activations: bool, on_devices: bool) -> sys::ggml_backend_sched_eval_callback {
    let is_faster = is_replaceable(on_devices) && (matmul::is_faster() || attention::is_faster());
    match (exact_activations, is_faster) {
        (true, true) => Some(all),
        (true, false) => Some(activations),
        (false, true) => Some(faster),
        (false, false) => None,
    }
}

/// What the callback is told: how many threads compute.
pub(crate) fn data(threads: u32) -> *mut c_void {
    std::ptr::without_provenance_mut(threads.max(1) as usize)
}

fn is_replaceable(on_devices: bool) -> bool {
    !on_devices && !may_accelerate()
}

/// Whether a library such as BLAS computes products of the processor's memory, which takes no operations that were replaced.
fn may_accelerate() -> bool {
    // SAFETY: the registry of devices may be read from any thread; it keeps its devices for ever.
    (0..unsafe { sys::ggml_backend_dev_count() }).any(|index| {
        // SAFETY: as above; the index is less than their count.
        let kind = unsafe { sys::ggml_backend_dev_type(sys::ggml_backend_dev_get(index)) };
        kind == sys::GGML_BACKEND_DEVICE_TYPE_ACCEL
    })
}

/// llama.cpp calls these for each node of the graph before it computes it, to ask whether the caller wants the node's value. The
/// answer is no, so the graph is still computed in one pass, but at this point the node's operation can be replaced.
unsafe extern "C" fn all(node: *mut sys::ggml_tensor, _ask: bool, data: *mut c_void) -> bool {
    // SAFETY: the node belongs to a graph that llama.cpp is about to compute on this thread. Nothing else reads or
    // writes it during the call.
    let node = unsafe { &mut *node };
    gelu::replace(node);
    matmul::replace(node);
    attention::replace(node, data.addr());
    false
}

unsafe extern "C" fn activations(node: *mut sys::ggml_tensor, _ask: bool, _data: *mut c_void) -> bool {
    // SAFETY: as in `all`.
    gelu::replace(unsafe { &mut *node });
    false
}

unsafe extern "C" fn faster(node: *mut sys::ggml_tensor, _ask: bool, data: *mut c_void) -> bool {
    // SAFETY: as in `all`.
    let node = unsafe { &mut *node };
    matmul::replace(node);
    attention::replace(node, data.addr());
    false
}
