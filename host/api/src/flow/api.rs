//! The state that all handlers share: models with their compiled templates, policies, limits, metrics.
use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use camshaft_core::engine::ModelKind;
use camshaft_core::ids::RequestId;
use camshaft_core::message::WorkerError;
use camshaft_core::policy::{Policies, PolicySet, Principal};
use camshaft_core::sampling::SamplingDefaults;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout_at;

use crate::flow::adapters::{self, Adapter, Adapters};
use crate::flow::backend::{Backend, Control, Model, Naming, PoolMessage};
use crate::flow::budget::{Budget, NoRoom};
use crate::flow::catalog::{self, Absence, Catalog, Entry, Held, Served};
use crate::flow::error::FlowError;
use crate::flow::life::{ModelControl, Usage};
use crate::flow::metrics::HttpMetrics;
use crate::flow::quota::QuotaStore;
use crate::flow::readiness::Readiness;

/// Limits that the operator sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiLimits {
    /// Maximum size of a request body, in bytes. Past it: 413.
    pub body_bytes: usize,
    /// Maximum memory of all requests in flight together: bodies, what is parsed from them, and responses that are not
    /// streamed. A tenant may hold as much as it leaves free. Past it: 503.
    pub bodies_bytes: u64,
    /// Maximum number of tokens that a choice may generate, and the default. A request for more is refused with 400.
    pub max_tokens: u32,
    /// Maximum time to the first token, for requests without their own timeout. Past it: 504.
    pub timeout: Duration,
    /// Maximum of a request's own timeout.
    pub max_timeout: Duration,
    /// Maximum time from arrival to the end of a generation, which then ends with what it has. `None`: no bound.
    pub max_duration: Option<Duration>,
}

/// The parts of an [`Api`].
#[derive(Debug)]
pub struct ApiOptions {
    pub models: Vec<Model>,
    /// Changes which models are served.
    pub life: Arc<dyn ModelControl>,
    pub policies: Arc<dyn Policies>,
    /// The registry of metrics, which `/metrics` renders.
    pub registry: prometheus::Registry,
    pub limits: ApiLimits,
    pub readiness: Arc<Readiness>,
    /// Keeps the tenants' accounts.
    pub quotas: Arc<dyn QuotaStore>,
    pub control: Arc<dyn Control>,
    /// Whether to export the main gauges under vLLM's names, too.
    pub vllm_aliases: bool,
    /// Tenants that see all of the metrics and statistics on the public listener.
    pub operators: Vec<String>,
    /// What computes: the name of llama.cpp's kernels.
    pub kernels: String,
}

/// Why an [`Api`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("a metric could not be registered: {0}")]
    Metric(#[from] prometheus::Error),
    #[error("two models are named {0}")]
    DuplicateModel(String),
}

