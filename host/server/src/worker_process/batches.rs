//! The server's side of a worker that computes batches.
use std::io;
use std::marker::PhantomData;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_api::Health;
use camshaft_core::embed::EmbedderLimits;
use camshaft_core::engine::EngineError;
use camshaft_core::ids::WorkerId;
use camshaft_core::jobs::{BatchLimits, BatchModel, Computed, Input};
use camshaft_process::frames::{self, Incoming, Received};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::host::{EngineProcess, Running};
use super::line::Pace;
use super::{Batch, Limits};
use crate::error::ServerError;

/// A model whose batches are computed elsewhere.
pub(crate) struct RemoteModel<I, O> {
    socket: UnixStream,
    incoming: Incoming,
    running: Arc<Running>,
    limits: Limits,
    threads: u32,
    pace: Pace,
    health: Health,
    is_lost: bool,
    of: PhantomData<fn(I) -> O>,
}

impl<I, O> RemoteModel<I, O> {
    /// Opens a worker. `health`: where it shows that it is late.
    ///
    /// # Errors
    /// As [`EngineProcess::open`].
    pub(crate) fn open(process: &EngineProcess, id: WorkerId, health: Health) -> Result<Self, ServerError> {
        let internal = |error: io::Error| ServerError::internal("open a worker", error);
        let (socket, limits, running) = process.open(id, &[])?;
        let incoming = Incoming::new(socket.try_clone().map_err(internal)?);
        let (pace, of) = (Pace::default(), PhantomData);
        Ok(Self { socket, incoming, running, limits, threads: 1, pace, health, is_lost: false, of })
    }

    /// # Errors
    /// It embeds no texts.
    pub(crate) fn embedder_limits(&self) -> Result<EmbedderLimits, ServerError> {
        match self.limits {
            Limits::Embeds(limits) => Ok(limits),
            Limits::Generates(_) | Limits::Predicts(_) => {
                Err(ServerError::internal("open a worker", anyhow::anyhow!("it embeds no texts")))
            }
        }
    }
}

impl<I, O> BatchModel for RemoteModel<I, O>
where
    I: Input + Serialize,
    O: DeserializeOwned,
{
    type Input = I;
    type Output = O;

    fn batch(&self) -> BatchLimits {
        match self.limits {
            Limits::Embeds(limits) => limits.batch(),
            Limits::Predicts(limits) => limits,
            // It computes no batches.
            Limits::Generates(_) => BatchLimits { size: 1, inputs: 1, window: Duration::ZERO },
        }
    }

    fn set_threads(&mut self, threads: u32) {
        self.threads = threads;
    }

    fn is_lost(&self) -> bool {
        self.is_lost
    }

    fn compute(&mut self, inputs: &[I]) -> Result<Vec<Computed<O>>, EngineError> {
        let begun = Instant::now();
        let mut lost = |why: String| {
            self.is_lost = true;
            self.running.kill();
            Err(EngineError::Failed(why))
        };
        if let Err(error) = frames::send(&mut self.socket, &Batch { threads: self.threads, inputs }) {
            return lost(error.to_string());
        }
        loop {
            let elapsed = begun.elapsed();
            let patience = match self.pace.late().checked_sub(elapsed) {
                Some(patience) => patience,
                None => self.pace.dead().saturating_sub(elapsed),
            };
            match self.incoming.next(Some(patience)) {
                Ok(Received::Message(computed)) => {
                    self.pace.note(begun.elapsed());
                    self.health.set_late(false);
                    return computed;
                }
                Ok(Received::Nothing) if begun.elapsed() < self.pace.dead() => self.health.set_late(true),
                Ok(Received::Nothing) => return lost("it says nothing any more".to_owned()),
                Ok(Received::Closed) => return lost("the process that computes is gone".to_owned()),
                Err(error) => return lost(error.to_string()),
            }
        }
    }
}
