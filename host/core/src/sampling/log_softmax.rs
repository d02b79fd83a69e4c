//! Log-probabilities of a row of raw logits, for clients that ask for them.
use super::select;
use super::values::exp_sum;
use crate::ids::Token;

/// Log-probabilities of a row of raw logits.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax<'a> {
    logits: &'a [f32],
    log_total: f64,
}

impl<'a> LogSoftmax<'a> {
    pub fn new(logits: &'a [f32]) -> Self {
        let best = select::maximum(logits);
        Self { logits, log_total: f64::from(best) + exp_sum(logits, best).ln() }
    }

    /// Whether the logits are numbers, and one is finite.
    pub(crate) fn is_valid(&self) -> bool {
        self.log_total.is_finite()
    }

    /// Natural logarithm of the token's probability; minus infinity outside the vocabulary.
    pub fn of(&self, token: Token) -> f32 {
        self.logits.get(token.0 as usize).map_or(f32::NEG_INFINITY, |&logit| (f64::from(logit) - self.log_total) as f32)
    }

    /// The `n` most probable tokens with their log-probabilities, best first.
    pub fn top(&self, n: usize) -> Vec<(Token, f32)> {
        let mut out = Vec::new();
        select::top_k(self.logits, n, &mut out);
        out.iter().map(|c| (Token(c.token), (f64::from(c.logit) - self.log_total) as f32)).collect()
    }
}
