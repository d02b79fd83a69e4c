//! From a configuration to everything that serves: policies, models and their threads, the state of the HTTP surface.
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};

use camshaft_api::{AdminAccess, Api, ApiOptions, LocalQuotas, Readiness};
use camshaft_core::promised::Promised;
use camshaft_engine::Numa;
use camshaft_policy::PolicyHost;
use prometheus::Registry;
use tokio::sync::watch;

use crate::cache_plan::CachePlan;
use crate::config::{ConfigSnapshot, LoadKey, Sources};
use crate::cores::Cores;
use crate::devices::Devices;
use crate::error::ServerError;
use crate::life::{LifeSetup, ModelLife};
use crate::logging::LogHandle;
use crate::metrics::{self, ServerMetrics};
use crate::progress::{MODELS, ProgressSink};
use crate::registry::Obtained;
use crate::reload::{self, Reloader};
use crate::sizing::Room;
use crate::start::Starter;
use crate::supervisor::{ShutdownStage, Supervisor};
use crate::thread_budget::ThreadBudget;
use crate::tls::Certificate;
use crate::tuning::Tuning;
use crate::weights::{Engines, Loaded};
use crate::{engines, machine, placing, policies, shutdown};

/// The kind of what is loaded, see [`Readiness::set_loading`].
const POLICIES: &str = "policies";

/// Where the listeners are bound. The system chose the ports that were configured as 0.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) public: SocketAddr,
    pub(crate) admin: Option<SocketAddr>,
}

/// What a loaded server consists of.
pub(crate) struct LoadedConfig {
    pub(crate) api: Arc<Api>,
    pub(crate) policies: Arc<PolicyHost>,
    pub(crate) live: Arc<Reloader>,
}

/// What a server is loaded from.
pub(crate) struct Load {
    pub(crate) snapshot: ConfigSnapshot,
    pub(crate) sources: Sources,
    pub(crate) engines: Engines,
    pub(crate) log: LogHandle,
    pub(crate) supervisor: Arc<Supervisor>,
    /// Learns how far it is.
    pub(crate) readiness: Arc<Readiness>,
    /// Of the public listener, once it was read.
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Of the admin listener.
    pub(crate) access: Arc<AdminAccess>,
}

impl Load {
    /// Starts everything, or nothing.
    pub(crate) fn run(self, at: Addresses) -> Result<LoadedConfig, ServerError> {
        let supervisor = self.supervisor.clone();
        // As long as a guest may run, its deadline must pass.
        let mut host = None;
        let loaded = self.load(at, &mut host);
        if loaded.is_err() {
            // Models that were started before it went wrong.
            supervisor.end(shutdown::THREADS_END);
        }
        loaded
    }

