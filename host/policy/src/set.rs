//! One published generation of policies: the chain of each hook, in file order.
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use camshaft_core::canary::CanarySettings;
use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{Fault, FaultKind, Hook, Target};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::loaded::Loaded;
use crate::matching::Matching;
use crate::metrics::{LinkMetrics, Outcome};
use crate::spec::OnFault;

/// The hooks that are asked beside the logits.
pub(crate) const HOOKS: [Hook; 2] = [Hook::Sampler, Hook::Filter];

/// The chains of one generation, in the order of [`HOOKS`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SetCopy {
    pub(crate) generation: Generation,
    pub(crate) hooks: [ChainsCopy; HOOKS.len()],
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ChainsCopy {
    pub(crate) variants: Vec<(PolicyDigest, Vec<LinkCopy>)>,
    /// Numbers of loads.
    pub(crate) candidates: Vec<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum LinkCopy {
    Ready(u64),
    Broken { name: PolicyName, on_fault: OnFault, matching: Matching, why: String },
}

/// A guard whose file could not be loaded. It keeps its place in the chain and faults, so it refuses everything.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) name: PolicyName,
    pub(crate) on_fault: OnFault,
    /// What it would be asked about, as far as its settings can be read.
    pub(crate) matching: Matching,
    pub(crate) why: String,
    pub(crate) metrics: LinkMetrics,
}

impl Broken {
    pub(crate) fn fault(&self) -> Fault {
        self.metrics.count(Outcome::Fault(FaultKind::Unavailable));
        Fault { plugin: self.name.clone(), kind: FaultKind::Unavailable, detail: self.why.clone() }
    }
}

/// One policy of a chain.
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

    /// The policy, if it could be loaded.
    pub(crate) fn ready(&self) -> Option<&Arc<Loaded>> {
        match self {
            Link::Ready(loaded) => Some(loaded),
            Link::Broken(_) => None,
        }
    }

    /// The requests that it is asked about.
    pub(crate) fn matching(&self) -> &Matching {
        match self {
            Link::Ready(loaded) => &loaded.sidecar.matching,
            Link::Broken(broken) => &broken.matching,
        }
    }

    /// Whether its answers are only recorded.
    pub(crate) fn is_monitor(&self) -> bool {
        self.ready().is_some_and(|loaded| loaded.is_monitored())
    }
}

/// The policies of one hook.
#[derive(Debug, Clone)]
pub(crate) struct Chain {
    /// Enforced and monitored ones, so that monitored ones see what enforced ones see.
    pub(crate) links: Vec<Link>,
    /// Digest of the chain.
    pub(crate) digest: PolicyDigest,
}

impl Chain {
    fn of(links: Vec<Link>) -> Self {
        Self { digest: digest(&links), links }
    }

    fn same(&self, other: &Chain) -> bool {
        self.links.len() == other.links.len() && self.links.iter().zip(&other.links).all(|(a, b)| a.same(b))
    }

    /// The enforced policies, broken ones included.
    pub(crate) fn enforced(&self) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(|link| !link.is_monitor())
    }

    /// The policies that could be loaded.
    pub(crate) fn ready(&self) -> impl DoubleEndedIterator<Item = &Arc<Loaded>> {
        self.links.iter().filter_map(Link::ready)
    }

    /// Those that such requests concern.
    pub(crate) fn ready_for<'a>(&'a self, target: Target<'a>) -> impl Iterator<Item = &'a Arc<Loaded>> {
        self.ready().filter(move |policy| policy.sidecar.matching.admits(target))
    }

    /// Of schedulers, the one that decides in the model's pool: the last enforced one that matches it.
    pub(crate) fn scheduler(&self, model: &str) -> Option<&Arc<Loaded>> {
        self.last_scheduler(model, false)
    }

    /// The one that is monitored in the model's pool: the last one in that mode that matches it.
    pub(crate) fn monitored_scheduler(&self, model: &str) -> Option<&Arc<Loaded>> {
        self.last_scheduler(model, true)
    }

    fn last_scheduler(&self, model: &str, monitored: bool) -> Option<&Arc<Loaded>> {
        let is_it =
            |policy: &&Arc<Loaded>| policy.is_monitored() == monitored && policy.sidecar.matching.admits_model(model);
        self.ready().rfind(is_it)
    }
}

/// New versions of a hook's policies that are on trial at once.
pub(crate) const TRIALS_MAX: usize = 4;

/// Which of the new versions that are on trial serve: a bit for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Picks(u8);

