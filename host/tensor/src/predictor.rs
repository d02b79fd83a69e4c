//! Computes requests, one at a time, on the thread of a worker.
//!
//! Requests are not joined, though rows of several may go through many models together: that they leave each other alone follows
//! neither from the shapes of a model's tensors nor from trying some numbers, and one client's would tell of another's.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::engine::EngineError;
use camshaft_core::jobs::{BatchLimits, BatchModel, Computed, InputError};
use camshaft_core::limits::RUN_BYTES;
use camshaft_core::tensor::{Computing, Predicted, Rows, Tensor};

use crate::model::TensorModel;

/// Lengths of axes of any length with which a model is warmed up: some take no short ones.
const LENGTHS: [usize; 3] = [8, 32, 1];
/// The length with which its memory is planned.
const PLANNED: usize = 32;

/// A worker of a model.
#[derive(Debug)]
pub struct Predictor {
    model: Arc<TensorModel>,
}

impl Predictor {
    pub fn new(model: Arc<TensorModel>) -> Self {
        Self { model }
    }
}

impl TensorModel {
    /// What it takes in memory: its weights, also in the order in which they are computed, and the tensors of a request of each
    /// worker, whose axes of any length are short.
    pub fn memory_bytes(&self, workers: u32) -> u64 {
        let shapes = self.shapes(PLANNED);
        let run = self.run_bytes(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let run = run.unwrap_or(RUN_BYTES).min(RUN_BYTES);
        self.facts.bytes.saturating_mul(2).saturating_add(run.saturating_mul(workers.into()))
    }
}

impl BatchModel for Predictor {
    type Input = Rows;
    type Output = Predicted;

    fn batch(&self) -> BatchLimits {
        BatchLimits { size: 1, inputs: 1, window: Duration::ZERO }
    }

    fn warm_up(&mut self) -> Result<(), EngineError> {
        let mut failure = None;
        for inputs in LENGTHS.iter().filter_map(|&length| zeros(&self.model, length)) {
            match self.model.run(&inputs) {
                Ok(_) => return Ok(()),
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or(Ok(()), |error| Err(EngineError::Failed(error)))
    }

    fn compute(&mut self, inputs: &[Rows]) -> Result<Vec<Computed<Predicted>>, EngineError> {
        let compute = |input: &Rows| {
            let begun = Instant::now();
            let tensors = self.model.run(&input.tensors).map_err(InputError::Refused)?;
            let classes = self.model.classes(&tensors);
            Ok(Predicted { tensors, classes, took: begun.elapsed() })
        };
        Ok(inputs.iter().map(compute).collect())
    }
}

/// Inputs of a model, all zero. `None`: tensors of this size are not for a trial.
fn zeros(model: &TensorModel, length: usize) -> Option<Vec<Tensor>> {
    let shapes = model.shapes(length);
    model.run_bytes(&shapes.iter().map(Vec::as_slice).collect::<Vec<_>>()).filter(|&bytes| bytes <= RUN_BYTES)?;
    model.signature.inputs.iter().zip(shapes).map(|(spec, shape)| Tensor::zero(spec.datatype, shape).ok()).collect()
}

#[cfg(test)]
#[cfg(feature = "onnx")]
#[path = "predictor_tests.rs"]
mod tests;
