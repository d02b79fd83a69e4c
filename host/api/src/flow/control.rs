//! The interface through which the admin routes control the process.
use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// The result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Keys whose new values are in force.
    pub changed: Vec<String>,
    /// Keys whose new values need a restart.
    pub needs_restart: Vec<String>,
    /// Why the configuration was rejected. Nothing has changed then.
    pub error: Option<String>,
}

/// Reloads and shows the configuration. The server implements it.
pub trait Control: Send + Sync + fmt::Debug {
    /// Reloads configuration and policies.
    fn reload(&self) -> Reloaded;
    /// Every key with its value in force and its source.
    fn config(&self) -> Value;
}
