use proptest::prelude::*;

use super::*;
use crate::ids::Token;

const BANNED: f32 = f32::NEG_INFINITY;

fn row(logits: &[f32]) -> Row {
    let mut row = Row::new(&[], 7);
    row.load(logits).unwrap();
    row
}

fn left(row: &mut Row) -> Vec<u32> {
    let mut tokens: Vec<u32> = row.top(usize::MAX).into_iter().map(|(token, _)| token.0).collect();
    tokens.sort_unstable();
    tokens
}

fn logits() -> impl Strategy<Value = Vec<f32>> {
    prop::collection::vec(prop_oneof![9 => -10.0f32..10.0, 1 => Just(BANNED)], 1..200)
        .prop_filter("one is finite", |logits| logits.iter().any(|logit| logit.is_finite()))
}

/// Probabilities in double precision.
fn softmax(logits: &[f32]) -> Vec<f64> {
    let total: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
    logits.iter().map(|&logit| f64::from(logit).exp() / total).collect()
}

proptest! {
    #[test]
    fn statistics_are_those_of_the_softmax(logits in logits(), k in 0u32..20) {
        let mut row = row(&logits);
        row.keep_top_k(k);
        let candidates: Vec<f32> = row.top(usize::MAX).into_iter().map(|(_, logit)| logit).collect();
        let expected: f64 = softmax(&candidates).iter().map(|p| if *p > 0.0 { -p * p.ln() } else { 0.0 }).sum();
        let sum: f64 = candidates.iter().map(|&logit| f64::from(logit).exp()).sum();
        let found = row.statistics();
        prop_assert_eq!(found.max, candidates[0]);
        prop_assert!((f64::from(found.log_sum_exp) - sum.ln()).abs() < 1e-4, "{found:?} {}", sum.ln());
        prop_assert!((f64::from(found.entropy) - expected).abs() < 1e-4, "{found:?} {expected}");
    }

    #[test]
    fn a_mask_bans_what_allow_only_bans(logits in logits(), allowed in prop::collection::vec(any::<bool>(), 200), k in 0u32..20) {
        let ids: Vec<u32> = (0..logits.len() as u32).filter(|&token| allowed[token as usize]).collect();
        let mut bits = vec![0u32; logits.len().div_ceil(32)];
        ids.iter().for_each(|token| bits[*token as usize / 32] |= 1 << (token % 32));
        let (mut masked, mut listed) = (row(&logits), row(&logits));
        for row in [&mut masked, &mut listed] {
            row.keep_top_k(k);
        }
        masked.mask(&bits).unwrap();
        listed.allow_only(&ids).unwrap();
        prop_assert_eq!(masked.read(0, logits.len() as u32).unwrap(), listed.read(0, logits.len() as u32).unwrap());
        prop_assert_eq!(masked.top(usize::MAX), listed.top(usize::MAX));
        prop_assert_eq!(masked.draw(), listed.draw());
    }

    #[test]
    fn top_sigma_keeps_what_is_near_the_best(logits in logits(), n in 0.1f32..4.0) {
        let finite: Vec<f64> = logits.iter().filter(|logit| logit.is_finite()).map(|&logit| f64::from(logit)).collect();
        let mean = finite.iter().sum::<f64>() / finite.len() as f64;
        let deviation = (finite.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / finite.len() as f64).sqrt();
        let best = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let floor = best - f64::from(n) * deviation;
        let mut row = row(&logits);
        row.keep_top_sigma(n).unwrap();
        let kept = left(&mut row);
        for (token, &logit) in (0u32..).zip(&logits) {
            // Within rounding of the floor either is right.
            if (f64::from(logit) - floor).abs() > 1e-4 {
                prop_assert_eq!(kept.contains(&token), f64::from(logit) > floor, "{} of {:?}", token, logits);
            }
        }
        prop_assert!(!kept.is_empty());
    }

    #[test]
    fn exclusion_leaves_the_least_probable_of_the_top(logits in logits(), threshold in 0.02f32..0.6) {
        let p = softmax(&logits);
        prop_assume!(p.iter().all(|p| (p - f64::from(threshold)).abs() > 1e-5));
        let above: Vec<u32> = (0..logits.len() as u32).filter(|&t| p[t as usize] >= f64::from(threshold)).collect();
        let mut row = row(&logits);
        row.exclude_top(threshold, 1.0).unwrap();
        let kept = left(&mut row);
        let dropped = above.iter().filter(|token| !kept.contains(token)).count();
        prop_assert_eq!(dropped, above.len().saturating_sub(1));
        let finite = logits.iter().filter(|logit| logit.is_finite()).count();
        prop_assert_eq!(kept.len(), finite - dropped);
        let least = above.iter().filter(|token| kept.contains(token)).map(|&token| p[token as usize]).next();
        if let Some(least) = least {
            prop_assert!(above.iter().all(|&token| p[token as usize] >= least - 1e-9));
        }
    }

    #[test]
    fn surprise_keeps_the_best_and_what_is_within_the_bound(logits in logits(), target in 0.5f32..6.0) {
        let p = softmax(&logits);
        let mut row = row(&logits);
        row.keep_surprise(target, 0.1).unwrap();
        let kept = left(&mut row);
        prop_assert!(!kept.is_empty());
        for token in 0..logits.len() as u32 {
            let surprise = -p[token as usize].log2();
            if (surprise - f64::from(2.0 * target)).abs() > 1e-3 && kept.len() > 1 {
                prop_assert_eq!(kept.contains(&token), surprise < f64::from(2.0 * target));
            }
        }
    }
}

