//! The copy: samplers and filters that another process has loaded, run here.
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use arc_swap::ArcSwapOption;
use camshaft_core::filter::{FilterHook, FilteringRequest, TextFilter};
use camshaft_core::ids::{Generation, PolicyDigest};
use camshaft_core::policy::{Fault, FaultKind, Hook, NoSampler, SamplerHook, SamplingRequest, TokenSampler};
use crossbeam_channel::bounded;

use super::{LoadChange, LoadCopy, Noted, ReplicaUpdate};
use crate::ahead::Ahead;
use crate::documents::{Document, Judge};
use crate::engine::Ticker;
use crate::error::PolicyError;
use crate::examine;
use crate::health::Health;
use crate::hooks::{filter, sampler};
use crate::imports::identity::Identity;
use crate::imports::metrics::{MetricFamilies, PluginMetrics};
use crate::imports::state::PluginState;
use crate::journal::{Happened, Journal};
use crate::kept::Kept;
use crate::loaded::{Compiled, Loaded};
use crate::metrics::PolicyMetrics;
use crate::pace::Pace;
use crate::registry::Registry;
use crate::reuse::Verdicts;
use crate::runtime::Runtime;
use crate::set::{Broken, Link, LinkCopy, LoadedSet};
use crate::snapshot::{Snapshot, Snapshots};
use crate::supplies::Supplies;
use crate::view::View;

/// Runs copies of samplers and filters. Nothing of the runtime of guests is there before the first of them comes.
#[derive(Debug)]
pub struct PolicyReplica {
    registry: Registry,
    journal: Arc<Journal>,
    code_dir: Option<Box<Path>>,
    guests: OnceLock<Guests>,
    copies: Mutex<Copies>,
}

/// What guests need.
#[derive(Debug)]
struct Guests {
    runtime: Arc<Runtime>,
    /// Nobody reads these: the process that loaded the policies counts.
    metrics: PolicyMetrics,
    families: Arc<MetricFamilies>,
    _ticker: Ticker,
}

#[derive(Debug, Default)]
struct Copies {
    loads: HashMap<u64, Copy>,
    states: HashMap<u64, Arc<PluginState>>,
    sets: HashMap<Generation, Arc<LoadedSet>>,
}

#[derive(Debug)]
struct Copy {
    link: Link,
    state: u64,
}

