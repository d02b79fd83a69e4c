//! The policy hooks as the host sees them: what goes in, and the three outcomes that come out.
//!
//! A **verdict** is an answer. A **refusal** is an error that a policy chose for the client. A **fault** means that a policy
//! did not answer properly. They are distinct types everywhere. Implemented by `camshaft-policy` over WebAssembly and, for
//! every hook, natively.
mod attributes;
mod change;
mod context;
mod difference;
mod facts;
mod fault;
pub mod guarded;
mod hook;
mod priority;
mod reply;
mod scheduler;
mod scheduling;
mod status;

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

pub use self::attributes::{ATTRIBUTE_BYTES, ATTRIBUTE_NAME_CHARS, ATTRIBUTES, AttributeError, Attributes};
pub use self::change::{PolicyAction, PolicyChange, PolicyEvent, PolicyHistory, PolicyOrder};
pub use self::context::RequestContext;
pub use self::difference::{Difference, RowFigures, WaitFigures, Waits};
pub use self::facts::{KvTokens, WorkerFacts};
pub use self::fault::{Fault, FaultKind};
pub use self::hook::{Hook, Mode};
pub use self::priority::Priority;
pub use self::reply::{REPLY_HEADERS, REPLY_NAME_CHARS, REPLY_VALUE_CHARS, RETRY_AFTER_MAX, Reply, ReplyError};
pub use self::scheduler::{
    Action, Arrival, CachedPrefix, NamedScheduler, Observation, Scheduler, SchedulerEvent, SchedulerHook,
    SchedulingPoint,
};
pub use self::scheduling::{
    CancelReason, Checkpoint, EmptyBooks, Ending, Hints, LatencyTarget, PoolBooks, Rejection, RequestFacts, Restored,
};
pub use self::status::{
    CanaryStatus, LastFault, ModeError, PolicyCheck, PolicyEffect, PolicyHealth, PolicyState, PolicyStatus,
};
use crate::answering::Answering;
use crate::ids::{Generation, PolicyDigest, PolicyName, RequestId, TenantId, Token};
use crate::sampling::{Row, SamplingParams};
use crate::segments::Namespace;
use crate::vocabulary::Vocabulary;

/// An error that a policy chose; the client reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// 400 to 499.
    pub status: u16,
    pub code: String,
    pub message: String,
    pub param: Option<String>,
}

/// Rates a tenant may use; `None` is not limited.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Quotas {
    pub requests_per_minute: Option<u32>,
    pub tokens_per_minute: Option<u32>,
    pub concurrent_requests: Option<u32>,
    /// In (0, 1]: of the queue, for waiting requests.
    pub queue_share: Option<f64>,
}

/// Who calls, as the auth policy says.
#[derive(Debug, Clone, PartialEq)]
pub struct Principal {
    /// The name of the key or user, for logs. Never the credential.
    pub name: String,
    pub tenant: TenantId,
    pub priority: Priority,
    /// In (0, 1000].
    pub weight: f64,
    pub quotas: Quotas,
    /// `None`: all.
    pub allowed_models: Option<Vec<String>>,
    /// Namespace of the prefix cache.
    pub cache_namespace: String,
    /// For later hooks.
    pub attributes: Arc<Attributes>,
}

impl Principal {
    /// The caller when no policy identifies callers.
    pub fn anonymous() -> Self {
        Self {
            name: "anonymous".to_owned(),
            tenant: TenantId::from("anonymous"),
            priority: Priority::Normal,
            weight: 1.0,
            quotas: Quotas::default(),
            allowed_models: None,
            cache_namespace: "anonymous".to_owned(),
            attributes: Arc::default(),
        }
    }

    /// The namespace of its prefixes: the tenant's own, a named one, or the one of all who share theirs. A name that is
    /// another tenant's leads to the named one, never to that tenant's own.
    pub fn namespace(&self) -> Namespace {
        match self.cache_namespace.as_str() {
            own if own == self.tenant.as_str() => Namespace::Tenant(self.tenant.clone()),
            Namespace::SHARED => Namespace::Shared,
            named => Namespace::Named(named.into()),
        }
    }

    /// What validators find set.
    pub fn marks(&self) -> Marks {
        Marks { attributes: self.attributes.clone(), priority: self.priority }
    }

    pub fn may_use(&self, model: &str) -> bool {
        self.allowed_models.as_ref().is_none_or(|models| models.iter().any(|m| m == model))
    }
}

