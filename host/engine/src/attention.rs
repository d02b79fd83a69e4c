//! Attention of batches, where that is faster than llama.cpp's operation with flash attention.
//!
//! llama.cpp's operation walks tiles of 64 rows and 64 entries, also where an input has fewer, and lays out the entries of each tile
//! anew for each 64 rows of one head. Here rows that attend to the same entries are computed side by side, with all heads that
//! share these, a register holding as many of them as it has lanes: so nothing is laid out for each tile, a row's largest score
//! and sum need no sum over lanes, and rows begin where their own input begins. As there, scores are never all in memory (Dao et
//! al., "FlashAttention", 2022), and sums are of 32 bits.
#[cfg(target_arch = "x86_64")]
mod block;
#[cfg(target_arch = "x86_64")]
mod divide;
#[cfg(target_arch = "x86_64")]
mod entries;
#[cfg(target_arch = "x86_64")]
mod kernel;
#[cfg(target_arch = "x86_64")]
mod narrow;
#[cfg(target_arch = "x86_64")]
mod plan;
#[cfg(target_arch = "x86_64")]
mod shared;
#[cfg(target_arch = "x86_64")]
mod spans;
#[cfg(target_arch = "x86_64")]
mod tensors;
#[cfg(target_arch = "x86_64")]
mod views;
#[cfg(target_arch = "x86_64")]
mod wide;

use llama_cpp_sys_2 as sys;

#[cfg(target_arch = "x86_64")]
pub(crate) use self::shared::Shared;

/// What attention of other processors has in common: nothing.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Default)]
pub(crate) struct Shared;

#[cfg(not(target_arch = "x86_64"))]
impl Shared {
    pub(crate) fn is_exact(&self) -> bool {
        false
    }
}

/// Has attention computed here by `threads` threads, if it can be. To be called for each node, in the order in which they are
/// computed.
///
/// # Safety
/// `shared` is the context's, nobody uses it during the call or changes it until the node was computed, and it stays where it is.
pub(crate) unsafe fn replace(node: &mut sys::ggml_tensor, threads: usize, shared: *mut Shared) {
    // SAFETY: by the caller's word.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        tensors::replace(node, threads, shared);
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (node, threads, shared);
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
