//! The state that all handlers share: models with their compiled templates, policies, limits, metrics.
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use camshaft_core::engine::ModelKind;
use camshaft_core::ids::RequestId;
use camshaft_core::policy::{Policies, Principal};
use crossbeam_channel::Sender;
use tokio::sync::{Semaphore, watch};

use crate::flow::adapters::{self, Adapters, ChosenAdapters};
use crate::flow::backend::{Backend, EmbedBackend, Model, PoolMessage, PredictBackend, TextModel};
use crate::flow::budget::Budget;
use crate::flow::caller::Caller;
use crate::flow::control::Control;
use crate::flow::error::FlowError;
use crate::flow::metrics::HttpMetrics;
use crate::flow::quota::QuotaStore;
use crate::flow::readiness::Readiness;
use crate::flow::template::ChatTemplate;
use crate::flow::template_use::INLINE_PLACES;
use crate::flow::turns::Turns;
use crate::wire::adapters::{self as wire, Wanted, wanted};
use crate::wire::fields::Fields;

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
}

/// The parts of an [`Api`].
#[derive(Debug)]
pub struct ApiOptions {
    pub models: Vec<Model>,
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
    #[error("the chat template of model {model} does not compile: {source}")]
    ChatTemplate { model: String, source: minijinja::Error },
    #[error("a metric could not be registered: {0}")]
    Metric(#[from] prometheus::Error),
    #[error("two models are named {0}")]
    DuplicateModel(String),
}

/// The HTTP surface's state, shared by both routers.
pub struct Api {
    pub models: Vec<Model>,
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
    /// Of tenants at reading long bodies.
    pub(crate) turns: Arc<Turns>,
    /// Of tenants at reading short ones with chat templates.
    pub(crate) short_turns: Arc<Turns>,
    /// Places for chats that are rendered on the threads of the runtime.
    pub(crate) inline: Arc<Semaphore>,
    /// A place for the component that is examined.
    pub(crate) policy_checks: Arc<Semaphore>,
    /// Of tenants at reading very long ones, on threads that let others go first.
    pub(crate) bulk_turns: Arc<Turns>,
    /// Becomes true when running streams must end.
    cut: watch::Sender<bool>,
    served: Vec<Arc<Served>>,
    next_request: AtomicU64,
}

/// A model, with what requests need to use it.
#[derive(Debug)]
pub(crate) struct Served {
    pub(crate) model: Model,
    /// Of a model that reads texts.
    template: Option<ChatTemplate>,
    /// `system_fingerprint`: changes with the weights and the server's version.
    pub(crate) fingerprint: String,
}

impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("models", &self.models).field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Api {
    /// Compiles the models' chat templates and registers the metrics.
    ///
    /// # Errors
    /// A chat template does not compile, two models have the same name, or the registry already has these metrics.
    pub fn new(options: ApiOptions) -> Result<Arc<Self>, StartError> {
        let ApiOptions { models, policies, registry, limits, readiness, quotas, control, .. } = options;
        let ApiOptions { vllm_aliases, operators, kernels, .. } = options;
        let metrics = HttpMetrics::register(&registry)?;
        let mut served: Vec<Arc<Served>> = Vec::with_capacity(models.len());
        for model in &models {
            if served.iter().any(|other| other.model.id == model.id) {
                return Err(StartError::DuplicateModel(model.id.clone()));
            }
            // Make the model's series now, so that they start at zero.
            metrics.of_model(&model.id);
            served.push(Arc::new(Served::new(model)?));
        }
        let next_request = AtomicU64::new(1);
        let cut = watch::Sender::new(false);
        let budget = Budget::new(limits.bodies_bytes);
        let limits = ArcSwap::from_pointee(limits);
        Ok(Arc::new(Self {
            models,
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
            turns: Arc::default(),
            bulk_turns: Arc::default(),
            short_turns: Arc::new(Turns::of_short_bodies()),
            inline: Arc::new(Semaphore::new(INLINE_PLACES)),
            policy_checks: Arc::new(Semaphore::new(1)),
            cut,
            served,
            next_request,
        }))
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
        for model in &self.models {
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

    /// The model with this name, or with that of one of its adapters.
    pub(crate) fn find(&self, id: &str) -> Option<&Arc<Served>> {
        let model = |id: &str| self.served.iter().find(|served| served.model.id == id);
        model(id).or_else(|| {
            let (base, adapter) = adapters::split(id)?;
            model(base).filter(|served| served.adapters().is_some_and(|all| all.find(adapter).is_some()))
        })
    }

    /// What a request is computed under: the adapter in the model's name, or those in `lora`.
    ///
    /// # Errors
    /// 400 if `lora` is wrong, names an unknown adapter or comes with an adapter in the model's name, 403 for an adapter that the
    /// caller may not use, 404 for one in the model's name that was unloaded meanwhile.
    pub(crate) fn adapters_of(
        &self,
        fields: &Fields<'_>,
        served: &Served,
        caller: &Caller,
    ) -> Result<ChosenAdapters, FlowError> {
        let id = &served.model.id;
        let wanted = wanted(fields)?;
        let none = Adapters::default();
        let all = served.adapters().unwrap_or(&none);
        if let Some(name) = fields.text("model")?.filter(|name| name != id) {
            if !wanted.is_empty() {
                return Err(FlowError::field("lora", "lora must be empty where the model's name has an adapter"));
            }
            let found = adapters::split(name).and_then(|(_, adapter)| all.find(adapter));
            let unknown = || FlowError::UnknownModel { id: name.to_owned(), models: usable(&self.models, caller) };
            let adapter = found.ok_or_else(unknown)?;
            let scale = adapter.scale;
            return Ok(ChosenAdapters::new(vec![(adapter, scale)], Some(name.to_owned())));
        }
        let mut chosen = Vec::with_capacity(wanted.len());
        for (index, Wanted { id: adapter, scale }) in wanted.into_iter().enumerate() {
            let name = adapters::name(id, adapter);
            let Some(found) = all.find(adapter) else {
                let all = all.all();
                let known = all.iter().map(|known| &known.id);
                let known = known.filter(|known| caller.principal.may_use(&adapters::name(id, known))).cloned();
                let (path, adapter) = (wire::path(index), adapter.to_owned());
                return Err(FlowError::UnknownAdapter { path, adapter, known: known.collect() });
            };
            if !caller.principal.may_use(&name) {
                return Err(FlowError::ModelForbidden(name));
            }
            let scale = scale.unwrap_or(found.scale);
            chosen.push((found, scale));
        }
        Ok(ChosenAdapters::new(chosen, None))
    }

    /// The model with this name; without a name, the only one that is served or that the caller may use.
    ///
    /// # Errors
    /// 400 without a name if there are several models, 404 for an unknown one, 403 for one that the caller may not use.
    pub(crate) fn model_of(&self, fields: &Fields<'_>, caller: &Caller) -> Result<&Arc<Served>, FlowError> {
        match (fields.text("model")?, &self.models[..]) {
            (Some(id), _) => self.model_for(id, caller),
            (None, [only]) => self.model_for(&only.id, caller),
            (None, several) => self.only_of(usable(several, caller), caller),
        }
    }

    /// The model with this name; without a name, the only one of this kind that the caller may use.
    ///
    /// # Errors
    /// As [`Api::model_of`].
    pub(crate) fn model_of_kind(
        &self,
        id: Option<&str>,
        kind: ModelKind,
        caller: &Caller,
    ) -> Result<&Arc<Served>, FlowError> {
        if let Some(id) = id {
            return self.model_for(id, caller);
        }
        let of_kind = usable(self.models.iter().filter(|model| model.kind() == kind), caller);
        match (of_kind.is_empty(), &self.models[..]) {
            (false, _) => self.only_of(of_kind, caller),
            // The error says of which kind it is.
            (true, [only]) => self.model_for(&only.id, caller),
            (true, _) => Err(FlowError::NoneOfKind(kind)),
        }
    }

    fn only_of(&self, mut models: Vec<String>, caller: &Caller) -> Result<&Arc<Served>, FlowError> {
        match models.len() {
            1 => self.model_for(&models.remove(0), caller),
            _ => Err(FlowError::ModelRequired { models }),
        }
    }

    /// # Errors
    /// 404 for an unknown model, 403 for one that the caller may not use.
    pub(crate) fn model_for(&self, id: &str, caller: &Caller) -> Result<&Arc<Served>, FlowError> {
        let unknown = || FlowError::UnknownModel { id: id.to_owned(), models: usable(&self.models, caller) };
        let served = self.find(id).ok_or_else(unknown)?;
        match caller.principal.may_use(id) {
            true => Ok(served),
            false => Err(FlowError::ModelForbidden(id.to_owned())),
        }
    }
}

/// The names of those of these models that the caller may use: nobody learns of others.
fn usable<'a>(models: impl IntoIterator<Item = &'a Model>, caller: &Caller) -> Vec<String> {
    models.into_iter().map(|model| &model.id).filter(|id| caller.principal.may_use(id)).cloned().collect()
}

impl Served {
    /// Of a model that generates.
    pub(crate) fn adapters(&self) -> Option<&Adapters> {
        match &self.model.backend {
            Backend::Generate(generator) => Some(&generator.adapters),
            _ => None,
        }
    }

    /// The channel to the pool of a model that generates.
    ///
    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn pool(&self) -> Result<&Sender<PoolMessage>, FlowError> {
        match &self.model.backend {
            Backend::Generate(generator) => Ok(&generator.pool),
            _ => Err(self.is_not(ModelKind::Generate)),
        }
    }

    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn embedder(&self) -> Result<&EmbedBackend, FlowError> {
        match &self.model.backend {
            Backend::Embed(embedder) => Ok(embedder),
            _ => Err(self.is_not(ModelKind::Embed)),
        }
    }

    /// # Errors
    /// 400 for a model of another kind.
    pub(crate) fn predictor(&self) -> Result<&PredictBackend, FlowError> {
        match &self.model.backend {
            Backend::Predict(predictor) => Ok(predictor),
            _ => Err(self.is_not(ModelKind::Predict)),
        }
    }

    /// # Errors
    /// 400 for a model that reads no texts.
    pub(crate) fn text(&self) -> Result<&TextModel, FlowError> {
        self.model.text().ok_or_else(|| FlowError::NoText(self.model.id.clone()))
    }

    /// # Errors
    /// 400 for a model that reads no texts.
    pub(crate) fn template(&self) -> Result<&ChatTemplate, FlowError> {
        self.template.as_ref().ok_or_else(|| FlowError::NoText(self.model.id.clone()))
    }

    fn is_not(&self, wanted: ModelKind) -> FlowError {
        FlowError::WrongKind { model: self.model.id.clone(), kind: self.model.kind(), wanted }
    }

    fn new(model: &Model) -> Result<Self, StartError> {
        let info = model.text().map(|text| &text.info);
        let template = info.map(|info| ChatTemplate::compile(&model.id, info)).transpose();
        let template = template.map_err(|source| StartError::ChatTemplate { model: model.id.clone(), source })?;
        if model.kind() == ModelKind::Generate && info.is_some_and(|info| info.chat_template.is_none()) {
            tracing::info!(
                model = model.id,
                "the model has no chat template: chats are rendered as `role: content` lines"
            );
        }
        let digest = match &model.backend {
            Backend::Predict(predictor) => predictor.info.sha256.as_deref(),
            _ => info.and_then(|info| info.sha256.as_deref()),
        };
        let weights = digest.and_then(|digest| digest.get(..12)).unwrap_or("unhashed");
        let fingerprint = format!("fp_{weights}_{}", env!("CARGO_PKG_VERSION"));
        Ok(Self { model: model.clone(), template, fingerprint })
    }
}
