//! A worker's throughput, for schedulers and metrics.
use std::time::Duration;

const WINDOW: Duration = Duration::from_secs(1);

/// Tokens drawn over the last full second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    since: Duration,
    tokens: u32,
    per_second: f32,
}

impl Rate {
    pub(super) fn note(&mut self, now: Duration, tokens: u32) {
        self.tokens += tokens;
        let passed = now.saturating_sub(self.since);
        if passed >= WINDOW {
            self.per_second = self.tokens as f32 / passed.as_secs_f32();
            (self.since, self.tokens) = (now, 0);
        }
    }

    pub(super) fn per_second(&self) -> f32 {
        self.per_second
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_was_drawn_in_a_full_second() {
        let ms = Duration::from_millis;
        let mut rate = Rate::default();
        rate.note(ms(999), 10);
        assert_eq!(rate.per_second(), 0.0, "no second is over yet");
        rate.note(ms(1000), 10);
        assert_eq!(rate.per_second(), 20.0);
        rate.note(ms(3000), 10);
        assert_eq!(rate.per_second(), 5.0, "over as long as it took");
        rate.note(ms(4000), 0);
        assert_eq!(rate.per_second(), 0.0);
    }
}
