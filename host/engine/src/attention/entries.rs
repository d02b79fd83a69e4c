//! Keys and values that no cache holds, in 32 bits: those of encoders, which llama.cpp rounds to 16 for flash attention.
use std::cell::UnsafeCell;
use std::ffi::c_void;

use llama_cpp_sys_2 as sys;

use super::views::View;
use crate::custom;

/// What a context's attention reads instead of rounded keys and values. Those of a node replace those of the node before.
pub(crate) struct Entries {
    /// Threads write different numbers.
    keys: Vec<UnsafeCell<f32>>,
    values: Vec<UnsafeCell<f32>>,
    /// The last two nodes that round something to 16 bits.
    rounding: [*const sys::ggml_tensor; 2],
    was_needed: bool,
}

impl Default for Entries {
    fn default() -> Self {
        Self { keys: Vec::new(), values: Vec::new(), rounding: [std::ptr::null(); 2], was_needed: false }
    }
}

impl Entries {
    /// Whether any node was computed from them.
    pub(crate) fn was_needed(&self) -> bool {
        self.was_needed
    }

    /// To be told of each node, in the order in which they are computed.
    pub(super) fn see(&mut self, node: &sys::ggml_tensor) {
        if node.op == sys::GGML_OP_CPY && node.type_ == sys::GGML_TYPE_F16 {
            self.rounding = [self.rounding[1], node];
        }
    }

    /// Has the keys and values that these nodes would round copied here instead. False if they do something else, or if others
    /// are rounded between them and their attention, which would take their place.
    ///
    /// `place` points to this object, for as long as the nodes live.
    pub(super) fn take(&mut self, [k, v]: [*mut sys::ggml_tensor; 2], place: *mut Self) -> bool {
        let is_last = self.rounding == [k.cast_const(), v.cast_const()] && k != v;
        if !is_last {
            return false;
        }
        // SAFETY: nodes of a graph are whole. Nothing computes yet, so nobody else uses them.
        let (k, v) = unsafe { (&mut *k, &mut *v) };
        if !rounds(k) || !rounds(v) {
            return false;
        }
        let make_room = |numbers: &mut Vec<UnsafeCell<f32>>, node: &sys::ggml_tensor| {
            // SAFETY: the node is whole.
            let count = unsafe { sys::ggml_nelements(node) } as usize;
            numbers.resize_with(count.max(numbers.len()), UnsafeCell::default);
        };
        make_room(&mut self.keys, k);
        make_room(&mut self.values, v);
        self.was_needed = true;
        custom::map1(k, Some(copy_part::<true>), place.cast());
        custom::map1(v, Some(copy_part::<false>), place.cast());
        true
    }

    /// Where they are, if those that these nodes would round were copied here.
    pub(super) fn of(&self, k: &sys::ggml_tensor, v: &sys::ggml_tensor) -> Option<[View; 2]> {
        let is_copied = |node: &sys::ggml_tensor| node.op == sys::GGML_OP_MAP_CUSTOM1;
        let view = |node: &sys::ggml_tensor, numbers: &[UnsafeCell<f32>]| {
            let [width, rows, heads, _] = node.ne.map(|count| count as usize);
            View {
                data: numbers.as_ptr().cast(),
                steps: [heads * width, width, rows * heads * width].map(|step| 4 * step),
            }
        };
        (is_copied(k) && is_copied(v)).then(|| [view(k, &self.keys), view(v, &self.values)])
    }
}

/// Whether all that a node does is to round numbers of 32 bits, whose rows are in one piece.
fn rounds(node: &sys::ggml_tensor) -> bool {
    let from = node.src[0];
    node.op == sys::GGML_OP_CPY
        && node.type_ == sys::GGML_TYPE_F16
        && custom::is_here(from)
        // SAFETY: the source of a node is whole.
        && unsafe { (*from).type_ == sys::GGML_TYPE_F32 && (*from).nb[0] == size_of::<f32>() && (*from).ne == node.ne }
}

/// Copies keys or values.
unsafe extern "C" fn copy_part<const KEYS: bool>(
    _to: *mut sys::ggml_tensor,
    from: *const sys::ggml_tensor,
    thread: i32,
    threads: i32,
    data: *mut c_void,
) {
    // SAFETY: `data` is what `take` was called on, which does not move and which nobody changes while a graph is computed. `take`
    // has seen the source, and made room.
    unsafe {
        let Entries { keys, values, .. } = &*data.cast::<Entries>();
        copy(from, (thread, threads), if KEYS { keys } else { values });
    }
}

/// Copies what falls to thread `thread` of `threads`: of each stream all rows, of each row all heads.
///
/// # Safety
/// [`rounds`] took the source, and there is room for its numbers.
unsafe fn copy(from: *const sys::ggml_tensor, (thread, threads): (i32, i32), to: &[UnsafeCell<f32>]) {
    let (thread, threads) = (thread.max(0) as usize, threads.max(1) as usize);
    // SAFETY: by the caller's word; threads copy different rows.
    unsafe {
        let from = &*from;
        let [width, rows, heads, streams] = from.ne.map(|count| count.max(0) as usize);
        let each = (rows * streams).div_ceil(threads);
        for row in (thread * each..rows * streams).take(each) {
            let first = from.data.cast::<u8>().add(row % rows * from.nb[1] + row / rows * from.nb[3]);
            let to = UnsafeCell::raw_get(to.as_ptr().add(row * heads * width));
            for head in 0..heads {
                to.add(head * width).copy_from_nonoverlapping(first.add(head * from.nb[2]).cast(), width);
            }
        }
    }
}
