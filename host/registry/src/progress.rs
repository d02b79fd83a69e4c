//! How far a pull is: told to whoever asked for it, who may also cancel it.
use std::time::{Duration, Instant};

/// Told of a pull while it runs, on the thread that pulls.
pub trait Progress: Send + Sync {
    /// Something happened. Must not take long.
    fn tell(&self, event: &Event<'_>);

    /// Whether to stop. Asked after each piece that was read, and while another process is waited for.
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// What happens during a pull, in this order, some of it again and again.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event<'a> {
    /// Another process, or thread, pulls the same. Told once.
    Waiting { source: &'a str },
    /// The source is asked which files there are.
    Resolving { source: &'a str },
    /// More of a file is here. At most ten times a second, and when it begins and ends.
    Moved(Moved<'a>),
    /// An attempt failed, and there is another one after a pause.
    Retry { why: &'a str, pause: Duration, attempt: u32 },
    /// Something that whoever asked should know: the file changed upstream, or it is begun anew.
    Note(&'a str),
    /// A model left the cache, because the new one took its place.
    Evicted { name: &'a str, bytes: u64 },
}

/// How far a file is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moved<'a> {
    pub file: &'a str,
    /// The number of the file among the model's, from 1.
    pub part: u32,
    pub parts: u32,
    /// Bytes of the file that are here.
    pub bytes: u64,
    /// Bytes that it will have.
    pub total: u64,
    /// Bytes a second, over the last seconds. 0: not known yet.
    pub rate: u64,
}

/// Tells nobody.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn tell(&self, _: &Event<'_>) {}
}

/// How often it is told at most.
const EVERY: Duration = Duration::from_millis(100);
/// Over how long a rate is measured.
const WINDOW: Duration = Duration::from_secs(3);

/// Decides when to tell, and measures the rate. Takes the time as a value.
#[derive(Debug)]
pub(crate) struct Meter {
    told: Option<Instant>,
    since: (Instant, u64),
    rate: u64,
}

impl Meter {
    /// Begins when `bytes` are here.
    pub(crate) fn new(now: Instant, bytes: u64) -> Self {
        Self { told: None, since: (now, bytes), rate: 0 }
    }

    /// `bytes` are here. The rate, if it is time to tell.
    pub(crate) fn moved(&mut self, now: Instant, bytes: u64) -> Option<u64> {
        let (since, before) = self.since;
        let elapsed = now.saturating_duration_since(since);
        if elapsed >= EVERY {
            let moved = bytes.saturating_sub(before) as f64;
            self.rate = (moved / elapsed.as_secs_f64()) as u64;
        }
        if elapsed >= WINDOW {
            self.since = (now, bytes);
        }
        let due = self.told.is_none_or(|told| now.saturating_duration_since(told) >= EVERY);
        due.then(|| {
            self.told = Some(now);
            self.rate
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_ten_times_a_second_at_most_and_the_rate_of_the_last_seconds() {
        let begun = Instant::now();
        let mut meter = Meter::new(begun, 1000);
        assert_eq!(meter.moved(begun, 1000), Some(0));
        assert_eq!(meter.moved(begun + Duration::from_millis(99), 2000), None);
        assert_eq!(meter.moved(begun + Duration::from_millis(100), 2000), Some(10_000));
        assert_eq!(meter.moved(begun + Duration::from_secs(3), 4000), Some(1000));
        assert_eq!(meter.moved(begun + Duration::from_secs(4), 4500), Some(500), "of the last second alone");
    }
}
