//! Products of weights of 16 bits, as numbers of 32, by AVX-512's multiplications and additions.
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::ops::Range;

use super::parts::{PANEL, Part};
use super::product::Product;
use super::transpose::transpose;
use crate::instructions;

/// Numbers of a row that are interleaved at once: a panel of them stays in the first cache.
const DEPTH: usize = 256;
/// Rows of the batch whose sums are in registers at once.
const TILE: usize = 14;
/// Numbers of a register that are transposed.
const EIGHT: usize = 8;
/// Bytes of activations that are multiplied with a panel before the next panel is: they stay in the second cache.
const RESIDENT_BYTES: usize = 512 << 10;

/// What a thread computes with; it keeps it for the next product.
struct Scratch {
    /// Numbers of 16 rows of weights, the first of each row first.
    panel: Box<[[f32; PANEL]; DEPTH]>,
    /// The part's rows of activations, tile after tile: the first number of each row of the tile, then the next.
    tiles: Vec<f32>,
    /// Where a last panel of fewer rows is computed.
    narrow: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        panel: Box::new([[0.0; PANEL]; DEPTH]),
        tiles: Vec::new(),
        narrow: Vec::new(),
    });
}

/// Proof that this processor has the instructions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kernel(());

impl Kernel {
    pub(super) fn of_this_processor() -> Option<Self> {
        instructions::has_avx512().then_some(Self(()))
    }

    /// # Safety
    /// The matrices are where the product says, and nobody else uses the part of `to`.
    pub(super) unsafe fn multiply(self, product: &Product, part: &Part) {
        let inputs = product.inputs;
        SCRATCH.with_borrow_mut(|scratch| {
            let resident = (RESIDENT_BYTES / size_of::<f32>() / inputs).max(1).next_multiple_of(TILE);
            for begin in part.rows.clone().step_by(resident) {
                let rows = begin..part.rows.end.min(begin + resident);
                // SAFETY: `from` has so many rows, of `inputs` numbers each.
                let numbers =
                    unsafe { std::slice::from_raw_parts(product.from.add(begin * inputs), rows.len() * inputs) };
                // SAFETY: the processor has the instructions.
                unsafe { scratch.lay_out(numbers, inputs) };
                for first in part.outputs.clone().step_by(PANEL) {
                    let width = PANEL.min(part.outputs.end - first);
                    // SAFETY: the processor has the instructions. The rest is the caller's word.
                    unsafe { scratch.times_panel(product, first, width, &rows) };
                }
            }
        });
    }
}

/// Calls `tile` for as many rows.
macro_rules! tile {
    ($scratch:ident, $rows:ident, ($of_tile:expr, $place:expr, $stride:expr); $($width:literal)+) => {
        match $rows {
            $($width => $scratch.tile::<$width>($of_tile, $place, $stride),)+
            _ => debug_assert!(false, "a tile of {} rows", $rows),
        }
    };
}

impl Scratch {
    /// Lays out rows, rounded to 16 bits as llama.cpp does, so that a product is the same wherever it is computed, but for the order
    /// of its terms.
    #[target_feature(enable = "avx2,f16c")]
    fn lay_out(&mut self, numbers: &[f32], inputs: usize) {
        self.tiles.resize(numbers.len(), 0.0);
        for (first, width) in tiles(numbers.len() / inputs) {
            let of_tile = first * inputs..(first + width) * inputs;
            let (numbers, laid_out) = (&numbers[of_tile.clone()], &mut self.tiles[of_tile]);
            match width >= EIGHT {
                true => lay_out_tile(numbers, inputs, laid_out),
                false => lay_out_rows(numbers, inputs, laid_out),
            }
        }
    }

