//! Serving what another directory holds: all of it, or nothing.
use std::path::PathBuf;

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::{Hook, Mode};

use super::Loader;
use crate::error::PolicyError;
use crate::metrics::Swap;

impl Loader {
    /// Judges the policies in `dir` and serves them in one step, instead of those that serve now. Policies of the same
    /// name keep their state. `needs_auth`: one of them must say who may call.
    ///
    /// # Errors
    /// The directory is none of policies, cannot be read, or a policy in it cannot serve; what serves then stays as it was.
    pub(crate) fn relocate(&mut self, dir: PathBuf, needs_auth: bool) -> Result<(), PolicyError> {
        // At start a missing directory holds no policies; later it is more likely a typing error than a wish, and so is one
        // that holds something else, or nothing because it is not mounted.
        if !Hook::ALL.iter().any(|hook| dir.join(hook.as_str()).is_dir()) {
            return Err(PolicyError::NoPolicyDirectory { path: dir });
        }
        let old_dir = std::mem::replace(&mut self.dir, dir);
        let old = std::mem::take(&mut self.policies);
        let (identities, overrides) = (self.identities.clone(), std::mem::take(&mut self.overrides));
        self.on_trial = true;
        self.unread = None;
        self.scan_settled();
        self.on_trial = false;
        if let Err(error) = self.verdict(needs_auth) {
            self.dir = old_dir;
            self.identities = identities;
            self.overrides = overrides;
            self.policies = old;
            self.forget_unused();
            return Err(error);
        }
        for (place, policy) in old {
            if policy.serving.is_some() || policy.broken.is_some() {
                self.metrics.gone(place.hook, &PolicyName::from(place.name()));
                self.metrics.swap(place.hook, Swap::Removed);
            }
        }
        for (loaded, _) in self.policies.values().filter_map(|policy| policy.serving.as_ref()) {
            self.metrics.swap(loaded.hook(), Swap::Swapped);
            self.metrics.serving(loaded.hook(), &loaded.name, loaded.generation);
        }
        let known: Vec<(Hook, &str)> = self.policies.keys().map(|place| (place.hook, place.name())).collect();
        self.identities.retain(|(hook, name), _| known.contains(&(*hook, name.as_str())));
        self.publish();
        self.registry.set_statuses(self.statuses());
        tracing::info!(dir = %self.dir.display(), policies = self.policies.len(), "policies of another directory serve");
        Ok(())
    }

    /// Whether what was judged may serve.
    fn verdict(&mut self, needs_auth: bool) -> Result<(), PolicyError> {
        if let Some(error) = self.unread.take() {
            return Err(error);
        }
        let rejected = self.policies.values().find_map(|policy| policy.error.as_ref().map(|why| (&policy.file, why)));
        if let Some((path, why)) = rejected {
            return Err(PolicyError::Relocation { path: path.clone(), why: why.clone() });
        }
        let has_auth = self.policies.iter().any(|(place, policy)| {
            place.hook == Hook::Auth && policy.serving.is_some() && policy.mode == Mode::Enforce
        });
        if needs_auth && !has_auth {
            return Err(PolicyError::NoAuth { path: self.dir.clone() });
        }
        Ok(())
    }
}
