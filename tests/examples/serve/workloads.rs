//! The workloads, and the figure that each one reports.
use std::time::{Duration, Instant};

use crate::client::{Sampling, Stream, Target};
use crate::report::{OWN, Report};
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

/// What one run of one workload came to.
struct Run {
    /// Tokens per second.
    speed: f64,
    /// Mean time to first token, in milliseconds.
    first: f64,
}

fn run(begun: Instant, streams: &[Stream]) -> Run {
    let tokens: u32 = streams.iter().map(|stream| stream.tokens).sum();
    let first: Vec<f64> = streams.iter().map(Stream::first).collect();
    Run { speed: f64::from(tokens) / begun.elapsed().as_secs_f64(), first: mean(&first) * 1e3 }
}

/// Several rounds of streams that start together.
fn bursts(target: &Target, streams: u32, rounds: u32, prompt: u32, tokens: u32) -> Result<Run> {
    let prompts = || -> Vec<Vec<u32>> { (0..streams).map(|_| target.fresh(prompt)).collect() };
    target.streams(&prompts(), tokens)?;
    let (begun, mut all) = (Instant::now(), Vec::new());
    for _ in 0..rounds {
        all.extend(target.streams(&prompts(), tokens)?);
    }
    Ok(run(begun, &all))
}

/// Clients that send their next request when the last one is answered.
fn clients(target: &Target, clients: u32, rounds: u32, prompt: u32, tokens: u32) -> Result<Run> {
    let begun = Instant::now();
    let all = std::thread::scope(|scope| -> Result<Vec<Stream>> {
        let client = || (0..rounds).map(|_| target.stream(&target.fresh(prompt), tokens)).collect::<Result<Vec<_>>>();
        let running: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        let ended = running.into_iter().map(|client| client.join().map_err(|_| "a client panicked")?);
        Ok(ended.collect::<Result<Vec<_>>>()?.concat())
    })?;
    Ok(run(begun, &all))
}

/// Servers in the order of one repeat, which alternates: Camshaft is first or last, and the bare loop next to it.
fn turn(targets: &[Target], repeat: u32) -> Vec<&Target> {
    let mut order: Vec<&Target> = targets.iter().collect();
    if repeat % 2 == 1 {
        order.reverse();
    }
    order
}

/// `1 stream at once`, `8 streams at once`.
fn at_once(streams: u32) -> String {
    if streams == 1 { "1 stream at once".to_owned() } else { format!("{streams} streams at once") }
}

/// Distinct prompts.
pub(crate) fn distinct(options: &Options, targets: &[Target], streams: u32, report: &mut Report) -> Result<()> {
    let name = |sampling: Sampling| format!("{}, {}'s sampling", at_once(streams), sampling.name());
    let alone = |report: &mut Report| -> Result<()> {
        if options.bare {
            let speed = bare(options, streams, PROMPT, options.tokens)?;
            report.add(&name(options.samplings[0]), "tokens/s", "bare", speed);
        }
        Ok(())
    };
    for repeat in 0..options.repeats {
        if repeat % 2 == 0 {
            alone(report)?;
        }
        let mut samplings = options.samplings.clone();
        if repeat % 2 == 1 {
            samplings.reverse();
        }
        for sampling in samplings {
            for target in turn(targets, repeat) {
                let before = target.costs();
                let run = bursts(&target.sampling(sampling), streams, options.rounds, PROMPT, options.tokens)?;
                if let (Some(_), Some(before), Some(after)) = (&options.beside, before, target.costs()) {
                    // With the first burst, which is not measured.
                    let tokens = f64::from(streams * options.tokens * (options.rounds + 1));
                    let mut add = |what, unit, value| {
                        report.add(&format!("{}: {what}", at_once(streams)), unit, &target.name, value)
                    };
                    add("CPU time of a token", "us", (after.cpu_seconds - before.cpu_seconds) * 1e6 / tokens);
                    add(
                        "wake-ups of a step",
                        "",
                        after.wakes.saturating_sub(before.wakes) as f64 * f64::from(streams) / tokens,
                    );
                    add("memory", "MiB", after.bytes as f64 / f64::from(1 << 20));
                }
                report.add(&name(sampling), "tokens/s", &target.name, run.speed);
                if sampling == options.samplings[0] {
                    report.add(&format!("{}: first token", at_once(streams)), "ms", &target.name, run.first);
                }
            }
        }
        if repeat % 2 == 1 {
            alone(report)?;
        }
    }
    Ok(())
}

/// Clients that ask again as soon as they are answered.
pub(crate) fn steady(options: &Options, targets: &[Target], streams: u32, report: &mut Report) -> Result<()> {
    for repeat in 0..options.repeats {
        for target in turn(targets, repeat) {
            let run = clients(target, streams, options.rounds + 1, PROMPT, options.tokens)?;
            report.add(&format!("{streams} clients"), "tokens/s", &target.name, run.speed);
        }
    }
    Ok(())
}