/// The HTTP surface's state, shared by both routers.
pub struct Api {
    catalog: ArcSwap<Catalog>,
    /// Whose turn it is to publish another catalog.
    publishing: Mutex<()>,
    pub(crate) life: Arc<dyn ModelControl>,
    pub policies: Arc<dyn Policies>,
    pub registry: prometheus::Registry,
    limits: ArcSwap<ApiLimits>,
    pub(crate) budget: Arc<Budget>,
    pub readiness: Arc<Readiness>,
    pub(crate) quotas: Arc<dyn QuotaStore>,
    pub(crate) control: Arc<dyn Control>,
    pub(crate) vllm_aliases: bool,
    operators: Vec<String>,
    pub(crate) kernels: String,
    pub(crate) metrics: HttpMetrics,
    /// A place for the component that is examined.
    pub(crate) policy_checks: Arc<Semaphore>,
    /// Becomes true when running streams must end.
    cut: watch::Sender<bool>,
    next_request: AtomicU64,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("catalog", &self.catalog).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Api {
    /// Compiles the models' chat templates and registers the metrics.
    ///
    /// # Errors
    /// Two models have the same name, or the registry already has these metrics.
    pub fn new(options: ApiOptions) -> Result<Arc<Self>, StartError> {
        let ApiOptions { models, policies, registry, limits, readiness, quotas, control, .. } = options;
        let ApiOptions { vllm_aliases, operators, kernels, life, .. } = options;
        let metrics = HttpMetrics::register(&registry)?;
        let next_request = AtomicU64::new(1);
        let cut = watch::Sender::new(false);
        let budget = Budget::new(limits.bodies_bytes);
        let limits = ArcSwap::from_pointee(limits);
        let api = Arc::new(Self {
            catalog: ArcSwap::default(),
            publishing: Mutex::default(),
            life,
            policies,
            registry,
            limits,
            budget,
            readiness,
            quotas,
            control,
            vllm_aliases,
            operators,
            kernels,
            metrics,
            policy_checks: Arc::new(Semaphore::new(1)),
            cut,
            next_request,
        });
        for model in models {
            let id = model.id.clone();
            if api.publish(model).is_some() {
                return Err(StartError::DuplicateModel(id));
            }
        }
        Ok(api)
    }

    /// An error with the reason if load balancers should send no requests: as [`Readiness::ready`], or there is little memory left
    /// for requests.
    pub(crate) fn ready(&self) -> Result<(), FlowError> {
        self.readiness.ready()?;
        if self.budget.is_pressed() { Err(FlowError::NoRoom(NoRoom::Now)) } else { Ok(()) }
    }

    /// The models that clients can ask for at the moment.
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    /// The model of this id, if it is in memory.
    pub fn model(&self, id: &str) -> Option<Model> {
        self.catalog().models().find(|model| model.id == id).cloned()
    }

    /// Serves a model from now on, in the place of what had its id.
    pub fn publish(&self, model: Model) -> Option<Replaced> {
        let (id, health) = (model.id.clone(), model.health.clone());
        // Make the model's series now, so that they start at zero.
        self.metrics.of_model(&id);
        let naming = model.naming.clone();
        let held = Held::Served(Served::new(model));
        let before = self.change(|catalog| catalog.put(Entry { naming, held }));
        self.readiness.set_model(&id, health);
        before.map(Replaced)
    }

    /// Says that a model is configured and not in memory. Returns what was served in its place.
    pub fn publish_absent(&self, naming: Naming, kind: Option<ModelKind>, absence: Absence) -> Option<Replaced> {
        self.readiness.remove_model(&naming.id());
        self.change(|catalog| catalog.put(Entry { naming, held: Held::Absent { kind, absence } })).map(Replaced)
    }

    /// Serves a model no more.
    pub fn withdraw(&self, id: &str) -> Option<Replaced> {
        self.readiness.remove_model(id);
        self.change(|catalog| catalog.remove(id)).map(Replaced)
    }

    /// Changes how clients reach a model. Whether there is one of this id.
    pub fn set_naming(&self, naming: &Naming) -> bool {
        let id = naming.id();
        self.change(|catalog| catalog.rename(&id, naming))
    }

    /// Sets how requests are sampled that name no parameters. Whether a model of this id is in memory and generates.
    pub fn set_sampling(&self, id: &str, configured: SamplingDefaults) -> bool {
        let catalog = self.catalog();
        let Some(served) = catalog.at(id).and_then(Entry::served) else { return false };
        let Backend::Generate(generator) = &served.model.backend else { return false };
        generator.sampling.set(configured);
        true
    }

    /// How the model of this id is used, if it is in memory.
    pub fn usage(&self, id: &str) -> Option<Usage> {
        let catalog = self.catalog();
        let entry = catalog.at(id)?;
        Some(Usage { in_flight: entry.in_flight(), asked: entry.served()?.asked() })
    }

    fn change<T>(&self, change: impl FnOnce(&mut Catalog) -> T) -> T {
        let _turn = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut catalog = Catalog::clone(&self.catalog.load());
        let changed = change(&mut catalog);
        self.catalog.store(Arc::new(catalog));
        changed
    }

    /// Whether a caller may see what concerns other tenants. Who calls from this machine (`loopback`) as nobody in
    /// particular reaches the admin listener, too; a key whose tenant has that name is somebody.
    pub(crate) fn is_operator(&self, principal: &Principal, loopback: bool) -> bool {
        let tenant = principal.tenant.as_str();
        let local = loopback && *principal == Principal::anonymous();
        local || self.operators.iter().any(|operator| operator == tenant)
    }

    /// The limits in force.
    pub fn limits(&self) -> ApiLimits {
        **self.limits.load()
    }

    /// Sets the limits of later requests.
    pub fn set_limits(&self, limits: ApiLimits) {
        self.budget.set(limits.bodies_bytes);
        self.limits.store(Arc::new(limits));
    }

    /// Ends every generation, even if its worker is stuck in a step. Clients whose stream has begun get an error frame,
    /// the others an error.
    pub fn cut_streams(&self) {
        self.cut.send_replace(true);
        for model in self.catalog().models() {
            let Backend::Generate(generator) = &model.backend else { continue };
            // A pool that is gone has nothing to end. An overloaded one ends with the process.
            let _ = generator.pool.try_send(PoolMessage::Stop);
        }
    }

    /// Becomes true when generations must end.
    pub(crate) fn cut(&self) -> watch::Receiver<bool> {
        self.cut.subscribe()
    }

    /// An id for one generation, unique in the process.
    pub(crate) fn next_request(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// The model with this name; without a name, the only one that is served or that the caller may use.
    ///
    /// # Errors
    /// 400 without a name if there are several models, 404 for an unknown one, 403 for one that the caller may not use, 503 for one
    /// that is not in memory.
    pub(crate) fn model_of(&self, wish: &ModelWish<'_>, caller: &Caller) -> Result<Found, FlowError> {
        let catalog = self.catalog();
        let ModelWish { name, session, falls_back } = *wish;
        let asked = Asked { falls_back, session, ..Asked::by(&catalog, caller) };
        match name {
            Some(name) => asked.named(name),
            None => asked.only(&catalog.entries().collect::<Vec<_>>()),
        }
    }

    /// The model with this name; without a name, the only one of this kind that the caller may use.
    ///
    /// # Errors
    /// As [`Api::model_of`].
    pub(crate) fn model_of_kind(
        &self,
        name: Option<&str>,
        kind: ModelKind,
        caller: &Caller,
    ) -> Result<Found, FlowError> {
        let catalog = self.catalog();
        let asked = Asked::by(&catalog, caller);
        if let Some(name) = name {
            return asked.named(name);
        }
        let may_be = |entry: &&Entry| entry.kind().is_none_or(|its| its == kind) && asked.may_use(&entry.naming);
        let (of_kind, all): (Vec<_>, Vec<_>) =
            (catalog.entries().filter(may_be).collect(), catalog.entries().collect());
        match (of_kind.is_empty(), &all[..]) {
            (false, _) => asked.only(&of_kind),
            // The error says of which kind it is.
            (true, [only]) => asked.named(&only.naming.name),
            (true, _) => Err(FlowError::NoneOfKind(kind)),
        }
    }

    /// The names by which a caller reaches models that it may use, each with the time of loading of what it leads to: ids, names
    /// that versions share, and aliases. A name may come twice. Behind those of a model are those of its adapters.
    pub(crate) fn names_for(&self, caller: &Caller) -> Vec<Listed> {
        let catalog = self.catalog();
        let asked = Asked::by(&catalog, caller);
        let mut names = Vec::new();
        for entry in catalog.entries() {
            let created = entry.served().map_or(0, |served| served.model.created);
            let context = entry.served().and_then(|served| served.model.context());
            let (naming, others) = (&entry.naming, entry.naming.other_names().cloned());
            let listed = |name: String| Listed { name, created, parent: None, context };
            if asked.may_use(naming) {
                names.extend([naming.name.clone(), entry.id()].into_iter().chain(others).map(listed));
            } else {
                names.extend(others.filter(|alias| caller.principal.may_use(alias)).map(listed));
            }
            let adapters = entry.served().and_then(|served| served.adapters()).map(|adapters| adapters.all());
            let adapters = adapters.iter().flat_map(|all| all.iter());
            let allowed = adapters.filter(|adapter| asked.may_adapt(&entry.naming, &adapter.id));
            let listed = |adapter: &Arc<Adapter>| Listed::of(&entry.id(), adapter, context);
            names.extend(allowed.map(listed));
        }
        names
    }

    /// The ids of the models that a caller may use, each with what is wrong with it.
    pub(crate) fn states_for(&self, caller: &Caller) -> Vec<(String, Result<(), FlowError>)> {
        let catalog = self.catalog();
        let asked = Asked::by(&catalog, caller);
        let usable = catalog.entries().filter(|entry| asked.may_use(&entry.naming));
        usable.map(|entry| (entry.id(), entry.open().and_then(|served| served.serves()))).collect()
    }

    /// What a path says of, and no other in its place.
    ///
    /// # Errors
    /// 404 for an unknown model, 403 for one that the caller may not use, 503 for one that is not in memory.
    pub(crate) fn model_for(&self, name: &str, caller: &Caller) -> Result<Found, FlowError> {
        Asked { falls_back: false, ..Asked::by(&self.catalog(), caller) }.named(name)
    }

    /// The adapters of the model of this id, if it is in memory and generates.
    pub fn adapters(&self, id: &str) -> Option<Arc<Adapters>> {
        let catalog = self.catalog();
        catalog.at(id)?.served()?.adapters().cloned()
    }
}

/// What was served until another one took its place, or nothing did. Its threads end when nobody holds it any more.
#[derive(Debug)]
pub struct Replaced(Entry);

impl Replaced {
    /// Whether it was in memory.
    pub fn was_loaded(&self) -> bool {
        self.0.served().is_some()
    }
}

/// What a request says of the model that it wants.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ModelWish<'a> {
    /// `None`: the only one.
    pub(crate) name: Option<&'a str>,
    pub(crate) session: Option<&'a str>,
    /// Another model may take its place. Not where the request has what means something to one model alone: adapters, tokens.
    pub(crate) falls_back: bool,
}

/// A model that was found, and the one that was meant, where it stands in for another.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) served: Arc<Served>,
    pub(crate) instead_of: Option<String>,
    /// That its name has behind the model's.
    pub(crate) adapter: Option<Arc<Adapter>>,
}

