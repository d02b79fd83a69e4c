//! What is computed otherwise than llama.cpp does it: operations of its graphs are replaced before they are computed.
use std::ffi::c_void;
use std::ptr::NonNull;

use llama_cpp_sys_2 as sys;

use crate::{attention, finite, gelu, matmul};

/// Replaces operations of a context's graphs: activations where they are to be exact, and, where all of the model is computed
/// here, products, attention and what goes into the KV cache.
pub(crate) struct Replacing {
    callback: sys::ggml_backend_sched_eval_callback,
    /// A box's, as a pointer: a box may not move while others point to what it holds.
    data: NonNull<Data>,
}

/// What the callback is given.
struct Data {
    /// As many compute a graph.
    threads: usize,
    attention: attention::Shared,
    spoiled: finite::SpoiledTokens,
}

impl Replacing {
    pub(crate) fn new(exact_activations: bool, on_devices: bool, threads: u32) -> Self {
        let callback: sys::ggml_backend_sched_eval_callback = match (exact_activations, is_replaceable(on_devices)) {
            (true, true) => Some(all),
            (true, false) => Some(activations),
            (false, true) => Some(computed_here),
            (false, false) => None,
        };
        let data = Data {
            threads: threads.max(1) as usize,
            attention: attention::Shared::default(),
            spoiled: finite::SpoiledTokens::default(),
        };
        Self { callback, data: NonNull::from(Box::leak(Box::new(data))) }
    }

    /// What a context is made with, which must not outlive this object.
    pub(crate) fn of(&self, params: sys::llama_context_params) -> sys::llama_context_params {
        sys::llama_context_params { cb_eval: self.callback, cb_eval_user_data: self.data.as_ptr().cast(), ..params }
    }

    /// See [`attention::Shared::is_exact`]. The context computes nothing meanwhile.
    pub(crate) fn attends_exactly(&self) -> bool {
        // SAFETY: only the context's callback changes it, while the context computes.
        unsafe { self.data.as_ref() }.attention.is_exact()
    }

    /// See [`finite`]. The context computes nothing meanwhile.
    pub(crate) fn spoiled(&self) -> &finite::SpoiledTokens {
        // SAFETY: as above.
        &unsafe { self.data.as_ref() }.spoiled
    }
}

impl Drop for Replacing {
    fn drop(&mut self) {
        // SAFETY: it is a box's, and the context is gone.
        drop(unsafe { Box::from_raw(self.data.as_ptr()) });
    }
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
unsafe extern "C" fn all(node: *mut sys::ggml_tensor, ask: bool, data: *mut c_void) -> bool {
    // SAFETY: as llama.cpp calls them.
    unsafe { activations(node, ask, data) || computed_here(node, ask, data) }
}

unsafe extern "C" fn activations(node: *mut sys::ggml_tensor, _ask: bool, _data: *mut c_void) -> bool {
    // SAFETY: the node belongs to a graph that llama.cpp is about to compute on this thread. Nothing else reads or
    // writes it during the call.
    gelu::replace(unsafe { &mut *node });
    false
}

unsafe extern "C" fn computed_here(node: *mut sys::ggml_tensor, _ask: bool, data: *mut c_void) -> bool {
    // SAFETY: as in `activations`.
    let (node, data) = (unsafe { &mut *node }, data.cast::<Data>());
    matmul::replace(node);
    // SAFETY: the data are the context's, which computes nothing yet. They live as long as the context.
    unsafe {
        attention::replace(node, (*data).threads, &raw mut (*data).attention);
        finite::replace(node, &raw const (*data).spoiled);
    };
    false
}
