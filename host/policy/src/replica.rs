//! Samplers and filters in another process: a copy of what is loaded here, and what happens there.
//!
//! The process that loads policies tells each process that runs them what it lacks ([`ReplicaUpdate`], made by a [`Replication`]): loads
//! with their code by name, generations, settings, documents and state. A generation is told before any request can begin under it. Back
//! come notes ([`Noted`]) of calls, faults and changes of state, which count here as if the calls had been made here.
mod copy;
mod feed;

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{Difference, FaultKind, Hook, Refusal};
use serde::{Deserialize, Serialize};

pub use self::copy::PolicyReplica;
pub(crate) use self::feed::Feeds;
pub use self::feed::Replication;
use crate::code::CodeName;
use crate::documents::Version;
use crate::grants::Grant;
use crate::imports::metrics::Change;
use crate::imports::state::{StateChange, StateNews};
use crate::loaded::Asks;
use crate::matching::Matching;
use crate::metrics::Outcome;
use crate::secrets::Secrets;
use crate::sidecar::Sidecar;
use crate::spec::OnFault;

/// Metrics of guests that are noted between two looks at the journal.
const METRICS: usize = 4096;

/// The hooks that are asked beside the logits.
pub(crate) const HOOKS: [Hook; 2] = [Hook::Sampler, Hook::Filter];

/// What a process that has a copy does not know yet.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ReplicaUpdate {
    loads: Vec<LoadCopy>,
    /// Loads whose grant, documents or snapshot are others than before.
    changes: Vec<LoadChange>,
    /// The newest last.
    sets: Vec<SetCopy>,
    /// By the numbers that loads name.
    states: Vec<(u64, StateNews)>,
    gone_sets: Vec<Generation>,
    gone_loads: Vec<u64>,
}

/// One load of one policy file.
#[derive(Debug, Serialize, Deserialize)]
struct LoadCopy {
    number: u64,
    hook: Hook,
    name: PolicyName,
    digest: String,
    size_bytes: u64,
    code: CodeName,
    asks: Asks,
    sidecar: Sidecar,
    secrets: Secrets,
    /// The number of its store: several loads may have one.
    state: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct LoadChange {
    number: u64,
    grant: Grant,
    /// By name.
    documents: BTreeMap<String, Version>,
    /// Whether there is one, and whether an instance that begins with it may serve several requests.
    snapshot: Option<(CodeName, bool)>,
}

/// The chains of one generation, in the order of [`HOOKS`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SetCopy {
    pub(crate) generation: Generation,
    pub(crate) hooks: [ChainsCopy; HOOKS.len()],
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChainsCopy {
    pub(crate) variants: Vec<(PolicyDigest, Vec<LinkCopy>)>,
    /// Numbers of loads.
    pub(crate) candidates: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum LinkCopy {
    Ready(u64),
    Broken { name: PolicyName, on_fault: OnFault, matching: Matching, why: String },
}

/// What happened in another process, each with the number of the load that it happened to, or of the store.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Noted(Vec<(u64, Happened)>);

impl Noted {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// What happened to a copy.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Happened {
    Answer {
        outcome: Outcome,
        took: Duration,
    },
    /// A request was answered, for breakers and trials.
    Judged,
    Fault {
        kind: FaultKind,
        detail: String,
        took: Duration,
        /// An earlier call of the request was answered.
        told: bool,
    },
    /// Its breaker opened there, after this fault.
    Opened {
        kind: FaultKind,
        detail: String,
        pause: Option<Duration>,
    },
    /// One call tries it.
    Tried,
    Closed,
    /// It was not asked, because its breaker was open.
    Refused,
    /// It is monitored, and would have decided otherwise.
    Differs {
        kind: Difference,
        refusal: Option<Refusal>,
    },
    Compared(f64),
    /// Its instances take long to make.
    WantsSnapshot,
    Metric {
        name: String,
        change: Change,
        labels: Vec<(String, String)>,
    },
    State(StateChange),
}

/// What happened to the copies of this process since somebody looked.
#[derive(Debug, Default)]
pub(crate) struct Journal(Mutex<Notes>);

/// A load's metric, with its labels.
type Series = (u64, String, Vec<(String, String)>);

#[derive(Debug, Default)]
struct Notes {
    happened: Vec<(u64, Happened)>,
    /// Changes of state: their order counts.
    states: Vec<(u64, Happened)>,
    /// Where a metric stands that is counted again.
    metrics: HashMap<Series, usize>,
}

impl Journal {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, load: u64, happened: Happened) {
        let mut notes = self.notes();
        let notes = if matches!(happened, Happened::State(_)) { &mut notes.states } else { &mut notes.happened };
        notes.push((load, happened));
    }

    /// A metric of a guest, which may count it as often as it likes: changes of one series are one note.
    pub(crate) fn note_metric(&self, load: u64, name: &str, change: Change, labels: &[(String, String)]) {
        let mut notes = self.notes();
        let Notes { happened, metrics, .. } = &mut *notes;
        let key = (load, name.to_owned(), labels.to_vec());
        let known = metrics.get(&key).and_then(|index| happened.get_mut(*index));
        if let Some((_, Happened::Metric { change: before, .. })) = known
            && let Some(both) = before.and(change)
        {
            *before = both;
        } else if metrics.len() < METRICS {
            metrics.insert(key, happened.len());
            happened.push((load, Happened::Metric { name: name.to_owned(), change, labels: labels.to_vec() }));
        }
    }

    /// What happened since this was called last. `states`: changes of state, too. One caller takes those.
    pub(crate) fn take(&self, states: bool) -> Vec<(u64, Happened)> {
        let mut notes = self.notes();
        notes.metrics.clear();
        let mut happened = std::mem::take(&mut notes.happened);
        if states {
            happened.append(&mut notes.states);
        }
        happened
    }
}
