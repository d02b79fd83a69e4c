//! What every answer bears: a fresh name, and the time.
use std::time::{SystemTime, UNIX_EPOCH};

/// A fresh name that begins so.
pub(crate) fn id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::random::<u128>())
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
