//! Policies that do not answer properly.
use serde::{Deserialize, Serialize};

use crate::ids::PolicyName;

/// How a policy failed to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum FaultKind {
    /// The guest trapped (panic, unreachable, stack overflow).
    Trap,
    /// The guest ran past its deadline and was stopped.
    Deadline,
    /// The guest asked for more memory than it may have.
    Memory,
    /// The guest's answer is not one that the hook allows.
    InvalidOutput,
    /// No instance could be made.
    Unavailable,
    /// As many instances of its hook run as may run at once.
    Exhausted,
}

impl FaultKind {
    /// The name in metrics labels and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultKind::Trap => "trap",
            FaultKind::Deadline => "deadline",
            FaultKind::Memory => "memory",
            FaultKind::InvalidOutput => "invalid_output",
            FaultKind::Unavailable => "unavailable",
            FaultKind::Exhausted => "exhausted",
        }
    }
}

/// A policy that did not answer properly. For the log; clients learn only that a policy failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {plugin} faulted ({}): {detail}", kind.as_str())]
pub struct Fault {
    pub plugin: PolicyName,
    pub kind: FaultKind,
    pub detail: String,
}
