//! Draws a token of the whole vocabulary in proportion to its probability, without computing all probabilities.
use rand::Rng;

use super::random::unit;
use super::values::{BLOCK, Values};
use crate::vectorized;
use crate::vectors::exp;

/// Tokens that are tried. Of all tries at least one in [`BLOCK`] succeeds, so that all fail in one of 10^28 draws at most.
const TRIES: usize = 64 * BLOCK;
/// Maxima whose weights are computed at once.
const LANES: usize = 16;

/// Rejection sampling (von Neumann 1951). A block is chosen as if all its tokens had its largest logit, one of them with equal
/// chances, and it is drawn with its weight over that of the largest logit. So each token is drawn in proportion to exp(logit),
/// and only the exponentials of the maxima and of the tokens that are tried are computed.
///
/// `bounds` is scratch. `None` if all tokens are banned.
pub(super) fn draw(values: &Values, bounds: &mut Vec<f64>, random: &mut impl Rng) -> Option<u32> {
    let best = values.maximum();
    if best == f32::NEG_INFINITY {
        return None;
    }
    running_sums(values.maxima(), best, bounds);
    let total = bounds.last().copied()?;
    for _ in 0..TRIES {
        let bits = random.next_u64();
        let point = unit(bits) * total;
        // Not the bits of which the unit is made.
        let within = bits as usize % BLOCK;
        let block = bounds.partition_point(|&bound| bound <= point);
        // Rounding can put the point at the end. The last block has fewer tokens.
        let (Some(&maximum), Some(&logit)) =
            (values.maxima().get(block), values.as_slice().get(block * BLOCK + within))
        else {
            continue;
        };
        if unit(random.next_u64()) < f64::from(exp(logit - maximum)) {
            return Some((block * BLOCK + within) as u32);
        }
    }
    values.argmax()
}

vectorized! {
    /// Fills `sums` with the sums of exp(value - best) up to each value and with it. No value may be above `best`.
    fn running_sums(values: &[f32], best: f32, sums: &mut Vec<f64>) {
        sums.clear();
        let mut sum = 0.0;
        for some in values.chunks(LANES) {
            let mut weights = [0.0; LANES];
            for (weight, &value) in weights.iter_mut().zip(some) {
                *weight = exp(value - best);
            }
            sums.extend(weights.iter().take(some.len()).map(|&weight| {
                sum += f64::from(weight);
                sum
            }));
        }
    }
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
