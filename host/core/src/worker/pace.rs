//! How much of the prompts a step may prefill, so that those who are being answered do not wait too long for it.
use std::time::Duration;

/// Prompt tokens of a step at the least, so that prefill always goes on.
const LEAST: f32 = 8.0;
/// How much of a new measurement counts.
const WEIGHT: f32 = 0.3;

/// Learns what a prompt token costs from the steps that had some, and what a step costs without.
#[derive(Debug)]
pub(super) struct Pace {
    target: Duration,
    /// Seconds of a step without prefill, and of a prompt token on top.
    step: f32,
    token: f32,
    last: Option<(Duration, u32)>,
}

impl Pace {
    pub(super) fn new(target: Duration) -> Self {
        Self { target, step: 0.0, token: 0.0, last: None }
    }

    /// A step begins. What began before it has ended by now, unless the worker was idle in between.
    pub(super) fn begin(&mut self, now: Duration) {
        let Some((begun, prefilled)) = self.last.take() else { return };
        let took = now.saturating_sub(begun).as_secs_f32();
        let learn =
            |known: &mut f32, seen: f32| *known = if *known == 0.0 { seen } else { *known + (seen - *known) * WEIGHT };
        if prefilled == 0 {
            learn(&mut self.step, took);
        } else {
            learn(&mut self.token, (took - self.step).max(0.0) / prefilled as f32);
        }
    }

    /// The step that began at `now` prefills so many tokens.
    pub(super) fn planned(&mut self, now: Duration, prefilled: u32) {
        self.last = Some((now, prefilled));
    }

    pub(super) fn idle(&mut self) {
        self.last = None;
    }

    /// Prompt tokens for the next step while others decode.
    pub(super) fn budget(&self) -> usize {
        if self.token <= 0.0 {
            return usize::MAX;
        }
        // Where a bare step is slower than the target, a step may take twice as long as that.
        let left = (self.target.as_secs_f32() - self.step).max(self.step);
        (left / self.token).clamp(LEAST, 1e6) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn gives_what_fits_into_the_target_and_never_nothing() {
        let mut pace = Pace::new(50 * MS);
        assert_eq!(pace.budget(), usize::MAX);
        // 10 ms a step, 1 ms a prompt token.
        pace.planned(Duration::ZERO, 0);
        pace.begin(10 * MS);
        pace.planned(10 * MS, 100);
        pace.begin(120 * MS);
        assert!((39..=40).contains(&pace.budget()), "{}", pace.budget());
        // Idle time is nobody's cost.
        pace.idle();
        pace.begin(9999 * MS);
        assert!((39..=40).contains(&pace.budget()));
        // Slower than the target whatever it does: 100 ms a step.
        for i in 0..40u32 {
            pace.planned(100 * i * MS, 0);
            pace.begin(100 * (i + 1) * MS);
        }
        assert!((98..=100).contains(&pace.budget()), "{}", pace.budget());
        // 50 ms a prompt token.
        for i in 0..40u32 {
            pace.planned(1000 * i * MS, 10);
            pace.begin((1000 * i + 600) * MS);
        }
        assert_eq!(pace.budget(), 8);
    }
}