/// What one policy file has in a generation.
#[derive(Debug)]
pub(crate) struct Seat {
    pub(crate) link: Option<Link>,
    /// A new version that is on trial beside it.
    pub(crate) candidate: Option<Arc<Loaded>>,
}

/// The chains of one hook: what served before, and each combination of new versions with it.
#[derive(Debug)]
struct Chains {
    /// One for each value of `Picks`; the first has no new version.
    variants: Vec<Chain>,
    /// At most `TRIALS_MAX`.
    candidates: Vec<Arc<Loaded>>,
}

impl Chains {
    fn of(seats: &[Seat]) -> Self {
        let candidates: Vec<Arc<Loaded>> =
            seats.iter().filter_map(|seat| seat.candidate.clone()).take(TRIALS_MAX).collect();
        let variant = |picks: usize| {
            let mut number = 0;
            let links = seats.iter().filter_map(|seat| {
                let Some(candidate) = &seat.candidate else { return seat.link.clone() };
                let picked = number < candidates.len() && picks >> number & 1 == 1;
                number += 1;
                if picked { Some(Link::Ready(candidate.clone())) } else { seat.link.clone() }
            });
            Chain::of(links.collect())
        };
        Self { variants: (0..1 << candidates.len()).map(variant).collect(), candidates }
    }

    fn same(&self, other: &Chains) -> bool {
        self.variants.len() == other.variants.len() && self.variants.iter().zip(&other.variants).all(|(a, b)| a.same(b))
    }
}

/// All policies of one generation. Immutable once published.
pub(crate) struct LoadedSet {
    pub(crate) generation: Generation,
    pub(crate) allow_anonymous: bool,
    /// In the order of `Hook::ALL`.
    chains: [Chains; Hook::ALL.len()],
    draws: Draws,
}

/// Numbers that stand for requests where trials choose among these. Nothing that a client sends is in them, and whoever sees
/// some of the choices cannot tell the next.
#[derive(Debug, Default)]
struct Draws {
    key: RandomState,
    next: AtomicU64,
}

impl fmt::Debug for LoadedSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("LoadedSet");
        out.field("generation", &self.generation);
        for hook in Hook::ALL {
            out.field(hook.as_str(), &self.chain(hook).links.len());
        }
        out.finish_non_exhaustive()
    }
}

impl LoadedSet {
    /// No policies: the native defaults.
    pub(crate) fn empty(allow_anonymous: bool) -> Self {
        Self {
            generation: Generation(0),
            allow_anonymous,
            chains: Hook::ALL.map(|_| Chains::of(&[])),
            draws: Draws::default(),
        }
    }

    /// The generation after `current`, made of these seats in file order.
    pub(crate) fn after(current: &LoadedSet, seats: impl IntoIterator<Item = (Hook, Seat)>) -> Self {
        let mut of_hook: [Vec<Seat>; Hook::ALL.len()] = Default::default();
        for (hook, seat) in seats {
            of_hook[hook as usize].push(seat);
        }
        let generation = Generation(current.generation.0 + 1);
        let (chains, draws) = (of_hook.map(|seats| Chains::of(&seats)), Draws::default());
        Self { generation, allow_anonymous: current.allow_anonymous, chains, draws }
    }

    /// What served before, wherever something is on trial.
    pub(crate) fn chain(&self, hook: Hook) -> &Chain {
        self.variant(hook, Picks::default())
    }

    /// The chain in which these new versions serve.
    pub(crate) fn variant(&self, hook: Hook, picks: Picks) -> &Chain {
        let variants = &self.chains[hook as usize].variants;
        // There is always the first.
        &variants[if usize::from(picks.0) < variants.len() { usize::from(picks.0) } else { 0 }]
    }

    /// The new versions of a hook that serve whom `chooses` says, by what each file says of its trial and its salt.
    pub(crate) fn picks(&self, hook: Hook, chooses: impl Fn(&CanarySettings, u64) -> bool) -> Picks {
        self.picks_if(hook, |_, candidate| {
            candidate.sidecar.canary.is_some_and(|canary| chooses(&canary, candidate.salt()))
        })
    }

    /// Those of these versions that still serve.
    pub(crate) fn still_serving(&self, hook: Hook, picks: Picks) -> Picks {
        self.picks_if(hook, |bit, _| picks.0 >> bit & 1 == 1)
    }

