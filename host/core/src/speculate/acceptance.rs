//! Decides how long a draft pays: compares a request's acceptance rate with the cost of a row.
use crate::step_times::{StepTime, Work};

/// Weight of the latest draft token in the acceptance rate.
const RATE_WEIGHT: f32 = 0.1;
/// Assumed acceptance rate before the first draft.
const INITIAL_RATE: f32 = 0.7;
/// Assumed where a grammar says what comes next: a draft is wrong only where the model splits the same text into other tokens.
const INITIAL_RATE_OF_CERTAIN: f32 = 0.95;
/// Steps without a draft before one token is tried again, because the text may have become predictable.
const RETRY_STEPS: u32 = 64;
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
    /// Of drafts of a text that a grammar is certain of.
    pub(crate) fn of_certain() -> Self {
        Self { rate: INITIAL_RATE_OF_CERTAIN, ..Self::default() }
    }

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

/// The acceptance probability from which one more row pays in a step of this work: above it, the row yields more tokens per
/// second than the rest of the step.
pub(crate) fn break_even(times: Option<StepTime>, work: Work) -> f32 {
    let Some(times) = times else { return DEFAULT_BREAK_EVEN };
    let (all, of_rows) = (times.decoding(work), times.of_rows(work));
    if all > 0.0 { (of_rows / all) as f32 } else { 0.0 }
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
    fn certain_text_is_drafted_at_length_until_it_is_spelled_otherwise() {
        let mut rate = AcceptanceRate::of_certain();
        assert!(rate.draft_len(0.3, 32) > 20, "{}", rate.draft_len(0.3, 32));
        (0..12).for_each(|_| rate.record(8, 0));
        assert_eq!(rate.draft_len(0.3, 32), 0);
        let tries: usize = (0..640).map(|_| rate.draft_len(0.3, 32)).sum();
        assert_eq!(tries, 10);
        (0..20).for_each(|_| rate.record(1, 1));
        assert!(rate.draft_len(0.3, 32) > 4);
    }

    #[test]
    fn break_even_rises_with_the_cost_of_a_row() {
        let work = |rows, read| Work { rows, read, ..Work::default() };
        assert_eq!(break_even(None, work(1, 0.0)), DEFAULT_BREAK_EVEN);
        // 4 ms for a step, 1 ms for each row and 1 ms for a thousand entries that it attends to.
        let times = StepTime { step: 0.004, row: 0.001, read: 1e-6, prefill: 9.0, token: 9.0, attended: 9.0 };
        assert!((break_even(Some(times), work(1, 0.0)) - 0.2).abs() < 1e-6);
        assert!((break_even(Some(times), work(16, 0.0)) - 0.8).abs() < 1e-6);
        assert!((break_even(Some(times), work(1, 5000.0)) - 0.6).abs() < 1e-6);
        let nothing = StepTime { row: 0.0, read: 0.0, ..times };
        assert_eq!(break_even(Some(nothing), work(16, 9.0)), 0.0);
        assert_eq!(break_even(Some(StepTime { step: 0.0, ..nothing }), work(16, 9.0)), 0.0);
    }
}
