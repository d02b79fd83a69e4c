//! `/v1/generate`.
use camshaft_core::limits;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};

use super::completions::TextLogprobs;
use super::generation::{FinishReason, GenerationFields};
use super::refused::{self, Refused, RefusedFields};

/// What the endpoint refuses wherever it comes.
pub(crate) const REFUSED: &RefusedFields = &[
    ("messages", Refused::Foreign("prompt, or /v1/chat/completions")),
    ("input", Refused::Foreign("prompt or tokens")),
    ("text", Refused::Foreign("prompt or tokens")),
    ("stream_options", Refused::Foreign("stream: the last event carries the usage")),
    ("best_of", Refused::Foreign("/v1/completions")),
];

fn describe_refused(schema: &mut Schema) {
    refused::describe(schema, REFUSED);
}

/// `prompt` or `tokens`, and what a plain completion has. `n` is 1.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = describe_refused)]
pub(crate) struct GenerateRequest {
    /// A text; or else `tokens`.
    pub(crate) prompt: Option<String>,
    /// Token ids; or else `prompt`.
    pub(crate) tokens: Option<Vec<u32>>,
    /// The answer begins with the prompt; with `logprobs`, so do the log-probabilities.
    pub(crate) echo: Option<bool>,
    /// Alternatives of each token, besides the token itself.
    #[schemars(range(min = limits::COMPLETION_LOGPROBS.min, max = limits::COMPLETION_LOGPROBS.max))]
    pub(crate) logprobs: Option<u32>,
    /// What comes behind the text to generate, for models whose vocabularies have tokens for a gap.
    pub(crate) suffix: Option<String>,
    /// The spelling of a control token in the prompt becomes that token.
    pub(crate) parse_special: Option<bool>,
    #[serde(flatten)]
    pub(crate) generation: GenerationFields,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Generation {
    pub(crate) id: String,
    /// `generation`.
    pub(crate) object: String,
    /// Seconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) model: String,
    /// That the request named.
    pub(crate) session_id: Option<String>,
    pub(crate) text: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<TextLogprobs>,
    pub(crate) finish_reason: Option<FinishReason>,
    pub(crate) usage: GenerateUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct GenerateUsage {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) total_tokens: u64,
}

/// An event of a streamed generation, or a line of one in lines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum GenerateEvent {
    /// In lines alone.
    Comment {
        text: String,
    },
    Start {
        id: String,
        created: u64,
        model: String,
        session_id: Option<String>,
        prompt_tokens: u64,
    },
    Text {
        text: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        logprobs: Option<TextLogprobs>,
    },
    End {
        finish_reason: Option<FinishReason>,
        session_id: Option<String>,
        usage: GenerateUsage,
    },
}
