//! What is known of each model that is configured, in memory or not.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use camshaft_api::{Change, ModelRefusal, Operation, Residence, Usage};
use camshaft_core::engine::ModelKind;
use camshaft_core::promised::Promised;
use camshaft_registry::InUse;
use crossbeam_channel::{Receiver, TryRecvError};
use tokio::sync::watch;

use super::book::Book;
use super::waiters::Waiters;
use crate::bounds::ModelBounds;
use crate::config::{self, AdapterConfig, ModelConfig, ModelSource, Origins};
use crate::models;
use crate::sizing::mib;
use crate::start::{Started, now};
use crate::weights::{Weights, WeightsSource};
use crate::worker_process::TensorProcess;

/// Models that a server may have, in memory or not.
const MOST_MODELS: usize = 256;

/// A model that could not be loaded is not tried again before.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct State {
    /// By their ids.
    pub(super) residents: BTreeMap<String, Resident>,
    pub(super) operations: Book,
}

/// Who asked for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    File,
    Admin,
}

/// What the file says of a model.
#[derive(Debug, Clone)]
pub(super) enum Wish {
    Present(Box<ModelConfig>),
    /// By its id.
    Gone(String),
}

impl Wish {
    pub(super) fn id(&self) -> &str {
        match self {
            Self::Present(config) => &config.id,
            Self::Gone(id) => id,
        }
    }
}

/// What of a model is in memory.
#[derive(Debug)]
pub(super) struct Hold {
    /// Its number among all models, by which memory was promised to it.
    pub(super) number: usize,
    /// Bytes that it was promised.
    pub(super) bytes: u64,
    /// Workers that keep prefixes.
    pub(super) caching_workers: u64,
    pub(super) workers: u32,
    /// Disconnected when nothing of it is in memory any more.
    pub(super) ended: Receiver<Infallible>,
    bounds: watch::Sender<ModelBounds>,
    /// What its memory follows from, if it computes batches of tensors.
    tensors: Option<Weak<TensorProcess>>,
    /// Keeps its file in the cache of models.
    _held: Option<Arc<InUse>>,
}

/// A model, in memory or not.
#[derive(Debug)]
pub(super) struct Resident {
    /// What is in force: with the adapters that operators have loaded since, and without those that they have unloaded.
    pub(super) config: ModelConfig,
    /// Adapters that the file named when they were last loaded as it said.
    pub(super) listed: Vec<AdapterConfig>,
    pub(super) origin: Origin,
    /// `None`: it is not in memory.
    pub(super) held: Option<Hold>,
    /// What it was when it was in memory last.
    kind: Option<ModelKind>,
    /// Versions before it whose last requests still run.
    pub(super) draining: Vec<Hold>,
    pub(super) since: u64,
    pub(super) swaps: u64,
    pub(super) last_error: Option<String>,
    /// That change was what the file says.
    is_behind_file: bool,
    /// What changes it at the moment.
    pub(super) operation: Option<String>,
    /// Stops that, if it brings the model into memory.
    pub(super) stop: Arc<AtomicBool>,
    /// What the file has said of it since then, or what waits because too much is done at once.
    pub(super) next: Option<Wish>,
    /// It is forgotten once the operation has ended.
    pub(super) is_gone: bool,
    /// Those who wait until it is in memory.
    pub(super) waiting: Waiters,
    /// When a request was last seen.
    pub(super) used: Instant,
    /// Whether one was in flight then, and how often the model had been asked for.
    in_use: bool,
    asked: u64,
    /// When it could not be brought into memory.
    failed: Option<Instant>,
    /// When it came into memory.
    pub(super) came: Instant,
}

