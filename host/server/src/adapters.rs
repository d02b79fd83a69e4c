//! LoRA adapters of a served model: loads files for requests, and has workers let go of those that nobody uses any more.
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camshaft_api::{AdapterLease, AdapterSource, Adapters, LoadedFile, NotAdded, PoolMessage};
use camshaft_core::ids::AdapterDigest;
use camshaft_core::promised::Promised;
use crossbeam_channel::Sender;

use crate::config::ModelConfig;
use crate::error::{ModelProblem, ServerError};
use crate::machine;
use crate::sizing::mib;
use crate::worker_process::EngineProcess;

/// The model whose adapters are loaded.
#[derive(Debug, Clone)]
pub(crate) struct Base {
    pub(crate) config: ModelConfig,
    /// Its number among all models.
    pub(crate) number: usize,
    /// Who has them.
    pub(crate) process: Arc<EngineProcess>,
    /// Of the host's memory.
    pub(crate) promised: Arc<Mutex<Promised>>,
}

/// Loads adapters of one model.
#[derive(Debug)]
struct Source {
    base: Base,
    pool: Sender<PoolMessage>,
}

/// An adapter that requests may use.
#[derive(Debug)]
struct Leased {
    digest: AdapterDigest,
    process: Arc<EngineProcess>,
    _room: Taken,
    pool: Sender<PoolMessage>,
}

/// Memory that was promised to an adapter, until it is freed.
#[derive(Debug)]
struct Taken {
    number: usize,
    promised: Arc<Mutex<Promised>>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        lock(&self.promised).release(self.number);
    }
}

impl AdapterLease for Leased {}

impl Drop for Leased {
    fn drop(&mut self) {
        // A pool that is gone has no workers. If it is overloaded, workers let go of it when they change adapters.
        let _ = self.pool.try_send(PoolMessage::ForgetAdapter(self.digest));
        self.process.drop_adapter(self.digest);
    }
}

impl Source {
    /// `room`: what was taken for it of the memory, if it was not counted with the model.
    fn lease(&self, path: &Path, room: Option<Taken>) -> Result<LoadedFile, ServerError> {
        let Base { number, process, promised, .. } = &self.base;
        let (digest, bytes) = process.load_adapter(path)?;
        let split = || Taken { number: lock(promised).split(*number, bytes), promised: promised.clone() };
        let room = room.unwrap_or_else(split);
        let lease = Leased { digest, process: process.clone(), _room: room, pool: self.pool.clone() };
        Ok(LoadedFile { digest, bytes, lease: Arc::new(lease) })
    }

    /// Takes memory for a file.
    ///
    /// # Errors
    /// There is too little.
    fn room_for(&self, path: &Path) -> Result<Taken, String> {
        // One that cannot be read is refused when it is loaded.
        let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
        let promised = &self.base.promised;
        let free = machine::look().memory;
        let taken = if bytes > free { Err(free) } else { lock(promised).take(bytes) };
        let number = taken.map_err(|left| format!("needs {}, {} free", mib(bytes), mib(left)))?;
        Ok(Taken { number, promised: promised.clone() })
    }
}

impl AdapterSource for Source {
    fn load(&self, path: &Path) -> Result<LoadedFile, String> {
        let room = self.room_for(path)?;
        self.lease(path, Some(room)).map_err(|error| match error {
            ServerError::Model(model) => model.source.to_string(),
            error => error.to_string(),
        })
    }
}

/// The adapters of a model, with those of its configuration.
///
/// # Errors
/// One cannot be loaded.
pub(crate) fn load(base: &Base, pool: &Sender<PoolMessage>, created: u64) -> Result<Arc<Adapters>, ServerError> {
    let source = || Source { base: base.clone(), pool: pool.clone() };
    let adapters = Adapters::of(Box::new(source()));
    let (source, config) = (source(), &base.config);
    for adapter in &config.adapter {
        let loaded = source.lease(&adapter.path, None)?;
        let added = adapters.add(&adapter.id, adapter.scale, created, loaded);
        added.map_err(|error| refused(config, error))?;
        tracing::info!(model = config.id, adapter = adapter.id, "adapter loaded");
    }
    Ok(Arc::new(adapters))
}

fn lock(promised: &Mutex<Promised>) -> MutexGuard<'_, Promised> {
    promised.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(config: &ModelConfig, error: NotAdded) -> ServerError {
    let problem = ModelProblem::Adapter(error);
    ServerError::model(&config.id, &config.origins, "adapter", problem)
}
