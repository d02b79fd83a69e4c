//! How much of the prompts a step may prefill, so that those who are being answered do not wait too long for it.
use std::time::Duration;

use crate::speculate::StepCost;

/// Prompt tokens of a step at the least, so that prefill always goes on.
const LEAST: f32 = 8.0;
/// How much of a new measurement counts.
const WEIGHT: f32 = 0.3;

/// Learns what a prompt token costs from the steps that had some, and what a step costs without.
#[derive(Debug)]
pub(super) struct Pace {
    target: Duration,
    /// Seconds of a step without prefill.
    step: f32,
    /// Seconds of each token of a step with prefill, its fixed costs included: rather too much than too little.
    token: f32,
    /// What a row of a step without prefill costs.
    cost: StepCost,
    last: Option<Planned>,
}

/// The step under way.
#[derive(Debug, Clone, Copy)]
struct Planned {
    begun: Duration,
    tokens: u32,
    prefills: bool,
}

impl Pace {
    pub(super) fn new(target: Duration) -> Self {
        Self { target, step: 0.0, token: 0.0, cost: StepCost::default(), last: None }
    }

    /// A step begins. What began before it has ended by now, unless the worker was idle in between.
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

    /// The step that began at `now` has so many tokens.
    pub(super) fn planned(&mut self, now: Duration, tokens: u32, prefills: bool) {
        self.last = Some(Planned { begun: now, tokens, prefills });
    }

    pub(super) fn idle(&mut self) {
        self.last = None;
    }

    /// The acceptance probability from which a draft token pays in a step of `rows` rows.
    pub(super) fn break_even(&self, rows: usize) -> f32 {
        self.cost.break_even(rows)
    }

    /// Prompt tokens for the next step while `decoding` sequences wait for it, and `prefilling` for their first token.
    pub(super) fn budget(&self, decoding: usize, prefilling: usize) -> usize {
        if self.token <= 0.0 {
            return usize::MAX;
        }
        // Where the model is too slow for the target, those who are being answered keep a quarter of their speed.
        let left = (self.target.as_secs_f32() - self.step).max(3.0 * self.step);
        // Where more wait for their first token than for the next one, a step takes longer in proportion: a burst of new
        // requests is not held up by the few that already run.
        let burst = (prefilling as f32 / decoding.max(1) as f32).max(1.0);
        (left * burst / self.token).clamp(LEAST, 1e6) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn gives_what_fits_into_the_target_and_never_nothing() {
        let mut pace = Pace::new(50 * MS);
        assert_eq!(pace.budget(8, 0), usize::MAX);
        // 10 ms a step, 1 ms a token: the target leaves 40 ms.
        pace.planned(Duration::ZERO, 5, false);
        pace.begin(10 * MS);
        pace.planned(10 * MS, 105, true);
        pace.begin(115 * MS);
        assert!((39..=40).contains(&pace.budget(8, 0)), "{}", pace.budget(8, 0));
        // Three times as many want to begin.
        assert!((39..=40).contains(&pace.budget(8, 8)) && (118..=120).contains(&pace.budget(2, 6)));
        // Idle time is nobody's cost.
        pace.idle();
        pace.begin(9999 * MS);
        assert!((39..=40).contains(&pace.budget(8, 0)));
        // Slower than the target whatever it does: 100 ms a step.
        for i in 0..40u32 {
            pace.planned(100 * i * MS, 5, false);
            pace.begin(100 * (i + 1) * MS);
        }
        assert!((295..=300).contains(&pace.budget(8, 0)), "{}", pace.budget(8, 0));
        // A step that was expected to take longer than it did with its prompt tokens does not make them free.
        pace.planned(Duration::ZERO, 20, true);
        pace.begin(20 * MS);
        assert!((295..=300).contains(&pace.budget(8, 0)), "{}", pace.budget(8, 0));
        // 50 ms a token.
        for i in 0..40u32 {
            pace.planned(1000 * i * MS, 12, true);
            pace.begin((1000 * i + 600) * MS);
        }
        assert_eq!(pace.budget(8, 0), 8);
    }
}
