//! The decision points, and how a policy at one of them is run.
use std::fmt;

use serde::{Deserialize, Serialize};

/// The five decision points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hook {
    Auth,
    Validator,
    Scheduler,
    Sampler,
    Filter,
}

impl Hook {
    pub const ALL: [Hook; 5] = [Hook::Auth, Hook::Validator, Hook::Scheduler, Hook::Sampler, Hook::Filter];

    /// The name in paths, labels and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Hook::Auth => "auth",
            Hook::Validator => "validator",
            Hook::Scheduler => "scheduler",
            Hook::Sampler => "sampler",
            Hook::Filter => "filter",
        }
    }
}

impl fmt::Display for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Whether a policy's answers count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    #[default]
    Enforce,
    /// The policy runs beside those that are enforced; differences are recorded.
    Monitor,
    Off,
}

impl Mode {
    pub const ALL: [Mode; 3] = [Mode::Enforce, Mode::Monitor, Mode::Off];

    /// The name in settings files, paths and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Enforce => "enforce",
            Mode::Monitor => "monitor",
            Mode::Off => "off",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.as_str() == text)
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
