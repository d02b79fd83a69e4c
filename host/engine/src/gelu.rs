//! Makes BERT models compute the exact GELU, with which they were trained. llama.cpp's graph approximates it by a table
//! of f16.
use std::ffi::c_void;

use camshaft_core::vectorized;
use llama_cpp_sys_2 as sys;

use crate::custom;

/// Models of this architecture have `hidden_act = "gelu"`, which is `x/2 (1 + erf(x/√2))` (Devlin et al., NAACL 2019).
/// Other architectures keep llama.cpp's activation: many were trained with the `tanh` approximation.
const ARCHITECTURE: &str = "bert";

/// Whether models of this architecture compute the exact activation.
pub(crate) fn is_exact(architecture: &str) -> bool {
    architecture == ARCHITECTURE
}

/// Has an approximate activation computed exactly.
pub(crate) fn replace(node: &mut sys::ggml_tensor) {
    // The first parameter of a unary node selects its function.
    if node.op != sys::GGML_OP_UNARY || node.op_params[0] != sys::GGML_UNARY_OP_GELU as i32 {
        return;
    }
    let is_plain = |tensor: *const sys::ggml_tensor| {
        // SAFETY: the node and its source are whole tensors.
        custom::is_here(tensor) && unsafe { (*tensor).type_ == sys::GGML_TYPE_F32 && sys::ggml_is_contiguous(tensor) }
    };
    if has_fma() && is_plain(node) && is_plain(node.src[0]) {
        custom::map1(node, Some(gelu_node), std::ptr::null_mut());
    } else {
        node.op_params[0] = sys::GGML_UNARY_OP_GELU_ERF as i32;
    }
}

/// Without it each multiplication and addition would be a call.
fn has_fma() -> bool {
    #[cfg(target_arch = "x86_64")]
    return is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    true
}

/// Computes the part of a node that falls to thread `thread` of `threads`.
unsafe extern "C" fn gelu_node(
    to: *mut sys::ggml_tensor,
    from: *const sys::ggml_tensor,
    thread: i32,
    threads: i32,
    _data: *mut c_void,
) {
    // SAFETY: both tensors have as many numbers, in one piece, which `replace` has seen. No other thread writes this
    // part. They may be the same tensor, so the parts are not made slices, which must not overlap.
    unsafe {
        let count = sys::ggml_nelements(to) as usize;
        let each = count.div_ceil(threads.max(1) as usize).next_multiple_of(LANES);
        let begin = (each * thread as usize).min(count);
        let end = (begin + each).min(count);
        let (to, from) = ((*to).data.cast::<f32>(), (*from).data.cast::<f32>().cast_const());
        let mut lanes = [0.0; LANES];
        for at in (begin..end).step_by(LANES) {
            let width = LANES.min(end - at);
            std::ptr::copy_nonoverlapping(from.add(at), lanes.as_mut_ptr(), width);
            gelu(&mut lanes);
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to.add(at), width);
        }
    }
}

/// Numbers that are computed side by side: some vector registers.
const LANES: usize = 64;
/// From here on the error function is 1 in 32 bits.
const ONE: f32 = 4.0;
/// `erf(u) = u P(u²) / Q(u²)` for `|u| <= 4`: fitted to the error function by weighted least squares, so that the largest
/// error is least. The largest error is 2e-8, and 4e-7 in 32 bits.
const P: [f32; 6] =
    [std::f32::consts::FRAC_2_SQRT_PI, 0.196_243_72, 0.053_466_763, 0.004_003_409_3, 0.000_288_034_1, 1.974_847e-6];
const Q: [f32; 6] = [1.0, 0.507_247_6, 0.116_474_23, 0.015_443_958, 0.001_216_298_3, 3.748_064_8e-5];

vectorized! {
    /// `x/2 (1 + erf(x/√2))` of each number.
    fn gelu(values: &mut [f32; LANES]) {
        for x in values {
            let u = *x * std::f32::consts::FRAC_1_SQRT_2;
            let s = (u * u).min(ONE * ONE);
            let (p, q) = (polynomial(&P, s), polynomial(&Q, s));
            let erf = if u.abs() < ONE { u * p / q } else { 1f32.copysign(u) };
            // What is not a number stays so.
            *x *= 0.5 + 0.5 * erf;
        }
    }
}

