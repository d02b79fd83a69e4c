//! What the pace of prefill costs and what it saves, simulated: the worker runs on an engine that only takes time.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "support/worker.rs"]
mod support;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use camshaft_core::engine::{Batch, EngineLimits};
use camshaft_core::ids::Token;
use camshaft_core::message::Event;
use camshaft_core::sampling::SamplingParams;
use camshaft_core::worker::Step;
use support::{Even, worker};

const LIMITS: EngineLimits =
    EngineLimits { sequences: 32, kv_tokens: 262_144, batch_tokens: 512, context_tokens: 8192 };
/// The default of `step-target`.
const TARGET: Duration = Duration::from_millis(6);
/// By how much of itself a step may take longer or shorter.
const NOISE: f64 = 0.2;
/// How many times as long as without prefill a step may take with one prompt beside eight streams or more, where the target is
/// shorter.
const SLOWER: f64 = 2.8;
/// How many times as much time there is for a prompt beside up to four streams (8 / 4 to the power 2.6), and for many prompts.
const BESIDE_FEW: f64 = 6.06;
const MOST: f64 = 7.0;
/// Paces nothing.
const NEVER: Duration = Duration::from_secs(3600);

/// What a step takes, in milliseconds: measured on two cores as far as docs/benchmarks.md says (Pace).
#[derive(Debug, Clone, Copy)]
struct Curve {
    name: &'static str,
    /// Of any step.
    step: f64,
    /// For each sequence that decodes.
    row: f64,
    /// For each of them and each thousand entries that it attends to.
    read: f64,
    /// For prefill, however short.
    prefill: f64,
    /// For each prompt token, wherever it is.
    token: f64,
    /// For each token and each thousand entries that it attends to.
    attended: f64,
}

const CURVES: [Curve; 4] = [
    Curve { name: "stories260K", step: 0.15, row: 0.05, read: 0.05, prefill: 0.03, token: 0.006, attended: 0.02 },
    Curve { name: "30m", step: 0.8, row: 0.17, read: 0.5, prefill: 1.4, token: 0.042, attended: 0.074 },
    Curve { name: "160m", step: 3.0, row: 0.45, read: 1.06, prefill: 3.3, token: 0.27, attended: 0.31 },
    Curve { name: "1b", step: 40.0, row: 3.0, read: 3.5, prefill: 16.0, token: 3.1, attended: 1.5 },
];

impl Curve {
    /// What a step with this batch takes.
    fn time(&self, batch: &Batch) -> Duration {
        // A sequence with one token decodes, or computes the last token of its prompt, which is as good.
        let mut tokens = BTreeMap::<_, (usize, f64)>::new();
        for (seq, &position) in batch.seqs.iter().zip(&batch.positions) {
            let (count, entries) = tokens.entry(*seq).or_default();
            (*count, *entries) = (*count + 1, *entries + f64::from(position) + 1.0);
        }
        let sum = |of_rows: bool| {
            let those = tokens.values().filter(|(count, _)| (*count == 1) == of_rows);
            those.fold((0, 0.0), |(tokens, entries), (more, others)| (tokens + more, entries + others / 1e3))
        };
        let [(rows, read), (prompt, attended)] = [true, false].map(sum);
        let first = if prompt > 0 { self.prefill } else { 0.0 };
        let decoding = self.step + self.row * rows as f64 + self.read * read;
        let took = decoding + first + self.token * prompt as f64 + self.attended * attended;
        Duration::from_secs_f64(took / 1e3)
    }

    /// When what steps take is known.
    fn later(&self) -> Duration {
        Duration::from_secs_f64((self.step + self.row) / 1e3 * 100.0)
    }
}

/// A request that arrives.
#[derive(Debug, Clone, Copy)]
struct Arrival {
    at: Duration,
    prompt: u32,
    tokens: u32,
    /// It arrives when this one has ended, at once.
    after: Option<usize>,
}

/// When a request arrived, and when each of its tokens came.
#[derive(Debug, Clone, Default)]
struct Trace {
    arrived: Duration,
    tokens: Vec<Duration>,
}

impl Trace {
    fn first(&self) -> Duration {
        self.tokens[0] - self.arrived
    }

