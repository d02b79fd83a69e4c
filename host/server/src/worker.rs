//! What a model's pool knows of its workers, and says to them.
use std::fmt;
use std::time::Duration;

use camshaft_core::engine::EngineLimits;
use camshaft_core::ids::WorkerId;
use camshaft_core::message::{Command, Start};
use camshaft_core::report::Report;
use crossbeam_channel::{Sender, TrySendError};
use rustix::thread::CpuSet;

use crate::streams::Stream;
use crate::thread_budget::Seat;

/// Pool to worker.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    Start {
        start: Box<Start>,
        need: u32,
        stream: Stream,
    },
    Command(Command),
    /// End now, with whatever runs.
    Stop,
}

/// Worker to pool.
#[derive(Debug)]
pub(crate) enum WorkerReport {
    Step(WorkerId, Box<Report>),
    /// The worker is gone, with everything it ran.
    Down(WorkerId),
    /// A new incarnation of a worker that was gone.
    Up(WorkerId, Handle),
}

/// How messages get to a worker, which nobody waits for. Dropped, it says that nothing more comes.
pub(crate) trait MessageWay: fmt::Debug + Send {
    /// Sends a message if the worker takes it now.
    ///
    /// # Errors
    /// It does not, or it is gone.
    #[expect(clippy::result_large_err, reason = "as channels give it back")]
    fn try_send(&self, message: WorkerMessage) -> Result<(), TrySendError<WorkerMessage>>;

    /// Whether a part of a message was not taken yet.
    fn is_behind(&self) -> bool;
}

/// What a pool needs of an incarnation of a worker: what it can hold, and the way to it.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) limits: EngineLimits,
    pub(crate) messages: Box<dyn MessageWay>,
}

/// What whoever listens to a worker is given.
pub(crate) struct WorkerSetup {
    pub(crate) id: WorkerId,
    pub(crate) reports: Sender<WorkerReport>,
    /// How long a reader may be behind.
    pub(crate) slow_reader: Duration,
    /// Text of a stream that comes faster shares frames.
    pub(crate) frame_interval: Duration,
    /// For the threads that compute, one each; none: they run anywhere.
    pub(crate) cores: Vec<CpuSet>,
    /// For its threads among those of all models.
    pub(crate) seat: Seat,
}

#[cfg(test)]
impl MessageWay for Sender<WorkerMessage> {
    fn try_send(&self, message: WorkerMessage) -> Result<(), TrySendError<WorkerMessage>> {
        self.try_send(message)
    }

    fn is_behind(&self) -> bool {
        false
    }
}
