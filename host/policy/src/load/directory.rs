//! One policy directory: what changed in it, and whether what is there now may serve.
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use camshaft_core::policy::{Hook, Mode, PolicyStatus};

use super::arrivals::{Arrivals, Debut, Progress, Seen};
use super::builder::{Builder, Built};
use super::policy::{Context, Missing, Phase, Policy, Staged};
use crate::error::{PolicyError, SettingsError};
use crate::files::{self, Content, ContentKey, Files, Listing, POLICIES_MAX, Place, Stamps};
use crate::loaded::Loaded;
use crate::set::Seat;
use crate::spec::{Decides, spec};

/// A file that was written to less than this ago may still be written to.
pub(crate) const SETTLE: Duration = Duration::from_millis(200);
/// A truncated file has this long to be completed before it is rejected.
const CONTINUE: Duration = Duration::from_secs(1);
/// How long a hook's folder that was empty or gone must stay as it is before what is still missing counts as removed, and
/// how long a guard keeps its settings without their file: a directory that is copied back comes file by file.
const RETURN: Duration = Duration::from_secs(5);
/// A stamp this old is trusted to mean the same content: clocks of file systems tick coarsely.
const TRUST: Duration = Duration::from_secs(2);

/// Whether to wait for files that may still be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// Come back later for what has not settled.
    Wait,
    /// Examine what is there.
    Now,
}

/// What a scan found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Some file has not settled: scan again soon.
    pub(crate) unsettled: bool,
    /// Some component is being compiled: scan again when one is done.
    pub(crate) compiling: bool,
    /// A new generation was published.
    pub(crate) published: bool,
    /// When to examine files again that were rejected for a reason that may pass.
    pub(crate) again: Option<Duration>,
}

/// Scans until everything has settled, at most for a second, and then examines what is there.
pub(crate) fn scan_settled(mut scan: impl FnMut(Patience) -> Scan) -> Scan {
    const SCANS: u32 = 20;
    let mut published = false;
    for _ in 0..SCANS {
        let found = scan(Patience::Wait);
        published |= found.published;
        if !found.unsettled {
            return Scan { published, ..found };
        }
        std::thread::sleep(SETTLE / 4);
    }
    let found = scan(Patience::Now);
    Scan { published: published | found.published, ..found }
}

/// A settings file that has lost the settings that serve.
pub(super) enum Lost {
    /// The rest of it may be on its way.
    Lately,
    ForGood(Arc<PolicyError>),
}

/// One scan of a directory.
pub(super) struct Pass<'a> {
    pub(super) builder: &'a mut Builder,
    patience: Patience,
    pub(super) found: Scan,
}

/// The policies in one directory.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) path: PathBuf,
    pub(crate) phase: Phase,
    pub(crate) policies: BTreeMap<Place, Policy>,
    /// Modes that an operator chose, each for the files that it was chosen for.
    pub(crate) overrides: BTreeMap<Place, ContentKey>,
    /// Why it could not be listed before it served.
    pub(crate) unread: Option<PolicyError>,
    /// In the order of `Hook::ALL`.
    pub(super) seen: [Option<Seen>; Hook::ALL.len()],
    pub(super) returns_after: Duration,
}

impl Directory {
    pub(crate) fn new(path: PathBuf, phase: Phase) -> Self {
        let (policies, overrides) = (BTreeMap::new(), BTreeMap::new());
        Self { path, phase, policies, overrides, unread: None, seen: Default::default(), returns_after: RETURN }
    }

    /// The policies of a hook. While others serve, or nothing does, no guard may be left out.
    ///
    /// # Errors
    /// Its folder cannot be listed, or holds too many guards.
    fn list(&self, hook: Hook) -> Result<Option<Listing>, PolicyError> {
        let serves = |place: &Place| self.policies.get(place).is_some_and(|policy| policy.link().is_some());
        let listed = files::list(&self.path, hook, serves)?;
        let is_cut = listed.as_ref().is_some_and(|listing| listing.is_cut);
        if is_cut && self.phase != Phase::Serving && spec(hook).guards {
            return Err(PolicyError::TooManyPolicies { path: self.path.join(hook.as_str()), most: POLICIES_MAX });
        }
        Ok(listed)
    }