    /// Between tokens while somebody else's prompt is computed.
    fn gaps(&self, from: Duration, to: Duration) -> impl Iterator<Item = Duration> + '_ {
        let pairs = self.tokens.windows(2).filter(move |pair| pair[1] >= from && pair[0] <= to);
        pairs.map(|pair| pair[1] - pair[0])
    }
}

/// Runs the arrivals to their ends.
fn run(curve: Curve, target: Duration, arrivals: &[Arrival]) -> Vec<Trace> {
    let mut worker = worker(LIMITS, 0, target);
    let now = Cell::new(Duration::ZERO);
    let logits = (0..257).map(|id| if id == 97 { 1.0 } else { -5.0 }).collect();
    let mut noise = 1u32;
    let on_decode = |batch: &Batch| {
        noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let around = 1.0 + NOISE * (f64::from(noise) / f64::from(u32::MAX) * 2.0 - 1.0);
        now.set(now.get() + curve.time(batch).mul_f64(around));
    };
    let mut engine = Even { limits: LIMITS, logits, on_decode };
    let (mut events, mut traces) = (Vec::new(), vec![Trace::default(); arrivals.len()]);
    let (mut begun, mut ended) = (vec![false; arrivals.len()], vec![false; arrivals.len()]);
    while ended.contains(&false) {
        for (id, &arrival) in arrivals.iter().enumerate() {
            let is_due = arrival.after.map_or(arrival.at <= now.get(), |other| ended[other]);
            if is_due && !std::mem::replace(&mut begun[id], true) {
                // One that arrives during a step has waited since.
                traces[id].arrived = arrival.after.map_or(arrival.at, |_| now.get());
                // None shares a prefix with another.
                let prompt = (0..arrival.prompt).map(|at| Token((at as usize * 7 + id * 13) as u32 % 251)).collect();
                let start = support::start(id as u64, prompt, arrival.tokens, SamplingParams::greedy(), Vec::new());
                worker.handle(start, &mut engine, &mut events);
            }
        }
        if !matches!(worker.step(now.get(), &mut engine, &mut events), Step::Decoded { .. }) {
            now.set(now.get() + Duration::from_micros(100));
        }
        for event in events.drain(..) {
            let id = event.id().0 as usize;
            match event {
                Event::Delta { delta, .. } => {
                    (0..delta.text.len()).for_each(|_| traces[id].tokens.push(now.get()));
                }
                Event::Finished { .. } => ended[id] = true,
                Event::Failed { error, .. } => panic!("{error}"),
                _ => {}
            }
        }
    }
    traces
}

fn at_once(count: usize, prompt: u32, tokens: u32) -> Vec<Arrival> {
    let at = |number: usize| Duration::from_micros(300 * number as u64);
    (0..count).map(|number| Arrival { at: at(number), prompt, tokens, after: None }).collect()
}

/// Clients that ask again when they are answered.
fn loops(clients: usize, rounds: usize, prompt: u32, tokens: u32) -> Vec<Arrival> {
    let mut all = at_once(clients, prompt, tokens);
    for number in clients..clients * rounds {
        all.push(Arrival { at: Duration::ZERO, prompt, tokens, after: Some(number - clients) });
    }
    all
}

fn seconds(traces: &[Trace]) -> f64 {
    let last = traces.iter().filter_map(|trace| trace.tokens.last()).max().unwrap();
    last.as_secs_f64()
}

fn mean_first(traces: &[Trace]) -> f64 {
    traces.iter().map(|trace| trace.first().as_secs_f64()).sum::<f64>() / traces.len() as f64
}

fn percentile(mut values: Vec<Duration>, share: f64) -> f64 {
    values.sort();
    values[((values.len() as f64 * share) as usize).min(values.len() - 1)].as_secs_f64()
}

/// How fast the paced worker is, and how long a first token takes on average, both as shares of the worker without a pace.
fn shares(curve: Curve, arrivals: &[Arrival]) -> (f64, f64) {
    let [paced, free] = [TARGET, NEVER].map(|target| run(curve, target, arrivals));
    (seconds(&free) / seconds(&paced), mean_first(&paced) / mean_first(&free))
}

