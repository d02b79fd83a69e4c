//! `camshaft:host/log`: a guest's log lines, tagged and rate-limited.
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;
use camshaft_core::shown::on_one_line;
use wasmtime::component::{HasData, Linker};

use crate::bindings::host::log::{self, Host, Level};
use crate::text::truncated;

/// Maximum number of log lines of a plugin per second.
const LINES_PER_SECOND: u32 = 100;
/// Maximum bytes of a message, and of all fields together. The rest is cut off.
const MESSAGE_BYTES: usize = 2048;
const FIELDS: usize = 16;

/// The log of one plugin, shared by all its instances.
#[derive(Debug)]
pub(crate) struct PluginLog {
    hook: Hook,
    plugin: PolicyName,
    allowance: Mutex<Lines>,
}

/// Counts the lines of the second that began at `since`.
#[derive(Debug)]
struct Lines {
    since: Instant,
    written: u32,
    dropped: u64,
}

/// Whether a log line may be written.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// The line may be written; `dropped` lines were dropped since the last one.
    Granted {
        dropped: u64,
    },
    Spent,
}

impl PluginLog {
    pub(crate) fn new(hook: Hook, plugin: PolicyName) -> Self {
        let allowance = Mutex::new(Lines { since: Instant::now(), written: 0, dropped: 0 });
        Self { hook, plugin, allowance }
    }

    /// Takes one line of the plugin's allowance.
    pub(crate) fn take_line(&self, now: Instant) -> Allowance {
        let mut lines = self.allowance.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(lines.since) >= Duration::from_secs(1) {
            lines.since = now;
            lines.written = 0;
        }
        if lines.written >= LINES_PER_SECOND {
            lines.dropped += 1;
            return Allowance::Spent;
        }
        lines.written += 1;
        Allowance::Granted { dropped: std::mem::take(&mut lines.dropped) }
    }

    /// Writes one line if the plugin's allowance is not spent.
    pub(crate) fn write_line(&self, level: Level, message: &str, fields: &[(String, String)]) {
        let Allowance::Granted { dropped } = self.take_line(Instant::now()) else { return };
        let (hook, plugin) = (self.hook.as_str(), self.plugin.as_str());
        if dropped > 0 {
            tracing::warn!(hook, plugin, dropped, "log lines of the plugin over its allowance were dropped");
        }
        let message = on_one_line(truncated(message, MESSAGE_BYTES));
        let fields = one_text(fields);
        match level {
            Level::Debug => tracing::debug!(hook, plugin, fields, "{message}"),
            Level::Info => tracing::info!(hook, plugin, fields, "{message}"),
            Level::Warn => tracing::warn!(hook, plugin, fields, "{message}"),
            Level::Error => tracing::error!(hook, plugin, fields, "{message}"),
        }
    }
}

fn one_text(fields: &[(String, String)]) -> String {
    let mut text = String::new();
    for (key, value) in fields.iter().take(FIELDS) {
        if text.len() < MESSAGE_BYTES {
            let (key, value) = (truncated(key, 64), truncated(value, MESSAGE_BYTES - text.len()));
            // Writing to a string cannot fail.
            let _ = write!(text, "{}{key}={value:?}", if text.is_empty() { "" } else { " " });
        }
    }
    text
}

/// The part of a guest's state that the log needs.
pub(crate) trait LogView: 'static {
    /// `None` while lines are dropped.
    fn log(&mut self) -> Option<&PluginLog>;
}

struct Log;

impl HasData for Log {
    type Data<'a> = Option<&'a PluginLog>;
}

pub(crate) fn add_to_linker<T: LogView>(linker: &mut Linker<T>) -> wasmtime::Result<()> {
    log::add_to_linker::<_, Log>(linker, T::log)
}

impl Host for Option<&PluginLog> {
    fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) -> wasmtime::Result<()> {
        if let Some(log) = self {
            log.write_line(level, &message, &fields);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grants_a_hundred_lines_a_second_and_tells_how_many_were_dropped() {
        let log = PluginLog::new(Hook::Auth, PolicyName::from("x"));
        let start = Instant::now();
        for _ in 0..LINES_PER_SECOND {
            assert_eq!(log.take_line(start), Allowance::Granted { dropped: 0 });
        }
        for _ in 0..7 {
            assert_eq!(log.take_line(start), Allowance::Spent);
        }
        let later = start + Duration::from_secs(1);
        assert_eq!(log.take_line(later), Allowance::Granted { dropped: 7 });
        assert_eq!(log.take_line(later), Allowance::Granted { dropped: 0 });
    }
}
