//! Rows side by side, a register holding a number of as many of them as it has lanes.
use camshaft_core::{vectorized, vectors};

use super::block::{Block, mask_of, masked, slope, values};
use super::kernel::{ENTRIES, Kernel, LANES, Lanes, read};
use super::spans::Span;
use super::views::{Attention, Numbers, Shape, View};

/// What a thread computes with; it keeps it for the next node.
#[derive(Default)]
pub(super) struct Scratch {
    /// A block's rows, times the scale: their first numbers, then their second ones.
    q: Vec<Lanes>,
    /// Entries, as numbers of 32 bits.
    k: Vec<f32>,
    v: Vec<f32>,
    /// By entry: scores, and then weights.
    scores: Vec<Lanes>,
    /// Sums of values, by number.
    sums: Vec<Lanes>,
}

/// The largest score of each row so far, and the sum of the weights relative to it.
struct Weights {
    most: Lanes,
    sums: Lanes,
}

impl Scratch {
    /// Computes a block of at most [`LANES`] rows, counted for each head. False, and nothing is written, if a sum is not finite:
    /// an entry that only some rows attend to must not reach the others, and here it would, as zero times infinity.
    ///
    /// # Safety
    /// The kernel is one of this processor's. Numbers are where `attention` says, and nobody else writes the block's.
    pub(super) unsafe fn attend(&mut self, kernel: Kernel, attention: &Attention, block: &Block<'_>) -> bool {
        let Shape { width, value_width, .. } = attention.shape;
        self.q.resize(width, [0.0; LANES]);
        self.sums.clear();
        self.sums.resize(value_width, [0.0; LANES]);
        let mut weights = Weights { most: [f32::NEG_INFINITY; LANES], sums: [0.0; LANES] };
        // SAFETY: by the caller's word.
        unsafe { lay_out(block, attention, &mut self.q) };
        let (mut room, mut chunks) = ([0; ENTRIES], block.chunks());
        while let Some(entries) = chunks.next(&mut room) {
            self.scores.clear();
            self.scores.resize(entries.len(), [0.0; LANES]);
            // SAFETY: by the caller's word. The processor has the instructions.
            unsafe {
                let (k, step) = numbers_of(block, entries, attention.numbers, (&attention.k, width), &mut self.k);
                kernel.add_product(k, (step, 1), &self.q, &mut self.scores);
                mask(block, attention, entries, &mut self.scores);
                let factors = weigh(&mut self.scores, &mut weights);
                if factors != [1.0; LANES] {
                    scale(&mut self.sums, &factors);
                }
                let (v, step) = numbers_of(block, entries, attention.numbers, (&attention.v, value_width), &mut self.v);
                kernel.add_product(v, (1, step), &self.scores, &mut self.sums);
            }
        }
        // A row that attends to nothing is zero.
        let factors = weights.sums.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum });
        scale(&mut self.sums, &factors);
        let lanes = block.lanes(&attention.shape).count();
        let is_finite = self.sums.iter().all(|lanes_of_sum| lanes_of_sum[..lanes].iter().all(|sum| sum.is_finite()));
        if is_finite {
            for (lane, of_lane) in block.lanes(&attention.shape).enumerate() {
                // SAFETY: by the caller's word.
                unsafe { block.put(attention, of_lane, self.sums.iter().map(|lanes| lanes[lane])) };
            }
        }
        is_finite
    }
}

/// # Safety
/// Rows are where `attention` says.
unsafe fn lay_out(block: &Block<'_>, attention: &Attention, q: &mut [Lanes]) {
    let scale = attention.shape.scale;
    q.fill([0.0; LANES]);
    for (lane, of_lane) in block.lanes(&attention.shape).enumerate() {
        // SAFETY: by the caller's word.
        let numbers = unsafe { block.row(attention, of_lane) };
        q.iter_mut().zip(numbers).for_each(|(lanes, number)| lanes[lane] = number * scale);
    }
}

