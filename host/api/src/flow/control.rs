//! What operators can ask of the process behind the HTTP surface.
use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// What came of reading the configuration again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Keys whose new value is in force.
    pub changed: Vec<String>,
    /// Keys whose new value takes a restart.
    pub needs_restart: Vec<String>,
    /// Why nothing changed.
    pub error: Option<String>,
}

/// Implemented by whoever owns the configuration.
pub trait Control: Send + Sync + fmt::Debug {
    /// Reads configuration and policies again.
    fn reload(&self) -> Reloaded;
    /// Every key in force, with its source.
    fn config(&self) -> Value;
}