/// The head of an HTTP request, as auth policies see it.
#[derive(Debug, Clone, Default)]
pub struct AuthRequest {
    pub method: String,
    /// Without the query.
    pub path: String,
    /// The route that the path leads to, one of [`guarded::ROUTES`]; empty: that is the path.
    pub route: String,
    /// The request's id in the log.
    pub id: String,
    /// What follows `?`, undecoded.
    pub query: String,
    /// Names in lower case; values of one name in the order in which they came.
    pub headers: Vec<(String, Vec<u8>)>,
    pub remote_address: String,
    /// The peer is on a loopback address, no header says that it forwards for another, and no web page of another machine
    /// sends the request or its host's name.
    pub loopback: bool,
    /// Of the TLS client, DER, its own first. Verified; none if it sent none.
    pub peer_certificates: Arc<Vec<Vec<u8>>>,
    /// SHA-256 of the body as it was sent, if [`PolicySet::wants_body_digest`].
    pub body_sha256: Option<[u8; 32]>,
}

/// The outcome of the auth chain.
#[derive(Debug, Clone)]
pub enum AuthOutcome {
    Allow(Principal),
    Refuse(Refusal),
    /// A policy faulted and the operator chose `deny`.
    Fault(Fault),
}

/// What the auth chain says.
#[derive(Debug, Clone)]
pub struct Authentication {
    pub outcome: AuthOutcome,
    /// Of the policy that decided.
    pub reply: Reply,
}

impl From<AuthOutcome> for Authentication {
    fn from(outcome: AuthOutcome) -> Self {
        Self { outcome, reply: Reply::default() }
    }
}

/// What a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Endpoint {
    Chat,
    Completion,
    Embedding,
    Prediction,
}

impl Endpoint {
    pub const ALL: [Endpoint; 4] = [Endpoint::Chat, Endpoint::Completion, Endpoint::Embedding, Endpoint::Prediction];

    /// What policies call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Completion => "completion",
            Endpoint::Embedding => "embedding",
            Endpoint::Prediction => "prediction",
        }
    }
}

/// What policies say of a request beside its body.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Marks {
    pub attributes: Arc<Attributes>,
    pub priority: Priority,
}

/// What tells which policies a request concerns.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub tenant: &'a TenantId,
    pub model: &'a str,
    pub endpoint: Endpoint,
}

/// A request's body as JSON text, which is written when a policy first asks for it.
#[derive(Clone)]
pub struct BodyText(Arc<LazyLock<String, Box<dyn FnOnce() -> String + Send>>>);

impl BodyText {
    pub fn new(write: impl FnOnce() -> String + Send + 'static) -> Self {
        Self(Arc::new(LazyLock::new(Box::new(write))))
    }
}

impl From<String> for BodyText {
    fn from(text: String) -> Self {
        Self::new(|| text)
    }
}

impl Deref for BodyText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for BodyText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BodyText")
    }
}

/// A generation request, as validator policies see it.
#[derive(Debug, Clone)]
pub struct ValidateRequest {
    pub endpoint: Endpoint,
    pub model: String,
    pub tenant: TenantId,
    /// The name of the key or user.
    pub principal: String,
    /// What earlier policies have set.
    pub marks: Marks,
    /// Tokens that the tenant's account is charged in advance, prompts and output together.
    pub estimated_cost: u64,
    /// One JSON object.
    pub body: BodyText,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    pub max_tokens_set: bool,
    pub temperature: f32,
    pub top_p: f32,
    pub n: u32,
    pub stream: bool,
}

impl ValidateRequest {
    pub fn target(&self) -> Target<'_> {
        Target { tenant: &self.tenant, model: &self.model, endpoint: self.endpoint }
    }
}

/// The outcome of one validator.
#[derive(Debug, Clone)]
pub enum ValidateOutcome {
    Accept,
    /// A JSON merge patch (RFC 7396) for the body.
    Amend(String),
    Refuse(Refusal),
    /// The policy faulted and the operator chose `deny`.
    Fault(Fault),
}

/// What one validator says.
#[derive(Debug, Clone)]
pub struct Validation {
    pub outcome: ValidateOutcome,
    /// What it has set; `None`: nothing, or it did not let the request pass.
    pub marks: Option<Marks>,
}

impl From<ValidateOutcome> for Validation {
    fn from(outcome: ValidateOutcome) -> Self {
        Self { outcome, marks: None }
    }
}

