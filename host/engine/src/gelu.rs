//! Makes BERT models compute the exact GELU, with which they were trained. llama.cpp's graph approximates it by a table
//! of f16.
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_sys_2 as sys;

/// Models of this architecture have `hidden_act = "gelu"`, which is `x/2 (1 + erf(x/√2))` (Devlin et al., NAACL 2019).
/// Other architectures keep llama.cpp's activation: many were trained with the `tanh` approximation.
const ARCHITECTURE: &str = "bert";

/// Makes a context of a BERT model compute exact activations. Changes nothing for other architectures.
pub(crate) fn exact(params: LlamaContextParams, architecture: &str) -> LlamaContextParams {
    if architecture != ARCHITECTURE {
        return params;
    }
    let mut params = params;
    // llama-cpp-2 has no setter for the callback.
    const { assert!(size_of::<LlamaContextParams>() == size_of::<sys::llama_context_params>()) };
    // SAFETY: `LlamaContextParams` of the pinned version has one field, of the type that is written here. The struct is
    // no larger than that field, so the field is at its start.
    let raw = unsafe { &mut *(&raw mut params).cast::<sys::llama_context_params>() };
    raw.cb_eval = Some(make_exact);
    params
}

/// llama.cpp calls this for each node of the graph before it computes it, to ask whether the caller wants the node's
/// value. The answer is no, so the graph is still computed in one pass, but at this point the node's operation can be
/// replaced.
unsafe extern "C" fn make_exact(node: *mut sys::ggml_tensor, _ask: bool, _data: *mut std::ffi::c_void) -> bool {
    // SAFETY: the node belongs to a graph that llama.cpp is about to compute on this thread. Nothing else reads or
    // writes it during the call.
    let node = unsafe { &mut *node };
    // The first parameter of a unary node selects its function.
    if node.op == sys::GGML_OP_UNARY && node.op_params[0] == sys::GGML_UNARY_OP_GELU as i32 {
        node.op_params[0] = sys::GGML_UNARY_OP_GELU_ERF as i32;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_the_callback(op: sys::ggml_op, parameter: sys::ggml_unary_op) -> i32 {
        // SAFETY: the struct consists of numbers, arrays of numbers and pointers, for which zero is valid.
        let mut node: sys::ggml_tensor = unsafe { std::mem::zeroed() };
        node.op = op;
        node.op_params[0] = parameter as i32;
        // SAFETY: the node is a local variable without other references.
        let wanted = unsafe { make_exact(&raw mut node, true, std::ptr::null_mut()) };
        assert!(!wanted, "no node's value is needed");
        node.op_params[0]
    }

    #[test]
    fn only_the_approximate_gelu_is_replaced() {
        assert_eq!(after_the_callback(sys::GGML_OP_UNARY, sys::GGML_UNARY_OP_GELU), sys::GGML_UNARY_OP_GELU_ERF as i32);
        let silu = sys::GGML_UNARY_OP_SILU;
        assert_eq!(after_the_callback(sys::GGML_OP_UNARY, silu), silu as i32);
        let gelu = sys::GGML_UNARY_OP_GELU;
        assert_eq!(after_the_callback(sys::GGML_OP_ADD, gelu), gelu as i32);
    }
}
