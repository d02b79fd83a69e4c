//! What the processes that have copies are told.
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use camshaft_core::ids::Generation;
use crossbeam_channel::{Receiver, Sender, never, select};

use super::{LoadChange, LoadCopy, Noted, ReplicaUpdate};
use crate::documents::Version;
use crate::feeds::{Feeds, Wakes};
use crate::grants::Grant;
use crate::journal::Happened;
use crate::loaded::Loaded;
use crate::registry::Registry;
use crate::runtime::Runtime;
use crate::set::{HOOKS, LoadedSet};

/// How soon a new version of a document is told.
const DOCUMENTS: Duration = Duration::from_secs(1);

/// What one process that has a copy knows, and how it hears of more.
#[derive(Debug)]
pub struct Replication {
    registry: Arc<Registry>,
    runtime: Arc<Runtime>,
    number: u64,
    wakes: Wakes,
    sets: HashMap<Generation, Weak<LoadedSet>>,
    loads: HashMap<u64, KnownLoad>,
    /// Writes of each store that it has.
    states: HashMap<u64, u64>,
}

#[derive(Debug)]
struct KnownLoad {
    load: Weak<Loaded>,
    state: u64,
    grant: Option<Arc<Grant>>,
    documents: BTreeMap<String, u64>,
    has_snapshot: bool,
}

impl Drop for Replication {
    fn drop(&mut self) {
        self.runtime.feeds.leave(&self.wakes.bump);
    }
}

impl Replication {
    pub(crate) fn new(registry: Arc<Registry>, runtime: Arc<Runtime>) -> Self {
        let (number, wakes) = runtime.feeds.join();
        let (sets, loads, states) = Default::default();
        Self { registry, runtime, number, wakes, sets, loads, states }
    }

    /// Where compiled code lies.
    pub fn code_dir(&self) -> Option<&Path> {
        self.runtime.code_dir()
    }

    /// Its number among all: what it notes is told with that.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Waits until there may be something to tell, or until `ended` is disconnected: then `None`. What it returns is to be dropped once
    /// that was told.
    pub fn wait(&self, ended: &Receiver<Infallible>) -> Option<Option<Sender<Infallible>>> {
        let has_documents = self.loads.values().any(|known| !known.documents.is_empty());
        let look = if has_documents { crossbeam_channel::after(DOCUMENTS) } else { never() };
        select! {
            recv(ended) -> _ => None,
            recv(self.wakes.bumped) -> _ => Some(None),
            recv(self.wakes.synced) -> done => Some(done.ok()),
            recv(look) -> _ => Some(None),
        }
    }

    /// What the process does not know yet; `None`: it knows everything.
    pub fn update(&mut self) -> Option<ReplicaUpdate> {
        let mut update = ReplicaUpdate::default();
        let alive = self.registry.alive();
        for set in &alive {
            if self.sets.contains_key(&set.generation) {
                continue;
            }
            for load in HOOKS.into_iter().flat_map(|hook| set.loads(hook)) {
                self.introduce(load, &mut update);
            }
            update.sets.push(set.copy());
            self.sets.insert(set.generation, Arc::downgrade(set));
        }
        self.sets.retain(|generation, set| {
            let is_gone = set.strong_count() == 0;
            update.gone_sets.extend(is_gone.then_some(*generation));
            !is_gone
        });
        self.loads.retain(|number, known| {
            let is_gone = known.load.strong_count() == 0;
            update.gone_loads.extend(is_gone.then_some(*number));
            !is_gone
        });
        update.changes = self.loads.iter_mut().filter_map(|(number, known)| known.change(*number)).collect();
        self.tell_states(&mut update);
        let is_empty = update.sets.is_empty()
            && update.changes.is_empty()
            && update.states.is_empty()
            && update.gone_sets.is_empty()
            && update.gone_loads.is_empty();
        (!is_empty).then_some(update)
    }

