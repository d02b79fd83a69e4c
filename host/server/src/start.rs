//! From a configured model to its threads: weights, workers, pool, or the embedder.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use camshaft_api::{Backend, EmbedBackend, Model};
use camshaft_core::cache::PrefixCache;
use camshaft_core::engine::{Engine, EngineLimits, ModelInfo, ModelKind, Tokenizer};
use camshaft_core::fake::{ByteTokenizer, FakeEngine};
use camshaft_core::ids::WorkerId;
use camshaft_core::pool::Pool;
use camshaft_core::speculate::{Drafter, ModelDrafter, PromptLookup};
use camshaft_core::worker::{Speculation, Worker, WorkerOptions};
use camshaft_engine::{EngineOptions, LlamaEmbedder, LlamaEngine, LoadedModel};
use camshaft_policy::PolicyHost;

use crate::cache_plan::CachePlan;
use crate::config::{Config, ModelConfig, ModelSource};
use crate::error::ServerError;
use crate::metrics::ServerMetrics;
use crate::pool_thread::{self, PoolSetup};
use crate::worker_thread::{self, WorkerSetup};
use crate::{embed_thread, models};

/// Submissions on their way to a pool; a further one is refused as overload.
const SUBMISSIONS: usize = 1024;
/// Reports on their way from workers to a pool; a worker waits at the bound.
const REPORTS: usize = 4096;

/// What all models are started with.
pub(crate) struct Starter<'a> {
    pub(crate) all: &'a Config,
    pub(crate) room: &'a CachePlan,
    pub(crate) policies: &'a Arc<PolicyHost>,
    pub(crate) metrics: &'a ServerMetrics,
}

/// What a worker is made of, beside its engine.
struct Parts {
    cache: PrefixCache,
    speculation: Option<Speculation>,
}

