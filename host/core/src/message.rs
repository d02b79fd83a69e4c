//! The messages between host and worker: two closed enums of plain data.
//!
//! They travel over a channel to a worker thread today and could travel over a socket to a worker process, so nothing in
//! them borrows, locks or calls.
use std::sync::Arc;
use std::time::Duration;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

use crate::adapters::AdapterSet;
use crate::grammar::Grammar;
use crate::ids::{AdapterDigest, PolicyDigest, RequestId, SessionId, TenantId, Token};
use crate::policy::{Endpoint, Priority, Refusal, Rejection, RequestContext};
use crate::sampling::SamplingParams;
use crate::segments::Namespace;
use crate::thinking::ThinkingBudget;
use crate::vocabulary::Vocabulary;

/// Host to worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Begin a generation. Answered by `Started` or `Failed`. `need`: KV tokens to admit it with, see [`crate::reserve`].
    Start { start: Box<Start>, need: u32 },
    /// Stop a generation before the next step. Answered by `Finished` with `Cancelled`, or not at all if it is unknown.
    Cancel { id: RequestId },
    /// Take a generation's KV entries away. The worker resumes it by itself when it has capacity and nothing else waits.
    Preempt { id: RequestId },
    /// Compute no more for a generation until `Resume`: its reader is behind. It keeps its KV entries as long as nobody
    /// needs the capacity. Answered by `Paused`.
    Pause { id: RequestId },
    /// Ends a pause. Answered by `Resumed`.
    Resume { id: RequestId },
    /// Maximum of prompt tokens to prefill per step; 0: the worker decides.
    PrefillBudget { tokens: u32 },
    /// Close a session: what it pinned may be evicted. Answered by `SessionClosed` with the same id, which no generation
    /// has.
    CloseSession { id: RequestId, namespace: Namespace, session: SessionId },
    /// Tell of the sessions of a whole namespace. Answered by `Sessions` with the same id, which no generation has.
    ListSessions { id: RequestId, namespace: Namespace },
    /// What the worker runs at once and computes in one step, below what its engine has room for. What runs goes on.
    Bounds(WorkerBounds),
    /// RAM capacity of the prefix cache, and how long an unused session lasts.
    CacheLimits { ram_bytes: u64, session_ttl: Duration },
    /// An adapter is unloaded: the engine lets go of it, unless a generation here still uses it.
    ForgetAdapter { adapter: AdapterDigest },
}

/// Bounds of a worker that may change while it runs. `None`: what its engine has room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerBounds {
    /// Generations that run at once.
    pub sequences: Option<u32>,
    /// Tokens of one step; never fewer than sequences that decode.
    pub step_tokens: Option<u32>,
}

/// One generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Start {
    pub id: RequestId,
    pub model: String,
    pub tenant: TenantId,
    pub endpoint: Endpoint,
    /// Who may share its prefixes, those that are computed under the same adapters.
    pub namespace: Namespace,
    /// What it is computed under.
    pub adapters: AdapterSet,
    /// The session pins what this generation leaves in the prefix cache, in place of what it pinned before.
    pub session: Option<SessionId>,
    /// When the KV cache is full, the lowest class is preempted first, and of it the latest arrival.
    pub priority: Priority,
    /// The sampler chain that was in force when the request began.
    pub sampler_chain: PolicyDigest,
    /// The filters that were in force then.
    pub filter_chain: PolicyDigest,
    /// What those may ask about it.
    pub context: RequestContext,
    /// At least one token, and fewer than the context holds.
    pub prompt: Arc<[Token]>,
    /// With the seed of this choice.
    pub params: SamplingParams,
    /// Names of the samplers to chain instead of all in force.
    pub samplers: Option<Vec<String>>,
    /// Index among the choices of one HTTP request.
    pub choice: u32,
    /// 0: nothing is drawn, the prompt is only computed.
    pub max_tokens: u32,
    /// Texts that end the generation and are not part of it; none is empty.
    pub stop: Vec<String>,
    /// Go on after an end token, which adds no text.
    pub ignore_eos: bool,
    /// What else ends it, or keeps it from ending.
    pub ends: Ends,
    /// Report the log-probabilities of the prompt's tokens, but of the first, each under those before it. They come in deltas
    /// without text or tokens, before anything that is drawn.
    pub score_prompt: bool,
    /// Most probable alternatives to report with each token; `None`: no log-probabilities.
    pub logprobs: Option<u32>,
    /// What the text must match; `None`: anything. Shared by the choices of a request.
    pub grammar: Option<Arc<Grammar>>,
    /// Control tokens whose text is part of the output, which has none of others'.
    pub shown: Arc<[ShownToken]>,
}

