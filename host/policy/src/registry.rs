//! Published generations of policies: an atomic pointer to the newest, and weak pointers to those still in use.
use std::collections::HashSet;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use arc_swap::ArcSwap;
use camshaft_core::answering::Answering;
use camshaft_core::canary::CanaryBy;
use camshaft_core::ids::{Generation, PolicyDigest, PolicyName, TenantId};
use camshaft_core::policy::{
    AuthRequest, Authentication, Hook, PolicySet, PolicyStatus, Target, ValidateRequest, Validation,
};

use crate::feeds::Feeds;
use crate::hooks::{auth, validator};
use crate::set::{Chain, LoadedSet};
use crate::view::View;

/// Where clients put their keys, the one that counts first. They tell callers apart before their tenants are known.
const KEYS: [&str; 2] = ["authorization", "x-api-key"];

impl PolicySet for View {
    fn generation(&self) -> Generation {
        self.set.generation
    }

    fn has_auth(&self) -> bool {
        self.chain(Hook::Auth).enforced().next().is_some()
    }

    fn authenticate<'a>(&'a self, request: &'a Arc<AuthRequest>) -> Answering<'a, Authentication> {
        let picks = self.set.picks(Hook::Auth, |canary, salt| match canary.by {
            CanaryBy::Request => canary.chooses(salt, &[&self.set.draw()]),
            CanaryBy::Tenant => canary.chooses(salt, &[caller(request)]),
        });
        Box::pin(auth::authenticate(self.set.variant(Hook::Auth, picks), self.set.allow_anonymous, request))
    }

    fn wants_body_digest(&self) -> bool {
        // Which version is asked is not known yet.
        let policies = self.chain(Hook::Auth).ready().chain(self.set.candidates(Hook::Auth));
        policies.into_iter().any(|policy| policy.sidecar.body_digest)
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
        // The version before takes over if the breaker of one on trial opens.
        let chains = |hook| [self.chain(hook), self.set.chain(hook)];
        let reads = |hook| chains(hook).into_iter().flat_map(Chain::ready).any(|policy| policy.compiled.asks.fields);
        [Hook::Sampler, Hook::Filter].into_iter().any(reads)
    }

    fn assigned(&self, tenant: &TenantId) -> Option<Arc<dyn PolicySet>> {
        if !self.set.has_trials() {
            return None;
        }
        let request = self.set.draw();
        let picks = Hook::ALL.map(|hook| {
            self.set.picks(hook, |canary, salt| match canary.by {
                CanaryBy::Tenant => canary.chooses(salt, &[tenant.as_str().as_bytes()]),
                CanaryBy::Request => canary.chooses(salt, &[&request]),
            })
        });
        Some(Arc::new(Self { set: self.set.clone(), picks }))
    }

    fn samplers(&self, target: Target<'_>) -> Vec<PolicyName> {
        let enforced = self.chain(Hook::Sampler).ready_for(target).filter(|policy| !policy.is_monitored());
        enforced.map(|policy| policy.name.clone()).collect()
    }
}

/// Who calls, as far as that is known before auth: the key that a client sends, or its address. A second header, or a second
/// value, does not choose another version.
fn caller(request: &AuthRequest) -> &[u8] {
    let key =
        |wanted: &&str| request.headers.iter().find(|(name, _)| name == wanted).map(|(_, value)| value.as_slice());
    KEYS.iter().find_map(key).unwrap_or(request.remote_address.as_bytes())
}

/// The policies that serve, and the status of every file.
#[derive(Debug)]
pub(crate) struct Registry {
    current: ArcSwap<LoadedSet>,
    alive: Mutex<Vec<Weak<LoadedSet>>>,
    /// Chains that were asked for in vain since the last publication.
    missing: Mutex<HashSet<(Hook, PolicyDigest)>>,
    statuses: ArcSwap<Vec<PolicyStatus>>,
    /// Told of a generation before it is published.
    feeds: OnceLock<Arc<Feeds>>,
}

impl Registry {
    pub(crate) fn new(allow_anonymous: bool) -> Self {
        let set = Arc::new(LoadedSet::empty(allow_anonymous));
        Self {
            alive: Mutex::new(vec![Arc::downgrade(&set)]),
            current: ArcSwap::new(set),
            missing: Mutex::default(),
            statuses: ArcSwap::default(),
            feeds: OnceLock::new(),
        }
    }

    pub(crate) fn current(&self) -> Arc<LoadedSet> {
        self.current.load_full()
    }

    /// A set with this chain of the hook, if one is still in use, as a request sees it that was assigned that chain. Otherwise
    /// the newest set, with a warning: the chain that the request began with is gone, and the newest is what the operator wants
    /// now.
    pub(crate) fn find(&self, hook: Hook, chain: PolicyDigest) -> View {
        self.find_exact(hook, chain).unwrap_or_else(|| {
            let current = self.current();
            self.tell_of_missing(hook, chain, current.chain(hook).digest);
            View::stable(current)
        })
    }

    /// The same; `None`: nobody has that chain.
    pub(crate) fn find_exact(&self, hook: Hook, chain: PolicyDigest) -> Option<View> {
        let current = std::iter::once_with(|| self.current());
        let sets = current.chain(std::iter::once_with(|| self.alive()).flatten());
        let (picks, set) = sets.into_iter().find_map(|set| Some((set.find(hook, chain)?, set)))?;
        Some(View::stable(set).with(hook, picks))
    }

    /// Warns once of each chain until the policies change again.
    fn tell_of_missing(&self, hook: Hook, chain: PolicyDigest, instead: PolicyDigest) {
        let mut told = self.missing.lock().unwrap_or_else(PoisonError::into_inner);
        if told.insert((hook, chain)) {
            tracing::warn!(%hook, %chain, %instead, "a chain that a request began under is gone: the newest serves it");
        }
    }

    /// Generations that serve or that requests still use.
    pub(crate) fn generations(&self) -> usize {
        let alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.iter().filter(|set| set.strong_count() > 0).count()
    }

    /// Those generations, the newest last.
    pub(crate) fn alive(&self) -> Vec<Arc<LoadedSet>> {
        self.alive.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect()
    }

    /// Processes that have copies have this one before a request can begin under it.
    pub(crate) fn publish(&self, set: LoadedSet) {
        self.publish_shared(Arc::new(set));
    }

    /// The same of one that somebody has already.
    pub(crate) fn publish_shared(&self, set: Arc<LoadedSet>) {
        self.keep(&set);
        if let Some(feeds) = self.feeds.get() {
            feeds.sync();
        }
        self.missing.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.current.store(set);
        // Whether anybody has the one before is found out then.
        if let Some(feeds) = self.feeds.get() {
            feeds.bump();
        }
    }

    /// Finds it as long as somebody has it.
    pub(crate) fn keep(&self, set: &Arc<LoadedSet>) {
        let mut alive = self.alive.lock().unwrap_or_else(PoisonError::into_inner);
        alive.retain(|set| set.strong_count() > 0);
        alive.push(Arc::downgrade(set));
    }

    /// Tells these before it publishes.
    pub(crate) fn tell(&self, feeds: Arc<Feeds>) {
        // Once, before anything is published.
        let _ = self.feeds.set(feeds);
    }

    pub(crate) fn statuses(&self) -> Arc<Vec<PolicyStatus>> {
        self.statuses.load_full()
    }

    pub(crate) fn set_statuses(&self, statuses: Vec<PolicyStatus>) {
        self.statuses.store(Arc::new(statuses));
    }
}
