//! What serves requests behind the HTTP surface: loaded models, each with the channel into its pool.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::engine::{ModelInfo, Tokenizer};
use camshaft_core::ids::{SessionId, Token};
use camshaft_core::message::{Event, Start, WorkerError};
use camshaft_core::policy::{PolicySet, Priority, WorkerFacts};
use camshaft_core::segments::Namespace;
use crossbeam_channel::Sender;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

/// Events buffered for one generation between the worker and its HTTP task. The worker's side merges what does not fit
/// and sends it later.
pub const STREAM_EVENTS: usize = 64;

/// A model that is being served.
#[derive(Clone)]
pub struct Model {
    /// The name clients use.
    pub id: String,
    /// When it was loaded, in seconds since the Unix epoch.
    pub created: u64,
    pub info: ModelInfo,
    pub tokenizer: Arc<dyn Tokenizer>,
    pub backend: Backend,
}

/// The channel to the thread that serves a model. Bounded: a full channel means overload.
#[derive(Debug, Clone)]
pub enum Backend {
    /// Into the pool's thread.
    Generate(Sender<PoolMessage>),
    Embed(EmbedBackend),
}

/// A model that embeds.
#[derive(Debug, Clone)]
pub struct EmbedBackend {
    /// Into the embedder's thread.
    pub jobs: Sender<EmbedJob>,
    /// Tokens of one input.
    pub input_tokens: u32,
    /// Numbers of a vector.
    pub dimensions: u32,
    /// Shorter vectors that the model was trained to give, too.
    pub shorter_dimensions: Vec<u32>,
}

/// Inputs to embed together.
#[derive(Debug)]
pub struct EmbedJob {
    /// Each with 1 to `input_tokens` tokens.
    pub inputs: Vec<Arc<[Token]>>,
    pub priority: Priority,
    /// Not to be begun after it.
    pub deadline: Option<Instant>,
    /// A vector for each input, as the model pools it. Dropping the receiver cancels the job.
    pub reply: oneshot::Sender<Result<Vec<Vec<f32>>, WorkerError>>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("id", &self.id).finish_non_exhaustive()
    }
}

/// HTTP side to pool.
#[derive(Debug)]
pub enum PoolMessage {
    Submit(Box<Submission>),
    /// The session's KV may go; whether there was such a session is the answer.
    CloseSession {
        namespace: Namespace,
        session: SessionId,
        reply: oneshot::Sender<bool>,
    },
    /// Asks for a snapshot.
    Snapshot(oneshot::Sender<PoolSnapshot>),
    /// A receiver was dropped: generations whose client is gone are to be cancelled.
    Wake,
    /// Ends everything: streams that still run get an error.
    Stop,
}

/// A pool at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PoolSnapshot {
    pub accepting: bool,
    pub waiting: usize,
    pub running: usize,
    pub waiting_by_priority: BTreeMap<Priority, usize>,
    /// The tenants with most waiting, at most 100.
    pub waiting_by_tenant: BTreeMap<String, usize>,
    pub workers: Vec<WorkerFacts>,
}

/// One generation with everything the pool needs to queue it, run it and report on it.
///
/// Dropping the receiving end of `events` cancels the generation, at the latest at the next step.
#[derive(Debug)]
pub struct Submission {
    pub start: Start,
    pub priority: Priority,
    pub weight: f64,
    /// Of the queue, for what its tenant has waiting.
    pub queue_share: Option<f64>,
    /// When the HTTP request was accepted.
    pub accepted: Instant,
    /// How long it may take from `accepted` to the first token.
    pub timeout: Option<Duration>,
    /// Gets `Started`, `Delta`s, then `Finished` or `Failed`; closed without either if the pool is gone.
    pub events: mpsc::Sender<Event>,
    /// Keeps the generation of policies alive that the request began with.
    pub policies: Arc<dyn PolicySet>,
}
