//! Renders whole responses.
use axum::response::Response;
use camshaft_core::message::{Delta, FinishReason, TokenLogprob};
use serde::Serialize;

use super::logprobs::{self, ChatLogprobs, TextLogprobs, TextOffset};
use super::{Envelope, Finish};
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::kept;
use crate::flow::request::{Endpoint, GenerationRequest};

/// The text of one choice, and how it ended.
#[derive(Debug)]
pub(crate) struct Collected {
    text: String,
    logprobs: Vec<TokenLogprob>,
    pub(crate) reason: Option<FinishReason>,
}

impl Collected {
    /// A new choice, whose text begins with `echo`.
    pub(crate) fn new(echo: &str) -> Self {
        Self { text: echo.to_owned(), logprobs: Vec::new(), reason: None }
    }

    pub(crate) fn add(&mut self, delta: Delta) {
        self.text.push_str(&delta.text);
        self.logprobs.extend(delta.logprobs);
    }

    fn finish_reason(&self) -> Finish {
        self.reason.map_or(Finish::Length, Finish::from)
    }
}

#[derive(Debug, Serialize)]
struct ChatChoice<'a> {
    index: usize,
    message: AssistantMessage<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Finish,
}

#[derive(Debug, Serialize)]
struct AssistantMessage<'a> {
    role: &'static str,
    content: &'a str,
    refusal: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct TextChoice<'a> {
    text: &'a str,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Finish,
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
    let usage = Some(Some(totals.into()));
    let choices = choices.iter().enumerate();
    let wanted = request.logprobs.is_some();
    match request.endpoint {
        Endpoint::Chat => {
            let choices: Vec<_> = choices
                .map(|(index, choice)| ChatChoice {
                    index,
                    message: AssistantMessage { role: "assistant", content: &choice.text, refusal: None },
                    logprobs: wanted.then(|| logprobs::chat(vocabulary, &choice.logprobs)),
                    finish_reason: choice.finish_reason(),
                })
                .collect();
            kept::json(&envelope.object("chat.completion", &choices, usage), share)
        }
        Endpoint::Completion => {
            let choices: Vec<_> = choices
                .map(|(index, choice)| TextChoice {
                    text: &choice.text,
                    index,
                    logprobs: wanted.then(|| logprobs::text(vocabulary, &choice.logprobs, &mut TextOffset::default())),
                    finish_reason: choice.finish_reason(),
                })
                .collect();
            kept::json(&envelope.object("text_completion", &choices, usage), share)
        }
    }
}
