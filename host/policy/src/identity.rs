//! What belongs to a plugin's name and outlives its instances and generations: its state store, its allowances.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;

use crate::imports::metrics::{PluginMetrics, SeriesBook};
use crate::imports::state::StateStore;

/// Log lines that a plugin may write in a second.
const LOG_LINES: u32 = 100;

/// A plugin by hook and name.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) hook: Hook,
    pub(crate) name: PolicyName,
    pub(crate) state: Mutex<StateStore>,
    pub(crate) series: Mutex<SeriesBook>,
    pub(crate) metrics: Arc<PluginMetrics>,
    lines: Mutex<LineAllowance>,
}

#[derive(Debug)]
struct LineAllowance {
    window: Instant,
    written: u32,
    dropped: u64,
}

/// Whether a log line may be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// Yes; and this many were dropped since the last one that was.
    Granted {
        dropped: u64,
    },
    Spent,
}

impl Identity {
    pub(crate) fn new(hook: Hook, name: PolicyName, metrics: Arc<PluginMetrics>) -> Self {
        let lines = LineAllowance { window: Instant::now(), written: 0, dropped: 0 };
        Self { hook, name, state: Mutex::default(), series: Mutex::default(), metrics, lines: Mutex::new(lines) }
    }

    /// Takes one line of the plugin's allowance.
    pub(crate) fn take_line(&self, now: Instant) -> Allowance {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(lines.window) >= Duration::from_secs(1) {
            lines.window = now;
            lines.written = 0;
        }
        if lines.written >= LOG_LINES {
            lines.dropped += 1;
            return Allowance::Spent;
        }
        lines.written += 1;
        Allowance::Granted { dropped: std::mem::take(&mut lines.dropped) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_a_hundred_lines_a_second_and_tells_how_many_were_dropped() {
        let metrics = Arc::new(PluginMetrics::new(prometheus::Registry::new()));
        let identity = Identity::new(Hook::Auth, PolicyName::from("x"), metrics);
        let start = Instant::now();
        for _ in 0..LOG_LINES {
            assert_eq!(identity.take_line(start), Allowance::Granted { dropped: 0 });
        }
        for _ in 0..7 {
            assert_eq!(identity.take_line(start), Allowance::Spent);
        }
        let later = start + Duration::from_secs(1);
        assert_eq!(identity.take_line(later), Allowance::Granted { dropped: 7 });
        assert_eq!(identity.take_line(later), Allowance::Granted { dropped: 0 });
    }
}
