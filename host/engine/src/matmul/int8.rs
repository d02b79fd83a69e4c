//! Products of q8_0 weights by sums of products of bytes.
use std::arch::x86_64::*;
use std::cell::RefCell;
use std::sync::LazyLock;

use super::parts::{PANEL, Part, tiles};
use super::product::{BLOCK, BLOCK_BYTES, Product};
use super::transpose::transpose;
use crate::instructions;

/// Groups of four numbers in a block: what one instruction multiplies in each lane.
const GROUPS: usize = BLOCK / 4;
/// Bytes of quantized activations that are multiplied with a panel before the next panel is: they stay in the second cache.
const RESIDENT_BYTES: usize = 256 << 10;

/// A block of each of 16 rows of weights.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Panel {
    /// The first four numbers of each row, then the next four: as they are, or plus 128, where the kernel multiplies bytes without
    /// a sign by bytes with one.
    bytes: [[u8; 4 * PANEL]; GROUPS],
    scales: [f32; PANEL],
}

impl Panel {
    const EMPTY: Self = Self { bytes: [[0; 4 * PANEL]; GROUPS], scales: [0.0; PANEL] };
}

/// What a thread computes with; it keeps it for the next product.
#[derive(Default)]
struct Scratch {
    panel: Vec<Panel>,
    /// The integers of the part's rows, tile after tile: the first four of each row of the tile, then the next four.
    groups: Vec<[u8; 4]>,
    /// Tile after tile: of the first block of each row of the tile, then of the next.
    scales: Vec<f32>,
    /// In the same order, the sum of the integers.
    sums: Vec<i32>,
    /// Where a last panel of fewer rows is computed.
    narrow: Vec<f32>,
}

/// Where sums go: those of a row lie `stride` numbers after those of the row before.
#[derive(Clone, Copy)]
struct Sums {
    to: *mut f32,
    stride: usize,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The instructions of this processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kernel {
    Avx2,
    AvxVnni,
    Avx512Vnni,
}

impl Kernel {
    /// All that this processor has, the fastest last.
    pub(super) fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Kernel>> = LazyLock::new(|| {
            let of_processor = [
                (Kernel::Avx2, instructions::has_avx2()),
                (Kernel::AvxVnni, instructions::has_avx2() && is_x86_feature_detected!("avxvnni")),
                (Kernel::Avx512Vnni, instructions::has_avx512() && is_x86_feature_detected!("avx512vnni")),
            ];
            of_processor.into_iter().filter(|(_, is_there)| *is_there).map(|(kernel, _)| kernel).collect()
        });
        &ALL
    }