/// A control token, and the text that it adds to an output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownToken {
    pub token: Token,
    pub text: String,
}

/// What ends a generation besides its model's end tokens and its stop strings, and what keeps it from ending.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ends {
    /// Tokens that end it, and add no text.
    pub tokens: Vec<Token>,
    /// Until this many tokens were drawn no end token and none of `tokens` is drawn, and stop strings mean nothing.
    pub min_tokens: u32,
    /// How long it may take; the pool takes off what it waited. Past it, it ends with what it has, once that is a token.
    pub max_duration: Option<Duration>,
    /// How much of it may be thinking.
    pub thinking: Option<ThinkingBudget>,
}

impl Start {
    /// Where its KV entries, and the session that pins them, belong.
    pub fn root(&self) -> Namespace {
        self.namespace.under(&self.adapters)
    }

    /// What a token adds to the output.
    pub(crate) fn bytes_of<'a>(&'a self, vocabulary: &'a Vocabulary, token: Token) -> &'a [u8] {
        match vocabulary.token_bytes(token).unwrap_or_default() {
            [] => self.shown.iter().find(|shown| shown.token == token).map_or(&[], |shown| shown.text.as_bytes()),
            bytes => bytes,
        }
    }
}

/// What happens to a request, told by its worker; the pool tells its client of the queue and of failures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// It waits in the queue, at this position from 1 on.
    Queued { id: RequestId, position: u32 },
    /// Its KV is reserved, as the facts of the same report show.
    Admitted { id: RequestId },
    /// Answers `CloseSession`: whether there was such a session.
    SessionClosed { id: RequestId, existed: bool },
    /// Answers `ListSessions`.
    Sessions { id: RequestId, sessions: Vec<OpenSession> },
    /// Its KV entries were taken away. `Admitted` comes again when it resumes.
    Preempted { id: RequestId },
    /// It counts as running no more: others may have its sequence and its KV, as the facts of the same report show.
    Paused { id: RequestId },
    /// It counts as running again.
    Resumed { id: RequestId },
    /// The prompt's first chunk is in a batch, which is computed next.
    Started { id: RequestId, cached_tokens: u32 },
    /// Text was generated. Always whole UTF-8 characters, never part of a stop string, and as the filters want it.
    Delta { id: RequestId, delta: Delta },
    /// How far a running request is, for the pool: with its first token, then every 32 tokens.
    Progressed { id: RequestId, prompt_tokens: u32, generated_tokens: u32 },
    /// The last event of a request that ended as it should, or was cancelled.
    Finished { id: RequestId, reason: FinishReason, usage: Usage },
    /// The last event of a request that could not go on.
    Failed { id: RequestId, error: WorkerError },
}

/// Where a worker's events go, in order.
pub trait Events {
    fn push(&mut self, event: Event);

    /// What was pushed should go out before the worker goes on: it is about to do something that takes time.
    fn flush(&mut self) {}
}

impl Events for Vec<Event> {
    fn push(&mut self, event: Event) {
        Self::push(self, event);
    }
}

impl Event {
    /// Whether it is told to the client; the pool hears of the others, and of how it ends.
    pub fn is_for_client(&self) -> bool {
        matches!(self, Self::Started { .. } | Self::Delta { .. } | Self::Finished { .. } | Self::Failed { .. })
    }

    /// The request an event speaks of.
    pub fn id(&self) -> RequestId {
        match self {
            Event::Queued { id, .. }
            | Event::Admitted { id }
            | Event::Preempted { id }
            | Event::Paused { id }
            | Event::Resumed { id }
            | Event::SessionClosed { id, .. }
            | Event::Sessions { id, .. }
            | Event::Started { id, .. }
            | Event::Delta { id, .. }
            | Event::Progressed { id, .. }
            | Event::Finished { id, .. }
            | Event::Failed { id, .. } => *id,
        }
    }
}

/// A session that a worker has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenSession {
    pub session: SessionId,
    /// The part of its owner's namespace that it is of.
    pub namespace: Namespace,
    /// Length of the prefix that it pins.
    pub tokens: u32,
    /// When it is closed if nobody uses it before.
    pub expires_in: Duration,
}

