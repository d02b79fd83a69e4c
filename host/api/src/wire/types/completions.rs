//! `/v1/completions`.
use camshaft_core::limits;
use schemars::JsonSchema;
use serde::Serialize;

use super::generation::{ChoiceNote, Finish, GenerationFields};
use super::logprobs::TextLogprobs;
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
    }
    own {
        /// The spelling of a control token in the prompt becomes that token.
        parse_special: bool,
    }
    with generation: GenerationFields
}

/// Of an answer, or of an event of one that is streamed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CompletionChoice<'a> {
    pub(crate) text: &'a str,
    pub(crate) index: usize,
    pub(crate) logprobs: Option<TextLogprobs>,
    /// Null but in a choice's last event.
    pub(crate) finish_reason: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) camshaft: Option<ChoiceNote>,
}
