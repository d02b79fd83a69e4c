//! When a failed request is tried again, and when no more.
use std::thread;
use std::time::{Duration, Instant};

use crate::error::RegistryError;
use crate::progress::{Event, Progress};
use crate::settings::Times;

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Another attempt may succeed. `after`: what the server asks for.
    Again {
        why: String,
        after: Option<Duration>,
    },
    Fatal(RegistryError),
}

impl Failure {
    pub(crate) fn again(why: impl Into<String>) -> Self {
        Self::Again { why: why.into(), after: None }
    }
}

impl From<RegistryError> for Failure {
    fn from(error: RegistryError) -> Self {
        Self::Fatal(error)
    }
}

/// Counts attempts in a row.
#[derive(Debug)]
pub(crate) struct Attempts {
    pub(crate) failed: u32,
}

impl Attempts {
    pub(crate) fn new() -> Self {
        Self { failed: 0 }
    }

    /// One more failed: how long to wait before the next; `None`: there is none.
    pub(crate) fn next(&mut self, times: &Times, after: Option<Duration>) -> Option<Duration> {
        self.failed += 1;
        if self.failed >= times.attempts {
            return None;
        }
        let doubled = times.pause.saturating_mul(1 << (self.failed - 1).min(16));
        Some(doubled.max(after.unwrap_or_default()).min(times.pause_max))
    }
}

/// Asks until there is an answer, or no more attempts.
///
/// # Errors
/// The last attempt's, [`RegistryError::Unreachable`], or [`RegistryError::Cancelled`].
pub(crate) fn until_answered<T>(
    times: &Times,
    progress: &dyn Progress,
    url: &str,
    mut ask: impl FnMut() -> Result<T, Failure>,
) -> Result<T, RegistryError> {
    let mut attempts = Attempts::new();
    loop {
        let (why, after) = match ask() {
            Ok(answer) => return Ok(answer),
            Err(Failure::Fatal(error)) => return Err(error),
            Err(Failure::Again { why, after }) => (why, after),
        };
        let Some(pause) = attempts.next(times, after) else {
            return Err(RegistryError::Unreachable { url: url.to_owned(), why, attempts: attempts.failed });
        };
        wait(progress, &why, pause, attempts.failed + 1)?;
    }
}

/// Tells of a pause before another attempt, and waits.
///
/// # Errors
/// Somebody cancelled meanwhile.
pub(crate) fn wait(progress: &dyn Progress, why: &str, pause: Duration, attempt: u32) -> Result<(), RegistryError> {
    const SLICE: Duration = Duration::from_millis(50);
    progress.tell(&Event::Retry { why, pause, attempt });
    let begun = Instant::now();
    loop {
        if progress.is_cancelled() {
            return Err(RegistryError::Cancelled);
        }
        let left = pause.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(SLICE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_heed_the_server() {
        let times =
            Times { pause: Duration::from_secs(1), pause_max: Duration::from_secs(5), attempts: 6, ..Times::default() };
        let mut attempts = Attempts::new();
        let mut pauses = Vec::new();
        while let Some(pause) = attempts.next(&times, None) {
            pauses.push(pause.as_secs());
        }
        assert_eq!((pauses, attempts.failed), (vec![1, 2, 4, 5, 5], 6));
        let mut asked = Attempts::new();
        assert_eq!(asked.next(&times, Some(Duration::from_secs(3))), Some(Duration::from_secs(3)));
        assert_eq!(asked.next(&times, Some(Duration::from_secs(3600))), Some(Duration::from_secs(5)));
    }
}
