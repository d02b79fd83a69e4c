//! Sampling parameters of one request, defaults filled in.
use serde::{Deserialize, Serialize};

use crate::ids::Token;

/// Values are within the bounds of [`crate::limits`]; whoever builds one checks them.
///
/// Defaults are llama.cpp's (temperature 0.8, top-k 40, top-p 0.95, min-p 0.05): what a small local model wants.
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
    /// Tokens of prompt and output that the repetition penalty looks back on.
    pub repeat_last_n: u32,
    /// For each occurrence in the output.
    pub frequency_penalty: f32,
    /// Once for each token that occurs in the output.
    pub presence_penalty: f32,
    pub logit_bias: Vec<LogitBias>,
    /// Equal seeds draw equal tokens from equal logits.
    pub seed: u64,
}

/// Added to a token's logit before everything else.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LogitBias {
    pub token: Token,
    pub bias: f32,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
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
    /// The most probable token each time.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }
}
