//! `camshaft:policy/log`: a guest's log lines, tagged and rate-limited.
use std::fmt::Write as _;
use std::time::Instant;

use crate::bindings::host::log::{Host, Level};
use crate::identity::{Allowance, Identity};
use crate::store::GuestState;
use crate::text::{on_one_line, truncated};

/// Bytes of a message, and of all fields together, that are kept.
const MESSAGE_BYTES: usize = 2048;
const FIELDS: usize = 16;

impl Host for GuestState {
    fn write(&mut self, level: Level, message: String, fields: Vec<(String, String)>) -> wasmtime::Result<()> {
        write_line(&self.identity, level, &message, &fields);
        Ok(())
    }
}

/// Writes one line if the plugin's allowance is not spent.
pub(crate) fn write_line(identity: &Identity, level: Level, message: &str, fields: &[(String, String)]) {
    let Allowance::Granted { dropped } = identity.take_line(Instant::now()) else { return };
    let (hook, plugin) = (identity.hook.as_str(), identity.name.as_str());
    if dropped > 0 {
        tracing::warn!(hook, plugin, dropped, "log lines of the plugin over its allowance were dropped");
    }
    let message = on_one_line(truncated(message, MESSAGE_BYTES));
    let mut text = String::new();
    for (key, value) in fields.iter().take(FIELDS) {
        if text.len() < MESSAGE_BYTES {
            let (key, value) = (truncated(key, 64), truncated(value, MESSAGE_BYTES - text.len()));
            // Writing to a string cannot fail.
            let _ = write!(text, "{}{key}={value:?}", if text.is_empty() { "" } else { " " });
        }
    }
    match level {
        Level::Debug => tracing::debug!(hook, plugin, fields = text, "{message}"),
        Level::Info => tracing::info!(hook, plugin, fields = text, "{message}"),
        Level::Warn => tracing::warn!(hook, plugin, fields = text, "{message}"),
        Level::Error => tracing::error!(hook, plugin, fields = text, "{message}"),
    }
}
