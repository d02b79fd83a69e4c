//! Trials: a new version of a policy file serves its share of the traffic until a rule, or an operator, ends that.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::breaker::BreakerState;
use camshaft_core::canary::{Outlook, Tally};
use camshaft_core::ids::{Generation, PolicyName};
use camshaft_core::policy::{CanaryStatus, Hook, Mode, PolicyEvent};

use super::arrivals::Debut;
use super::builder::Builder;
use super::directory::Directory;
use super::loader::Loader;
use super::policy::{Context, Phase, Policy};
use super::versions::{RolledBack, Trial, Version};
use crate::chronicle::{Note, unix_seconds};
use crate::error::PolicyError;
use crate::files::{ContentKey, Place};
use crate::loaded::Loaded;
use crate::set::TRIALS_MAX;
use crate::spec::spec;

/// How often running trials are judged.
pub(crate) const TRIAL_TICK: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };

impl Directory {
    /// Whether a new version is tried first.
    ///
    /// # Errors
    /// As many of its hook are on trial as may be.
    pub(super) fn debut(&self, place: &Place, policy: &Policy, new: &Loaded) -> Result<Debut, PolicyError> {
        let whole = Ok(Debut::Whole { unguarded: false });
        // A directory that replaces another serves whole.
        if new.sidecar.canary.is_none() || new.sidecar.mode != Mode::Enforce || self.phase == Phase::Staged {
            return whole;
        }
        let serving = policy.serving.as_ref().map(|(loaded, _)| loaded);
        match serving {
            Some(serving)
                if serving.compiled.digest == new.compiled.digest && serving.sidecar.is_same_version(&new.sidecar) =>
            {
                return whole;
            }
            None if spec(place.hook).guards => return Ok(Debut::Whole { unguarded: true }),
            _ => {}
        }
        let others = self
            .policies
            .iter()
            .filter(|(other, policy)| other.hook == place.hook && *other != place && policy.trial.is_some());
        match others.count() {
            running if running >= TRIALS_MAX => Err(PolicyError::TooManyTrials { most: TRIALS_MAX }),
            _ => Ok(Debut::Trial),
        }
    }
}

impl Policy {
    /// What is in the files is tried from the next generation on.
    pub(super) fn begin_trial(&mut self, candidate: Arc<Loaded>, key: ContentKey) {
        self.mode = Mode::Enforce;
        self.settle();
        let before = self.serving.as_ref().map_or(Tally::default(), |(serving, _)| serving.health.tally());
        let told = (Tally::default(), Tally::default());
        self.drop_trial();
        self.trial = Some(Trial { candidate, key, begun: Instant::now(), before, told });
    }

    /// Calls of the version before since the trial began.
    fn stable_tally(&self, trial: &Trial) -> Tally {
        let serving = self.serving.as_ref();
        serving.map_or(Tally::default(), |(serving, _)| serving.health.tally().since(trial.before))
    }

    pub(super) fn canary_status(&self) -> Option<CanaryStatus> {
        let trial = self.trial.as_ref()?;
        let (candidate, canary) = (&trial.candidate, trial.candidate.sidecar.canary?);
        let (new, before) = (candidate.health.tally(), self.stable_tally(trial));
        Some(CanaryStatus {
            share: canary.share.as_f64(),
            by: canary.by,
            since: candidate.health.since().map(unix_seconds),
            digest: candidate.compiled.digest.clone(),
            calls: new.calls,
            faults: new.faults,
            digest_before: self.serving.as_ref().map(|(serving, _)| serving.compiled.digest.clone()),
            calls_before: before.calls,
            faults_before: before.faults,
            calls_wanted: canary.calls,
            seconds_wanted: canary.time.as_secs(),
        })
    }

    fn outlook(&self) -> Outlook {
        let Some(trial) = &self.trial else { return Outlook::GoOn };
        let Some(canary) = trial.candidate.sidecar.canary else { return Outlook::Promote };
        let health = &trial.candidate.health;
        canary.judge(trial.begun.elapsed(), health.why_opened(), health.tally(), self.stable_tally(trial))
    }