    /// Computes `width` outputs from `first` on, of these rows.
    ///
    /// # Safety
    /// As `Kernel::multiply`; the rows are laid out.
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    unsafe fn times_panel(&mut self, product: &Product, first: usize, width: usize, rows: &Range<usize>) {
        let Product { weights, to, inputs, outputs, .. } = *product;
        let weights = weights.cast::<u16>();
        self.narrow.resize(if width < PANEL { rows.len() * PANEL } else { 0 }, 0.0);
        let (place, stride) = match width {
            // SAFETY: row `rows.start` and output `first` are inside.
            PANEL => (unsafe { to.add(rows.start * outputs + first) }, outputs),
            _ => (self.narrow.as_mut_ptr(), PANEL),
        };
        for begin in (0..inputs).step_by(DEPTH) {
            let depth = DEPTH.min(inputs - begin);
            // The last row again where there are fewer.
            // SAFETY: the weights have these rows, of `inputs` numbers each.
            let of_panel =
                std::array::from_fn(|row| unsafe { weights.add((first + row.min(width - 1)) * inputs + begin) });
            // SAFETY: as above.
            unsafe { interleave(of_panel, &mut self.panel[..depth]) };
            // The panel beside it, or the first one of the next rows. After the last lies whatever is next in memory.
            let (row, next) = if begin + depth < inputs { (first, begin + depth) } else { (first + PANEL, 0) };
            let mut ahead = Some(Ahead {
                begin: weights.wrapping_add(row * inputs + next),
                step: inputs,
                lines: DEPTH.min(inputs - next).div_ceil(Ahead::NUMBERS),
                parts: depth.div_ceil(Ahead::NUMBERS),
            });
            for (tile_first, tile_width) in tiles(rows.len()) {
                // SAFETY: no tile reaches past the last row.
                unsafe {
                    let place = place.add(tile_first * stride);
                    let of_tile = OfTile { at: tile_first * inputs, begin, depth, ahead: ahead.take() };
                    tile!(self, tile_width, (of_tile, place, stride); 14 13 12 11 10 9 8 7 6 5 4 3 2 1);
                }
            }
        }
        for (row, values) in rows.clone().zip(self.narrow.chunks_exact(PANEL)) {
            // SAFETY: the part of `to` is this thread's.
            unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), to.add(row * outputs + first), width) };
        }
    }

    /// Multiplies the panel with a tile. Past the first panel of the rows, sums are added to what is there.
    ///
    /// # Safety
    /// There is room for the sums.
    #[inline]
    #[target_feature(enable = "avx512f,avx2,fma,f16c")]
    unsafe fn tile<const N: usize>(&self, of: OfTile, to: *mut f32, stride: usize) {
        let OfTile { at, begin, depth, ahead } = of;
        let numbers = &self.tiles[at..].as_chunks::<N>().0[begin..];
        let mut sums = [_mm512_setzero_ps(); N];
        let panel = self.panel[..depth].chunks(Ahead::NUMBERS);
        for (part, (weights, numbers)) in panel.zip(numbers.chunks(Ahead::NUMBERS)).enumerate() {
            if let Some(ahead) = &ahead {
                ahead.prefetch(part);
            }
            for (weights, numbers) in weights.iter().zip(numbers) {
                // SAFETY: there are 16.
                let weights = unsafe { _mm512_loadu_ps(weights.as_ptr()) };
                for (sum, number) in sums.iter_mut().zip(numbers) {
                    *sum = _mm512_fmadd_ps(weights, _mm512_set1_ps(*number), *sum);
                }
            }
        }
        for (row, sum) in sums.into_iter().enumerate() {
            // SAFETY: by the caller's word.
            unsafe {
                let place = to.add(row * stride);
                let sum = if begin > 0 { _mm512_add_ps(_mm512_loadu_ps(place), sum) } else { sum };
                _mm512_storeu_ps(place, sum);
            }
        }
    }
}

/// What a tile is multiplied with.
struct OfTile {
    /// Where the tile is.
    at: usize,
    /// Where the panel begins in its rows, and the numbers that it has of each.
    begin: usize,
    depth: usize,
    ahead: Option<Ahead>,
}

