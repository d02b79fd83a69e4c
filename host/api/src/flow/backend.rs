//! The interface to the threads that serve models: loaded models, and the channels to their pools and embedders.
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use arc_swap::ArcSwap;
use camshaft_core::engine::{ModelInfo, ModelKind, Tokenizer};
use camshaft_core::family::description::Family;
use camshaft_core::grammar::GrammarStore;
use camshaft_core::ids::{AdapterDigest, RequestId, SessionId};
use camshaft_core::message::{Event, OpenSession, Start};
use camshaft_core::policy::{Hints, PolicySet, Principal, Priority, WorkerFacts};
use camshaft_core::sampling::{SamplingDefaults, SamplingParams};
use camshaft_core::segments::Namespace;
use camshaft_core::tensor::{Computing, Signature};
use camshaft_reader::{LocalReader, ModelReader, Reader, TemplateSource};
use crossbeam_channel::Sender;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::flow::adapters::{self, Adapter, Adapters};
use crate::flow::jobs::{EmbedJobs, PredictJobs};
use crate::flow::notation::markers;
use crate::flow::quota::Spent;
use crate::flow::readiness::ModelHealth;

/// Bound of the events buffered for one generation between the worker and its HTTP task. The worker's side merges
/// events past it, and sends them later.
pub const STREAM_EVENTS: usize = 64;

/// A served model.
#[derive(Debug, Clone)]
pub struct Model {
    /// Its name, with its version if it has one, see [`Naming::id`].
    pub id: String,
    /// How clients reach it until somebody says otherwise.
    pub naming: Naming,
    /// Of its workers.
    pub health: ModelHealth,
    /// Time of loading, in seconds since the Unix epoch.
    pub created: u64,
    pub backend: Backend,
}

/// How clients reach a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Naming {
    /// Versions of one model share it.
    pub name: String,
    pub version: Option<String>,
    /// Its part of the requests that name no version, among the weights of all versions.
    pub weight: f64,
    /// Other names. One with a star at its end is a pattern: all names that begin as it does.
    pub aliases: Vec<String>,
    /// The name of the model that stands in while this one is loading, is broken or has a full queue.
    pub fallback: Option<String>,
}

impl Naming {
    /// Of a model without versions, aliases and a fallback.
    pub fn of(name: &str) -> Self {
        Self { name: name.to_owned(), version: None, weight: 1.0, aliases: Vec::new(), fallback: None }
    }

    /// `name` or `name@version`.
    pub fn id(&self) -> String {
        match &self.version {
            Some(version) => format!("{}@{version}", self.name),
            None => self.name.clone(),
        }
    }

    /// What the names begin with that its patterns are of.
    pub(crate) fn patterns(&self) -> impl Iterator<Item = &str> {
        self.aliases.iter().filter_map(|alias| alias.strip_suffix('*'))
    }

    /// Its other names that are no patterns.
    pub(crate) fn other_names(&self) -> impl Iterator<Item = &String> {
        self.aliases.iter().filter(|alias| !alias.ends_with('*'))
    }

    /// Whether somebody may use an adapter of the model, by the model's name or by its id.
    pub(crate) fn lets_adapt(&self, principal: &Principal, adapter: &str) -> bool {
        [&self.name, &self.id()].into_iter().any(|model| principal.may_use(&adapters::name(model, adapter)))
    }
}

/// What a model is, and the way to the threads that serve it.
#[derive(Debug, Clone)]
pub enum Backend {
    Generate(GenerateBackend),
    Embed(EmbedBackend),
    Predict(PredictBackend),
}

/// A model that takes texts.
#[derive(Clone)]
pub struct TextModel {
    pub info: ModelInfo,
    /// Who renders and tokenizes for it, which knows the tokens of these [`markers`](crate::markers).
    pub reader: Arc<dyn Reader>,
}

#[derive(Debug, Clone)]
pub struct GenerateBackend {
    pub text: TextModel,
    /// What the operator says of requests that name no sampling parameters.
    pub sampling: ConfiguredSampling,
    /// How the operator says that its answers have tool calls and thinking; `None`: as its chat template shows.
    pub family: Option<&'static Family>,
    /// Compiled for its vocabulary, and shared with its workers.
    pub grammars: Arc<GrammarStore>,
    /// They keep its weights in memory: dropped before `pool`, which hears then that nobody can ask any more.
    pub adapters: Arc<Adapters>,
    /// To the pool's thread. Bounded: a full channel means overload.
    pub pool: Sender<PoolMessage>,
    /// Whether its queue takes more requests, as it was lately.
    pub accepts: Arc<AtomicBool>,
}

