//! `/v1/completions`.
use std::collections::BTreeMap;

use camshaft_core::limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::generation::{ChoiceNote, FinishReason, GenerationFields, Usage, present};
use super::values::{Input, Whole};
use crate::wire::read::request;

request! {
    CompletionRequest {
        #[garde(required, length(min = 1, max = limits::PROMPTS))]
        prompt: Input,
        /// The answer begins with the prompt; with `logprobs`, so do the log-probabilities.
        echo: bool,
        /// Alternatives of each token, besides the token itself.
        #[garde(range(min = limits::COMPLETION_LOGPROBS.min, max = limits::COMPLETION_LOGPROBS.max))]
        logprobs: Whole,
        /// What comes behind the text to generate, for models whose vocabularies have tokens for a gap.
        suffix: String,
        /// The spelling of a control token in the prompt becomes that token.
        #[schemars(extend("x-own" = true))]
        parse_special: bool,
    }
    with generation: GenerationFields
}

/// An answer, or an event of one that is streamed: there `usage` is null or absent but in the last one, and `finish_reason` is
/// null but in a choice's last one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Completion {
    pub(crate) id: String,
    /// `text_completion`.
    pub(crate) object: String,
    /// Seconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: String,
    /// That the request named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<String>,
    pub(crate) choices: Vec<CompletionChoice>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub(crate) usage: Option<Option<Usage>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletionChoice {
    pub(crate) text: String,
    pub(crate) index: u64,
    pub(crate) logprobs: Option<TextLogprobs>,
    pub(crate) finish_reason: Option<FinishReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) camshaft: Option<ChoiceNote>,
}

/// Lists of the same length. The first token of an echoed prompt has no log-probability.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TextLogprobs {
    pub(crate) tokens: Vec<String>,
    pub(crate) token_logprobs: Vec<Option<f64>>,
    pub(crate) top_logprobs: Vec<Option<BTreeMap<String, f64>>>,
    /// Where each token begins in the text, in characters.
    pub(crate) text_offset: Vec<u64>,
}