/// The servers that answer `count` such prompts at once. Camshaft must, if the model can; what others say is printed.
fn with_room(name: &str, targets: &[Target], (count, prompt): (u32, u32), tokens: u32) -> Result<Vec<Target>> {
    let mut with_room = Vec::new();
    for target in targets {
        match clients(target, count, 1, prompt, tokens) {
            Ok(_) => with_room.push(target.clone()),
            // No server has room for more than the model was trained for.
            Err(error) if target.name == OWN && error.to_string().contains("context_length_exceeded") => {
                println!("{name}: not measured: the model's context is shorter");
                return Ok(Vec::new());
            }
            // A deadline of its own may pass before so much is computed.
            Err(error) if target.name == OWN && error.to_string().contains("deadline_exceeded") => {
                println!("{name}: not measured: {error}");
                return Ok(Vec::new());
            }
            Err(error) if target.name == OWN => return Err(error),
            Err(error) => println!("{name}: not measured: {error}"),
        }
    }
    Ok(with_room)
}

/// Clients with prompts of one length.
pub(crate) fn prompts(
    options: &Options,
    targets: &[Target],
    (streams, prompt): (u32, u32),
    report: &mut Report,
) -> Result<()> {
    let name = format!("{streams} clients, prompts of {prompt}");
    let targets = with_room(&name, targets, (streams, prompt), options.tokens)?;
    for repeat in 0..options.repeats {
        for target in turn(&targets, repeat) {
            let run = clients(target, streams, 2, prompt, options.tokens)?;
            report.add(&name, "tokens/s", &target.name, run.speed);
            report.add(&format!("{name}: first token"), "ms", &target.name, run.first);
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
    for repeat in 0..options.repeats {
        for target in turn(targets, repeat) {
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

/// A long prompt that arrives while 8 streams are being answered: <https://github.com/ggml-org/llama.cpp/issues/29175>.
pub(crate) fn long(options: &Options, targets: &[Target], length: u32, report: &mut Report) -> Result<()> {
    let name = format!("prompt of {length} among 8 streams");
    let targets = with_room(&name, targets, (1, length), 4)?;
    for repeat in 0..options.repeats {
        for target in turn(&targets, repeat) {
            let prompts: Vec<Vec<u32>> = (0..8).map(|_| target.fresh(PROMPT)).collect();
            let (streams, late) = std::thread::scope(|scope| -> Result<_> {
                let streams = scope.spawn(|| target.streams(&prompts, 400));
                std::thread::sleep(Duration::from_millis(400));
                let late = target.stream(&target.fresh(length), 4)?;
                Ok((streams.join().map_err(|_| "a client panicked")??, late))
            })?;
            let answered = *late.frames.first().ok_or("the long prompt was not answered")?;
            let far = answered + Duration::from_secs(3600);
            let mut during: Vec<f64> = streams.iter().flat_map(|s| s.gaps(late.sent, answered)).collect();
            let mut all: Vec<f64> = streams.iter().flat_map(|s| s.gaps(s.sent, far)).collect();
            report.add(&format!("{name}: their p99 gap"), "ms", &target.name, percentile(&mut during, 0.99) * 1e3);
            report.add(&format!("{name}: their longest gap"), "ms", &target.name, percentile(&mut all, 1.0) * 1e3);
            report.add(&format!("{name}: its first token"), "ms", &target.name, late.first() * 1e3);
        }
    }
    Ok(())
}

/// 8 conversations of 4 turns; each turn resends the whole conversation.
pub(crate) fn chats(options: &Options, targets: &[Target], report: &mut Report) -> Result<()> {
    for repeat in 0..options.repeats {
        for target in turn(targets, repeat) {
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

/// Inputs of about 50 tokens: one a request, or a batch of them.
pub(crate) fn embeddings(options: &Options, targets: &[Target], report: &mut Report) -> Result<()> {
    for (clients, batch) in [(1, 1), (8, 1), (32, 1), (1, 32), (4, 32)] {
        let name = format!("embeddings: {clients} clients, {batch} a request");
        // About as many inputs each time.
        let rounds = options.rounds * (256 / (clients * batch)).max(1);
        for repeat in 0..options.repeats {
            for target in turn(targets, repeat) {
                let begun = Instant::now();
                let client = || -> Result<()> {
                    for _ in 0..rounds {
                        let inputs: Vec<Vec<u32>> = (0..batch).map(|_| target.fresh(50)).collect();
                        target.embed(&inputs)?;
                    }
                    Ok(())
                };
                std::thread::scope(|scope| -> Result<()> {
                    let running: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
                    running.into_iter().try_for_each(|client| client.join().map_err(|_| "a client panicked")?)
                })?;
                let inputs = f64::from(clients * batch * rounds);
                report.add(&name, "inputs/s", &target.name, inputs / begun.elapsed().as_secs_f64());
            }
        }
    }
    Ok(())
}

/// 32 streams that need twice the KV capacity; every one must finish.
pub(crate) fn pressure(options: &Options, target: &Target, report: &mut Report) -> Result<()> {
    for _ in 0..options.repeats {
        let run = bursts(target, 32, 1, PROMPT, 224)?;
        report.add("KV over-subscribed 2x, 32 streams, all finish", "tokens/s", &target.name, run.speed);
    }
    Ok(())
}