/// Rows of weights that are interleaved next. They come to the cache meanwhile: 16 rows in turn are more than processors foresee.
struct Ahead {
    begin: *const u16,
    /// Numbers from one row to the next.
    step: usize,
    /// Lines of the cache that each row's part of the panel has, and in how many parts they come.
    lines: usize,
    parts: usize,
}

impl Ahead {
    /// Numbers of a line of the cache.
    const NUMBERS: usize = 32;

    /// Lets a part of the lines come. Nothing is read there.
    #[inline]
    fn prefetch(&self, part: usize) {
        for line in self.lines * part / self.parts..self.lines * (part + 1) / self.parts {
            for row in 0..PANEL {
                let place = self.begin.wrapping_add(row * self.step + line * Self::NUMBERS);
                // SAFETY: it reads nothing and may be given any address.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(place.cast()) };
            }
        }
    }
}

/// Lays out a tile of eight rows or more, eight at a time. The last eight begin among those before.
#[target_feature(enable = "avx2,f16c")]
fn lay_out_tile(numbers: &[f32], inputs: usize, laid_out: &mut [f32]) {
    const { assert!(TILE <= 2 * EIGHT) };
    let width = numbers.len() / inputs;
    for first in [0, width - EIGHT] {
        let rows = &numbers[first * inputs..];
        for (at, places) in laid_out.chunks_exact_mut(EIGHT * width).enumerate() {
            let columns = transpose(std::array::from_fn(|row| {
                let begin = row * inputs + at * EIGHT;
                _mm256_castps_si256(rounded(rows[begin..].first_chunk().unwrap_or(&[0.0; EIGHT])))
            }));
            for (column, places) in columns.into_iter().zip(places.chunks_exact_mut(width)) {
                // SAFETY: there is room for the last eight of the row's numbers.
                unsafe { _mm256_storeu_si256(places[first..].as_mut_ptr().cast(), column) };
            }
        }
    }
}

/// Where each tile of `rows` rows begins, and its rows.
fn tiles(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(TILE).map(move |first| (first, TILE.min(rows - first)))
}

/// Lays out fewer rows.
#[target_feature(enable = "avx2,f16c")]
fn lay_out_rows(numbers: &[f32], inputs: usize, laid_out: &mut [f32]) {
    let width = numbers.len() / inputs;
    for (row, numbers) in numbers.chunks_exact(inputs).enumerate() {
        let mut places = laid_out[row..].iter_mut().step_by(width);
        for eight in numbers.as_chunks().0 {
            let mut numbers = [0.0; EIGHT];
            // SAFETY: there is room for eight.
            unsafe { _mm256_storeu_ps(numbers.as_mut_ptr(), rounded(eight)) };
            numbers.into_iter().zip(&mut places).for_each(|(number, place)| *place = number);
        }
    }
}

/// Numbers as those of 16 bits are that are nearest to them.
#[inline]
#[target_feature(enable = "avx2,f16c")]
fn rounded(numbers: &[f32; EIGHT]) -> __m256 {
    // SAFETY: there are eight.
    let numbers = unsafe { _mm256_loadu_ps(numbers.as_ptr()) };
    _mm256_cvtph_ps(_mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(numbers))
}

/// Takes eight rows and eight numbers at a time.
///
/// # Safety
/// Each row has as many numbers as the panel, a multiple of eight.
#[target_feature(enable = "avx2,f16c")]
unsafe fn interleave(rows: [*const u16; PANEL], panel: &mut [[f32; PANEL]]) {
    for (eight, panel) in panel.chunks_exact_mut(8).enumerate() {
        for half in [0, 8] {
            // SAFETY: by the caller's word.
            let columns = transpose(std::array::from_fn(|row| unsafe {
                _mm256_castps_si256(_mm256_cvtph_ps(_mm_loadu_si128(rows[half + row].add(eight * 8).cast())))
            }));
            for (numbers, column) in panel.iter_mut().zip(columns) {
                // SAFETY: there is room for 16.
                unsafe { _mm256_storeu_si256(numbers.as_mut_ptr().add(half).cast(), column) };
            }
        }
    }
}
