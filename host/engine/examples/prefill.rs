//! What a prompt costs, up to some positions, in chunks of one width: `prefill MODEL THREADS pooled|parts CHUNK`.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]
use std::path::Path;
use std::time::Instant;

use camshaft_core::engine::{Batch, Engine};
use camshaft_core::ids::{SeqId, Token};
use camshaft_core::sizes::KvLayout;
use camshaft_engine::{EngineOptions, LlamaEngine, LoadOptions, LoadedModel};

const LAST: u32 = 4096;
const TOLD: [u32; 3] = [512, 1536, LAST];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let model = LoadedModel::from_file(Path::new(&a[0]), &LoadOptions::default())?;
    let kv_layout = if a[2] == "pooled" { KvLayout::Pooled } else { KvLayout::PerSequence };
    let (threads, chunk): (u32, u32) = (a[1].parse()?, a[3].parse()?);
    let sizes = EngineOptions { sequences: 8, kv_tokens: 8 * 8192, batch_tokens: 512, ..EngineOptions::default() };
    let mut engine = LlamaEngine::new(&model, &EngineOptions { kv_layout, threads, ..sizes })?;
    let vocabulary = model.info().vocabulary.size() as u32;
    let mut told = String::new();
    // The first round touches the memory.
    for _ in 0..2 {
        told.clear();
        let begun = Instant::now();
        for begin in (0..LAST).step_by(chunk as usize) {
            let mut batch = Batch::default();
            let end = begin + chunk;
            for position in begin..end {
                batch.push(Token(3 + position * 7919 % (vocabulary - 3)), position, SeqId(0), position + 1 == end);
            }
            engine.decode(&batch)?;
            engine.logits(batch.len() - 1);
            if TOLD.contains(&end) {
                told += &format!(" {end}: {:.1} ms", begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        engine.truncate(SeqId(0), 0);
    }
    println!("{kv_layout:?}, chunks of {chunk}:{told}");
    Ok(())
}
