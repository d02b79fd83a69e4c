//! From a configured model to its threads: weights, workers, pool, or the embedder.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use camshaft_api::{
    Backend, ConfiguredSampling, EmbedBackend, GenerateBackend, Health, Model, ModelHealth, PredictBackend, PredictInfo,
};
use camshaft_core::embed::EmbedderLimits;
use camshaft_core::engine::ModelKind;
use camshaft_core::grammar::{Grammar, GrammarStore};
use camshaft_core::ids::WorkerId;
use camshaft_core::jobs::{BatchLimits, BatchModel};
use camshaft_core::pool::Pool;
use camshaft_core::promised::Promised;
use camshaft_core::tensor::{Predicted, Rows};
use camshaft_policy::PolicyHost;
use camshaft_tensor::{Facts, TensorOutline};
use crossbeam_channel::{Receiver, Sender};
use tokio::sync::watch;

use crate::batch_thread::{self, BatchSetup, JobsOf};
use crate::bounds::ModelBounds;
use crate::cache_plan::CachePlan;
use crate::config::{FamilyKey, ModelConfig, ModelSource};
use crate::cores::Cores;
use crate::error::ServerError;
use crate::logging::LogHandle;
use crate::mailbox::Mailbox;
use crate::metrics::ServerMetrics;
use crate::pool_thread::{self, PoolSetup, WorkerSeat};
use crate::progress::ProgressSink;
use crate::reader::{self, Reading};
use crate::supervisor::{Gauges, Service, Supervisor};
use crate::thread_budget::ThreadBudget;
use crate::tuning::Tuned;
use crate::weights::{self, Weights, WeightsSource};
use crate::worker::{Handle, WorkerSetup};
use crate::worker_process::{EngineProcess, Fakes, LineService, ProcessSetup, RemoteModel, TensorProcess};
use crate::{adapters, demo, placing};

/// Submissions on their way to a pool; a further one is refused as overload.
const SUBMISSIONS: usize = 1024;
/// Reports on their way from workers to a pool; a worker waits at the bound.
const REPORTS: usize = 4096;

/// What all models are started with.
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
    /// For those who listen to workers.
    pub(crate) runtime: tokio::runtime::Handle,
    /// How long a reader may be behind.
    pub(crate) slow_reader: Duration,
    /// Text of a stream that comes faster shares frames.
    pub(crate) frame_interval: Duration,
    pub(crate) log: LogHandle,
    pub(crate) fakes: Fakes,
}

impl fmt::Debug for Starter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Starter").finish_non_exhaustive()
    }
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

impl Starter {
    /// Starts the threads that serve a model. They end when nobody can ask for it any more and the last request has ended.
    /// `number`: its number among all models; `sink` hears how far its weights are loaded.
    ///
    /// # Errors
    /// There is not enough memory, or the configuration does not fit the model.
    pub(crate) fn start(&self, number: usize, model: &Weights, sink: ProgressSink) -> Result<Started, ServerError> {
        let (alive, ended) = match &model.loaded.source {
            WeightsSource::Tensors(tensors) => (tensors.process.alive(), tensors.ended.clone()),
            _ => crossbeam_channel::bounded(0),
        };
        let (bounds, bounded) = watch::channel(ModelBounds::of(model.config()));
        let beginning = Beginning { health: ModelHealth::default(), alive, bounds: bounded };
        let model = self.start_threads(number, model, &beginning, sink)?;
        Ok(Started { model, ended, bounds })
    }

    fn start_threads(
        &self,
        number: usize,
        model: &Weights,
        beginning: &Beginning,
        sink: ProgressSink,
    ) -> Result<Model, ServerError> {
        if let WeightsSource::Tensors(tensors) = &model.loaded.source {
            return self.start_predictors(model, tensors, beginning);
        }
        let nobody = || ServerError::internal("start", anyhow::anyhow!("nobody reads for the model"));
        let reading = model.loaded.reading.as_ref().ok_or_else(nobody)?;
        // Compiled policies are nowhere that another process finds them in programs that compile them by themselves.
        let is_isolated = reader::is_isolated(model.config()) && self.policies.replicate().is_ok();
        let process = ProcessSetup {
            job: model.job(),
            is_isolated,
            digest: self.cache.parts().has_disk(),
            cache: self.cache.clone(),
            policies: Some(self.policies.clone()),
            fakes: self.fakes.clone(),
            log: self.log.clone(),
            standby: Some(placing::standby(model, number, &self.promised)),
            alive: beginning.alive.clone(),
        };
        let process = EngineProcess::new(process, sink);
        match model.loaded.kind() {
            ModelKind::Embed => self.start_embedder(model, reading, beginning, &process),
            ModelKind::Generate | ModelKind::Predict => self.start_pool(number, (model, reading), beginning, &process),
        }
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
        let runtime = self.runtime.clone();
        let (process, policies, budget) = (process.clone(), self.policies.clone(), self.budget.clone());
        let setup = Arc::new(Mutex::new(setup));
        let (health, _alive) = (gauges.health.clone(), beginning.alive.clone());
        let is_on_device = model.computes_on_device();
        let mut service = LineService { process, runtime, setup, policies, budget, health, is_on_device, _alive };
        let (first, handle) = service.make()?;
        self.supervisor.supervise(&name, gauges, service, first)?;
        Ok(handle)
    }