    fn load(self, at: Addresses, host: &mut Option<Arc<PolicyHost>>) -> Result<LoadedConfig, ServerError> {
        // Before anything is loaded: what is planned is what is loaded, too.
        let machine = machine::look();
        for kind in [POLICIES, MODELS] {
            self.readiness.set_loading(kind, Some("begun".to_owned()));
        }
        let devices = match self.engines {
            Engines::Llama => {
                camshaft_engine::use_numa(self.snapshot.config.live.numa());
                Devices::look()?
            }
            Engines::Fake => Devices::default(),
        };
        let weights = self.load_weights()?;
        let Self { snapshot, sources, engines, log, supervisor, readiness, certificate, access } = self;
        let config = snapshot.config.clone();
        let registry = Registry::new();
        let threads = metrics::threads(&registry)?;
        log.count_in(&registry)?;
        supervisor.count_in(threads.clone());
        let policies = {
            // Other programs have no command that compiles.
            let compiler = matches!(engines, Engines::Llama).then(policies::compiler).flatten();
            policies::supervise(&config, &registry, &supervisor, &threads, compiler)?
        };
        readiness.set_loading(POLICIES, None);
        *host = Some(policies.clone());
        policies::guard_strangers(&config, at.public, &policies)?;
        policies::enforced(&config, at.admin, &policies).iter().for_each(|line| tracing::info!("{line}"));
        let reloads = reload::reloads(&registry)?;
        let (listen, log_of, policies_of) = (at.public, log.clone(), policies.clone());
        let setup = reload::Setup { listen, sources, log: log_of, policies: policies_of, certificate, access, reloads };
        let live = Reloader::new(snapshot, setup);
        let metrics = ServerMetrics::new(&registry)?;
        let (room, sink) = (Room::at_start(&config, machine, &devices), ProgressSink::of(&readiness));
        let sized = placing::place(&room, &devices, joined(weights)?, &sink);
        readiness.set_loading(MODELS, Some("their threads start".to_owned()));
        sized.tell();
        let share = sized.share();
        let cores = Cores::of(sized.divides_cores(), config.live.numa() != Numa::Off);
        let (weights, budget) = (sized.weights, sized.budget);
        let (tuning, tuned) = watch::channel(Tuning::of(&config.live, share));
        let starter = Starter {
            runtime: tokio::runtime::Handle::current(),
            cores,
            promised: Arc::new(Mutex::new(Promised::of(&budget))),
            tuned,
            cache: CachePlan::of(&config, share),
            policies: policies.clone(),
            metrics,
            supervisor: supervisor.clone(),
            budget: ThreadBudget::new(machine.cores),
            slow_reader: config.fixed.limits.slow_reader.0,
            frame_interval: config.fixed.limits.frame_interval.0,
            log: log.clone(),
            fakes: Arc::new(engines::fake_parts),
        };
        let spawner = supervisor.spawner(ShutdownStage::Policies);
        let life = ModelLife::new(LifeSetup {
            starter,
            engines,
            machine,
            process: budget.process,
            share: Mutex::new(share),
            tuning,
            spawner,
            cache: config.fixed.models.clone(),
        });
        let at_start = config.live.model.iter().filter(|model| model.load == LoadKey::Start);
        let loaded = weights.iter().zip(at_start).enumerate();
        let models = loaded.map(|(number, (weights, config))| life.start(number, weights, config, sink.clone()));
        let api = Api::new(ApiOptions {
            models: models.collect::<Result<_, _>>()?,
            life: life.clone(),
            policies: policies.clone(),
            registry,
            limits: reload::limits(&config.live, machine),
            readiness,
            quotas: Arc::new(LocalQuotas::default()),
            control: live.clone(),
            vllm_aliases: config.fixed.metrics.vllm_aliases,
            operators: config.fixed.metrics.operators.clone(),
            kernels: camshaft_engine::kernels(),
        });
        let api = api?;
        config
            .live
            .model
            .iter()
            .filter(|model| model.load == LoadKey::OnDemand)
            .for_each(|model| life.note_asleep(model.clone()));
        life.bind(&api);
        life.keep()?;
        live.bind(api.clone(), life);
        Ok(LoadedConfig { api, policies, live })
    }

    /// Loads the models beside the policies, one after the other. Whoever fails meanwhile need not wait for it.
    fn load_weights(&self) -> Result<JoinHandle<Result<Vec<Loaded>, ServerError>>, ServerError> {
        let (config, engines, readiness) = (self.snapshot.config.clone(), self.engines, self.readiness.clone());
        let log = self.log.clone();
        let load = move || {
            let sink = ProgressSink::of(&readiness);
            let at_start = config.live.model.iter().filter(|model| model.load == LoadKey::Start);
            let one = |model| {
                let Obtained { config: model, held } = engines.obtain(&config.fixed.models, model, &sink)?;
                let loaded = engines.load(&model, &log, &sink)?;
                Ok(Loaded { held, ..loaded })
            };
            let models = at_start.map(one).collect();
            readiness.set_loading(MODELS, Some("loaded".to_owned()));
            models
        };
        let thread = Builder::new().name("model-load".to_owned()).spawn(load);
        thread.map_err(|error| ServerError::internal("start the thread that loads models", error))
    }
}

fn joined<T>(thread: JoinHandle<Result<T, ServerError>>) -> Result<T, ServerError> {
    let panicked = || ServerError::internal("load", anyhow::anyhow!("the thread that loads models panicked"));
    thread.join().unwrap_or_else(|_| Err(panicked()))
}
