//! From a configured model to its threads: weights, workers, pool, or the embedder.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use camshaft_api::{
    Adapters, Backend, EmbedBackend, GenerateBackend, Model, PoolMessage, PredictBackend, PredictInfo, Readiness,
    TextModel,
};
use camshaft_core::cache::PrefixCache;
use camshaft_core::embed::fake::FakeEmbedder;
use camshaft_core::embed::{Embedder, EmbedderLimits};
use camshaft_core::engine::{Engine, ModelInfo, ModelKind};
use camshaft_core::fake::{ByteTokenizer, FakeEngine};
use camshaft_core::ids::WorkerId;
use camshaft_core::pool::Pool;
use camshaft_core::promised::Promised;
use camshaft_core::sizes::Sizes;
use camshaft_core::worker::{Speculation, Worker, WorkerOptions};
use camshaft_policy::PolicyHost;
use camshaft_tensor::{Facts, Predictor, TensorModel};
use crossbeam_channel::Sender;

use crate::adapters;
use crate::batch_thread::{self, BatchSetup};
use crate::cache_plan::{CacheOwner, CachePlan};
use crate::config::{Config, ModelConfig};
use crate::cores::Cores;
use crate::error::ServerError;
use crate::mailbox::Mailbox;
use crate::metrics::ServerMetrics;
use crate::placing::Standby;
use crate::pool_thread::{self, PoolSetup, WorkerSeat};
use crate::supervisor::{Gauges, Supervisor};
use crate::tuning::Tuned;
use crate::weights::{self, Weights, WeightsSource};
use crate::worker_thread::{self, Handle, WorkerSetup};

/// Submissions on their way to a pool; a further one is refused as overload.
const SUBMISSIONS: usize = 1024;
/// Reports on their way from workers to a pool; a worker waits at the bound.
const REPORTS: usize = 4096;
/// The label `worker` of an embedder.
const EMBEDDER: &str = "0";
/// Numbers of a vector that the fake embedder gives.
const FAKE_DIMENSIONS: u32 = 64;

/// What all models are started with.
pub(crate) struct Starter<'a> {
    pub(crate) all: &'a Config,
    /// Of the host's memory.
    pub(crate) promised: &'a Arc<Mutex<Promised>>,
    pub(crate) tuned: &'a Tuned,
    pub(crate) cache: &'a CachePlan,
    pub(crate) policies: &'a Arc<PolicyHost>,
    pub(crate) metrics: &'a ServerMetrics,
    pub(crate) supervisor: &'a Supervisor,
    pub(crate) readiness: &'a Readiness,
    /// For the threads of workers.
    pub(crate) cores: &'a Cores,
}

/// What a worker is made of, beside its engine.
struct Parts {
    cache: PrefixCache,
    speculation: Option<Speculation>,
}

