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
mod hook;
mod reply;
mod scheduling;
mod status;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use self::attributes::{ATTRIBUTE_BYTES, ATTRIBUTE_NAME_CHARS, ATTRIBUTES, AttributeError, Attributes};
pub use self::change::{PolicyAction, PolicyChange, PolicyEvent, PolicyHistory, PolicyOrder};
pub use self::context::RequestContext;
pub use self::difference::{Difference, RowFigures, WaitFigures, Waits};
pub use self::facts::{KvTokens, WorkerFacts};
pub use self::hook::{Hook, Mode};
pub use self::reply::{REPLY_HEADERS, REPLY_NAME_CHARS, REPLY_VALUE_CHARS, RETRY_AFTER_MAX, Reply, ReplyError};
pub use self::scheduling::{
    CancelReason, Checkpoint, EmptyBooks, Ending, Hints, LatencyTarget, PoolBooks, Rejection, RequestFacts, Restored,
};
pub use self::status::{CanaryStatus, ModeError, PolicyCheck, PolicyHealth, PolicyState, PolicyStatus};
use crate::answering::Answering;
use crate::breaker::BreakerSettings;
use crate::ids::{Generation, PolicyDigest, PolicyName, RequestId, TenantId, Token, WorkerId};
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

/// How a policy failed to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// The guest trapped (panic, unreachable, stack overflow).
    Trap,
    /// The guest ran past its deadline and was stopped.
    Deadline,
    /// The guest asked for more memory than it may have.
    Memory,
    /// The guest's answer is not one that the hook allows.
    InvalidOutput,
    /// No instance could be made.
    Unavailable,
    /// As many instances of its hook run as may run at once.
    Exhausted,
}

impl FaultKind {
    /// The name in metrics labels and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultKind::Trap => "trap",
            FaultKind::Deadline => "deadline",
            FaultKind::Memory => "memory",
            FaultKind::InvalidOutput => "invalid_output",
            FaultKind::Unavailable => "unavailable",
            FaultKind::Exhausted => "exhausted",
        }
    }
}

/// A policy that did not answer properly. For the log; clients learn only that a policy failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy {plugin} faulted ({}): {detail}", kind.as_str())]
pub struct Fault {
    pub plugin: PolicyName,
    pub kind: FaultKind,
    pub detail: String,
}

/// Priority class: the first class with work goes first. As a number 0, 1 and 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    High,
    #[default]
    Normal,
    Low,
}

impl Priority {
    /// The number that policies know the class by.
    pub fn number(self) -> u8 {
        match self {
            Priority::High => 0,
            Priority::Normal => 64,
            Priority::Low => 128,
        }
    }

    /// The most urgent class that is no more urgent than the number.
    pub fn of_number(number: u8) -> Self {
        [Priority::High, Priority::Normal].into_iter().find(|class| number <= class.number()).unwrap_or(Priority::Low)
    }

    /// The name in configuration and snapshots.
    pub fn as_str(self) -> &'static str {
        match self {
            Priority::High => "high",
            Priority::Normal => "normal",
            Priority::Low => "low",
        }
    }
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
    /// The route that the path leads to, under its first name; empty: that is the path.
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
}

impl Endpoint {
    pub const ALL: [Endpoint; 3] = [Endpoint::Chat, Endpoint::Completion, Endpoint::Embedding];

    /// What policies call it.
    pub fn as_str(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Completion => "completion",
            Endpoint::Embedding => "embedding",
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
    pub body: String,
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
    /// same as this. The request keeps to it, with all its choices.
    fn assigned(&self, tenant: &TenantId, request: &str) -> Option<Arc<dyn PolicySet>> {
        let _ = (tenant, request);
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

/// A waiting request, as a scheduler sees it. Times count from the pool's start.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub id: RequestId,
    pub arrived: Duration,
    pub tenant: TenantId,
    pub priority: Priority,
    pub weight: f64,
    /// Latest moment of the first token.
    pub deadline: Option<Duration>,
    pub prompt_tokens: u32,
    pub max_tokens: u32,
    /// KV tokens that a worker must have free to admit it. Never more than an idle worker has.
    pub need: u32,
    /// Workers whose prefix cache probably holds a prefix of the prompt, as estimated when the request arrived.
    pub cached: Vec<CachedPrefix>,
    /// What auth and validator policies have set.
    pub attributes: Arc<Attributes>,
}

/// Prompt tokens that a worker's prefix cache probably holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPrefix {
    pub worker: WorkerId,
    pub tokens: u32,
}

impl Arrival {
    /// Prompt tokens that a worker's prefix cache probably holds.
    pub fn cached_on(&self, worker: WorkerId) -> u32 {
        self.cached.iter().find(|cached| cached.worker == worker).map_or(0, |cached| cached.tokens)
    }
}

/// What a scheduler is told.
#[derive(Debug, Clone, PartialEq)]
pub enum SchedulerEvent {
    Arrived(Arrival),
    Dispatched {
        id: RequestId,
        worker: WorkerId,
    },
    Progressed {
        id: RequestId,
        prompt_tokens: u32,
        generated_tokens: u32,
    },
    Finished {
        id: RequestId,
        generated_tokens: u32,
        ending: Ending,
    },
    Cancelled {
        id: RequestId,
        reason: CancelReason,
    },
    /// Its worker preempted it, or paused it for its reader.
    Preempted {
        id: RequestId,
    },
    /// It runs again, neither preempted nor paused.
    Resumed {
        id: RequestId,
    },
}

/// One call of a scheduler: what happened since the last one.
#[derive(Debug, Clone)]
pub struct SchedulingPoint {
    /// Time since the pool started.
    pub now: Duration,
    /// The first point of an instance, carrying the whole state as events.
    pub replay: bool,
    pub events: Vec<SchedulerEvent>,
    /// All workers of the pool.
    pub workers: Vec<WorkerFacts>,
    /// What else can be asked. Whoever keeps it past the call makes the pool copy its book.
    pub books: Arc<dyn PoolBooks>,
}

/// What a scheduler asks the pool to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Preempt {
        id: RequestId,
    },
    Reject {
        id: RequestId,
        rejection: Rejection,
    },
    Dispatch {
        id: RequestId,
        worker: WorkerId,
    },
    PrefillBudget {
        worker: WorkerId,
        tokens: u32,
    },
    /// Call again at this time at the latest, even if nothing happens. Replaces an earlier one that has not passed.
    WakeAt {
        at: Duration,
    },
}

