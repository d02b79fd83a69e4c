//! Times of which many are counted, and quantiles of them.
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Four parts of each power of two of nanoseconds.
const PARTS: usize = 256;

/// How many times lay in each part.
#[derive(Debug)]
pub(crate) struct Times {
    parts: Box<[AtomicU64; PARTS]>,
    total_us: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Self { parts: Box::new([const { AtomicU64::new(0) }; PARTS]), total_us: AtomicU64::new(0) }
    }
}

impl Times {
    pub(crate) fn count(&self, time: Duration) {
        self.parts[rank(time)].fetch_add(1, Ordering::Relaxed);
        self.total_us.fetch_add(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The time below which this share of the times lies, up to a quarter too long. `None` before the first one.
    pub(crate) fn quantile(&self, share: f64) -> Option<Duration> {
        let counts = self.parts.each_ref().map(|count| count.load(Ordering::Relaxed));
        let all: u64 = counts.iter().sum();
        let wanted = ((all as f64 * share).ceil() as u64).clamp(1, all.max(1));
        let mut so_far = 0;
        counts.iter().enumerate().find_map(|(rank, count)| {
            so_far += count;
            (so_far >= wanted).then(|| end_of(rank))
        })
    }

    /// `None` before the first one.
    pub(crate) fn mean(&self) -> Option<Duration> {
        let all: u64 = self.parts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        self.total_us.load(Ordering::Relaxed).checked_div(all).map(Duration::from_micros)
    }
}

/// The part of all times in which this one is.
fn rank(time: Duration) -> usize {
    let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(4);
    let power = 63 - nanos.leading_zeros();
    (power as usize * 4 + (nanos >> (power - 2) & 3) as usize).min(PARTS - 1)
}

/// The longest time of a part.
fn end_of(rank: usize) -> Duration {
    let (power, quarter) = (rank as u32 / 4, rank as u128 % 4);
    let end = (1u128 << power) + (((quarter + 1) << power) / 4);
    Duration::from_nanos(u64::try_from(end).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_at_most_a_quarter_too_long() {
        let times = Times::default();
        assert_eq!((times.quantile(0.5), times.mean()), (None, None));
        (1..=100).for_each(|us| times.count(Duration::from_micros(us)));
        for (share, exact) in [(0.5, 50), (0.99, 99), (1.0, 100)] {
            let found = times.quantile(share).unwrap();
            let exact = Duration::from_micros(exact);
            assert!(found >= exact && found <= exact * 5 / 4, "{share}: {found:?} for {exact:?}");
        }
        assert_eq!(times.mean(), Some(Duration::from_micros(50)));
        times.count(Duration::ZERO);
        times.count(Duration::MAX);
    }
}
