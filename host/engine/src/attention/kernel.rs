//! Computes attention: blocks of rows with the entries that they attend to, some entries at a time.
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::LazyLock;

use camshaft_core::{vectorized, vectors};

use super::spans::{self, MASKED, Span};
use super::views::{Attention, Shape};

/// Rows that are computed side by side, counted for each head of those that share entries.
pub(super) const LANES: usize = 32;
/// Fewer rows than this, counted as above, are computed one by one: most lanes would idle.
const NARROW: usize = 12;
/// Entries whose scores are kept at once: they stay in the first cache with the numbers that they are made of.
const ENTRIES: usize = 64;

/// A number for each row of a block.
type Lanes = [f32; LANES];

/// The instructions of this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Avx2,
    Avx512,
}

impl Kernel {
    /// All that this processor has, the fastest last.
    pub(super) fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
            let mut all = Vec::new();
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                all.push(Kernel::Avx2);
                if is_x86_feature_detected!("avx512f") {
                    all.push(Kernel::Avx512);
                }
            }
            all
        });
        &ALL
    }

    pub(super) fn of_this_processor() -> Option<Self> {
        Self::all().last().copied()
    }

    /// Adds a product to `to`: row `i` of it is the sum of rows `k` of `by`, each times number `i * steps.0 + k * steps.1` of
    /// `numbers`.
    ///
    /// # Safety
    /// It is one of `all`, and there are as many numbers.
    unsafe fn add_product(self, numbers: &[f32], steps: (usize, usize), by: &[Lanes], to: &mut [Lanes]) {
        // SAFETY: by the caller's word.
        unsafe {
            match self {
                Kernel::Avx2 => avx2::add_product(numbers, steps, by, to),
                Kernel::Avx512 => avx512::add_product(numbers, steps, by, to),
            }
        }
    }

    /// The products of one row with each of as many entries as there are scores.
    ///
    /// # Safety
    /// It is one of `all`, and there are as many entries, of as many numbers as the row.
    unsafe fn products(self, row: &[f32], entries: &[f32], scores: &mut [f32]) {
        // SAFETY: by the caller's word.
        unsafe {
            match self {
                Kernel::Avx2 => avx2::products(row, entries, scores),
                Kernel::Avx512 => avx512::products(row, entries, scores),
            }
        }
    }

    /// Adds the entries, each times its weight.
    ///
    /// # Safety
    /// It is one of `all`, and there are as many entries as weights, of as many numbers as `to`.
    unsafe fn add_weighted(self, weights: &[f32], entries: &[f32], to: &mut [f32]) {
        // SAFETY: by the caller's word.
        unsafe {
            match self {
                Kernel::Avx2 => avx2::add_weighted(weights, entries, to),
                Kernel::Avx512 => avx512::add_weighted(weights, entries, to),
            }
        }
    }
}

/// What a thread computes with; it keeps it for the next node.
#[derive(Default)]
struct Scratch {
    spans: Vec<Span>,
    /// What any row of a block attends to.
    entries: Vec<usize>,
    /// A block's rows, times the scale: their first numbers, then their second ones.
    q: Vec<Lanes>,
    /// Entries, as numbers of 32 bits.
    k: Vec<f32>,
    v: Vec<f32>,
    /// By entry: scores, and then weights.
    scores: Vec<Lanes>,
    /// Sums of values, by number.
    sums: Vec<Lanes>,
    /// Of rows that are computed one by one: their numbers, times the scale, and sums of values.
    narrow: Vec<Narrow>,
}

/// A row that is computed by itself.
#[derive(Default)]
struct Narrow {
    q: Vec<f32>,
    sums: Vec<f32>,
    most: f32,
    weight: f32,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Rows that are computed side by side with the heads that share entries: lane `row * group + head`.
struct Block<'a> {
    stream: usize,
    kv_head: usize,
    rows: Range<usize>,
    spans: &'a [Span],
    /// What any of them attends to.
    entries: &'a [usize],
}

/// The largest score of each row so far, and the sum of the weights relative to it.
struct Weights {
    most: Lanes,
    sums: Lanes,
}

