//! Grants that change while policies serve: what is revoked is gone at once.
use std::sync::Arc;

use camshaft_core::policy::PolicyEvent;

use super::loader::Loader;
use super::policy::Policy;
use crate::chronicle::Note;
use crate::error::PolicyError;
use crate::files::Place;
use crate::grants::Grants;
use crate::loaded::Loaded;

impl Loader {
    /// Lets policies have what these grants say from now on. One that serves with a document or secret that it may not have
    /// any more is ended: of a hook that guards, it refuses what it was asked about. One that lacked what it may have now is
    /// examined at the next scan. False: they are those of before, and nothing changes.
    pub(crate) fn set_grants(&mut self, grants: Grants) -> bool {
        if !self.builder.set_grants(grants) {
            return false;
        }
        for (place, policy) in &mut self.directory.policies {
            let loads = policy.loads();
            // Verdicts of the grants before.
            loads.iter().for_each(|loaded| loaded.verdicts.clear());
            let refused = loads.iter().find_map(|loaded| self.builder.check_grant(place, &loaded.sidecar).err());
            if let Some(error) = refused {
                self.builder.chronicle.note(place, PolicyEvent::Rejected, note(&error));
                policy.withhold(place, error.into(), &self.builder.chronicle.metrics);
            }
            if policy.lacks_grant() {
                policy.examine_again();
            }
        }
        self.publish();
        true
    }
}

fn note(error: &PolicyError) -> Note {
    Note { who: Some("configuration".to_owned()), detail: Some(error.sentence()), ..Note::default() }
}

impl Policy {
    /// What of it serves.
    fn loads(&self) -> Vec<Arc<Loaded>> {
        let serving = self.serving.as_ref().map(|(loaded, _)| loaded.clone());
        serving.into_iter().chain(self.trial.as_ref().map(|trial| trial.candidate.clone())).collect()
    }

    fn lacks_grant(&self) -> bool {
        matches!(self.error.as_deref(), Some(PolicyError::Withheld { .. }))
    }

    /// It serves no more, and what guards refuses.
    fn withhold(&mut self, place: &Place, error: Arc<PolicyError>, metrics: &crate::metrics::PolicyMetrics) {
        let (hook, plugin, why) = (place.hook, place.name(), error.sentence());
        tracing::error!(%hook, plugin, why, "policy ended: the configuration grants it less");
        if let Some((loaded, _)) = self.serving.take() {
            loaded.retire();
        }
        self.drop_trial();
        self.last_good = None;
        self.broken = self.stand_in(place, &why, metrics);
        self.error = Some(error);
    }
}
