//! Renders whole responses.
use axum::response::Response;
use camshaft_core::message::{Delta, FinishReason, TokenLogprob};
use serde::Serialize;

use super::logprobs::{self, ChatLogprobs, ScoredPrompt, TextLogprobs, TextOffset};
use super::parts::{Part, PartReader};
use super::usage::UsageObject;
use super::{CallObject, ChoiceNote, Envelope, FUNCTION, Finish, FunctionObject};
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::kept;
use crate::flow::request::{Endpoint, GenerationRequest, Prompt};

/// The text of one choice, and how it ended.
#[derive(Debug)]
pub(crate) struct Collected {
    /// Of a chat, its content.
    text: String,
    reasoning: String,
    calls: Vec<Call>,
    parts: PartReader,
    logprobs: Vec<TokenLogprob>,
    reason: Option<FinishReason>,
    /// Log-probabilities that are the prompt's.
    scored: usize,
}

/// A call, which may have been cut.
#[derive(Debug)]
struct Call {
    id: String,
    name: String,
    arguments: String,
}

impl Call {
    fn object(&self) -> CallObject<'_> {
        let function = FunctionObject { name: Some(&self.name), arguments: &self.arguments };
        CallObject { index: None, id: Some(&self.id), kind: Some(FUNCTION), function }
    }
}

impl Collected {
    /// A new choice of a prompt, which its text may begin with.
    pub(crate) fn new(request: &GenerationRequest, prompt: &Prompt) -> Self {
        Self {
            text: prompt.echo.clone(),
            reasoning: String::new(),
            calls: Vec::new(),
            parts: PartReader::new(request),
            logprobs: Vec::new(),
            reason: None,
            scored: request.scored(prompt),
        }
    }

    pub(crate) fn add(&mut self, request: &GenerationRequest, delta: Delta) {
        let parts = self.parts.push(request, &delta.text, delta.tokens);
        self.take(parts);
        self.logprobs.extend(delta.logprobs);
    }

    pub(crate) fn end(&mut self, request: &GenerationRequest, reason: FinishReason) {
        let parts = self.parts.finish(request);
        self.take(parts);
        self.reason = Some(reason);
    }

    fn take(&mut self, parts: Vec<Part>) {
        for part in parts {
            match part {
                Part::Content(text) => self.text.push_str(&text),
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Call { id, name, .. } => self.calls.push(Call { id, name, arguments: String::new() }),
                Part::Arguments { index, text } => {
                    if let Some(call) = self.calls.get_mut(index) {
                        call.arguments.push_str(&text);
                    }
                }
            }
        }
    }

    fn finish_reason(&self) -> Finish {
        self.reason.map_or(Finish::Length, |reason| self.parts.finish_reason(reason))
    }

    fn message(&self) -> AssistantMessage<'_> {
        AssistantMessage {
            role: "assistant",
            content: Some(self.text.as_str()).filter(|text| !text.is_empty() || self.calls.is_empty()),
            refusal: None,
            reasoning_content: Some(self.reasoning.as_str()).filter(|text| !text.is_empty()),
            tool_calls: self.calls.iter().map(Call::object).collect(),
        }
    }

    fn note(&self) -> Option<ChoiceNote> {
        self.reason.and_then(ChoiceNote::of)
    }

    /// The mean log-probability of its tokens; of one without any, the least that there is.
    fn likelihood(&self) -> f64 {
        let own = self.logprobs.get(self.scored..).unwrap_or_default();
        let sum: f64 = own.iter().map(|token| f64::from(token.logprob)).sum();
        if own.is_empty() { f64::NEG_INFINITY } else { sum / own.len() as f64 }
    }
}

/// Of each prompt's choices the likeliest ones, as many as are answered, the best one first.
pub(crate) fn likeliest(request: &GenerationRequest, choices: Vec<Collected>) -> Vec<Collected> {
    if !request.chooses() {
        return choices;
    }
    let (generated, answered) = (request.settings.best_of as usize, request.settings.n as usize);
    let (mut rest, mut best) = (choices, Vec::new());
    while !rest.is_empty() {
        let later = rest.split_off(generated.min(rest.len()));
        rest.sort_by(|one, other| other.likelihood().total_cmp(&one.likelihood()));
        best.extend(rest.into_iter().take(answered));
        rest = later;
    }
    best
}

#[derive(Debug, Serialize)]
struct ChatChoice<'a> {
    index: usize,
    message: AssistantMessage<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Finish,
    #[serde(skip_serializing_if = "Option::is_none")]
    camshaft: Option<ChoiceNote>,
}

#[derive(Debug, Serialize)]
struct AssistantMessage<'a> {
    role: &'static str,
    /// `None`: there are calls only.
    content: Option<&'a str>,
    refusal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallObject<'a>>,
}

#[derive(Debug, Serialize)]
struct TextChoice<'a> {
    text: &'a str,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Finish,
    #[serde(skip_serializing_if = "Option::is_none")]
    camshaft: Option<ChoiceNote>,
}

/// The response, which holds `share` until the client has taken it.
///
/// # Errors
/// It cannot be written.
pub(crate) fn respond(
    request: &GenerationRequest,
    choices: &[Collected],
    totals: Totals,
    share: Share,
) -> Result<Response, FlowError> {
    let envelope = Envelope::new(request);
    let vocabulary = &request.vocabulary;
    let reasoning = choices.iter().map(|choice| choice.parts.reasoning_tokens()).sum();
    let usage = Some(Some(UsageObject::new(totals, reasoning)));
    let choices = choices.iter().enumerate();
    let wanted = request.logprobs.is_some();
    match request.endpoint {
        Endpoint::Chat => {
            let choices: Vec<_> = choices
                .map(|(index, choice)| ChatChoice {
                    index,
                    message: choice.message(),
                    logprobs: wanted.then(|| logprobs::chat(vocabulary, &choice.logprobs)),
                    finish_reason: choice.finish_reason(),
                    camshaft: choice.note(),
                })
                .collect();
            kept::json(&envelope.object("chat.completion", &choices, usage), share)
        }
        Endpoint::Completion => {
            let n = request.settings.n as usize;
            let logprobs = |index: usize, choice: &Collected| {
                let prompt = request.prompts.get(index / n).filter(|_| wanted)?;
                let mut offset = TextOffset::after(&prompt.echo);
                let scores = || ScoredPrompt::new(vocabulary, &prompt.tokens, &prompt.echo);
                let mut scored = request.scores_prompts.then(scores);
                Some(logprobs::text(vocabulary, &choice.logprobs, &mut offset, scored.as_mut()))
            };
            let choices: Vec<_> = choices
                .map(|(index, choice)| TextChoice {
                    text: &choice.text,
                    index,
                    logprobs: logprobs(index, choice),
                    finish_reason: choice.finish_reason(),
                    camshaft: choice.note(),
                })
                .collect();
            kept::json(&envelope.object("text_completion", &choices, usage), share)
        }
    }
}
