//! Nodes of llama.cpp's graphs that functions of ours compute.
use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

/// The parameters of a node with an operation of the caller's, as `ggml_map_custom1` and its kin of the pinned version write them.
#[repr(C)]
struct CustomParams<F> {
    function: F,
    tasks: i32,
    data: *mut c_void,
}

/// What these take of a node's parameters.
#[cfg(target_arch = "x86_64")]
pub(crate) const PARAMETER_BYTES: usize = size_of::<CustomParams<sys::ggml_custom3_op_t>>();

/// `GGML_N_TASKS_MAX`.
const EVERY_THREAD: i32 = -1;

/// Makes the node one of one source whose value `function` computes, on all threads, each of which is given `data`.
pub(crate) fn map1(node: &mut sys::ggml_tensor, function: sys::ggml_custom1_op_t, data: *mut c_void) {
    node.op = sys::GGML_OP_MAP_CUSTOM1;
    write(node, CustomParams { function, tasks: EVERY_THREAD, data });
}

/// The same, of two sources, and of no data.
pub(crate) fn map2(node: &mut sys::ggml_tensor, function: sys::ggml_custom2_op_t) {
    node.op = sys::GGML_OP_MAP_CUSTOM2;
    write(node, CustomParams { function, tasks: EVERY_THREAD, data: std::ptr::null_mut() });
}

/// As [`map1`], of three sources.
pub(crate) fn map3(node: &mut sys::ggml_tensor, function: sys::ggml_custom3_op_t, data: *mut c_void) {
    node.op = sys::GGML_OP_MAP_CUSTOM3;
    write(node, CustomParams { function, tasks: EVERY_THREAD, data });
}

fn write<F>(node: &mut sys::ggml_tensor, params: CustomParams<F>) {
    const { assert!(size_of::<CustomParams<F>>() <= 64) };
    // SAFETY: the parameters of a node are 64 bytes of integers, of which llama.cpp copies such a struct.
    unsafe { node.op_params.as_mut_ptr().cast::<CustomParams<F>>().write_unaligned(params) };
}

/// Whether a tensor's numbers are in this process's memory.
pub(crate) fn is_here(tensor: *const sys::ggml_tensor) -> bool {
    // SAFETY: a tensor of a graph is whole, and a buffer that is not null belongs to it.
    unsafe { !tensor.is_null() && !(*tensor).buffer.is_null() && sys::ggml_backend_buffer_is_host((*tensor).buffer) }
}
