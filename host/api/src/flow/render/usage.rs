//! The `usage` object.
use serde::Serialize;

use crate::flow::generation::Totals;

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct UsageObject {
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
    /// Draft tokens of speculative decoding that were accepted, and that were rejected.
    accepted_prediction_tokens: u64,
    rejected_prediction_tokens: u64,
}

impl UsageObject {
    /// `reasoning_tokens`: those of what was generated that were thinking.
    pub(super) fn new(totals: Totals, reasoning_tokens: u64) -> Self {
        Self {
            prompt_tokens: totals.prompt_tokens,
            completion_tokens: totals.generated_tokens,
            total_tokens: totals.prompt_tokens + totals.generated_tokens,
            prompt_tokens_details: PromptDetails { cached_tokens: totals.cached_tokens, audio_tokens: 0 },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: reasoning_tokens.min(totals.generated_tokens),
                audio_tokens: 0,
                accepted_prediction_tokens: totals.accepted_tokens,
                rejected_prediction_tokens: totals.rejected_tokens,
            },
        }
    }
}
