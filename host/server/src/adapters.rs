//! LoRA adapters of a served model: loads files for requests, after another process has tried them, and has workers let go of those
//! that nobody uses any more.
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use camshaft_api::{AdapterLease, AdapterSource, Adapters, LoadedFile, NotAdded, PoolMessage};
use camshaft_engine::{LoadedAdapter, LoadedModel};
use crossbeam_channel::Sender;

use crate::config::{ModelConfig, ModelSource};
use crate::demo;
use crate::error::{ModelProblem, ServerError};
use crate::models;
use crate::probe::{self, Tried};
use crate::progress::LoadBar;

/// Loads adapters of one model.
#[derive(Debug)]
struct Source {
    config: ModelConfig,
    model: Arc<LoadedModel>,
    pool: Sender<PoolMessage>,
}

/// An adapter that requests may use.
#[derive(Debug)]
struct Leased {
    adapter: Arc<LoadedAdapter>,
    pool: Sender<PoolMessage>,
}

impl AdapterLease for Leased {}

impl Drop for Leased {
    fn drop(&mut self) {
        // A pool that is gone has no workers. If it is overloaded, workers let go of it when they change adapters.
        let _ = self.pool.try_send(PoolMessage::ForgetAdapter(self.adapter.digest()));
    }
}

impl Source {
    fn lease(&self, path: &Path) -> Result<LoadedFile, ServerError> {
        let adapter = self.model.load_adapter(path).map_err(|error| models::from_engine(&self.config, error))?;
        let (digest, bytes) = (adapter.digest(), adapter.bytes());
        Ok(LoadedFile { digest, bytes, lease: Arc::new(Leased { adapter, pool: self.pool.clone() }) })
    }
}

impl AdapterSource for Source {
    fn load(&self, path: &Path) -> Result<LoadedFile, String> {
        let base = match self.config.source() {
            ModelSource::Demo => Path::new(demo::NAME).to_owned(),
            ModelSource::File(path) => path,
        };
        // What it tells of its progress is not how far the server is.
        let bar = LoadBar::new(&self.config.id, &Arc::default());
        let tried = probe::probe(&base, &self.config, Tried::Adapter(path), &bar);
        let loaded = tried.and_then(|tried| tried.confirm(self.lease(path)));
        loaded.map_err(|error| match error {
            ServerError::Model(model) => model.source.to_string(),
            error => error.to_string(),
        })
    }
}

/// The adapters of a model, with those of its configuration, which were tried with it.
///
/// # Errors
/// One cannot be loaded.
pub(crate) fn load(
    config: &ModelConfig,
    model: &Arc<LoadedModel>,
    pool: &Sender<PoolMessage>,
) -> Result<Arc<Adapters>, ServerError> {
    let source = || Source { config: config.clone(), model: model.clone(), pool: pool.clone() };
    let adapters = Adapters::of(Box::new(source()));
    let source = source();
    let created = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    for adapter in &config.adapter {
        let loaded = source.lease(&adapter.path)?;
        let added = adapters.add(&adapter.id, adapter.scale, created, loaded);
        added.map_err(|error| refused(config, error))?;
        tracing::info!(model = config.id, adapter = adapter.id, "adapter loaded");
    }
    Ok(Arc::new(adapters))
}

fn refused(config: &ModelConfig, error: NotAdded) -> ServerError {
    let problem = ModelProblem::Adapter(error);
    ServerError::model(&config.id, &config.origins, "adapter", problem)
}
