//! How each API tells the tokens of an answer.
use serde::Serialize;

use crate::flow::generation::Totals;

/// Of chats and completions.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct OpenAiUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct PromptDetails {
    cached_tokens: u64,
    audio_tokens: u64,
}

/// Clients expect these fields, although no model here speaks.
#[derive(Debug, Clone, Copy, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u64,
    audio_tokens: u64,
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

impl From<Totals> for OpenAiUsage {
    fn from(totals: Totals) -> Self {
        Self {
            prompt_tokens: totals.prompt_tokens,
            completion_tokens: totals.generated_tokens,
            total_tokens: totals.prompt_tokens + totals.generated_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: totals.cached_tokens, audio_tokens: 0 },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: totals.reasoning_tokens,
                audio_tokens: 0,
                accepted_prediction_tokens: totals.accepted_tokens,
                rejected_prediction_tokens: totals.rejected_tokens,
            },
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct ResponsesUsage {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct InputDetails {
    cached_tokens: u64,
    /// What a request leaves in the cache costs nothing.
    cache_write_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<Totals> for ResponsesUsage {
    fn from(totals: Totals) -> Self {
        Self {
            input_tokens: totals.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: totals.cached_tokens, cache_write_tokens: 0 },
            output_tokens: totals.generated_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: totals.reasoning_tokens },
            total_tokens: totals.prompt_tokens + totals.generated_tokens,
        }
    }
}

/// What was read from the cache is no part of `input_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct MessagesUsage {
    input_tokens: u64,
    cache_creation_input_tokens: u64,
    cache_read_input_tokens: u64,
    output_tokens: u64,
}

impl From<Totals> for MessagesUsage {
    fn from(totals: Totals) -> Self {
        Self {
            input_tokens: totals.prompt_tokens.saturating_sub(totals.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: totals.cached_tokens,
            output_tokens: totals.generated_tokens,
        }
    }
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct NativeUsage {
    prompt_tokens: u64,
    cached_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
}

impl From<Totals> for NativeUsage {
    fn from(totals: Totals) -> Self {
        Self {
            prompt_tokens: totals.prompt_tokens,
            cached_tokens: totals.cached_tokens,
            completion_tokens: totals.generated_tokens,
            total_tokens: totals.prompt_tokens + totals.generated_tokens,
        }
    }
}
