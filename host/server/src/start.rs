//! From a configured model to its threads: weights, workers, pool, or the embedder.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use camshaft_api::{
    Adapters, Backend, ConfiguredSampling, EmbedBackend, GenerateBackend, Model, ModelHealth, PoolMessage,
    PredictBackend, PredictInfo,
};
use camshaft_core::cache::PrefixCache;
use camshaft_core::embed::fake::FakeEmbedder;
use camshaft_core::embed::{Embedder, EmbedderLimits};
use camshaft_core::engine::{Engine, ModelKind};
use camshaft_core::fake::ByteTokenizer;
use camshaft_core::grammar::{GrammarStore, MaskThread};
use camshaft_core::ids::WorkerId;
use camshaft_core::jobs::{BatchLimits, BatchModel};
use camshaft_core::pool::Pool;
use camshaft_core::promised::Promised;
use camshaft_core::sizes::Sizes;
use camshaft_core::worker::{Speculation, Worker, WorkerOptions};
use camshaft_engine::{LoadedModel, ModelOutline};
use camshaft_policy::PolicyHost;
use camshaft_tensor::{Facts, Predictor, TensorModel};
use crossbeam_channel::{Receiver, Sender};
use tokio::sync::watch;

use crate::adapters::{self, Loads};
use crate::batch_thread::{self, BatchSetup, JobsOf};
use crate::bounds::ModelBounds;
use crate::cache_plan::{CacheOwner, CachePlan};
use crate::config::{FamilyKey, ModelConfig, ModelSource};
use crate::cores::Cores;
use crate::demo;
use crate::error::ServerError;
use crate::logging::LogHandle;
use crate::mailbox::Mailbox;
use crate::metrics::ServerMetrics;
use crate::placing::Standby;
use crate::pool_thread::{self, PoolSetup, WorkerSeat};
use crate::progress::ProgressSink;
use crate::reader::{self, Origin, Readable};
use crate::supervisor::{Gauges, Service, ShutdownStage, Supervisor};
use crate::thread_budget::ThreadBudget;
use crate::tuning::Tuned;
use crate::weights::{self, Weights, WeightsSource};
use crate::worker_process::{EngineProcess, LineService, ProcessSetup};
use crate::worker_thread::{self, Handle, WorkerSetup};

/// Submissions on their way to a pool; a further one is refused as overload.
const SUBMISSIONS: usize = 1024;
/// Reports on their way from workers to a pool; a worker waits at the bound.
const REPORTS: usize = 4096;
/// Numbers of a vector that the fake embedder gives.
const FAKE_DIMENSIONS: u32 = 64;

/// What all models are started with.
#[derive(Debug)]
pub(crate) struct Starter {
    /// Of the host's memory.
    pub(crate) promised: Arc<Mutex<Promised>>,
    pub(crate) tuned: Tuned,
    pub(crate) cache: CachePlan,
    pub(crate) policies: Arc<PolicyHost>,
    pub(crate) metrics: ServerMetrics,
    pub(crate) supervisor: Arc<Supervisor>,
    /// For the threads of workers.
    pub(crate) cores: Cores,
    /// The cores, for threads that compute.
    pub(crate) budget: Arc<ThreadBudget>,
    /// For those who listen to workers in other processes; in tests there are none.
    pub(crate) runtime: Option<tokio::runtime::Handle>,
    /// How long a reader may be behind.
    pub(crate) slow_reader: Duration,
    /// Text of a stream that comes faster shares frames.
    pub(crate) frame_interval: Duration,
    pub(crate) log: LogHandle,
}

/// A model whose threads run.
pub(crate) struct Started {
    pub(crate) model: Model,
    /// Disconnected when its threads have ended, and nothing of it is in memory any more.
    pub(crate) ended: Receiver<Infallible>,
    /// Its bounds that may change while it runs.
    pub(crate) bounds: watch::Sender<ModelBounds>,
}

