//! The status of each policy file, for operators.
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use super::difference::{RowFigures, WaitFigures};
use super::hook::{Hook, Mode};
use crate::breaker::BreakerState;
use crate::canary::CanaryBy;
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyStatus {
    pub hook: Hook,
    pub name: String,
    pub file: String,
    pub mode: Mode,
    /// An operator set the mode while serving; the settings file says otherwise, or nothing.
    pub overridden: bool,
    pub state: PolicyState,
    pub effect: PolicyEffect,
    /// SHA-256 of the component that serves, in hexadecimal.
    pub serving: Option<String>,
    /// The generation that the serving component came with.
    pub generation: Option<Generation>,
    /// Why the newest files were rejected, or the fault that the policy was replaced for.
    pub error: Option<String>,
    /// How the version that serves does; `None` if none does.
    pub health: Option<PolicyHealth>,
    /// The newer version that is on trial beside it.
    pub canary: Option<CanaryStatus>,
}

/// A new version that serves a share of the traffic, and how it compares with the one before since the trial began.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CanaryStatus {
    /// Above 0 and below 1.
    pub share: f64,
    pub by: CanaryBy,
    /// Seconds since 1970.
    pub since: Option<u64>,
    /// SHA-256 of the component on trial, in hexadecimal.
    pub digest: String,
    pub calls: u64,
    pub faults: u64,
    /// `None`: nothing of the file served before.
    pub digest_before: Option<String>,
    pub calls_before: u64,
    pub faults_before: u64,
    /// Calls that must have been answered before it serves everything.
    pub calls_wanted: u64,
    /// Seconds that the trial takes at least.
    pub seconds_wanted: u64,
}

/// A fault of a policy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LastFault {
    /// Seconds since 1970.
    pub at: u64,
    pub kind: &'static str,
    pub detail: String,
}

/// What requests meet at a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyEffect {
    /// Its answers count.
    Decides,
    /// It is asked, and its answers are counted and change nothing.
    Watches,
    /// Requests that need it fail: it guards and could not be loaded, or its breaker is open, and its `on-fault` lets nothing pass.
    Fails,
    /// It is not asked, and requests pass without it.
    None,
}

/// How the version of a policy that serves has done since it came into force.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PolicyHealth {
    /// Seconds since 1970.
    pub since: Option<u64>,
    pub calls: u64,
    pub faults: u64,
    /// The newest of these faults.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_fault: Option<LastFault>,
    /// Times of calls in microseconds, up to a quarter too long.
    pub p50_us: Option<u64>,
    pub p99_us: Option<u64>,
    /// Of a scheduler: open if it is in any pool.
    pub breaker: BreakerState,
    /// Of one that is monitored: answers that would have made a difference, by kind.
    pub differences: BTreeMap<&'static str, u64>,
    /// Of a scheduler that is monitored: for each model, what queueing it would have caused.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub waits: BTreeMap<String, WaitFigures>,
    /// Of a sampler that is monitored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rows: Option<RowFigures>,
    /// Digest of the version to which `rollback` goes back.
    pub last_good: Option<String>,
    /// Whether its instances begin from a snapshot that was taken after `configure`.
    pub snapshot: bool,
    /// Why they do not, where making one takes long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_error: Option<String>,
}

/// What the examination of a component found that would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PolicyCheck {
    pub hook: Hook,
    /// What the plugin calls itself.
    pub name: String,
    pub version: String,
    /// Version of its hook's package that it was built for.
    pub api_version: String,
    pub imports: Vec<String>,
    pub size_bytes: u64,
    /// In lower-case hexadecimal.
    pub sha256: String,
    pub mode: Mode,
}

/// Why a policy's mode was not changed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ModeError {
    #[error("there is no {hook} policy {name:?} in the policy directory")]
    NoPolicy { hook: Hook, name: String },
    #[error("its files cannot be read")]
    Unreadable,
    /// It cannot serve in that mode; in the words of whoever examined it.
    #[error("{0}")]
    Rejected(#[source] Arc<dyn Error + Send + Sync>),
    #[error("its file was removed")]
    Removed,
    #[error("its files changed meanwhile: its mode is {mode}")]
    FilesChanged { mode: Mode },
    /// It has no version of the kind that was asked for.
    #[error("there is nothing to do: {0}")]
    Nothing(&'static str),
    #[error("another component is being checked")]
    Checking,
    #[error("there is no policy directory (policy.dir)")]
    NoHost,
    #[error("another mode was chosen for it meanwhile")]
    Superseded,
    #[error("too many changes wait for policies that are being compiled")]
    Busy,
    /// It may still happen.
    #[error("the thread that loads policies does not answer")]
    Unanswered,
}
