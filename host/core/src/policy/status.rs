//! The status of each policy file, for operators.
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::hook::{Hook, Mode};
use crate::ids::Generation;

/// What becomes of a policy file at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyState {
    /// It is loaded and asked.
    Active,
    /// It is loaded but not asked: only the last policy of its hook decides, and that is another one.
    Standby,
    /// It faulted: the native scheduler decides in its place until it is tried again.
    Replaced,
    /// Its mode is `off`.
    Off,
    /// Its files cannot serve. An earlier version of them may still do, see [`PolicyStatus::serving`].
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
    /// An operator set the mode while serving; the settings file says otherwise, or nothing.
    pub overridden: bool,
    pub state: PolicyState,
    /// SHA-256 of the component that serves, in hexadecimal.
    pub serving: Option<String>,
    /// The generation that the serving component came with.
    pub generation: Option<Generation>,
    /// Why the newest files were rejected, or the fault that the policy was replaced for.
    pub error: Option<String>,
}

/// Why a policy's mode was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModeError {
    #[error("there is no {hook} policy {name:?} in the policy directory")]
    NoPolicy { hook: Hook, name: String },
    #[error("mode \"{mode}\" is not supported for the {hook} hook yet")]
    Unsupported { hook: Hook, mode: Mode },
    #[error("its files cannot be read")]
    Unreadable,
    /// It cannot serve in that mode; in the words of whoever examined it.
    #[error("{0}")]
    Rejected(#[source] Arc<dyn Error + Send + Sync>),
    #[error("its file was removed")]
    Removed,
    #[error("its files changed meanwhile: its mode is {mode}")]
    FilesChanged { mode: Mode },
    #[error("another mode was chosen for it meanwhile")]
    Superseded,
    #[error("too many changes wait for policies that are being compiled")]
    Busy,
    /// It may still happen.
    #[error("the thread that loads policies does not answer")]
    Unanswered,
}
