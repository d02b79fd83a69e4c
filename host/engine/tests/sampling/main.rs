//! The native chain draws from the same distribution as llama.cpp's own chain.
#![allow(clippy::unwrap_used, reason = "tests")]
mod theirs;

use std::collections::BTreeMap;

use camshaft_core::ids::Token;
use camshaft_core::sampling::{LogitBias, Row, SamplingParams, StandardChain};
use llama_cpp_sys_2::llama_logit_bias;
use theirs::{Candidates, Sampler};

const DRAWS: u32 = 100_000;

/// A few likely tokens and a long tail.
fn logits(size: u32) -> Vec<f32> {
    (0..size).map(|token| ((token * 7919) % size) as f32 / size as f32 * 6.0 - 3.0).collect()
}

/// Probabilities by token after llama.cpp's chain.
fn reference(logits: &[f32], prompt: &[Token], params: &SamplingParams) -> BTreeMap<u32, f64> {
    let size = logits.len() as i32;
    let bias = |bias: &LogitBias| llama_logit_bias { token: bias.token.0 as i32, bias: bias.bias };
    let biases: Vec<llama_logit_bias> = params.logit_bias.iter().map(bias).collect();
    let mut penalty = Sampler::repeat_penalty(size, params.repeat_last_n as i32, params.repeat_penalty);
    prompt.iter().for_each(|token| penalty.accept(token.0));
    let mut samplers = vec![Sampler::logit_bias(size, &biases), penalty];
    samplers.extend((params.top_k > 0).then(|| Sampler::top_k(params.top_k as i32)));
    samplers.push(Sampler::typical(params.typical_p));
    samplers.push(Sampler::top_p(params.top_p));
    samplers.push(Sampler::min_p(params.min_p));
    samplers.push(Sampler::temperature(params.temperature));
    let mut candidates = Candidates::of(logits);
    Sampler::chain(samplers).apply(&mut candidates);
    let best = candidates.list.iter().map(|d| d.logit).fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<(u32, f64)> =
        candidates.list.iter().map(|d| (d.id as u32, f64::from(d.logit - best).exp())).collect();
    let total: f64 = weights.iter().map(|(_, w)| w).sum();
    weights.into_iter().map(|(token, w)| (token, w / total)).collect()
}

/// Pearson's chi-square statistic and its number of cells. Tokens with fewer than 5 expected draws share a cell.
fn chi_square(expected: &BTreeMap<u32, f64>, seen: &BTreeMap<u32, u32>) -> (f64, usize) {
    let (mut statistic, mut cells) = (0.0, 0);
    let (mut rare_expected, mut rare_seen) = (0.0, 0.0);
    for (token, probability) in expected {
        let (expected, seen) = (probability * f64::from(DRAWS), f64::from(seen.get(token).copied().unwrap_or(0)));
        if expected < 5.0 {
            (rare_expected, rare_seen) = (rare_expected + expected, rare_seen + seen);
        } else {
            statistic += (seen - expected).powi(2) / expected;
            cells += 1;
        }
    }
    if rare_expected >= 5.0 {
        statistic += (rare_seen - rare_expected).powi(2) / rare_expected;
        cells += 1;
    }
    (statistic, cells)
}

#[test]
fn a_hundred_thousand_draws_have_the_distribution_of_llama_cpp() {
    let prompt = [Token(3), Token(17), Token(17)];
    let off = SamplingParams::default();
    let cases = [
        ("llama.cpp's defaults", 1000, SamplingParams::llama_cpp()),
        ("everything off", 300, off.clone()),
        ("temperature", 200, SamplingParams { temperature: 2.5, ..off.clone() }),
        ("top-p", 1000, SamplingParams { top_p: 0.6, ..off.clone() }),
        ("min-p", 1000, SamplingParams { min_p: 0.3, ..off.clone() }),
        ("typical", 200, SamplingParams { typical_p: 0.7, ..off.clone() }),
        (
            "bias and penalty",
            100,
            SamplingParams {
                repeat_penalty: 1.5,
                logit_bias: vec![LogitBias { token: Token(5), bias: 3.0 }, LogitBias { token: Token(6), bias: -100.0 }],
                ..off
            },
        ),
    ];
    for (name, size, params) in cases {
        let logits = logits(size);
        let expected = reference(&logits, &prompt, &params);
        let chain = StandardChain::new(params);
        let mut row = Row::new(&prompt, 20_261_121);
        let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
        for _ in 0..DRAWS {
            row.load(&logits).unwrap();
            chain.shape(&mut row).unwrap();
            *seen.entry(row.draw().unwrap().0).or_default() += 1;
        }
        for token in seen.keys() {
            assert!(expected.contains_key(token), "{name}: token {token} has probability 0");
        }
        let (statistic, cells) = chi_square(&expected, &seen);
        // Mean and standard deviation of the distribution with this many degrees of freedom.
        let freedom = (cells - 1) as f64;
        let bound = freedom + 4.0 * (2.0 * freedom).sqrt();
        assert!(statistic < bound, "{name}: {statistic:.1} with {freedom} degrees of freedom, bound {bound:.1}");
    }
}

#[test]
fn the_statistic_detects_a_wrong_distribution() {
    let expected = reference(&logits(100), &[], &SamplingParams { top_k: 0, ..SamplingParams::llama_cpp() });
    let even: BTreeMap<u32, u32> = expected.keys().map(|&token| (token, DRAWS / expected.len() as u32)).collect();
    let (statistic, cells) = chi_square(&expected, &even);
    assert!(statistic > 10.0 * cells as f64);
}
