//! Computes a thread's part of attention, block by block.
use std::cell::RefCell;

use super::kernel::Kernel;
use super::plan::{NARROW, Plans};
use super::views::Attention;
use super::{narrow, wide};

/// What a thread computes with; it keeps it for the next node.
#[derive(Default)]
struct Scratch {
    plans: Plans,
    wide: wide::Scratch,
    narrow: narrow::Scratch,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Computes the part of `thread` of `threads`. `graph`: see [`Plans::of`].
///
/// # Safety
/// The kernel is one of this processor's. Numbers are where `attention` says, and nobody else writes the thread's part.
pub(super) unsafe fn attend(kernel: Kernel, attention: &Attention, graph: Option<u64>, of: (usize, usize)) {
    SCRATCH.with_borrow_mut(|Scratch { plans, wide, narrow }| {
        // SAFETY: by the caller's word.
        let plan = unsafe { plans.of(attention, graph, of) };
        for block in plan.blocks() {
            let lanes = block.lanes(&attention.shape).count();
            // SAFETY: by the caller's word; the block is of this thread alone.
            unsafe {
                if lanes < NARROW || !wide.attend(kernel, attention, &block) {
                    narrow.attend(kernel, attention, &block);
                }
            }
        }
    });
}