#[inline(always)]
fn polynomial(factors: &[f32; 6], of: f32) -> f32 {
    let mut sum = factors[5];
    for factor in factors[..5].iter().rev() {
        sum = sum.mul_add(of, *factor);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after_replacing(op: sys::ggml_op, parameter: sys::ggml_unary_op) -> i32 {
        // SAFETY: the struct consists of numbers, arrays of numbers and pointers, for which zero is valid.
        let mut node: sys::ggml_tensor = unsafe { std::mem::zeroed() };
        node.op = op;
        node.op_params[0] = parameter as i32;
        replace(&mut node);
        node.op_params[0]
    }

    #[test]
    fn only_the_approximate_gelu_is_replaced() {
        assert_eq!(after_replacing(sys::GGML_OP_UNARY, sys::GGML_UNARY_OP_GELU), sys::GGML_UNARY_OP_GELU_ERF as i32);
        let silu = sys::GGML_UNARY_OP_SILU;
        assert_eq!(after_replacing(sys::GGML_OP_UNARY, silu), silu as i32);
        let gelu = sys::GGML_UNARY_OP_GELU;
        assert_eq!(after_replacing(sys::GGML_OP_ADD, gelu), gelu as i32);
    }

    /// The error function by its series, in 64 bits (Abramowitz and Stegun, 7.1.6).
    fn erf(u: f64) -> f64 {
        let (mut term, mut sum, mut n) = (u, u, 0.0);
        while term.abs() > 1e-18 * sum.abs() {
            n += 1.0;
            term *= 2.0 * u * u / (2.0 * n + 1.0);
            sum += term;
        }
        sum * 2.0 / std::f64::consts::PI.sqrt() * (-u * u).exp()
    }

    #[test]
    fn gelu_is_that_of_its_definition() {
        let all: Vec<f32> = (-2_000_i16..2_000).map(|i| f32::from(i) / 250.0).collect();
        for values in all.chunks(LANES) {
            let mut computed = [0.0; LANES];
            computed[..values.len()].copy_from_slice(values);
            gelu(&mut computed);
            for (&x, &y) in values.iter().zip(&computed) {
                let (x, exact) = (f64::from(x), f64::from(x) / 2.0 * (1.0 + erf(f64::from(x) / 2f64.sqrt())));
                assert!((f64::from(y) - exact).abs() <= 4e-7 * x.abs() + 1e-9, "{x}: {y}, {exact}");
            }
        }
        let mut far = [f32::MAX; LANES];
        (far[0], far[1], far[2]) = (f32::MIN, f32::NAN, -0.0);
        gelu(&mut far);
        assert_eq!((far[3], far[0], far[2]), (f32::MAX, 0.0, 0.0));
        assert!(far[1].is_nan(), "what is not finite is not hidden");
    }

    #[test]
    fn threads_divide_a_node_among_them() {
        let from: Vec<f32> = (0..1000_u16).map(|i| f32::from(i) / 100.0 - 5.0).collect();
        let mut to = vec![f32::NAN; from.len()];
        // SAFETY: as above.
        let (mut a, mut b): (sys::ggml_tensor, sys::ggml_tensor) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        (a.ne, b.ne) = ([100, 10, 1, 1], [100, 10, 1, 1]);
        (a.data, b.data) = (to.as_mut_ptr().cast(), from.as_ptr().cast_mut().cast());
        for thread in 0..3 {
            // SAFETY: both tensors have as many numbers as they say.
            unsafe { gelu_node(&raw mut a, &raw const b, thread, 3, std::ptr::null_mut()) };
        }
        for (&x, &y) in from.iter().zip(&to) {
            let mut lanes = [x; LANES];
            gelu(&mut lanes);
            assert_eq!(lanes[0], y);
        }
    }
}
