//! The models of the running server: loads, swaps and unloads them by orders of operators and by what the configuration says,
//! wakes those that sleep, and puts those to sleep that nobody uses.
mod adapting;
mod book;
mod bring;
mod change;
mod follow;
mod keeper;
mod order;
mod settings;
mod state;
mod waiters;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use camshaft_api::{
    Absence, Adapter, AdapterRefusal, Adapters, Api, Change, Model, ModelControl, ModelRefusal, Operation, Residence,
    WantedAdapter, Woken,
};
use camshaft_core::sizes::{self, Machine};
use camshaft_core::threads::Spawner;
use serde_json::{Map, Value};
use tokio::sync::{oneshot, watch};

use self::state::{Origin, Resident, State};
use crate::bounds;
use crate::cache_plan::CacheShare;
use crate::config::{Live, LoadKey, ModelConfig, Models};
use crate::error::ServerError;
use crate::progress::ProgressSink;
use crate::sizing::mib;
use crate::start::Starter;
use crate::tuning::Tuning;
use crate::weights::{Engines, Weights};

/// Characters of a key that an error shows.
const SHOWN_CHARS: usize = 128;

/// What it is made of.
#[derive(Debug)]
pub(crate) struct LifeSetup {
    pub(crate) starter: Starter,
    pub(crate) engines: Engines,
    /// As it was when its memory was divided.
    pub(crate) machine: Machine,
    /// What was left to the process then, beside models.
    pub(crate) process: u64,
    /// Of the prefix cache.
    pub(crate) share: Mutex<CacheShare>,
    pub(crate) tuning: watch::Sender<Tuning>,
    /// For the threads of operations.
    pub(crate) spawner: Spawner,
    /// Where models are pulled to.
    pub(crate) cache: Models,
}

/// Owns what is known of all models, and has one thread for each operation.
#[derive(Debug)]
pub(crate) struct ModelLife {
    setup: LifeSetup,
    api: OnceLock<Weak<Api>>,
    /// Whose turn it is to load: contexts are made one after the other.
    turn: Mutex<()>,
    state: Mutex<State>,
    me: Weak<Self>,
}

