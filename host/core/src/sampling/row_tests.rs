use proptest::prelude::*;

use super::*;
use crate::sampling::LogSoftmax;

fn row(logits: &[f32]) -> Row {
    let mut row = Row::new(&[], 7);
    row.load(logits).unwrap();
    row
}

fn tokens(row: &mut Row) -> Vec<u32> {
    row.top(100).into_iter().map(|(token, _)| token.0).collect()
}

#[test]
fn refuses_logits_that_are_not_numbers() {
    for bad in [f32::NAN, f32::INFINITY] {
        assert_eq!(Row::default().load(&[0.0, bad, 1.0]), Err(InvalidLogits));
    }
    assert_eq!(Row::default().load(&[f32::NEG_INFINITY; 3]), Err(InvalidLogits));
    assert_eq!(Row::default().load(&[]), Err(InvalidLogits));
    assert_eq!(Row::default().load(&[f32::NEG_INFINITY, 0.0]), Ok(()));
}

#[test]
fn keeps_the_best_candidates() {
    let logits = [1.0, 4.0, 3.0, 2.0, f32::NEG_INFINITY];
    let mut r = row(&logits);
    r.keep_top_k(2);
    assert_eq!(tokens(&mut r), [1, 2]);
    r.keep_best();
    assert_eq!((tokens(&mut r), r.draw()), (vec![1], Some(Token(1))));
    let mut r = row(&logits);
    r.keep_top_k(0);
    assert_eq!(r.candidates(), 5);
}

#[test]
fn top_p_keeps_the_smallest_set_with_the_mass_narrowed_or_not() {
    // Probabilities 0.5, 0.3, 0.2.
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
    for (p, expected) in [(0.4, 1), (0.5, 1), (0.51, 2), (0.79, 2), (0.9, 3), (1.0, 3)] {
        let mut whole = row(&logits);
        whole.keep_top_p(p, 1).unwrap();
        assert_eq!(whole.candidates(), expected, "p = {p}");
        let mut narrowed = row(&logits);
        narrowed.keep_top_k(2);
        narrowed.keep_top_k(2);
        narrowed.keep_top_p(p, 1).unwrap();
        assert!(narrowed.candidates() <= 2);
    }
    let mut r = row(&logits);
    r.keep_top_p(0.1, 2).unwrap();
    assert_eq!(r.candidates(), 2);
}

#[test]
fn min_p_is_relative_to_the_best() {
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
    for (p, expected) in [(0.0, 3), (0.39, 3), (0.41, 2), (0.61, 1), (1.0, 1)] {
        let mut r = row(&logits);
        r.keep_min_p(p, 1).unwrap();
        assert_eq!(r.candidates(), expected, "p = {p}");
    }
}

#[test]
fn typical_drops_what_is_too_expected_as_well_as_too_surprising() {
    // Entropy is about 0.94 nats: the surprise of the second token (0.92) is nearest to it.
    let logits = [0.4f32.ln(), 0.4f32.ln(), 0.2f32.ln()];
    let mut r = row(&logits);
    r.keep_typical(0.3, 1).unwrap();
    assert_eq!(tokens(&mut r), [0]);
}

#[test]
fn penalties_look_back_on_the_right_tokens() {
    let mut r = Row::new(&[Token(0)], 1);
    r.accept(Token(1), b"a");
    r.accept(Token(1), b"a");
    r.load(&[2.0, 2.0, 2.0, -2.0]).unwrap();
    r.penalize(64, 2.0, 0.0, 0.0).unwrap();
    assert_eq!(r.read(0, 4).unwrap(), [1.0, 1.0, 2.0, -2.0]);
    r.load(&[2.0; 4]).unwrap();
    r.penalize(2, 2.0, 0.0, 0.0).unwrap();
    assert_eq!(r.read(0, 4).unwrap(), [2.0, 1.0, 2.0, 2.0], "a window of two holds the output only");
    r.load(&[2.0; 4]).unwrap();
    r.penalize(0, 1.0, 0.5, 0.25).unwrap();
    assert_eq!(r.read(0, 4).unwrap(), [2.0, 0.75, 2.0, 2.0], "frequency counts twice, presence once, the prompt not");
}

