//! How many prompt tokens a step may prefill without delaying the streams that decode beside them for too long.
use std::time::Duration;

use crate::speculate::StepCost;

/// Minimum of prompt tokens in a step, so that prefill never stalls.
const MIN_TOKENS: f32 = 8.0;
/// Weight of a new measurement in the moving averages.
const WEIGHT: f32 = 0.3;

/// Measures what a prompt token costs in steps with prefill, and what a step costs without.
#[derive(Debug)]
pub(super) struct Pacer {
    target: Duration,
    /// Seconds of a step without prefill.
    step: f32,
    /// Seconds per token of a step with prefill. The step's fixed costs are included, so it is rather too high than too low.
    token: f32,
    /// Cost of a row in a step without prefill.
    cost: StepCost,
    last: Option<Planned>,
}

/// The step that is running.
#[derive(Debug, Clone, Copy)]
struct Planned {
    begun: Duration,
    tokens: u32,
    prefills: bool,
}

impl Pacer {
    pub(super) fn new(target: Duration) -> Self {
        Self { target, step: 0.0, token: 0.0, cost: StepCost::default(), last: None }
    }

    /// A step begins, so the one before it has just ended, unless the worker was idle in between.
    pub(super) fn begin(&mut self, now: Duration) {
        let Some(Planned { begun, tokens, prefills }) = self.last.take() else { return };
        let took = now.saturating_sub(begun).as_secs_f32();
        let learn =
            |known: &mut f32, seen: f32| *known = if *known == 0.0 { seen } else { *known + (seen - *known) * WEIGHT };
        if prefills {
            learn(&mut self.token, took / tokens.max(1) as f32);
        } else {
            learn(&mut self.step, took);
            self.cost.record(tokens, took);
        }
    }

    /// The step that began at `now` decodes `tokens`.
    pub(super) fn planned(&mut self, now: Duration, tokens: u32, prefills: bool) {
        self.last = Some(Planned { begun: now, tokens, prefills });
    }

    pub(super) fn idle(&mut self) {
        self.last = None;
    }

    /// Probability of acceptance above which a draft token pays in a step of `rows` rows.
    pub(super) fn break_even(&self, rows: usize) -> f32 {
        self.cost.break_even(rows)
    }

    /// Prompt tokens for the next step while `decoding` sequences wait for it, and `prefilling` for their first token.
    pub(super) fn budget(&self, decoding: usize, prefilling: usize) -> usize {
        if self.token <= 0.0 {
            return usize::MAX;
        }
        // A model that is too slow for the target lets its streams keep a quarter of their speed.
        let left = (self.target.as_secs_f32() - self.step).max(3.0 * self.step);
        // If more sequences wait for their first token than for their next one, the step may take longer in proportion:
        // a few running streams do not hold up a burst of new requests.
        let burst = (prefilling as f32 / decoding.max(1) as f32).max(1.0);
        (left * burst / self.token).clamp(MIN_TOKENS, 1e6) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn gives_what_fits_into_the_target_and_never_nothing() {
        let mut pacer = Pacer::new(50 * MS);
        assert_eq!(pacer.budget(8, 0), usize::MAX);
        // 10 ms a step, 1 ms a token: the target leaves 40 ms.
        pacer.planned(Duration::ZERO, 5, false);
        pacer.begin(10 * MS);
        pacer.planned(10 * MS, 105, true);
        pacer.begin(115 * MS);
        assert!((39..=40).contains(&pacer.budget(8, 0)), "{}", pacer.budget(8, 0));
        // Three times as many want to begin.
        assert!((39..=40).contains(&pacer.budget(8, 8)) && (118..=120).contains(&pacer.budget(2, 6)));
        // Idle time is no cost of a step.
        pacer.idle();
        pacer.begin(9999 * MS);
        assert!((39..=40).contains(&pacer.budget(8, 0)));
        // Slower than the target whatever it does: 100 ms a step.
        for i in 0..40u32 {
            pacer.planned(100 * i * MS, 5, false);
            pacer.begin(100 * (i + 1) * MS);
        }
        assert!((295..=300).contains(&pacer.budget(8, 0)), "{}", pacer.budget(8, 0));
        // A step that was expected to take longer than it did with its prompt tokens does not make them free.
        pacer.planned(Duration::ZERO, 20, true);
        pacer.begin(20 * MS);
        assert!((295..=300).contains(&pacer.budget(8, 0)), "{}", pacer.budget(8, 0));
        // 50 ms a token.
        for i in 0..40u32 {
            pacer.planned(1000 * i * MS, 12, true);
            pacer.begin((1000 * i + 600) * MS);
        }
        assert_eq!(pacer.budget(8, 0), 8);
    }
}
