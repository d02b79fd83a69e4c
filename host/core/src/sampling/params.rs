//! Sampling parameters of one request, defaults filled in.
use serde::{Deserialize, Serialize};

use crate::ids::Token;

/// The sampling parameters of a request. Whoever builds one checks the values against the bounds of [`crate::limits`].
///
/// The defaults are OpenAI's: temperature 1, and nothing is cut off. A model may have its own, see
/// [`SamplingDefaults`](crate::sampling::SamplingDefaults).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// 0: greedy.
    pub temperature: f32,
    /// 0: off.
    pub top_k: u32,
    /// 1: off.
    pub top_p: f32,
    /// 0: off.
    pub min_p: f32,
    /// 1: off.
    pub typical_p: f32,
    /// 1: off.
    pub repeat_penalty: f32,
    /// Length of the repetition penalty's window, in tokens of prompt and output.
    pub repeat_last_n: u32,
    /// Subtracted for each occurrence of a token in the output.
    pub frequency_penalty: f32,
    /// Subtracted once for each token that occurs in the output.
    pub presence_penalty: f32,
    pub logit_bias: Vec<LogitBias>,
    /// Equal seeds draw equal tokens from equal logits.
    pub seed: u64,
}

/// A bias that is added to a token's logit before all other operations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LogitBias {
    pub token: Token,
    pub bias: f32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl SamplingParams {
    /// Always draws the most probable token.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// The defaults of llama.cpp's own programs, which suit small local models.
    pub fn llama_cpp() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Self::default() }
    }
}
