//! In the place of the runtime where it was left out: nothing can be loaded.
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::engine::EngineError;
use camshaft_core::jobs::{BatchLimits, BatchModel, Computed};
use camshaft_core::tensor::{Computing, Predicted, Rows, Signature};

use crate::error::TensorLoadError;
use crate::facts::Facts;

/// A model that nobody can load.
#[derive(Debug)]
pub struct TensorModel {
    pub facts: Facts,
    pub signature: Signature,
    never: std::convert::Infallible,
}

impl TensorModel {
    pub fn memory_bytes(&self, _: u32, _: u32) -> u64 {
        match self.never {}
    }
}

impl Computing for TensorModel {
    fn run_bytes(&self, _: &[&[usize]]) -> Option<u64> {
        match self.never {}
    }

    fn output_shapes(&self, _: &[&[usize]]) -> Option<Vec<Vec<usize>>> {
        match self.never {}
    }
}

/// # Errors
/// Always.
pub fn load(_: &mut dyn Read) -> Result<TensorModel, TensorLoadError> {
    Err(TensorLoadError::NoRuntime)
}

/// A worker of a model.
#[derive(Debug)]
pub struct Predictor {
    model: Arc<TensorModel>,
}

impl Predictor {
    pub fn new(model: Arc<TensorModel>, _: u32, _: Duration) -> Self {
        Self { model }
    }
}

impl BatchModel for Predictor {
    type Input = Rows;
    type Output = Predicted;

    fn batch(&self) -> BatchLimits {
        match self.model.never {}
    }

    fn compute(&mut self, _: &[Rows]) -> Result<Vec<Computed<Predicted>>, EngineError> {
        match self.model.never {}
    }
}