/// A name in the list of models.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    /// Time of loading of what it leads to.
    pub(crate) created: u64,
    /// Of an adapter: its model.
    pub(crate) parent: Option<String>,
    /// Tokens that it takes at once, where that is known.
    pub(crate) context: Option<u32>,
}

impl Listed {
    pub(crate) fn of(model: &str, adapter: &Adapter, context: Option<u32>) -> Self {
        let name = adapters::name(model, &adapter.id);
        Self { name, created: adapter.created, parent: Some(model.to_owned()), context }
    }
}

/// A look for a model.
#[derive(Clone, Copy)]
struct Asked<'a> {
    catalog: &'a Catalog,
    caller: &'a Caller,
    session: Option<&'a str>,
    /// Another model may take the place of one that cannot be used.
    falls_back: bool,
}

impl<'a> Asked<'a> {
    fn by(catalog: &'a Catalog, caller: &'a Caller) -> Self {
        Self { catalog, caller, session: None, falls_back: true }
    }

    fn may_use(&self, naming: &Naming) -> bool {
        let principal = &self.caller.principal;
        principal.may_use(&naming.name) || (naming.version.is_some() && principal.may_use(&naming.id()))
    }

    /// Whether the caller may use an adapter of a model.
    fn may_adapt(&self, naming: &Naming, adapter: &str) -> bool {
        naming.lets_adapt(&self.caller.principal, adapter)
    }

