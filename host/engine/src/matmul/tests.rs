//! Products of all kernels that this processor has, against those of numbers of 64 bits.
use proptest::prelude::*;

use super::product::BLOCK;
use super::*;

/// Weights, what they are as numbers, and activations.
struct Matrices {
    kind: Kind,
    inputs: usize,
    outputs: usize,
    weights: Vec<u8>,
    numbers: Vec<f64>,
    from: Vec<f32>,
}

/// Numbers that look random.
fn noise(seed: &mut u64) -> u32 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) as u32
}

impl Matrices {
    fn new(kind: Kind, [inputs, outputs, rows]: [usize; 3], mut seed: u64) -> Self {
        let (mut weights, mut numbers) = (Vec::new(), Vec::new());
        for _ in 0..inputs * outputs / BLOCK {
            // Halves with an exponent of about 2^-6.
            let half = |noise: u32| 0x2400 | (noise % 0x400) as u16 | (noise >> 16 & 0x8000) as u16;
            let scale = half(noise(&mut seed));
            if kind == Kind::Q8 {
                weights.extend(scale.to_le_bytes());
            }
            for _ in 0..BLOCK {
                let noise = noise(&mut seed);
                match kind {
                    Kind::Q8 => {
                        // All of them, -128 too.
                        let byte = noise as i8;
                        weights.push(byte as u8);
                        numbers.push(f64::from(byte) * number_of_half(scale));
                    }
                    Kind::F16 => {
                        weights.extend(half(noise).to_le_bytes());
                        numbers.push(number_of_half(half(noise)));
                    }
                }
            }
        }
        let from = (0..inputs * rows).map(|_| (noise(&mut seed) % 20_001) as f32 / 10_000.0 - 1.0).collect();
        Self { kind, inputs, outputs, weights, numbers, from }
    }

    fn rows(&self) -> usize {
        self.from.len() / self.inputs
    }

    /// Computes the product with so many threads, one after the other.
    fn by(&self, kernel: Kernel, threads: usize) -> Vec<f32> {
        let (inputs, outputs, rows) = (self.inputs, self.outputs, self.rows());
        let mut to = vec![f32::INFINITY; outputs * rows];
        let product = Product {
            kind: self.kind,
            weights: self.weights.as_ptr(),
            from: self.from.as_ptr(),
            to: to.as_mut_ptr(),
            inputs,
            outputs,
            rows,
        };
        for thread in 0..threads {
            let part = parts::of(outputs, rows, thread, threads);
            // SAFETY: the product's matrices are these, and the processor has the kernel.
            unsafe {
                match kernel {
                    Kernel::Int8(kernel) => kernel.multiply(&product, &part),
                    Kernel::Float(kernel) => kernel.multiply(&product, &part),
                }
            }
        }
        to
    }

    /// The product, and the sum of its terms' magnitudes, by which errors are measured.
    fn exactly(&self, row: usize, output: usize) -> (f64, f64) {
        let weights = &self.numbers[output * self.inputs..][..self.inputs];
        let from = &self.from[row * self.inputs..][..self.inputs];
        let terms = weights.iter().zip(from).map(|(weight, from)| weight * f64::from(*from));
        terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
    }

    fn check(&self, kernel: Kernel, threads: usize) {
        let found = self.by(kernel, threads);
        // Activations are rounded to 1/127 of the largest of their block, or to 11 bits.
        let error = if self.kind == Kind::Q8 { 0.012 } else { 6e-4 };
        for row in 0..self.rows() {
            for output in 0..self.outputs {
                let (exact, magnitude) = self.exactly(row, output);
                let found = f64::from(found[row * self.outputs + output]);
                assert!(
                    (found - exact).abs() <= error * magnitude.max(1e-6),
                    "{kernel:?}, {threads} threads, row {row}, output {output}: {found} for {exact} of {magnitude}"
                );
            }
        }
    }
}

fn number_of_half(half: u16) -> f64 {
    let (exponent, fraction) = (i32::from(half >> 10 & 31), f64::from(half & 1023));
    let magnitude = (1.0 + fraction / 1024.0) * f64::from(exponent - 15).exp2();
    if half & 0x8000 == 0 { magnitude } else { -magnitude }
}