    /// Files of all policies.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Path> {
        self.policies.values().map(|policy| policy.file.as_path())
    }

    /// What serves of it, in file order.
    pub(crate) fn seats(&self) -> impl Iterator<Item = (Hook, Seat)> {
        self.policies.iter().filter_map(|(place, policy)| policy.seat().map(|seat| (place.hook, seat)))
    }

    pub(crate) fn statuses(&self) -> Vec<PolicyStatus> {
        let status = |(place, policy): (&Place, &Policy)| {
            let later = |(other, later): (&Place, &Policy)| {
                other.hook == place.hook && other > place && later.decides_for_all_of(policy)
            };
            let stands_by = spec(place.hook).decides == Decides::Last && self.policies.iter().any(later);
            policy.status(place, stands_by)
        };
        self.policies.iter().filter_map(status).collect()
    }

    pub(crate) fn status(&self, hook: Hook, name: &str) -> Option<PolicyStatus> {
        self.statuses().into_iter().find(|status| status.hook == hook && status.name == name)
    }

    /// Scans every file and examines what changed.
    pub(crate) fn scan(&mut self, builder: &mut Builder, patience: Patience) -> Scan {
        let mut pass = Pass { builder, patience, found: Scan::default() };
        let listings = Hook::ALL.map(|hook| (hook, self.list(hook)));
        let is_empty = |listed: &Result<Option<Listing>, PolicyError>| !matches!(listed, Ok(Some(listing)) if !listing.policies.is_empty());
        let emptied = listings.iter().all(|(_, listed)| is_empty(listed));
        for (hook, listed) in listings {
            if let (Ok(listed), true) = (&listed, self.phase != Phase::Serving && spec(hook).guards) {
                let is_listed =
                    |place: &Place| listed.as_ref().is_some_and(|listing| listing.policies.contains_key(place));
                let gone = self.policies.iter().find(|(place, _)| place.hook == hook && !is_listed(place));
                if let Some((_, policy)) = gone {
                    self.unread = Some(PolicyError::Vanished { path: policy.file.clone() });
                }
            }
            let why = match &listed {
                Ok(Some(_)) if emptied => Some(Missing::Everything),
                Ok(Some(_)) => None,
                Ok(None) => Some(Missing::Folder),
                Err(error) => Some(Missing::Unlisted(error.sentence())),
            };
            match listed {
                Ok(listed) => self.scan_hook(hook, listed.unwrap_or_default(), why.as_ref(), &mut pass),
                Err(error) if self.phase != Phase::Serving => self.unread = Some(error),
                Err(_) => self.scan_hook(hook, Listing::default(), why.as_ref(), &mut pass),
            }
        }
        pass.found.again = self.policies.values().filter_map(Policy::retry_in).min();
        pass.found
    }

    /// `missing`: why a file that is not listed was not removed by anybody who meant it.
    fn scan_hook(&mut self, hook: Hook, listing: Listing, missing: Option<&Missing>, pass: &mut Pass<'_>) {
        let listed = listing.policies;
        let gone = self.policies.keys().filter(|place| place.hook == hook && !listed.contains_key(place));
        pass.builder.gone = gone.cloned().collect();
        let mut names: HashMap<String, String> = HashMap::new();
        let mut arrivals = Arrivals { listed: listed.keys().cloned().collect(), ..Arrivals::default() };
        for (place, files) in listed {
            let name = place.name().to_owned();
            let first = names.entry(name.clone()).or_insert_with(|| place.stem.clone()).clone();
            let mut policy = self.take(&place);
            policy.file = files.component.clone();
            policy.is_listed(&place);
            let is_new = policy.is_new();
            let mut progress = Progress::Done;
            if first == place.stem {
                progress = self.scan_policy(&place, &mut policy, &files, pass);
                pass.found.unsettled |= progress == Progress::Unsettled;
                pass.found.compiling |= progress == Progress::Compiling;
            } else {
                let taken = PolicyError::NameTaken { name, first: format!("{first}.wasm") };
                policy.examine_again();
                policy.reject(&place, None, taken.into(), self.context(pass.builder));
            }
            arrivals.note(&place, &policy, is_new, progress);
            self.policies.insert(place, policy);
        }
        self.let_go(hook, missing, &arrivals, pass);
    }

    /// Takes a policy to examine it. Leaves what serves in its place, so that a panic meanwhile loses no guard.
    fn take(&mut self, place: &Place) -> Policy {
        let Some(known) = self.policies.get_mut(place) else { return Policy::default() };
        let left = known.unexamined();
        std::mem::replace(known, left)
    }

    /// Forgets what was examined, but not what serves.
    pub(crate) fn examine_again(&mut self) {
        for policy in self.policies.values_mut() {
            *policy = policy.unexamined();
        }
    }

    pub(super) fn remove(&mut self, place: &Place, builder: &mut Builder) {
        let Some(mut policy) = self.policies.remove(place) else { return };
        self.overrides.remove(place);
        builder.forget_others(self.policies.keys());
        if policy.leave(place, &builder.chronicle) {
            tracing::info!(hook = %place.hook, plugin = place.name(), "policy removed");
        }
    }

    fn scan_policy(&mut self, place: &Place, policy: &mut Policy, files: &Files, pass: &mut Pass<'_>) -> Progress {
        let stamps = match Stamps::of(files) {
            Ok(stamps) => stamps,
            Err(error) => {
                policy.examine_again();
                return self.unreadable(place, policy, error, pass);
            }
        };
        if policy.is_due() {
            policy.examined = None;
        }
        if matches!(&policy.examined, Some((_, Some(trusted))) if *trusted == stamps) {
            policy.unsettled = None;
            return Progress::Done;
        }
        if let Some(Staged { stamps: of, job: Some(job), .. }) = &policy.staged
            && *of == stamps
            && job.outcome().is_none()
        {
            return Progress::Compiling;
        }
        if self.awaits_settings(place, policy, files) {
            return Progress::Unsettled;
        }
        if pass.patience == Patience::Wait && !has_settled(policy, &stamps) {
            return Progress::Unsettled;
        }
        match Content::read(files, stamps) {
            Ok(content) => self.examine(place, policy, content, pass),
            Err(error) => {
                policy.examine_again();
                self.unreadable(place, policy, error, pass)
            }
        }
    }

    fn unreadable(&self, place: &Place, policy: &mut Policy, error: PolicyError, pass: &Pass<'_>) -> Progress {
        if pass.patience == Patience::Wait && matches!(error, PolicyError::Unsettled { .. }) {
            return Progress::Unsettled;
        }
        policy.reject(place, None, error.into(), self.context(pass.builder));
        Progress::Done
    }

    fn examine(&mut self, place: &Place, policy: &mut Policy, content: Content, pass: &mut Pass<'_>) -> Progress {
        let key = self.key_of(place, &content);
        let age = content.stamps.age(SystemTime::now());
        let trusted = (age >= TRUST).then(|| content.stamps.clone());
        if policy.examined.as_ref().is_some_and(|(examined, _)| *examined == key) {
            policy.examined = Some((key, trusted));
            policy.staged = None;
            return Progress::Done;
        }
        if policy.serving.as_ref().is_some_and(|(_, of)| *of == key) {
            policy.restore(place);
            policy.examined = Some((key, trusted));
            policy.staged = None;
            return Progress::Done;
        }
        if policy.trial.as_ref().is_some_and(|trial| trial.key == key) {
            let lacks_secret = matches!(policy.error.as_deref(), Some(PolicyError::NoSecret { .. }));
            if !lacks_secret || policy.read_secrets_of_trial(place, self.phase, pass.builder) {
                policy.settle();
            }
            policy.examined = Some((key, trusted));
            policy.staged = None;
            return Progress::Done;
        }
        // What an operator turns off needs no settings.
        let lost = if key.mode == Some(Mode::Off) { None } else { self.lost_settings(place, policy, &content) };
        let built = match lost {
            // What was rolled back is not tried again, but its settings may have changed.
            None => match policy.build_instead(place, (&content, &key), pass.builder) {
                Some(instead) => {
                    let stamps = (content.stamps, trusted);
                    return self.rolled_back_with((place, policy), (key, stamps), instead, pass);
                }
                None => pass.builder.build(place, &content, key.mode),
            },
            Some(Lost::Lately) => return Progress::Unsettled,
            Some(Lost::ForGood(error)) => Err(error),
        };
        match &built {
            Ok(Built::Compiling(job)) => {
                if let Some((compiled, meanwhile)) = policy.reconfigurable(&key) {
                    let loaded = pass.builder.reconfigure(place, &compiled, &content, key.mode);
                    self.reconfigured(place, policy, &meanwhile, loaded);
                }
                policy.stage(pass.builder.chronicle.who(place), (key, content.stamps), job.clone());
                return Progress::Compiling;
            }
            Err(error) if pass.patience == Patience::Wait && age < CONTINUE && is_truncated(error) => {
                return Progress::Unsettled;
            }
            _ => {}
        }
        policy.unstage(&key);
        policy.examined = Some((key.clone(), trusted));
        policy.unsettled = None;
        match built {
            Ok(Built::Ready(loaded)) => self.take_in(place, policy, (loaded, key), pass),
            Ok(_) => {
                self.forget_override(place, &key);
                policy.turn_off(place, &pass.builder.chronicle);
            }
            Err(error) => policy.reject(place, Some(key), error, self.context(pass.builder)),
        }
        Progress::Done
    }

    /// A version that may serve does, or is tried first.
    fn take_in(
        &mut self,
        place: &Place,
        policy: &mut Policy,
        (loaded, key): (Arc<Loaded>, ContentKey),
        pass: &mut Pass<'_>,
    ) {
        if let Err(error) = self.put_in_force(place, policy, (loaded, &key)) {
            policy.reject(place, Some(key), error.into(), self.context(pass.builder));
        }
    }

    /// # Errors
    /// It is to be tried first, and as many of its hook are on trial as may be.
    fn put_in_force(
        &mut self,
        place: &Place,
        policy: &mut Policy,
        (loaded, key): (Arc<Loaded>, &ContentKey),
    ) -> Result<(), PolicyError> {
        let debut = self.debut(place, policy, &loaded)?;
        self.forget_override(place, key);
        match debut {
            Debut::Whole { unguarded } => {
                if unguarded {
                    let (hook, plugin) = (place.hook, place.name());
                    tracing::warn!(
                        %hook, plugin,
                        "the canary of a guard is ignored: nothing of it served before, and the rest would be unguarded"
                    );
                }
                policy.accept(loaded, key.clone());
            }
            Debut::Trial => policy.begin_trial(loaded, key.clone()),
        }
        Ok(())
    }

    /// The component that serves has, or has not, taken the settings that changed while a newer one is being compiled.
    fn reconfigured(
        &mut self,
        place: &Place,
        policy: &mut Policy,
        key: &ContentKey,
        result: Result<Arc<Loaded>, Arc<PolicyError>>,
    ) {
        let taken = result.and_then(|loaded| Ok(self.put_in_force(place, policy, (loaded, key))?));
        if let Err(error) = taken {
            let (hook, plugin, why) = (place.hook, place.name(), error.sentence());
            tracing::warn!(%hook, plugin, why, "new settings wait for the new component, which is being compiled");
        }
    }

    pub(super) fn context<'a>(&self, builder: &'a Builder) -> Context<'a> {
        Context { phase: self.phase, chronicle: &builder.chronicle }
    }

    /// What the content is told apart by, with the mode that was chosen for it.
    fn key_of(&self, place: &Place, content: &Content) -> ContentKey {
        let key = content.key();
        match self.overrides.get(place) {
            Some(chosen) if chosen.same_files(&key) => chosen.clone(),
            _ => key,
        }
    }

    /// Modes that an operator chose go with the files that they were chosen for.
    pub(super) fn take_overrides(&mut self, serving: &Directory) {
        for (place, policy) in &mut self.policies {
            if self.overrides.get(place) != serving.overrides.get(place) {
                policy.decide_again();
            }
        }
        self.overrides.clone_from(&serving.overrides);
    }

    /// Ends the modes that were chosen for files that are not in this directory.
    pub(super) fn end_other_overrides(&mut self) {
        let policies = &self.policies;
        self.overrides.retain(|place, chosen| {
            let is_here = policies.get(place).and_then(Policy::newest) == Some(&*chosen);
            if !is_here {
                let (hook, plugin, mode) = (place.hook, place.name(), chosen.mode.unwrap_or_default());
                tracing::warn!(%hook, plugin, %mode, "the mode set by an operator ends: the directory has other files");
            }
            is_here
        });
    }

    /// Other files than those that a mode was chosen for have come into force. What is only examined to serve later forgets
    /// nothing.
    pub(super) fn forget_override(&mut self, place: &Place, key: &ContentKey) {
        if self.phase == Phase::Staged {
            return;
        }
        if key.mode.is_none() && self.overrides.remove(place).is_some() {
            tracing::info!(hook = %place.hook, plugin = place.name(), "changed files: the mode is theirs again");
        }
    }
}

/// Whether the files are old enough, or have been seen unchanged for long enough.
fn has_settled(policy: &mut Policy, stamps: &Stamps) -> bool {
    if stamps.age(SystemTime::now()) >= SETTLE {
        return true;
    }
    match &policy.unsettled {
        Some((seen, since)) if seen == stamps => since.elapsed() >= SETTLE,
        _ => {
            policy.unsettled = Some((stamps.clone(), Instant::now()));
            false
        }
    }
}

/// Whether the beginning of a good file would get this error.
fn is_truncated(error: &PolicyError) -> bool {
    match error {
        PolicyError::Settings { problem, .. } => {
            matches!(problem, SettingsError::Syntax(_) | SettingsError::DigestMismatch { .. })
        }
        error => matches!(
            error,
            PolicyError::Empty | PolicyError::Cut { .. } | PolicyError::Corrupt(_) | PolicyError::NoHook
        ),
    }
}
