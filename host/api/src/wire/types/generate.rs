//! `/v1/generate`.
use camshaft_core::limits;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::generation::{Finish, GenerationFields};
use super::logprobs::TextLogprobs;
use super::values::Whole;
use crate::wire::read::request;

request! {
    /// `prompt` or `tokens`, and what a plain completion has. `n` is 1.
    GenerateRequest {
        /// A text; or else `tokens`.
        prompt: String,
        /// Token ids; or else `prompt`.
        #[garde(length(min = 1))]
        tokens: Vec<u32>,
        /// The answer begins with the prompt; with `logprobs`, so do the log-probabilities.
        echo: bool,
        /// Alternatives of each token, besides the token itself.
        #[garde(range(min = limits::COMPLETION_LOGPROBS.min, max = limits::COMPLETION_LOGPROBS.max))]
        logprobs: Whole,
        /// What comes behind the text to generate, for models whose vocabularies have tokens for a gap.
        suffix: String,
        /// The spelling of a control token in the prompt becomes that token.
        parse_special: bool,
        /// One.
        #[garde(range(min = 1.0, max = 1.0))]
        n: Whole,
        /// One.
        #[garde(range(min = 1.0, max = 1.0))]
        best_of: Whole,
    }
    refused {
        messages: "Option<Vec<Value>>", "is no field of this endpoint: use prompt, or /v1/chat/completions";
        input: "Option<String>", "is no field of this endpoint: use prompt or tokens";
        text: "Option<String>", "is no field of this endpoint: use prompt or tokens";
        stream_options: "Option<Map<String, Value>>", "is no field of this endpoint: the last event carries the usage";
    }
    with generation: GenerationFields
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Generation<'a> {
    pub(crate) id: String,
    /// `generation`.
    pub(crate) object: &'static str,
    /// Seconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    /// That the request named.
    pub(crate) session_id: Option<&'a str>,
    pub(crate) text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<TextLogprobs>,
    pub(crate) finish_reason: Finish,
    pub(crate) usage: GenerateUsage,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct GenerateUsage {
    pub(crate) prompt_tokens: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) total_tokens: u64,
}

/// An event of a streamed generation, or a line of one in lines.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum GenerateEvent<'a> {
    /// In lines alone, which have no comments.
    Comment {
        text: &'a str,
    },
    Start {
        id: &'a str,
        created: u64,
        model: &'a str,
        session_id: Option<&'a str>,
        prompt_tokens: u64,
    },
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<TextLogprobs>,
    },
    End {
        finish_reason: Finish,
        session_id: Option<&'a str>,
        usage: GenerateUsage,
    },
}
