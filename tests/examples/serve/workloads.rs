//! The workloads, and the figure that each one reports.
use std::time::{Duration, Instant};

use crate::client::{Stream, Target};
use crate::report::Report;
use crate::servers::bare;
use crate::{Options, Result};

const PROMPT: u32 = 32;
/// Length of the shared system prompt.
const PREFIX: u32 = 1000;

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values
        .get(((values.len() as f64 * share) as usize).min(values.len().saturating_sub(1)))
        .copied()
        .unwrap_or(f64::NAN)
}

/// Tokens per second over several rounds of streams that start together.
fn throughput(target: &Target, streams: u32, rounds: u32, prompt: u32, tokens: u32) -> Result<f64> {
    let prompts = || -> Vec<Vec<u32>> { (0..streams).map(|_| target.fresh(prompt)).collect() };
    target.streams(&prompts(), tokens)?;
    let (begun, mut drawn) = (Instant::now(), 0);
    for _ in 0..rounds {
        drawn += target.streams(&prompts(), tokens)?.iter().map(|stream| stream.tokens).sum::<u32>();
    }
    Ok(f64::from(drawn) / begun.elapsed().as_secs_f64())
}

/// Distinct prompts.
pub(crate) fn distinct(options: &Options, targets: &[Target], streams: u32, report: &mut Report) -> Result<()> {
    let name = format!("{streams} streams, distinct prompts");
    for repeat in 0..options.repeats {
        if options.bare {
            report.add(&name, "tokens/s", "bare", bare(options, streams, PROMPT, options.tokens)?);
        }
        // Alternating the order puts each server next to the bare loop equally often.
        let mut order: Vec<&Target> = targets.iter().collect();
        if repeat % 2 == 1 {
            order.reverse();
        }
        for target in order {
            let speed = throughput(target, streams, options.rounds, PROMPT, options.tokens)?;
            report.add(&name, "tokens/s", &target.name, speed);
        }
    }
    Ok(())
}

/// Prompts that repeat themselves, greedy: without speculative decoding, then with it.
pub(crate) fn speculation(options: &Options, targets: &[Target; 2], report: &mut Report) -> Result<()> {
    for streams in [1, 8] {
        for _ in 0..options.repeats {
            // The same prompts for both, because the acceptance rate depends on the prompt.
            let prompts: Vec<Vec<u32>> = (0..streams).map(|_| targets[0].fresh(12).repeat(6)).collect();
            for (target, how) in targets.iter().zip(["plain", "4 draft tokens"]) {
                let begun = Instant::now();
                let drawn: u32 = target.streams(&prompts, 4 * options.tokens)?.iter().map(|s| s.tokens).sum();
                let name = format!("{streams} streams, greedy, prompts that repeat themselves, {how}");
                report.add(&name, "tokens/s", &target.name, f64::from(drawn) / begun.elapsed().as_secs_f64());
            }
        }
    }
    Ok(())
}

/// 32 simultaneous requests that share their first thousand tokens.
pub(crate) fn shared(options: &Options, targets: &[Target], report: &mut Report) -> Result<()> {
    for _ in 0..options.repeats {
        for target in targets {
            let prefix = target.fresh(PREFIX);
            for state in ["cold", "warm"] {
                let prompts: Vec<Vec<u32>> = (0..32).map(|_| [prefix.clone(), target.fresh(16)].concat()).collect();
                let streams = target.streams(&prompts, 32)?;
                let first: Vec<f64> = streams.iter().map(Stream::first).collect();
                let name = format!("shared prefix, {state}: mean time to first token");
                report.add(&name, "ms", &target.name, mean(&first) * 1e3);
            }
        }
    }
    Ok(())
}

/// A long prompt that arrives while 8 streams are being answered.
pub(crate) fn long(options: &Options, targets: &[Target], report: &mut Report) -> Result<()> {
    for _ in 0..options.repeats {
        for target in targets {
            let prompts: Vec<Vec<u32>> = (0..8).map(|_| target.fresh(PROMPT)).collect();
            let (streams, late) = std::thread::scope(|scope| -> Result<_> {
                let streams = scope.spawn(|| target.streams(&prompts, 400));
                std::thread::sleep(Duration::from_millis(400));
                let late = target.stream(&target.fresh(PREFIX), 4)?;
                Ok((streams.join().map_err(|_| "a client panicked")??, late))
            })?;
            let answered = *late.frames.first().ok_or("the long prompt was not answered")?;
            let far = answered + Duration::from_secs(3600);
            let mut during: Vec<f64> = streams.iter().flat_map(|s| s.gaps(late.sent, answered)).collect();
            let mut all: Vec<f64> = streams.iter().flat_map(|s| s.gaps(s.sent, far)).collect();
            let name = "long prompt among 8 streams: their p99 inter-token latency meanwhile";
            report.add(name, "ms", &target.name, percentile(&mut during, 0.99) * 1e3);
            report.add("… over their whole length", "ms", &target.name, percentile(&mut all, 0.99) * 1e3);
            report.add("… time to its own first token", "ms", &target.name, late.first() * 1e3);
        }
    }
    Ok(())
}

/// 8 conversations of 4 turns; each turn resends the whole conversation.
pub(crate) fn chats(options: &Options, targets: &[Target], report: &mut Report) -> Result<()> {
    for _ in 0..options.repeats {
        for target in targets {
            let mut prompts: Vec<Vec<u32>> = (0..8).map(|_| target.fresh(200)).collect();
            let mut first = Vec::new();
            for turn in 0..4 {
                let streams = target.streams(&prompts, 32)?;
                if turn > 0 {
                    first.extend(streams.iter().map(Stream::first));
                }
                prompts.iter_mut().for_each(|prompt| prompt.extend(target.fresh(48)));
            }
            let name = "8 chats, turns 2 to 4: mean time to first token";
            report.add(name, "ms", &target.name, mean(&first) * 1e3);
        }
    }
    Ok(())
}

/// Inputs of about 50 tokens in requests of 16, from 4 clients.
pub(crate) fn embeddings(options: &Options, targets: &[Target], report: &mut Report) -> Result<()> {
    for target in targets {
        if !target.embed(&[target.fresh(8)])?.contains("\"embedding\"") {
            println!("embeddings: {} does not serve them with this model; left out", target.name);
            return Ok(());
        }
    }
    for _ in 0..options.repeats {
        for target in targets {
            let begun = Instant::now();
            std::thread::scope(|scope| -> Result<()> {
                let clients: Vec<_> = (0..4)
                    .map(|_| {
                        scope.spawn(|| -> Result<()> {
                            for _ in 0..options.rounds {
                                let inputs: Vec<Vec<u32>> = (0..16).map(|_| target.fresh(50)).collect();
                                target.embed(&inputs)?;
                            }
                            Ok(())
                        })
                    })
                    .collect();
                clients.into_iter().try_for_each(|client| client.join().map_err(|_| "a client panicked")?)
            })?;
            let inputs = f64::from(4 * 16 * options.rounds);
            report.add("embeddings, 50 tokens each", "inputs/s", &target.name, inputs / begun.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

/// 32 streams that need twice the KV capacity; every one must finish.
pub(crate) fn pressure(options: &Options, target: &Target, report: &mut Report) -> Result<()> {
    for _ in 0..options.repeats {
        let speed = throughput(target, 32, 1, PROMPT, 224)?;
        report.add("KV over-subscribed 2x, 32 streams, all finish", "tokens/s", &target.name, speed);
    }
    Ok(())
}
