//! Who computes for a model: a process that may be killed at any moment (`isolation = "process"`), or threads of this one, which do the
//! same.
//!
//! It has a model's weights, and a thread for each of its workers ([`child`]), which runs the engine loop ([`worker_loop`]) or computes
//! batches. A process is started by a thread that lives as long as it does, and told over one socket what to open and to load
//! ([`host`]). Each worker has a socket of its own beside that: commands come in, and after each step one message goes out, with what
//! happened in it ([`line`]); or a batch, and what came of it ([`batches`]).
mod batches;
mod child;
mod host;
mod line;
mod tensors;
mod worker_loop;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::embed::EmbedderLimits;
use camshaft_core::engine::{EngineLimits, ModelKind};
use camshaft_core::grammar::{Grammar, GrammarError};
use camshaft_core::ids::{AdapterDigest, GrammarDigest, WorkerId};
use camshaft_core::jobs::BatchLimits;
use camshaft_core::message::{Command, Event};
use camshaft_core::report::Report;
use camshaft_core::sizes::Sizes;
use camshaft_engine::{ModelMark, Placement};
use camshaft_policy::{Noted, ReplicaUpdate};
use camshaft_tensor::TensorOutline;
use serde::{Deserialize, Serialize};

pub(crate) use self::batches::RemoteModel;
pub(crate) use self::child::{Fakes, run};
pub(crate) use self::host::{EngineProcess, ProcessSetup};
pub(crate) use self::line::LineService;
pub(crate) use self::tensors::TensorProcess;
use crate::cache_plan::CacheParts;
use crate::config::ModelConfig;
use crate::error::{Failure, ServerError};
use crate::logging::LineFormat;

/// The argument with which this program is such a process.
pub(crate) const ROLE: &str = "worker";
/// What a worker says in a step that has nothing else to say: that it goes on.
const HEARTBEAT: Duration = Duration::from_millis(250);

/// What is to be computed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Core's fake engine in the place of llama.cpp.
    pub(crate) is_fake: bool,
    pub(crate) kind: ModelKind,
    pub(crate) config: ModelConfig,
    pub(crate) sizes: Sizes,
    pub(crate) placement: Placement,
    /// What the file must still be; `None`: whatever it is.
    pub(crate) mark: Option<ModelMark>,
}

/// What to compute from now on, in the place of what a device does not compute. With the reason, for the log.
pub(crate) type Standby = Arc<dyn Fn(&str) -> Result<Job, ServerError> + Send + Sync>;

/// What the process is told first.
#[derive(Debug, Serialize, Deserialize)]
struct Setup {
    job: Job,
    /// The digest of the weights is wanted.
    digest: bool,
    cache: CacheParts,
    /// Where compiled policies are.
    code_dir: Option<PathBuf>,
    policies: Option<ReplicaUpdate>,
    log: LineFormat,
}

/// From the server to the process.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// Open a worker, whose socket comes along. With a processor list for each of its threads, if they are to be kept there.
    Open(WorkerId, Vec<Vec<usize>>),
    LoadAdapter(PathBuf),
    DropAdapter(AdapterDigest),
    /// Say what computing inputs of these shapes takes and gives.
    Shapes(Vec<Vec<usize>>),
    /// Say what a tensor model takes of memory: with so many workers, and so many rows in a batch.
    Memory(u32, u32),
    /// Compile a grammar, and keep it until it is let go of.
    Compile(Box<Grammar>),
    DropGrammar(GrammarDigest),
    Policies(Box<ReplicaUpdate>),
    /// The level of the log from now on.
    Level(String),
    /// Say that this was heard.
    Hear,
}

/// From the process to the server.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// Of the weights, per cent.
    Loading(u64),
    Loaded(Result<Loaded, Failure>),
    /// The answer to an order, by its number.
    Reply(u64, Result<Reply, Failure>),
    /// What happened to policies while no worker had anything to say.
    Notes(Noted),
    /// A device failed on which the model is. It ends.
    DeviceLost,
}

/// What was loaded.
#[derive(Debug, Serialize, Deserialize)]
struct Loaded {
    /// `None`: a fake model.
    mark: Option<ModelMark>,
    /// The digest of the weights, if it was wanted.
    sha256: Option<String>,
    /// Of a tensor model.
    tensors: Option<Box<TensorOutline>>,
}

/// What a worker can hold.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Limits {
    Generates(EngineLimits),
    Embeds(EmbedderLimits),
    Predicts(BatchLimits),
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Opened(Limits),
    /// With its bytes.
    Adapter(AdapterDigest, u64),
    Shapes(Shapes),
    Memory(u64),
    /// A grammar, with its bytes.
    Compiled(usize),
    Refused(GrammarError),
    Done,
}

/// What computing inputs of some shapes takes and gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Shapes {
    /// Bytes of all tensors; `None`: more than can be counted.
    bytes: Option<u64>,
    outputs: Option<Vec<Vec<usize>>>,
    /// What computes since a device failed.
    fallback: Option<String>,
}

/// From the server to a worker.
#[derive(Debug, Serialize, Deserialize)]
enum ToWorker {
    Command(Command),
    /// From its next step on: threads that compute, and whether a processor is left beside those of all models.
    Threads(u32, bool),
    /// Nothing more comes: end when everything is done.
    NoMore,
    /// End now, with whatever runs.
    Stop,
}

/// From a worker to the server.
#[derive(Debug, Default, Serialize, Deserialize)]
struct FromWorker {
    notes: Noted,
    /// For clients.
    events: Vec<Event>,
    /// For the pool.
    report: Option<Box<Report>>,
    /// Messages that it has taken so far.
    heard: u64,
    /// There is nothing to do.
    is_idle: bool,
    /// The next step may take longer than the last one.
    may_take_longer: bool,
    /// The last step.
    took: Duration,
    /// It ends, in order.
    has_ended: bool,
}

/// Inputs for a worker that computes batches, and the threads that compute them.
#[derive(Debug, Serialize, Deserialize)]
struct Batch<I> {
    threads: u32,
    inputs: I,
}
