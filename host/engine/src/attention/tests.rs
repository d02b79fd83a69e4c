//! Attention of all kernels that this processor has, against sums of 64 bits.
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::divide;
use super::kernel::Kernel;
use super::spans::MASKED;
use super::views::{Attention, Numbers, Shape, View};

/// Who attends to whom.
#[derive(Debug, Clone, Copy)]
enum Mask {
    None,
    /// Inputs of this many rows attend to themselves.
    Inputs(usize),
    /// Rows are the last ones of a text.
    Causal,
    /// One of this many entries is of others.
    Holes(usize),
    /// The further an entry is, the less it counts.
    Far,
    Nothing,
}

/// Numbers that look random, between -1 and 1.
fn noise(seed: &mut u64) -> f32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((*seed >> 40) as f32 / f32::from(1_u16 << 15) / 256.0) - 1.0
}

/// A number of 16 bits near this one, between 2^-14 and 2 or zero.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    let exponent = (bits >> 23 & 0xff) as i32 - 127 + 15;
    if exponent <= 0 { 0 } else { (bits >> 16 & 0x8000 | (exponent as u32) << 10 | bits >> 13 & 0x3ff) as u16 }
}

fn number(half: u16) -> f64 {
    let magnitude = match half & 0x7fff {
        0 => 0.0,
        bits => f64::from(1.0 + f32::from(bits & 0x3ff) / 1024.0) * 2f64.powi(i32::from(bits >> 10) - 15),
    };
    if half & 0x8000 == 0 { magnitude } else { -magnitude }
}

struct Case {
    shape: Shape,
    q: Vec<f32>,
    k: Vec<u16>,
    v: Vec<u16>,
    /// Of all streams, if there is one.
    mask: Vec<u16>,
}

impl Case {
    fn new(shape: Shape, mask: Mask, mut seed: u64) -> Self {
        let Shape { width, value_width, rows, entries, heads, kv_heads, streams, masks, .. } = shape;
        let mut halves = |count: usize| (0..count).map(|_| half(noise(&mut seed))).collect::<Vec<_>>();
        let (k, v) = (halves(width * entries * kv_heads * streams), halves(value_width * entries * kv_heads * streams));
        let q = (0..width * rows * heads * streams).map(|_| noise(&mut seed) * 4.0).collect();
        let value = |row: usize, entry: usize| match mask {
            Mask::Inputs(each) if row / each == entry / each => 0,
            Mask::Causal if entry <= row + entries.saturating_sub(rows) => 0,
            Mask::Holes(each) if !(entry + row).is_multiple_of(each) => 0,
            Mask::Far if entry <= row => half(-(((row - entry) % 8) as f32) / 8.0),
            _ => MASKED,
        };
        // Those of other streams are shifted.
        let places =
            (0..masks).flat_map(|of| (0..rows).flat_map(move |row| (0..entries).map(move |entry| (row, entry + of))));
        let all = places.map(|(row, entry)| value(row, entry)).collect();
        Self { shape, q, k, v, mask: if matches!(mask, Mask::None) { Vec::new() } else { all } }
    }

    /// By as many threads, one after the other.
    fn by(&self, kernel: Kernel, threads: usize) -> Vec<f32> {
        self.from(Numbers::F16, kernel, threads, None)
    }

