//! Serving what another directory holds: all of it, or nothing.
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use camshaft_core::policy::Hook;

use super::directory::{Directory, scan_settled};
use super::loader::Loader;
use super::policy::Phase;
use crate::error::PolicyError;
use crate::files::Place;
use crate::grants::Grants;
use crate::set::LoadedSet;
use crate::sidecar::Sidecar;
use crate::spec::spec;

/// Whether a relocation happens: the one who takes the claim first decides, the watcher that is about to do it or the
/// asker who gives up.
#[derive(Debug, Clone, Default)]
pub(crate) struct Claim(Arc<AtomicBool>);

impl Claim {
    /// Whether nobody had it.
    pub(crate) fn take(&self) -> bool {
        !self.0.swap(true, Ordering::SeqCst)
    }
}

/// What a directory must have to serve instead of the present one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demands {
    /// An auth policy in force, because callers that are not local may come.
    pub auth: bool,
    /// A policy in force for each hook that guards and has one now.
    pub same_guards: bool,
}

/// A directory that is to serve instead of the present one.
#[derive(Debug)]
pub(crate) struct Relocation {
    directory: Directory,
    demands: Demands,
    /// They hold for what is in the directory, and for all once that serves.
    grants: Grants,
    claim: Claim,
}

impl Relocation {
    /// # Errors
    /// At start a missing directory holds no policies; later it is more likely a typing error than a wish, and so is one that
    /// holds something else, or nothing because it is not mounted.
    pub(crate) fn new(dir: PathBuf, demands: Demands, grants: Grants, claim: Claim) -> Result<Self, PolicyError> {
        if !Hook::ALL.iter().any(|hook| dir.join(hook.as_str()).is_dir()) {
            return Err(PolicyError::NoPolicyDirectory { path: dir });
        }
        Ok(Self { directory: Directory::new(dir, Phase::Staged), demands, grants, claim })
    }

    /// What its asker is told if it does not happen because of something newer.
    pub(crate) fn superseded(&self) -> PolicyError {
        PolicyError::Superseded { path: self.directory.path.clone() }
    }

    /// Serves the directory in one step. Policies of the same name keep their state. `None`: its components are being
    /// compiled; try again when one is done.
    ///
    /// # Errors
    /// The directory cannot be read, a policy in it cannot serve, or its asker gave up; what serves then stays as it was.
    pub(crate) fn attempt(&mut self, loader: &mut Loader) -> Option<Result<(), PolicyError>> {
        self.directory.unread = None;
        self.directory.take_overrides(&loader.directory);
        loader.builder.examine_under(Some(self.grants.clone()));
        let scan = scan_settled(|patience| self.directory.scan(&mut loader.builder, patience));
        loader.builder.examine_under(None);
        // What has vanished once is not known to the next attempt.
        if scan.compiling && self.directory.unread.is_none() {
            return None;
        }
        let valid = self.validate(&loader.registry.current()).and_then(|()| self.keeps_settings(&loader.directory));
        // Last: nothing can fail from here on.
        if let Err(error) = valid.and_then(|()| if self.claim.take() { Ok(()) } else { Err(self.superseded()) }) {
            loader.builder.forget_others(loader.directory.policies.keys());
            return Some(Err(error));
        }
        self.directory.phase = Phase::Serving;
        self.directory.end_other_overrides();
        std::mem::swap(&mut self.directory, &mut loader.directory);
        for (place, policy) in &mut self.directory.policies {
            policy.leave(place, &loader.builder.chronicle);
        }
        loader.builder.forget_others(loader.directory.policies.keys());
        loader.builder.set_grants(self.grants.clone());
        loader.publish();
        loader.tell();
        let (dir, policies) = (loader.dir().display(), loader.directory.policies.len());
        tracing::info!(%dir, policies, "policies of another directory serve");
        Some(Ok(()))
    }

    /// Whether what was examined may serve.
    fn validate(&mut self, current: &LoadedSet) -> Result<(), PolicyError> {
        if let Some(error) = self.directory.unread.take() {
            return Err(error);
        }
        let mut policies = self.directory.policies.values();
        if let Some((path, error)) =
            policies.find_map(|policy| policy.error.as_ref().map(|error| (&policy.file, error)))
        {
            return Err(PolicyError::Relocation { path: path.clone(), source: error.clone() });
        }
        let (set, path) = (LoadedSet::after(current, self.directory.seats()), &self.directory.path);
        if self.demands.auth && !set.has_auth() {
            return Err(PolicyError::NoAuth { path: path.clone() });
        }
        let guarded = |set: &LoadedSet, hook: Hook| set.chain(hook).enforced().next().is_some();
        let mut guards = Hook::ALL.into_iter().filter(|hook| spec(*hook).guards && guarded(current, *hook));
        if let Some(hook) = guards.find(|hook| self.demands.same_guards && !guarded(&set, *hook)) {
            return Err(PolicyError::Unguards { path: path.clone(), hook });
        }
        Ok(())
    }

    /// Whether no guard that has settings, or a `[match]`, would serve without any: they may be lost on their way to this
    /// directory.
    fn keeps_settings(&self, before: &Directory) -> Result<(), PolicyError> {
        fn settled(directory: &Directory) -> impl Iterator<Item = (&Place, &Sidecar)> {
            let guards = directory.policies.iter().filter(|(place, _)| spec(place.hook).guards);
            guards.filter_map(|(place, policy)| Some((place, policy.settled()?.0)))
        }
        let is_same = |one: &Place, other: &Place| (one.hook, one.name()) == (other.hook, other.name());
        let lost = settled(&self.directory).find(|(place, sidecar)| {
            settled(before).any(|(other, before)| is_same(other, place) && before.is_lost_in(sidecar))
        });
        match lost {
            Some((place, _)) if self.demands.same_guards => {
                let (path, plugin) = (self.directory.path.clone(), place.name().to_owned());
                Err(PolicyError::Unsettles { path, hook: place.hook, plugin })
            }
            _ => Ok(()),
        }
    }
}