    /// The name in the log.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Kernel::Avx2 => "avx2",
            Kernel::AvxVnni => "avx-vnni",
            Kernel::Avx512Vnni => "avx512-vnni",
        }
    }

    fn tile(self) -> usize {
        match self {
            Kernel::Avx2 => avx2::TILE,
            Kernel::AvxVnni => avx_vnni::TILE,
            Kernel::Avx512Vnni => avx512_vnni::TILE,
        }
    }

    /// What is added to weights.
    fn bias(self) -> u8 {
        match self {
            Kernel::Avx2 => 0,
            Kernel::AvxVnni | Kernel::Avx512Vnni => 128,
        }
    }

    /// # Safety
    /// It is one of `all`. The matrices are where the product says, and nobody else uses the part of `to`.
    pub(super) unsafe fn multiply(self, product: &Product, part: &Part) {
        let Product { weights, from, to, inputs, outputs, .. } = *product;
        let row_bytes = inputs / BLOCK * BLOCK_BYTES;
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.panel.resize(inputs / BLOCK, Panel::EMPTY);
            let resident = (RESIDENT_BYTES / inputs).max(1).next_multiple_of(self.tile());
            let mut begin = part.rows.start;
            while begin < part.rows.end {
                let rows = resident.min(part.rows.end - begin);
                // SAFETY: `from` has so many rows, of `inputs` numbers each.
                let numbers = unsafe { std::slice::from_raw_parts(from.add(begin * inputs), rows * inputs) };
                // SAFETY: the processor has the instructions, by the caller's word.
                unsafe { scratch.quantize(numbers, inputs, self.tile()) };
                for first in part.outputs.clone().step_by(PANEL) {
                    let width = PANEL.min(part.outputs.end - first);
                    // The last row again where there are fewer.
                    // SAFETY: there are `outputs` rows of as many bytes.
                    let panel_rows =
                        std::array::from_fn(|row| unsafe { weights.add((first + row.min(width - 1)) * row_bytes) });
                    // SAFETY: as above.
                    unsafe { interleave(panel_rows, &mut scratch.panel, self.bias()) };
                    // After the last panel lies whatever is next in memory.
                    let next = weights.wrapping_add((first + PANEL) * row_bytes);
                    if width == PANEL {
                        // SAFETY: the part of `to` is this thread's.
                        unsafe {
                            let sums = Sums { to: to.add(begin * outputs + first), stride: outputs };
                            self.times_panel(scratch, rows, sums, next);
                        }
                        continue;
                    }
                    let mut narrow = std::mem::take(&mut scratch.narrow);
                    narrow.resize(rows * PANEL, 0.0);
                    // SAFETY: the room is as large.
                    unsafe { self.times_panel(scratch, rows, Sums { to: narrow.as_mut_ptr(), stride: PANEL }, next) };
                    for (row, values) in narrow.chunks_exact(PANEL).enumerate() {
                        // SAFETY: the part of `to` is this thread's.
                        unsafe {
                            let place = to.add((begin + row) * outputs + first);
                            std::ptr::copy_nonoverlapping(values.as_ptr(), place, width);
                        }
                    }
                    scratch.narrow = narrow;
                }
                begin += rows;
            }
        });
    }

    /// Multiplies the interleaved panel with the quantized rows. Meanwhile the panel at `next` comes to the cache: 16 rows in turn
    /// are more than a processor foresees, which would wait for each of them. Nothing is read there.
    ///
    /// # Safety
    /// It is one of `all`, and there is room for the sums.
    unsafe fn times_panel(self, scratch: &Scratch, rows: usize, sums: Sums, next: *const u8) {
        // SAFETY: by the caller's word.
        unsafe {
            match self {
                Kernel::Avx2 => avx2::all(scratch, rows, sums, next),
                Kernel::AvxVnni => avx_vnni::all(scratch, rows, sums, next),
                Kernel::Avx512Vnni => avx512_vnni::all(scratch, rows, sums, next),
            }
        }
    }
}

impl Scratch {
    /// Makes blocks of integers and scales of the rows, as llama.cpp does; integers may differ by one where two are as near.
    #[target_feature(enable = "avx2,fma,f16c")]
    fn quantize(&mut self, numbers: &[f32], inputs: usize, tile: usize) {
        let (blocks, rows) = (inputs / BLOCK, numbers.len() / inputs);
        self.groups.resize(rows * blocks * GROUPS, [0; 4]);
        self.scales.resize(rows * blocks, 0.0);
        self.sums.resize(rows * blocks, 0);
        for (first, width) in tiles(rows, tile) {
            for row in 0..width {
                let numbers = &numbers[(first + row) * inputs..][..inputs];
                for (block, numbers) in numbers.as_chunks::<BLOCK>().0.iter().enumerate() {
                    let (integers, scale, sum) = quantized(numbers);
                    let at = first * blocks + block * width;
                    (self.scales[at + row], self.sums[at + row]) = (scale, sum);
                    let groups = &mut self.groups[at * GROUPS + row..];
                    for (group, four) in groups.iter_mut().step_by(width).zip(integers.as_chunks::<4>().0) {
                        *group = *four;
                    }
                }
            }
        }
    }
}

