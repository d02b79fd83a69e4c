//! What is known of one policy file, and how that changes.
use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::ids::PolicyName;
use camshaft_core::policy::{Hook, Mode, PolicyEffect, PolicyEvent, PolicyState, PolicyStatus};

use super::compile::CompileJob;
use super::versions::{RolledBack, Trial, Version};
use crate::chronicle::{Chronicle, Note};
use crate::error::PolicyError;
use crate::files::{self, ContentKey, Place, SIDECAR_MAX_BYTES, Stamps};
use crate::loaded::{Compiled, Loaded};
use crate::matching::Matching;
use crate::metrics::PolicyMetrics;
use crate::set::{Broken, Link, Seat};
use crate::sidecar::Sidecar;
use crate::spec::{OnFault, spec};

/// What the directory is to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nothing was published yet: what cannot be loaded has no older version to fall back on.
    Starting,
    /// Its policies serve.
    Serving,
    /// Those of another directory serve until all of this one can.
    Staged,
}

/// An examination that is tried again.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retry {
    at: Instant,
    /// How long it waits the next time.
    pause: Duration,
}

/// From a rejection that may pass to the next try. Each further one waits twice as long, up to the maximum.
const MIN_PAUSE: Duration = if cfg!(test) { Duration::from_millis(10) } else { Duration::from_secs(1) };
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// How often in a row the system may kill the compile of the same bytes before they are not tried any more.
const KILLS_MAX: u32 = 3;
/// The same if memory was only lacking: some two minutes.
const LACKS_MAX: u32 = 8;

/// Why a policy serves although its file cannot be seen: nobody said that it is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Missing {
    /// The folder of its hook is gone.
    Folder,
    /// The whole directory has no policy any more.
    Everything,
    /// The folder of its hook cannot be listed.
    Unlisted(String),
    /// Its hook would have no policy in force any more, and it guards.
    LastGuard,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Folder => f.write_str("the folder of its hook is gone"),
            Missing::Everything => f.write_str("the policy directory has no policies any more"),
            Missing::Unlisted(error) => write!(f, "the folder of its hook cannot be listed: {error}"),
            Missing::LastGuard => {
                f.write_str("its file was removed, but it is the last one in force of a hook that guards")
            }
        }
    }
}

/// Where and for whom a policy is examined.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) phase: Phase,
    pub(crate) chronicle: &'a Chronicle,
}

/// Content whose component is being compiled.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) key: ContentKey,
    pub(crate) stamps: Stamps,
    pub(crate) job: Option<Arc<CompileJob>>,
    /// Who wants it in force; `None`: whoever changed the files.
    pub(crate) who: Option<String>,
}

/// One policy file.
#[derive(Debug, Default)]
pub(crate) struct Policy {
    pub(crate) file: PathBuf,
    pub(crate) mode: Mode,
    pub(crate) serving: Option<(Arc<Loaded>, ContentKey)>,
    /// Code of a policy that is off, so that it need not be compiled when it is on again.
    kept: Option<Arc<Compiled>>,
    /// Stands in the chain where nothing could ever be loaded, or where what served may serve no more.
    pub(crate) broken: Option<Arc<Broken>>,
    /// Settings and files of what served until the configuration granted it less.
    withheld: Option<(Sidecar, ContentKey)>,
    /// The newest content that was examined, and the stamps it had (if they can be trusted).
    pub(crate) examined: Option<(ContentKey, Option<Stamps>)>,
    pub(crate) staged: Option<Staged>,
    /// Who wanted the newest content that was examined in force; `None`: whoever changed the files.
    pub(crate) who: Option<String>,
    /// Stamps of a file that had not settled at the last scan, and when they were first seen.
    pub(crate) unsettled: Option<(Stamps, Instant)>,
    pub(crate) error: Option<Arc<PolicyError>>,
    /// Of a guard whose file was removed: the files that came meanwhile, one of which is to replace it.
    pub(crate) successors: BTreeSet<Place>,
    /// Of such a guard: why it serves all the same.
    stays: Option<String>,
    /// Of a policy whose file cannot be seen: why it serves all the same.
    missing: Option<Missing>,
    /// Of a guard that serves with settings whose file is gone, and whose own is not: since when.
    pub(crate) bare: Option<Instant>,
    /// The same for one whose settings file has become empty.
    pub(crate) emptied: Option<Instant>,
    /// When files that were rejected for a reason that may pass are examined again.
    pub(super) retry: Option<Retry>,
    /// How often memory was lacking for this component.
    lacks: Option<(ContentKey, u32)>,
    /// The newest of its versions before the one that serves that served cleanly, for going back to it.
    pub(super) last_good: Option<Version>,
    /// A newer version, which serves a share of the traffic.
    pub(super) trial: Option<Trial>,
    /// What was taken out of service, and is not loaded again until the file changes.
    pub(super) rolled_back: Option<RolledBack>,
    /// The error of which the log and the metric know.
    pub(super) reported: Option<(Option<ContentKey>, String)>,
}

