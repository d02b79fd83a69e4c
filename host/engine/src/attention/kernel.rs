//! Products of rows with entries and with their values, for each kind of instructions.
use std::arch::x86_64::*;

use super::views::Numbers;
use crate::instructions;

/// Rows that are computed side by side, counted for each head of those that share entries.
pub(super) const LANES: usize = 32;
/// Entries whose scores are kept at once: they stay in the first cache with the numbers that they are made of.
pub(super) const ENTRIES: usize = 64;

/// A number for each row of a block.
pub(super) type Lanes = [f32; LANES];

/// The instructions of this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Avx2,
    Avx512,
}

impl Kernel {
    /// All that this processor has, the fastest last.
    pub(super) fn all() -> &'static [Self] {
        match (instructions::has_avx2(), instructions::has_avx512()) {
            (false, _) => &[],
            (true, false) => &[Kernel::Avx2],
            (true, true) => &[Kernel::Avx2, Kernel::Avx512],
        }
    }

    pub(super) fn of_this_processor() -> Option<Self> {
        Self::all().last().copied()
    }

    /// Adds a product to `to`: to row `i` the sum of rows `k` of `by`, each times number `i * steps.0 + k * steps.1` of
    /// `numbers`.
    ///
    /// # Safety
    /// It is one of `all`, and there are as many numbers.
    pub(super) unsafe fn add_product(self, numbers: &[f32], steps: (usize, usize), by: &[Lanes], to: &mut [Lanes]) {
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
    pub(super) unsafe fn products(self, row: &[f32], entries: &[f32], scores: &mut [f32]) {
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
    pub(super) unsafe fn add_weighted(self, weights: &[f32], entries: &[f32], to: &mut [f32]) {
        // SAFETY: by the caller's word.
        unsafe {
            match self {
                Kernel::Avx2 => avx2::add_weighted(weights, entries, to),
                Kernel::Avx512 => avx512::add_weighted(weights, entries, to),
            }
        }
    }
}

/// Reads an entry's numbers as such of 32 bits.
///
/// # Safety
/// There are as many at `from`, a multiple of eight.
#[target_feature(enable = "avx,f16c")]
pub(super) unsafe fn read(numbers: Numbers, from: *const u8, to: &mut [f32]) {
    // SAFETY: by the caller's word.
    unsafe {
        match numbers {
            Numbers::F16 => widen(from.cast(), to),
            Numbers::F32 => to.as_mut_ptr().copy_from_nonoverlapping(from.cast(), to.len()),
        }
    }
}

/// Makes numbers of 16 bits such of 32.
///
/// # Safety
/// There are as many, a multiple of eight.
#[target_feature(enable = "avx,f16c")]
pub(super) unsafe fn widen(from: *const u16, to: &mut [f32]) {
    for (at, eight) in to.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // SAFETY: by the caller's word.
        unsafe { _mm256_storeu_ps(eight.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(from.add(at * 8).cast()))) };
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
