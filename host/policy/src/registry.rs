//! Published generations of policies: an atomic pointer to the newest, and weak pointers to those still in use.
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;
use camshaft_core::answering::Answering;
use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{
    AuthRequest, Authentication, Hook, PolicySet, PolicyStatus, Target, ValidateRequest, Validation,
};

use crate::hooks::{auth, validator};
use crate::set::LoadedSet;

impl PolicySet for LoadedSet {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn has_auth(&self) -> bool {
        self.enforced(Hook::Auth).next().is_some()
    }

    fn authenticate<'a>(&'a self, request: &'a Arc<AuthRequest>) -> Answering<'a, Authentication> {
        Box::pin(auth::authenticate(self, request))
    }

    fn wants_body_digest(&self) -> bool {
        self.ready(Hook::Auth).any(|policy| policy.sidecar.body_digest)
    }

    fn validators(&self) -> usize {
        self.chain(Hook::Validator).links.len()
    }

    fn validates(&self, index: usize, target: Target<'_>) -> bool {
        self.chain(Hook::Validator).links.get(index).is_some_and(|link| link.matching().admits(target))
    }

    fn validate(&self, index: usize, request: &Arc<ValidateRequest>) -> Answering<'static, Validation> {
        let link = self.chain(Hook::Validator).links.get(index).cloned();
        Box::pin(validator::validate(link, request.clone()))
    }

    fn sampler_chain(&self) -> PolicyDigest {
        self.chain(Hook::Sampler).digest
    }

    fn filter_chain(&self) -> PolicyDigest {
        self.chain(Hook::Filter).digest
    }

    fn keeps_bodies(&self) -> bool {
        [Hook::Sampler, Hook::Filter].into_iter().any(|hook| self.ready(hook).any(|policy| policy.compiled.asks.fields))
    }

    fn samplers(&self, target: Target<'_>) -> Vec<PolicyName> {
        let enforced = self.ready_for(Hook::Sampler, target).filter(|policy| !policy.is_monitored());
        enforced.map(|policy| policy.name.clone()).collect()
    }
}

/// The policies that serve, and the status of every file.
#[derive(Debug)]
pub(crate) struct Registry {
    current: ArcSwap<LoadedSet>,
    alive: Mutex<Vec<Weak<LoadedSet>>>,
    /// Chains that were asked for in vain since the last publication.
    missing: Mutex<HashSet<(Hook, PolicyDigest)>>,
    statuses: ArcSwap<Vec<PolicyStatus>>,
}

impl Registry {
    pub(crate) fn new(allow_anonymous: bool) -> Self {
        let set = Arc::new(LoadedSet::empty(allow_anonymous));
        Self {
            alive: Mutex::new(vec![Arc::downgrade(&set)]),
            current: ArcSwap::new(set),
            missing: Mutex::default(),
            statuses: ArcSwap::default(),
        }
    }

    pub(crate) fn current(&self) -> Arc<LoadedSet> {
        self.current.load_full()
    }

    /// A set with this chain of the hook, if one is still in use. Otherwise the newest set, with a warning: the chain that
    /// the request began with is gone, and the newest is what the operator wants now.
    pub(crate) fn find(&self, hook: Hook, chain: PolicyDigest) -> Arc<LoadedSet> {
        let current = self.current();
        if current.chain(hook).digest == chain {
            return current;
        }
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let found = alive.iter().filter_map(Weak::upgrade).find(|set| set.chain(hook).digest == chain);
        drop(alive);
        found.unwrap_or_else(|| {
            self.tell_of_missing(hook, chain, current.chain(hook).digest);
            current
        })
    }

    /// Warns once of each chain until the policies change again.
    fn tell_of_missing(&self, hook: Hook, chain: PolicyDigest, instead: PolicyDigest) {
        let mut told = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if told.insert((hook, chain)) {
            tracing::warn!(%hook, %chain, %instead, "a chain that a request began under is gone: the newest serves it");
        }
    }

    pub(crate) fn publish(&self, set: LoadedSet) {
        let set = Arc::new(set);
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.retain(|set| set.strong_count() > 0);
        alive.push(Arc::downgrade(&set));
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.current.store(set);
    }

    pub(crate) fn statuses(&self) -> Arc<Vec<PolicyStatus>> {
        self.statuses.load_full()
    }

    pub(crate) fn set_statuses(&self, statuses: Vec<PolicyStatus>) {
        self.statuses.store(Arc::new(statuses));
    }
}
