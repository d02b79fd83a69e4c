//! The embedder interface, and the queue that batches inputs.
pub mod fake;
mod lane;
mod order;
pub mod queue;

use std::sync::Arc;

use crate::engine::EngineError;
use crate::ids::Token;

/// Computes one vector per input, several inputs at a time, on the embedder's thread.
///
/// `camshaft-engine` implements it on llama.cpp, and [`fake`] without a model, for tests.
pub trait Embedder {
    fn limits(&self) -> EmbedderLimits;
    /// As [`crate::engine::Engine::warm_up`].
    ///
    /// # Errors
    /// As [`Embedder::embed`].
    fn warm_up(&mut self) -> Result<(), EngineError> {
        Ok(())
    }
    /// Computes a batch. Returns one vector per input, pooled as the model does, and not normalised. `None`: the model gave none
    /// for this input, or one that is not finite.
    ///
    /// # Errors
    /// An input is empty, too long or has tokens outside the vocabulary, the batch exceeds its bounds, or the engine
    /// fails.
    fn embed(&mut self, inputs: &[Arc<[Token]>]) -> Result<Vec<Option<Vec<f32>>>, EngineError>;
}

/// Limits of an embedder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
