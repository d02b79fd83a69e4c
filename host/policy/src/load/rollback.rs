//! Rolling a policy back to the last version of its file that served cleanly.
use std::sync::Arc;

use camshaft_core::ids::Generation;
use camshaft_core::policy::{Mode, ModeError, PolicyEvent};

use super::arrivals::Progress;
use super::builder::{Builder, Built};
use super::directory::{Directory, Pass};
use super::loader::Loader;
use super::policy::Policy;
use super::versions::{RolledBack, Version};
use crate::chronicle::Note;
use crate::error::{PolicyError, Rejection};
use crate::files::{Content, ContentKey, Place, Stamps};
use crate::loaded::Loaded;
use crate::sidecar::Sidecar;
use crate::spec::{OnFault, spec};

const ONLY_SETTINGS: &str = "only its settings changed, and older ones of such a policy may allow what the newest forbid: write \
                             the settings that shall hold into its file";
const NO_LAST_GOOD: &str = "no earlier version of it served cleanly since the server started, or it is kept no more";

impl Loader {
    /// Rolls back every policy whose breaker has opened since the last look, where its settings ask for it. Whether anything
    /// changed.
    pub(crate) fn heed_breakers(&mut self) -> bool {
        let judged = self.judge_trials();
        let opened: Vec<(Place, String)> = self.directory.policies.iter().filter_map(opened).collect();
        let mut changed = judged;
        for (place, why) in opened {
            let _acts = self.builder.chronicle.by(place.hook, place.name(), "breaker");
            let result = self.roll_back(&place, "breaker", &format!("its breaker opened: {why}"));
            if let Err(error) = result {
                if let ModeError::Rejected(rejection) = &error
                    && rejection.downcast_ref::<Rejection>().is_some_and(|rejection| rejection.0.is_transient())
                {
                    self.keep_alarm(&place);
                }
                let (hook, plugin) = (place.hook, place.name());
                tracing::warn!(%hook, plugin, %error, "a policy whose breaker opened cannot be rolled back");
                continue;
            }
            changed = true;
        }
        changed
    }

    /// Publishes the last good version of a policy again, because an operator asks for it.
    ///
    /// # Errors
    /// There is no such policy or version, or it does not take the settings.
    pub(super) fn roll_back_by_hand(&mut self, place: &Place, who: &str) -> Result<(), ModeError> {
        self.roll_back(place, who, "an operator asked for it")
    }

    /// Lets what was rolled back be loaded again, because an operator asks for it. Whether there was anything.
    pub(super) fn pardon(&mut self, place: &Place) -> bool {
        let Some(policy) = self.directory.policies.get_mut(place) else { return false };
        let was_barred = policy.rolled_back.take().is_some();
        if was_barred {
            policy.examine_again();
        }
        was_barred
    }

    /// A policy that could not be rolled back for a reason that may pass is tried again after the next scan.
    fn keep_alarm(&self, place: &Place) {
        if let Some((serving, _)) = self.directory.policies.get(place).and_then(|policy| policy.serving.as_ref()) {
            serving.health.keep_alarm();
        }
    }

    fn roll_back(&mut self, place: &Place, who: &str, why: &str) -> Result<(), ModeError> {
        let policy = self.directory.policies.get_mut(place);
        let policy = policy.ok_or_else(|| ModeError::NoPolicy { hook: place.hook, name: place.name().to_owned() })?;
        let Some(bad) = policy.serving.as_ref().map(|(loaded, _)| loaded.compiled.digest.clone()) else {
            return Err(ModeError::Nothing("no version of it serves"));
        };
        let tried = policy.trial.as_ref().map(|trial| trial.candidate.compiled.digest.clone());
        policy.roll_back(place, why, &mut self.builder).map_err(|error| match *error {
            PolicyError::NoLastGood => ModeError::Nothing(NO_LAST_GOOD),
            PolicyError::OnlySettings => ModeError::Nothing(ONLY_SETTINGS),
            _ => ModeError::Rejected(Arc::new(Rejection(error))),
        })?;
        if tried.is_some() {
            // What it was compared with is gone: it is tried anew beside what serves now.
            policy.examine_again();
        }
        let generation = Some(Generation(self.registry.current().generation.0 + 1));
        let ended = tried.map(|digest| (digest, "canary: the version before it is rolled back".to_owned()));
        for (digest, detail) in ended.into_iter().chain([(bad, why.to_owned())]) {
            let (digest, who, detail) = (Some(digest), Some(who.to_owned()), Some(detail));
            self.builder.chronicle.note(place, PolicyEvent::RolledBack, Note { generation, digest, who, detail });
        }
        self.publish();
        self.tell();
        Ok(())
    }
}

/// A policy that is to be rolled back, and why.
fn opened((place, policy): (&Place, &Policy)) -> Option<(Place, String)> {
    let (serving, _) = policy.serving.as_ref()?;
    let why = serving.health.take_alarm()?;
    let wanted = serving.on_fault() == OnFault::LastGood && serving.sidecar.mode == Mode::Enforce;
    wanted.then(|| (place.clone(), why.to_owned()))
}

