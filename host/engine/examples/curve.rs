//! What a step costs by its width: `curve MODEL THREADS KV_TOKENS pooled|parts [ubatch]`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
use std::path::Path;
use std::time::Instant;

use camshaft_core::engine::{Batch, Engine};
use camshaft_core::ids::{SeqId, Token};
use camshaft_core::sizes::KvLayout;
use camshaft_engine::{EngineOptions, LlamaEngine, LoadOptions, LoadedModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let model = LoadedModel::from_file(Path::new(&a[0]), &LoadOptions::default())?;
    let kv_layout = if a[3] == "pooled" { KvLayout::Pooled } else { KvLayout::PerSequence };
    let options = EngineOptions {
        sequences: 32,
        kv_tokens: a[2].parse()?,
        kv_layout,
        batch_tokens: 512,
        threads: a[1].parse()?,
        ..EngineOptions::default()
    };
    let mut engine = LlamaEngine::new(&model, &options)?;
    let vocabulary = model.info().vocabulary.size() as u32;
    let tok = |i: u32| Token(3 + (i * 104_729) % (vocabulary - 3));
    let mut batch = Batch::default();
    for d in [0u32, 8, 31] {
        for s in 0..d {
            for p in 0..60 {
                batch.push(tok(s * 77 + p), p, SeqId(s), false);
                if batch.len() == 512 {
                    engine.decode(&batch)?;
                    batch.clear();
                }
            }
        }
        if !batch.is_empty() {
            engine.decode(&batch)?;
            batch.clear();
        }
        for w in [0u32, 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 480] {
            if w + d == 0 || w + d > 512 {
                continue;
            }
            let mut best = f64::MAX;
            for r in 0..7u32 {
                for s in 0..d {
                    batch.push(tok(r), 60, SeqId(s), true);
                }
                for p in 0..w {
                    batch.push(tok(p + r), p, SeqId(31), p + 1 == w);
                }
                let begun = Instant::now();
                engine.decode(&batch)?;
                engine.logits((w + d) as usize - 1);
                best = best.min(begun.elapsed().as_secs_f64());
                batch.clear();
                for s in 0..d {
                    engine.truncate(SeqId(s), 60);
                }
                engine.truncate(SeqId(31), 0);
            }
            println!("decode {d} prefill {w}: {:.2} ms, {:.3} ms/token", best * 1e3, best * 1e3 / f64::from(w + d));
        }
        for s in 0..d {
            engine.truncate(SeqId(s), 0);
        }
    }
    Ok(())
}