impl PolicyReplica {
    /// `code_dir`: where the code is that is told by name; the host's alone.
    pub fn new(code_dir: Option<&Path>) -> Self {
        let (journal, guests, copies) = Default::default();
        Self { registry: Registry::new(false), journal, code_dir: code_dir.map(Into::into), guests, copies }
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn guests(&self) -> Result<&Guests, PolicyError> {
        if let Some(guests) = self.guests.get() {
            return Ok(guests);
        }
        let runtime = Arc::new(Runtime::with_code_in(self.code_dir.as_deref().map(Path::to_owned), None)?);
        let registry = prometheus::Registry::new();
        let (metrics, families) = (PolicyMetrics::register(&registry)?, Arc::new(MetricFamilies::new(&registry)));
        let _ticker = Ticker::start(runtime.engines(), &runtime.clock)?;
        Ok(self.guests.get_or_init(|| Guests { runtime, metrics, families, _ticker }))
    }

    /// Takes in what was not known here.
    ///
    /// # Errors
    /// The runtime of guests cannot be had. (A load that cannot be had is one that faults.)
    pub fn apply(&self, update: ReplicaUpdate) -> Result<(), PolicyError> {
        let ReplicaUpdate { loads, changes, sets, states, gone_sets, gone_loads } = update;
        if !loads.is_empty() {
            let guests = self.guests()?;
            for load in loads {
                let (number, state) = (load.number, load.state);
                let store = || Arc::new(PluginState::copy(&self.journal, state));
                let store = self.copies().states.entry(state).or_insert_with(store).clone();
                let link = self.load(guests, load, store);
                self.copies().loads.insert(number, Copy { link, state });
            }
        }
        let mut copies = self.copies();
        for change in changes {
            if let Some(Link::Ready(load)) = copies.loads.get(&change.number).map(|copy| &copy.link) {
                take(load, change);
            }
        }
        for (state, news) in states {
            if let Some(state) = copies.states.get(&state) {
                state.merge(news);
            }
        }
        for set in sets {
            let generation = set.generation;
            let link = |link: LinkCopy| match link {
                LinkCopy::Ready(number) => copies.loads.get(&number).map(|copy| copy.link.clone()),
                LinkCopy::Broken { name, on_fault, matching, why } => {
                    // Counted where it is known.
                    let metrics = self.guests().ok()?.metrics.link(Hook::Filter, &name);
                    Some(Link::Broken(Arc::new(Broken { name, on_fault, matching, why, metrics })))
                }
            };
            let set = Arc::new(LoadedSet::of_copy(set, link));
            copies.sets.insert(generation, set.clone());
            if generation >= self.registry.current().generation {
                self.registry.publish_shared(set);
            } else {
                self.registry.keep(&set);
            }
        }
        gone_sets.iter().for_each(|generation| _ = copies.sets.remove(generation));
        gone_loads.iter().for_each(|number| _ = copies.loads.remove(number));
        let Copies { loads, states, .. } = &mut *copies;
        states.retain(|state, _| loads.values().any(|copy| copy.state == *state));
        Ok(())
    }

    /// Another chain than the request was promised would be none of its operator's choice.
    fn find(&self, hook: Hook, chain: PolicyDigest) -> Result<View, Fault> {
        self.registry.find_exact(hook, chain).ok_or_else(|| Fault {
            plugin: format!("{hook} chain {chain}").as_str().into(),
            kind: FaultKind::Unavailable,
            detail: "the process that runs it was not told of it in time".to_owned(),
        })
    }

    /// A load that cannot be had keeps its place, and faults.
    fn load(&self, guests: &Guests, load: LoadCopy, state: Arc<PluginState>) -> Link {
        let runtime = &guests.runtime;
        let component = runtime.component_kept_as(load.hook, &load.code);
        let linked = component.and_then(|component| examine::link(runtime.linker(load.hook), &component, load.hook));
        let LoadCopy { number, hook, name, digest, size_bytes, code, asks, sidecar, secrets, .. } = load;
        let metrics = guests.metrics.link(hook, &name);
        let pre = match linked {
            Ok(pre) => pre,
            Err(error) => {
                tracing::error!(%hook, plugin = %name, %error, "a policy cannot be had in the process that runs it");
                let (on_fault, matching, why) = (sidecar.on_fault, sidecar.matching, error.to_string());
                return Link::Broken(Arc::new(Broken { name, on_fault, matching, why, metrics }));
            }
        };
        // What it exports and imports beside its hook matters only to schedulers, and where it is examined.
        let (file, api_version, imports, exports) = (ArcSwapOption::empty(), String::new(), Vec::new(), Vec::new());
        let compiled = Compiled { digest, size_bytes, file, code, api_version, imports, exports, asks, pre };
        let of_guest = PluginMetrics::new(hook, name.clone(), guests.families.clone());
        let of_guest = of_guest.noted(&self.journal, number);
        let documents = sidecar.documents.iter().map(|spec| Document::copy(hook, name.as_str(), spec)).collect();
        let (alarm, _) = bounded(1);
        Link::Ready(Arc::new_cyclic(|me| Loaded {
            number,
            me: me.clone(),
            ahead: Ahead::new(runtime.ahead(hook)),
            snapshots: Snapshots::default(),
            take_snapshot: |me| {
                if let Some(load) = me.upgrade() {
                    load.tell(|| Happened::WantsSnapshot);
                    // It comes, or is asked for again some time.
                    load.snapshots.pause();
                }
            },
            metrics,
            monitored: Default::default(),
            health: Health::new(sidecar.breaker, alarm),
            identity: Arc::new(Identity::new(hook, &name, of_guest, Some(state))),
            name,
            compiled: Arc::new(compiled),
            sidecar,
            supplies: Arc::new(Supplies { documents, secrets }),
            generation: OnceLock::new(),
            lane: runtime.lanes.lane(),
            pace: Pace::default(),
            runtime: runtime.clone(),
            kept: Kept::default(),
            judge: Judge::new(Arc::new(|_, _| Ok(()))),
            verdicts: Verdicts::default(),
            journal: Some(self.journal.clone()),
        }))
    }

    /// What happened since this was called last. `states`: changes of state, too: one caller takes those, and tells them in their order.
    pub fn take_notes(&self, states: bool) -> Noted {
        Noted(self.journal.take(states))
    }
}

/// Takes what a load has otherwise than before.
fn take(load: &Arc<Loaded>, change: LoadChange) {
    load.identity.grant.store(Arc::new(change.grant));
    for (name, version) in change.documents {
        if let Some(document) = load.supplies.document(&name) {
            document.show(version);
        }
    }
    let Some((code, reusable)) = change.snapshot else {
        if load.snapshots.get().is_some() && load.snapshots.give_up("it was given up".to_owned()) {
            load.ahead.begin_anew();
            load.kept.clear();
        }
        return;
    };
    if load.snapshots.get().is_some() {
        return;
    }
    let component = load.runtime.component_kept_as(load.hook(), &code);
    let linked =
        component.and_then(|component| examine::link(load.runtime.linker(load.hook()), &component, load.hook()));
    // Without it, instances are made as before.
    if let Ok(pre) = linked {
        load.snapshots.put(Snapshot { pre, reusable, code: None });
        load.ahead.begin_anew();
    }
}

impl SamplerHook for PolicyReplica {
    fn open(&self, chain: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler> {
        sampler::open(self.find(Hook::Sampler, chain)?, request)
    }
}

impl FilterHook for PolicyReplica {
    fn open(&self, chain: PolicyDigest, request: &FilteringRequest) -> Result<Vec<Box<dyn TextFilter>>, Fault> {
        filter::open(&self.find(Hook::Filter, chain)?, request)
    }
}