    fn start_pool(
        &self,
        number: usize,
        (model, reading): (&Weights, &Reading),
        beginning: &Beginning,
        process: &Arc<EngineProcess>,
    ) -> Result<Model, ServerError> {
        let config = model.config();
        let mut info = reading.info.clone();
        info.context_tokens = info.context_tokens.min(model.sizes.sequence_tokens());
        info.sha256 = process.sha256()?;
        if config.source() == ModelSource::Demo {
            info.sampling = info.sampling.over(demo::sampling());
        }
        let compiles = process.clone();
        let compile = move |grammar: &Grammar| compiles.compile(grammar);
        let grammars = Arc::new(GrammarStore::elsewhere(info.vocabulary.clone(), compile));
        let begun = Instant::now();
        let watermarks = self.tuned.borrow().watermarks;
        let mut pool = Pool::new(self.policies.scheduler(&config.id), watermarks, config.reserve());
        let (reports_in, reports) = crossbeam_channel::bounded(REPORTS);
        let mut workers = BTreeMap::new();
        let team = if model.computes_in_teams() { model.sizes.threads } else { 0 };
        for number in 0..config.workers {
            let id = WorkerId(number);
            let setup = WorkerSetup {
                id,
                reports: reports_in.clone(),
                slow_reader: self.slow_reader,
                frame_interval: self.frame_interval,
                cores: self.cores.take(team),
                seat: self.budget.seat(model.sizes.threads),
            };
            let handle = self.start_line(setup, process, (model, beginning))?;
            info.context_tokens = info.context_tokens.min(handle.limits.context_tokens);
            pool.add_worker(id, handle.limits);
            let metrics = self.metrics.worker(&config.id, &id.to_string());
            workers.insert(id, WorkerSeat { mailbox: Some(Mailbox::new(handle.messages)), metrics });
        }
        let (submissions_in, submissions) = crossbeam_channel::bounded(SUBMISSIONS);
        let (config_of, promised) = (config.clone(), self.promised.clone());
        let base = adapters::Base { config: config_of, number, process: process.clone(), promised };
        let adapters = adapters::load(&base, &submissions_in, now())?;
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
        let text = reading.serve(config, info, &grammars)?;
        let sampling = ConfiguredSampling::new((&config.sampling).into());
        let family = config.family.map(|FamilyKey(family)| family);
        let backend = GenerateBackend { text, sampling, family, grammars, adapters, pool: submissions_in, accepts };
        Ok(beginning.model(config, Backend::Generate(backend)))
    }

    fn start_embedder(
        &self,
        model: &Weights,
        reading: &Reading,
        beginning: &Beginning,
        process: &Arc<EngineProcess>,
    ) -> Result<Model, ServerError> {
        let config = model.config();
        let make = {
            let process = process.clone();
            move |id, health| RemoteModel::open(&process, id, health)
        };
        let limits = |model: &RemoteModel<_, _>| model.embedder_limits();
        let (jobs, limits) = self.start_batches(model, ("embedder", ModelBounds::of_texts), beginning, limits, make)?;
        let EmbedderLimits { input_tokens, dimensions, .. } = limits?;
        weights::dimensions_fit(config, dimensions)?;
        let mut info = reading.info.clone();
        info.context_tokens = input_tokens;
        info.sha256 = process.sha256()?;
        tracing::info!(model = config.id, name = info.name, dimensions, input_tokens, "embedding model loaded");
        let grammars = Arc::new(GrammarStore::new(info.vocabulary.clone()));
        let backend = Backend::Embed(EmbedBackend {
            text: reading.serve(config, info, &grammars)?,
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
        make: impl FnMut(WorkerId, Health) -> Result<M, ServerError> + Clone + Send + 'static,
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
        batch_thread::spawn(&self.supervisor, setup, facts, make)
    }

    fn start_predictors(
        &self,
        weights: &Weights,
        model: &Arc<TensorProcess>,
        beginning: &Beginning,
    ) -> Result<Model, ServerError> {
        let config = weights.config();
        let id = &config.id;
        let make = {
            let process = model.process.clone();
            move |id, health| RemoteModel::<Rows, Predicted>::open(&process, id, health)
        };
        let (jobs, ()) = self.start_batches(weights, ("predictor", ModelBounds::of_rows), beginning, |_| (), make)?;
        let TensorOutline { facts, signature, requests, .. } = model.outline.clone();
        let Facts { format, backend, name, parameters, bytes, .. } = facts;
        let workers = config.workers;
        tracing::info!(model = id, name, %format, %backend, parameters, workers, requests, "tensor model loaded");
        let sha256 = model.sha256.clone();
        let info = PredictInfo { name, format, backend, parameters, weight_bytes: bytes, sha256 };
        let backend = Backend::Predict(PredictBackend { jobs, info, signature, computing: model.clone() });
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

/// Seconds since the Unix epoch.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
#[path = "start_tests.rs"]
mod tests;