    /// A version whose breaker has opened serves nobody any more.
    fn picks_if(&self, hook: Hook, serves: impl Fn(usize, &Loaded) -> bool) -> Picks {
        let candidates = self.candidates(hook).iter().enumerate();
        Picks(candidates.fold(0, |picks, (bit, candidate)| {
            let serves = !candidate.health.has_opened() && serves(bit, candidate);
            if serves { picks | 1 << bit } else { picks }
        }))
    }

    /// A number that stands for a request.
    pub(crate) fn draw(&self) -> [u8; 8] {
        self.draws.key.hash_one(self.draws.next.fetch_add(1, Ordering::Relaxed)).to_le_bytes()
    }

    /// The chain with this digest.
    pub(crate) fn find(&self, hook: Hook, digest: PolicyDigest) -> Option<Picks> {
        let variants = &self.chains[hook as usize].variants;
        let found = variants.iter().position(|chain| chain.digest == digest)?;
        u8::try_from(found).ok().map(Picks)
    }

    /// All loads of the hook, those on trial with them.
    pub(crate) fn loads(&self, hook: Hook) -> impl Iterator<Item = &Arc<Loaded>> {
        self.ready(hook).chain(self.candidates(hook))
    }

    /// For another process.
    pub(crate) fn copy(&self) -> SetCopy {
        let link = |link: &Link| match link {
            Link::Ready(load) => LinkCopy::Ready(load.number),
            Link::Broken(broken) => LinkCopy::Broken {
                name: broken.name.clone(),
                on_fault: broken.on_fault,
                matching: broken.matching.clone(),
                why: broken.why.clone(),
            },
        };
        let hooks = HOOKS.map(|hook| {
            let Chains { variants, candidates } = &self.chains[hook as usize];
            let variant = |chain: &Chain| (chain.digest, chain.links.iter().map(link).collect());
            ChainsCopy {
                variants: variants.iter().map(variant).collect(),
                candidates: candidates.iter().map(|load| load.number).collect(),
            }
        });
        SetCopy { generation: self.generation, hooks }
    }

    /// One of another process. `link` finds what it speaks of.
    pub(crate) fn of_copy(copy: SetCopy, link: impl Fn(LinkCopy) -> Option<Link>) -> Self {
        let mut set = Self { generation: copy.generation, ..Self::empty(false) };
        for (hook, ChainsCopy { variants, candidates }) in HOOKS.into_iter().zip(copy.hooks) {
            let chain =
                |(digest, links): (_, Vec<_>)| Chain { links: links.into_iter().filter_map(&link).collect(), digest };
            let candidate = |number| link(LinkCopy::Ready(number))?.ready().cloned();
            let candidates = candidates.into_iter().filter_map(candidate).collect();
            set.chains[hook as usize] = Chains { variants: variants.into_iter().map(chain).collect(), candidates };
        }
        set
    }

    /// The new versions of a hook that are on trial.
    pub(crate) fn candidates(&self, hook: Hook) -> &[Arc<Loaded>] {
        &self.chains[hook as usize].candidates
    }

    pub(crate) fn has_trials(&self) -> bool {
        self.chains.iter().any(|chains| !chains.candidates.is_empty())
    }

    /// Whether an auth policy is in force.
    pub(crate) fn has_auth(&self) -> bool {
        self.chain(Hook::Auth).enforced().next().is_some()
    }

    /// The policies of the hook that could be loaded.
    pub(crate) fn ready(&self, hook: Hook) -> impl Iterator<Item = &Arc<Loaded>> {
        self.chain(hook).ready()
    }

    /// Whether both have the same loads in the same places.
    pub(crate) fn same(&self, other: &LoadedSet) -> bool {
        self.chains.iter().zip(&other.chains).all(|(a, b)| a.same(b))
    }
}

/// The digest of a chain, over the name, the component and the whole settings file of each policy, but for how it is tried.
fn digest(links: &[Link]) -> PolicyDigest {
    let mut hash = Sha256::new();
    let mut add = |part: &[u8]| {
        // The length prefix makes the bytes of different lists differ.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    };
    for link in links {
        let (name, made_of) = match link {
            Link::Broken(broken) => (&broken.name, "broken"),
            Link::Ready(policy) => (&policy.name, policy.compiled.digest.as_str()),
        };
        add(name.as_str().as_bytes());
        add(made_of.as_bytes());
        if let Some(policy) = link.ready() {
            add(policy.sidecar.version().as_bytes());
        }
    }
    if links.is_empty() { PolicyDigest::NATIVE } else { PolicyDigest::new(hash.finalize().into()) }
}