    /// The same, from entries of such numbers.
    fn from(&self, numbers: Numbers, kernel: Kernel, threads: usize, graph: Option<u64>) -> Vec<f32> {
        let wide = |halves: &[u16]| halves.iter().map(|half| number(*half) as f32).collect::<Vec<_>>();
        let (wide_k, wide_v) = (wide(&self.k), wide(&self.v));
        let (size, k, v) = match numbers {
            Numbers::F16 => (2, self.k.as_ptr().cast::<u8>(), self.v.as_ptr().cast::<u8>()),
            Numbers::F32 => (4, wide_k.as_ptr().cast(), wide_v.as_ptr().cast()),
        };
        let Shape { width, value_width, rows, entries, heads, kv_heads, streams, .. } = self.shape;
        let mut to = vec![f32::INFINITY; value_width * heads * rows * streams];
        // Rows of all heads lie together, as llama.cpp's do.
        let of = |data: *const u8, size: usize, heads: usize, rows: usize| View {
            data,
            steps: [size * heads, size, size * heads * rows],
        };
        let result = View {
            data: to.as_mut_ptr().cast::<u8>().cast_const(),
            steps: [value_width * 4, value_width * heads * 4, value_width * heads * rows * 4],
        };
        let mask =
            View { data: self.mask.as_ptr().cast(), steps: [entries * 2, entries * rows * 2, entries * rows * 2] };
        let attention = Attention {
            shape: self.shape,
            q: of(self.q.as_ptr().cast(), width * 4, heads, rows),
            numbers,
            k: of(k, width * size, kv_heads, entries),
            v: of(v, value_width * size, kv_heads, entries),
            mask: (!self.mask.is_empty()).then_some(mask),
            to: result,
        };
        for thread in 0..threads {
            // SAFETY: numbers are where the views say, and the processor has the kernel.
            unsafe { divide::attend(kernel, &attention, graph, (thread, threads)) };
        }
        to
    }

    fn expected(&self) -> Vec<f64> {
        let Shape { width, value_width, rows, entries, heads, kv_heads, streams, masks, scale, max_bias } = self.shape;
        let mut to = vec![0.0; value_width * heads * rows * streams];
        let even = 2f64.powi(heads.ilog2() as i32);
        for (stream, row, head) in (0..streams)
            .flat_map(|stream| (0..rows).flat_map(move |row| (0..heads).map(move |head| (stream, row, head))))
        {
            let kv_head = head / (heads / kv_heads);
            let slope = match head as f64 {
                _ if max_bias == 0.0 => 1.0,
                head if head < even => 2f64.powf(-f64::from(max_bias) / even * (head + 1.0)),
                head => 2f64.powf(-f64::from(max_bias) / 2.0 / even * (2.0 * (head - even) + 1.0)),
            };
            let weight = |entry: usize| {
                let value = match self.mask.get(((stream % masks) * rows + row) * entries + entry) {
                    Some(&MASKED) => return 0.0,
                    Some(&value) => slope * number(value),
                    None => 0.0,
                };
                let q = &self.q[((stream * rows + row) * heads + head) * width..][..width];
                let k = &self.k[((stream * entries + entry) * kv_heads + kv_head) * width..][..width];
                let sum: f64 = q.iter().zip(k).map(|(q, k)| f64::from(*q) * number(*k)).sum();
                (sum * f64::from(scale) + value).exp()
            };
            let weights: Vec<f64> = (0..entries).map(weight).collect();
            let all: f64 = weights.iter().sum();
            let to = &mut to[((stream * rows + row) * heads + head) * value_width..][..value_width];
            for (entry, weight) in weights.iter().enumerate().filter(|(_, weight)| **weight > 0.0) {
                let v = &self.v[((stream * entries + entry) * kv_heads + kv_head) * value_width..][..value_width];
                to.iter_mut().zip(v).for_each(|(to, v)| *to += weight / all * number(*v));
            }
        }
        to
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let heads = prop::sample::select(&[(1, 1), (2, 2), (4, 2), (3, 1), (12, 4), (32, 1), (6, 6)][..]);
    let widths = prop::sample::select(&[16, 48, 64, 80][..]);
    let mixed = (1..100_usize, 0..150_usize, 1..3_usize, any::<bool>(), any::<bool>());
    (heads, widths.clone(), widths, mixed).prop_map(|((heads, kv_heads), width, value_width, mixed)| {
        let (rows, more, streams, one_mask, biased) = mixed;
        let masks = if one_mask { 1 } else { streams };
        let max_bias = if biased { 8.0 } else { 0.0 };
        let (entries, scale) = (rows + more, 1.0 / (width as f32).sqrt());
        Shape { width, value_width, rows, entries, heads, kv_heads, streams, masks, scale, max_bias }
    })
}

fn mask() -> impl Strategy<Value = Mask> {
    let several = (1..80_usize).prop_map(Mask::Inputs);
    prop_oneof![
        Just(Mask::None),
        several,
        Just(Mask::Causal),
        (2..6_usize).prop_map(Mask::Holes),
        Just(Mask::Far),
        Just(Mask::Nothing)
    ]
}

/// The next graph.
static GRAPHS: AtomicU64 = AtomicU64::new(1 << 40);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]
    #[test]
    fn attention_is_that_of_its_definition(shape in shape(), mask in mask(), threads in 1..4_usize, seed in any::<u64>()) {
        let case = Case::new(shape, mask, seed);
        let expected = case.expected();
        for kernel in Kernel::all() {
            let computed = case.by(*kernel, threads);
            for (at, (computed, expected)) in computed.iter().zip(&expected).enumerate() {
                prop_assert!((f64::from(*computed) - expected).abs() < 2e-6, "{kernel:?}, {at}: {computed}, {expected}");
            }
            let in_32_bits = case.from(Numbers::F32, *kernel, threads, None);
            prop_assert_eq!(&in_32_bits, &computed, "the same numbers");
            let graph = Some(GRAPHS.fetch_add(1, Ordering::Relaxed));
            for node in ["first", "second"] {
                let of_graph = case.from(Numbers::F16, *kernel, threads, graph);
                prop_assert_eq!(&of_graph, &computed, "as the {} node of a graph", node);
            }
        }
    }
}

