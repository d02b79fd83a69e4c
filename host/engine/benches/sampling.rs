//! Compares the native standard chain with llama.cpp's, with the same parameters: `cargo xtask bench kernels`.
#![allow(missing_docs, reason = "criterion's macros make public items")]
use std::hint::black_box;

use camshaft_core::sampling::{Row, SamplingParams, StandardChain};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use llama_cpp_2::sampling::LlamaSampler;
use llama_cpp_2::token::LlamaToken;
use llama_cpp_2::token::data::LlamaTokenData;
use llama_cpp_2::token::data_array::LlamaTokenDataArray;

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

/// Copies a row into the array that llama.cpp's samplers work on, as `llama_sampler_sample` does.
fn fill(array: &mut LlamaTokenDataArray, logits: &[f32]) {
    array.data.clear();
    array.data.extend((0..).zip(logits).map(|(token, &logit)| LlamaTokenData::new(LlamaToken(token), logit, 0.0)));
    (array.selected, array.sorted) = (None, false);
}

fn chains(c: &mut Criterion) {
    let standard = SamplingParams::default();
    let all = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    let mut group = c.benchmark_group("standard chain");
    for size in [32_000u32, 128_256] {
        let logits = logits(size);
        for (name, params) in [("defaults", &standard), ("temperature only", &all)] {
            let chain = StandardChain::new(params.clone());
            let mut row = Row::new(&[], 1);
            group.bench_function(BenchmarkId::new(format!("native, {name}"), size), |b| {
                b.iter(|| {
                    row.load(black_box(&logits)).map_err(|error| error.to_string())?;
                    chain.shape(&mut row).map_err(|error| error.to_string())?;
                    Ok::<_, String>(row.draw())
                });
            });
            let mut theirs = LlamaSampler::chain(
                [
                    LlamaSampler::top_k(params.top_k as i32),
                    LlamaSampler::top_p(params.top_p, 1),
                    LlamaSampler::min_p(params.min_p, 1),
                    LlamaSampler::temp(params.temperature),
                    LlamaSampler::dist(1),
                ],
                true,
            );
            let mut array = LlamaTokenDataArray::new(Vec::with_capacity(size as usize), false);
            group.bench_function(BenchmarkId::new(format!("llama.cpp, {name}"), size), |b| {
                b.iter(|| {
                    fill(&mut array, black_box(&logits));
                    theirs.apply(&mut array);
                    array.selected_token()
                });
            });
            // Without the time to fill the array.
            let mut filled = LlamaTokenDataArray::new(Vec::with_capacity(size as usize), false);
            fill(&mut filled, &logits);
            let whole = filled.data.clone();
            group.bench_function(BenchmarkId::new(format!("llama.cpp without filling, {name}"), size), |b| {
                b.iter_batched_ref(
                    || LlamaTokenDataArray::new(whole.clone(), false),
                    |array| {
                        theirs.apply(array);
                        array.selected_token()
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
