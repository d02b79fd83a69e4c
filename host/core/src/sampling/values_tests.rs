use proptest::prelude::*;

use super::*;

fn loaded(logits: &[f32]) -> Values {
    let mut values = Values::default();
    assert!(values.load(logits));
    values
}

fn sorted(logits: &[f32]) -> Vec<Candidate> {
    let mut all: Vec<Candidate> = (0u32..).zip(logits).map(|(token, &logit)| Candidate { token, logit }).collect();
    all.retain(|c| c.logit > f32::NEG_INFINITY);
    all.sort_by(best_first);
    all
}

/// Logits with few distinct values, so that ties are common, and some banned tokens.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![9 => (-8i8..8).prop_map(f32::from), 1 => Just(f32::NEG_INFINITY)];
    prop::collection::vec(value, 1..700).prop_map(|mut logits| {
        logits[0] = logits[0].max(-9.0);
        logits
    })
}

proptest! {
    #[test]
    fn selections_equal_a_full_sort(logits in logits(), k in 1usize..400, floor in -9i8..9) {
        let mut values = loaded(&logits);
        let mut expected = sorted(&logits);
        prop_assert_eq!(values.argmax(), Some(expected[0].token));
        let mut out = Vec::new();
        values.at_least(f32::from(floor), &mut out);
        out.sort_by(best_first);
        prop_assert_eq!(&out[..], &expected[..expected.iter().filter(|c| c.logit >= f32::from(floor)).count()]);
        values.top_k(k, &mut out);
        expected.truncate(k);
        prop_assert_eq!(out, expected);
    }

    #[test]
    fn maxima_follow_every_change(
        logits in logits(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), -20i8..20, 0u8..4), 0..20),
    ) {
        let mut values = loaded(&logits);
        for (index, value, how) in changes {
            let (token, value) = (index.index(logits.len()) as u32, f32::from(value));
            match how {
                0 => values.set(token, value),
                1 => values.set(token, f32::NEG_INFINITY),
                2 => values.write(token as usize, &vec![value; (logits.len() - token as usize).min(130)]),
                _ => values.scale(0.5),
            }
            for block in 0..values.maxima.len() {
                prop_assert_eq!(values.maxima[block], select::maximum(values.block(block)));
            }
        }
        let ids = [0, (logits.len() - 1) as u32];
        let kept = ids.map(|id| values.get(id));
        values.allow_only(&ids);
        prop_assert_eq!(ids.map(|id| values.get(id)), kept);
        prop_assert_eq!(values.maximum(), kept[0].max(kept[1]));
    }
}

/// Words of masks, of which most ban or allow all of their tokens.
fn words() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(prop_oneof![Just(0), Just(u32::MAX), any::<u32>()], 22)
}

/// The logits as a mask leaves them. Tokens without a word are banned.
fn masked(logits: &[f32], words: &[u32]) -> Vec<f32> {
    let allowed = |token: usize| words.get(token / 32).is_some_and(|word| word & (1 << (token % 32)) != 0);
    let one = |(token, &logit): (usize, &f32)| if allowed(token) { logit } else { f32::NEG_INFINITY };
    logits.iter().enumerate().map(one).collect()
}

fn maxima(logits: &[f32]) -> Vec<f32> {
    logits.chunks(BLOCK).map(select::maximum).collect()
}

#[test]
fn regression_what_was_no_number_is_gone_with_the_next_row() {
    for bad in [vec![f32::NAN; 256], [vec![f32::NAN; 64], vec![1.0; 192]].concat(), vec![f32::INFINITY; 256]] {
        for first in [None, Some([u32::MAX; 8])] {
            let mut values = Values::default();
            let valid = match first {
                Some(bits) => values.load_masked(&bad, &bits),
                None => values.load(&bad),
            };
            assert!(!valid);
            let only_last = [0, 0, 0, 0, 0, 0, 0, u32::MAX];
            assert!(values.load_masked(&[2.0; 256], &only_last));
            assert_eq!(values.as_slice(), masked(&[2.0; 256], &only_last));
            assert_eq!(values.maxima(), maxima(&masked(&[2.0; 256], &only_last)));
        }
    }
}

proptest! {
    #[test]
    fn a_mask_bans_each_token_whose_bit_is_0(logits in logits(), first in words(), second in words()) {
        let mut values = loaded(&logits);
        // Tokens that were banned before stay so.
        let both = masked(&masked(&logits, &first), &second);
        for (words, expected) in [(&first, masked(&logits, &first)), (&second, both)] {
            values.mask(words);
            prop_assert_eq!(values.as_slice(), &expected[..]);
            prop_assert_eq!(values.maxima(), maxima(&expected));
        }
    }

    #[test]
    fn masked_rows_are_loaded_over_any_others(
        rows in prop::collection::vec((logits(), prop::option::of((words(), 0usize..23))), 1..6), size in prop::option::of(1usize..700),
    ) {
        // Rows of one size, as a worker has them, and of any.
        let mut values = Values::default();
        for (mut logits, mask) in rows {
            logits.resize(size.unwrap_or(logits.len()), 1.0);
            let expected = match mask {
                Some((words, count)) => {
                    let words = &words[..count.min(words.len())];
                    prop_assert!(values.load_masked(&logits, words));
                    masked(&logits, words)
                }
                None => {
                    values.load(&logits);
                    logits
                }
            };
            prop_assert_eq!(values.as_slice(), &expected[..]);
            prop_assert_eq!(values.maxima(), maxima(&expected));
        }
    }
}

#[test]
fn what_a_mask_allows_must_be_a_number() {
    let row = |bad: f32| [vec![0.0; 40], vec![bad], vec![0.0; 100]].concat();
    let (all, without) = ([u32::MAX; 5], [u32::MAX, !(1 << 8), u32::MAX, u32::MAX, u32::MAX]);
    for bad in [f32::NAN, f32::INFINITY] {
        let mut values = Values::default();
        assert!(!values.load_masked(&row(bad), &all));
        assert!(values.load_masked(&row(bad), &without) && values.load_masked(&row(bad), &[0; 5]));
        assert_eq!(values.maximum(), f32::NEG_INFINITY);
    }
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    for i in 0..870_000 {
        let x = -(i as f32) * 1e-4;
        let (ours, exact) = (f64::from(exp(x)), f64::from(x).exp());
        let unit = f64::from(f32::EPSILON) * exact;
        assert!((ours - exact).abs() <= 2.0 * unit, "exp({x}) = {ours}, {exact}");
    }
    assert_eq!((exp(0.0), exp(-88.0), exp(f32::NEG_INFINITY)), (1.0, 0.0, 0.0));
}

#[test]
fn sums_over_any_length() {
    for len in [1, 15, 16, 17, 63, 64, 65, 200] {
        let logits: Vec<f32> = (0..len).map(|i| (i % 7) as f32).collect();
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let expected: f64 = logits.iter().map(|&logit| f64::from(logit - best).exp()).sum();
        assert!((loaded(&logits).total() / expected - 1.0).abs() < 1e-6);
    }
}
