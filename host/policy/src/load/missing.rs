//! Policies whose files are gone: which of them serve all the same, and how an operator ends them.
use std::collections::BTreeSet;
use std::time::Instant;

use camshaft_core::policy::{Hook, PolicyStatus};

use super::arrivals::{Arrivals, Seen};
use super::builder::Builder;
use super::directory::{Directory, Lost, Pass};
use super::policy::{Missing, Policy};
use crate::error::{PolicyError, SettingsError};
use crate::files::{Content, Files, Place};
use crate::sidecar::Sidecar;
use crate::spec::spec;

impl Directory {
    /// For each hook, how many policies serve although their files cannot be seen.
    pub(crate) fn missing(&self) -> impl Iterator<Item = (Hook, usize)> {
        Hook::ALL.into_iter().map(|hook| {
            let missing = |(place, policy): &(&Place, &Policy)| place.hook == hook && policy.is_missing();
            (hook, self.policies.iter().filter(missing).count())
        })
    }

    /// Decides on the policies whose files are not listed. `missing`: why nobody may have meant to remove them.
    pub(super) fn let_go(&mut self, hook: Hook, missing: Option<&Missing>, arrivals: &Arrivals, pass: &mut Pass<'_>) {
        let known = self.policies.keys().filter(|place| place.hook == hook);
        let gone: Vec<Place> = known.filter(|place| !arrivals.listed.contains(place)).cloned().collect();
        let steady = self.steady(hook, arrivals);
        for place in gone {
            let Some(policy) = self.policies.get_mut(&place) else { continue };
            let serves = policy.link().is_some();
            if let Some(missing) = missing.filter(|_| serves) {
                policy.go_missing(&place, missing.clone());
                continue;
            }
            // The rest of what was there may be on its way.
            if policy.is_missing() && !steady {
                pass.found.unsettled = true;
                continue;
            }
            if self.awaits_successor(&place, arrivals) {
                continue;
            }
            if serves && self.is_last_guard(&place, &arrivals.listed) {
                self.policies.entry(place.clone()).or_default().go_missing(&place, Missing::LastGuard);
                continue;
            }
            self.remove(&place, pass.builder);
        }
    }

    /// Between a guard that goes and one that comes there must not be a moment without either, and one that comes but is
    /// rejected replaces nothing. Files that were rejected before the guard's was removed are no replacement.
    fn awaits_successor(&mut self, place: &Place, arrivals: &Arrivals) -> bool {
        let Some(policy) = self.policies.get_mut(place).filter(|policy| policy.link().is_some()) else { return false };
        if !spec(place.hook).guards {
            return false;
        }
        policy.successors.extend(arrivals.came.iter().cloned());
        if let Some(rejected) = arrivals.rejected.iter().find(|place| policy.successors.contains(place)) {
            policy.stay(place, &format!("{}.wasm", rejected.stem));
            return true;
        }
        !arrivals.pending.is_empty()
    }

    /// Whether the hook's folder has been as it is for long enough that what is missing in it will not come back.
    fn steady(&mut self, hook: Hook, arrivals: &Arrivals) -> bool {
        let (places, settled) = (&arrivals.listed, arrivals.pending.is_empty());
        let seen = &mut self.seen[hook as usize];
        match seen {
            Some(seen) if seen.places == *places && settled => seen.since.elapsed() >= self.returns_after,
            _ => {
                *seen = Some(Seen { places: places.clone(), since: Instant::now() });
                self.returns_after.is_zero()
            }
        }
    }

    /// The settings file of a guard under the name of this place, and where: here, or, if it is renumbered, at the place that
    /// it had.
    fn settled_guard<'a>(&'a self, place: &'a Place, policy: &'a Policy) -> Option<(&'a Place, &'a Sidecar)> {
        let before = |(other, known): (&'a Place, &'a Policy)| {
            let is_same = other != place && other.hook == place.hook && other.name() == place.name();
            is_same.then_some((other, known.settled()?))
        };
        let settled = policy.settled().map(|settled| (place, settled));
        let (at, (sidecar, of)) = settled.or_else(|| self.policies.iter().find_map(before))?;
        (spec(place.hook).guards && of.has_settings()).then_some((at, sidecar))
    }

    /// Whether a guard that serves with settings has lost them so recently that they may still come: a directory that is copied
    /// back, and a policy that is renumbered, come file by file, and without settings the guard may let more through.
    pub(super) fn awaits_settings(&self, place: &Place, policy: &mut Policy, files: &Files) -> bool {
        let guard = self.settled_guard(place, policy).filter(|_| files.sidecar.is_none());
        let Some(at) = guard.map(|(at, _)| at.clone()) else {
            policy.bare = None;
            return false;
        };
        if policy.bare.is_none() {
            let (hook, plugin, came, before) = (place.hook, place.name(), &place.stem, &at.stem);
            if at == *place {
                tracing::warn!(%hook, plugin, "the policy's settings file is gone; without it the defaults will soon be in force");
            } else {
                tracing::warn!(%hook, plugin, came, before, "the policy came to another place without its settings file");
            }
        }
        policy.bare.get_or_insert_with(Instant::now).elapsed() < self.returns_after
    }

    /// Whether a guard's settings file has lost the settings that it serves with: a file that is cut, by a full disk or in
    /// the midst of being written, may let more through. So may a guard that was renumbered and left its settings file
    /// behind. `None`: it has not. Until the file has had time to be written whole, nothing is decided.
    pub(super) fn lost_settings(&self, place: &Place, policy: &mut Policy, content: &Content) -> Option<Lost> {
        let (at, sidecar) = self.settled_guard(place, policy)?;
        let problem = match content.sidecar.as_deref() {
            Some(bytes) if sidecar.is_cut_to(bytes) => Some(SettingsError::Emptied),
            None if at != place => Some(SettingsError::LeftBehind { at: at.stem.clone() }),
            _ => None,
        };
        let Some(problem) = problem else {
            policy.emptied = None;
            return None;
        };
        // What is not there was waited for already.
        let is_there = content.sidecar.is_some();
        if is_there && policy.emptied.get_or_insert_with(Instant::now).elapsed() < self.returns_after {
            return Some(Lost::Lately);
        }
        Some(Lost::ForGood(PolicyError::Settings { file: place.sidecar_name(), line: None, problem }.into()))
    }

    /// Whether its hook would guard nothing without it.
    fn is_last_guard(&self, place: &Place, listed: &BTreeSet<Place>) -> bool {
        let enforces = self.policies.get(place).is_some_and(Policy::enforces);
        let of_hook = |other: &Place| other.hook == place.hook && listed.contains(other);
        let mut others = self.policies.iter().filter(|(other, _)| of_hook(other));
        spec(place.hook).guards && enforces && !others.any(|(_, policy)| policy.enforces())
    }

    /// Takes a policy out of service whose file is missing, as an operator asks. Returns how it stands then.
    pub(super) fn end_missing(&mut self, hook: Hook, name: &str, builder: &mut Builder) -> Option<PolicyStatus> {
        let is_it =
            |(place, policy): &(&Place, &Policy)| place.hook == hook && place.name() == name && policy.is_missing();
        let place = self.policies.iter().find(is_it)?.0.clone();
        let mut policy = self.policies.remove(&place)?;
        self.overrides.remove(&place);
        policy.turn_off(&place, &builder.chronicle);
        builder.forget_others(self.policies.keys());
        policy.status(&place, false)
    }
}
