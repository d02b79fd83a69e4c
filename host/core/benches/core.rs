//! Sampling kernels, the prefix tree and the ledger: `cargo xtask bench kernels`.
#![allow(missing_docs, reason = "criterion's macros make public items")]
use std::hint::black_box;

use camshaft_core::ids::{RequestId, Token};
use camshaft_core::ledger::Ledger;
use camshaft_core::prefix::PrefixTree;
use camshaft_core::sampling::{LogitBias, Row, SamplingParams, StandardChain};
use camshaft_core::segments::Namespace;
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};

/// Logits as they come from models: few stand out. Xorshift (Marsaglia 2003), so that every run has the same.
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

fn sampling(c: &mut Criterion) {
    let mut group = c.benchmark_group("sampling");
    for size in [32_000, 128_256] {
        let logits = logits(size);
        let mut row = Row::new(&[], 1);
        let chain = StandardChain::new(SamplingParams::llama_cpp());
        let all = StandardChain::new(SamplingParams { temperature: 0.8, ..SamplingParams::default() });
        group.bench_function(BenchmarkId::new("load", size), |b| b.iter(|| row.load(black_box(&logits))));
        for (name, chain) in [("standard chain and draw", &chain), ("temperature and draw", &all)] {
            group.bench_function(BenchmarkId::new(name, size), |b| {
                b.iter(|| {
                    row.load(black_box(&logits)).map_err(|error| error.to_string())?;
                    chain.shape(&mut row).map_err(|error| error.to_string())?;
                    Ok::<_, String>(row.draw())
                });
            });
        }
    }
    group.finish();
}

/// Every parameter that a client may choose, by itself and with nothing cut off first: the dearest way to use it.
fn parameters(c: &mut Criterion) {
    let mut group = c.benchmark_group("parameters");
    let size = 128_256;
    let (peaked, flat) = (logits(size), vec![0.0; size as usize]);
    let off = SamplingParams::default;
    let bias = |i: u32| LogitBias { token: Token(i * 125), bias: 1.0 };
    let cases = [
        ("none", off()),
        ("top_k 100,000", SamplingParams { top_k: 100_000, ..off() }),
        ("top_p 0.99", SamplingParams { top_p: 0.99, ..off() }),
        ("min_p 1e-9", SamplingParams { min_p: 1e-9, ..off() }),
        ("typical_p 0.5", SamplingParams { typical_p: 0.5, ..off() }),
        ("typical_p 0.99", SamplingParams { typical_p: 0.99, ..off() }),
        ("repeat_penalty, 4,096 tokens", SamplingParams { repeat_penalty: 1.1, repeat_last_n: 4096, ..off() }),
        ("frequency and presence", SamplingParams { frequency_penalty: 0.5, presence_penalty: 0.5, ..off() }),
        ("logit_bias, 1,024 tokens", SamplingParams { logit_bias: (0..1024).map(bias).collect(), ..off() }),
        (
            "all of them",
            SamplingParams {
                top_k: 100_000,
                top_p: 0.99,
                min_p: 1e-9,
                typical_p: 0.99,
                repeat_penalty: 1.1,
                repeat_last_n: 4096,
                frequency_penalty: 0.5,
                presence_penalty: 0.5,
                logit_bias: (0..1024).map(bias).collect(),
                ..off()
            },
        ),
    ];
    for (kind, logits) in [("peaked", &peaked), ("flat", &flat)] {
        for (name, params) in &cases {
            let prompt: Vec<Token> = (0..4096).map(|i| Token(i * 31)).collect();
            let mut row = Row::new(&prompt[..2048], 1);
            prompt[2048..].iter().for_each(|&token| row.accept(token, b"x"));
            let chain = StandardChain::new(params.clone());
            group.bench_function(BenchmarkId::new(*name, kind), |b| {
                b.iter(|| {
                    row.load(black_box(logits)).map_err(|error| error.to_string())?;
                    chain.shape(&mut row).map_err(|error| error.to_string())?;
                    Ok::<_, String>(row.draw())
                });
            });
        }
    }
    group.finish();
}

fn prefix_tree(c: &mut Criterion) {
    let mut group = c.benchmark_group("prefix tree");
    let tenant = Namespace::Tenant("t".into());
    // A common part of 1 000 tokens, then 200 of each request's own.
    let run = |own: u32| -> Vec<Token> { (0..1000).chain((0..200).map(|i| own * 1000 + i)).map(Token).collect() };
    let mut tree = PrefixTree::default();
    for own in 1..=1000 {
        tree.enter(&tenant, &run(own));
    }
    let (known, new) = (run(500), run(5000));
    group.bench_function("probe among 1 000 requests", |b| b.iter(|| tree.probe(&tenant, black_box(&known))));
    group.bench_function("enter and leave among 1 000 requests", |b| {
        b.iter(|| {
            let leaf = tree.enter(&tenant, black_box(&new));
            tree.leave(leaf, RequestId(5000));
        });
    });
    group.finish();
}

fn ledger(c: &mut Criterion) {
    let filled = || {
        let mut ledger = Ledger::new(1 << 20);
        for id in 0..256 {
            let _ = ledger.reserve(RequestId(id), 100);
        }
        ledger
    };
    c.bench_function("ledger: reserve, grow, release among 256", |b| {
        b.iter_batched_ref(
            filled,
            |ledger| {
                let _ = black_box(ledger.reserve(RequestId(999), 64));
                let _ = black_box(ledger.grow(RequestId(999), 64));
                ledger.release(RequestId(999));
            },
            BatchSize::SmallInput,
        );
    });
}

criterion_group!(benches, sampling, parameters, prefix_tree, ledger);
criterion_main!(benches);