/// Computes the part of `thread`.
///
/// # Safety
/// The kernel is one of this processor's. Numbers are where `attention` says, and nobody else writes the thread's part.
pub(super) unsafe fn attend(kernel: Kernel, attention: &Attention, thread: usize, threads: usize) {
    let shape = attention.shape;
    // No more rows together than leave something for each thread.
    let each = (shape.rows * shape.kv_heads * shape.streams).div_ceil(threads);
    let most = (LANES / (shape.heads / shape.kv_heads)).min(each);
    SCRATCH.with_borrow_mut(|scratch| {
        let mut number = 0;
        for stream in 0..shape.streams {
            if stream < shape.masks {
                // SAFETY: by the caller's word.
                unsafe { read_spans(attention, stream, &mut scratch.spans) };
            }
            let (spans, mut entries) = (std::mem::take(&mut scratch.spans), std::mem::take(&mut scratch.entries));
            // SAFETY: by the caller's word.
            let of = |row: usize| unsafe { (&spans[row], mask_of(attention, row, stream)) };
            let mut row = 0;
            while row < shape.rows {
                let rows = row..row + spans::block(&spans[row..], most, |a, b| spans::shared(of(row + a), of(row + b)));
                // Of this thread's blocks: the next ones of as many heads.
                if (number..number + shape.kv_heads).any(|number| number % threads == thread) {
                    spans::attended(&rows.clone().map(of), &mut entries);
                }
                for kv_head in 0..shape.kv_heads {
                    if number % threads == thread {
                        let (rows, spans) = (rows.clone(), &spans[rows.clone()]);
                        let lanes = rows.len() * shape.heads / shape.kv_heads;
                        let block = Block { stream, kv_head, rows, spans, entries: &entries };
                        // SAFETY: by the caller's word; the block is of this thread alone.
                        unsafe {
                            match lanes < NARROW {
                                true => scratch.attend_narrow(kernel, attention, &block),
                                false => scratch.attend(kernel, attention, &block),
                            }
                        }
                    }
                    number += 1;
                }
                row = rows.end;
            }
            (scratch.spans, scratch.entries) = (spans, entries);
        }
    });
}

/// # Safety
/// The mask is where `attention` says.
unsafe fn read_spans(attention: &Attention, stream: usize, spans: &mut Vec<Span>) {
    let Shape { rows, entries, .. } = attention.shape;
    spans.clear();
    spans.extend((0..rows).map(|row| match &attention.mask {
        None => Span::all(entries),
        // SAFETY: by the caller's word.
        Some(_) => Span::of(unsafe { mask_of(attention, row, stream) }),
    }));
}

/// The mask of a row; empty if there is none.
///
/// # Safety
/// The mask is where `attention` says.
unsafe fn mask_of<'a>(attention: &Attention, row: usize, stream: usize) -> &'a [u16] {
    let Shape { entries, masks, .. } = attention.shape;
    attention.mask.as_ref().map_or(&[][..], |mask| {
        // SAFETY: by the caller's word.
        unsafe { std::slice::from_raw_parts(mask.at([row, 0, stream % masks]), entries) }
    })
}

impl Scratch {
    /// # Safety
    /// As [`attend`].
    unsafe fn attend(&mut self, kernel: Kernel, attention: &Attention, block: &Block<'_>) {
        let Shape { width, value_width, .. } = attention.shape;
        self.q.resize(width, [0.0; LANES]);
        self.k.resize(ENTRIES * width, 0.0);
        self.v.resize(ENTRIES * value_width, 0.0);
        self.sums.clear();
        self.sums.resize(value_width, [0.0; LANES]);
        let mut weights = Weights { most: [f32::NEG_INFINITY; LANES], sums: [0.0; LANES] };
        // SAFETY: by the caller's word.
        unsafe { block.lay_out(attention, &mut self.q) };
        for entries in block.entries.chunks(ENTRIES) {
            self.scores.clear();
            self.scores.resize(entries.len(), [0.0; LANES]);
            // SAFETY: by the caller's word. The processor has the instructions.
            unsafe {
                for (&entry, numbers) in entries.iter().zip(self.k.chunks_exact_mut(width)) {
                    widen(attention.k.at([entry, block.kv_head, block.stream]), numbers);
                }
                kernel.add_product(&self.k, (width, 1), &self.q, &mut self.scores);
                block.mask(attention, entries, &mut self.scores);
                let factors = weigh(&mut self.scores, &mut weights);
                if factors != [1.0; LANES] {
                    scale(&mut self.sums, &factors);
                }
                for (&entry, numbers) in entries.iter().zip(self.v.chunks_exact_mut(value_width)) {
                    widen(attention.v.at([entry, block.kv_head, block.stream]), numbers);
                }
                kernel.add_product(&self.v, (1, value_width), &self.scores, &mut self.sums);
            }
        }
        // A row that attends to nothing is zero.
        let factors = weights.sums.map(|sum| if sum == 0.0 { 0.0 } else { 1.0 / sum });
        scale(&mut self.sums, &factors);
        let lanes = block.lanes(&attention.shape).count();
        let is_finite = self.sums.iter().all(|lanes_of_sum| lanes_of_sum[..lanes].iter().all(|sum| sum.is_finite()));
        // SAFETY: by the caller's word.
        unsafe {
            match is_finite {
                true => block.put(attention, &self.sums),
                // An entry that only some rows attend to must not reach the others, and zero times infinity would.
                false => self.attend_narrow(kernel, attention, block),
            }
        }
    }

