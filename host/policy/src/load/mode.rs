//! Modes that an operator chooses while the process runs, instead of those in the policies' files.
use camshaft_core::policy::{Hook, Mode, ModeError, PolicyStatus};

use super::Loader;
use crate::files::{Content, ContentKey, Place};
use crate::sidecar::check_mode;

impl Loader {
    /// Runs a policy in another mode until its files change.
    ///
    /// # Errors
    /// There is no such policy, its hook has no such mode, or what it was kept from shows that it cannot serve.
    pub(crate) fn set_mode(&mut self, hook: Hook, name: &str, mode: Mode) -> Result<PolicyStatus, ModeError> {
        let refused = |why: String| Err(ModeError::Refused(why));
        if let Err(error) = check_mode(hook, mode) {
            return refused(error.to_string());
        }
        // What lies there now is what the choice is for.
        self.scan_settled();
        let found = self.policies.iter().find(|(place, policy)| {
            place.hook == hook && place.name() == name && (policy.judged.is_some() || policy.serving.is_some())
        });
        let Some((place, policy)) = found else { return Err(ModeError::NoPolicy { hook, name: name.to_owned() }) };
        let place = place.clone();
        let judged = policy.judged.as_ref().map(|(key, _)| key.clone());
        let Some(judged) = judged else { return refused("its files cannot be read".to_owned()) };
        let before = self.overrides.insert(place.clone(), judged.with_mode(mode));
        self.look_again(&place);
        let status = self.statuses().into_iter().find(|status| status.hook == hook && status.name == name);
        match status {
            Some(PolicyStatus { error: Some(why), .. }) => {
                match before {
                    Some(before) => self.overrides.insert(place.clone(), before),
                    None => self.overrides.remove(&place),
                };
                self.look_again(&place);
                refused(why)
            }
            Some(status) => {
                tracing::info!(%hook, plugin = name, mode = mode.as_str(), "mode set by an operator's wish");
                Ok(status)
            }
            None => Err(ModeError::NoPolicy { hook, name: name.to_owned() }),
        }
    }

    fn look_again(&mut self, place: &Place) {
        if let Some(policy) = self.policies.get_mut(place) {
            policy.judged = None;
        }
        self.scan_settled();
    }

    /// What the content is told apart by, with the mode that was chosen for it.
    pub(super) fn key_of(&self, place: &Place, content: &Content) -> ContentKey {
        let key = content.key();
        match self.overrides.get(place) {
            Some(chosen) if chosen.same_files(&key) => chosen.clone(),
            _ => key,
        }
    }

    /// Other files than those that a mode was chosen for have come into force.
    pub(super) fn forget_override(&mut self, place: &Place, key: &ContentKey) {
        if key.mode.is_none() && self.overrides.remove(place).is_some() {
            tracing::info!(hook = %place.hook, plugin = place.name(), "changed files: the mode is theirs again");
        }
    }
}
