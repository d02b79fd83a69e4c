//! The server's side of a tensor model: what is known of it, and what computing takes.
use std::borrow::Cow;
use std::convert::Infallible;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use camshaft_core::engine::ModelKind;
use camshaft_core::sizes::Sizes;
use camshaft_core::tensor::{Computing, NoAnswer};
use camshaft_engine::Placement;
use camshaft_tensor::{BackendChoice, FileFormat, HAS_WGPU, TensorOutline, not_by_gpu};
use crossbeam_channel::{Receiver, bounded};

use super::host::{EngineProcess, ProcessSetup};
use super::{Job, Order, Reply, Shapes};
use crate::config::{BackendKey, ModelConfig};
use crate::error::ServerError;
use crate::logging::LogHandle;
use crate::progress::ProgressSink;

/// How long the process may take to say what inputs of some shapes take: a request waits for it.
const ANSWER: Duration = Duration::from_secs(5);

/// A tensor model, which is loaded.
pub(crate) struct TensorProcess {
    pub(crate) process: Arc<EngineProcess>,
    pub(crate) outline: TensorOutline,
    pub(crate) sha256: Option<String>,
    /// Disconnected when nothing of it is in memory any more.
    pub(crate) ended: Receiver<Infallible>,
    /// The shapes that were asked for last, and the answer: most requests have the same.
    last: Mutex<Option<(Vec<Vec<usize>>, Shapes)>>,
}

impl fmt::Debug for TensorProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorProcess").field("name", &self.outline.facts.name).finish_non_exhaustive()
    }
}

impl TensorProcess {
    /// Starts a process that loads it. Where a GPU is to compute it and the process ends, another one loads it for the CPU: a driver
    /// may end who uses it, or never answer.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub(crate) fn load(config: &ModelConfig, log: &LogHandle, sink: &ProgressSink) -> Result<Self, ServerError> {
        let is_onnx = FileFormat::of(&config.file_name()) == Some(FileFormat::Onnx);
        let may_use_gpu = HAS_WGPU && config.backend.choice() != BackendChoice::Cpu && !is_onnx;
        match Self::start(config, log, sink) {
            Err(why) if may_use_gpu => {
                let config = ModelConfig { backend: BackendKey::Cpu, ..config.clone() };
                let model = Self::start(&config, log, sink)?;
                tracing::warn!(model = config.id, "{}", not_by_gpu(&why.to_string()));
                Ok(model)
            }
            started => started,
        }
    }

    fn start(config: &ModelConfig, log: &LogHandle, sink: &ProgressSink) -> Result<Self, ServerError> {
        let job = Job {
            is_fake: false,
            kind: ModelKind::Predict,
            config: config.clone(),
            sizes: Sizes::default(),
            placement: Placement::Host,
            mark: None,
        };
        let (alive, ended) = bounded(0);
        let setup = ProcessSetup { log: log.clone(), alive, ..ProcessSetup::trial(job) };
        let process = EngineProcess::new(setup, sink.clone());
        let (sha256, outline) = process.tensors()?;
        outline.facts.notes.iter().for_each(|note| tracing::warn!(model = config.id, "{note}"));
        Ok(Self { process, outline, sha256, ended, last: Mutex::default() })
    }

    /// What it takes of memory with so many workers, and so many rows in a batch.
    pub(crate) fn memory_bytes(&self, workers: u32, rows: u32) -> u64 {
        match self.process.ask_now(Order::Memory(workers, rows), ANSWER) {
            Some(Reply::Memory(bytes)) => bytes,
            // What is gone takes nothing, and is weighed again when it is loaded again.
            _ => self.outline.facts.bytes.saturating_mul(2),
        }
    }

    fn shapes(&self, shapes: &[&[usize]]) -> Result<Shapes, NoAnswer> {
        let wanted: Vec<Vec<usize>> = shapes.iter().map(|shape| shape.to_vec()).collect();
        let last = || self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = last().as_ref().filter(|(known, _)| *known == wanted) {
            return Ok(answer.clone());
        }
        let Some(Reply::Shapes(answer)) = self.process.ask_now(Order::Shapes(wanted.clone()), ANSWER) else {
            return Err(NoAnswer);
        };
        *last() = Some((wanted, answer.clone()));
        Ok(answer)
    }
}

impl Computing for TensorProcess {
    fn run_bytes(&self, shapes: &[&[usize]]) -> Result<Option<u64>, NoAnswer> {
        Ok(self.shapes(shapes)?.bytes)
    }

    fn output_shapes(&self, shapes: &[&[usize]]) -> Result<Option<Vec<Vec<usize>>>, NoAnswer> {
        Ok(self.shapes(shapes)?.outputs)
    }

    fn class_bytes(&self, rows: u32) -> usize {
        self.outline.class_bytes.saturating_mul(rows as usize)
    }

    fn fallback(&self) -> Option<Cow<'static, str>> {
        let answer = self.process.ask_now(Order::Shapes(Vec::new()), ANSWER);
        let Some(Reply::Shapes(answer)) = answer else { return None };
        answer.fallback.map(Cow::Owned)
    }
}
