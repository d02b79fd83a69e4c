//! A checked generation request, for both chat and plain completions.
use std::sync::Arc;

use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;
use camshaft_core::{limits, policy};

use crate::flow::adapters::ChosenAdapters;
use crate::flow::budget::{self, TOKEN_BYTES};
use crate::flow::error::FlowError;
use crate::flow::form::AnswerForm;
use crate::flow::served::Served;
use crate::wire::settings::GenerationSettings;

/// What a choice takes besides its text: its parameters and its channel.
const CHOICE_BYTES: usize = 4096;

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
    /// The model's.
    pub(crate) vocabulary: Arc<Vocabulary>,
    /// At least one.
    pub(crate) prompts: Vec<Prompt>,
    pub(crate) settings: GenerationSettings,
    pub(crate) adapters: ChosenAdapters,
    /// What the answers must look like.
    pub(crate) form: AnswerForm,
    /// Number of alternatives to report per token; `None`: no log-probabilities.
    pub(crate) logprobs: Option<u32>,
    /// Report the log-probabilities of the prompts' tokens, too.
    pub(crate) scores_prompts: bool,
}

#[derive(Debug)]
pub(crate) struct Prompt {
    /// At least one token, and at least one less than the context.
    pub(crate) tokens: Arc<[Token]>,
    /// Maximum number of tokens that each choice may generate within the context.
    pub(crate) max_tokens: u32,
    /// The prompt's text if the response echoes it, otherwise empty.
    pub(crate) echo: String,
}

impl Endpoint {
    /// The name that validators see.
    pub(crate) fn for_policies(self) -> policy::Endpoint {
        match self {
            Endpoint::Chat => policy::Endpoint::Chat,
            Endpoint::Completion => policy::Endpoint::Completion,
        }
    }
}

impl GenerationRequest {
    /// # Errors
    /// 400 if prompts and `n` together make too many choices.
    pub(crate) fn check_choices(self) -> Result<Self, FlowError> {
        let choices = self.prompts.len() as f64 * f64::from(self.settings.best_of);
        if limits::CHOICES.contains(choices) {
            return Ok(self);
        }
        let max = limits::CHOICES.max;
        let name = if self.settings.best_of > self.settings.n { "best_of" } else { "n" };
        Err(FlowError::field(name, format!("prompts times {name} must be at most {max} choices, got {choices}")))
    }

    /// The model's name, as the client has it.
    pub(crate) fn model_name(&self) -> &str {
        self.adapters.name.as_deref().unwrap_or(&self.served.model.id)
    }

    /// The prompts of all choices that are generated, those of a prompt one after the other.
    pub(crate) fn choices(&self) -> impl Iterator<Item = &Prompt> {
        self.prompts.iter().flat_map(|prompt| std::iter::repeat_n(prompt, self.settings.best_of as usize))
    }

    /// Whether more choices are generated than answered.
    pub(crate) fn chooses(&self) -> bool {
        self.settings.best_of > self.settings.n
    }

    /// Number of alternatives that the worker reports per token.
    pub(crate) fn told_logprobs(&self) -> Option<u32> {
        self.logprobs.or(self.chooses().then_some(0))
    }

    /// Log-probabilities of a prompt that come before those of what is generated.
    pub(crate) fn scored(&self, prompt: &Prompt) -> usize {
        if self.scores_prompts { prompt.tokens.len() - 1 } else { 0 }
    }

    /// Upper bound of the tokens that the request uses, prompts and output together.
    pub(crate) fn max_total_tokens(&self) -> u64 {
        self.prompt_tokens() + self.choices().map(|prompt| u64::from(prompt.max_tokens)).sum::<u64>()
    }

    /// What the request takes in memory until it ends, besides the text that it generates.
    pub(crate) fn held_bytes(&self) -> usize {
        let of_choice = |prompt: &Prompt| {
            let kept = self.told_logprobs().filter(|_| !self.settings.stream);
            let tokens = self.scored(prompt).saturating_add(prompt.max_tokens as usize);
            let logprobs = kept.map_or(0, |count| budget::logprob_bytes(tokens, count));
            CHOICE_BYTES.saturating_add(budget::text_bytes(prompt.echo.len())).saturating_add(logprobs)
        };
        let tokens = self.prompt_tokens() as usize * TOKEN_BYTES;
        self.choices().map(of_choice).fold(tokens.saturating_add(self.form.held_bytes()), usize::saturating_add)
    }

    /// Length of all prompts together. A prompt with several choices counts once.
    pub(crate) fn prompt_tokens(&self) -> u64 {
        self.prompts.iter().map(|prompt| prompt.tokens.len() as u64).sum()
    }
}