    /// What serves was loaded again, and is compared with the version on trial from now on.
    fn renew_serving(&mut self, loaded: Arc<Loaded>) {
        let Some((serving, _)) = &mut self.serving else { return };
        loaded.health.go_on_from(&serving.health);
        std::mem::replace(serving, loaded).retire();
        if let Some(trial) = &mut self.trial {
            (trial.before, trial.told.1) = (Tally::default(), Tally::default());
        }
        if matches!(self.error.as_deref(), Some(PolicyError::NoSecret { .. })) {
            (self.error, self.reported, self.retry) = (None, None, None);
        }
    }

    /// Loads the versions of a trial again whose secrets are others now. Whether none is left: one whose secret is not there
    /// is tried again when the policy is looked at next.
    pub(super) fn read_secrets_of_trial(&mut self, place: &Place, phase: Phase, builder: &mut Builder) -> bool {
        let Some(trial) = &self.trial else { return true };
        let tried = Some((trial.candidate.clone(), trial.key.clone()));
        let outdated = |version: &(Arc<Loaded>, ContentKey)| version.0.has_other_secrets();
        let mut missing = None;
        for (version, is_tried) in [(self.serving.clone(), false), (tried, true)] {
            let Some((loaded, key)) = version.filter(outdated) else { continue };
            let (compiled, sidecar) = (loaded.compiled.clone(), loaded.sidecar.clone());
            match builder.load(place, compiled, sidecar, key.has_settings()) {
                Ok(loaded) if is_tried => self.begin_trial(loaded, key),
                Ok(loaded) => self.renew_serving(loaded),
                Err(error) => missing = missing.or(Some((key, error))),
            }
        }
        // After the other version began anew, which forgets what was wrong before.
        let is_missing = missing.is_some();
        if let Some((key, error)) = missing {
            self.reject(place, Some(key), error, Context { phase, chronicle: &builder.chronicle });
        }
        !is_missing
    }

    /// Ends a trial without a verdict. Whether there was one.
    pub(super) fn drop_trial(&mut self) -> bool {
        self.take_trial().is_some()
    }

    /// What serves goes on alone.
    fn take_trial(&mut self) -> Option<Trial> {
        let trial = self.trial.take()?;
        trial.candidate.retire();
        if trial.candidate.health.has_opened() {
            // Both versions have the same gauge.
            let serving = self.serving.as_ref().map(|(serving, _)| serving.health.breaker_state());
            trial.candidate.metrics.breaker(serving.unwrap_or(BreakerState::Closed));
        }
        Some(trial)
    }

    /// The new version may not have what its settings name. The one before serves everything, and the new one is tried again
    /// when it may.
    pub(super) fn withhold_trial(&mut self, place: &Place, error: PolicyError) {
        let (hook, plugin, why) = (place.hook, place.name(), error.sentence());
        tracing::error!(%hook, plugin, why, "the canary of a policy was ended: the configuration grants it less");
        self.drop_trial();
        self.mode_of_serving();
        self.error = Some(error.into());
    }

    fn mode_of_serving(&mut self) {
        if let Some((serving, _)) = &self.serving {
            self.mode = serving.sidecar.mode;
        }
    }

    /// The new version serves everything.
    fn promote_trial(&mut self) {
        if let Some(Trial { candidate, key, .. }) = self.trial.take() {
            self.accept(candidate, key);
        }
    }

    /// The version before serves everything again, and the new one is not loaded until its file changes.
    fn end_trial(&mut self, why: &str) {
        let Some(Trial { candidate, key, .. }) = self.take_trial() else { return };
        self.mode_of_serving();
        let digest = candidate.compiled.digest.clone();
        let good = self.serving.as_ref().map(|(serving, key)| Version::of(serving, key));
        // Without a version before, other settings are another chance.
        let settings_only = good.as_ref().is_none_or(|good| good.compiled.digest == digest);
        let error = PolicyError::CanaryEnded { digest, why: why.to_owned() };
        self.stay_rolled_back(Some(RolledBack { key, settings_only, good, error: error.into() }));
    }
}

impl Loader {
    /// Whether anything is on trial.
    pub(crate) fn has_trials(&self) -> bool {
        self.directory.policies.values().any(|policy| policy.trial.is_some())
    }

