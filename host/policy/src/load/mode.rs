//! Modes that an operator chooses while the process runs, instead of those in the policies' files.
use std::sync::Arc;

use camshaft_core::policy::{Hook, Mode, ModeError, PolicyEvent, PolicyStatus};

use super::loader::Loader;
use crate::chronicle::Note;
use crate::error::{PolicyError, Rejection};
use crate::files::{ContentKey, Place, SeenFiles};

/// An operator's wish to run a policy in another mode until its files change.
#[derive(Debug)]
pub(crate) struct ModeChange {
    hook: Hook,
    name: String,
    mode: Mode,
    /// Who chose it.
    who: String,
    /// The files that it was chosen for, if the policy was known then.
    files: Option<SeenFiles>,
    tried: Option<Tried>,
}

/// What a change did that may have to be undone.
#[derive(Debug)]
struct Tried {
    place: Place,
    /// The files that the mode was chosen for, with it.
    chosen: ContentKey,
    /// What had been chosen there before.
    before: Option<ContentKey>,
}

impl ModeChange {
    pub(crate) fn new(hook: Hook, name: String, mode: Mode) -> Self {
        Self { hook, name, mode, who: "operator".to_owned(), files: None, tried: None }
    }

    /// The same, chosen by somebody.
    pub(crate) fn by(self, who: String) -> Self {
        Self { who, ..self }
    }

    /// The same, chosen for these files.
    pub(crate) fn of(self, files: Option<SeenFiles>) -> Self {
        Self { files, ..self }
    }

    pub(crate) fn is_of_same_policy(&self, other: &Self) -> bool {
        (self.hook, &self.name) == (other.hook, &other.name)
    }

    /// A newer change comes before this one could be made: undoes it, and says so.
    pub(crate) fn supersede(&self, loader: &mut Loader) -> ModeError {
        if let Some(tried) = &self.tried {
            tried.undo(loader);
        }
        ModeError::Superseded
    }

    /// Scans, and then as [`ModeChange::decide`].
    #[cfg(test)]
    pub(crate) fn attempt(&mut self, loader: &mut Loader) -> Option<Result<PolicyStatus, ModeError>> {
        loader.scan_settled();
        self.decide(loader)
    }

    /// Sets the mode for what was found in the last scan, and answers how the policy stands now. `None`: its component is
    /// being compiled; try again when one is done.
    pub(crate) fn decide(&mut self, loader: &mut Loader) -> Option<Result<PolicyStatus, ModeError>> {
        let _acts = loader.builder.chronicle.by(self.hook, &self.name, &self.who);
        if self.tried.is_none()
            && let Some(error) = self.files_changed(loader)
        {
            return Some(Err(error));
        }
        if self.mode == Mode::Off
            && self.tried.is_none()
            && let Some(status) = loader.end_missing(self.hook, &self.name)
        {
            tracing::warn!(hook = %self.hook, plugin = self.name, "policy without a file ended by an operator");
            return Some(Ok(status));
        }
        // It is in force already, for its share of the traffic: to choose that again must not begin the trial anew.
        if self.tried.is_none()
            && let Some(status) = self.status_on_trial(loader)
        {
            return Some(Ok(status));
        }
        if self.tried.is_none()
            && let Err(error) = self.choose(loader)
        {
            return Some(Err(error));
        }
        let tried = self.tried.as_ref()?;
        let no_policy = || ModeError::NoPolicy { hook: self.hook, name: self.name.clone() };
        let Some(policy) = loader.directory.policies.get(&tried.place) else { return Some(Err(no_policy())) };
        // The component that serves may have the mode while a newer one is being compiled.
        let serves = policy.serving.as_ref().is_some_and(|(_, of)| *of == tried.chosen.with_component_of(of));
        if policy.staged.is_some() && !serves {
            return None;
        }
        let in_force = policy.newest() == Some(&tried.chosen);
        // What was rolled back says so, whatever the mode of what serves instead.
        let barred =
            matches!(policy.error.as_deref(), Some(PolicyError::RolledBack { .. } | PolicyError::CanaryEnded { .. }));
        let is_rolled_back = barred && policy.serving.is_some();
        let status = loader.directory.status(self.hook, &self.name);
        Some(match status {
            Some(PolicyStatus { error: Some(_), .. }) if !is_rolled_back => {
                let why = policy.error.clone().map(Rejection);
                let detail = why.as_ref().map_or_else(|| "removed".to_owned(), Rejection::to_string);
                loader.note_refused(&tried.place, &self.who, format!("mode {}: {detail}", self.mode));
                tried.undo(loader);
                loader.examine_again(&tried.place);
                Err(why.map_or(ModeError::Removed, |why| ModeError::Rejected(Arc::new(why))))
            }
            Some(status) if !in_force => {
                tried.undo(loader);
                let mode = status.mode;
                Err(ModeError::FilesChanged { mode })
            }
            Some(status) => {
                let (who, detail) = (Some(self.who.clone()), Some(format!("mode {}", self.mode)));
                let note = Note { generation: None, digest: Some(tried.chosen.component().to_owned()), who, detail };
                loader.builder.chronicle.note(&tried.place, PolicyEvent::Mode, note);
                Ok(status)
            }
            None => Err(no_policy()),
        })
    }

