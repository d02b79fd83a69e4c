//! Serving what another directory holds: all of it, or nothing.
use std::io;
use std::path::PathBuf;

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::Hook;

use super::Loader;
use crate::error::PolicyError;
use crate::files;
use crate::metrics::Swap;

impl Loader {
    /// Judges the policies in `dir` and serves them in one step, instead of those that serve now. Policies of the same
    /// name keep their state.
    ///
    /// # Errors
    /// The directory is missing or unreadable, or a policy in it cannot serve; everything then stays as it was.
    pub(crate) fn relocate(&mut self, dir: PathBuf) -> Result<(), PolicyError> {
        if !dir.is_dir() {
            // At start a missing directory holds no policies; later it is more likely a typing error than a wish.
            let source = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(PolicyError::Read { path: dir, source });
        }
        for hook in Hook::ALL {
            files::list(&dir, hook)?;
        }
        let old_dir = std::mem::replace(&mut self.dir, dir);
        let old = std::mem::take(&mut self.policies);
        let (identities, overrides) = (self.identities.clone(), std::mem::take(&mut self.overrides));
        self.on_trial = true;
        self.scan_settled();
        self.on_trial = false;
        let rejected = self.policies.values().find_map(|policy| {
            let why = policy.error.as_ref()?;
            Some(PolicyError::Relocation { path: policy.file.clone(), why: why.clone() })
        });
        let judged = if rejected.is_some() {
            self.dir = old_dir;
            self.identities = identities;
            self.overrides = overrides;
            std::mem::replace(&mut self.policies, old)
        } else {
            old
        };
        // The metrics follow what serves, whichever that is now.
        for (place, policy) in judged {
            if policy.serving.is_some() || policy.broken.is_some() {
                self.metrics.gone(place.hook, &PolicyName::from(place.name()));
                if rejected.is_none() {
                    self.metrics.swap(place.hook, Swap::Removed);
                }
            }
        }
        for (loaded, _) in self.policies.values().filter_map(|policy| policy.serving.as_ref()) {
            self.metrics.serving(loaded.hook(), &loaded.name, loaded.generation);
        }
        let known: Vec<(Hook, &str)> = self.policies.keys().map(|place| (place.hook, place.name())).collect();
        self.identities.retain(|(hook, name), _| known.contains(&(*hook, name.as_str())));
        self.publish();
        self.registry.set_statuses(self.statuses());
        match rejected {
            Some(error) => Err(error),
            None => {
                tracing::info!(dir = %self.dir.display(), policies = self.policies.len(), "policies of another directory serve");
                Ok(())
            }
        }
    }
}
