//! Runs the batches of a benchmark on the bare engine, without a server: the baseline of `docs/benchmarks.md`.
//!
//! `bare MODEL STREAMS PROMPT_TOKENS TOKENS ROUNDS THREADS KV_TOKENS [pooled]` prints tokens per second, greedy by
//! argmax.
#![allow(clippy::print_stdout, reason = "a benchmark prints its figures")]

use std::path::Path;
use std::time::Instant;

use camshaft_core::engine::{Batch, Engine};
use camshaft_core::ids::{SeqId, Token};
use camshaft_engine::{EngineOptions, KvLayout, LlamaEngine, LoadOptions, LoadedModel};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| -> Result<u32, Box<dyn std::error::Error>> {
        Ok(arguments.get(i).ok_or("bare MODEL STREAMS PROMPT_TOKENS TOKENS ROUNDS THREADS KV_TOKENS")?.parse()?)
    };
    let (streams, prompt_tokens, tokens, rounds, threads, kv_tokens) =
        (number(1)?, number(2)?, number(3)?, number(4)?, number(5)?, number(6)?);
    let pooled = arguments.get(7).is_some_and(|word| word == "pooled");
    let kv_layout = if pooled { KvLayout::Pooled } else { KvLayout::PerSequence };
    let model = LoadedModel::from_file(Path::new(&arguments[0]), &LoadOptions::default())?;
    let options =
        EngineOptions { sequences: 32, kv_tokens, kv_layout, batch_tokens: 512, threads, ..EngineOptions::default() };
    let mut engine = LlamaEngine::new(&model, &options)?;
    let vocabulary = model.info().vocabulary.size() as u32;
    // The first round warms up.
    round(&mut engine, vocabulary, (streams, prompt_tokens, tokens))?;
    let begun = Instant::now();
    for _ in 0..rounds {
        round(&mut engine, vocabulary, (streams, prompt_tokens, tokens))?;
    }
    let drawn = f64::from(streams * tokens * rounds);
    println!("{:.1}", drawn / begun.elapsed().as_secs_f64());
    Ok(())
}

/// Prefills all prompts in batches, then decodes one token of every stream per step.
fn round(
    engine: &mut LlamaEngine,
    vocabulary: u32,
    (streams, prompt_tokens, tokens): (u32, u32, u32),
) -> Result<(), Box<dyn std::error::Error>> {
    let mut batch = Batch::default();
    let mut next = vec![Token(0); streams as usize];
    let mut rows: Vec<(usize, usize)> = Vec::new();
    for stream in 0..streams {
        if batch.len() + prompt_tokens as usize > engine.limits().batch_tokens as usize {
            flush(engine, &mut batch, &mut rows, &mut next)?;
        }
        for position in 0..prompt_tokens {
            // As long as those of `tests/examples/serve/client.rs`, and without a common prefix either.
            let token = Token(3 + (stream * 7919 + position * 104_729) % (vocabulary - 3));
            let last = position + 1 == prompt_tokens;
            let row = batch.push(token, position, SeqId(stream), last);
            if last {
                rows.push((stream as usize, row));
            }
        }
    }
    flush(engine, &mut batch, &mut rows, &mut next)?;
    for position in prompt_tokens..prompt_tokens + tokens - 1 {
        for stream in 0..streams {
            let row = batch.push(next[stream as usize], position, SeqId(stream), true);
            rows.push((stream as usize, row));
        }
        flush(engine, &mut batch, &mut rows, &mut next)?;
    }
    (0..streams).for_each(|stream| engine.truncate(SeqId(stream), 0));
    Ok(())
}

fn flush(
    engine: &mut LlamaEngine,
    batch: &mut Batch,
    rows: &mut Vec<(usize, usize)>,
    next: &mut [Token],
) -> Result<(), Box<dyn std::error::Error>> {
    if batch.is_empty() {
        return Ok(());
    }
    engine.decode(batch)?;
    for (stream, row) in rows.drain(..) {
        let logits = engine.logits(row);
        let best =
            (0u32..).zip(logits).fold((0, f32::NEG_INFINITY), |best, (i, &x)| if x > best.1 { (i, x) } else { best });
        next[stream] = Token(best.0);
    }
    batch.clear();
    Ok(())
}