    /// The policy has other files than when the mode was chosen. Whoever chose it did not mean these.
    fn files_changed(&self, loader: &Loader) -> Option<ModeError> {
        let (files, status) = (self.files.as_ref()?, loader.directory.status(self.hook, &self.name)?);
        files.have_changed(&status.file).then_some(ModeError::FilesChanged { mode: status.mode })
    }

    /// How a policy stands that is on trial in this mode.
    fn status_on_trial(&self, loader: &Loader) -> Option<PolicyStatus> {
        let mut policies = loader.directory.policies.iter();
        let (_, policy) = policies.find(|(place, _)| place.hook == self.hook && place.name() == self.name)?;
        let is_tried = policy.trial.is_some() && policy.mode == self.mode && policy.staged.is_none();
        is_tried.then(|| loader.directory.status(self.hook, &self.name))?
    }

    /// Has the mode hold for what is in the policy's files now.
    fn choose(&mut self, loader: &mut Loader) -> Result<(), ModeError> {
        let found = loader.directory.policies.iter().find(|(place, policy)| {
            let known = policy.newest().is_some() || policy.serving.is_some();
            place.hook == self.hook && place.name() == self.name && known
        });
        let no_policy = || ModeError::NoPolicy { hook: self.hook, name: self.name.clone() };
        let (place, policy) = found.ok_or_else(no_policy)?;
        let unreadable = || ModeError::Unreadable;
        let newest = policy.newest().filter(|_| !policy.is_missing()).cloned();
        let (place, newest) = (place.clone(), newest.ok_or_else(unreadable)?);
        let chosen = newest.with_mode(self.mode);
        let before = loader.directory.overrides.insert(place.clone(), chosen.clone());
        loader.examine_again(&place);
        self.tried = Some(Tried { place, chosen, before });
        Ok(())
    }
}

impl Tried {
    /// Has the mode hold that was chosen before, unless yet another was chosen since.
    fn undo(&self, loader: &mut Loader) {
        let overrides = &mut loader.directory.overrides;
        if overrides.get(&self.place) != Some(&self.chosen) {
            return;
        }
        match &self.before {
            Some(before) => overrides.insert(self.place.clone(), before.clone()),
            None => overrides.remove(&self.place),
        };
    }
}

impl Loader {
    /// Takes a policy out of service whose file is missing. Returns how it stands then.
    fn end_missing(&mut self, hook: Hook, name: &str) -> Option<PolicyStatus> {
        let status = self.directory.end_missing(hook, name, &mut self.builder)?;
        self.publish();
        self.tell();
        Some(status)
    }

    fn examine_again(&mut self, place: &Place) {
        if let Some(policy) = self.directory.policies.get_mut(place) {
            policy.decide_again();
        }
        self.scan_settled();
    }
}
