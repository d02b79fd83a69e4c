//! Rows one by one, where there are too few to fill a register's lanes.
use camshaft_core::{vectorized, vectors};

use super::block::{Block, mask_of, masked, slope, values};
use super::kernel::{ENTRIES, Kernel, LANES, read};
use super::views::{Attention, Shape};

/// What a thread computes with; it keeps it for the next node.
#[derive(Default)]
pub(super) struct Scratch {
    rows: Vec<Row>,
    /// Entries, as numbers of 32 bits.
    k: Vec<f32>,
    v: Vec<f32>,
}

/// A row of one head.
#[derive(Default)]
struct Row {
    /// Its numbers, times the scale.
    q: Vec<f32>,
    /// Of values.
    sums: Vec<f32>,
    /// Its largest score so far.
    most: f32,
    /// The sum of the weights relative to it.
    weight: f32,
}

impl Scratch {
    /// Computes a block of at most [`LANES`] rows, counted for each head.
    ///
    /// # Safety
    /// The kernel is one of this processor's. Numbers are where `attention` says, and nobody else writes the block's.
    pub(super) unsafe fn attend(&mut self, kernel: Kernel, attention: &Attention, block: &Block<'_>) {
        let shape = &attention.shape;
        let Shape { width, value_width, .. } = *shape;
        self.k.resize(ENTRIES * width, 0.0);
        self.v.resize(ENTRIES * value_width, 0.0);
        self.rows.resize_with(LANES, Row::default);
        for (of_row, row) in block.lanes(shape).zip(&mut self.rows) {
            // SAFETY: by the caller's word.
            let numbers = unsafe { block.row(attention, of_row) };
            row.q.clear();
            row.q.extend(numbers.iter().map(|number| number * shape.scale));
            row.sums.clear();
            row.sums.resize(value_width, 0.0);
            (row.most, row.weight) = (f32::NEG_INFINITY, 0.0);
        }
        let (mut room, mut chunks) = ([0; ENTRIES], block.chunks());
        while let Some(entries) = chunks.next(&mut room) {
            // SAFETY: by the caller's word. The processor has the instructions.
            unsafe {
                for (&entry, (k, v)) in
                    entries.iter().zip(self.k.chunks_exact_mut(width).zip(self.v.chunks_exact_mut(value_width)))
                {
                    read(attention.numbers, attention.k.at([entry, block.kv_head, block.stream]), k);
                    read(attention.numbers, attention.v.at([entry, block.kv_head, block.stream]), v);
                }
                for (of_row, row) in block.lanes(shape).zip(&mut self.rows) {
                    let mut scores = [f32::NEG_INFINITY; ENTRIES];
                    let present = &mut scores[..entries.len()];
                    kernel.products(&row.q, &self.k, present);
                    mask(block, attention, of_row, entries, present);
                    let factor = weigh(&mut scores, &mut row.most, &mut row.weight);
                    if factor != 1.0 {
                        row.sums.iter_mut().for_each(|sum| *sum *= factor);
                    }
                    kernel.add_weighted(&scores[..entries.len()], &self.v, &mut row.sums);
                }
            }
        }
        for (of_row, row) in block.lanes(shape).zip(&self.rows) {
            // A row that attends to nothing is zero.
            let factor = if row.weight == 0.0 { 0.0 } else { 1.0 / row.weight };
            // SAFETY: by the caller's word.
            unsafe { block.put(attention, of_row, row.sums.iter().map(|sum| sum * factor)) };
        }
    }
}

/// Takes out the scores of entries that the row does not attend to.
///
/// # Safety
/// The mask is where `attention` says.
unsafe fn mask(
    block: &Block<'_>,
    attention: &Attention,
    (row, head): (usize, usize),
    entries: &[usize],
    scores: &mut [f32],
) {
    let span = &block.spans[row - block.rows.start];
    if span.is_plain {
        for (entry, score) in entries.iter().zip(scores) {
            if !span.entries.contains(entry) {
                *score = f32::NEG_INFINITY;
            }
        }
        return;
    }
    let slope = slope(&attention.shape, head);
    // SAFETY: by the caller's word.
    let of_entries = values(unsafe { mask_of(attention, row, block.stream) }, entries);
    scores.iter_mut().zip(of_entries).for_each(|(score, value)| *score = masked(*score, slope * value));
}

vectorized! {
    /// Makes weights of a row's scores, minus infinity behind the last one, relative to the largest one, and returns what weights
    /// before are to be multiplied with.
    fn weigh(scores: &mut [f32; ENTRIES], most: &mut f32, weight: &mut f32) -> f32 {
        const WIDE: usize = 16;
        let before = *most;
        let mut largest = [before; WIDE];
        for scores in scores.as_chunks::<WIDE>().0 {
            for (largest, score) in largest.iter_mut().zip(scores) {
                *largest = if *score > *largest { *score } else { *largest };
            }
        }
        *most = largest.into_iter().fold(before, |most, score| if score > most { score } else { most });
        let base = if *most == f32::NEG_INFINITY { 0.0 } else { *most };
        let mut sums = [0.0; WIDE];
        for scores in scores.as_chunks_mut::<WIDE>().0 {
            for (score, sum) in scores.iter_mut().zip(&mut sums) {
                let below = *score - base;
                *score = if below.is_nan() { below } else { vectors::exp(below) };
                *sum += *score;
            }
        }
        let factor = vectors::exp(before - base);
        *weight = *weight * factor + sums.iter().sum::<f32>();
        factor
    }
}