    /// The names of those models that the caller may use: nobody learns of others.
    fn usable<'e>(&self, entries: impl Iterator<Item = &'e Entry>) -> Vec<String> {
        entries.filter(|entry| self.may_use(&entry.naming)).map(Entry::id).collect()
    }

    fn named(&self, name: &str) -> Result<Found, FlowError> {
        let who = catalog::who(self.caller.principal.tenant.as_str(), self.session);
        let unknown = || FlowError::UnknownModel { id: name.to_owned(), models: self.usable(self.catalog.entries()) };
        let may_fall_back_to = |naming: &Naming| self.falls_back && self.may_use(naming);
        let Some(route) = self.catalog.route(name, who, may_fall_back_to) else {
            let (base, adapter) = adapters::split(name).ok_or_else(unknown)?;
            let entry = self.catalog.adapted(base, adapter, who).ok_or_else(unknown)?;
            if !self.may_adapt(&entry.naming, adapter) && !self.caller.principal.may_use(name) {
                return Err(FlowError::ModelForbidden(name.to_owned()));
            }
            let served = entry.open()?;
            let adapter = served.adapters().and_then(|all| all.find(adapter)).ok_or_else(unknown)?;
            return Ok(Found { served: served.ask(), instead_of: None, adapter: Some(adapter) });
        };
        // Whoever may use an alias by its name may use what it leads to.
        if route.instead_of.is_none() && !self.may_use(&route.entry.naming) && !self.caller.principal.may_use(name) {
            return Err(FlowError::ModelForbidden(name.to_owned()));
        }
        Ok(Found { served: route.entry.open()?.ask(), instead_of: route.instead_of, adapter: None })
    }

    /// The only one of these; else the only one that the caller may use.
    fn only(&self, entries: &[&Entry]) -> Result<Found, FlowError> {
        let names = |entries: &mut dyn Iterator<Item = &&Entry>| -> BTreeSet<String> {
            entries.map(|entry| entry.naming.name.clone()).collect()
        };
        let all = names(&mut entries.iter());
        let usable = names(&mut entries.iter().filter(|entry| self.may_use(&entry.naming)));
        let only = [all, usable].into_iter().find(|names| names.len() == 1).and_then(|mut names| names.pop_first());
        match only {
            Some(only) => self.named(&only),
            None => Err(FlowError::ModelRequired { models: self.usable(entries.iter().copied()) }),
        }
    }
}

