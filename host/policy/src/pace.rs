//! Whether the calls of a version are fast enough for threads that serve connections.
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A call that takes more CPU time is slow.
pub(crate) const SLOW: Duration = Duration::from_micros(200);
/// Fast calls in a row that make a new version fast.
const TRIALS: u32 = 8;
/// The same after a slow call. Twice as many each time that it passed for fast and was not, up to the maximum.
const RETRIALS: u32 = 64;
const MAX_RETRIALS: u32 = 65_536;

/// How fast a version is.
#[derive(Debug)]
pub(crate) struct Pace {
    /// Fast calls that it still owes; 0: it is fast.
    owed: AtomicU32,
    /// What a slow call makes it owe.
    level: AtomicU32,
}

impl Default for Pace {
    /// Of a version of which nothing is known.
    fn default() -> Self {
        Self { owed: AtomicU32::new(TRIALS), level: AtomicU32::new(RETRIALS) }
    }
}

impl Pace {
    pub(crate) fn is_fast(&self) -> bool {
        self.owed.load(Ordering::Relaxed) == 0
    }

    /// A call took this CPU time.
    pub(crate) fn note(&self, took: Duration) {
        // Calls at the same time may lose one of their notes, which the next call makes up for.
        let owed = self.owed.load(Ordering::Relaxed);
        if took <= SLOW {
            if owed > 0 {
                self.owed.store(owed - 1, Ordering::Relaxed);
            }
            return;
        }
        let mut level = self.level.load(Ordering::Relaxed);
        if owed == 0 {
            // It passed for fast, and was not.
            level = level.saturating_mul(2).min(MAX_RETRIALS);
            self.level.store(level, Ordering::Relaxed);
        }
        self.owed.store(level, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fast calls until it is fast.
    fn calls_until_fast(pace: &Pace) -> u32 {
        let mut calls = 0;
        while !pace.is_fast() {
            pace.note(SLOW);
            calls += 1;
        }
        calls
    }

    #[test]
    fn a_version_is_fast_after_a_few_fast_calls_and_no_more_after_a_slow_one() {
        let (pace, slow) = (Pace::default(), SLOW + Duration::from_nanos(1));
        assert_eq!(calls_until_fast(&pace), TRIALS);
        let new = Pace::default();
        new.note(slow);
        assert_eq!(calls_until_fast(&new), RETRIALS);
        let mut wanted = 2 * RETRIALS;
        for _ in 0..12 {
            pace.note(slow);
            pace.note(slow);
            assert_eq!(calls_until_fast(&pace), wanted, "who lapses again has more to prove");
            wanted = (wanted * 2).min(MAX_RETRIALS);
        }
        assert_eq!(wanted, MAX_RETRIALS);
    }
}
