//! Structured log lines, tagged with the plugin's name by the host. About 1 us each; over 100 a second are dropped.
//!
//! Natively (in unit tests) lines go to standard error.
pub use crate::bindings::host::camshaft::policy::log::Level;

/// Of interest only while debugging.
pub fn debug(message: &str) {
    write(Level::Debug, message, &[]);
}

/// Something an operator may want to know.
pub fn info(message: &str) {
    write(Level::Info, message, &[]);
}

/// Something an operator should look at.
pub fn warn(message: &str) {
    write(Level::Warn, message, &[]);
}

/// Something went wrong.
pub fn error(message: &str) {
    write(Level::Error, message, &[]);
}

/// A message (2048 bytes are kept) with fields (at most 16).
pub fn write(level: Level, message: &str, fields: &[(&str, &str)]) {
    #[cfg(target_family = "wasm")]
    crate::bindings::host::camshaft::policy::log::write(level, message, &crate::metrics::owned(fields));
    #[cfg(not(target_family = "wasm"))]
    eprintln!("{level:?}: {message} {fields:?}");
}
