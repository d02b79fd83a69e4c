//! Which products are computed here, and where their matrices are.
use llama_cpp_sys_2 as sys;

use crate::custom;

/// Numbers in a block of q8_0, and its bytes: a scale of 16 bits, and as many integers of 8.
pub(super) const BLOCK: usize = 32;
pub(super) const BLOCK_BYTES: usize = 34;

/// What weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Blocks of q8_0.
    Q8,
    /// Numbers of 16 bits.
    F16,
}

/// Where a product's matrices are. `weights` has `outputs` rows of `inputs` numbers, `from` has `rows` rows of them, and `to` as
/// many of `outputs`. All lie in one piece.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "there is no kernel"))]
pub(super) struct Product {
    pub(super) kind: Kind,
    pub(super) weights: *const u8,
    pub(super) from: *const f32,
    pub(super) to: *mut f32,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) rows: usize,
}

impl Product {
    /// `None`: it is not a product of that kind.
    pub(super) fn of(
        to: *const sys::ggml_tensor,
        weights: *const sys::ggml_tensor,
        from: *const sys::ggml_tensor,
    ) -> Option<Self> {
        if ![to, weights, from].into_iter().all(custom::is_here) {
            return None;
        }
        // SAFETY: the tensors of a graph are whole.
        let (to, weights, from) = unsafe { (&*to, &*weights, &*from) };
        let in_one_piece = |tensor: &sys::ggml_tensor, unit: usize, width: usize| {
            let row = unit * width;
            let (mut bytes, mut fits) = (row, tensor.nb[0] == unit);
            for (count, step) in tensor.ne[1..].iter().zip(&tensor.nb[1..]) {
                fits &= *count == 1 || *step == bytes;
                bytes = bytes.saturating_mul(usize::try_from(*count).unwrap_or(0));
            }
            fits
        };
        let [inputs, outputs, more, most] = weights.ne.map(|count| usize::try_from(count).unwrap_or(0));
        let rows = from.ne[1..].iter().map(|count| usize::try_from(*count).unwrap_or(0)).product::<usize>();
        let (kind, unit, numbers) = match weights.type_ {
            sys::GGML_TYPE_Q8_0 => (Kind::Q8, BLOCK_BYTES, BLOCK),
            sys::GGML_TYPE_F16 => (Kind::F16, 2, 1),
            _ => return None,
        };
        let is_ours = (from.type_, to.type_) == (sys::GGML_TYPE_F32, sys::GGML_TYPE_F32)
            && (more, most) == (1, 1)
            && inputs > 0
            && inputs.is_multiple_of(BLOCK)
            && usize::try_from(from.ne[0]) == Ok(inputs)
            && usize::try_from(to.ne[0]) == Ok(outputs)
            && to.ne[1..] == from.ne[1..]
            && in_one_piece(weights, unit, inputs / numbers)
            && in_one_piece(from, size_of::<f32>(), inputs)
            && in_one_piece(to, size_of::<f32>(), outputs);
        is_ours.then(|| Self {
            kind,
            weights: weights.data.cast::<u8>().cast_const(),
            from: from.data.cast::<f32>().cast_const(),
            to: to.data.cast(),
            inputs,
            outputs,
            rows,
        })
    }
}