impl Policy {
    /// What is in its files now, as far as they could be read.
    pub(crate) fn newest(&self) -> Option<&ContentKey> {
        let staged = self.staged.as_ref().map(|staged| &staged.key);
        staged.or(self.examined.as_ref().map(|(key, _)| key))
    }

    /// Whether it runs, or does not, in a mode that an operator chose.
    fn is_overridden(&self) -> bool {
        let key = self.serving.as_ref().map(|(_, key)| key).or(self.examined.as_ref().map(|(key, _)| key));
        key.is_some_and(|key| key.mode.is_some())
    }

    /// Whether nothing was decided yet about what is in its files.
    pub(crate) fn is_new(&self) -> bool {
        self.serving.is_none() && self.examined.is_none() && self.error.is_none()
    }

    /// Its file is gone, and the one that came instead was rejected: it serves until there is a valid one, or none.
    pub(crate) fn stay(&mut self, place: &Place, rejected: &str) {
        let why = format!("its file was removed, but {rejected}, which came meanwhile, was rejected");
        if self.stays.as_ref() != Some(&why) {
            let (hook, plugin) = (place.hook, place.name());
            tracing::warn!(%hook, plugin, rejected, "policy goes on serving although its file was removed");
            self.stays = Some(why);
        }
    }

    /// Its file cannot be seen, and it serves until an operator ends it, or others are there for long enough.
    pub(crate) fn go_missing(&mut self, place: &Place, why: Missing) {
        if self.missing.as_ref() != Some(&why) {
            let (hook, plugin, file, why) = (place.hook, place.name(), self.file.display(), why.to_string());
            tracing::error!(
                %hook, plugin, %file, why,
                "policy goes on serving without its file; to end it, POST /admin/policies/{hook}/{plugin}/off"
            );
        }
        self.missing = Some(why);
        self.retry = None;
    }

    /// Whether its file could not be seen at the last scan, and it serves all the same.
    pub(crate) fn is_missing(&self) -> bool {
        self.missing.is_some() && self.link().is_some()
    }

    /// Whether its answers count, or the absence of any.
    pub(crate) fn enforces(&self) -> bool {
        self.link().is_some_and(|link| !link.is_monitor())
    }

    /// Whether it is asked, in the same mode, about everything that another one would be asked about.
    pub(crate) fn decides_for_all_of(&self, other: &Policy) -> bool {
        let (Some((ours, _)), Some((theirs, _))) = (&self.serving, &other.serving) else { return false };
        let (matching, same_mode) = (&ours.sidecar.matching, ours.is_monitored() == theirs.is_monitored());
        same_mode && (matching.is_all() || *matching == theirs.sidecar.matching)
    }

    /// Its file is there.
    pub(crate) fn is_listed(&mut self, place: &Place) {
        self.successors.clear();
        self.stays = None;
        if self.missing.take().is_some() {
            tracing::info!(hook = %place.hook, plugin = place.name(), "the policy's file is there again");
        }
    }

    /// What serves, if only the settings or the mode changed while a newer component is being compiled; and what is to tell
    /// it apart with them. What came together with the newer component waits for it.
    pub(crate) fn reconfigurable(&self, key: &ContentKey) -> Option<(Arc<Compiled>, ContentKey)> {
        let ((serving, of), staged) = (self.serving.as_ref()?, self.staged.as_ref()?);
        let meanwhile = key.with_component_of(of);
        let changed = staged.key.same_component(key) && staged.key != *key && meanwhile != *of;
        changed.then(|| (serving.compiled.clone(), meanwhile))
    }

    /// The same policy, none of whose present files was examined: what serves, and why, stays.
    pub(crate) fn unexamined(&self) -> Self {
        Self {
            file: self.file.clone(),
            mode: self.mode,
            serving: self.serving.clone(),
            kept: self.kept.clone(),
            broken: self.broken.clone(),
            withheld: self.withheld.clone(),
            examined: None,
            staged: None,
            who: None,
            unsettled: None,
            error: self.error.clone(),
            successors: self.successors.clone(),
            stays: self.stays.clone(),
            missing: self.missing.clone(),
            bare: self.bare,
            emptied: self.emptied,
            retry: None,
            lacks: self.lacks.clone(),
            last_good: self.last_good.clone(),
            trial: self.trial.clone(),
            rolled_back: self.rolled_back.clone(),
            reported: self.reported.clone(),
        }
    }