/// A model that is being started.
#[derive(Clone)]
struct Beginning {
    health: ModelHealth,
    /// Held by its threads.
    alive: Sender<Infallible>,
    bounds: watch::Receiver<ModelBounds>,
}

/// What a worker is made of, beside its engine.
struct Parts {
    cache: PrefixCache,
    speculation: Option<Speculation>,
}

impl Starter {
    /// Starts the threads that serve a model. They end when nobody can ask for it any more and the last request has ended.
    /// `number`: its number among all models.
    ///
    /// # Errors
    /// There is not enough memory, or the configuration does not fit the model.
    pub(crate) fn start(&self, number: usize, model: &Weights) -> Result<Started, ServerError> {
        let (alive, ended) = crossbeam_channel::bounded(0);
        let (bounds, bounded) = watch::channel(ModelBounds::of(model.config()));
        let beginning = Beginning { health: ModelHealth::default(), alive, bounds: bounded };
        let model = self.start_threads(number, model, &beginning)?;
        Ok(Started { model, ended, bounds })
    }

    fn start_threads(&self, number: usize, model: &Weights, beginning: &Beginning) -> Result<Model, ServerError> {
        let config = model.config();
        match (&model.loaded.source, model.loaded.kind()) {
            (WeightsSource::Tensors { model: loaded, sha256 }, _) => {
                self.start_predictors(model, loaded, sha256.clone(), beginning)
            }
            (WeightsSource::Llama { model: loaded, .. }, ModelKind::Embed) => {
                let make = {
                    let (loaded, sizes) = (loaded.clone(), model.sizes.clone());
                    let standby = Standby::new(&model.loaded, number, &self.promised);
                    move || standby.make(&loaded, &sizes, weights::embedder)
                };
                let text = readable(model, loaded);
                self.start_embedder(model, text, beginning, make)
            }
            (WeightsSource::Llama { model: loaded, .. }, _) if model.loaded.is_apart => {
                let process = self.process(model, Some(loaded.outline()), beginning);
                let loads = Loads::Apart(process.clone());
                let base = adapters::Base { config: config.clone(), number, loads, promised: self.promised.clone() };
                let adapters = |pool: &Sender<PoolMessage>| adapters::load(&base, pool, now());
                let mut text = readable(model, loaded);
                text.info.sha256 = process.sha256()?;
                let start = |setup, _: &_| self.start_line(setup, &process, (model, beginning));
                let grammars = compiled_by(&process, &text);
                self.start_pool(model, (text, grammars), beginning, (adapters, start))
            }
            (WeightsSource::Llama { model: loaded, draft }, _) => {
                let make = {
                    let (config, plan) = (config.clone(), self.cache.clone());
                    let (loaded, draft, sizes) = (loaded.clone(), draft.clone(), model.sizes.clone());
                    let standby = Standby::new(&model.loaded, number, &self.promised);
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
                let text = readable(model, loaded);
                let (config, loads) = (config.clone(), Loads::Here(loaded.clone()));
                let base = adapters::Base { config, number, loads, promised: self.promised.clone() };
                let adapters = |pool: &Sender<PoolMessage>| adapters::load(&base, pool, now());
                let start = |setup, grammars: &_| self.start_worker(setup, (model, grammars, beginning), make.clone());
                let grammars = GrammarStore::new(text.info.vocabulary.clone());
                self.start_pool(model, (text, grammars), beginning, (adapters, start))
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
                self.start_embedder(model, fake_text(ModelKind::Embed), beginning, move || {
                    Ok(FakeEmbedder::new(limits))
                })
            }
            // Compiled policies are nowhere that another process finds them in programs that compile them by themselves.
            (WeightsSource::Fake(_), _) if model.loaded.is_apart && self.policies.replicate().is_ok() => {
                let text = fake_text(ModelKind::Generate);
                let process = self.process(model, None, beginning);
                let start = |setup, _: &_| self.start_line(setup, &process, (model, beginning));
                let grammars = compiled_by(&process, &text);
                self.start_pool(model, (text, grammars), beginning, (|_: &_| Ok(Arc::default()), start))
            }
            (WeightsSource::Fake(_), _) => {
                let (limits, ram_bytes) = (weights::fake_limits(&model.sizes), self.cache.ram_bytes);
                let make = move |id: WorkerId| {
                    Ok((
                        weights::fake_engine(limits, id),
                        Parts { cache: PrefixCache::new(ram_bytes), speculation: None },
                    ))
                };
                let start = |setup, grammars: &_| self.start_worker(setup, (model, grammars, beginning), make);
                let text = fake_text(ModelKind::Generate);
                let grammars = GrammarStore::new(text.info.vocabulary.clone());
                self.start_pool(model, (text, grammars), beginning, (|_: &_| Ok(Arc::default()), start))
            }
        }
    }

    /// What computes for a model in a process of its own.
    fn process(&self, model: &Weights, outline: Option<ModelOutline>, beginning: &Beginning) -> Arc<EngineProcess> {
        EngineProcess::new(ProcessSetup {
            weights: model.clone(),
            outline,
            digest: self.cache.parts().has_disk(),
            cache: self.cache.clone(),
            policies: self.policies.clone(),
            log: self.log.clone(),
            sink: ProgressSink::default(),
            alive: beginning.alive.clone(),
        })
    }

    /// Has a worker opened there, and starts the thread that listens to it.
    fn start_line(
        &self,
        setup: WorkerSetup,
        process: &Arc<EngineProcess>,
        (model, beginning): (&Weights, &Beginning),
    ) -> Result<Handle, ServerError> {
        let gauges = self.gauges(model.config(), &setup.id.to_string(), beginning);
        let name = format!("worker-{}", setup.id);
        let no_runtime = || ServerError::internal("listen to a worker", anyhow::anyhow!("there is no runtime"));
        let runtime = self.runtime.clone().ok_or_else(no_runtime)?;
        let (process, policies, budget) = (process.clone(), self.policies.clone(), self.budget.clone());
        let setup = Arc::new(Mutex::new(setup));
        let (health, _alive) = (gauges.health.clone(), beginning.alive.clone());
        let mut service = LineService { process, runtime, setup, policies, budget, health, _alive };
        let (first, handle) = service.make()?;
        self.supervisor.supervise(&name, gauges, service, first)?;
        Ok(handle)
    }

    fn start_pool(
        &self,
        model: &Weights,
        (mut text, grammars): (Readable, GrammarStore),
        beginning: &Beginning,
        (adapters, start): (
            impl FnOnce(&Sender<PoolMessage>) -> Result<Arc<Adapters>, ServerError>,
            impl Fn(WorkerSetup, &Arc<GrammarStore>) -> Result<Handle, ServerError>,
        ),
    ) -> Result<Model, ServerError> {
        let config = model.config();
        let info = &mut text.info;
        info.context_tokens = info.context_tokens.min(model.sizes.sequence_tokens());
        let grammars = Arc::new(grammars);
        if config.source() == ModelSource::Demo {
            info.sampling = info.sampling.over(demo::sampling());
        }
        let begun = Instant::now();
        let watermarks = self.tuned.borrow().watermarks;
        let mut pool = Pool::new(self.policies.scheduler(&config.id), watermarks, config.reserve());
        let (reports_in, reports) = crossbeam_channel::bounded(REPORTS);
        let mut workers = BTreeMap::new();
        for number in 0..config.workers {
            let id = WorkerId(number);
            let setup = WorkerSetup {
                id,
                reports: reports_in.clone(),
                slow_reader: self.slow_reader,
                frame_interval: self.frame_interval,
                cores: self.cores.take(model.sizes.threads),
                seat: self.budget.seat(model.sizes.threads),
            };
            let handle = start(setup, &grammars)?;
            info.context_tokens = info.context_tokens.min(handle.limits.context_tokens);
            pool.add_worker(id, handle.limits);
            let metrics = self.metrics.worker(&config.id, &id.to_string());
            workers.insert(id, WorkerSeat { mailbox: Some(Mailbox::new(handle.messages)), metrics });
        }
        let (submissions_in, submissions) = crossbeam_channel::bounded(SUBMISSIONS);
        let adapters = adapters(&submissions_in)?;
        let (metrics, accepts) = (self.metrics.pool(&config.id), Arc::new(AtomicBool::new(true)));
        pool_thread::spawn(
            &self.supervisor,
            PoolSetup {
                pool,
                begun,
                submissions,
                reports,
                workers,
                metrics,
                slow_reader: self.slow_reader,
                tuned: self.tuned.clone(),
                bounds: beginning.bounds.clone(),
                accepts: accepts.clone(),
                _alive: beginning.alive.clone(),
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
        let text = reader::start(config, text, &grammars)?;
        let sampling = ConfiguredSampling::new((&config.sampling).into());
        let family = config.family.map(|FamilyKey(family)| family);
        let backend = GenerateBackend { text, sampling, family, grammars, adapters, pool: submissions_in, accepts };
        Ok(beginning.model(config, Backend::Generate(backend)))
    }

    fn start_worker<E: Engine + Send + 'static>(
        &self,
        setup: WorkerSetup,
        (model, grammars, beginning): (&Weights, &Arc<GrammarStore>, &Beginning),
        make: impl Fn(WorkerId) -> Result<(E, Parts), ServerError> + Send + 'static,
    ) -> Result<Handle, ServerError> {
        let config = model.config();
        let (id, step_target) = (setup.id, config.step_target());
        let (policies, grammars) = (self.policies.clone(), grammars.clone());
        // Its thread has nothing more to do once the worker has ended.
        let spawner = self.supervisor.spawner(ShutdownStage::Storage);
        let (budget, on_device) = (self.budget.clone(), model.computes_on_device());
        let gauges = self.gauges(config, &id.to_string(), beginning);
        let alive = beginning.alive.clone();
        worker_thread::spawn(&self.supervisor, gauges, setup, move || {
            let _alive = &alive;
            let (engine, Parts { cache, speculation }) = make(id)?;
            let worker = Worker::new(WorkerOptions {
                id,
                limits: engine.limits(),
                vocabulary: grammars.vocabulary().clone(),
                samplers: policies.clone(),
                filters: policies.clone(),
                cache,
                step_target,
                grammars: grammars.clone(),
                masks: Some(MaskThread::new(spawner.clone(), {
                    let budget = budget.clone();
                    Box::new(move || on_device || budget.has_spare())
                })),
                speculation,
            });
            Ok((engine, worker))
        })
    }

    fn start_embedder<E: Embedder + Send + 'static>(
        &self,
        model: &Weights,
        mut text: Readable,
        beginning: &Beginning,
        make: impl Fn() -> Result<E, ServerError> + Clone + Send + 'static,
    ) -> Result<Model, ServerError> {
        let config = model.config();
        let (jobs, limits) =
            self.start_batches(model, ("embedder", ModelBounds::of_texts), beginning, E::limits, make)?;
        let EmbedderLimits { input_tokens, dimensions, .. } = limits;
        weights::dimensions_fit(config, dimensions)?;
        text.info.context_tokens = input_tokens;
        tracing::info!(model = config.id, name = text.info.name, dimensions, input_tokens, "embedding model loaded");
        let grammars = Arc::new(GrammarStore::new(text.info.vocabulary.clone()));
        let backend = Backend::Embed(EmbedBackend {
            text: reader::start(config, text, &grammars)?,
            jobs,
            input_tokens,
            dimensions,
            shorter_dimensions: config.dimensions.clone(),
            takes_ids: config.embed_token_ids,
        });
        Ok(beginning.model(config, backend))
    }

    /// The threads of a model that computes batches; its queue, and what `facts` read from the first of its workers.
    #[expect(clippy::too_many_arguments, reason = "each is another thing")]
    fn start_batches<M, R>(
        &self,
        model: &Weights,
        (what, batch): (&str, fn(BatchLimits, &ModelBounds) -> BatchLimits),
        beginning: &Beginning,
        facts: impl FnOnce(&M) -> R,
        mut make: impl FnMut() -> Result<M, ServerError> + Clone + Send + 'static,
    ) -> Result<(JobsOf<M>, R), ServerError>
    where
        M: BatchModel<Input: Send, Output: Send> + Send + 'static,
    {
        let (config, threads) = (model.config(), model.sizes.threads);
        let id = &config.id;
        let seat = |number: u32| {
            let gauges = self.gauges(config, &number.to_string(), beginning);
            (format!("{what}-{id}-{number}"), gauges, self.budget.seat(threads))
        };
        let setup = BatchSetup {
            seats: (0..config.workers).map(seat).collect(),
            metrics: Arc::new(self.metrics.queue(id)),
            tuned: self.tuned.clone(),
            bounds: beginning.bounds.clone(),
            batch,
        };
        let alive = beginning.alive.clone();
        batch_thread::spawn(&self.supervisor, setup, facts, move || {
            let _alive = &alive;
            make()
        })
    }

    fn start_predictors(
        &self,
        weights: &Weights,
        model: &Arc<TensorModel>,
        sha256: Option<String>,
        beginning: &Beginning,
    ) -> Result<Model, ServerError> {
        let config = weights.config();
        let id = &config.id;
        let make = {
            let model = model.clone();
            move || Ok(Predictor::new(model.clone()))
        };
        let (jobs, ()) =
            self.start_batches(weights, ("predictor", ModelBounds::of_rows), beginning, |_: &Predictor| (), make)?;
        let Facts { format, backend, name, parameters, bytes, .. } = model.facts.clone();
        let (workers, requests) = (config.workers, model.requests());
        tracing::info!(model = id, name, format, %backend, parameters, workers, requests, "tensor model loaded");
        let info = PredictInfo { name, format, backend, parameters, weight_bytes: bytes, sha256 };
        let (signature, computing) = (model.signature.clone(), model.clone());
        let backend = Backend::Predict(PredictBackend { jobs, info, signature, computing });
        Ok(beginning.model(config, backend))
    }

    fn gauges(&self, config: &ModelConfig, worker: &str, beginning: &Beginning) -> Gauges {
        self.metrics.gauges(&config.id, worker, beginning.health.worker())
    }
}

impl Beginning {
    fn model(&self, config: &ModelConfig, backend: Backend) -> Model {
        let health = self.health.clone();
        Model { id: config.id.clone(), naming: config.naming(), health, created: now(), backend }
    }
}

fn readable(model: &Weights, loaded: &Arc<LoadedModel>) -> Readable {
    let config = model.config();
    let origin = match config.source() {
        ModelSource::Demo => Origin::Demo,
        _ => Origin::File(config.file_name()),
    };
    let info = model.loaded.text_info().unwrap_or_else(|| loaded.info().clone());
    Readable { info, tokenizer: loaded.tokenizer(), origin }
}

/// Grammars of a model whose workers are in a process.
fn compiled_by(process: &Arc<EngineProcess>, text: &Readable) -> GrammarStore {
    let process = process.clone();
    GrammarStore::elsewhere(text.info.vocabulary.clone(), move |grammar| Ok(Box::new(process.compile(grammar)?)))
}

fn fake_text(kind: ModelKind) -> Readable {
    Readable { info: weights::fake_info(kind), tokenizer: Arc::new(ByteTokenizer), origin: Origin::Fake }
}

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
#[path = "start_tests.rs"]
mod tests;