#[test]
fn a_banned_token_is_never_drawn_even_if_it_was_the_only_candidate() {
    let mut r = row(&[1.0, 5.0, 3.0]);
    r.keep_best();
    r.ban(&[1]).unwrap();
    assert_eq!(r.draw(), Some(Token(2)));
    let mut r = row(&[1.0, 5.0]);
    r.ban(&[0, 1]).unwrap();
    assert_eq!(r.draw(), None);
    let mut r = row(&[1.0, 5.0, 3.0]);
    r.allow_only(&[0]).unwrap();
    assert_eq!(r.draw(), Some(Token(0)));
}

#[test]
fn refuses_arguments_out_of_range() {
    let mut r = row(&[1.0, 2.0]);
    assert_eq!(r.bias(&[2], &[0.0]), Err(RowError::UnknownToken { token: 2, size: 2 }));
    assert_eq!(r.bias(&[1], &[]), Err(RowError::UnequalLengths { ids: 1, values: 0 }));
    assert!(r.bias(&[1], &[f32::NAN]).is_err());
    assert!(r.temperature(0.0).is_err() && r.temperature(f32::NAN).is_err() && r.temperature(1e-45).is_err());
    assert!(r.keep_top_p(0.0, 1).is_err() && r.keep_top_p(1.1, 1).is_err() && r.keep_top_p(f32::NAN, 1).is_err());
    assert!(r.keep_min_p(-0.1, 1).is_err() && r.keep_typical(f32::NAN, 1).is_err());
    assert!(r.penalize(1, 0.0, 0.0, 0.0).is_err());
    assert!(r.read(1, 2).is_err() && r.read(u32::MAX, u32::MAX).is_err() && r.write(2, &[0.0]).is_err());
    assert!(r.write(0, &[f32::NAN]).is_err());
    assert_eq!(r.read(0, 2).unwrap(), [1.0, 2.0], "a refused operation changes nothing");
}

#[test]
fn equal_seeds_draw_equal_tokens_and_the_distribution_is_the_softmax() {
    let logits = [0.6f32.ln(), 0.3f32.ln(), 0.1f32.ln()];
    let draw = |seed| {
        let mut r = Row::new(&[], seed);
        (0..3000)
            .map(|_| {
                r.load(&logits).unwrap();
                r.draw().unwrap().0 as usize
            })
            .collect::<Vec<_>>()
    };
    let first = draw(1);
    assert_eq!(first, draw(1));
    assert_ne!(first, draw(2));
    let mut counts = [0f64; 3];
    first.iter().for_each(|&token| counts[token] += 1.0);
    let expected = [1800.0, 900.0, 300.0];
    let chi_square: f64 = counts.iter().zip(expected).map(|(c, e)| (c - e).powi(2) / e).sum();
    assert!(chi_square < 13.8, "two degrees of freedom, p = 0.001: {chi_square}");
}

