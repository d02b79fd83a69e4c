//! Modes that an operator chooses while the process runs, instead of those in the policies' files.
use camshaft_core::policy::{Hook, Mode, ModeError, PolicyStatus};

use super::loader::Loader;
use crate::files::{ContentKey, Place};
use crate::sidecar::check_mode;

/// An operator's wish to run a policy in another mode until its files change.
#[derive(Debug)]
pub(crate) struct ModeChange {
    hook: Hook,
    name: String,
    mode: Mode,
    /// For which policy it was tried, and what had been chosen there before.
    tried: Option<(Place, Option<ContentKey>)>,
}

impl ModeChange {
    pub(crate) fn new(hook: Hook, name: String, mode: Mode) -> Self {
        Self { hook, name, mode, tried: None }
    }

    /// Sets the mode and answers how the policy stands now. `None`: its component is being compiled; try again when one is
    /// done.
    pub(crate) fn attempt(&mut self, loader: &mut Loader) -> Option<Result<PolicyStatus, ModeError>> {
        // What lies there now is what the choice is for.
        loader.scan_settled();
        if self.tried.is_none()
            && let Err(error) = self.choose(loader)
        {
            return Some(Err(error));
        }
        let (place, before) = self.tried.as_ref()?;
        let no_policy = || ModeError::NoPolicy { hook: self.hook, name: self.name.clone() };
        let Some(policy) = loader.directory.policies.get(place) else { return Some(Err(no_policy())) };
        if policy.staged.is_some() {
            return None;
        }
        let status = loader.directory.statuses().into_iter().find(|s| s.hook == self.hook && s.name == self.name);
        Some(match status {
            Some(PolicyStatus { error: Some(why), .. }) => {
                match before {
                    Some(before) => loader.directory.overrides.insert(place.clone(), before.clone()),
                    None => loader.directory.overrides.remove(place),
                };
                loader.examine_again(place);
                Err(ModeError::Refused(why))
            }
            Some(status) => {
                tracing::info!(hook = %self.hook, plugin = self.name, mode = %self.mode, "mode set by an operator");
                Ok(status)
            }
            None => Err(no_policy()),
        })
    }

    /// Has the mode hold for what is in the policy's files now.
    fn choose(&mut self, loader: &mut Loader) -> Result<(), ModeError> {
        check_mode(self.hook, self.mode).map_err(|error| ModeError::Refused(error.to_string()))?;
        let found = loader.directory.policies.iter().find(|(place, policy)| {
            let known = policy.newest().is_some() || policy.serving.is_some();
            place.hook == self.hook && place.name() == self.name && known
        });
        let no_policy = || ModeError::NoPolicy { hook: self.hook, name: self.name.clone() };
        let (place, policy) = found.ok_or_else(no_policy)?;
        let unreadable = || ModeError::Refused("its files cannot be read".to_owned());
        let (place, newest) = (place.clone(), policy.newest().cloned().ok_or_else(unreadable)?);
        let before = loader.directory.overrides.insert(place.clone(), newest.with_mode(self.mode));
        loader.examine_again(&place);
        self.tried = Some((place, before));
        Ok(())
    }
}

impl Loader {
    fn examine_again(&mut self, place: &Place) {
        if let Some(policy) = self.directory.policies.get_mut(place) {
            policy.examine_again();
        }
        self.scan_settled();
    }
}
