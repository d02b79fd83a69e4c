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
    /// Why the configuration was rejected (nothing in it has changed then), or the policies were not scanned.
    pub error: Option<String>,
    #[serde(skip)]
    pub policies: PolicyScan,
}

/// What became of the policy directory in a reload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PolicyScan {
    /// What is there serves or was rejected.
    #[default]
    Done,
    /// Too many others wait.
    Busy,
    /// It may still happen.
    Unanswered,
}

/// Reloads and shows the configuration. The server implements it.
pub trait Control: Send + Sync + fmt::Debug {
    /// Reloads configuration and policies.
    fn reload(&self) -> Reloaded;
    /// Every key with its value in force and its source.
    fn config(&self) -> Value;
}
