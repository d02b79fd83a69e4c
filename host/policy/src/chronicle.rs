//! What became of policies, and who wanted it: counted, kept for the admin page, and one line in the log for each change.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use camshaft_core::ids::Generation;
use camshaft_core::policy::{Hook, PolicyChange, PolicyEvent, PolicyHistory};

use crate::files::Place;
use crate::metrics::PolicyMetrics;
use crate::text::truncate_chars;

/// Characters of who changed something, and of a reason.
const WHO_CHARS: usize = 128;
const DETAIL_CHARS: usize = 1024;

/// What is known of a change besides what changed.
#[derive(Debug, Default)]
pub(crate) struct Note {
    pub(crate) generation: Option<Generation>,
    pub(crate) digest: Option<String>,
    /// `None`: whoever acts just now ([`Chronicle::by`]), or else whoever changed the files.
    pub(crate) who: Option<String>,
    pub(crate) detail: Option<String>,
}

/// Metrics and history of policies.
#[derive(Debug)]
pub(crate) struct Chronicle {
    pub(crate) metrics: PolicyMetrics,
    pub(crate) history: Arc<Mutex<PolicyHistory>>,
    /// Who changes which policy just now, other than by its files.
    actor: Arc<Mutex<Option<Actor>>>,
}

/// Who changes a policy.
#[derive(Debug)]
struct Actor {
    hook: Hook,
    name: String,
    who: String,
}

/// While it lives, what becomes of a policy is somebody's doing.
#[must_use]
pub(crate) struct Acting {
    actor: Arc<Mutex<Option<Actor>>>,
    /// Whose doing it was before, and is again.
    before: Option<Actor>,
}

impl Drop for Acting {
    fn drop(&mut self) {
        *self.actor.lock().unwrap_or_else(PoisonError::into_inner) = self.before.take();
    }
}

impl Chronicle {
    pub(crate) fn new(metrics: PolicyMetrics) -> Self {
        Self { metrics, history: Arc::default(), actor: Arc::default() }
    }

    /// What becomes of this policy, until the value is dropped, is `who`'s doing where a note does not say whose it is.
    pub(crate) fn by(&self, hook: Hook, name: &str, who: &str) -> Acting {
        let actor = Actor { hook, name: name.to_owned(), who: who.to_owned() };
        let before = self.actor.lock().unwrap_or_else(PoisonError::into_inner).replace(actor);
        Acting { actor: self.actor.clone(), before }
    }

    /// Who changes the policy at this place just now, other than by its files.
    pub(crate) fn who(&self, place: &Place) -> Option<String> {
        let actor = self.actor.lock().unwrap_or_else(PoisonError::into_inner);
        let here = actor.as_ref().filter(|actor| actor.hook == place.hook && actor.name == place.name());
        here.map(|actor| actor.who.clone())
    }

    pub(crate) fn note(&self, place: &Place, event: PolicyEvent, note: Note) {
        let Note { generation, digest, who, detail } = note;
        let who = who.or_else(|| self.who(place)).unwrap_or_else(|| "file".to_owned());
        let who = truncate_chars(who, WHO_CHARS);
        let detail = detail.map(|detail| truncate_chars(detail, DETAIL_CHARS));
        self.metrics.swap(place.hook, event);
        let (hook, plugin, generation_) = (place.hook, place.name(), generation.map(|generation| generation.0));
        let (digest_, detail_) = (digest.as_deref(), detail.as_deref());
        tracing::info!(
            %hook, plugin, event = event.as_str(), who, generation = generation_, digest = digest_, detail = detail_,
            "audit: a policy changed"
        );
        let (at, name) = (unix_seconds(SystemTime::now()), plugin.to_owned());
        let change = PolicyChange { at, hook, name, event, generation, digest, who, detail };
        self.history.lock().unwrap_or_else(PoisonError::into_inner).note(change);
    }
}

/// Seconds since 1970.
pub(crate) fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