    /// How long until files that were rejected for a reason that may pass are to be examined again.
    pub(crate) fn retry_in(&self) -> Option<Duration> {
        self.retry.map(|retry| retry.at.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn is_due(&self) -> bool {
        self.retry_in().is_some_and(|wait| wait.is_zero())
    }

    /// Has the next scan try a component again that was given up.
    pub(crate) fn try_again(&mut self) {
        if self.lacks.take().is_some() {
            self.examine_again();
        }
    }

    /// Has the next scan load the same files again if they name secrets that are others now. The versions of a trial are
    /// loaded again as they are, see [`Loader::read_secrets_of_trials`](super::loader::Loader::read_secrets_of_trials).
    pub(crate) fn read_secrets_again(&mut self) {
        let (Some((loaded, of)), None) = (&mut self.serving, &self.trial) else { return };
        let sources = &loaded.sidecar.secrets;
        if sources.is_empty() || self.error.is_none() && !loaded.has_other_secrets() {
            return;
        }
        of.is_outdated = true;
        self.examine_again();
    }

    /// Counts how often memory was lacking for the same component.
    fn count_lack(&mut self, key: Option<&ContentKey>, error: Arc<PolicyError>) -> Arc<PolicyError> {
        let Some(key) = key.filter(|_| error.lacks_memory()) else {
            self.lacks = None;
            return error;
        };
        let most = if matches!(*error, PolicyError::CompileKilled { .. }) { KILLS_MAX } else { LACKS_MAX };
        let before = self.lacks.take().filter(|(of, _)| of.same_component(key)).map_or(0, |(_, times)| times);
        let times = before + 1;
        self.lacks = Some((key.clone(), times));
        if times < most { error } else { PolicyError::GivenUp { last: error, times }.into() }
    }

    /// Forgets what was examined, so that the next scan examines it again.
    pub(crate) fn examine_again(&mut self) {
        self.examined = None;
        self.staged = None;
    }

    /// The same for another mode; what is being compiled is still its newest content.
    pub(crate) fn decide_again(&mut self) {
        self.examined = None;
        if let Some(staged) = &mut self.staged {
            staged.job = None;
        }
    }

    /// Its place in the chain.
    pub(crate) fn link(&self) -> Option<Link> {
        let ready = self.serving.as_ref().map(|(loaded, _)| Link::Ready(loaded.clone()));
        ready.or_else(|| self.broken.clone().map(Link::Broken))
    }

    /// What it has in a generation.
    pub(crate) fn seat(&self) -> Option<Seat> {
        let candidate = self.trial.as_ref().map(|trial| trial.candidate.clone());
        let seat = Seat { link: self.link(), candidate };
        (seat.link.is_some() || seat.candidate.is_some()).then_some(seat)
    }

    /// `None` before it was examined. `stands_by`: another policy decides in its place.
    pub(crate) fn status(&self, place: &Place, stands_by: bool) -> Option<PolicyStatus> {
        let serving = self.serving.as_ref().map(|(loaded, _)| loaded);
        let state = match (&self.error, serving) {
            (Some(_), _) => PolicyState::Rejected,
            (None, Some(_)) if stands_by => PolicyState::Standby,
            (None, Some(_)) => PolicyState::Active,
            (None, None) if self.trial.is_some() => PolicyState::Active,
            (None, None) if self.mode == Mode::Off => PolicyState::Off,
            (None, None) => return None,
        };
        Some(PolicyStatus {
            hook: place.hook,
            name: place.name().to_owned(),
            file: self.file.display().to_string(),
            mode: self.mode,
            overridden: self.is_overridden(),
            state,
            effect: self.effect(place.hook, stands_by),
            serving: serving.map(|loaded| loaded.compiled.digest.clone()),
            generation: serving.and_then(|loaded| loaded.generation.get().copied()),
            error: self.why_not(place),
            canary: self.canary_status(),
            health: serving.map(|loaded| loaded.report(self.goes_back_to())),
        })
    }

    fn effect(&self, hook: Hook, stands_by: bool) -> PolicyEffect {
        match (self.seat(), self.mode) {
            (None, _) => PolicyEffect::None,
            (Some(_), _) if stands_by => PolicyEffect::None,
            (Some(_), Mode::Monitor) => PolicyEffect::Watches,
            (Some(Seat { link: Some(Link::Broken(broken)), candidate: None }), _) => broken.on_fault.effect(hook),
            (Some(_), _) => PolicyEffect::Decides,
        }
    }

    /// Digest of the version to which an operator can go back.
    fn goes_back_to(&self) -> Option<String> {
        let (serving, _) = self.serving.as_ref()?;
        let may = |good: &&Version| !spec(serving.hook()).guards || !good.has_code_of(serving);
        self.last_good.as_ref().filter(may).map(Version::digest)
    }

    /// What is wrong with its files, or why it serves although they are gone.
    fn why_not(&self, place: &Place) -> Option<String> {
        if let Some(missing) = self.missing.as_ref().filter(|_| self.link().is_some()) {
            let end = format!("to end it, POST /admin/policies/{}/{}/off", place.hook, place.name());
            let denies = self.broken.as_ref().is_some_and(|broken| broken.on_fault.denies(place.hook));
            let goes_on = match (self.serving.is_some(), denies) {
                (true, _) => "goes on serving",
                (false, true) => "does not serve: requests that need it go on failing",
                (false, false) => "does not serve, and requests pass without it",
            };
            return Some(format!("{missing}; it {goes_on} ({end})"));
        }
        self.error.as_ref().map(|error| error.sentence()).or_else(|| self.stays.clone())
    }

    /// What is in the files serves from the next generation on.
    pub(crate) fn accept(&mut self, loaded: Arc<Loaded>, key: ContentKey) {
        self.mode = loaded.sidecar.mode;
        self.keep_last_good(&loaded);
        if let Some((before, _)) = self.serving.replace((loaded, key)) {
            before.retire();
        }
        self.drop_trial();
        (self.broken, self.withheld) = (None, None);
        self.settle();
    }

    /// It is being compiled. Whoever wanted it so before still does, if it is the same.
    pub(crate) fn stage(
        &mut self,
        who: Option<String>,
        (key, stamps): (ContentKey, Stamps),
        job: Option<Arc<CompileJob>>,
    ) {
        let before = self.staged.take().filter(|staged| staged.key == key).and_then(|staged| staged.who);
        self.staged = Some(Staged { key, stamps, job, who: who.or(before) });
    }

    /// It has been examined: nothing is being compiled for it.
    pub(crate) fn unstage(&mut self, key: &ContentKey) {
        self.who = self.staged.take().filter(|staged| staged.key == *key).and_then(|staged| staged.who);
    }

    /// The settings that it has, or had until the configuration granted it less, and the files that they came from.
    pub(super) fn settled(&self) -> Option<(&Sidecar, &ContentKey)> {
        let serving = self.serving.as_ref().map(|(loaded, key)| (&loaded.sidecar, key));
        serving.or(self.withheld.as_ref().map(|(sidecar, key)| (sidecar, key)))
    }

    /// What serves may serve no more. A guard refuses what it was asked about, whatever its files say by now.
    pub(super) fn withhold(&mut self, place: &Place, error: Arc<PolicyError>, metrics: &PolicyMetrics) {
        let Some((loaded, key)) = self.serving.take() else { return };
        let (hook, plugin, why) = (place.hook, place.name(), error.sentence());
        tracing::error!(%hook, plugin, why, "policy ended: the configuration grants it less");
        loaded.retire();
        self.drop_trial();
        self.last_good = None;
        let sidecar = loaded.sidecar.clone();
        if spec(place.hook).guards && !loaded.is_monitored() {
            self.broken = Some(broken(place, (OnFault::Deny, sidecar.matching.clone()), &why, metrics));
        }
        self.withheld = Some((sidecar, key));
        self.error = Some(error);
    }

    /// What serves already was put back in place of something that was rejected.
    pub(crate) fn restore(&mut self, place: &Place) {
        let Some((loaded, _)) = &self.serving else { return };
        self.mode = loaded.sidecar.mode;
        if self.drop_trial() {
            tracing::info!(hook = %place.hook, plugin = place.name(), "its canary ends: its files say what served before");
        }
        self.retry = None;
        self.emptied = None;
        self.reported = None;
        self.rolled_back = None;
        if self.error.take().is_some() {
            let (hook, plugin) = (place.hook, place.name());
            tracing::info!(%hook, plugin, "policy is valid again; its files say what serves already");
        }
    }

    /// Nothing is wrong with what is in the files any more.
    pub(super) fn settle(&mut self) {
        self.rolled_back = None;
        self.kept = None;
        self.error = None;
        self.retry = None;
        self.lacks = None;
        self.emptied = None;
        self.reported = None;
    }

    /// Its settings, or an operator, turn it off.
    pub(crate) fn turn_off(&mut self, place: &Place, chronicle: &Chronicle) {
        self.kept = self.serving.as_ref().map(|(loaded, _)| loaded.compiled.clone()).or(self.kept.take());
        if self.leave(place, chronicle) {
            tracing::info!(hook = %place.hook, plugin = place.name(), "policy turned off");
        }
        self.mode = Mode::Off;
        self.retry = None;
        self.error = None;
        self.reported = None;
    }

    /// Takes it out of its chain. Whether it was in one.
    pub(crate) fn leave(&mut self, place: &Place, chronicle: &Chronicle) -> bool {
        let tried = self.trial.take().map(|trial| (trial.candidate, trial.key));
        let taken = [self.serving.take(), tried];
        self.withheld = None;
        taken.iter().flatten().for_each(|(loaded, _)| loaded.retire());
        let announced = taken.into_iter().flatten().find(|(loaded, _)| loaded.generation.get().is_some());
        let was_there = self.broken.take().is_some() || announced.is_some();
        if was_there {
            let digest = announced.map(|(loaded, _)| loaded.compiled.digest.clone());
            chronicle.note(place, PolicyEvent::Removed, Note { digest, ..Note::default() });
            chronicle.metrics.gone(place.hook, &PolicyName::from(place.name()));
        }
        was_there
    }

    /// What is in the files cannot serve. What served before goes on, and at start a policy that guards refuses.
    pub(crate) fn reject(
        &mut self,
        place: &Place,
        key: Option<ContentKey>,
        error: Arc<PolicyError>,
        context: Context<'_>,
    ) {
        let Context { phase, chronicle } = context;
        let error = self.count_lack(key.as_ref(), error);
        let text = error.sentence();
        let of_settings = matches!(*error, PolicyError::Settings { .. });
        self.retry = error.is_transient().then(|| {
            let pause = self.retry.map_or(MIN_PAUSE, |retry| retry.pause);
            Retry { at: Instant::now() + pause, pause: (pause * 2).min(MAX_PAUSE) }
        });
        self.error = Some(error);
        let serves = self.serving.is_some();
        if phase == Phase::Starting && !serves && self.broken.is_none() {
            self.broken = self.stand_in(place, &text, &chronicle.metrics);
        }
        let report = (key, text.clone());
        if self.reported.as_ref() == Some(&report) {
            return;
        }
        self.reported = Some(report);
        let meanwhile = match (serves, self.broken.is_some()) {
            _ if phase == Phase::Staged => "the directory before goes on serving",
            (true, _) => "the version before goes on serving",
            (false, true) => "requests that need it fail as its on-fault setting says",
            (false, false) => "nothing serves in its place",
        };
        let file = if of_settings { self.file.with_extension("toml") } else { self.file.clone() };
        let (hook, plugin, file) = (place.hook, place.name(), file.display());
        tracing::warn!(%hook, plugin, %file, why = text, "policy rejected; {meanwhile}");
        let digest = self.reported.as_ref().and_then(|(key, _)| Some(key.as_ref()?.component().to_owned()));
        chronicle.note(place, PolicyEvent::Rejected, Note { digest, detail: Some(text), ..Note::default() });
    }

    /// At start, a policy that guards refuses if it cannot be loaded (unless its settings say otherwise).
    fn stand_in(&self, place: &Place, why: &str, metrics: &PolicyMetrics) -> Option<Arc<Broken>> {
        if !spec(place.hook).guards {
            return None;
        }
        let sidecar = files::read(&self.file.with_extension("toml"), "a settings file", SIDECAR_MAX_BYTES).ok();
        let sidecar = sidecar.and_then(|bytes| Sidecar::read(place.hook, &place.sidecar_name(), &bytes).ok());
        let (mode, on_fault, matching) =
            sidecar.map_or((Mode::Enforce, OnFault::Deny, Matching::default()), |s| (s.mode, s.on_fault, s.matching));
        (mode == Mode::Enforce).then(|| broken(place, (on_fault, matching), why, metrics))
    }
}

fn broken(place: &Place, (on_fault, matching): (OnFault, Matching), why: &str, metrics: &PolicyMetrics) -> Arc<Broken> {
    let name = PolicyName::from(place.name());
    let metrics = metrics.link(place.hook, &name);
    Arc::new(Broken { name, on_fault, matching, why: format!("could not be loaded: {why}"), metrics })
}