#[test]
fn log_probabilities_are_those_of_the_whole_row() {
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
    let log = LogSoftmax::new(&logits);
    assert!((log.of(Token(1)) - 0.3f32.ln()).abs() < 1e-6);
    assert_eq!(log.top(2).iter().map(|(t, _)| t.0).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(log.of(Token(9)), f32::NEG_INFINITY);
}

#[test]
fn text_tail_and_history_are_the_newest() {
    let mut r = Row::new(&[Token(1), Token(2)], 0);
    r.accept(Token(3), b"abc");
    assert_eq!((r.position(), r.history(2), r.text_tail(2)), (1, &[Token(2), Token(3)][..], &b"bc"[..]));
    for _ in 0..10_000 {
        r.accept(Token(3), b"xyz");
    }
    assert_eq!(r.text_tail(usize::MAX).len(), MAX_TEXT_TAIL_BYTES);
}

/// Probabilities of the tokens of a row, with which the references below compute.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|&logit| f64::from(logit - best).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// The tokens that a truncation keeps: the first in the order of `key`, until they have the mass `p`. Also those that it
/// may keep or drop, because their mass is `p` but for rounding.
fn reference(probabilities: &[f64], p: f64, key: impl Fn(usize) -> f64) -> (Vec<u32>, Vec<u32>) {
    let mut order: Vec<usize> = (0..probabilities.len()).filter(|&token| probabilities[token] > 0.0).collect();
    order.sort_by(|&a, &b| {
        key(a).total_cmp(&key(b)).then(probabilities[b].total_cmp(&probabilities[a])).then(a.cmp(&b))
    });
    let (mut sum, mut kept, mut either) = (0.0, Vec::new(), Vec::new());
    for token in order {
        if sum < p - 1e-5 {
            kept.push(token as u32);
        } else if sum < p + 1e-5 {
            either.push(token as u32);
        }
        sum += probabilities[token];
    }
    (kept, either)
}

fn keeps(row: &mut Row, (kept, either): (Vec<u32>, Vec<u32>)) {
    let mut left: Vec<u32> = row.top(usize::MAX).into_iter().map(|(token, _)| token.0).collect();
    left.retain(|token| !either.contains(token));
    left.sort_unstable();
    let mut kept = kept;
    kept.retain(|token| !either.contains(token));
    kept.sort_unstable();
    assert_eq!(left, kept);
}

/// Rows of a vocabulary that is larger than what is sorted, peaked or flat, with all logits different.
fn large() -> impl Strategy<Value = Vec<f32>> {
    (any::<u64>(), 0.01f32..12.0, 3000usize..9000).prop_map(|(seed, spread, size)| {
        let mut random = crate::sampling::random::RandomStream::new(seed);
        (0..size).map(|_| (random.next_unit() as f32 - 0.5) * spread * 4.0).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn truncations_of_a_whole_vocabulary_keep_what_the_definitions_say(logits in large(), p in 0.01f32..0.999, narrow in any::<bool>()) {
        let probabilities = softmax(&logits);
        let entropy: f64 = probabilities.iter().filter(|&&q| q > 0.0).map(|q| -q * q.ln()).sum();
        let fresh = || {
            let mut r = row(&logits);
            if narrow {
                r.keep_min_p(1e-30, 1).unwrap();
            }
            r
        };
        let mut r = fresh();
        r.keep_typical(p, 1).unwrap();
        // Two tokens on both sides of the entropy may be as far from it but for rounding.
        let typical = |token: usize| ((-probabilities[token].ln() - entropy).abs() * 1e6).round();
        let (kept, either) = reference(&probabilities, f64::from(p), typical);
        let count = (kept.len(), kept.len() + either.len() + 2);
        prop_assert!((count.0.saturating_sub(2)..=count.1).contains(&r.candidates()), "{} of {:?}", r.candidates(), count);
        let mut r = fresh();
        r.keep_top_p(p, 1).unwrap();
        keeps(&mut r, reference(&probabilities, f64::from(p), |token| -probabilities[token]));
    }

    #[test]
    fn typical_keeps_the_tokens_nearest_to_the_entropy(logits in large(), p in 0.01f32..0.999) {
        let probabilities = softmax(&logits);
        let entropy: f64 = probabilities.iter().filter(|&&q| q > 0.0).map(|q| -q * q.ln()).sum();
        let mut r = row(&logits);
        r.keep_typical(p, 1).unwrap();
        let kept: std::collections::HashSet<u32> = r.top(usize::MAX).into_iter().map(|(token, _)| token.0).collect();
        let distance = |token: u32| (-probabilities[token as usize].ln() - entropy).abs();
        let mass: f64 = kept.iter().map(|&token| probabilities[token as usize]).sum();
        let farthest = kept.iter().copied().max_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap();
        let dropped = (0..logits.len() as u32).filter(|token| !kept.contains(token)).map(distance).fold(f64::MAX, f64::min);
        prop_assert!(distance(farthest) <= dropped + 1e-4, "{} against {}", distance(farthest), dropped);
        prop_assert!(mass >= f64::from(p) - 1e-4 && mass - probabilities[farthest as usize] <= f64::from(p) + 1e-4, "{mass}");
    }

    #[test]
    fn penalties_and_biases_of_many_candidates_are_those_of_few(
        logits in large(),
        ids in prop::collection::vec(0u32..3000, 1..400),
    ) {
        let values: Vec<f32> = ids.iter().map(|&id| id as f32 / 1000.0 - 1.0).collect();
        let mut whole = Row::new(&ids.iter().copied().map(Token).collect::<Vec<_>>(), 1);
        whole.load(&logits).unwrap();
        let mut narrowed = Row::new(&ids.iter().copied().map(Token).collect::<Vec<_>>(), 1);
        narrowed.load(&logits).unwrap();
        narrowed.keep_min_p(1e-30, 1).unwrap();
        for r in [&mut whole, &mut narrowed] {
            r.penalize(4096, 1.5, 0.0, 0.0).unwrap();
            r.bias(&ids, &values).unwrap();
        }
        prop_assert_eq!(whole.top(usize::MAX), narrowed.top(usize::MAX));
    }
}

#[test]
fn many_candidates_are_kept_by_top_k_whatever_their_order() {
    let logits: Vec<f32> = (0..5000).map(|i| ((i * 7919) % 5000) as f32).collect();
    let mut r = row(&logits);
    r.keep_top_k(3000);
    let kept = r.top(usize::MAX);
    assert_eq!((kept.len(), kept[0].1, kept[2999].1), (3000, 4999.0, 2000.0));
}

/// What a row would do next: its candidates, and the tokens that it draws.
fn fingerprint(row: &mut Row) -> (usize, bool, Vec<f32>, Vec<Option<Token>>) {
    let logits = row.read(0, row.size() as u32).unwrap().to_vec();
    (row.candidates(), row.is_settled(), logits, (0..20).map(|_| row.draw()).collect())
}

#[test]
fn regression_whatever_a_policy_did_to_a_row_can_be_undone() {
    type Shape = fn(&mut Row);
    let logits: Vec<f32> = (0..1000).map(|token| (token * 37 % 101) as f32 / 10.0).collect();
    let all: Vec<u32> = (0..1000).collect();
    assert_eq!(all.len(), logits.len());
    let shapes: [Shape; 10] = [
        |row| row.bias(&[3, 3, 700], &[1.0, 2.0, -5.0]).unwrap(),
        |row| row.bias(&(0..500).collect::<Vec<_>>(), &[2.5; 500]).unwrap(),
        |row| row.ban(&[1, 2, 3]).unwrap(),
        |row| row.allow_only(&[5, 6]).unwrap(),
        |row| row.temperature(0.3).unwrap(),
        |row| row.write(10, &[7.0; 40]).unwrap(),
        |row| row.penalize(10, 1.5, 0.5, 0.5).unwrap(),
        |row| row.keep_top_k(7),
        |row| drop((row.keep_top_p(0.5, 1), row.keep_typical(0.5, 1), row.temperature(2.0))),
        |row| {
            let _ = (row.draw(), row.random_bits());
            row.keep_best();
        },
    ];
    for narrowed in [false, true] {
        for (number, shape) in shapes.iter().enumerate() {
            let made = || {
                let mut row = Row::new(&[Token(3), Token(9)], 11);
                row.accept(Token(500), b"");
                row.load(&logits).unwrap();
                row.bias(&[4], &[1.0]).unwrap();
                if narrowed {
                    row.keep_top_k(300);
                }
                row
            };
            let (mut row, mut untouched) = (made(), made());
            row.begin();
            shape(&mut row);
            row.undo();
            assert_eq!(fingerprint(&mut row), fingerprint(&mut untouched), "shape {number}, narrowed: {narrowed}");
            let (mut kept, mut shaped) = (made(), made());
            kept.begin();
            shape(&mut kept);
            kept.keep();
            kept.undo();
            shape(&mut shaped);
            assert_eq!(fingerprint(&mut kept), fingerprint(&mut shaped), "what is kept stays: shape {number}");
        }
    }
}

#[test]
fn regression_many_ids_cost_no_pass_over_the_candidates_each() {
    let size = 4000;
    let logits: Vec<f32> = (0..size).map(|token| (token % 97) as f32).collect();
    let ids: Vec<u32> = (0..size).rev().collect();
    let values: Vec<f32> = ids.iter().map(|id| (id % 13) as f32).collect();
    let row = |narrowed: bool| {
        let mut row = Row::new(&ids.iter().map(|&id| Token(id)).collect::<Vec<_>>(), 0);
        row.load(&logits).unwrap();
        if narrowed {
            row.keep_min_p(0.000_1, size).unwrap();
        }
        row
    };
    let (mut all, mut some) = (row(true), row(true));
    all.bias(&ids, &values).unwrap();
    ids.iter().zip(&values).for_each(|(&id, &value)| some.bias(&[id], &[value]).unwrap());
    assert_eq!(all.top(50), some.top(50));
    // One look for each id, where one by one they take a pass each.
    let candidates = all.candidates();
    assert!(candidates > 1000 && all.workspace.looked_at == ids.len(), "{}", all.workspace.looked_at);
    assert!(some.workspace.looked_at > candidates * ids.len() / 4, "{}", some.workspace.looked_at);
    all.penalize(size, 1.3, 0.0, 0.0).unwrap();
    assert_eq!(all.workspace.looked_at, 2 * ids.len());
    let mut whole = row(false);
    whole.bias(&ids, &values).unwrap();
    whole.penalize(size, 1.3, 0.0, 0.0).unwrap();
    assert_eq!(all.top(50), whole.top(50));
    // As many as there are tokens, and one more.
    let more = vec![0; ids.len() + 1];
    let refused = RowError::TooManyIds { ids: more.len(), size: ids.len() };
    assert_eq!(whole.bias(&more, &vec![0.0; more.len()]), Err(refused.clone()));
    assert_eq!((whole.ban(&more), whole.allow_only(&more)), (Err(refused.clone()), Err(refused)));
    assert!(whole.allow_only(&ids).is_ok());
}

#[test]
fn regression_undoing_one_policy_keeps_what_another_forced_or_ended() {
    let mut row = Row::new(&[], 0);
    row.load(&[0.0, 1.0, 2.0]).unwrap();
    row.force(&[1, 2]).unwrap();
    row.finish(EndReason::Stop);
    row.begin();
    row.force(&[0]).unwrap();
    row.undo();
    assert_eq!(row.finished(), Some(EndReason::Stop));
    assert_eq!([row.take_forced(), row.take_forced(), row.take_forced()], [Some(Token(1)), Some(Token(2)), None]);
}

#[test]
fn regression_after_a_rewind_the_last_token_is_the_last_that_is_left() {
    let mut row = Row::new(&[], 0);
    for bytes in [&b"ab"[..], b"c", b"taken back"] {
        row.accept(Token(0), bytes);
    }
    row.rewind(2, b"abc".to_vec(), 1);
    assert!(row.ended_in_last(b"c") && row.ended_in_last(b"bc") && !row.ended_in_last(b"ab"));
}

#[test]
fn regression_no_penalty_makes_a_banned_token_a_number_or_another_one_infinite() {
    for (repeat, frequency, presence) in
        [(1.0, f32::MIN, f32::MIN), (1.0, f32::MAX, f32::MAX), (f32::MIN_POSITIVE, 0.0, 0.0)]
    {
        let mut row = Row::new(&[], 1);
        row.load_masked(&[1.0, f32::MAX, -1.0, 5.0], &[0b1110]).unwrap();
        (0..3).for_each(|token| row.accept(Token(token), b""));
        row.penalize(8, repeat, frequency, presence).unwrap();
        let logits = row.read(0, 4).unwrap();
        assert_eq!(logits[0], f32::NEG_INFINITY);
        assert!(logits.iter().all(|logit| *logit < f32::INFINITY), "{logits:?}");
    }
}