/// One published generation of policies. A request takes it once and keeps it to its end.
pub trait PolicySet: Send + Sync + fmt::Debug {
    fn generation(&self) -> Generation;
    /// Whether an auth policy is in force (otherwise the native default decides: loopback peers only, or everybody where
    /// the operator allowed anonymous use).
    fn has_auth(&self) -> bool;
    /// Runs the auth chain. Faults that do not deny are handled inside. The answer of fast policies is there at once; for slow
    /// ones it is waited for.
    fn authenticate<'a>(&'a self, request: &'a Arc<AuthRequest>) -> Answering<'a, Authentication>;
    /// Whether an auth policy asks for the digest of bodies: these are read before it is called.
    fn wants_body_digest(&self) -> bool {
        false
    }
    /// Number of validators in force.
    fn validators(&self) -> usize;
    /// Whether validator `index` is asked about such requests. Others cost it nothing.
    fn validates(&self, index: usize, target: Target<'_>) -> bool {
        let _ = (index, target);
        true
    }
    /// Runs validator `index`, in chain order. Faults that do not deny are handled inside. As for auth policies, a slow one's
    /// answer comes later.
    fn validate(&self, index: usize, request: &Arc<ValidateRequest>) -> Answering<'static, Validation>;
    /// The digest of the sampler chain in force. Workers find the chain by it.
    fn sampler_chain(&self) -> PolicyDigest;
    /// The digest of the filters in force.
    fn filter_chain(&self) -> PolicyDigest;
    /// Whether a sampler or filter reads clients' requests: they are kept until the last choice ends.
    fn keeps_bodies(&self) -> bool {
        false
    }
    /// The same generation with the versions that serve this request of the tenant, where new ones are on trial; `None`: the
    /// same as this. The request keeps to it, with all its choices. Nothing that a client sends with a request chooses.
    fn assigned(&self, tenant: &TenantId) -> Option<Arc<dyn PolicySet>> {
        let _ = tenant;
        None
    }
    /// Names of the sampler policies in force for such requests (those that they may name in `samplers`).
    fn samplers(&self, target: Target<'_>) -> Vec<PolicyName>;
}

/// All policies that the host knows, and the newest generation of them.
pub trait Policies: Send + Sync + fmt::Debug {
    fn current(&self) -> Arc<dyn PolicySet>;
    /// One entry for each file in the policy directory, refused ones included.
    fn status(&self) -> Vec<PolicyStatus>;
    /// The newest changes, the oldest first.
    fn history(&self) -> Vec<PolicyChange> {
        Vec::new()
    }
    /// Does what an operator asks for. Returns how the policy stands then.
    ///
    /// # Errors
    /// There is no such policy, or it cannot be done.
    fn change(&self, order: PolicyOrder) -> Result<PolicyStatus, ModeError> {
        Err(ModeError::NoPolicy { hook: order.hook, name: order.name })
    }
    /// Runs a policy in this mode until its files change. Returns its status in the new mode.
    ///
    /// # Errors
    /// There is no such policy, or it cannot serve in that mode.
    fn set_mode(&self, hook: Hook, name: &str, mode: Mode) -> Result<PolicyStatus, ModeError> {
        let (name, action) = (name.to_owned(), PolicyAction::Mode(mode));
        self.change(PolicyOrder { hook, name, action, who: "operator".to_owned() })
    }
    /// Examines a component with this settings file, as a load would, and changes nothing.
    ///
    /// # Errors
    /// Why it would be rejected, or why it cannot be told.
    fn check(&self, component: Vec<u8>, settings: Option<&str>) -> Result<PolicyCheck, ModeError> {
        let _ = (component, settings);
        Err(ModeError::NoHost)
    }
}

/// What a sampler chain is told about its request when it is made.
#[derive(Debug, Clone)]
pub struct SamplingRequest {
    pub request: RequestId,
    pub model: String,
    pub tenant: TenantId,
    pub endpoint: Endpoint,
    pub params: SamplingParams,
    /// Index among the choices of one HTTP request.
    pub choice: u32,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    /// Names of the samplers to chain instead of all in force.
    pub samplers: Option<Vec<String>>,
    pub context: RequestContext,
    pub vocabulary: Arc<Vocabulary>,
}

impl SamplingRequest {
    pub fn target(&self) -> Target<'_> {
        Target { tenant: &self.tenant, model: &self.model, endpoint: self.endpoint }
    }
}

/// A request's sampler chain. It lives as long as the sequence, on the worker's thread.
pub trait TokenSampler: Send {
    /// Shapes the row; a token if the chain drew one, otherwise the caller draws. An error means that a policy faulted
    /// and the operator chose `deny`: the request ends. The row is usable after an error.
    fn sample(&mut self, row: &mut Row) -> Result<Option<Token>, Fault>;
}

/// Why a request has no sampler chain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoSampler {
    /// A sampler refused the request.
    #[error("a sampler policy refused the request: {}", .0.message)]
    Refused(Refusal),
    /// A sampler faulted and the operator chose `deny`, or as many run as may.
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Makes sampler chains. Called on the worker's thread.
pub trait SamplerHook: Send + Sync + fmt::Debug {
    /// An instance of the chain with this digest. If nothing holds that any more, of the newest one, and the log says
    /// so. Never fails for lack of a policy: without one it is the native standard chain.
    fn open(&self, chain: PolicyDigest, request: &SamplingRequest) -> Result<Box<dyn TokenSampler>, NoSampler>;
}
