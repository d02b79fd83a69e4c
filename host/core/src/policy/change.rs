//! Changes of policies: what operators ask for, and what has become of policies and when.
use std::collections::VecDeque;
use std::fmt;

use serde::Serialize;

use super::hook::{Hook, Mode};
use crate::ids::Generation;

/// What an operator wants of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyAction {
    /// Run it in this mode until its files change.
    Mode(Mode),
    /// Have the version that is on trial serve everything, or load what was rolled back again.
    Promote,
    /// Go back to the version that served before; where one is on trial, end that.
    Rollback,
}

impl PolicyAction {
    pub const ALL: [PolicyAction; 5] = [
        PolicyAction::Mode(Mode::Enforce),
        PolicyAction::Mode(Mode::Monitor),
        PolicyAction::Mode(Mode::Off),
        PolicyAction::Promote,
        PolicyAction::Rollback,
    ];

    /// The name in paths and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyAction::Mode(mode) => mode.as_str(),
            PolicyAction::Promote => "promote",
            PolicyAction::Rollback => "rollback",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.as_str() == text)
    }
}

impl fmt::Display for PolicyAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An operator's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyOrder {
    pub hook: Hook,
    pub name: String,
    pub action: PolicyAction,
    /// Who gives it, for the log.
    pub who: String,
}

/// What became of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyEvent {
    /// A version came into force.
    Swapped,
    /// A file was rejected.
    Rejected,
    /// An order was not carried out.
    Refused,
    /// It serves no more.
    Removed,
    /// The version before serves again.
    RolledBack,
    /// An operator chose a mode.
    Mode,
    /// What was rolled back may be loaded again, or what was on trial serves everything.
    Promoted,
    /// A version is on trial.
    Canary,
}

impl PolicyEvent {
    pub const ALL: [PolicyEvent; 8] = [
        PolicyEvent::Swapped,
        PolicyEvent::Rejected,
        PolicyEvent::Refused,
        PolicyEvent::Removed,
        PolicyEvent::RolledBack,
        PolicyEvent::Mode,
        PolicyEvent::Promoted,
        PolicyEvent::Canary,
    ];

    /// The name in metrics, logs and pages.
    pub fn as_str(self) -> &'static str {
        match self {
            PolicyEvent::Swapped => "swapped",
            PolicyEvent::Rejected => "rejected",
            PolicyEvent::Refused => "refused",
            PolicyEvent::Removed => "removed",
            PolicyEvent::RolledBack => "rolled-back",
            PolicyEvent::Mode => "mode",
            PolicyEvent::Promoted => "promoted",
            PolicyEvent::Canary => "canary",
        }
    }
}

/// A change of a policy, in the order in which they happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyChange {
    /// Seconds since 1970.
    pub at: u64,
    pub hook: Hook,
    pub name: String,
    pub event: PolicyEvent,
    /// The generation that brought the change.
    pub generation: Option<Generation>,
    /// SHA-256 of the component that it is about, in hexadecimal, where there is one.
    pub digest: Option<String>,
    /// `file`, `breaker`, or an operator.
    pub who: String,
    /// A reason, or a result.
    pub detail: Option<String>,
}

/// The newest changes, the oldest first.
#[derive(Debug, Clone, Default)]
pub struct PolicyHistory(VecDeque<PolicyChange>);

impl PolicyHistory {
    /// Changes that are kept.
    pub const MAX: usize = 128;

    /// Forgets the oldest where there are too many.
    pub fn note(&mut self, change: PolicyChange) {
        if self.0.len() >= Self::MAX {
            self.0.pop_front();
        }
        self.0.push_back(change);
    }

    pub fn changes(&self) -> Vec<PolicyChange> {
        self.0.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keeps_the_newest_changes_up_to_its_bound() {
        let mut history = PolicyHistory::default();
        let change = |at| PolicyChange {
            at,
            hook: Hook::Auth,
            name: "x".to_owned(),
            event: PolicyEvent::Swapped,
            generation: None,
            digest: None,
            who: "file".to_owned(),
            detail: None,
        };
        let max = PolicyHistory::MAX as u64;
        (1..=max).for_each(|at| history.note(change(at)));
        let ends = |history: &PolicyHistory| {
            let changes = history.changes();
            (changes.first().map(|change| change.at), changes.last().map(|change| change.at), changes.len() as u64)
        };
        assert_eq!(ends(&history), (Some(1), Some(max), max));
        history.note(change(max + 1));
        assert_eq!(ends(&history), (Some(2), Some(max + 1), max));
    }

    #[test]
    fn every_action_is_found_by_its_name() {
        for action in PolicyAction::ALL {
            assert_eq!(PolicyAction::parse(action.as_str()), Some(action));
        }
        assert_eq!(PolicyAction::parse("demote"), None);
    }
}
