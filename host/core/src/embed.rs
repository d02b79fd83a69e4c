//! The embedder interface.
pub mod fake;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::Token;
use crate::jobs::{BatchLimits, BatchModel, Input, InputError};

/// How long inputs gather while an embedder is busy.
const WINDOW: Duration = Duration::from_millis(2);

/// A text.
impl Input for Arc<[Token]> {
    fn size(&self) -> u32 {
        u32::try_from(self.len()).unwrap_or(u32::MAX)
    }
}

/// Computes one vector per input, pooled as the model does, and not normalised.
///
/// `camshaft-engine` implements it on llama.cpp, and [`fake`] without a model, for tests.
pub trait Embedder: BatchModel<Input = Arc<[Token]>, Output = Vec<f32>> {
    fn limits(&self) -> EmbedderLimits;
}

/// An embedder gives nothing for an input.
pub fn no_vector() -> InputError {
    InputError::Failed("the model gave no finite vector".to_owned())
}

/// Limits of an embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EmbedderLimits {
    /// Maximum tokens of a batch.
    pub batch_tokens: u32,
    /// Tokens from which a larger batch of several inputs takes no less time for each token.
    pub efficient_tokens: u32,
    /// Maximum inputs of a batch.
    pub batch_inputs: usize,
    /// Maximum tokens of one input.
    pub input_tokens: u32,
    /// Length of a vector.
    pub dimensions: u32,
}

impl EmbedderLimits {
    pub fn batch(&self) -> BatchLimits {
        BatchLimits { size: self.efficient_tokens, inputs: self.batch_inputs, window: WINDOW }
    }
}

/// Scales a vector to length 1. A vector of length 0 stays as it is.
pub fn normalize(vector: &mut [f32]) {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if length > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / length) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_vectors_to_length_one_except_zero() {
        let mut vector = [3.0, 4.0];
        normalize(&mut vector);
        assert_eq!(vector, [0.6, 0.8]);
        let mut nothing = [0.0; 3];
        normalize(&mut nothing);
        assert_eq!(nothing, [0.0; 3]);
    }
}
