//! Waiting for something to become true.
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// How long anything may take that has to happen. Generous: it only bounds a test that fails anyway.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(10);

/// Looks again until there is a value, and gives it back. `look` says what it sees instead while there is none.
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
