//! Polling until a condition holds.
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Timeout of every poll. Generous: it only bounds tests that fail anyway.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Polls until `look` returns a value. While there is none, `look` returns what it sees instead.
pub fn eventually<T, S: Debug>(what: &str, mut look: impl FnMut() -> Result<T, S>) -> T {
    let begun = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) if begun.elapsed() > PATIENCE => panic!("{what}: not so after {PATIENCE:?}; last seen: {seen:?}"),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
}
