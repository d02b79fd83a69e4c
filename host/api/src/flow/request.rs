//! A checked generation request: what chat and plain completions have in common.
use std::sync::Arc;

use camshaft_core::ids::Token;
use camshaft_core::limits;

use crate::flow::api::Served;
use crate::flow::error::FlowError;
use crate::wire::params::Settings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Endpoint {
    Chat,
    Completion,
}

/// A checked request, ready to be submitted.
#[derive(Debug)]
pub(crate) struct GenerationRequest {
    pub(crate) endpoint: Endpoint,
    pub(crate) served: Arc<Served>,
    /// At least one.
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) settings: Settings,
    /// Alternatives to report with each token; `None`: no log-probabilities.
    pub(crate) logprobs: Option<u32>,
}

#[derive(Debug)]
pub(crate) struct Prompt {
    /// At least one; the context holds at least one more.
    pub(crate) tokens: Arc<[Token]>,
    /// Tokens that each choice may generate within the context: at least 1.
    pub(crate) max_tokens: u32,
    /// The prompt's text if the response echoes it, otherwise empty.
    pub(crate) echo: String,
}

impl Endpoint {
    /// What validators call it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Completion => "completion",
        }
    }
}

impl GenerationRequest {
    /// # Errors
    /// 400 if prompts and `n` together make too many choices.
    pub(crate) fn check_choices(self) -> Result<Self, FlowError> {
        let choices = self.prompts.len() as f64 * f64::from(self.settings.n);
        if limits::CHOICES.contains(choices) {
            return Ok(self);
        }
        let max = limits::CHOICES.max;
        Err(FlowError::field("n", format!("prompts times n must be at most {max} choices, got {choices}")))
    }

    /// Each choice with its prompt, in the order of their indices.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, self.settings.n as usize))
    }

    /// Upper bound of the tokens that it uses: prompts and output.
    pub(crate) fn max_total_tokens(&self) -> u64 {
        self.prompt_tokens() + self.choices().map(|prompt| u64::from(prompt.max_tokens)).sum::<u64>()
    }

    /// Length of all prompts together: each counts once, however many choices it has.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum()
    }
}