/// A pool's scheduler: long-lived, fed with events.
pub trait Scheduler: Send {
    /// Answers a scheduling point. The pool checks every action before it carries out the first.
    fn schedule(&mut self, point: &SchedulingPoint) -> Result<Vec<Action>, Fault>;

    /// The plugin whose instances leave checkpoints to each other; `None`: it has none to leave and takes none.
    fn lineage(&self) -> Option<&str> {
        None
    }

    /// What the next instance of its plugin is to begin with. Never asked after a fault. `None`: nothing, or it failed.
    fn save(&mut self) -> Option<Checkpoint> {
        None
    }

    /// Begins with what an earlier instance of its plugin saved, before the first point.
    fn restore(&mut self, checkpoint: Checkpoint) -> Restored {
        let _ = checkpoint;
        Restored::Refused
    }
}

/// A scheduler and the policy that it is an instance of.
pub type NamedScheduler = (PolicyName, Box<dyn Scheduler>);

/// What a pool tells of the scheduler that it monitors.
#[derive(Debug, Clone, Copy)]
pub enum Observation<'a> {
    Differs(Difference),
    Waited(Waits),
    /// So many requests wait in its virtual book.
    Waiting(usize),
    /// It was not asked at a scheduling point, because the pool had other work.
    Skipped,
    /// The pool refused its actions. Counts as a fault of invalid output; other faults were counted before.
    Refused(&'a Fault),
    /// Its breaker opened after a fault: it is not asked.
    Opened {
        fault: &'a Fault,
        pause: Duration,
    },
    /// It closed again.
    Closed,
}

/// Makes schedulers.
pub trait SchedulerHook: Send + Sync + fmt::Debug {
    /// Tells the scheduler in force from all others. Besides swaps, turns change it: a version that is on trial decides in some
    /// slots of the time, which counts from the pool's start.
    fn generation(&self, now: Duration) -> Generation;
    /// When the breaker of the scheduler in force opens.
    fn breaker(&self, now: Duration) -> BreakerSettings {
        let _ = now;
        BreakerSettings::SINGLE
    }
    /// A fresh instance of the scheduler in force; `None` where the native one is to be used.
    fn open(&self, now: Duration) -> Result<Option<NamedScheduler>, Fault>;
    /// The pool refused a scheduler's actions. Counts as a fault of invalid output.
    fn refused(&self, fault: &Fault);
    /// The native scheduler decides in the policy's place from now on. Not called again while it does.
    fn replaced(&self, fault: &Fault);
    /// The policy decides again after it was replaced; `None`: no policy is in force any more.
    fn returned(&self, policy: Option<&PolicyName>);
    /// Changes when another scheduler is monitored; `None`: none is.
    fn monitored(&self) -> Option<Generation> {
        None
    }
    /// When the breaker of the monitored scheduler opens.
    fn monitored_breaker(&self) -> BreakerSettings {
        BreakerSettings::SINGLE
    }
    /// A fresh instance of the monitored scheduler.
    fn open_monitored(&self) -> Result<Option<NamedScheduler>, Fault> {
        Ok(None)
    }
    /// The pool tells of the monitored scheduler that was opened last.
    fn observed(&self, seen: Observation<'_>) {
        let _ = seen;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_of_the_less_urgent_class_of_the_two_beside_it() {
        let expected = [(0, Priority::High), (1, Priority::Normal), (64, Priority::Normal), (65, Priority::Low)];
        for (number, class) in
            expected.into_iter().chain([(128, Priority::Low), (129, Priority::Low), (255, Priority::Low)])
        {
            assert_eq!(Priority::of_number(number), class, "{number}");
        }
        for class in [Priority::High, Priority::Normal, Priority::Low] {
            assert_eq!(Priority::of_number(class.number()), class);
        }
    }
}
