//! What an input costs to embed: `embed_cost MODEL THREADS INPUTS TOKENS ROUNDS`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::ids::Token;
use camshaft_core::jobs::BatchModel;
use camshaft_engine::{FlashAttention, LlamaEmbedder, LoadOptions, LoadedModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let model = LoadedModel::from_file(Path::new(&a[0]), &LoadOptions::default())?;
    let (threads, inputs, tokens, rounds): (u32, u32, u32, u32) =
        (a[1].parse()?, a[2].parse()?, a[3].parse()?, a[4].parse()?);
    let mut embedder = LlamaEmbedder::new(&model, (inputs * tokens).max(512), u32::MAX, threads, FlashAttention::Auto)?;
    let batch: Vec<Arc<[Token]>> =
        (0..inputs).map(|i| (0..tokens).map(|p| Token(1000 + (i * 7919 + p * 104_729) % 20_000)).collect()).collect();
    embedder.compute(&batch)?;
    let mut best = f64::MAX;
    for _ in 0..rounds {
        let begun = Instant::now();
        embedder.compute(&batch)?;
        best = best.min(begun.elapsed().as_secs_f64());
    }
    println!("{inputs} x {tokens}: {:.2} ms, {:.4} ms/token", best * 1e3, best * 1e3 / f64::from(inputs * tokens));
    Ok(())
}