/// A block's integers, their scale, and their sum.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn quantized(numbers: &[f32; BLOCK]) -> ([u8; BLOCK], f32, i32) {
    // SAFETY: there are four times eight numbers.
    let all: [__m256; 4] = std::array::from_fn(|part| unsafe { _mm256_loadu_ps(numbers.as_ptr().add(part * 8)) });
    let sign = _mm256_set1_ps(-0.0);
    let [a, b, c, d] = all.map(|part| _mm256_andnot_ps(sign, part));
    let largest = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
    let largest = _mm_max_ps(_mm256_castps256_ps128(largest), _mm256_extractf128_ps::<1>(largest));
    let largest = _mm_max_ps(largest, _mm_movehl_ps(largest, largest));
    let largest = _mm_cvtss_f32(_mm_max_ss(largest, _mm_movehdup_ps(largest)));
    let step = largest / 127.0;
    let inverse = _mm256_set1_ps(if step == 0.0 { 0.0 } else { 1.0 / step });
    let [e, f, g, h] = all.map(|part| _mm256_cvtps_epi32(_mm256_mul_ps(part, inverse)));
    let sum = _mm256_add_epi32(_mm256_add_epi32(e, f), _mm256_add_epi32(g, h));
    let sum = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum));
    let sum = _mm_add_epi32(sum, _mm_shuffle_epi32::<0b0100_1110>(sum));
    let sum = _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32::<0b1011_0001>(sum)));
    // The instructions narrow each half of a register by itself.
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(e, f), _mm256_packs_epi32(g, h));
    let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let mut integers = [0; BLOCK];
    // SAFETY: there are 32 bytes.
    unsafe { _mm256_storeu_si256(integers.as_mut_ptr().cast(), bytes) };
    // What is not a number must not become one: a comparison would have passed over it.
    let unordered = all.map(|part| _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_UNORD_Q>(part, part)));
    let step = if unordered == [0; 4] { step } else { f32::NAN };
    // llama.cpp keeps scales in 16 bits.
    let scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm_set_ss(step))));
    (integers, scale, sum)
}

/// Interleaves 16 rows of weights, each plus the bias: 0 or 128.
///
/// # Safety
/// Each row has as many blocks as the panel.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn interleave(rows: [*const u8; PANEL], panel: &mut [Panel], bias: u8) {
    let bias = _mm256_set1_epi8(bias as i8);
    for (block, panel) in panel.iter_mut().enumerate() {
        // SAFETY: by the caller's word. A panel is aligned as its stores want it.
        unsafe {
            let at = |row: usize| rows[row].add(block * BLOCK_BYTES);
            for half in [0, 8] {
                let columns = transpose(std::array::from_fn(|row| _mm256_loadu_si256(at(half + row).add(2).cast())));
                for (bytes, column) in panel.bytes.iter_mut().zip(columns) {
                    let column = _mm256_xor_si256(column, bias);
                    _mm256_store_si256(bytes.as_mut_ptr().add(half * 4).cast(), column);
                }
                let scales: [u16; 8] = std::array::from_fn(|row| at(half + row).cast::<u16>().read_unaligned());
                let scales = _mm256_cvtph_ps(_mm_loadu_si128(scales.as_ptr().cast()));
                _mm256_store_ps(panel.scales.as_mut_ptr().add(half), scales);
            }
        }
    }
}

/// Lets as many bytes come to the cache as a block of each row of a panel has, and returns where they end. They come in the order of
/// addresses, so that the whole panel has come after as many calls as its rows have blocks. Nothing is read there.
#[inline]
fn prefetch(from: *const u8) -> *const u8 {
    const LINE: usize = 64;
    for at in (0..PANEL * BLOCK_BYTES).step_by(LINE) {
        // SAFETY: it reads nothing and may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.wrapping_add(at).cast()) };
    }
    from.wrapping_add(PANEL * BLOCK_BYTES)
}

