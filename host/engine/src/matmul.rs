//! Multiplies matrices of quantized weights with the rows of a batch, where that is faster than llama.cpp's kernels.
//!
//! llama.cpp multiplies a q8_0 block of one weight row with one block of activations at a time, and adds up each product's lanes in
//! the end. Here 16 rows of weights are interleaved first, once for all rows of the batch, so that a register holds as many sums of
//! 16 rows, and a block's scales are applied to 16 sums at once (the layout is that of Goto and van de Geijn, "Anatomy of
//! High-Performance Matrix Multiplication", 2008). Weights stay as they are in the file: what is interleaved fits the first cache
//! (of q8_0 with more than about 2,000 inputs: the second) and lives for one product.
#[cfg(target_arch = "x86_64")]
mod float;
#[cfg(target_arch = "x86_64")]
mod int8;
mod parts;
mod product;
#[cfg(target_arch = "x86_64")]
mod transpose;

use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

use self::product::{Kind, Product};
use crate::custom;

/// What computes products here.
#[derive(Debug, Clone, Copy)]
enum Kernel {
    #[cfg(target_arch = "x86_64")]
    Int8(int8::Kernel),
    #[cfg(target_arch = "x86_64")]
    Float(float::Kernel),
}

impl Kernel {
    /// The fastest one of this processor.
    fn of(kind: Kind) -> Option<Self> {
        #[cfg(target_arch = "x86_64")]
        return match kind {
            Kind::Q8 => int8::Kernel::all().last().copied().map(Kernel::Int8),
            Kind::F16 => float::Kernel::of_this_processor().map(Kernel::Float),
        };
        #[cfg(not(target_arch = "x86_64"))]
        {
            let _ = kind;
            None
        }
    }

    /// With fewer rows in a batch, reading the weights takes most of the time, and interleaving them does not pay.
    fn least_rows(self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Int8(_) => 4,
            #[cfg(target_arch = "x86_64")]
            Kernel::Float(_) => 16,
        }
    }
}

/// The instructions by which products of batches are computed here, such as `q8_0: avx512-vnni, f16: avx512`; others are llama.cpp's.
pub fn products() -> String {
    let named = [("q8_0", Kind::Q8), ("f16", Kind::F16)].map(|(name, kind)| {
        let instructions = match Kernel::of(kind) {
            #[cfg(target_arch = "x86_64")]
            Some(Kernel::Int8(kernel)) => kernel.as_str(),
            #[cfg(target_arch = "x86_64")]
            Some(Kernel::Float(_)) => "avx512",
            None => "llama.cpp",
        };
        format!("{name}: {instructions}")
    });
    named.join(", ")
}

/// Has a product computed here, if it is one of those that can be.
pub(crate) fn replace(node: &mut sys::ggml_tensor) {
    if node.op != sys::GGML_OP_MUL_MAT {
        return;
    }
    let is_ours = |product: Product| Kernel::of(product.kind).is_some_and(|kernel| product.rows >= kernel.least_rows());
    if Product::of(node, node.src[0], node.src[1]).is_some_and(is_ours) {
        custom::map2(node, Some(multiply));
    }
}

/// Computes the part of a product that falls to thread `thread` of `threads`.
unsafe extern "C" fn multiply(
    to: *mut sys::ggml_tensor,
    weights: *const sys::ggml_tensor,
    from: *const sys::ggml_tensor,
    thread: i32,
    threads: i32,
    _data: *mut c_void,
) {
    let Some(product) = Product::of(to, weights, from) else {
        debug_assert!(false, "only products that can be computed here are replaced");
        return;
    };
    let (thread, threads) = (thread.max(0) as usize, threads.max(1) as usize);
    let part = parts::of(product.outputs, product.rows, thread, threads);
    // SAFETY: llama.cpp calls this once for each thread, with tensors that nobody else writes, and the parts of the threads are
    // apart.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        match Kernel::of(product.kind) {
            Some(Kernel::Int8(kernel)) => kernel.multiply(&product, &part),
            Some(Kernel::Float(kernel)) => kernel.multiply(&product, &part),
            None => {}
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = part;
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
