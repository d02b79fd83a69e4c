//! How long requests take, learnt from those that ended: for a virtual book that serves one before the real one was served.
use std::time::Duration;

use crate::policy::Arrival;

/// Of a new observation in the running means.
const WEIGHT: f64 = 0.1;
/// As many prompt tokens as cost what one generated token does.
const PROMPT_TOKENS_PER_GENERATED: f64 = 8.0;

/// Running means over the requests that ended.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Seconds per generated token, and generated tokens as a share of those that were asked for.
    means: Option<(f64, f64)>,
}

impl Pace {
    /// A request with this many generated tokens was served for so long.
    pub(super) fn learn(&mut self, arrival: &Arrival, generated_tokens: u32, served: Duration) {
        let work = work(arrival, f64::from(generated_tokens));
        let share = f64::from(generated_tokens) / f64::from(arrival.max_tokens.max(1));
        let new = (served.as_secs_f64() / work, share.min(1.0));
        let mix = |old: f64, new: f64| old + WEIGHT * (new - old);
        self.means = Some(self.means.map_or(new, |old| (mix(old.0, new.0), mix(old.1, new.1))));
    }

    /// `None` before the first one ended.
    pub(super) fn estimate(&self, arrival: &Arrival) -> Option<Duration> {
        let (seconds, share) = self.means?;
        let seconds = seconds * work(arrival, share * f64::from(arrival.max_tokens));
        Duration::try_from_secs_f64(seconds).ok()
    }
}

/// In generated tokens.
fn work(arrival: &Arrival, generated_tokens: f64) -> f64 {
    1.0 + f64::from(arrival.prompt_tokens) / PROMPT_TOKENS_PER_GENERATED + generated_tokens
}
