//! Grants that change while policies serve: what is revoked is gone at once.
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
    /// any more is ended: of a hook that guards, it refuses what it was asked about. Where only a version on trial needs it, the
    /// trial ends. What lacked what it may have now is examined at the next scan. False: they are those of before, and nothing
    /// changes.
    pub(crate) fn set_grants(&mut self, grants: Grants) -> bool {
        if !self.builder.set_grants(grants) {
            return false;
        }
        for (place, policy) in &mut self.directory.policies {
            let refused = |loaded: &Loaded| {
                // Those of the grants before.
                loaded.verdicts.clear();
                self.builder.check_grant(place, &loaded.sidecar).err()
            };
            let serving = policy.serving.as_ref().and_then(|(loaded, _)| refused(loaded));
            let tried = policy.trial.as_ref().and_then(|trial| refused(&trial.candidate));
            let chronicle = &self.builder.chronicle;
            match (serving, tried) {
                (Some(error), _) => {
                    chronicle.note(place, PolicyEvent::Rejected, note(&error, ""));
                    policy.withhold(place, error.into(), &chronicle.metrics);
                }
                (None, Some(error)) => {
                    let digest = policy.trial.as_ref().map(|trial| trial.candidate.compiled.digest.clone());
                    chronicle.note(place, PolicyEvent::RolledBack, Note { digest, ..note(&error, "canary: ") });
                    policy.withhold_trial(place, error);
                }
                (None, None) => {}
            }
            if policy.lacks_grant() {
                policy.examine_again();
            }
        }
        self.publish();
        self.tell_unused_grants();
        true
    }

    /// Says which entries are for policies that are not there: a name may be misspelled, and then what it names has no grant.
    pub(super) fn tell_unused_grants(&self) {
        for (hook, plugin) in self.builder.grants().policies() {
            let is_it = |place: &Place| place.hook == hook && place.name() == plugin;
            if !self.directory.policies.keys().any(is_it) {
                tracing::warn!(%hook, plugin, "a policy.grant is for a policy that is not in the directory");
            }
        }
    }
}

fn note(error: &PolicyError, of: &str) -> Note {
    let detail = Some(format!("{of}{}", error.sentence()));
    Note { who: Some("configuration".to_owned()), detail, ..Note::default() }
}

impl Policy {
    fn lacks_grant(&self) -> bool {
        matches!(self.error.as_deref(), Some(PolicyError::Withheld { .. }))
    }
}