impl Starter<'_> {
    /// Starts the threads that serve a model. `number`: its number among all models.
    ///
    /// # Errors
    /// There is not enough memory, or the configuration does not fit the model.
    pub(crate) fn start(&self, number: usize, model: &Weights) -> Result<Model, ServerError> {
        let config = model.config();
        match (&model.loaded.source, model.loaded.kind()) {
            (WeightsSource::Tensors { model: loaded, sha256 }, _) => {
                self.start_predictors(config, loaded, sha256.clone())
            }
            (WeightsSource::Llama { model: loaded, .. }, ModelKind::Embed) => {
                let make = {
                    let (loaded, sizes) = (loaded.clone(), model.sizes.clone());
                    let standby = Standby::new(&model.loaded, number, self.promised);
                    move || standby.make(&loaded, &sizes, weights::embedder)
                };
                let text = TextModel { info: loaded.info().clone(), tokenizer: loaded.tokenizer() };
                self.start_embedder(config, text, make)
            }
            (WeightsSource::Llama { model: loaded, draft }, _) => {
                let make = {
                    let (config, plan) = (config.clone(), self.cache.clone());
                    let (loaded, draft, sizes) = (loaded.clone(), draft.clone(), model.sizes.clone());
                    let standby = Standby::new(&model.loaded, number, self.promised);
                    move |id| {
                        let (engine, options) = standby.make(&loaded, &sizes, |config, computes, sizes| {
                            let options = weights::engine_options(config, sizes);
                            Ok((weights::engine(config, computes, &options)?, options))
                        })?;
                        let speculation = weights::speculation(&config, draft.as_ref(), &options)?;
                        let owner = CacheOwner { id: &config.id, model: &loaded, options: &options, worker: id };
                        Ok((engine, Parts { cache: plan.open(&owner), speculation }))
                    }
                };
                let text = TextModel { info: loaded.info().clone(), tokenizer: loaded.tokenizer() };
                let adapters = |pool: &Sender<PoolMessage>| adapters::load(config, loaded, pool);
                self.start_pool(model, text, adapters, make)
            }
            (WeightsSource::Fake(ModelKind::Embed), _) => {
                let Sizes { sequences, batch_tokens, input_tokens, .. } = model.sizes;
                let limits = EmbedderLimits {
                    batch_tokens,
                    efficient_tokens: batch_tokens,
                    batch_inputs: sequences as usize,
                    input_tokens,
                    dimensions: FAKE_DIMENSIONS,
                };
                self.start_embedder(config, fake_text(ModelKind::Embed), move || Ok(FakeEmbedder::new(limits)))
            }
            (WeightsSource::Fake(_), _) => {
                let (limits, ram_bytes) = (model.fake_limits(), self.cache.ram_bytes);
                let make = move |id: WorkerId| {
                    let mut engine = FakeEngine::new(limits, u64::from(id.0));
                    engine.memory = 8;
                    Ok((engine, Parts { cache: PrefixCache::new(ram_bytes), speculation: None }))
                };
                self.start_pool(model, fake_text(ModelKind::Generate), |_| Ok(Arc::default()), make)
            }
        }
    }

    fn start_pool<E: Engine + Send + 'static>(
        &self,
        model: &Weights,
        TextModel { mut info, tokenizer }: TextModel,
        adapters: impl FnOnce(&Sender<PoolMessage>) -> Result<Arc<Adapters>, ServerError>,
        make: impl Fn(WorkerId) -> Result<(E, Parts), ServerError> + Clone + Send + 'static,
    ) -> Result<Model, ServerError> {
        let config = model.config();
        info.context_tokens = info.context_tokens.min(model.sizes.sequence_tokens());
        let begun = Instant::now();
        let mut pool =
            Pool::new(self.policies.scheduler(&config.id), self.all.live.queue.watermarks(), config.reserve());
        let (reports_in, reports) = crossbeam_channel::bounded(REPORTS);
        let mut workers = BTreeMap::new();
        for number in 0..config.workers {
            let id = WorkerId(number);
            let setup = WorkerSetup {
                id,
                reports: reports_in.clone(),
                slow_reader: self.all.fixed.limits.slow_reader.0,
                frame_interval: self.all.fixed.limits.frame_interval.0,
                cores: self.cores.take(model.sizes.threads),
            };
            let handle = self.start_worker(config, setup, &info, make.clone())?;
            info.context_tokens = info.context_tokens.min(handle.limits.context_tokens);
            pool.add_worker(id, handle.limits);
            let metrics = self.metrics.worker(&config.id, &id.to_string());
            workers.insert(id, WorkerSeat { mailbox: Some(Mailbox::new(handle.messages)), metrics });
        }
        let (submissions_in, submissions) = crossbeam_channel::bounded(SUBMISSIONS);
        let adapters = adapters(&submissions_in)?;
        let metrics = self.metrics.pool(&config.id);
        pool_thread::spawn(
            self.supervisor,
            PoolSetup {
                pool,
                begun,
                submissions,
                reports,
                workers,
                metrics,
                slow_reader: self.all.fixed.limits.slow_reader.0,
                tuned: self.tuned.clone(),
            },
            &config.id,
        )?;
        tracing::info!(
            model = config.id,
            name = info.name,
            parameters = info.parameters,
            context_tokens = info.context_tokens,
            workers = config.workers,
            "model loaded"
        );
        let backend = GenerateBackend { text: TextModel { info, tokenizer }, pool: submissions_in, adapters };
        Ok(Model { id: config.id.clone(), created: now(), backend: Backend::Generate(backend) })
    }

    fn start_worker<E: Engine + Send + 'static>(
        &self,
        config: &ModelConfig,
        setup: WorkerSetup,
        info: &ModelInfo,
        make: impl Fn(WorkerId) -> Result<(E, Parts), ServerError> + Send + 'static,
    ) -> Result<Handle, ServerError> {
        let (id, step_target) = (setup.id, config.step_target());
        let (policies, vocabulary) = (self.policies.clone(), info.vocabulary.clone());
        let gauges = self.gauges(config, &id.to_string());
        worker_thread::spawn(self.supervisor, gauges, setup, move || {
            let (engine, Parts { cache, speculation }) = make(id)?;
            let worker = Worker::new(WorkerOptions {
                id,
                limits: engine.limits(),
                vocabulary: vocabulary.clone(),
                samplers: policies.clone(),
                filters: policies.clone(),
                cache,
                step_target,
                speculation,
            });
            Ok((engine, worker))
        })
    }

    fn start_embedder<E: Embedder + Send + 'static>(
        &self,
        config: &ModelConfig,
        mut text: TextModel,
        make: impl Fn() -> Result<E, ServerError> + Clone + Send + 'static,
    ) -> Result<Model, ServerError> {
        let setup = BatchSetup {
            seats: vec![(format!("embedder-{}", config.id), self.gauges(config, EMBEDDER))],
            metrics: self.metrics.queue(&config.id),
            tuned: self.tuned.clone(),
        };
        let (jobs, limits) = batch_thread::spawn(self.supervisor, setup, E::limits, make)?;
        let EmbedderLimits { input_tokens, dimensions, .. } = limits;
        weights::dimensions_fit(config, dimensions)?;
        text.info.context_tokens = input_tokens;
        tracing::info!(model = config.id, name = text.info.name, dimensions, input_tokens, "embedding model loaded");
        let backend = Backend::Embed(EmbedBackend {
            text,
            jobs,
            input_tokens,
            dimensions,
            shorter_dimensions: config.dimensions.clone(),
        });
        Ok(Model { id: config.id.clone(), created: now(), backend })
    }

    fn start_predictors(
        &self,
        config: &ModelConfig,
        model: &Arc<TensorModel>,
        sha256: Option<String>,
    ) -> Result<Model, ServerError> {
        let id = &config.id;
        let seat = |number: u32| (format!("predictor-{id}-{number}"), self.gauges(config, &number.to_string()));
        let setup = BatchSetup {
            seats: (0..config.workers).map(seat).collect(),
            metrics: self.metrics.queue(id),
            tuned: self.tuned.clone(),
        };
        let make = {
            let model = model.clone();
            move || Ok(Predictor::new(model.clone()))
        };
        let (jobs, ()) = batch_thread::spawn(self.supervisor, setup, |_: &Predictor| (), make)?;
        let Facts { format, backend, name, parameters, bytes } = model.facts.clone();
        let (workers, rows) = (config.workers, model.signature.rows);
        tracing::info!(model = id, name, format, backend, parameters, workers, rows, "tensor model loaded");
        let info = PredictInfo { name, format, backend, parameters, weight_bytes: bytes, sha256 };
        let (signature, computing) = (model.signature.clone(), model.clone());
        let backend = Backend::Predict(PredictBackend { jobs, info, signature, computing });
        Ok(Model { id: id.clone(), created: now(), backend })
    }

    fn gauges(&self, config: &ModelConfig, worker: &str) -> Gauges {
        self.metrics.gauges(&config.id, worker, self.readiness.health(&config.id))
    }
}

fn fake_text(kind: ModelKind) -> TextModel {
    TextModel { info: weights::fake_info(kind), tokenizer: Arc::new(ByteTokenizer) }
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
#[path = "start_tests.rs"]
mod tests;
