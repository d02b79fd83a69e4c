//! Row operations that cut the candidates by the shape of the distribution: top-n-sigma, XTC and Mirostat; and masks.
use super::checks::{RowError, check_exclusion, check_mask, check_sigma, check_surprise};
use super::row::{Mirostat, Row};
use super::select::max_logit;
use crate::vectors::exp;

/// What is known of the distribution over the candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Statistics {
    /// The largest logit.
    pub max: f32,
    /// The logarithm of the sum of exp(logit).
    pub log_sum_exp: f32,
    /// In nats.
    pub entropy: f32,
}

impl Row {
    /// Of the candidates as they are. Without any, the largest logit is minus infinity and the rest is 0.
    pub fn statistics(&self) -> Statistics {
        let max = self.best();
        if max == f32::NEG_INFINITY {
            return Statistics { max, log_sum_exp: 0.0, entropy: 0.0 };
        }
        let (total, weighted) = self.moments();
        // The surprise of a token is the logarithm of the total less x, and the entropy is the mean of that.
        let entropy = (total.ln() - weighted / total).max(0.0);
        Statistics { max, log_sum_exp: (f64::from(max) + total.ln()) as f32, entropy: entropy as f32 }
    }

    /// Bans all tokens whose bit is 0. Bit `i % 32` of word `i / 32` is token `i`'s.
    ///
    /// # Errors
    /// There is not one bit for each token, rounded up to whole words.
    pub fn mask(&mut self, bits: &[u32]) -> Result<(), RowError> {
        check_mask(bits, self.size())?;
        self.workspace.values.mask(bits);
        self.drop_banned();
        Ok(())
    }

    /// Keeps the candidates whose logits are at most `n` standard deviations below the largest one (Tang et al. 2024).
    ///
    /// # Errors
    /// `n` is not above 0.
    pub fn keep_top_sigma(&mut self, n: f32) -> Result<(), RowError> {
        check_sigma(n)?;
        let best = self.best();
        let (mut count, mut sum, mut squares) = (0u32, 0.0, 0.0);
        self.for_each_finite(|logit| {
            let x = f64::from(logit - best);
            count += 1;
            sum += x;
            squares += x * x;
        });
        if count == 0 {
            return Ok(());
        }
        let mean = sum / f64::from(count);
        let deviation = (squares / f64::from(count) - mean * mean).max(0.0).sqrt();
        self.keep_above(best - n * deviation as f32);
        Ok(())
    }

    /// With `probability`, drops all candidates that are at least as probable as `threshold`, but for the least probable of
    /// them ("XTC", by p-e-w, 2024).
    ///
    /// # Errors
    /// A number is out of range.
    pub fn exclude_top(&mut self, threshold: f32, probability: f32) -> Result<(), RowError> {
        check_exclusion(threshold, probability)?;
        if probability == 0.0 || self.next_unit() >= f64::from(probability) {
            return Ok(());
        }
        let (total, _) = self.moments();
        let floor = self.best() + (f64::from(threshold) * total).ln() as f32;
        self.narrow_to_all();
        let candidates = &mut self.workspace.candidates;
        let above = candidates.iter().filter(|c| c.logit >= floor);
        let Some(least) = above.min_by(|a, b| a.logit.total_cmp(&b.logit).then(b.token.cmp(&a.token))).copied() else {
            return Ok(());
        };
        candidates.retain(|c| c.logit < floor || c.token == least.token);
        Ok(())
    }

    /// Keeps the candidates whose surprise is at most a bound, which follows what is drawn, so that the text's mean surprise
    /// comes near `target` bits a token. `rate`: how fast it follows (Mirostat 2.0: Basu et al. 2021).
    ///
    /// # Errors
    /// A number is not above 0.
    pub fn keep_surprise(&mut self, target: f32, rate: f32) -> Result<(), RowError> {
        check_surprise(target, rate)?;
        let bound = self.mirostat.map_or(2.0 * target, |mirostat| mirostat.bound);
        self.mirostat = Some(Mirostat { bound, target, rate, armed: true });
        let (total, _) = self.moments();
        let best = self.best();
        // The surprise in bits of a token is log2(total) less (logit - best) / ln 2.
        let floor = best + total.ln() as f32 - bound * std::f32::consts::LN_2;
        self.keep_above(floor.min(best));
        Ok(())
    }

    /// The token was drawn: moves the bound of [`Row::keep_surprise`].
    pub(super) fn note_surprise(&mut self, token: u32) {
        let Some(mut mirostat) = self.mirostat.filter(|mirostat| mirostat.armed) else { return };
        let (total, _) = self.moments();
        let logit = if self.narrowed {
            self.workspace.candidates.iter().find(|c| c.token == token).map(|c| c.logit)
        } else {
            ((token as usize) < self.size()).then(|| self.workspace.values.get(token))
        };
        if let Some(logit) = logit.filter(|&logit| logit > f32::NEG_INFINITY && total > 0.0) {
            let surprise = (total.ln() as f32 - (logit - self.best())) / std::f32::consts::LN_2;
            mirostat.bound -= mirostat.rate * (surprise - mirostat.target);
        }
        mirostat.armed = false;
        self.mirostat = Some(mirostat);
    }

    /// The largest logit of the candidates; minus infinity without any.
    pub(super) fn best(&self) -> f32 {
        if self.narrowed { max_logit(&self.workspace.candidates) } else { self.workspace.values.maximum() }
    }

    /// The sums of exp(x) and of x exp(x) over the candidates, where x is a logit less the largest.
    pub(super) fn moments(&self) -> (f64, f64) {
        if !self.narrowed {
            return self.workspace.values.moments();
        }
        let best = self.best();
        let x = self.workspace.candidates.iter().map(|c| c.logit - best);
        x.fold((0.0, 0.0), |(total, weighted), x| {
            let weight = f64::from(exp(x));
            (total + weight, weighted + weight * f64::from(x))
        })
    }

    fn for_each_finite(&self, mut see: impl FnMut(f32)) {
        let finite = |logit: &f32| *logit > f32::NEG_INFINITY;
        if self.narrowed {
            self.workspace.candidates.iter().map(|c| c.logit).filter(finite).for_each(&mut see);
        } else {
            self.workspace.values.as_slice().iter().copied().filter(finite).for_each(&mut see);
        }
    }

    /// Keeps the candidates whose logits are at least `floor`.
    fn keep_above(&mut self, floor: f32) {
        let (values, candidates) = (&self.workspace.values, &mut self.workspace.candidates);
        if self.narrowed {
            candidates.retain(|c| c.logit >= floor);
        } else {
            values.at_least(floor, candidates);
            self.narrowed = true;
        }
    }
}

#[cfg(test)]
#[path = "cuts_tests.rs"]
mod tests;
