//! Compares the native standard chain with llama.cpp's, with the same parameters: `cargo xtask bench kernels`.
#![allow(missing_docs, reason = "criterion's macros make public items")]
use std::hint::black_box;

use camshaft_core::sampling::{Row, SamplingParams, StandardChain};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use theirs::{Candidates, Sampler};

#[path = "../tests/sampling/theirs.rs"]
mod theirs;

/// The same logits as in `camshaft-core`'s benchmark.
fn logits(size: u32) -> Vec<f32> {
    let mut state = 0x9e37_79b9u32;
    let mut uniform = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32
    };
    (0..size).map(|_| (0..4).map(|_| uniform()).sum::<f32>() * 6.0 - 12.0).collect()
}

fn chains(c: &mut Criterion) {
    let standard = SamplingParams::llama_cpp();
    let all = SamplingParams { temperature: 0.8, ..SamplingParams::default() };
    let mut group = c.benchmark_group("standard chain");
    for size in [32_000u32, 128_256] {
        let logits = logits(size);
        for (name, params) in [("llama.cpp's defaults", &standard), ("temperature only", &all)] {
            let chain = StandardChain::new(params.clone());
            let mut row = Row::new(&[], 1);
            group.bench_function(BenchmarkId::new(format!("native, {name}"), size), |b| {
                b.iter(|| {
                    row.load(black_box(&logits)).map_err(|error| error.to_string())?;
                    chain.shape(&mut row).map_err(|error| error.to_string())?;
                    Ok::<_, String>(row.draw())
                });
            });
            let mut theirs = Sampler::chain([
                Sampler::top_k(params.top_k as i32),
                Sampler::top_p(params.top_p),
                Sampler::min_p(params.min_p),
                Sampler::temperature(params.temperature),
                Sampler::draw(1),
            ]);
            let mut candidates = Candidates::of(&logits);
            group.bench_function(BenchmarkId::new(format!("llama.cpp, {name}"), size), |b| {
                b.iter(|| {
                    candidates.fill(black_box(&logits));
                    theirs.apply(&mut candidates);
                    candidates.selected_token()
                });
            });
            // Without the time to fill the list.
            let filled = Candidates::of(&logits);
            group.bench_function(BenchmarkId::new(format!("llama.cpp without filling, {name}"), size), |b| {
                b.iter_batched_ref(
                    || filled.clone(),
                    |candidates| {
                        theirs.apply(candidates);
                        candidates.selected_token()
                    },
                    criterion::BatchSize::LargeInput,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(benches, chains);
criterion_main!(benches);