fn kernels(kind: Kind) -> Vec<Kernel> {
    match kind {
        Kind::Q8 => int8::Kernel::all().iter().map(|kernel| Kernel::Int8(*kernel)).collect(),
        Kind::F16 => float::Kernel::of_this_processor().map(Kernel::Float).into_iter().collect(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn products_are_those_of_the_numbers(
        kind in prop_oneof![Just(Kind::Q8), Just(Kind::F16)],
        blocks in 1..20_usize, outputs in 1..70_usize, rows in 1..40_usize, threads in 1..5_usize, seed: u64,
    ) {
        let matrices = Matrices::new(kind, [blocks * BLOCK, outputs, rows], seed);
        kernels(kind).into_iter().for_each(|kernel| matrices.check(kernel, threads));
    }
}

/// So many that they are taken in several turns.
#[test]
fn products_of_many_rows_are_those_of_the_numbers() {
    for kind in [Kind::Q8, Kind::F16] {
        let matrices = Matrices::new(kind, [2_048, 17, 300], 7);
        kernels(kind).into_iter().for_each(|kernel| matrices.check(kernel, 2));
    }
}

#[test]
fn regression_rows_longer_than_the_second_cache_are_multiplied_too() {
    for kind in [Kind::Q8, Kind::F16] {
        let matrices = Matrices::new(kind, [(256 << 10) + BLOCK, 1, 5], 13);
        kernels(kind).into_iter().for_each(|kernel| matrices.check(kernel, 1));
    }
}

#[test]
fn an_output_does_not_depend_on_the_other_rows_or_on_threads() {
    for kind in [Kind::Q8, Kind::F16] {
        let all = Matrices::new(kind, [320, 40, 37], 3);
        for kernel in kernels(kind) {
            let whole = all.by(kernel, 1);
            assert_eq!(whole, all.by(kernel, 3), "{kernel:?}");
            for rows in [1, 2, 5, 13] {
                let some = Matrices {
                    from: all.from[..rows * 320].to_vec(),
                    weights: all.weights.clone(),
                    numbers: vec![],
                    ..all
                };
                assert_eq!(whole[..rows * 40], some.by(kernel, 1), "{kernel:?}, {rows} rows");
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_so() {
    for kind in [Kind::Q8, Kind::F16] {
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for place in [0, 9, 63] {
                let mut matrices = Matrices::new(kind, [64, 16, 3], 5);
                matrices.from[64 + place] = odd;
                for kernel in kernels(kind) {
                    let found = matrices.by(kernel, 1);
                    assert!(found[16..32].iter().all(|sum| !sum.is_finite()), "{kernel:?} {odd} at {place}");
                    assert!(found[..16].iter().chain(&found[32..]).all(|sum| sum.is_finite()), "{kernel:?} {odd}");
                }
            }
        }
    }
}

#[test]
fn rows_of_zeros_give_zeros() {
    for kind in [Kind::Q8, Kind::F16] {
        let mut matrices = Matrices::new(kind, [96, 20, 6], 11);
        matrices.from.fill(0.0);
        for kernel in kernels(kind) {
            assert!(matrices.by(kernel, 2).iter().all(|sum| *sum == 0.0), "{kernel:?}");
        }
    }
}

/// A tensor of a graph, in one piece, whose numbers nobody reads.
fn tensor(
    kind: sys::ggml_type,
    unit: usize,
    numbers: i64,
    ne: [i64; 4],
    buffer: sys::ggml_backend_buffer_t,
) -> sys::ggml_tensor {
    // SAFETY: the struct consists of numbers, arrays of numbers and pointers, for which zero is valid.
    let mut tensor: sys::ggml_tensor = unsafe { std::mem::zeroed() };
    (tensor.type_, tensor.ne, tensor.buffer) = (kind, ne, buffer);
    let mut bytes = unit;
    for (step, count) in tensor.nb.iter_mut().zip([ne[0] / numbers, ne[1], ne[2], ne[3]]) {
        *step = bytes;
        bytes *= count as usize;
    }
    tensor
}

#[test]
fn only_products_of_batches_with_whole_matrices_are_replaced() {
    crate::backend::backend().unwrap();
    if [Kind::Q8, Kind::F16].into_iter().all(|kind| Kernel::of(kind).is_none()) {
        return;
    }
    // SAFETY: llama.cpp is started.
    let buffer = unsafe { sys::ggml_backend_buft_alloc_buffer(sys::ggml_backend_cpu_buffer_type(), 64) };
    let (q8, f32) = (sys::GGML_TYPE_Q8_0, sys::GGML_TYPE_F32);
    let is_replaced = |change: &dyn Fn(&mut [sys::ggml_tensor; 3]), rows: i64| {
        let mut all = [
            tensor(f32, 4, 1, [48, rows, 1, 1], buffer),
            tensor(q8, 34, 32, [64, 48, 1, 1], buffer),
            tensor(f32, 4, 1, [64, rows, 1, 1], buffer),
        ];
        all[0].op = sys::GGML_OP_MUL_MAT;
        change(&mut all);
        let [mut node, mut weights, mut from] = all;
        (node.src[0], node.src[1]) = (&raw mut weights, &raw mut from);
        replace(&mut node);
        node.op == sys::GGML_OP_MAP_CUSTOM2
    };
    assert!(is_replaced(&|_| (), 4) && is_replaced(&|_| (), 600));
    assert!(!is_replaced(&|_| (), 3), "one row less than pays");
    type Change = dyn Fn(&mut [sys::ggml_tensor; 3]);
    let changes: [(&str, &Change); 8] = [
        ("another operation", &|all| all[0].op = sys::GGML_OP_ADD),
        ("another kind of weights", &|all| all[1].type_ = sys::GGML_TYPE_Q4_0),
        ("activations of 16 bits", &|all| all[2].type_ = sys::GGML_TYPE_F16),
        ("weights of several matrices", &|all| all[1].ne[2] = 2),
        ("a part of longer rows", &|all| all[1].nb[1] *= 2),
        ("rows apart", &|all| all[2].nb[1] += 4),
        ("columns for rows", &|all| (all[2].nb[0], all[2].nb[1]) = (all[2].nb[1], 4)),
        ("memory of a device", &|all| all[1].buffer = std::ptr::null_mut()),
    ];
    for (what, change) in changes {
        assert!(!is_replaced(change, 8), "{what}");
    }
    // SAFETY: no tensor uses it any more.
    unsafe { sys::ggml_backend_buffer_free(buffer) };
}