/// The loops over tiles of rows, for one kind of instructions. `$dot` adds the products of four bytes of each row of weights and
/// of `four` to the sums; `$begin` says where a sum begins, of the sum of the activations' integers.
macro_rules! kernel {
    ($module:ident, $features:literal, $lanes:literal, $most:literal, $integers:ty, $floats:ty,
     $load:ident, $all:ident, $load_floats:ident, $one:ident, $zero:ident, $store:ident, $multiply:ident, $add:ident, $convert:ident,
     $begin:expr, $dot:expr) => {
        mod $module {
            use crate::matmul::int8::*;

            pub(super) const TILE: usize = $most;
            const PARTS: usize = PANEL / $lanes;

            /// # Safety
            /// There are so many quantized rows, and there is room for their sums.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn all(scratch: &Scratch, rows: usize, sums: Sums, next: *const u8) {
                let mut next = Some(next);
                for (first, width) in tiles(rows, TILE) {
                    // SAFETY: no tile reaches past the last row.
                    unsafe {
                        for part in 0..PARTS {
                            let sums = Sums { to: sums.to.add(first * sums.stride + part * $lanes), ..sums };
                            match width {
                                TILE => tile::<TILE>(scratch, (first, part), sums, next.take()),
                                4 => tile::<4>(scratch, (first, part), sums, next.take()),
                                2 => tile::<2>(scratch, (first, part), sums, next.take()),
                                _ => tile::<1>(scratch, (first, part), sums, next.take()),
                            }
                        }
                    }
                }
            }

            /// # Safety
            /// A tile of `N` rows begins at `first`, and there is room for their sums.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn tile<const N: usize>(
                scratch: &Scratch,
                (first, part): (usize, usize),
                place: Sums,
                mut next: Option<*const u8>,
            ) {
                let begin = first * scratch.panel.len();
                let scales = scratch.scales[begin..].as_chunks::<N>().0;
                let rows = scales.iter().zip(scratch.sums[begin..].as_chunks::<N>().0);
                let groups = scratch.groups[begin * GROUPS..].as_chunks::<N>().0.as_chunks::<GROUPS>().0;
                let mut sums: [$floats; N] = [$zero(); N];
                for ((panel, (scales, of_integers)), groups) in scratch.panel.iter().zip(rows).zip(groups) {
                    next = next.map(prefetch);
                    let mut integers: [$integers; N] = of_integers.map(|sum| $all($begin(sum)));
                    for (weights, group) in panel.bytes.iter().zip(groups) {
                        // SAFETY: it has 64 bytes, and is aligned to as many.
                        let weights = unsafe { $load(weights.as_ptr().add(part * $lanes * 4).cast()) };
                        for (sum, four) in integers.iter_mut().zip(group) {
                            *sum = $dot(*sum, weights, $all(i32::from_ne_bytes(*four)));
                        }
                    }
                    // SAFETY: it has 16 numbers, and is aligned to 64 bytes.
                    let steps = unsafe { $load_floats(panel.scales.as_ptr().add(part * $lanes)) };
                    for ((sum, scale), integers) in sums.iter_mut().zip(scales).zip(integers) {
                        *sum = $add($convert(integers), $multiply(steps, $one(*scale)), *sum);
                    }
                }
                for (row, sum) in sums.into_iter().enumerate() {
                    // SAFETY: by the caller's word.
                    unsafe { $store(place.to.add(row * place.stride), sum) };
                }
            }
        }
    };
}

kernel!(
    avx2,
    "avx2,fma,f16c",
    8,
    5,
    __m256i,
    __m256,
    _mm256_load_si256,
    _mm256_set1_epi32,
    _mm256_load_ps,
    _mm256_set1_ps,
    _mm256_setzero_ps,
    _mm256_storeu_ps,
    _mm256_mul_ps,
    _mm256_fmadd_ps,
    _mm256_cvtepi32_ps,
    |_: i32| 0,
    signed
);
kernel!(
    avx_vnni,
    "avxvnni,avx2,fma,f16c",
    8,
    6,
    __m256i,
    __m256,
    _mm256_load_si256,
    _mm256_set1_epi32,
    _mm256_load_ps,
    _mm256_set1_ps,
    _mm256_setzero_ps,
    _mm256_storeu_ps,
    _mm256_mul_ps,
    _mm256_fmadd_ps,
    _mm256_cvtepi32_ps,
    |sum: i32| sum.wrapping_mul(-128),
    _mm256_dpbusd_avx_epi32
);
kernel!(
    avx512_vnni,
    "avx512f,avx512vnni,avx2,fma,f16c",
    16,
    12,
    __m512i,
    __m512,
    _mm512_load_si512,
    _mm512_set1_epi32,
    _mm512_load_ps,
    _mm512_set1_ps,
    _mm512_setzero_ps,
    _mm512_storeu_ps,
    _mm512_mul_ps,
    _mm512_fmadd_ps,
    _mm512_cvtepi32_ps,
    |sum: i32| sum.wrapping_mul(-128),
    _mm512_dpbusd_epi32
);

/// Adds the products of four bytes each. Two products of a byte without a sign and one with it may not fit 16 bits, but those of
/// magnitudes of at most 128 and 127 do: so the sign goes to the other factor.
#[inline]
#[target_feature(enable = "avx2")]
fn signed(sum: __m256i, weights: __m256i, four: __m256i) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(four, weights));
    _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)))
}
