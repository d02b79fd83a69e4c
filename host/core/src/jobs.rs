//! Models that compute batches of independent inputs: their interface, and the queue that puts the batches together.
mod lane;
mod order;
pub mod queue;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::engine::EngineError;

/// What a model computes: it may share a batch with inputs of other requests.
pub trait Input: Clone {
    /// What it counts for in a batch and in its tenant's share, at least 1: tokens of a text, rows of tensors.
    fn size(&self) -> u32;
}

/// Computes batches of independent inputs, on a thread of its own.
pub trait BatchModel {
    type Input: Input;
    type Output;

    fn batch(&self) -> BatchLimits;

    /// As [`crate::engine::Engine::warm_up`].
    ///
    /// # Errors
    /// As [`BatchModel::compute`].
    fn warm_up(&mut self) -> Result<(), EngineError> {
        Ok(())
    }

    /// As [`crate::engine::Engine::set_threads`].
    fn set_threads(&mut self, threads: u32) {
        let _ = threads;
    }

    /// Whether it computes nothing any more, so that another one is to be made. What it failed at last is lost with it.
    fn is_lost(&self) -> bool {
        false
    }

    /// Computes a batch. Returns one output per input, or why the model gave none for this one.
    ///
    /// # Errors
    /// An input is not what the model takes, the batch exceeds its bounds, or the model fails.
    fn compute(&mut self, inputs: &[Self::Input]) -> Result<Vec<Computed<Self::Output>>, EngineError>;
}

/// What a model made of an input.
pub type Computed<O> = Result<O, InputError>;

/// Why a model gave nothing for an input of a batch that it computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum InputError {
    /// What is in the input is at fault.
    #[error("the model cannot compute this input: {0}")]
    Refused(String),
    #[error("{0}")]
    Failed(String),
}

/// Bounds of batches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchLimits {
    /// Maximum size of a batch of several inputs, see [`Input::size`]. One alone may be larger.
    pub size: u32,
    /// Maximum inputs of a batch.
    pub inputs: usize,
    /// How long the oldest input waits for others to join its batch, unless the model is idle, or as many requests wait as its last
    /// batch was of.
    pub window: Duration,
}
