//! Keeps the latest values of a latency and computes their percentiles.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;

/// Age and number of the values that percentiles consider.
const SPAN: Duration = Duration::from_secs(60);
const VALUES: usize = 8192;
/// The time that a rate is of.
const RATE_SPAN: Duration = Duration::from_secs(5);
/// The latest values of a latency.
#[derive(Debug, Clone, Default)]
pub(crate) struct Recent(Arc<Mutex<VecDeque<(Instant, f32)>>>);

/// Percentiles of the last minute, of at most the last 8192 values, in seconds; `null` without values.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Percentiles {
    count: usize,
    p50: Option<f32>,
    p90: Option<f32>,
    p99: Option<f32>,
}

impl Recent {
    pub(crate) fn record(&self, at: Instant, seconds: f64) {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if values.len() == VALUES {
            values.pop_front();
        }
        values.push_back((at, seconds as f32));
    }

    /// Values per second in the last seconds.
    pub(crate) fn rate(&self, now: Instant) -> f64 {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = values.iter().rev().take_while(|(at, _)| now.saturating_duration_since(*at) <= RATE_SPAN);
        fresh.count() as f64 / RATE_SPAN.as_secs_f64()
    }

    pub(crate) fn percentiles(&self, now: Instant) -> Percentiles {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = values.iter().filter(|(at, _)| now.saturating_duration_since(*at) <= SPAN);
        let mut sorted: Vec<f32> = fresh.map(|(_, seconds)| *seconds).collect();
        drop(values);
        sorted.sort_by(f32::total_cmp);
        let at =
            |share: f64| sorted.get(((sorted.len() as f64 * share) as usize).min(sorted.len().max(1) - 1)).copied();
        Percentiles { count: sorted.len(), p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_the_last_minute_and_bounded() {
        let recent = Recent::default();
        let begun = Instant::now();
        assert_eq!(recent.percentiles(begun).p50, None);
        recent.record(begun, 1000.0);
        let later = begun + SPAN + Duration::from_millis(1);
        (1..=100).for_each(|n| recent.record(later, f64::from(n)));
        let found = recent.percentiles(later);
        assert_eq!((found.count, found.p50, found.p90, found.p99), (100, Some(51.0), Some(91.0), Some(100.0)));
        (0..VALUES).for_each(|_| recent.record(later, 7.0));
        let found = recent.percentiles(later);
        assert_eq!((found.count, found.p99), (VALUES, Some(7.0)));
    }
}
