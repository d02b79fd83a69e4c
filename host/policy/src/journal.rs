//! What happens to copies of policies in a process that runs them, for the one that loaded them.
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camshaft_core::policy::{Difference, FaultKind, Refusal};
use serde::{Deserialize, Serialize};

use crate::metrics::Outcome;

/// Metrics of guests that are noted between two looks at the journal.
const METRICS: usize = 4096;

/// A change of a series.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum Change {
    Add(u64),
    Set(f64),
}

impl Change {
    /// Both, one after the other; `None`: they are of different kinds.
    pub(crate) fn and(self, next: Self) -> Option<Self> {
        match (self, next) {
            (Change::Add(delta), Change::Add(more)) => Some(Change::Add(delta.saturating_add(more))),
            (Change::Set(_), Change::Set(_)) => Some(next),
            _ => None,
        }
    }
}

/// A change of a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StateChange {
    Set { key: String, value: Vec<u8>, ttl_ms: Option<u64> },
    Add { key: String, delta: i64, ttl_ms: Option<u64> },
    Delete { key: String },
}

impl StateChange {
    pub(crate) fn key(&self) -> &str {
        match self {
            Self::Set { key, .. } | Self::Add { key, .. } | Self::Delete { key } => key,
        }
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