impl Hold {
    pub(super) fn new(number: usize, weights: &Weights, started: &Started) -> Self {
        Self {
            number,
            bytes: weights.sizes.bytes(),
            caching_workers: weights.loaded.caching_workers(),
            workers: weights.loaded.workers(),
            ended: started.ended.clone(),
            bounds: started.bounds.clone(),
            tensors: match &weights.loaded.source {
                WeightsSource::Tensors(process) => Some(Arc::downgrade(process)),
                WeightsSource::Llama(_) | WeightsSource::Fake(_) => None,
            },
            _held: weights.loaded.held.clone(),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Bytes that it takes with batches of another size than it has.
    fn bytes_with(&self, before: &ModelConfig, config: &ModelConfig) -> u64 {
        let model = self.tensors.as_ref().and_then(Weak::upgrade);
        model.map_or(self.bytes, |model| {
            let of = |config: &ModelConfig| model.memory_bytes(self.workers, config.batch_size);
            self.bytes.saturating_sub(of(before)).saturating_add(of(config))
        })
    }
}

impl Resident {
    pub(super) fn new(config: ModelConfig, origin: Origin) -> Self {
        let instant = Instant::now();
        Self {
            listed: config.adapter.clone(),
            config,
            origin,
            held: None,
            kind: None,
            draining: Vec::new(),
            since: now(),
            swaps: 0,
            last_error: None,
            is_behind_file: false,
            operation: None,
            stop: Arc::default(),
            next: None,
            is_gone: false,
            waiting: Waiters::default(),
            used: instant,
            in_use: false,
            asked: 0,
            failed: None,
            came: instant,
        }
    }

    /// It is in memory from now on. What was there before is drained.
    pub(super) fn hold(&mut self, number: usize, weights: &Weights, started: &Started) {
        let before = self.held.replace(Hold::new(number, weights, started));
        self.kind = Some(weights.loaded.kind());
        self.swaps += u64::from(before.is_some());
        self.draining.extend(before);
        (self.used, self.came, self.since) = (Instant::now(), Instant::now(), now());
        (self.in_use, self.asked) = (false, 0);
        self.last_error = None;
    }

    /// What it is from now on where that needs no other weights. What is in memory of it follows.
    ///
    /// # Errors
    /// A setting is none of such a model, which could not be loaded again, or there is too little memory for it.
    pub(super) fn reconfigure(&mut self, config: ModelConfig, promised: &Mutex<Promised>) -> Result<(), String> {
        let fits = |kind| models::settings_fit(&config, kind);
        let fit = match self.kind.or(config.expected_kind()) {
            Some(kind) => fits(kind),
            // What its file turns out to be is one of these.
            None => fits(ModelKind::Generate).or_else(|_| fits(ModelKind::Embed)),
        };
        fit.map_err(|error| error.to_string())?;
        if let Some(hold) = &mut self.held {
            let bytes = hold.bytes_with(&self.config, &config);
            let mut promised = promised.lock().unwrap_or_else(PoisonError::into_inner);
            promised.resize(hold.number, bytes).map_err(|left| {
                let rows = config.batch_size;
                format!("batch-size {rows}: needs {}, {} free", mib(bytes), mib(left))
            })?;
            hold.bytes = bytes;
            // Nobody listens any more if its threads have ended.
            let _ = hold.bounds.send(ModelBounds::of(&config));
        }
        self.config = config;
        Ok(())
    }

    /// What the file says, with the adapters that operators have loaded and unloaded since it last said something else of them.
    pub(super) fn followed(&self, file: &ModelConfig) -> ModelConfig {
        let is_in = |list: &[AdapterConfig], id: &str| list.iter().any(|adapter| adapter.id == id);
        let mut config = file.clone();
        if config.adapter == self.listed {
            config.adapter.clone_from(&self.config.adapter);
            return config;
        }
        let own =
            self.config.adapter.iter().filter(|own| !is_in(&self.listed, &own.id) && !is_in(&file.adapter, &own.id));
        config.adapter.extend(own.cloned());
        config
    }

    /// Its adapters were changed to these.
    pub(super) fn adapt(&mut self, adapters: Vec<AdapterConfig>) {
        (self.config.adapter, self.last_error) = (adapters, None);
    }

    pub(super) fn is_loaded(&self) -> bool {
        self.held.is_some()
    }

    /// Whether it was in memory at any time.
    pub(super) fn has_served(&self) -> bool {
        self.kind.is_some()
    }

    /// Whether what the file says is to be tried again when the file is read: it could not be done, or the model could not be loaded.
    pub(super) fn is_behind(&self) -> bool {
        self.last_error.is_some() && (self.is_behind_file || self.held.is_none())
    }

    /// It could not be changed. `by_file`: to what the file says.
    pub(super) fn fail(&mut self, why: &str, by_file: bool) {
        (self.last_error, self.is_behind_file) = (Some(why.to_owned()), by_file);
        if self.held.is_none() {
            self.failed = Some(Instant::now());
        }
    }

    /// Why it could not be loaded a moment ago, so that it is not tried again at once.
    pub(super) fn failed_lately(&self) -> Option<String> {
        let lately = self.failed.is_some_and(|at| at.elapsed() < RETRY);
        self.last_error.clone().filter(|_| lately && self.held.is_none())
    }

    /// `usage`: requests that use it, and how often it was asked for.
    pub(super) fn note_use(&mut self, usage: Option<Usage>, now: Instant) {
        let Some(usage) = usage else { return };
        self.in_use = usage.in_flight > 0;
        if self.in_use || usage.asked != self.asked {
            (self.asked, self.used) = (usage.asked, now);
        }
    }

    /// Whether it may be taken out of memory when nobody uses it.
    pub(super) fn may_leave(&self) -> bool {
        self.is_loaded() && self.config.may_sleep()
    }

    /// Whether nobody has used it for so long, and nothing changes it.
    pub(super) fn is_idle_for(&self, time: Option<Duration>, now: Instant) -> bool {
        let unused = now.saturating_duration_since(self.used);
        let is_unused = time.is_some_and(|time| unused >= time) && !self.in_use;
        is_unused && self.may_leave() && self.operation.is_none() && !self.waiting.is_waited()
    }

    pub(super) fn report(&self) -> Residence {
        Residence {
            since: self.since,
            memory_bytes: self.held.as_ref().map(|hold| hold.bytes),
            path: Some(match self.config.source() {
                ModelSource::Remote(source) => source,
                _ => self.config.file_name().display().to_string(),
            }),
            origin: match self.origin {
                Origin::File => "file",
                Origin::Admin => "admin",
            },
            swaps: self.swaps,
            last_error: self.last_error.clone(),
            operation: self.operation.clone(),
            draining: self.draining.len(),
            limits: super::settings::limits(&self.config, self.kind.or(self.config.expected_kind())),
            settings: self.config.settings(),
        }
    }
}

impl State {
    /// # Errors
    /// There is no such model.
    pub(super) fn resident(&mut self, id: &str) -> Result<&mut Resident, ModelRefusal> {
        self.residents.get_mut(id).ok_or_else(|| ModelRefusal::Unknown(id.to_owned()))
    }

    /// A model that nothing changes at the moment. A change made during an operation would be overwritten when it ends.
    ///
    /// # Errors
    /// There is no such model, or it is being changed.
    pub(super) fn unchanging(&mut self, id: &str) -> Result<&mut Resident, ModelRefusal> {
        let resident = self.resident(id)?;
        match resident.operation.clone() {
            None => Ok(resident),
            Some(operation) => Err(ModelRefusal::Busy { model: id.to_owned(), operation }),
        }
    }

    /// Stops what brings a model into memory that is not there, and has it forgotten then. Returns the operation, if there is one.
    pub(super) fn stop_load(&mut self, id: &str) -> Option<Operation> {
        let resident = self.residents.get_mut(id).filter(|resident| !resident.is_loaded())?;
        let operation = self.operations.get(resident.operation.as_ref()?)?;
        if !matches!(operation.change, Change::Load | Change::Swap) {
            return None;
        }
        resident.stop.store(true, Ordering::Relaxed);
        resident.next = Some(Wish::Gone(id.to_owned()));
        Some(operation)
    }

    /// # Errors
    /// There is no room for another model.
    pub(super) fn check_models(&self) -> Result<(), ModelRefusal> {
        let count = self.residents.len();
        if count < MOST_MODELS {
            return Ok(());
        }
        Err(ModelRefusal::Invalid(format!("a server has at most {MOST_MODELS} models, and there are {count}")))
    }

    /// # Errors
    /// One of its names leads to another model already.
    pub(super) fn check_names(&self, config: &ModelConfig) -> Result<(), ModelRefusal> {
        let others = self.residents.values().map(|resident| &resident.config).filter(|other| other.id != config.id);
        config::beside(config, others).map_err(ModelRefusal::Invalid)
    }

    /// What the file says of a model that nothing changes, and that waited because too much was done at once. What is gone goes
    /// first, because it has memory to give back.
    pub(super) fn take_waiting(&mut self) -> Option<Wish> {
        self.operations.check_room().ok()?;
        let waiting = self.residents.values_mut().filter(|resident| resident.operation.is_none());
        let waiting = waiting.filter(|resident| resident.next.is_some());
        waiting.min_by_key(|resident| matches!(resident.next, Some(Wish::Present(_))))?.next.take()
    }

    /// Workers of all models in memory that keep prefixes.
    pub(super) fn caching_workers(&self) -> u64 {
        let holds = self.residents.values().flat_map(|resident| resident.held.iter().chain(&resident.draining));
        holds.map(|hold| hold.caching_workers).sum()
    }
}

/// Whether two configurations say the same, wherever it was written.
pub(super) fn same(a: &ModelConfig, b: &ModelConfig) -> bool {
    let plain = |config: &ModelConfig| ModelConfig { origins: Origins::default(), ..config.clone() };
    plain(a) == plain(b)
}

/// Whether a model that is in memory by one configuration needs no other weights, sizes or threads for the other. Adapters come
/// and go beside them, and sampling parameters are those of each request.
pub(super) fn same_weights(a: &ModelConfig, b: &ModelConfig) -> bool {
    let of = |config: &ModelConfig| ModelConfig {
        weight: 1.0,
        aliases: Vec::new(),
        fallback: None,
        load: Default::default(),
        keep_alive: None,
        swap: Default::default(),
        adapter: Vec::new(),
        sampling: Default::default(),
        ..ModelBounds::unset(config.clone())
    };
    same(&of(a), &of(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(adapters: &[(&str, &str)]) -> ModelConfig {
        let adapter = |(id, path): &(&str, &str)| AdapterConfig { id: (*id).into(), path: path.into(), scale: 1.0 };
        ModelConfig { adapter: adapters.iter().map(adapter).collect(), ..ModelConfig::default() }
    }

    #[test]
    fn the_file_decides_on_its_adapters_and_keeps_those_of_operators() {
        let check = |now: &[(&str, &str)], file: &[(&str, &str)], expected: &[(&str, &str)]| {
            let mut resident = Resident::new(config(&[("a", "1"), ("b", "1")]), Origin::File);
            resident.config = config(now);
            assert_eq!(resident.followed(&config(file)).adapter, config(expected).adapter, "{now:?} {file:?}");
        };
        let listed = [("a", "1"), ("b", "1")];
        // What the file says of adapters has not changed: what operators did stays.
        check(&[("a", "1"), ("c", "1")], &listed, &[("a", "1"), ("c", "1")]);
        // It has: it decides on its own ones, old and new.
        check(&[("a", "1"), ("c", "1")], &[("b", "1")], &[("b", "1"), ("c", "1")]);
        check(&listed, &[("a", "2"), ("b", "1")], &[("a", "2"), ("b", "1")]);
        check(&[("a", "1"), ("b", "1"), ("c", "1")], &[("c", "2")], &[("c", "2")]);
        check(&[("a", "1"), ("b", "1"), ("c", "1")], &[], &[("c", "1")]);
    }
}
