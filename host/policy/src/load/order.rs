//! What operators ask for besides modes: going back to the version before, and trying again what was rolled back.
use std::sync::Arc;

use camshaft_core::policy::{ModeError, PolicyAction, PolicyEvent, PolicyOrder, PolicyStatus};

use super::loader::Loader;
use super::policy::Policy;
use crate::chronicle::Note;
use crate::error::Rejection;
use crate::files::Place;

impl Loader {
    /// Does what is asked for, and says how the policy stands then. `None`: what was rolled back is tried again, and
    /// [`Loader::outcome`] tells what comes of it.
    ///
    /// # Errors
    /// There is no such policy, or nothing to go back to or to try again.
    pub(crate) fn obey(&mut self, order: &PolicyOrder) -> Result<Option<PolicyStatus>, ModeError> {
        let PolicyOrder { hook, name, action, who } = order;
        let _acts = self.builder.chronicle.by(*hook, name, who);
        let is_it = |(place, _): &(&Place, &Policy)| place.hook == *hook && place.name() == name;
        let is_there = |(_, policy): &(&Place, &Policy)| {
            policy.serving.is_some() || policy.trial.is_some() || policy.rolled_back.is_some()
        };
        let policies = || self.directory.policies.iter().filter(is_it);
        // One that is off, or was rejected, is there too: it has nothing to go back to.
        let found = policies().find(is_there).or_else(|| policies().find(|(_, policy)| !policy.is_new()));
        let place = found.map(|(place, _)| place.clone()).ok_or_else(|| no_policy(order))?;
        let is_done = match action {
            PolicyAction::Rollback if self.roll_back_trial_by_hand(&place, who) => Ok(true),
            // Whatever newer version is being compiled is another matter.
            PolicyAction::Promote if self.promote_trial_by_hand(&place, who) => Ok(true),
            PolicyAction::Rollback => self.roll_back_by_hand(&place, who).map(|()| true),
            PolicyAction::Promote => self.promote(&place, who).map(|()| false),
            PolicyAction::Mode(_) => Err(ModeError::Nothing("a mode is chosen elsewhere")),
        };
        match is_done {
            Ok(true) => self.directory.status(*hook, name).map(Some).ok_or_else(|| no_policy(order)),
            Ok(false) => Ok(None),
            Err(error) => {
                self.note_refused(&place, who, format!("{action}: {error}"));
                Err(error)
            }
        }
    }

    /// What came of a policy that is tried again. `None`: a component is being compiled for it; ask again when one is done.
    pub(crate) fn outcome(&self, order: &PolicyOrder) -> Option<Result<PolicyStatus, ModeError>> {
        let PolicyOrder { hook, name, .. } = order;
        let mut policies = self.directory.policies.iter();
        let found = policies.find(|(place, _)| place.hook == *hook && place.name() == name);
        let Some((_, policy)) = found else { return Some(Err(no_policy(order))) };
        if policy.staged.is_some() {
            return None;
        }
        if let Some(why) = &policy.error {
            return Some(Err(ModeError::Rejected(Arc::new(Rejection(why.clone())))));
        }
        Some(self.directory.status(*hook, name).ok_or_else(|| no_policy(order)))
    }

    /// An order that could not be carried out.
    pub(super) fn note_refused(&self, place: &Place, who: &str, detail: String) {
        let note = Note { who: Some(who.to_owned()), detail: Some(detail), ..Note::default() };
        self.builder.chronicle.note(place, PolicyEvent::Refused, note);
    }

    fn promote(&mut self, place: &Place, who: &str) -> Result<(), ModeError> {
        let policy = self.directory.policies.get(place);
        let digest = policy.and_then(|policy| Some(policy.rolled_back.as_ref()?.key.component().to_owned()));
        if !self.pardon(place) {
            return Err(ModeError::Nothing("nothing of it was rolled back"));
        }
        let note = Note { digest, who: Some(who.to_owned()), ..Note::default() };
        self.builder.chronicle.note(place, PolicyEvent::Promoted, note);
        self.scan_settled();
        Ok(())
    }
}

fn no_policy(order: &PolicyOrder) -> ModeError {
    ModeError::NoPolicy { hook: order.hook, name: order.name.clone() }
}
