//! Decides when the watcher scans: some time after the last change, again for files that had not settled, and
//! regularly.
use std::time::{Duration, Instant};

use crate::load::SETTLE;

/// A scan follows a change after `QUIET` without further changes, and at most `MAX_WAIT` after the first one.
const QUIET: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(2);

/// Computes the time of the next scan.
#[derive(Debug)]
pub(super) struct Pace {
    poll: Duration,
    next_poll: Instant,
    /// Times of the first and the last notice since the last scan.
    noticed: Option<(Instant, Instant)>,
    /// When to scan again for files that had not settled, and when they were first noticed.
    retry: Option<(Instant, Instant)>,
    /// Times of the first notice of the changes whose components are being compiled.
    compiling: Option<Instant>,
    /// When to examine something again that nobody changed.
    again: Option<Instant>,
}

impl Pace {
    pub(super) fn new(poll: Duration) -> Self {
        // Pause between two scans, so that the thread can take requests.
        let poll = poll.max(SETTLE / 2);
        Self { poll, next_poll: Instant::now() + poll, noticed: None, retry: None, compiling: None, again: None }
    }

    /// Changes the interval of regular scans.
    pub(super) fn set_poll(&mut self, poll: Duration) {
        let Self { poll, next_poll, .. } = Self::new(poll);
        (self.poll, self.next_poll) = (poll, next_poll);
    }

    pub(super) fn notice(&mut self) {
        let now = Instant::now();
        let first = self.noticed.map_or(now, |(first, _)| first);
        self.noticed = Some((first, now));
    }

    pub(super) fn retry(&mut self, noticed: Instant) {
        self.retry = Some((Instant::now() + SETTLE, noticed));
    }

    /// The next time at which something may have become good that nobody changed.
    pub(super) fn again(&mut self, wait: Option<Duration>) {
        self.again = wait.map(|wait| Instant::now() + wait.max(SETTLE));
    }

    pub(super) fn compiling(&mut self, noticed: Instant) {
        self.compiling = Some(self.compiling.map_or(noticed, |first| first.min(noticed)));
    }

    /// A component was compiled. Returns when its change was first noticed.
    pub(super) fn compiled(&mut self) -> Instant {
        self.compiling.take().unwrap_or_else(Instant::now)
    }

    /// Time until the next scan; `None`: now.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        let quiet = self.noticed.map(|(first, last)| (last + QUIET).min(first + MAX_WAIT));
        let retry = self.retry.map(|(at, _)| at);
        let next = quiet.into_iter().chain(retry).chain(self.again).fold(self.next_poll, Instant::min);
        let wait = next.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// A scan begins. Returns when the changes that it handles were first noticed.
    pub(super) fn begin(&mut self) -> Instant {
        let now = Instant::now();
        self.next_poll = now + self.poll;
        self.again = None;
        let retried = self.retry.take().map(|(_, noticed)| noticed);
        let noticed = self.noticed.take().map(|(first, _)| first);
        retried.into_iter().chain(noticed).fold(now, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_quiet_but_not_for_ever() {
        let start = Instant::now();
        let mut pace = Pace {
            poll: MAX_WAIT * 10,
            next_poll: start + MAX_WAIT * 10,
            noticed: None,
            retry: None,
            compiling: None,
            again: None,
        };
        assert_eq!(pace.wait(start), Some(MAX_WAIT * 10));
        pace.noticed = Some((start, start));
        assert_eq!(pace.wait(start), Some(QUIET));
        assert_eq!(pace.wait(start + QUIET), None);
        pace.noticed = Some((start, start + MAX_WAIT - QUIET / 2));
        assert_eq!(pace.wait(start), Some(MAX_WAIT));
        pace.retry = Some((start + SETTLE, start));
        assert_eq!(pace.wait(start), Some(SETTLE));
        assert_eq!(pace.begin(), start);
        assert!(pace.noticed.is_none() && pace.retry.is_none());
    }
}
