//! What is known of each policy file, for operators.
use std::fmt;

use serde::Serialize;

use super::hook::{Hook, Mode};
use crate::ids::Generation;

/// What a policy file does at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyState {
    /// It is loaded and asked.
    Active,
    /// It is loaded but not asked: another policy of a hook where only one decides comes after it.
    Standby,
    /// It is loaded but faulted: the native scheduler decides in its place until it is tried again.
    Replaced,
    /// Its mode is `off`.
    Off,
    /// What is in its files cannot serve. An older load of it may, see [`PolicyStatus::serving`].
    Rejected,
}

impl PolicyState {
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyState::Active => "active",
            PolicyState::Standby => "standby",
            PolicyState::Replaced => "replaced",
            PolicyState::Off => "off",
            PolicyState::Rejected => "rejected",
        }
    }
}

impl fmt::Display for PolicyState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// State of one policy file, for `GET /admin/policies`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyStatus {
    pub hook: Hook,
    pub name: String,
    pub file: String,
    pub mode: Mode,
    /// An operator chose the mode, not the policy's file.
    pub overridden: bool,
    pub state: PolicyState,
    /// SHA-256 of the component that serves, in hexadecimal.
    pub serving: Option<String>,
    /// The generation that brought in what serves.
    pub generation: Option<Generation>,
    /// Why the newest content was rejected, or what fault replaced the policy.
    pub error: Option<String>,
}

/// Why a policy's mode was not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModeError {
    #[error("there is no {hook} policy {name:?} in the policy directory")]
    NoPolicy { hook: Hook, name: String },
    #[error("{0}")]
    Refused(String),
    /// It may still happen.
    #[error("{0}")]
    Unanswered(String),
}
