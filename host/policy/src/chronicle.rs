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
    acting: Arc<Mutex<Option<(Hook, String, String)>>>,
}

/// While it lives, what becomes of a policy is somebody's doing.
#[must_use]
pub(crate) struct Acting(Arc<Mutex<Option<(Hook, String, String)>>>);

impl Drop for Acting {
    fn drop(&mut self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl Chronicle {
    pub(crate) fn new(metrics: PolicyMetrics) -> Self {
        Self { metrics, history: Arc::default(), acting: Arc::default() }
    }

    /// What becomes of this policy, until the value is dropped, is `who`'s doing where a note does not say whose it is.
    pub(crate) fn by(&self, hook: Hook, name: &str, who: &str) -> Acting {
        let acting = Some((hook, name.to_owned(), who.to_owned()));
        *self.acting.lock().unwrap_or_else(PoisonError::into_inner) = acting;
        Acting(self.acting.clone())
    }

    /// Who changes the policy at this place just now.
    fn actor(&self, place: &Place) -> String {
        let acting = self.acting.lock().unwrap_or_else(PoisonError::into_inner);
        let here = acting.as_ref().filter(|(hook, name, _)| *hook == place.hook && name == place.name());
        here.map_or("file", |(_, _, who)| who).to_owned()
    }

    pub(crate) fn note(&self, place: &Place, event: PolicyEvent, note: Note) {
        let Note { generation, digest, who, detail } = note;
        let who = truncate_chars(who.unwrap_or_else(|| self.actor(place)), WHO_CHARS);
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