impl GenerateBackend {
    /// The sampling parameters of a request that names none: as the operator says, else as the model's file says, else OpenAI's.
    pub fn sampling(&self) -> SamplingParams {
        self.sampling.get().over(self.text.info.sampling).params()
    }
}

/// Sampling parameters that an operator gives a model's requests, which may change while it is served.
#[derive(Debug, Clone, Default)]
pub struct ConfiguredSampling(Arc<ArcSwap<SamplingDefaults>>);

impl ConfiguredSampling {
    pub fn new(configured: SamplingDefaults) -> Self {
        Self(Arc::new(ArcSwap::from_pointee(configured)))
    }

    pub fn get(&self) -> SamplingDefaults {
        **self.0.load()
    }

    /// Of later requests.
    pub fn set(&self, configured: SamplingDefaults) {
        self.0.store(Arc::new(configured));
    }
}

/// An embedding model.
#[derive(Debug, Clone)]
pub struct EmbedBackend {
    pub text: TextModel,
    /// The embedder's queue.
    pub jobs: EmbedJobs,
    /// Maximum tokens of an input.
    pub input_tokens: u32,
    /// Length of a vector.
    pub dimensions: u32,
    /// Shorter lengths that the model was trained for, too.
    pub shorter_dimensions: Vec<u32>,
    /// Inputs may be token ids, which mean other words in other vocabularies.
    pub takes_ids: bool,
}

/// A tensor model.
#[derive(Debug, Clone)]
pub struct PredictBackend {
    /// The workers' queue.
    pub jobs: PredictJobs,
    pub info: PredictInfo,
    pub signature: Signature,
    pub computing: Arc<dyn Computing>,
}

/// Facts about a tensor model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PredictInfo {
    /// From the model's file.
    pub name: String,
    /// Format of the file.
    pub format: Cow<'static, str>,
    /// What computes it, with the name of its device if it has one.
    pub backend: Cow<'static, str>,
    pub parameters: u64,
    pub weight_bytes: u64,
    /// As [`ModelInfo::sha256`].
    pub sha256: Option<String>,
}

impl PredictBackend {
    /// What computes it now.
    pub fn backend(&self) -> Cow<'static, str> {
        self.computing.fallback().unwrap_or_else(|| self.info.backend.clone())
    }
}

impl Model {
    pub fn kind(&self) -> ModelKind {
        match &self.backend {
            Backend::Generate(_) => ModelKind::Generate,
            Backend::Embed(_) => ModelKind::Embed,
            Backend::Predict(_) => ModelKind::Predict,
        }
    }

    /// The tokens that it takes at once; `None`: it reads no texts.
    pub(crate) fn context(&self) -> Option<u32> {
        self.text().map(|text| text.info.context_tokens)
    }

    /// `None`: it reads no texts.
    pub fn text(&self) -> Option<&TextModel> {
        match &self.backend {
            Backend::Generate(GenerateBackend { text, .. }) | Backend::Embed(EmbedBackend { text, .. }) => Some(text),
            Backend::Predict(_) => None,
        }
    }
}

impl TextModel {
    /// A model whose texts are read on threads of this process. `family`: the one that the operator names.
    pub fn local(
        info: ModelInfo,
        tokenizer: Arc<dyn Tokenizer>,
        grammars: Arc<GrammarStore>,
        family: Option<&'static Family>,
    ) -> Self {
        let model = ModelReader::new(TemplateSource::of(&info), tokenizer, grammars);
        let reader = LocalReader::new(model, markers(family, &info));
        Self { info, reader: Arc::new(reader) }
    }
}

impl fmt::Debug for TextModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextModel").field("name", &self.info.name).finish_non_exhaustive()
    }
}

/// A message from an HTTP task to a pool.
#[derive(Debug)]
pub enum PoolMessage {
    Submit(Box<Submission>),
    /// Closes a session, so that its KV may be evicted. The answer says whether there was such a session.
    CloseSession {
        namespace: Namespace,
        session: SessionId,
        reply: oneshot::Sender<bool>,
    },
    /// Lists the open sessions of a whole namespace, those of each worker.
    ListSessions {
        namespace: Namespace,
        reply: oneshot::Sender<Vec<OpenSession>>,
    },
    /// Nobody uses an adapter any more that was unloaded: workers let go of it.
    ForgetAdapter(AdapterDigest),
    /// Asks for a snapshot.
    Snapshot(oneshot::Sender<PoolSnapshot>),
    /// A receiver was dropped: the pool cancels generations without a client.
    Wake,
    /// Ends all generations. Running streams get an error.
    Stop,
}

/// What the worker's side of a choice shares with its request.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    /// One for all choices of the request.
    pub first_reply: FirstReply,
    pub spent: Spent,
    /// Those that it is computed under stay in memory until it has ended.
    pub adapters: Vec<Arc<Adapter>>,
}

