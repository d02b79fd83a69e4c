//! The interface through which models come, go and change while the server runs. The server implements it.
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use crate::flow::adapters::{Adapter, Adapters, NotAdded, WantedAdapter};

/// What an operator asks of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    Load,
    Swap,
    Unload,
    /// Takes it out of memory until a request asks for it.
    Sleep,
    /// Loads or unloads adapters of it.
    Adapters,
}

/// How far an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationState {
    Running,
    Done,
    Failed,
}

/// What is done to a model, from the order to its end.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Operation {
    pub id: String,
    #[serde(rename = "operation")]
    pub change: Change,
    pub model: String,
    pub state: OperationState,
    /// What is done at the moment, or was done last.
    pub stage: String,
    /// Of the stage, from 0 to 1.
    pub progress: f64,
    /// Why it failed.
    pub error: Option<String>,
    /// Seconds since the Unix epoch.
    pub started: u64,
    pub ended: Option<u64>,
}

impl Operation {
    pub fn is_over(&self) -> bool {
        self.state != OperationState::Running
    }
}

/// Facts about a model that the operator's side of the server knows.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Residence {
    /// Since when its state is what it is, in seconds since the Unix epoch.
    pub since: u64,
    /// What was planned for it of the host's memory, in bytes; `None` while it is not in memory.
    pub memory_bytes: Option<u64>,
    /// The file.
    pub path: Option<String>,
    /// Who asked for it: `file` or `admin`.
    pub origin: &'static str,
    /// How often it was replaced since the server began to serve it.
    pub swaps: u64,
    /// Why the last change of it failed.
    pub last_error: Option<String>,
    /// The operation that changes it at the moment.
    pub operation: Option<String>,
    /// Earlier versions whose last requests still run.
    pub draining: usize,
    /// Bounds of what it runs at once that can be changed meanwhile, by the configuration's keys.
    pub limits: Map<String, Value>,
    /// All that the configuration or orders have set, by the configuration's keys.
    pub settings: Map<String, Value>,
}

/// How a model in memory is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Requests that have begun and not ended.
    pub in_flight: usize,
    /// How often it was asked for since it came into memory.
    pub asked: u64,
}

/// Why an order is not carried out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelRefusal {
    #[error("{0}")]
    Invalid(String),
    #[error("the model {0} does not exist")]
    Unknown(String),
    #[error("the model {0} is served already: POST /admin/models/{0}/swap replaces it")]
    Exists(String),
    #[error("the model {model} is being changed: operation {operation}")]
    Busy { model: String, operation: String },
    #[error("the server ends, or is loading")]
    Ending,
    #[error("this server changes no models while it runs")]
    Unsupported,
    #[error("{running} operations run already, at most {max}")]
    TooMany { running: usize, max: usize },
}

/// Why the adapters of a model are as before.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdapterRefusal {
    #[error(transparent)]
    Model(#[from] ModelRefusal),
    #[error(transparent)]
    Adapter(#[from] NotAdded),
}

/// The answer to who waits for a model: it can be used, or why it cannot.
pub type Woken = oneshot::Receiver<Result<(), String>>;

/// Changes which models are served.
pub trait ModelControl: Send + Sync + fmt::Debug {
    /// What the server knows of the model of this id.
    fn residence(&self, id: &str) -> Option<Residence>;

    /// Begins to load a model that `settings` describe as `[[model]]` of the configuration does.
    ///
    /// # Errors
    /// The settings are wrong, there is such a model, or too much is done at once.
    fn load(&self, settings: Map<String, Value>) -> Result<Operation, ModelRefusal>;

    /// Begins to replace a model by what its settings are with these over them.
    ///
    /// # Errors
    /// As [`ModelControl::load`]; there is no such model, or it is being changed.
    fn swap(&self, id: &str, settings: Map<String, Value>) -> Result<Operation, ModelRefusal>;

    /// Serves no more requests of a model, and frees it when the last has ended. One that is being loaded is stopped at the next step of
    /// that: the answer is then the operation that loads it, which fails.
    ///
    /// # Errors
    /// There is no such model, or it is being changed otherwise.
    fn unload(&self, id: &str) -> Result<Operation, ModelRefusal>;

    /// Changes how requests are divided among versions: the weight of one.
    ///
    /// # Errors
    /// There is no such model, or the weight is out of bounds.
    fn set_weight(&self, id: &str, weight: f64) -> Result<(), ModelRefusal>;

    /// Changes what a model runs at once, by the configuration's keys. `null` takes a bound back.
    ///
    /// # Errors
    /// There is no such model, a bound is out of range, or a key is none of these.
    fn set_limits(&self, id: &str, limits: Map<String, Value>) -> Result<(), ModelRefusal>;

    /// Loads an adapter of the model of this id, whose adapters these are. Takes as long as the file is large.
    ///
    /// # Errors
    /// As [`Adapters::load`]; the model is being changed.
    fn load_adapter(
        &self,
        model: &str,
        adapters: &Adapters,
        wanted: &WantedAdapter,
    ) -> Result<Arc<Adapter>, AdapterRefusal> {
        let _ = model;
        Ok(adapters.load(wanted, now())?)
    }

    /// Takes an adapter of the model of this id, whose adapters these are, from new requests. False if there is none of this name.
    ///
    /// # Errors
    /// The model is being changed.
    fn unload_adapter(&self, model: &str, adapters: &Adapters, adapter: &str) -> Result<bool, AdapterRefusal> {
        let _ = model;
        Ok(adapters.remove(adapter))
    }

    /// An operation, also for a while after its end.
    fn operation(&self, id: &str) -> Option<Operation>;

    /// All of them that are remembered, the latest first.
    fn operations(&self) -> Vec<Operation>;

    /// Loads a model that sleeps.
    ///
    /// # Errors
    /// There is no such model, or too much is done at once.
    fn wake(&self, id: &str) -> Result<Woken, ModelRefusal>;
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Of a server whose models stay what they are.
#[derive(Debug)]
pub struct FixedModels;

impl ModelControl for FixedModels {
    fn residence(&self, _: &str) -> Option<Residence> {
        None
    }

    fn load(&self, _: Map<String, Value>) -> Result<Operation, ModelRefusal> {
        Err(ModelRefusal::Unsupported)
    }

    fn swap(&self, _: &str, _: Map<String, Value>) -> Result<Operation, ModelRefusal> {
        Err(ModelRefusal::Unsupported)
    }

    fn unload(&self, _: &str) -> Result<Operation, ModelRefusal> {
        Err(ModelRefusal::Unsupported)
    }

    fn set_weight(&self, _: &str, _: f64) -> Result<(), ModelRefusal> {
        Err(ModelRefusal::Unsupported)
    }

    fn set_limits(&self, _: &str, _: Map<String, Value>) -> Result<(), ModelRefusal> {
        Err(ModelRefusal::Unsupported)
    }

    fn operation(&self, _: &str) -> Option<Operation> {
        None
    }

    fn operations(&self) -> Vec<Operation> {
        Vec::new()
    }

    fn wake(&self, _: &str) -> Result<Woken, ModelRefusal> {
        Err(ModelRefusal::Unsupported)
    }
}
