use proptest::prelude::*;

use super::*;
use crate::sampling::RandomStream;

/// `count` draws, each with the next number of the seed's stream.
fn draws(logits: &[f32], seed: u64, count: usize) -> Vec<Option<u32>> {
    let (mut values, mut bounds) = (Values::default(), Vec::new());
    values.load(logits);
    let mut random = RandomStream::new(seed);
    (0..count).map(|_| draw(&values, &mut bounds, &mut random.next_generator())).collect()
}

/// Logits in quarters of 0 to -15.75, in no order.
fn uneven(size: usize) -> Vec<f32> {
    (0..size).map(|token| -((token * 7919 % 64) as f32) / 4.0).collect()
}

/// Pearson's statistic of the draws against the softmax, in its standard deviations from its mean, with the rare tokens as one.
fn deviation(logits: &[f32], seed: u64) -> f64 {
    const COUNT: usize = 40_000;
    let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    let mut counts = vec![0.0; logits.len()];
    draws(logits, seed, COUNT).into_iter().for_each(|token| counts[token.unwrap() as usize] += 1.0);
    let (mut rare, mut chi_square, mut parts) = ((0.0, 0.0), 0.0, 0.0);
    let mut add = |count: f64, expected: f64| {
        chi_square += (count - expected).powi(2) / expected;
        parts += 1.0;
    };
    for (&count, &logit) in counts.iter().zip(logits) {
        let expected = COUNT as f64 * f64::from(logit).exp() / total;
        assert!(count == 0.0 || expected > 0.0, "a banned token was drawn");
        if expected < 10.0 {
            rare = (rare.0 + count, rare.1 + expected);
        } else {
            add(count, expected);
        }
    }
    if rare.1 > 1.0 {
        add(rare.0, rare.1);
    }
    let freedom: f64 = parts - 1.0;
    (chi_square - freedom) / (2.0 * freedom).sqrt()
}

#[test]
fn tokens_are_drawn_in_proportion_to_their_probabilities() {
    let rows: [(&str, Vec<f32>); 8] = [
        ("one block", uneven(BLOCK)),
        ("a part of a block", uneven(3)),
        ("many blocks and a part of one", uneven(9 * BLOCK + 1)),
        ("all equal", vec![0.5; 5 * BLOCK - 1]),
        ("one token has half of it", (0..600).map(|token| if token == 100 { 6.4 } else { 0.0 }).collect()),
        (
            "one token of each block has nearly all of the block's",
            (0..640).map(|token| if token % BLOCK == 9 { 12.0 + (token / BLOCK) as f32 / 4.0 } else { 0.0 }).collect(),
        ),
        (
            "every second is banned",
            (0..300).map(|token| if token % 2 == 0 { f32::NEG_INFINITY } else { -((token % 5) as f32) }).collect(),
        ),
        ("most blocks are far below", (0..6400).map(|token| if token / BLOCK == 50 { 0.0 } else { -200.0 }).collect()),
    ];
    for (name, logits) in rows {
        for seed in 0..3 {
            let deviation = deviation(&logits, seed);
            assert!(deviation < 4.5, "{name}, seed {seed}: {deviation} standard deviations");
        }
    }
}

#[test]
fn only_what_is_not_banned_is_drawn_wherever_it_lies() {
    for size in [1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 5 * BLOCK + 7] {
        for only in [0, size / 2, size - 1] {
            let mut logits = vec![f32::NEG_INFINITY; size];
            assert_eq!(draws(&logits, 1, 1), [None]);
            // However small the logit is.
            logits[only] = f32::MIN;
            assert_eq!(draws(&logits, 1, 20), vec![Some(only as u32); 20], "{only} of {size}");
        }
    }
    assert_eq!(draws(&[], 1, 1), [None]);
}

#[test]
fn a_seed_draws_the_same_tokens_on_every_processor() {
    let drawn: Vec<u32> = draws(&uneven(1000), 42, 12).into_iter().flatten().collect();
    assert_eq!(drawn, [768, 926, 256, 768, 192, 655, 798, 576, 862, 478, 960, 971]);
}

/// A generator whose numbers are all the same: no token but the first of its block is ever tried.
struct Stuck;

impl rand::rand_core::TryRng for Stuck {
    type Error = std::convert::Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Self::Error> {
        Ok(0)
    }

    fn try_next_u64(&mut self) -> Result<u64, Self::Error> {
        Ok(0)
    }

    fn try_fill_bytes(&mut self, dst: &mut [u8]) -> Result<(), Self::Error> {
        dst.fill(0);
        Ok(())
    }
}

#[test]
fn tries_end_and_the_best_token_is_drawn_if_all_failed() {
    let mut values = Values::default();
    values.load(&[f32::NEG_INFINITY, -1.0, 2.0]);
    assert_eq!(draw(&values, &mut Vec::new(), &mut Stuck), Some(2));
}

proptest! {
    #[test]
    fn running_sums_are_those_of_one_value_after_the_other(values in prop::collection::vec(-100f32..0.0, 0..200)) {
        let mut sums = vec![7.0];
        running_sums(&values, 0.0, &mut sums);
        let mut sum = 0.0;
        let expected: Vec<f64> = values.iter().map(|&value| {
            sum += f64::from(exp(value));
            sum
        }).collect();
        prop_assert_eq!(sums, expected);
    }
}
