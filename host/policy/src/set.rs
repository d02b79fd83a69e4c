//! One published generation of policies: the chain of each hook, in file order.
use std::fmt;
use std::sync::Arc;

use camshaft_core::ids::{Generation, PolicyDigest, PolicyName};
use camshaft_core::policy::{Fault, FaultKind, Hook, Target};
use sha2::{Digest, Sha256};

use crate::loaded::Loaded;
use crate::matching::Matching;
use crate::metrics::{LinkMetrics, Outcome};
use crate::spec::OnFault;

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
    fn empty() -> Self {
        Self { links: Vec::new(), digest: PolicyDigest::NATIVE }
    }

    fn same(&self, other: &Chain) -> bool {
        self.links.len() == other.links.len() && self.links.iter().zip(&other.links).all(|(a, b)| a.same(b))
    }
}

/// All policies of one generation. Immutable once published.
pub(crate) struct LoadedSet {
    pub(crate) generation: Generation,
    pub(crate) allow_anonymous: bool,
    /// In the order of `Hook::ALL`.
    chains: [Chain; Hook::ALL.len()],
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
        Self { generation: Generation(0), allow_anonymous, chains: Hook::ALL.map(|_| Chain::empty()) }
    }

    /// The generation after `current`, made of these links in file order.
    pub(crate) fn after(current: &LoadedSet, links: impl IntoIterator<Item = (Hook, Link)>) -> Self {
        let mut set = Self::empty(current.allow_anonymous);
        set.generation = Generation(current.generation.0 + 1);
        for (hook, link) in links {
            set.chains[hook as usize].links.push(link);
        }
        for chain in &mut set.chains {
            chain.digest = digest(&chain.links);
        }
        set
    }

    pub(crate) fn chain(&self, hook: Hook) -> &Chain {
        &self.chains[hook as usize]
    }

    /// The enforced policies of the hook, broken ones included.
    pub(crate) fn enforced(&self, hook: Hook) -> impl Iterator<Item = &Link> {
        self.chain(hook).links.iter().filter(|link| !link.is_monitor())
    }

    /// The policies of the hook that could be loaded.
    pub(crate) fn ready(&self, hook: Hook) -> impl DoubleEndedIterator<Item = &Arc<Loaded>> {
        self.chain(hook).links.iter().filter_map(Link::ready)
    }

    /// The policies of the hook that such requests concern and that could be loaded.
    pub(crate) fn ready_for<'a>(&'a self, hook: Hook, target: Target<'a>) -> impl Iterator<Item = &'a Arc<Loaded>> {
        self.ready(hook).filter(move |policy| policy.sidecar.matching.admits(target))
    }

    /// The scheduler that decides in the model's pool: the last enforced one that matches it.
    pub(crate) fn scheduler(&self, model: &str) -> Option<&Arc<Loaded>> {
        self.last_scheduler(model, false)
    }

    /// The scheduler that is monitored in the model's pool: the last one in that mode that matches it.
    pub(crate) fn monitored_scheduler(&self, model: &str) -> Option<&Arc<Loaded>> {
        self.last_scheduler(model, true)
    }

    fn last_scheduler(&self, model: &str, monitored: bool) -> Option<&Arc<Loaded>> {
        let is_it =
            |policy: &&Arc<Loaded>| policy.is_monitored() == monitored && policy.sidecar.matching.admits_model(model);
        self.ready(Hook::Scheduler).rfind(is_it)
    }

    /// Whether both have the same loads in the same places.
    pub(crate) fn same(&self, other: &LoadedSet) -> bool {
        self.chains.iter().zip(&other.chains).all(|(a, b)| a.same(b))
    }
}

/// The digest of a chain, over the name, the component and the whole settings file of each policy.
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
            let sidecar = &policy.sidecar;
            add(sidecar.settings.as_bytes());
            add(format!("{:?} {:?} {:?}", sidecar.documents, sidecar.secrets, sidecar.matching).as_bytes());
            add(sidecar.mode.as_str().as_bytes());
            add(sidecar.on_fault.as_str().as_bytes());
            add(&sidecar.deadline.as_micros().to_le_bytes());
            add(&(sidecar.memory_bytes as u64).to_le_bytes());
        }
    }
    if links.is_empty() { PolicyDigest::NATIVE } else { PolicyDigest::new(hash.finalize().into()) }
}