/// The streams' 99th percentile from the first prompt's arrival to the last one's first token.
fn worst_gap(streams: &[Trace], prompts: &[Trace]) -> f64 {
    let from = prompts.iter().map(|trace| trace.arrived).min().unwrap();
    let to = prompts.iter().map(|trace| trace.tokens[0]).max().unwrap();
    percentile(streams.iter().flat_map(|trace| trace.gaps(from, to)).collect(), 0.99)
}

fn usual_gap(streams: &[Trace]) -> f64 {
    percentile(streams.iter().flat_map(|trace| trace.gaps(Duration::ZERO, NEVER)).collect(), 0.5)
}

/// Seconds that a step may take that gives prefill `backlog` times the least: what is expected may be off by as much as the
/// noise, also where no step was at such a position yet.
fn longest(usual: f64, backlog: f64) -> f64 {
    (1.0 + 2.0 * NOISE) * ((1.0 + (SLOWER - 1.0) * backlog) * usual).max(backlog * TARGET.as_secs_f64())
}

#[test]
fn a_burst_costs_next_to_nothing() {
    for curve in CURVES {
        for (streams, arrivals) in [(8, at_once(8, 58, 48)), (32, at_once(32, 58, 48)), (32, loops(32, 6, 58, 64))] {
            let (speed, first) = shares(curve, &arrivals);
            println!(
                "{:12} {streams} streams, {} requests: speed {speed:.3} first {first:.2}",
                curve.name,
                arrivals.len()
            );
            assert!(speed > 0.98 && first < 1.05);
        }
    }
}

#[test]
fn long_prompts_cost_little() {
    for curve in CURVES {
        for (clients, rounds, prompt) in [(4, 6, 1570), (16, 4, 1570), (4, 4, 4000)] {
            let (speed, first) = shares(curve, &loops(clients, rounds, prompt, 64));
            println!("{:12} {clients} clients, prompts of {prompt}: speed {speed:.3} first {first:.2}", curve.name);
            assert!(speed >= 0.97 && first < 1.6);
        }
    }
}

#[test]
fn streams_go_on_while_a_long_prompt_comes() {
    for curve in CURVES {
        for (streams, prompt) in [(1, 4000), (4, 4000), (8, 1000), (8, 4000), (24, 4000)] {
            let mut arrivals = at_once(streams, 32, 600);
            arrivals.push(Arrival { at: curve.later(), prompt, tokens: 4, after: None });
            let [paced, free] = [TARGET, NEVER].map(|target| run(curve, target, &arrivals));
            let p99 = |traces: &[Trace]| worst_gap(&traces[..streams], &traces[streams..]);
            let (gap, usual) = (p99(&paced), usual_gap(&paced[..streams]));
            let first = paced[streams].first().as_secs_f64() / free[streams].first().as_secs_f64();
            println!(
                "{:12} {streams} streams, a prompt of {prompt}: p99 gap {:.2} of the free one, {:.1} steps; first {first:.2}",
                curve.name,
                gap / p99(&free),
                gap / usual
            );
            let backlog = if streams < 8 { BESIDE_FEW } else { 1.0 };
            assert!(gap < longest(usual, backlog) && first < 2.2);
            // The target is the shorter, but for the smallest model.
            assert!(streams < 8 || gap <= (4.0 * usual).max(TARGET.as_secs_f64() * (1.0 + 2.0 * NOISE)));
        }
    }
}

#[test]
fn regression_streams_go_on_while_others_send_one_long_prompt_after_the_other() {
    for curve in CURVES {
        for streams in [1, 4, 8] {
            let mut arrivals = at_once(streams, 32, 600);
            let later = curve.later();
            let prompts = loops(streams, 3, 1570, 1).into_iter();
            let prompts =
                prompts.map(|one| Arrival { at: one.at + later, after: one.after.map(|at| at + streams), ..one });
            arrivals.extend(prompts);
            let traces = run(curve, TARGET, &arrivals);
            let (gap, usual) = (worst_gap(&traces[..streams], &traces[streams..]), usual_gap(&traces[..streams]));
            println!("{:12} {streams} streams, as many prompts: p99 gap {:.1} steps", curve.name, gap / usual);
            assert!(gap < longest(usual, MOST));
        }
    }
}