/// What was read from a mask serves one graph, though the next one's mask may lie where it lay.
#[test]
fn the_next_graph_reads_the_mask_anew() {
    let shape = Shape {
        width: 16,
        value_width: 16,
        rows: 40,
        entries: 90,
        heads: 4,
        kv_heads: 2,
        streams: 1,
        masks: 1,
        scale: 0.25,
        max_bias: 0.0,
    };
    let mut case = Case::new(shape, Mask::Causal, 1);
    let (causal, holes) = (case.mask.clone(), Case::new(shape, Mask::Holes(3), 1).mask);
    for kernel in Kernel::all() {
        let graph = || Some(GRAPHS.fetch_add(1, Ordering::Relaxed));
        let first = case.from(Numbers::F16, *kernel, 2, graph());
        case.mask.copy_from_slice(&holes);
        let second = case.from(Numbers::F16, *kernel, 2, graph());
        assert_eq!(second, case.by(*kernel, 2), "{kernel:?}");
        assert_ne!(second, first, "{kernel:?}");
        case.mask.copy_from_slice(&causal);
    }
}

#[test]
fn regression_what_a_row_does_not_attend_to_may_be_infinite() {
    for (rows, mask) in [(1, Mask::Holes(3)), (40, Mask::Holes(3)), (40, Mask::Causal)] {
        let shape = Shape { rows, entries: 200, heads: 2, ..SMALL };
        for kernel in Kernel::all() {
            let mut case = Case::new(shape, mask, 1);
            let expected = case.by(*kernel, 1);
            let entry = (0..200).rfind(|&entry| case.mask[entry] == MASKED).unwrap();
            let of_entry = entry * 16..(entry + 1) * 16;
            case.k[of_entry.clone()].fill(0x7c00);
            case.v[of_entry].fill(0x7c00);
            let first_row = 2 * 16;
            assert_eq!(case.by(*kernel, 1)[..first_row], expected[..first_row], "{kernel:?}, {rows}, {mask:?}");
            assert_eq!(case.by(*kernel, 1).iter().all(|number| number.is_finite()), rows == 1);
        }
    }
}

const SMALL: Shape = Shape {
    width: 16,
    value_width: 16,
    rows: 3,
    entries: 3,
    heads: 1,
    kv_heads: 1,
    streams: 1,
    masks: 1,
    scale: 1.0,
    max_bias: 0.0,
};

#[test]
fn what_is_not_finite_is_not_hidden() {
    for kernel in Kernel::all() {
        for bad in [f32::NAN, f32::INFINITY] {
            let mut case = Case::new(SMALL, Mask::Inputs(1), 1);
            // A score that is minus infinity is one of an entry that the row does not attend to.
            case.q[16] = bad.copysign(if case.k[16] & 0x8000 == 0 { 1.0 } else { -1.0 });
            let computed = case.by(*kernel, 1);
            assert!(computed[16..32].iter().all(|number| number.is_nan()), "{kernel:?}: {computed:?}");
            assert!(
                [&computed[..16], &computed[32..]].concat().iter().all(|number| number.is_finite()),
                "{computed:?}"
            );
        }
    }
}
