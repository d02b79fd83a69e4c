//! Decides how long a draft pays: compares a request's acceptance rate with the cost of a row.

/// Weight of the latest draft token in the acceptance rate.
const RATE_WEIGHT: f32 = 0.1;
/// Assumed acceptance rate before the first draft.
const INITIAL_RATE: f32 = 0.7;
/// Steps without a draft before one token is tried again, because the text may have become predictable.
const RETRY_STEPS: u32 = 64;
/// Weight that earlier measurements of the step cost keep with each new one.
const COST_DECAY: f64 = 0.98;
/// Minimum spread of step sizes from which the cost of a row can be told.
const MIN_SPREAD: f64 = 1.0;
/// Break-even probability while the cost of a row is unknown.
const DEFAULT_BREAK_EVEN: f32 = 0.3;

/// The acceptance rate of one request's drafts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AcceptanceRate {
    /// Probability that a draft token is accepted, given that those before it were.
    rate: f32,
    steps_without_draft: u32,
}

impl Default for AcceptanceRate {
    fn default() -> Self {
        Self { rate: INITIAL_RATE, steps_without_draft: 0 }
    }
}

impl AcceptanceRate {
    /// Number of tokens to draft, at most `max`: a token pays if the probability that it is accepted is above
    /// `break_even`.
    pub(crate) fn draft_len(&mut self, break_even: f32, max: usize) -> usize {
        let (mut count, mut probability) = (0, self.rate);
        while count < max && probability > break_even {
            count += 1;
            probability *= self.rate;
        }
        if count > 0 || max == 0 {
            return count;
        }
        self.steps_without_draft += 1;
        usize::from(self.steps_without_draft.is_multiple_of(RETRY_STEPS))
    }

    /// Records that the first `accepted` of `drafted` tokens were accepted. The tokens after the first rejected one
    /// were never tried and count for nothing.
    pub(crate) fn record(&mut self, drafted: u32, accepted: u32) {
        for trial in 0..drafted.min(accepted + 1) {
            let outcome = if trial < accepted { 1.0 } else { 0.0 };
            self.rate += RATE_WEIGHT * (outcome - self.rate);
        }
    }
}

/// The cost of a step: `fixed + per_row * rows` seconds, fitted to recent steps by least squares.
#[derive(Debug, Default)]
pub(crate) struct StepCost {
    /// Decayed sums over the recent steps, where `x` is a step's rows and `y` its seconds.
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl StepCost {
    pub(crate) fn record(&mut self, rows: u32, seconds: f32) {
        let (x, y) = (f64::from(rows), f64::from(seconds));
        for (sum, term) in
            [(&mut self.weight, 1.0), (&mut self.x, x), (&mut self.y, y), (&mut self.xx, x * x), (&mut self.xy, x * y)]
        {
            *sum = *sum * COST_DECAY + term;
        }
    }

    /// The acceptance probability from which one more row pays in a step of `rows` rows: above it, the row yields more
    /// tokens per second than the rest of the step.
    pub(crate) fn break_even(&self, rows: usize) -> f32 {
        let spread = self.weight * self.xx - self.x * self.x;
        if spread < MIN_SPREAD {
            return DEFAULT_BREAK_EVEN;
        }
        let per_row = ((self.weight * self.xy - self.x * self.y) / spread).max(0.0);
        let fixed = ((self.y - per_row * self.x) / self.weight).max(0.0);
        let total = fixed + per_row * rows as f64;
        if total > 0.0 { (per_row * rows as f64 / total) as f32 } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_more_while_accepted_and_rarely_while_rejected() {
        let mut rate = AcceptanceRate::default();
        (0..20).for_each(|_| rate.record(4, 4));
        assert_eq!(rate.draft_len(0.3, 8), 8);
        (0..20).for_each(|_| rate.record(4, 0));
        let tries: usize = (0..640).map(|_| rate.draft_len(0.3, 8)).sum();
        assert_eq!(tries, 10, "one token every 64 steps");
        (0..40).for_each(|_| rate.record(1, 1));
        assert_eq!(rate.draft_len(0.3, 0), 0);
        assert!(rate.draft_len(0.3, 8) > 1, "it is accepted again");
    }

    #[test]
    fn break_even_rises_with_the_cost_of_a_row() {
        let mut cost = StepCost::default();
        assert_eq!(cost.break_even(1), DEFAULT_BREAK_EVEN);
        // 4 ms for a step and 1 ms for each row.
        for rows in (0..300).map(|i| 1 + i % 4) {
            cost.record(rows, 0.004 + 0.001 * rows as f32);
        }
        assert!((cost.break_even(1) - 0.2).abs() < 0.01, "{}", cost.break_even(1));
        assert!((cost.break_even(16) - 0.8).abs() < 0.01, "{}", cost.break_even(16));
        // Rows that cost nothing.
        let mut cost = StepCost::default();
        (0..300).for_each(|i| cost.record(1 + i % 4, 0.004));
        assert!(cost.break_even(16) < 0.01);
    }
}