impl ModelLife {
    pub(crate) fn new(setup: LifeSetup) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            setup,
            api: OnceLock::new(),
            turn: Mutex::default(),
            state: Mutex::default(),
            me: me.clone(),
        })
    }

    /// From now on models can be changed.
    pub(crate) fn bind(&self, api: &Arc<Api>) {
        // Bound once, after the load.
        let _ = self.api.set(Arc::downgrade(api));
        self.sleepers().into_iter().for_each(|config| self.say_asleep(api, &config));
    }

    /// Starts a model that was loaded with the server. `number`: its number among all models; `config`: as it was written; `sink` hears
    /// how far it is.
    ///
    /// # Errors
    /// As [`Starter::start`].
    pub(crate) fn start(
        &self,
        number: usize,
        weights: &Weights,
        config: &ModelConfig,
        sink: ProgressSink,
    ) -> Result<Model, ServerError> {
        let started = self.setup.starter.start(number, weights, sink)?;
        let mut resident = Resident::new(config.clone(), Origin::File);
        resident.hold(number, weights, &started);
        self.state().residents.insert(weights.config().id.clone(), resident);
        Ok(started.model)
    }

    /// Notes a model that is not loaded before somebody asks for it.
    pub(crate) fn note_asleep(&self, config: ModelConfig) {
        self.state().residents.insert(config.id.clone(), Resident::new(config, Origin::File));
    }

    /// As it was when its memory was divided.
    pub(crate) fn machine(&self) -> Machine {
        self.setup.machine
    }

    /// Has all models follow what is said of queues, and of memory for requests and prefixes. `changed`: the keys that are new.
    pub(crate) fn tune(&self, live: &Live, changed: &[String]) {
        let LifeSetup { machine, process, share, tuning, .. } = &self.setup;
        let share = *share.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = sizes::process(live.limits.bodies_bytes(*machine));
        if taken > *process && changed.iter().any(|key| matches!(key.as_str(), "limits.body" | "limits.bodies")) {
            let more = mib(taken - process);
            tracing::warn!(
                "requests may take {more} more than was left to them when the models were sized at the start"
            );
        }
        let ram = live.cache.ram.set().map(|ram| ram.0).filter(|_| changed.iter().any(|key| key == "cache.ram"));
        if let Some(wished) = ram.filter(|&ram| share.workers > 0 && ram > share.most) {
            let most = mib(share.most);
            tracing::warn!(
                "cache.ram = {} is cut to {most}: what the models were given at the start leaves no more to it",
                mib(wished)
            );
        }
        // Models that lose their devices from now on are sized beside it.
        self.promised().set_rest(taken.max(*process), share.all(&live.cache));
        let new = Tuning::of(live, share);
        tuning.send_if_modified(|old| std::mem::replace(old, new) != new);
    }

    fn sleepers(&self) -> Vec<ModelConfig> {
        let state = self.state();
        let asleep = state.residents.values().filter(|resident| !resident.is_loaded());
        asleep.map(|resident| resident.config.clone()).collect()
    }

    fn say_asleep(&self, api: &Api, config: &ModelConfig) {
        api.publish_absent(config.naming(), config.expected_kind(), Absence::Asleep);
    }

    fn api(&self) -> Option<Arc<Api>> {
        self.api.get().and_then(Weak::upgrade)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelControl for ModelLife {
    fn residence(&self, id: &str) -> Option<Residence> {
        self.state().residents.get(id).map(Resident::report)
    }

    fn load(&self, settings: Map<String, Value>) -> Result<Operation, ModelRefusal> {
        let config = settings::read(settings)?;
        let api = self.api().ok_or(ModelRefusal::Ending)?;
        let id = config.id.clone();
        let entered = {
            let mut state = self.state();
            state.check_names(&config)?;
            if state.residents.contains_key(&id) {
                return Err(ModelRefusal::Exists(id));
            }
            state.check_models()?;
            state.residents.insert(id.clone(), Resident::new(config.clone(), Origin::Admin));
            if config.load == LoadKey::OnDemand {
                // Before somebody can wake it.
                self.say_asleep(&api, &config);
                return Ok(state.operations.done(Change::Load, &id, "waits for the first request"));
            }
            let entered = self.enter(&mut state, Change::Load, &id);
            entered.inspect_err(|_| drop(state.residents.remove(&id)))?
        };
        api.publish_absent(config.naming(), config.expected_kind(), Absence::Loading);
        self.run(entered, Self::load_now)
    }

    fn swap(&self, id: &str, settings: Map<String, Value>) -> Result<Operation, ModelRefusal> {
        let (entered, config) = {
            let mut state = self.state();
            let config = settings::over(&state.resident(id)?.config, settings)?;
            if config.id != *id {
                return Err(ModelRefusal::Invalid(format!("id must stay {id:?} in a swap, got {:?}", config.id)));
            }
            state.check_names(&config)?;
            let entered = self.enter(&mut state, Change::Swap, id)?;
            // What the file said before, and what waited since, is said otherwise now.
            state.resident(id)?.next = None;
            (entered, config)
        };
        self.run(entered, move |life, order| life.swap_to(order, config))
    }

    fn unload(&self, id: &str) -> Result<Operation, ModelRefusal> {
        let entered = {
            let mut state = self.state();
            if let Some(operation) = state.stop_load(id) {
                return Ok(operation);
            }
            let entered = self.enter(&mut state, Change::Unload, id)?;
            state.resident(id)?.next = None;
            entered
        };
        self.run(entered, Self::unload_now)
    }

    fn set_weight(&self, id: &str, weight: f64) -> Result<(), ModelRefusal> {
        let api = self.api().ok_or(ModelRefusal::Ending)?;
        let mut state = self.state();
        let resident = state.unchanging(id)?;
        // A weight out of bounds is refused as in an order.
        let config = ModelConfig { weight, ..resident.config.clone() };
        settings::over(&config, Map::new())?;
        resident.config = config;
        // Under the lock: of two that are set at once, the one that is kept is in force.
        api.set_naming(&resident.config.naming());
        Ok(())
    }

    fn set_limits(&self, id: &str, limits: Map<String, Value>) -> Result<(), ModelRefusal> {
        if let Some(key) = limits.keys().find(|key| !bounds::KEYS.contains(&key.as_str())) {
            let (key, keys) = (key.chars().take(SHOWN_CHARS).collect::<String>(), bounds::KEYS.join(", "));
            return Err(ModelRefusal::Invalid(format!("limits: unknown key {key:?}; there are {keys}")));
        }
        let mut state = self.state();
        let resident = state.unchanging(id)?;
        let config = settings::over(&resident.config, limits)?;
        resident.reconfigure(config, &self.setup.starter.promised).map_err(ModelRefusal::Invalid)
    }

    fn load_adapter(&self, model: &str, _: &Adapters, wanted: &WantedAdapter) -> Result<Arc<Adapter>, AdapterRefusal> {
        self.carry_out(Change::Adapters, model, |order| self.add_adapter(order, wanted))
    }

    fn unload_adapter(&self, model: &str, _: &Adapters, adapter: &str) -> Result<bool, AdapterRefusal> {
        self.carry_out(Change::Adapters, model, |order| self.remove_adapter(order, adapter))
    }

    fn operation(&self, id: &str) -> Option<Operation> {
        self.state().operations.get(id)
    }

    fn operations(&self) -> Vec<Operation> {
        self.state().operations.all()
    }

    fn wake(&self, id: &str) -> Result<Woken, ModelRefusal> {
        let (wakes, woken) = oneshot::channel();
        let entered = {
            let mut state = self.state();
            let resident = state.resident(id)?;
            if resident.is_loaded() && resident.operation.is_none() {
                // Somebody else has just woken it. The asker may have left.
                let _ = wakes.send(Ok(()));
                return Ok(woken);
            }
            resident.waiting.push(wakes);
            if resident.operation.is_some() {
                return Ok(woken);
            }
            if let Some(why) = resident.failed_lately() {
                resident.waiting.answer(&Err(why));
                return Ok(woken);
            }
            self.enter(&mut state, Change::Load, id)?
        };
        self.run(entered, Self::load_now)?;
        Ok(woken)
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