/// The numbers of entries, and how many lie between an entry's first one and the next one's: where they are, if that is in one piece
/// and in 32 bits, or read to `room`.
///
/// # Safety
/// Entries are where the view says. The processor has the instructions.
unsafe fn numbers_of<'a>(
    block: &Block<'_>,
    entries: &[usize],
    numbers: Numbers,
    (view, width): (&View, usize),
    room: &'a mut Vec<f32>,
) -> (&'a [f32], usize) {
    let step = view.steps[0] / size_of::<f32>();
    let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return (&[], width) };
    if numbers == Numbers::F32 && last - first < entries.len() {
        // SAFETY: by the caller's word. Entries are ascending, so there is none in between that is not among them.
        let numbers = unsafe {
            let first = view.at([*first, block.kv_head, block.stream]);
            std::slice::from_raw_parts(first, (entries.len() - 1) * step + width)
        };
        return (numbers, step);
    }
    room.resize(ENTRIES * width, 0.0);
    for (&entry, place) in entries.iter().zip(room.chunks_exact_mut(width)) {
        // SAFETY: by the caller's word.
        unsafe { read(numbers, view.at([entry, block.kv_head, block.stream]), place) };
    }
    (room, width)
}

/// Takes out the scores of entries that rows do not attend to.
///
/// # Safety
/// The mask is where `attention` says.
unsafe fn mask(block: &Block<'_>, attention: &Attention, entries: &[usize], scores: &mut [Lanes]) {
    let (Some(&begin), Some(&last)) = (entries.first(), entries.last()) else { return };
    let is_plain = block.spans.iter().all(|span| span.is_plain);
    let holds = |span: &Span| span.entries.start <= begin && last < span.entries.end;
    if is_plain && block.spans.iter().all(holds) {
        return;
    }
    let (shape, first) = (&attention.shape, block.rows.start);
    if is_plain {
        let (mut from, mut to) = ([0; LANES], [u32::MAX; LANES]);
        for (lane, (row, _)) in block.lanes(shape).enumerate() {
            let span = &block.spans[row - first].entries;
            (from[lane], to[lane]) = (span.start as u32, span.end as u32);
        }
        // They have no holes, so neither have their entries.
        bound(scores, begin as u32, (&from, &to));
        return;
    }
    let group = shape.heads / shape.kv_heads;
    let slopes: Vec<f32> = (0..group).map(|head| slope(shape, block.kv_head * group + head)).collect();
    for (row, lane) in block.rows.clone().zip((0..).step_by(group)) {
        // SAFETY: by the caller's word.
        let of_entries = values(unsafe { mask_of(attention, row, block.stream) }, entries);
        for (scores, value) in scores.iter_mut().zip(of_entries) {
            for (score, slope) in scores[lane..lane + group].iter_mut().zip(&slopes) {
                *score = masked(*score, slope * value);
            }
        }
    }
}

vectorized! {
    /// Takes out the scores of entries outside each row's bounds. The first of them has this number.
    fn bound(scores: &mut [Lanes], first: u32, (begin, end): (&[u32; LANES], &[u32; LANES])) {
        for (entry, scores) in (first..).zip(scores) {
            for ((score, begin), end) in scores.iter_mut().zip(begin).zip(end) {
                *score = if (entry >= *begin) & (entry < *end) { *score } else { f32::NEG_INFINITY };
            }
        }
    }
}

vectorized! {
    /// Makes weights of scores, relative to the largest one of each row, and returns what weights before are to be multiplied with.
    fn weigh(scores: &mut [Lanes], weights: &mut Weights) -> Lanes {
        let mut most = weights.most;
        for scores in scores.iter() {
            for (most, score) in most.iter_mut().zip(scores) {
                *most = if *score > *most { *score } else { *most };
            }
        }
        // A row that has attended to nothing yet.
        let base = most.map(|most| if most == f32::NEG_INFINITY { 0.0 } else { most });
        let (mut sums, mut factors) = ([0.0; LANES], [0.0; LANES]);
        for ((factor, before), base) in factors.iter_mut().zip(&weights.most).zip(&base) {
            *factor = vectors::exp(before - base);
        }
        for scores in scores.iter_mut() {
            for ((score, base), sum) in scores.iter_mut().zip(&base).zip(&mut sums) {
                let below = *score - base;
                // What is not a number stays so.
                let weight = if below.is_nan() { below } else { vectors::exp(below) };
                *sum += weight;
                *score = weight;
            }
        }
        for ((sum, new), factor) in weights.sums.iter_mut().zip(&sums).zip(&factors) {
            *sum = *sum * factor + new;
        }
        weights.most = most;
        factors
    }
}

vectorized! {
    fn scale(rows: &mut [Lanes], factors: &Lanes) {
        for lanes in rows {
            lanes.iter_mut().zip(factors).for_each(|(number, factor)| *number *= factor);
        }
    }
}