    /// Loads the versions of trials again whose secrets are others now: what is in the files may be neither's. A new version
    /// is tried anew with them.
    pub(crate) fn read_secrets_of_trials(&mut self) {
        let Directory { policies, phase, .. } = &mut self.directory;
        for (place, policy) in policies {
            policy.read_secrets_of_trial(place, *phase, &mut self.builder);
        }
    }

    /// Ends the trials that are to end. Whether any was.
    pub(crate) fn judge_trials(&mut self) -> bool {
        if !self.has_trials() {
            return false;
        }
        let outlooks: Vec<(Place, Outlook)> =
            self.directory.policies.iter().map(|(place, policy)| (place.clone(), policy.outlook())).collect();
        let mut changed = false;
        for (place, outlook) in outlooks {
            match outlook {
                Outlook::GoOn => continue,
                Outlook::Promote => self.promote_trial(&place, "canary", "it has done as well as the version before"),
                Outlook::RollBack(why) => self.roll_back_trial(&place, "canary", &why),
            }
            changed = true;
        }
        self.count_trials();
        if changed {
            self.publish();
        }
        self.tell();
        changed
    }

    /// An operator has the new version serve everything now. Whether one was on trial.
    pub(super) fn promote_trial_by_hand(&mut self, place: &Place, who: &str) -> bool {
        self.end_by_hand(place, |loader| loader.promote_trial(place, who, "an operator asked for it"))
    }

    /// An operator ends a trial. Whether there was one.
    pub(super) fn roll_back_trial_by_hand(&mut self, place: &Place, who: &str) -> bool {
        self.end_by_hand(place, |loader| loader.roll_back_trial(place, who, "an operator asked for it"))
    }

    fn end_by_hand(&mut self, place: &Place, end: impl FnOnce(&mut Self)) -> bool {
        let is_tried = self.directory.policies.get(place).is_some_and(|policy| policy.trial.is_some());
        if is_tried {
            end(self);
            self.count_trials();
            self.publish();
            self.tell();
        }
        is_tried
    }

    fn promote_trial(&mut self, place: &Place, who: &str, why: &str) {
        let note = self.note_of(place, who, why);
        let Some(policy) = self.directory.policies.get_mut(place) else { return };
        policy.promote_trial();
        let chronicle = &self.builder.chronicle;
        if let Some(generation) = note.generation {
            chronicle.metrics.serving(place.hook, &PolicyName::from(place.name()), generation);
        }
        chronicle.note(place, PolicyEvent::Promoted, note);
    }

    fn roll_back_trial(&mut self, place: &Place, who: &str, why: &str) {
        let note = self.note_of(place, who, why);
        let Some(policy) = self.directory.policies.get_mut(place) else { return };
        let (hook, plugin, digest) = (place.hook, place.name(), note.digest.as_deref());
        tracing::warn!(%hook, plugin, digest, why, "the canary of a policy was ended: the version before serves everything");
        policy.end_trial(why);
        self.builder.chronicle.note(place, PolicyEvent::RolledBack, note);
    }

    fn note_of(&self, place: &Place, who: &str, why: &str) -> Note {
        let trial = self.directory.policies.get(place).and_then(|policy| policy.trial.as_ref());
        Note {
            generation: Some(Generation(self.registry.current().generation.0 + 1)),
            digest: trial.map(|trial| trial.candidate.compiled.digest.clone()),
            who: Some(who.to_owned()),
            detail: Some(format!("canary: {why}")),
        }
    }

    /// Tells the metrics how far the trials are.
    pub(super) fn count_trials(&mut self) {
        let metrics = &self.builder.chronicle.metrics.canaries;
        let mut running: Vec<(Hook, String)> = Vec::new();
        for (place, policy) in &mut self.directory.policies {
            let Some(mut trial) = policy.trial.take() else { continue };
            let now = (trial.candidate.health.tally(), policy.stable_tally(&trial));
            let share = trial.candidate.sidecar.canary.map_or(0.0, |canary| canary.share.as_f64());
            let more = (now.0.since(trial.told.0), now.1.since(trial.told.1));
            metrics.count(place.hook, place.name(), share, more);
            trial.told = now;
            policy.trial = Some(trial);
            running.push((place.hook, place.name().to_owned()));
        }
        metrics.keep(&running);
    }
}
