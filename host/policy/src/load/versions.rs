//! Versions of a policy file besides the one that serves: the last good one, one on trial, and what was rolled back.
use std::sync::Arc;
use std::time::Instant;

use camshaft_core::canary::Tally;

use crate::error::PolicyError;
use crate::files::ContentKey;
use crate::loaded::{Compiled, Loaded};
use crate::sidecar::Sidecar;

/// A version that served cleanly: its code, which stays in memory, and its settings.
#[derive(Debug, Clone)]
pub(super) struct Version {
    pub(super) compiled: Arc<Compiled>,
    pub(super) sidecar: Sidecar,
    pub(super) key: ContentKey,
}

impl Version {
    pub(super) fn of(loaded: &Loaded, key: &ContentKey) -> Self {
        Self { compiled: loaded.compiled.clone(), sidecar: loaded.sidecar.clone(), key: key.clone() }
    }

    pub(super) fn digest(&self) -> String {
        self.compiled.digest.clone()
    }

    /// Whether it differs from what serves in settings alone. A guard does not go back to such a one: older settings may allow
    /// what the newest forbid.
    pub(super) fn has_code_of(&self, serving: &Loaded) -> bool {
        self.compiled.digest == serving.compiled.digest
    }
}

/// A new version that serves a share of the traffic.
#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) candidate: Arc<Loaded>,
    pub(super) key: ContentKey,
    pub(super) begun: Instant,
    /// Calls that the version before had answered when it began.
    pub(super) before: Tally,
    /// What the metrics know: of the new version, and of the one before since the beginning.
    pub(super) told: (Tally, Tally),
}

/// What was taken out of service.
#[derive(Debug, Clone)]
pub(super) struct RolledBack {
    pub(super) key: ContentKey,
    /// Whether only its settings differ from those of the version that serves again.
    pub(super) settings_only: bool,
    /// What serves instead, also after an operator has turned it off and on again; `None`: nothing, as before a trial of which
    /// nothing served.
    pub(super) good: Option<Version>,
    pub(super) error: Arc<PolicyError>,
}

impl RolledBack {
    /// Whether these files are, or have, what was rolled back.
    pub(super) fn bars(&self, key: &ContentKey) -> bool {
        if self.settings_only { self.key.same_files(key) } else { self.key.same_component(key) }
    }
}
