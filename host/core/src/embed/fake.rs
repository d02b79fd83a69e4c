//! A deterministic embedder without a model, for tests and benchmarks.
use std::sync::Arc;

use crate::embed::{Embedder, EmbedderLimits, no_vector};
use crate::engine::EngineError;
use crate::ids::Token;
use crate::jobs::{BatchLimits, BatchModel, Computed};

/// Computes vectors from a hash of the input's tokens, so equal inputs have equal vectors in any batch.
#[derive(Debug, Clone)]
pub struct FakeEmbedder {
    limits: EmbedderLimits,
    /// Panics if an input begins with this token, for tests of failures.
    pub panics_at: Option<Token>,
    /// Gives no vector for an input that begins with this token.
    pub fails_at: Option<Token>,
}

impl FakeEmbedder {
    pub fn new(limits: EmbedderLimits) -> Self {
        Self { limits, panics_at: None, fails_at: None }
    }

    fn vector(&self, input: &[Token]) -> Vec<f32> {
        // FNV-1a over the input, then on over the dimensions.
        let next = |hash: u64, value: u64| (hash ^ value).wrapping_mul(0x0100_0000_01b3);
        let seed = input.iter().fold(0xcbf2_9ce4_8422_2325, |hash, token| next(hash, u64::from(token.0)));
        (0..self.limits.dimensions).map(|i| (next(seed, u64::from(i)) >> 32) as u32 as i32 as f32 / 2e9).collect()
    }
}

impl Embedder for FakeEmbedder {
    fn limits(&self) -> EmbedderLimits {
        self.limits
    }
}

impl BatchModel for FakeEmbedder {
    type Input = Arc<[Token]>;
    type Output = Vec<f32>;

    fn batch(&self) -> BatchLimits {
        self.limits.batch()
    }

    fn compute(&mut self, inputs: &[Arc<[Token]>]) -> Result<Vec<Computed<Vec<f32>>>, EngineError> {
        let total: usize = inputs.iter().map(|input| input.len()).sum();
        let fits = |input: &Arc<[Token]>| (1..=self.limits.input_tokens as usize).contains(&input.len());
        let in_bounds = inputs.len() <= self.limits.batch_inputs && total <= self.limits.batch_tokens as usize;
        if inputs.is_empty() || !in_bounds || !inputs.iter().all(fits) {
            return Err(EngineError::BadBatch(format!("{} inputs of {total} tokens", inputs.len())));
        }
        let panics = self.panics_at.is_some_and(|token| inputs.iter().any(|input| input[0] == token));
        assert!(!panics, "the test asked for it");
        let fails = |input: &[Token]| self.fails_at.is_some_and(|token| input[0] == token);
        Ok(inputs.iter().map(|input| if fails(input) { Err(no_vector()) } else { Ok(self.vector(input)) }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: EmbedderLimits =
        EmbedderLimits { batch_tokens: 8, efficient_tokens: 8, batch_inputs: 2, input_tokens: 6, dimensions: 5 };

    fn input(text: &str) -> Arc<[Token]> {
        text.bytes().map(|byte| Token(u32::from(byte))).collect()
    }

    #[test]
    fn equal_inputs_have_equal_vectors_in_any_batch() {
        let mut embedder = FakeEmbedder::new(LIMITS);
        let together = embedder.compute(&[input("ab"), input("cd")]).unwrap();
        assert_eq!(together[0], embedder.compute(&[input("ab")]).unwrap()[0]);
        assert_ne!(together[0], together[1]);
        assert!(together.iter().flatten().all(|vector| vector.len() == 5 && vector.iter().all(|x| x.is_finite())));
        embedder.fails_at = Some(Token(u32::from(b'c')));
        assert_eq!(embedder.compute(&[input("ab"), input("cd")]).unwrap(), [together[0].clone(), Err(no_vector())]);
    }

    #[test]
    fn a_batch_over_the_bounds_is_refused() {
        let mut embedder = FakeEmbedder::new(LIMITS);
        let mut check = |inputs: &[&str], good: bool| {
            let inputs: Vec<_> = inputs.iter().map(|text| input(text)).collect();
            assert_eq!(embedder.compute(&inputs).is_ok(), good, "{inputs:?}");
        };
        check(&["abcdef", "ab"], true);
        check(&["abcdef", "abc"], false);
        check(&["abcdefg"], false);
        check(&["a", "b", "c"], false);
        check(&[""], false);
        check(&[], false);
    }
}
