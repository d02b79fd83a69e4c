//! How far apart the distributions of two rows are.
use super::row::Row;
use crate::vectors::exp;

impl Row {
    /// The total variation distance between what two rows of one model would draw: half the sum, over all tokens, of the
    /// differences of their probabilities. From 0 (equal) to 1 (no token in common).
    pub fn distance(&self, other: &Row) -> f64 {
        let (ours, theirs) = (self.probabilities(), other.probabilities());
        // A token that only one row has counts in whole.
        let tokens = ours.len().max(theirs.len());
        let of = |row: &[f64], token: usize| row.get(token).copied().unwrap_or_default();
        let apart: f64 = (0..tokens).map(|token| (of(&ours, token) - of(&theirs, token)).abs()).sum();
        (apart / 2.0).clamp(0.0, 1.0)
    }

    /// Of all tokens, as [`Row::draw`] draws.
    fn probabilities(&self) -> Vec<f64> {
        let mut probabilities = vec![0.0; self.size()];
        let best = self.best();
        let mut weigh = |token: u32, logit: f32| {
            if let Some(probability) = probabilities.get_mut(token as usize) {
                *probability = f64::from(exp(logit - best));
            }
        };
        if best == f32::NEG_INFINITY {
            // Every candidate is banned.
            if let Some(token) = self.workspace.values.argmax() {
                probabilities[token as usize] = 1.0;
            }
            return probabilities;
        }
        if self.narrowed {
            self.workspace.candidates.iter().for_each(|c| weigh(c.token, c.logit));
        } else {
            (0..).zip(self.workspace.values.as_slice()).for_each(|(token, &logit)| weigh(token, logit));
        }
        let total: f64 = probabilities.iter().sum();
        probabilities.iter_mut().for_each(|probability| *probability /= total);
        probabilities
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::sampling::EndReason;

    fn row(logits: &[f32]) -> Row {
        let mut row = Row::new(&[], 7);
        row.load(logits).unwrap();
        row
    }

    #[test]
    fn equal_rows_are_0_apart_and_rows_without_a_common_token_1() {
        let logits = [1.0, 2.0, 3.0, -4.0];
        assert_eq!(row(&logits).distance(&row(&logits)), 0.0);
        let (mut even, mut odd) = (row(&logits), row(&logits));
        even.ban(&[1, 3]).unwrap();
        odd.allow_only(&[1, 3]).unwrap();
        assert!((even.distance(&odd) - 1.0).abs() < 1e-9);
        // Of equal logits, half the probability moves where half the tokens go.
        let mut half = row(&[0.0; 8]);
        half.ban(&[0, 2, 4, 6]).unwrap();
        assert!((half.distance(&row(&[0.0; 8])) - 0.5).abs() < 1e-6);
        // The best token is drawn where all candidates are banned.
        let mut none = row(&logits);
        none.keep_top_k(1);
        none.ban(&[2]).unwrap();
        let mut second = row(&logits);
        second.allow_only(&[1]).unwrap();
        assert_eq!(none.distance(&second), 0.0);
    }

    #[test]
    fn a_copy_draws_what_the_row_draws_and_leaves_it_as_it_is() {
        let logits = [0.5, 0.1, 0.4, 0.2, 0.3];
        let (mut alone, mut copied) = (row(&logits), row(&logits));
        for _ in 0..20 {
            let mut copy = copied.copy();
            let token = copy.draw();
            copy.ban(&[0, 1, 2]).unwrap();
            copy.force(&[3]).unwrap();
            copy.finish(EndReason::Stop);
            copy.draw();
            let drawn = copied.draw();
            assert_eq!((drawn, copied.take_forced(), copied.finished()), (token, None, None));
            assert_eq!(drawn, alone.draw());
        }
    }

    proptest! {
        #[test]
        fn it_is_half_the_sum_of_the_differences(
            ours in prop::collection::vec(-9.0f32..9.0, 70),
            theirs in prop::collection::vec(-9.0f32..9.0, 70),
            kept in 1u32..70,
        ) {
            let (mut a, b) = (row(&ours), row(&theirs));
            a.keep_top_k(kept);
            let mut order: Vec<usize> = (0..70).collect();
            order.sort_by(|&i, &j| ours[j].total_cmp(&ours[i]).then(i.cmp(&j)));
            let softmax = |logits: &[f32], kept: &[usize]| {
                let total: f64 = kept.iter().map(|&i| f64::from(logits[i]).exp()).sum();
                let of = |i: usize| if kept.contains(&i) { f64::from(logits[i]).exp() / total } else { 0.0 };
                (0..70).map(of).collect::<Vec<f64>>()
            };
            let (p, q) = (softmax(&ours, &order[..kept as usize]), softmax(&theirs, &order));
            let expected: f64 = p.iter().zip(&q).map(|(p, q)| (p - q).abs()).sum::<f64>() / 2.0;
            let found = a.distance(&b);
            prop_assert!((found - expected).abs() < 1e-5, "{found} {expected}");
            prop_assert_eq!(found, b.distance(&a));
            prop_assert!((0.0..=1.0).contains(&found));
        }
    }
}