    /// The same, row by row.
    ///
    /// # Safety
    /// As [`attend`].
    unsafe fn attend_narrow(&mut self, kernel: Kernel, attention: &Attention, block: &Block<'_>) {
        let shape = &attention.shape;
        let Shape { width, value_width, .. } = *shape;
        self.k.resize(ENTRIES * width, 0.0);
        self.v.resize(ENTRIES * value_width, 0.0);
        let lanes = || block.lanes(shape);
        self.narrow.resize_with(LANES, Narrow::default);
        for ((row, head), narrow) in lanes().zip(&mut self.narrow) {
            // SAFETY: by the caller's word.
            let numbers =
                unsafe { std::slice::from_raw_parts(attention.q.at::<f32>([row, head, block.stream]), width) };
            narrow.q.clear();
            narrow.q.extend(numbers.iter().map(|number| number * shape.scale));
            narrow.sums.clear();
            narrow.sums.resize(value_width, 0.0);
            (narrow.most, narrow.weight) = (f32::NEG_INFINITY, 0.0);
        }
        for entries in block.entries.chunks(ENTRIES) {
            // SAFETY: by the caller's word. The processor has the instructions.
            unsafe {
                for (&entry, (k, v)) in
                    entries.iter().zip(self.k.chunks_exact_mut(width).zip(self.v.chunks_exact_mut(value_width)))
                {
                    widen(attention.k.at([entry, block.kv_head, block.stream]), k);
                    widen(attention.v.at([entry, block.kv_head, block.stream]), v);
                }
                for ((row, head), narrow) in lanes().zip(&mut self.narrow) {
                    let mut scores = [f32::NEG_INFINITY; ENTRIES];
                    let present = &mut scores[..entries.len()];
                    kernel.products(&narrow.q, &self.k, present);
                    block.mask_row(attention, (row, head), entries, present);
                    let factor = weigh_row(&mut scores, &mut narrow.most, &mut narrow.weight);
                    if factor != 1.0 {
                        narrow.sums.iter_mut().for_each(|sum| *sum *= factor);
                    }
                    kernel.add_weighted(&scores[..entries.len()], &self.v, &mut narrow.sums);
                }
            }
        }
        for ((row, head), narrow) in lanes().zip(&self.narrow) {
            let factor = if narrow.weight == 0.0 { 0.0 } else { 1.0 / narrow.weight };
            // SAFETY: by the caller's word.
            unsafe {
                let to = attention.to.at::<f32>([head, row, block.stream]).cast_mut();
                narrow.sums.iter().enumerate().for_each(|(number, sum)| to.add(number).write(sum * factor));
            }
        }
    }
}