impl Directory {
    /// New settings, or another mode, of a policy whose component was rolled back.
    pub(super) fn rolled_back_with(
        &mut self,
        (place, policy): (&Place, &mut Policy),
        (key, (stamps, trusted)): (ContentKey, (Stamps, Option<Stamps>)),
        (built, now): (Result<Built, Arc<PolicyError>>, ContentKey),
        pass: &mut Pass<'_>,
    ) -> Progress {
        let (rolled_back, examined) = (policy.rolled_back.clone(), Some((key.clone(), trusted)));
        if !matches!(built, Ok(Built::Compiling(_))) {
            policy.unstage(&key);
        }
        match built {
            // What serves goes on until its new documents are there.
            Ok(Built::Compiling(job)) => {
                policy.stage(pass.builder.chronicle.who(place), (key, stamps), job);
                return Progress::Compiling;
            }
            Ok(Built::Ready(loaded)) => {
                self.forget_override(place, &key);
                policy.accept(loaded, now);
                policy.stay_rolled_back(rolled_back);
            }
            Ok(Built::Off) => {
                self.forget_override(place, &key);
                policy.turn_off(place, &pass.builder.chronicle);
            }
            Err(error) => policy.reject(place, Some(key), error, self.context(pass.builder)),
        }
        policy.examined = examined;
        policy.unsettled = None;
        Progress::Done
    }
}

impl Policy {
    /// Another version is about to serve: the present one is the last good one, if it served cleanly.
    pub(super) fn keep_last_good(&mut self, next: &Loaded) {
        let Some((serving, key)) = &self.serving else { return };
        let same = serving.compiled.digest == next.compiled.digest && serving.sidecar.is_same_version(&next.sidecar);
        if same {
            next.health.go_on_from(&serving.health);
        } else if serving.health.is_clean() {
            self.last_good = Some(Version::of(serving, key));
        }
    }

    /// Another load of what serves took its place.
    pub(super) fn stay_rolled_back(&mut self, rolled_back: Option<RolledBack>) {
        self.error = rolled_back.as_ref().map(|rolled_back| rolled_back.error.clone());
        self.rolled_back = rolled_back;
    }

    /// Has the last good version serve again.
    fn roll_back(&mut self, place: &Place, why: &str, builder: &mut Builder) -> Result<(), Arc<PolicyError>> {
        let none = || Arc::new(PolicyError::NoLastGood);
        let (serving, key) = self.serving.clone().ok_or_else(none)?;
        let good = self.last_good.clone().ok_or_else(none)?;
        let settings_only = good.has_code_of(&serving);
        let (loaded, now) = match again(place, (&serving, &key), &good, builder) {
            // The older settings of a guard may allow what the newest ones forbid.
            Err(_) if !spec(place.hook).guards => {
                let settings = Sidecar { mode: serving.sidecar.mode, ..good.sidecar };
                let loaded = builder.load(place, good.compiled.clone(), settings, good.key.has_settings())?;
                (loaded, good.key)
            }
            again => again?,
        };
        let digest = serving.compiled.digest.clone();
        let good = Version::of(&loaded, &now);
        let error = PolicyError::RolledBack { digest, good: good.digest(), why: why.to_owned() };
        let (hook, plugin, digest, back) = (place.hook, place.name(), &serving.compiled.digest, good.digest());
        tracing::warn!(%hook, plugin, digest, good = back, why, "policy rolled back to the version before");
        self.accept(loaded, now);
        self.last_good = None;
        self.stay_rolled_back(Some(RolledBack { key, settings_only, good: Some(good), error: error.into() }));
        Ok(())
    }

    /// What is to serve where these files hold what was rolled back, and what tells it apart. `None`: they hold something
    /// else.
    pub(super) fn build_instead(
        &self,
        place: &Place,
        (content, key): (&Content, &ContentKey),
        builder: &mut Builder,
    ) -> Option<(Result<Built, Arc<PolicyError>>, ContentKey)> {
        let rolled_back = self.rolled_back.as_ref().filter(|rolled_back| rolled_back.bars(key))?;
        let Some(Version { compiled, sidecar, key: of }) = &rolled_back.good else {
            // A trial of which nothing served before. It can be off, so that it is no error any more.
            if key.mode == Some(Mode::Off) {
                return Some((Ok(Built::Off), key.clone()));
            }
            return Some((Err(rolled_back.error.clone()), key.clone()));
        };
        if !rolled_back.settings_only {
            let built = builder.build_with(place, compiled, content, key.mode);
            return Some((built, key.with_component_of(of)));
        }
        // Only the mode can be another one.
        let mode = key.mode.unwrap_or(sidecar.mode);
        if mode == Mode::Off {
            return Some((Ok(Built::Off), of.clone()));
        }
        let settings = Sidecar { mode, ..sidecar.clone() };
        let built = match builder.load(place, compiled.clone(), settings, of.has_settings()) {
            Err(error) if matches!(*error, PolicyError::DocumentsOpening) => Ok(Built::Compiling(None)),
            loaded => loaded.map(Built::Ready),
        };
        Some((built, of.clone().with_mode(mode)))
    }
}

/// The code of the last good version with the newest settings, which may forbid what older ones allowed.
fn again(
    place: &Place,
    (serving, key): (&Loaded, &ContentKey),
    good: &Version,
    builder: &mut Builder,
) -> Result<(Arc<Loaded>, ContentKey), Arc<PolicyError>> {
    if good.has_code_of(serving) {
        return Err(PolicyError::OnlySettings.into());
    }
    serving.sidecar.check_digest(&place.sidecar_name(), &good.compiled.digest)?;
    let loaded = builder.load(place, good.compiled.clone(), serving.sidecar.clone(), key.has_settings())?;
    Ok((loaded, key.with_component_of(&good.key)))
}