/// A principal, with the policies that apply to its request until the end.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) principal: Arc<Principal>,
    pub(crate) policies: Arc<dyn PolicySet>,
    /// Whether it may see what concerns other tenants.
    pub(crate) operator: bool,
}

/// # Errors
/// 504: the deadline passes first.
pub(crate) async fn within<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Result<T, FlowError> {
    match deadline {
        Some(deadline) => Ok(timeout_at(deadline.into(), work).await.map_err(|_| WorkerError::DeadlineExceeded)?),
        None => Ok(work.await),
    }
}

/// Waits until a model that sleeps is in memory.
///
/// # Errors
/// It cannot be loaded, or the deadline passes.
pub(crate) async fn wake(api: &Api, model: String, deadline: Option<Instant>) -> Result<(), FlowError> {
    let refused = |why: String| FlowError::NotWoken { model: model.clone(), why };
    let woken = api.life.wake(&model).map_err(|refusal| refused(refusal.to_string()))?;
    within(deadline, woken).await?.map_err(|_| FlowError::PoolGone)?.map_err(refused)
}

/// Has a model load that another one stands in for, if it sleeps. Nobody waits for it.
pub(crate) fn wake_meanwhile(api: &Api, model: &str) {
    if api.catalog().at(model).is_some_and(|entry| entry.wakes())
        && let Err(refusal) = api.life.wake(model)
    {
        tracing::debug!(model, %refusal, "the model is not woken");
    }
}

/// What `find` finds, once it is in memory if it sleeps.
///
/// # Errors
/// Those of `find`; it cannot be loaded, or not in the time that requests have.
pub(crate) async fn awake(api: &Api, find: impl Fn() -> Result<Found, FlowError>) -> Result<Found, FlowError> {
    let deadline = Instant::now().checked_add(api.limits().timeout);
    loop {
        match find() {
            Err(FlowError::Asleep(model)) => wake(api, model, deadline).await?,
            found => return found,
        }
    }
}