impl Block<'_> {
    /// The rows and heads, in the order of lanes.
    fn lanes(&self, shape: &Shape) -> impl Iterator<Item = (usize, usize)> {
        let group = shape.heads / shape.kv_heads;
        let heads = self.kv_head * group..(self.kv_head + 1) * group;
        self.rows.clone().flat_map(move |row| heads.clone().map(move |head| (row, head)))
    }

    /// # Safety
    /// Rows are where `attention` says.
    unsafe fn lay_out(&self, attention: &Attention, q: &mut [Lanes]) {
        let shape = &attention.shape;
        q.fill([0.0; LANES]);
        for (lane, (row, head)) in self.lanes(shape).enumerate() {
            // SAFETY: by the caller's word.
            let numbers =
                unsafe { std::slice::from_raw_parts(attention.q.at::<f32>([row, head, self.stream]), shape.width) };
            q.iter_mut().zip(numbers).for_each(|(lanes, number)| lanes[lane] = number * shape.scale);
        }
    }

    /// Takes out the scores of entries that rows do not attend to.
    ///
    /// # Safety
    /// The mask is where `attention` says.
    unsafe fn mask(&self, attention: &Attention, entries: &[usize], scores: &mut [Lanes]) {
        let (Some(&begin), Some(&last)) = (entries.first(), entries.last()) else { return };
        let is_plain = self.spans.iter().all(|span| span.is_plain);
        let holds = |span: &Span| span.entries.start <= begin && last < span.entries.end;
        if is_plain && self.spans.iter().all(holds) {
            return;
        }
        let (shape, first) = (&attention.shape, self.rows.start);
        if is_plain {
            let (mut from, mut to) = ([0; LANES], [u32::MAX; LANES]);
            for (lane, (row, _)) in self.lanes(shape).enumerate() {
                let span = &self.spans[row - first].entries;
                (from[lane], to[lane]) = (span.start as u32, span.end as u32);
            }
            // They have no holes, so neither have their entries.
            bound(scores, begin as u32, (&from, &to));
            return;
        }
        let group = shape.heads / shape.kv_heads;
        let slopes: Vec<f32> = (0..group).map(|head| slope(shape, self.kv_head * group + head)).collect();
        for (row, lane) in self.rows.clone().zip((0..).step_by(group)) {
            // SAFETY: by the caller's word.
            let values = wide(unsafe { mask_of(attention, row, self.stream) }, entries);
            for (scores, value) in scores.iter_mut().zip(values) {
                for (score, slope) in scores[lane..lane + group].iter_mut().zip(&slopes) {
                    *score = masked(*score, slope * value);
                }
            }
        }
    }

    /// The same for the scores of one row.
    ///
    /// # Safety
    /// The mask is where `attention` says.
    unsafe fn mask_row(
        &self,
        attention: &Attention,
        (row, head): (usize, usize),
        entries: &[usize],
        scores: &mut [f32],
    ) {
        let span = &self.spans[row - self.rows.start];
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
        let values = wide(unsafe { mask_of(attention, row, self.stream) }, entries);
        scores.iter_mut().zip(values).for_each(|(score, value)| *score = masked(*score, slope * value));
    }

    /// # Safety
    /// There is room where `attention` says, and nobody else writes there.
    unsafe fn put(&self, attention: &Attention, sums: &[Lanes]) {
        for (lane, (row, head)) in self.lanes(&attention.shape).enumerate() {
            // SAFETY: by the caller's word.
            unsafe {
                let to = attention.to.at::<f32>([head, row, self.stream]).cast_mut();
                sums.iter().enumerate().for_each(|(number, lanes)| to.add(number).write(lanes[lane]));
            }
        }
    }
}