    fn introduce(&mut self, load: &Arc<Loaded>, update: &mut ReplicaUpdate) {
        if self.loads.contains_key(&load.number) {
            return;
        }
        let state = load.identity.state.number();
        update.loads.push(LoadCopy {
            number: load.number,
            hook: load.hook(),
            name: load.name.clone(),
            digest: load.compiled.digest.clone(),
            size_bytes: load.compiled.size_bytes,
            code: load.compiled.code.clone(),
            asks: load.compiled.asks,
            sidecar: load.sidecar.clone(),
            secrets: load.supplies.secrets.clone(),
            state,
        });
        let (grant, documents) = Default::default();
        let known = KnownLoad { load: Arc::downgrade(load), state, grant, documents, has_snapshot: false };
        self.loads.insert(load.number, known);
    }

    /// What others have written into the stores of these loads.
    fn tell_states(&mut self, update: &mut ReplicaUpdate) {
        let has_others = self.runtime.feeds.len() > 1;
        let mut told = HashMap::new();
        for known in self.loads.values() {
            let Some(load) = known.load.upgrade().filter(|_| !told.contains_key(&known.state)) else { continue };
            let before = self.states.get(&known.state).copied();
            let (news, writes) =
                load.identity.state.news(before.unwrap_or_default(), self.number, has_others || before.is_none());
            if before != Some(writes) {
                update.states.push((known.state, news));
            }
            told.insert(known.state, writes);
        }
        self.states = told;
    }
}

impl KnownLoad {
    /// What has changed since it was told last.
    fn change(&mut self, number: u64) -> Option<LoadChange> {
        let load = self.load.upgrade()?;
        let grant = load.identity.grant.load_full();
        let is_granted = self.grant.as_ref().is_some_and(|known| Arc::ptr_eq(known, &grant));
        let of_documents = load.supplies.documents.iter();
        let current = of_documents.filter_map(|document| Some((document.name().to_owned(), document.current()?)));
        let newer = current.filter(|(name, version)| self.documents.get(name) != Some(&version.number));
        let copy = |version: &Version| Version { number: version.number, bytes: version.bytes.clone() };
        let documents: BTreeMap<_, _> = newer.map(|(name, version)| (name, copy(&version))).collect();
        let snapshot = load.snapshots.get();
        let snapshot = snapshot.as_ref().and_then(|taken| Some((taken.code.as_ref()?.name.clone(), taken.reusable)));
        if is_granted && documents.is_empty() && snapshot.is_some() == self.has_snapshot {
            return None;
        }
        self.has_snapshot = snapshot.is_some();
        self.documents.extend(documents.iter().map(|(name, version)| (name.clone(), version.number)));
        let change = LoadChange { number, grant: (*grant).clone(), documents, snapshot };
        self.grant = Some(grant);
        Some(change)
    }
}

impl Registry {
    /// Counts what happened in another process, of this number, to copies of what is loaded here.
    pub(crate) fn take_notes(&self, Noted(notes): Noted, process: u64, feeds: &Feeds) {
        if notes.is_empty() {
            return;
        }
        let alive = self.alive();
        let loads = || alive.iter().flat_map(|set| HOOKS.into_iter().flat_map(|hook| set.loads(hook)));
        let (mut last, mut wrote) = (None::<&Arc<Loaded>>, false);
        for (number, happened) in notes {
            // Of one that nobody has any more nobody wants to hear.
            if let Happened::State(change) = happened {
                let has_it = loads().find(|load| load.identity.state.number() == number);
                has_it.into_iter().for_each(|load| load.identity.state.carry_out(change.clone(), process));
                wrote = true;
                continue;
            }
            if last.is_none_or(|load| load.number != number) {
                last = loads().find(|load| load.number == number);
            }
            if let Some(load) = last {
                load.take_note(happened);
            }
        }
        if wrote {
            feeds.bump();
        }
    }
}
