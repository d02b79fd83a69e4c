//! Published generations of policies: one atomic pointer to the newest, weak ones to those still in use.
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use arc_swap::ArcSwap;
use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{AuthOutcome, AuthRequest, PolicySet, PolicyStatus, ValidateOutcome, ValidateRequest};
use sha2::{Digest, Sha256};

use crate::hooks::auth::Broken;
use crate::hooks::{auth, validator};
use crate::loaded::Loaded;

/// One place of a chain in which a request must get an answer.
#[derive(Debug, Clone)]
pub(crate) enum Link {
    Ready(Arc<Loaded>),
    Broken(Arc<Broken>),
}

impl Link {
    fn same(&self, other: &Link) -> bool {
        match (self, other) {
            (Link::Ready(a), Link::Ready(b)) => Arc::ptr_eq(a, b),
            (Link::Broken(a), Link::Broken(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// All policies of one generation. Immutable.
pub(crate) struct LoadedSet {
    pub(crate) generation: Generation,
    pub(crate) auth: Vec<Link>,
    pub(crate) auth_monitors: Vec<Arc<Loaded>>,
    /// Monitored ones among them, so that they see the request where they stand in the chain.
    pub(crate) validators: Vec<Link>,
    pub(crate) samplers: Vec<Arc<Loaded>>,
    /// What the samplers are, in their order.
    pub(crate) sampler_chain: PolicyDigest,
    pub(crate) scheduler: Option<Arc<Loaded>>,
    /// The generation that brought the scheduler in.
    pub(crate) scheduler_generation: Generation,
    pub(crate) allow_anonymous: bool,
}

impl fmt::Debug for LoadedSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadedSet")
            .field("generation", &self.generation)
            .field("auth", &self.auth.len())
            .field("validators", &self.validators.len())
            .field("samplers", &self.samplers.len())
            .field("scheduler", &self.scheduler.as_ref().map(|policy| &policy.name))
            .finish_non_exhaustive()
    }
}

impl LoadedSet {
    /// No policies: the native defaults.
    pub(crate) fn empty(allow_anonymous: bool) -> Self {
        Self {
            generation: Generation(0),
            auth: Vec::new(),
            auth_monitors: Vec::new(),
            validators: Vec::new(),
            samplers: Vec::new(),
            sampler_chain: PolicyDigest::NATIVE,
            scheduler: None,
            scheduler_generation: Generation(0),
            allow_anonymous,
        }
    }

    /// Gives the chains that workers ask for their digests.
    pub(crate) fn name_chains(&mut self) {
        self.sampler_chain = chain_digest(self.samplers.iter().map(|policy| &**policy));
    }

    /// Whether both hold the same loads in the same places.
    pub(crate) fn same(&self, other: &LoadedSet) -> bool {
        let links = |a: &[Link], b: &[Link]| a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.same(b));
        let loads = |a: &[Arc<Loaded>], b: &[Arc<Loaded>]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        links(&self.auth, &other.auth)
            && loads(&self.auth_monitors, &other.auth_monitors)
            && links(&self.validators, &other.validators)
            && loads(&self.samplers, &other.samplers)
            && self.same_scheduler(other)
    }

    pub(crate) fn same_scheduler(&self, other: &LoadedSet) -> bool {
        match (&self.scheduler, &other.scheduler) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        }
    }
}

/// The digest of a chain: of each policy its name, its component and everything that its settings file says.
fn chain_digest<'a>(chain: impl Iterator<Item = &'a Loaded>) -> PolicyDigest {
    let mut hash = Sha256::new();
    let mut empty = true;
    for policy in chain {
        empty = false;
        let sidecar = &policy.sidecar;
        let deadline_us = sidecar.deadline.as_micros().to_string();
        let memory_bytes = sidecar.memory_bytes.to_string();
        let on_fault = sidecar.on_fault.as_str();
        for part in
            [policy.name.as_str(), &policy.compiled.digest, &sidecar.settings, &deadline_us, &memory_bytes, on_fault]
        {
            // With its length in front, no two lists of parts are the same bytes.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    if empty { PolicyDigest::NATIVE } else { PolicyDigest::new(hash.finalize().into()) }
}

impl PolicySet for LoadedSet {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn has_auth(&self) -> bool {
        !self.auth.is_empty()
    }

    fn authenticate(&self, request: &AuthRequest) -> AuthOutcome {
        auth::authenticate(self, request)
    }

    fn validators(&self) -> usize {
        self.validators.len()
    }

    fn validate(&self, index: usize, request: &ValidateRequest) -> ValidateOutcome {
        validator::validate(self, index, request)
    }

    fn sampler_chain(&self) -> PolicyDigest {
        self.sampler_chain
    }

    fn samplers(&self) -> Vec<PolicyName> {
        self.samplers.iter().map(|policy| policy.name.clone()).collect()
    }
}

/// What serves, and what is known of every file.
#[derive(Debug)]
pub(crate) struct Registry {
    current: ArcSwap<LoadedSet>,
    alive: Mutex<Vec<Weak<LoadedSet>>>,
    statuses: ArcSwap<Vec<PolicyStatus>>,
}

impl Registry {
    pub(crate) fn new(allow_anonymous: bool) -> Self {
        let set = Arc::new(LoadedSet::empty(allow_anonymous));
        Self { alive: Mutex::new(vec![Arc::downgrade(&set)]), current: ArcSwap::new(set), statuses: ArcSwap::default() }
    }

    pub(crate) fn current(&self) -> Arc<LoadedSet> {
        self.current.load_full()
    }

    /// A set with this sampler chain if somebody still uses one; the newest otherwise.
    pub(crate) fn find(&self, sampler_chain: PolicyDigest) -> Arc<LoadedSet> {
        let current = self.current();
        if current.sampler_chain == sampler_chain {
            return current;
        }
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        let found = alive.iter().filter_map(Weak::upgrade).find(|set| set.sampler_chain == sampler_chain);
        found.unwrap_or(current)
    }

    pub(crate) fn publish(&self, set: LoadedSet) {
        let set = Arc::new(set);
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.retain(|set| set.strong_count() > 0);
        alive.push(Arc::downgrade(&set));
        self.current.store(set);
    }

    pub(crate) fn statuses(&self) -> Arc<Vec<PolicyStatus>> {
        self.statuses.load_full()
    }

    pub(crate) fn set_statuses(&self, statuses: Vec<PolicyStatus>) {
        self.statuses.store(Arc::new(statuses));
    }
}