impl Starter<'_> {
    /// Loads a model and starts the threads that serve it.
    ///
    /// # Errors
    /// What is wrong with its file, or with what its configuration asks of it.
    pub(crate) fn start(&self, config: &ModelConfig) -> Result<Model, ServerError> {
        if config.source == ModelSource::Fake {
            return self.start_fake(config);
        }
        let loaded = models::load(config, self.room.disk.is_some())?;
        if loaded.info().kind == ModelKind::Embed {
            return self.start_embedder(config, &loaded);
        }
        if !config.dimensions.is_empty() {
            return Err(for_kind(config, "model.dimensions", ModelKind::Embed));
        }
        let draft = match &config.draft_model {
            Some(path) => Some(models::load_draft(config, path, &loaded)?),
            None => None,
        };
        let make = {
            let (config, loaded, room) = (config.clone(), loaded.clone(), self.room.clone());
            let options = config.engine_options();
            move |id| {
                let engine = LlamaEngine::new(loaded.clone(), &options);
                let engine = engine.map_err(|error| models::from_engine(&config, &error))?;
                let speculation = speculation(&config, draft.as_ref(), &options)?;
                Ok((engine, Parts { cache: room.open(&loaded, &options, id), speculation }))
            }
        };
        self.start_pool(config, loaded.info().clone(), loaded.tokenizer(), make)
    }

    /// The engine that computes nothing: what is then measured is everything around it.
    fn start_fake(&self, config: &ModelConfig) -> Result<Model, ServerError> {
        let (sequences, kv_tokens) = (config.sequences, config.context_tokens);
        let limits =
            EngineLimits { sequences, kv_tokens, batch_tokens: config.batch_tokens, context_tokens: kv_tokens };
        let ram_bytes = self.room.ram_bytes;
        let make = move |id: WorkerId| {
            let mut engine = FakeEngine::new(limits, u64::from(id.0));
            engine.memory = 8;
            Ok((engine, Parts { cache: PrefixCache::new(ram_bytes), speculation: None }))
        };
        self.start_pool(config, FakeEngine::info(limits), Arc::new(ByteTokenizer), make)
    }

    fn start_pool<E: Engine + Send + 'static>(
        &self,
        config: &ModelConfig,
        mut info: ModelInfo,
        tokenizer: Arc<dyn Tokenizer>,
        make: impl Fn(WorkerId) -> Result<(E, Parts), ServerError> + Clone + Send + 'static,
    ) -> Result<Model, ServerError> {
        info.context_tokens = info.context_tokens.min(config.sequence_tokens());
        let begun = Instant::now();
        let mut pool = Pool::new(self.policies.clone(), self.all.queue.watermarks, config.kv_reserve);
        let (reports_in, reports) = crossbeam_channel::bounded(REPORTS);
        let mut workers = BTreeMap::new();
        for number in 0..config.workers {
            let id = WorkerId(number);
            let setup = WorkerSetup {
                id,
                reports: reports_in.clone(),
                metrics: self.metrics.worker(&config.id, &id.to_string()),
                slow_reader: self.all.limits.slow_reader,
                frame_interval: self.all.limits.frame_interval,
            };
            let (make, policies, vocabulary) = (make.clone(), self.policies.clone(), info.vocabulary.clone());
            let step_target = config.step_target;
            let hired = worker_thread::spawn(setup, move || {
                let (engine, Parts { cache, speculation }) = make(id)?;
                let worker = Worker::new(WorkerOptions {
                    id,
                    limits: engine.limits(),
                    vocabulary: vocabulary.clone(),
                    samplers: policies.clone(),
                    cache,
                    step_target,
                    speculation,
                });
                Ok((engine, worker))
            })?;
            info.context_tokens = info.context_tokens.min(hired.limits.context_tokens);
            pool.add_worker(id, hired.limits);
            workers.insert(id, hired.messages);
        }
        let (submissions_in, submissions) = crossbeam_channel::bounded(SUBMISSIONS);
        let metrics = self.metrics.pool(&config.id);
        pool_thread::spawn(PoolSetup { pool, begun, submissions, reports, workers, metrics }, &config.id)?;
        tracing::info!(
            model = config.id,
            name = info.name,
            parameters = info.parameters,
            context_tokens = info.context_tokens,
            workers = config.workers,
            "model loaded"
        );
        let backend = Backend::Generate(submissions_in);
        Ok(Model { id: config.id.clone(), created: now(), tokenizer, info, backend })
    }

    fn start_embedder(&self, config: &ModelConfig, loaded: &Arc<LoadedModel>) -> Result<Model, ServerError> {
        if config.lora.is_some() || config.draft_tokens > 0 {
            return Err(for_kind(config, "model.lora and model.draft-tokens", ModelKind::Generate));
        }
        let mut info = loaded.info().clone();
        // An input is computed in one piece, so a batch holds at least one of the longest.
        let input_tokens = info.trained_context_tokens.min(config.context_tokens);
        let batch_tokens = config.batch_tokens.max(input_tokens);
        let embedder = LlamaEmbedder::new(loaded.clone(), batch_tokens, config.threads);
        let embedder = embedder.map_err(|error| models::from_engine(config, &error))?;
        let dimensions = embedder.dimensions();
        if let Some(bad) = config.dimensions.iter().find(|&&shorter| shorter >= dimensions) {
            let id = &config.id;
            return Err(ServerError::Config(format!(
                "model.dimensions of {id:?} must be below the model's own {dimensions}, got {bad}"
            )));
        }
        info.context_tokens = input_tokens;
        tracing::info!(model = config.id, name = info.name, dimensions, input_tokens, "embedding model loaded");
        let backend = Backend::Embed(EmbedBackend {
            jobs: embed_thread::spawn(embedder, &config.id, self.all.queue.watermarks.high)?,
            input_tokens,
            dimensions,
            shorter_dimensions: config.dimensions.clone(),
        });
        Ok(Model { id: config.id.clone(), created: now(), tokenizer: loaded.tokenizer(), info, backend })
    }
}

/// Something was set that only models of another kind have.
fn for_kind(config: &ModelConfig, what: &str, kind: ModelKind) -> ServerError {
    ServerError::Config(format!("{what} of {:?}: only for models with kind = \"{kind}\"", config.id))
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Who guesses ahead for a worker.
fn speculation(
    config: &ModelConfig,
    draft: Option<&Arc<LoadedModel>>,
    options: &EngineOptions,
) -> Result<Option<Speculation>, ServerError> {
    if config.draft_tokens == 0 {
        return Ok(None);
    }
    let drafter: Box<dyn Drafter> = match draft {
        None => Box::new(PromptLookup),
        Some(draft) => {
            let engine = LlamaEngine::new(draft.clone(), options);
            Box::new(ModelDrafter::new(engine.map_err(|error| models::from_engine(config, &error))?))
        }
    };
    Ok(Some(Speculation { drafter, draft_tokens: config.draft_tokens }))
}