/// One generation, with everything that the pool needs to queue it, run it and report on it.
///
/// Dropping the receiving end of `events` cancels the generation, at the latest at the next step.
#[derive(Debug)]
pub struct Submission {
    pub start: Start,
    /// Of the request, whose choices enter a full queue together.
    pub first_choice: RequestId,
    pub priority: Priority,
    pub weight: f64,
    /// Share of the queue that the tenant's waiting requests may take.
    pub queue_share: Option<f64>,
    /// When the request had arrived, been read and been admitted. From then on it waits for others in the queue; until then it
    /// may have waited for its own body.
    pub arrived: Instant,
    /// Latest moment of the first token of any choice of the request.
    pub deadline: Option<Instant>,
    /// What the client says for scheduler policies to read.
    pub hints: Arc<Hints>,
    pub shared: Shared,
    /// Receives `Started`, `Delta`s, then `Finished` or `Failed`. Closed without either if the pool is gone.
    pub events: mpsc::Sender<Event>,
    /// The policies with which the request began. Holding them keeps their generation alive.
    pub policies: Arc<dyn PolicySet>,
}

/// The result of a reload.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// Keys whose new values are in force.
    pub changed: Vec<String>,
    /// Keys whose new values need a restart.
    pub needs_restart: Vec<String>,
    /// Why the configuration was rejected (nothing in it has changed then), or the policies were not scanned.
    pub error: Option<String>,
    #[serde(skip)]
    pub policies: PolicyScan,
}

/// What became of the policy directory in a reload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PolicyScan {
    /// What is there serves or was rejected.
    #[default]
    Done,
    /// Too many others wait.
    Busy,
    /// It may still happen.
    Unanswered,
}

/// Reloads and shows the configuration. The server implements it.
pub trait Control: Send + Sync + fmt::Debug {
    /// Reloads configuration and policies.
    fn reload(&self) -> Reloaded;
    /// Every key with its value in force and its source.
    fn config(&self) -> Value;
}

/// A snapshot of a pool, or of an embedder, which has no workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PoolSnapshot {
    pub accepting: bool,
    pub waiting: usize,
    pub running: usize,
    pub waiting_by_priority: BTreeMap<Priority, usize>,
    /// The [`PoolSnapshot::TENANTS`] tenants with the most waiting requests.
    pub waiting_by_tenant: BTreeMap<String, usize>,
    pub workers: Vec<WorkerFacts>,
}

impl PoolSnapshot {
    /// Tenants that a snapshot lists.
    pub const TENANTS: usize = 100;

    /// Counts waiting requests, of which the class and the tenant are given, by both. Of more tenants than a snapshot
    /// lists, those with the most waiting requests are kept.
    pub fn count_waiting<'a>(&mut self, waiting: impl Iterator<Item = (Priority, &'a str)>) {
        let mut tenants: HashMap<&str, usize> = HashMap::new();
        for (priority, tenant) in waiting {
            *self.waiting_by_priority.entry(priority).or_default() += 1;
            *tenants.entry(tenant).or_default() += 1;
        }
        let mut tenants: Vec<(&str, usize)> = tenants.into_iter().collect();
        tenants.sort_unstable_by_key(|&(tenant, waiting)| (Reverse(waiting), tenant));
        let named = tenants.into_iter().take(Self::TENANTS).map(|(tenant, waiting)| (tenant.to_owned(), waiting));
        self.waiting_by_tenant = named.collect();
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Output,
    Expiry,
}

/// What a client reads first: output, or that its deadline passed. Never both.
///
/// The worker's side sends output, the pool tells of deadlines, and each hears of the other too late: a first token may have been sent
/// while the worker's report of it is on its way to the pool. So both ask here before they speak. Shared by the pool and the streams of
/// all choices of a request: a deadline bounds the time to the first token of any.
#[derive(Debug, Clone, Default)]
pub struct FirstReply(Arc<OnceLock<Reply>>);

impl FirstReply {
    /// Output is about to be sent. False if the client has been told that its deadline passed.
    pub fn begin(&self) -> bool {
        *self.0.get_or_init(|| Reply::Output) == Reply::Output
    }

    /// The deadline passed. False if the client has been sent output: then the deadline was kept.
    pub fn expire(&self) -> bool {
        *self.0.get_or_init(|| Reply::Expiry) == Reply::Expiry
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_comes_first_decides() {
        let (kept, passed) = (FirstReply::default(), FirstReply::default());
        assert!(kept.begin() && kept.begin() && !kept.expire());
        assert!(passed.expire() && passed.expire() && !passed.begin());
    }
}
