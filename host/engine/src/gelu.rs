//! BERT's activation as it was trained: the exact GELU, where llama.cpp's graph approximates it by a table of f16.
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_sys_2 as sys;

/// Models of this architecture have `hidden_act = "gelu"`, `x/2 (1 + erf(x/√2))`. (Devlin et al., NAACL 2019.) Others are
/// left as llama.cpp has them, since many were trained with the approximation by `tanh`.
const ARCHITECTURE: &str = "bert";

/// Lets a context of a model of this architecture compute exact activations.
pub(crate) fn exact(params: LlamaContextParams, architecture: &str) -> LlamaContextParams {
    if architecture != ARCHITECTURE {
        return params;
    }
    let mut params = params;
    // llama-cpp-2 has no setter for the callback.
    const { assert!(size_of::<LlamaContextParams>() == size_of::<sys::llama_context_params>()) };
    // SAFETY: `LlamaContextParams` (pinned version) has one field, of the type that is written here; a struct that is no
    // larger than its one field has it at its start.
    let raw = unsafe { &mut *(&raw mut params).cast::<sys::llama_context_params>() };
    raw.cb_eval = Some(make_exact);
    params
}

/// llama.cpp asks before it computes whether a node's value is wanted. None is, but this is the moment at which its
/// operation can still be chosen; the graph is computed in one go as ever.
unsafe extern "C" fn make_exact(node: *mut sys::ggml_tensor, _ask: bool, _data: *mut std::ffi::c_void) -> bool {
    // SAFETY: llama.cpp hands over a node of the graph that it is about to compute on this thread, and nothing else looks at
    // it meanwhile.
    let node = unsafe { &mut *node };
    // The first parameter of a unary node is which function it is.
    if node.op == sys::GGML_OP_UNARY && node.op_params[0] == sys::GGML_UNARY_OP_GELU as i32 {
        node.op_params[0] = sys::GGML_UNARY_OP_GELU_ERF as i32;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_the_callback(op: sys::ggml_op, parameter: sys::ggml_unary_op) -> i32 {
        // SAFETY: a struct of numbers, arrays of them and pointers.
        let mut node: sys::ggml_tensor = unsafe { std::mem::zeroed() };
        node.op = op;
        node.op_params[0] = parameter as i32;
        // SAFETY: the node lives here, and only here.
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
