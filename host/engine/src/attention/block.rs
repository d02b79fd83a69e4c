//! Rows that are computed together, and what their masks say of the entries that they attend to.
use std::ops::Range;

use super::kernel::{ENTRIES, widen};
use super::spans::{MASKED, Span};
use super::views::{Attention, Shape};

/// Rows of a stream with the heads that share entries: the first row's heads, then the next row's.
pub(super) struct Block<'a> {
    pub(super) stream: usize,
    pub(super) kv_head: usize,
    pub(super) rows: Range<usize>,
    pub(super) spans: &'a [Span],
    /// What any of them attends to.
    pub(super) runs: &'a [Range<u32>],
}

/// Entries of a block, some at a time.
pub(super) struct Chunks<'a> {
    runs: &'a [Range<u32>],
    /// Entries of the first run that were taken.
    taken: u32,
}

impl Chunks<'_> {
    /// The next ones, at most [`ENTRIES`].
    pub(super) fn next<'r>(&mut self, room: &'r mut [usize; ENTRIES]) -> Option<&'r [usize]> {
        let mut count = 0;
        while let [run, rest @ ..] = self.runs {
            let left = run.start + self.taken..run.end;
            let new = left.len().min(ENTRIES - count);
            room[count..].iter_mut().zip(left.clone()).for_each(|(place, entry)| *place = entry as usize);
            count += new;
            if new < left.len() {
                self.taken += new as u32;
                break;
            }
            (self.runs, self.taken) = (rest, 0);
        }
        (count > 0).then(|| &room[..count])
    }
}

impl Block<'_> {
    pub(super) fn chunks(&self) -> Chunks<'_> {
        Chunks { runs: self.runs, taken: 0 }
    }

    /// The rows and heads, in their order.
    pub(super) fn lanes(&self, shape: &Shape) -> impl Iterator<Item = (usize, usize)> {
        let group = shape.heads / shape.kv_heads;
        let heads = self.kv_head * group..(self.kv_head + 1) * group;
        self.rows.clone().flat_map(move |row| heads.clone().map(move |head| (row, head)))
    }

    /// The numbers of a row's head.
    ///
    /// # Safety
    /// They are where `attention` says.
    pub(super) unsafe fn row<'a>(&self, attention: &Attention, (row, head): (usize, usize)) -> &'a [f32] {
        // SAFETY: by the caller's word.
        unsafe { std::slice::from_raw_parts(attention.q.at([row, head, self.stream]), attention.shape.width) }
    }

    /// Writes a row's head.
    ///
    /// # Safety
    /// There is room where `attention` says, and nobody else writes there.
    pub(super) unsafe fn put(
        &self,
        attention: &Attention,
        (row, head): (usize, usize),
        numbers: impl Iterator<Item = f32>,
    ) {
        // SAFETY: by the caller's word.
        unsafe {
            let to = attention.to.at::<f32>([head, row, self.stream]).cast_mut();
            numbers.take(attention.shape.value_width).enumerate().for_each(|(at, number)| to.add(at).write(number));
        }
    }
}

/// The mask of a row; empty if there is none.
///
/// # Safety
/// The mask is where `attention` says.
pub(super) unsafe fn mask_of<'a>(attention: &Attention, row: usize, stream: usize) -> &'a [u16] {
    let Shape { entries, masks, .. } = attention.shape;
    attention.mask.as_ref().map_or(&[][..], |mask| {
        // SAFETY: by the caller's word.
        unsafe { std::slice::from_raw_parts(mask.at([row, 0, stream % masks]), entries) }
    })
}

/// What a head's mask is multiplied with, as llama.cpp's operation does it.
pub(super) fn slope(shape: &Shape, head: usize) -> f32 {
    if shape.max_bias <= 0.0 {
        return 1.0;
    }
    let even = 1_usize << shape.heads.ilog2();
    let power = |bias: f32, times: usize| 2f32.powf(-bias / even as f32).powi(times as i32);
    match head < even {
        true => power(shape.max_bias, head + 1),
        false => power(shape.max_bias / 2.0, 2 * (head - even) + 1),
    }
}

/// The values of a mask for some entries, as numbers of 32 bits.
pub(super) fn values(mask: &[u16], entries: &[usize]) -> [f32; ENTRIES] {
    let (mut halves, mut values) = ([MASKED; ENTRIES], [0.0; ENTRIES]);
    halves.iter_mut().zip(entries).for_each(|(value, &entry)| *value = mask[entry]);
    // SAFETY: there are as many. Whoever computes here has the instructions.
    unsafe { widen(halves.as_ptr(), &mut values) };
    values
}

/// A score with its mask. What a row does not attend to may be infinite.
pub(super) fn masked(score: f32, mask: f32) -> f32 {
    if mask == f32::NEG_INFINITY { mask } else { score + mask }
}