/// What a head's mask is multiplied with, as llama.cpp's operation does it.
fn slope(shape: &Shape, head: usize) -> f32 {
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
fn wide(mask: &[u16], entries: &[usize]) -> [f32; ENTRIES] {
    let (mut values, mut wide) = ([MASKED; ENTRIES], [0.0; ENTRIES]);
    values.iter_mut().zip(entries).for_each(|(value, &entry)| *value = mask[entry]);
    // SAFETY: there are as many. Whoever computes here has the instructions.
    unsafe { widen(values.as_ptr(), &mut wide) };
    wide
}

/// A score with its mask. What a row does not attend to may be infinite.
fn masked(score: f32, mask: f32) -> f32 {
    if mask == f32::NEG_INFINITY { mask } else { score + mask }
}

/// Makes numbers of 16 bits such of 32.
///
/// # Safety
/// There are as many, a multiple of eight.
#[target_feature(enable = "avx,f16c")]
unsafe fn widen(from: *const u16, to: &mut [f32]) {
    for (at, eight) in to.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: by the caller's word.
        unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from.add(at * 8).cast()))) };
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
    /// The same for the scores of one row, minus infinity behind the last one.
    fn weigh_row(scores: &mut [f32; ENTRIES], most: &mut f32, weight: &mut f32) -> f32 {
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

vectorized! {
    fn scale(rows: &mut [Lanes], factors: &Lanes) {
        for lanes in rows {
            lanes.iter_mut().zip(factors).for_each(|(number, factor)| *number *= factor);
        }
    }
}

/// Products of some rows at a time, whose sums are in registers, for one kind of instructions.
macro_rules! kernel {
    ($module:ident, $features:literal, $rows:literal, $registers:literal, $numbers:ty, $load:ident, $store:ident, $all:ident, $add:ident,
     $sum:ident) => {
        mod $module {
            use crate::attention::kernel::*;

            const WIDTH: usize = LANES / $registers;

            /// # Safety
            /// There are as many numbers.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn add_product(numbers: &[f32], steps: (usize, usize), by: &[Lanes], to: &mut [Lanes]) {
                let (some, rest) = to.as_chunks_mut::<$rows>();
                let first_of_rest = some.len() * $rows;
                // SAFETY: by the caller's word.
                unsafe {
                    for (at, to) in some.iter_mut().enumerate() {
                        add_rows(numbers.as_ptr().add(at * $rows * steps.0), steps, by, to);
                    }
                    for (at, to) in rest.iter_mut().enumerate() {
                        let numbers = numbers.as_ptr().add((first_of_rest + at) * steps.0);
                        add_rows(numbers, steps, by, std::array::from_mut(to));
                    }
                }
            }

            /// # Safety
            /// There are as many entries as scores, of as many numbers as the row.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn products(row: &[f32], entries: &[f32], scores: &mut [f32]) {
                for (entry, score) in entries.chunks_exact(row.len()).zip(scores) {
                    let mut sums = [$all(0.0); 2];
                    for (at, (row, entry)) in row.chunks_exact(WIDTH).zip(entry.chunks_exact(WIDTH)).enumerate() {
                        // SAFETY: they are as wide as a register.
                        unsafe { sums[at % 2] = $add($load(row.as_ptr()), $load(entry.as_ptr()), sums[at % 2]) };
                    }
                    *score = $sum(sums[0]) + $sum(sums[1]);
                }
            }

            /// # Safety
            /// There are as many entries as weights, of as many numbers as `to`.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn add_weighted(weights: &[f32], entries: &[f32], to: &mut [f32]) {
                let width = to.len();
                let (some, rest) = to.as_chunks_mut::<{ 4 * WIDTH }>();
                let first_of_rest = some.len() * 4 * WIDTH;
                // SAFETY: by the caller's word.
                unsafe {
                    for (at, to) in some.iter_mut().enumerate() {
                        add_part::<4>(weights, entries.as_ptr().add(at * 4 * WIDTH), width, to);
                    }
                    for (at, to) in rest.chunks_exact_mut(WIDTH).enumerate() {
                        add_part::<1>(weights, entries.as_ptr().add(first_of_rest + at * WIDTH), width, to);
                    }
                }
            }

            /// # Safety
            /// There are as many entries as weights, `width` numbers apart, and `N` registers of `to`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_part<const N: usize>(weights: &[f32], entries: *const f32, width: usize, to: &mut [f32]) {
                // SAFETY: by the caller's word.
                unsafe {
                    let mut sums: [$numbers; N] =
                        std::array::from_fn(|register| $load(to.as_ptr().add(register * WIDTH)));
                    // What a row does not attend to may be infinite, and zero times infinity is no number.
                    for (entry, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0) {
                        let weight = $all(*weight);
                        for (register, sum) in sums.iter_mut().enumerate() {
                            *sum = $add(weight, $load(entries.add(entry * width + register * WIDTH)), *sum);
                        }
                    }
                    for (register, sum) in sums.into_iter().enumerate() {
                        $store(to.as_mut_ptr().add(register * WIDTH), sum);
                    }
                }
            }

            /// # Safety
            /// As of `add_product`.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn add_rows<const N: usize>(
                numbers: *const f32,
                (of_row, of_number): (usize, usize),
                by: &[Lanes],
                to: &mut [Lanes; N],
            ) {
                // SAFETY: lanes are as wide as the registers together; the numbers are there by the caller's word.
                unsafe {
                    let load = |lanes: &Lanes| -> [$numbers; $registers] {
                        std::array::from_fn(|register| $load(lanes.as_ptr().add(register * WIDTH)))
                    };
                    let mut sums: [[$numbers; $registers]; N] = std::array::from_fn(|row| load(&to[row]));
                    for (number, lanes) in by.iter().enumerate() {
                        let lanes = load(lanes);
                        for (row, sums) in sums.iter_mut().enumerate() {
                            let number = $all(*numbers.add(row * of_row + number * of_number));
                            for (sum, lanes) in sums.iter_mut().zip(lanes) {
                                *sum = $add(number, lanes, *sum);
                            }
                        }
                    }
                    for (to, sums) in to.iter_mut().zip(sums) {
                        for (register, sum) in sums.into_iter().enumerate() {
                            $store(to.as_mut_ptr().add(register * WIDTH), sum);
                        }
                    }
                }
            }
        }
    };
}

kernel!(avx2, "avx2,fma", 2, 4, __m256, _mm256_loadu_ps, _mm256_storeu_ps, _mm256_set1_ps, _mm256_fmadd_ps, sum_of_8);
kernel!(
    avx512,
    "avx512f,avx2,fma",
    8,
    2,
    __m512,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_set1_ps,
    _mm512_fmadd_ps,
    _mm512_reduce_add_ps
);

#[inline]
#[target_feature(enable = "avx")]
fn sum_of_8(numbers: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(numbers), _mm256_extractf128_ps::<1>(numbers));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}
