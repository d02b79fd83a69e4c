//! Bounds of what a client may ask for, in one place: value, unit, and what happens past it.

/// A number that a request field must lie in; past it the request is refused with 400 naming field, value and bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    pub min: f64,
    pub max: f64,
}

impl Range {
    /// Whether `value` lies inside; NaN never does.
    pub fn contains(self, value: f64) -> bool {
        value >= self.min && value <= self.max
    }
}

pub const TEMPERATURE: Range = Range { min: 0.0, max: 2.0 };
pub const TOP_P: Range = Range { min: 0.0, max: 1.0 };
pub const MIN_P: Range = Range { min: 0.0, max: 1.0 };
pub const TYPICAL_P: Range = Range { min: 0.0, max: 1.0 };
pub const TOP_K: Range = Range { min: 0.0, max: 1_000_000.0 };
pub const REPEAT_PENALTY: Range = Range { min: 0.01, max: 10.0 };
pub const REPEAT_LAST_N: Range = Range { min: 0.0, max: 4096.0 };
pub const FREQUENCY_PENALTY: Range = Range { min: -2.0, max: 2.0 };
pub const PRESENCE_PENALTY: Range = Range { min: -2.0, max: 2.0 };
pub const LOGIT_BIAS: Range = Range { min: -100.0, max: 100.0 };
/// Choices of one request.
pub const CHOICES: Range = Range { min: 1.0, max: 128.0 };
/// Inputs of an embedding request.
pub const EMBED_INPUTS: usize = 2048;
/// `top_logprobs` of a chat request.
pub const TOP_LOGPROBS: Range = Range { min: 0.0, max: 20.0 };
/// `logprobs` of a completion request.
pub const COMPLETION_LOGPROBS: Range = Range { min: 0.0, max: 5.0 };
/// Entries of `logit_bias`.
pub const LOGIT_BIAS_ENTRIES: usize = 1024;
/// Stop strings of one request, and bytes of one.
pub const STOP_STRINGS: usize = 4;
pub const STOP_BYTES: usize = 512;
/// Messages of one chat request.
pub const MESSAGES: usize = 4096;
/// Prompts of one completion request.
pub const PROMPTS: usize = 128;
/// Samplers that one request may name.
pub const SAMPLERS: usize = 16;
/// Characters of a session's name.
pub const SESSION_ID: usize = 128;
/// Draft tokens of a sequence in one step.
pub const DRAFT_TOKENS: u32 = 16;
/// Sequences of one worker: llama.cpp has 256, one of which is for copies of state.
pub const SEQUENCES: u32 = 255;