#[test]
fn exclusion_happens_with_its_probability() {
    let excluded = (0..1000).filter(|&seed| {
        let mut row = Row::new(&[], seed);
        row.load(&[2.0, 1.9, 0.0]).unwrap();
        row.exclude_top(0.2, 0.3).unwrap();
        row.candidates() == 2
    });
    let excluded = excluded.count();
    assert!((250..350).contains(&excluded), "{excluded}");
    let mut row = row(&[2.0, 1.9, 0.0]);
    row.exclude_top(0.2, 0.0).unwrap();
    assert_eq!(row.candidates(), 3);
}

#[test]
fn the_bound_of_surprise_follows_what_is_drawn() {
    let mut row = row(&[0.0; 16]);
    // 16 equal tokens have 4 bits each: below 2 * 3 bits, all stay.
    row.keep_surprise(3.0, 0.5).unwrap();
    assert_eq!(row.candidates(), 16);
    row.accept(Token(3), b"x");
    // 6 - 0.5 * (4 - 3) = 5.5, and so on down to 4 and below, where only ties with the best stay.
    for _ in 0..20 {
        row.load(&[0.0; 16]).unwrap();
        row.keep_surprise(3.0, 0.5).unwrap();
        row.accept(Token(3), b"x");
    }
    let bound = row.mirostat.unwrap().bound;
    assert!((bound - (6.0 - 0.5 * 21.0)).abs() < 1e-4, "{bound}");
}

#[test]
fn a_row_that_does_not_keep_surprise_does_not_move_its_bound() {
    let mut row = row(&[0.0; 16]);
    row.keep_surprise(3.0, 0.5).unwrap();
    row.begin();
    row.keep_surprise(1.0, 0.5).unwrap();
    row.undo();
    assert_eq!(row.mirostat.unwrap().target, 3.0, "undone");
    row.load(&[0.0; 16]).unwrap();
    row.accept(Token(3), b"x");
    assert_eq!(row.mirostat.unwrap().bound, 6.0);
}

#[test]
fn forced_tokens_come_in_order_and_are_bounded() {
    let mut row = row(&[0.0; 300]);
    row.force(&[5, 4, 5]).unwrap();
    let forced: Vec<Token> = std::iter::from_fn(|| row.take_forced()).collect();
    assert_eq!(forced, [Token(5), Token(4), Token(5)]);
    assert!(row.force(&[300]).is_err());
    assert!(row.force(&[1; 257]).is_err());
    row.force(&[1; 256]).unwrap();
    row.begin();
    row.finish(crate::sampling::EndReason::Stop);
    assert_eq!(row.finished(), Some(crate::sampling::EndReason::Stop));
    row.undo();
    // What was forced before stays forced.
    assert_eq!((row.take_forced(), row.finished()), (Some(Token(1)), None));
}

#[test]
fn masks_of_another_length_and_numbers_out_of_range_are_refused() {
    let mut row = row(&[0.0; 33]);
    assert!(row.mask(&[0; 1]).is_err() && row.mask(&[0; 3]).is_err());
    for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(row.keep_top_sigma(wrong).is_err());
        assert!(row.keep_surprise(wrong, 0.1).is_err() && row.keep_surprise(3.0, wrong).is_err());
        assert!(row.exclude_top(wrong, 0.5).is_err());
    }
    assert!(row.exclude_top(0.5, 1.5).is_err() && row.exclude_top(1.5, 0.5).is_err());
    assert_eq!(row.candidates(), 33);
    row.mask(&[0, 0]).unwrap();
    assert_eq!(row.statistics(), Statistics { max: BANNED, log_sum_exp: 0.0, entropy: 0.0 });
}