/// New text of a generation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Delta {
    /// As short as the text of a token, it needs no allocation.
    pub text: CompactString,
    /// Tokens that this text comes from; 0 for text that was held back until the end.
    pub tokens: u32,
    /// One for each token, if asked for; without tokens, of the prompt's next ones ([`Start::score_prompt`]).
    pub logprobs: Vec<TokenLogprob>,
}

/// The log-probability of a drawn token under the model's own distribution (before any sampler).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "LogprobBits", into = "LogprobBits")]
pub struct TokenLogprob {
    pub token: Token,
    /// Natural logarithm: minus infinity for a token that the model rules out.
    pub logprob: f32,
    /// Most probable first.
    pub top: Vec<(Token, f32)>,
    /// Characters of the text before it that come of no token with a log-probability: a filter has replaced text.
    pub skipped: u32,
}

/// How a [`TokenLogprob`] travels: each float as its bits, since JSON and others have no minus infinity.
#[derive(Serialize, Deserialize)]
struct LogprobBits {
    token: Token,
    logprob: u32,
    top: Vec<(Token, u32)>,
    skipped: u32,
}

impl From<TokenLogprob> for LogprobBits {
    fn from(TokenLogprob { token, logprob, top, skipped }: TokenLogprob) -> Self {
        let top = top.into_iter().map(|(token, logprob)| (token, logprob.to_bits())).collect();
        Self { token, logprob: logprob.to_bits(), top, skipped }
    }
}

impl From<LogprobBits> for TokenLogprob {
    fn from(LogprobBits { token, logprob, top, skipped }: LogprobBits) -> Self {
        let top = top.into_iter().map(|(token, bits)| (token, f32::from_bits(bits))).collect();
        Self { token, logprob: f32::from_bits(logprob), top, skipped }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FinishReason {
    /// An end token, or a policy.
    Stop,
    /// The stop string of this index.
    StopString(u8),
    /// `max_tokens`, or the end of the context.
    Length,
    /// `max_duration` passed.
    Expired,
    /// A filter ended it.
    Filtered,
    Cancelled,
}

/// Tokens of one generation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub cached_tokens: u32,
    /// Those that filters took back are not among them.
    pub generated_tokens: u32,
    /// Draft tokens of speculative decoding, and how many of those were accepted.
    pub drafted_tokens: u32,
    pub accepted_tokens: u32,
}

/// Why a generation could not go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum WorkerError {
    /// The model produced a logit that is not a number.
    #[error("the model produced invalid logits")]
    InvalidLogits,
    /// A sampler policy faulted and the operator chose `deny`.
    #[error("a sampler policy failed")]
    PolicyFault { detail: String },
    /// A sampler policy refused the request, or a filter policy its text.
    #[error("{}", .0.message)]
    Declined(Box<Refusal>),
    /// As many sampler policies run as may run at once: nothing was tried.
    #[error("too many sampler policies run at this moment")]
    SamplersBusy,
    /// A filter policy faulted and the operator chose `deny`.
    #[error("a filter policy failed")]
    FilterFault { detail: String },
    /// As many filter policies run as may run at once: nothing was tried.
    #[error("too many filter policies run at this moment")]
    FiltersBusy,
    /// There is no thread for the request's grammar now.
    #[error("{detail}")]
    GrammarsBusy { detail: String },
    /// The model, samplers and filters leave no token that the request's grammar allows.
    #[error("no token is left that the grammar allows: {detail}")]
    GrammarExhausted { detail: String },
    /// The request asked for something that the worker's limits do not allow, or that its model cannot compute.
    #[error("{0}")]
    Refused(String),
    /// The scheduler policy rejected the request.
    #[error("{}", .0.message)]
    Rejected(Box<Rejection>),
    /// The engine failed in the step the request was part of.
    #[error("the engine failed: {0}")]
    Engine(String),
    /// The queue is full: nothing was tried.
    #[error("too many requests are waiting")]
    QueueFull,
    /// The deadline passed before the first token, or before the vectors were there.
    #[error("the deadline passed before the answer began")]
    DeadlineExceeded,
    /// The client was behind for too long.
    #[error("the response was read too slowly")]
    SlowReader,
    /// The worker died with everything it ran, or no worker is up.
    #[error("the worker that ran the request was lost")]
    WorkerLost,
    /// The server ends.
    #[error("the server is shutting down")]
    ShuttingDown,
}
