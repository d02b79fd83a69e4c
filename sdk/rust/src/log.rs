//! Writes structured lines to the server's log, where the host tags them with the plugin's name. A line costs about 1
//! us. The host drops lines past 100 per second.
//!
//! In native unit tests, lines go to standard error.
pub use crate::bindings::host::log::Level;

/// Logs a line that is of interest only while debugging.
pub fn debug(message: &str) {
    write(Level::Debug, message, &[]);
}

/// Logs something that an operator may want to know.
pub fn info(message: &str) {
    write(Level::Info, message, &[]);
}

/// Logs something that an operator should look at.
pub fn warn(message: &str) {
    write(Level::Warn, message, &[]);
}

/// Logs an error.
pub fn error(message: &str) {
    write(Level::Error, message, &[]);
}

/// Logs a message with fields. The host keeps 2048 bytes of the message, and 16 fields.
pub fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
    #[cfg(target_family = "wasm")]
    crate::bindings::host::log::write(level, message, &crate::metrics::owned(fields));
    #[cfg(not(target_family = "wasm"))]
    eprintln!("{level:?}: {message} {fields:?}");
}
