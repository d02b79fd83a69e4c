//! Chats and completions in OpenAI's shapes.
use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use super::logprobs::{self, TextProgress};
use super::parts::AnswerPart;
use super::{AnswerDelta, AnswerWriter, Call, WholeChoice};
use crate::flow::budget::{self, Share};
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::wire::error::{Answer, ErrorBody};
use crate::wire::sse::{self, Pieces};
use crate::wire::stamp;
use crate::wire::types::chat::{
    AssistantMessage, CallDelta, CalledFunction, ChatChoice, ChatChunkChoice, ChatDelta, FunctionDelta, FunctionType,
    ToolCall,
};
use crate::wire::types::completions::CompletionChoice;
use crate::wire::types::generation::{ChoiceList, ChoiceNote, CompletionTokens, Finish, PromptTokens, Usage};
use crate::wire::types::logprobs::ChatLogprobs;

/// The fields that all objects of one response share.
#[derive(Debug)]
struct Envelope {
    id: String,
    created: u64,
    request: Arc<GenerationRequest>,
}

impl Envelope {
    fn new(request: Arc<GenerationRequest>) -> Self {
        let prefix = match request.endpoint {
            Endpoint::Chat => "chatcmpl-",
            Endpoint::Completion => "cmpl-",
        };
        Self { id: stamp::id(prefix), created: stamp::now(), request }
    }

    fn object<'a, C>(
        &'a self,
        object: &'static str,
        choices: &'a [C],
        usage: Option<Option<Usage>>,
    ) -> ChoiceList<'a, C> {
        let Self { id, created, request } = self;
        let (model, system_fingerprint) = (request.model_name(), request.served.fingerprint.as_str());
        let session_id = request.settings.session.as_ref().map(|session| session.as_str());
        ChoiceList { id, object, created: *created, model, system_fingerprint, session_id, choices, usage }
    }
}

impl From<Totals> for Usage {
    fn from(totals: Totals) -> Self {
        Self {
            prompt_tokens: totals.prompt_tokens,
            completion_tokens: totals.generated_tokens,
            total_tokens: totals.prompt_tokens + totals.generated_tokens,
            prompt_tokens_details: PromptTokens { cached_tokens: totals.cached_tokens, audio_tokens: 0 },
            completion_tokens_details: CompletionTokens {
                reasoning_tokens: totals.reasoning_tokens,
                audio_tokens: 0,
                accepted_prediction_tokens: totals.accepted_tokens,
                rejected_prediction_tokens: totals.rejected_tokens,
            },
        }
    }
}

impl<'a> CallDelta<'a> {
    /// `of`: the id and the name, where the call begins.
    fn part(index: usize, of: Option<(&'a str, &'a str)>, arguments: &'a str) -> Self {
        let (id, name) = of.unzip();
        Self { index, id, r#type: id.map(|_| FunctionType::Function), function: FunctionDelta { name, arguments } }
    }
}

impl<'a> ChatChunkChoice<'a> {
    /// It goes on.
    fn of(index: usize, delta: ChatDelta<'a>) -> Self {
        Self { index, delta, logprobs: None, finish_reason: None, camshaft: None }
    }
}

impl<'a> CompletionChoice<'a> {
    /// It goes on.
    fn of(index: usize, text: &'a str) -> Self {
        Self { text, index, logprobs: None, finish_reason: None, camshaft: None }
    }
}

impl<'a> ChatDelta<'a> {
    fn of(part: &'a AnswerPart) -> Self {
        let call = |call| Self { tool_calls: Some([call]), ..Self::default() };
        match part {
            AnswerPart::Content(text) => Self { content: Some(text), ..Self::default() },
            AnswerPart::Reasoning(text) => Self { reasoning_content: Some(text), ..Self::default() },
            AnswerPart::Call { index, id, name } => call(CallDelta::part(*index, Some((id, name)), "")),
            AnswerPart::Arguments { index, text } => call(CallDelta::part(*index, None, text)),
        }
    }
}

/// Writes the frames of one response in the order that clients rely on. Each choice has an opening chunk (chat: the
/// role, with empty content; completions: the prompt if it is echoed), its text, and a final chunk. The usage comes
/// last.
pub(super) struct OpenAiStreamWriter {
    envelope: Envelope,
    choices: Vec<ChoiceProgress>,
}

struct ChoiceProgress {
    opened: bool,
    text: TextProgress,
}

impl OpenAiStreamWriter {
    pub(super) fn new(request: Arc<GenerationRequest>) -> Self {
        let progress = |prompt| ChoiceProgress { opened: false, text: TextProgress::new(&request, prompt) };
        Self { choices: request.choices().map(progress).collect(), envelope: Envelope::new(request) }
    }

    fn write<C: Serialize>(&self, out: &mut Pieces, choice: C) {
        // `null` if a usage chunk follows at the end; otherwise absent.
        let no_usage = self.envelope.request.settings.include_usage.then_some(None);
        sse::write(out.next(), &self.envelope.object(self.object(), &[choice], no_usage));
    }

    fn object(&self) -> &'static str {
        match self.envelope.request.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }
}

impl AnswerWriter for OpenAiStreamWriter {
    fn begin(&mut self, out: &mut Pieces, index: usize) {
        if std::mem::replace(&mut self.choices[index].opened, true) {
            return;
        }
        match self.envelope.request.endpoint {
            Endpoint::Chat => {
                let (role, content, refusal) = (Some("assistant"), Some(""), Some(None));
                let delta = ChatDelta { role, content, refusal, ..ChatDelta::default() };
                self.write(out, ChatChunkChoice::of(index, delta));
            }
            Endpoint::Completion => {
                if let Some((echo, logprobs)) = self.choices[index].text.opening(&self.envelope.request, index) {
                    self.write(out, CompletionChoice { logprobs, ..CompletionChoice::of(index, &echo) });
                }
            }
        }
    }

    fn delta(&mut self, out: &mut Pieces, index: usize, delta: &AnswerDelta) {
        let any = !delta.logprobs.is_empty();
        let request = self.envelope.request.clone();
        match request.endpoint {
            Endpoint::Chat => {
                let mut logprobs = any.then(|| ChatLogprobs::new(&request.vocabulary, &delta.logprobs));
                if delta.parts.is_empty() && any {
                    // The text of the tokens is held back.
                    let empty = ChatDelta { content: Some(""), ..ChatDelta::default() };
                    self.write(out, ChatChunkChoice { logprobs: logprobs.take(), ..ChatChunkChoice::of(index, empty) });
                }
                for part in &delta.parts {
                    let logprobs = logprobs.take();
                    self.write(out, ChatChunkChoice { logprobs, ..ChatChunkChoice::of(index, ChatDelta::of(part)) });
                }
            }
            Endpoint::Completion => {
                let logprobs = any.then(|| self.choices[index].text.logprobs(&request.vocabulary, &delta.logprobs));
                if any || !delta.parts.is_empty() {
                    self.write(out, CompletionChoice { logprobs, ..CompletionChoice::of(index, delta.text()) });
                }
            }
        }
    }

    fn finish(&mut self, out: &mut Pieces, index: usize, finish: Finish) {
        let (finish_reason, camshaft) = (Some(finish), ChoiceNote::of(finish));
        match self.envelope.request.endpoint {
            Endpoint::Chat => {
                let empty = ChatChunkChoice::of(index, ChatDelta::default());
                self.write(out, ChatChunkChoice { finish_reason, camshaft, ..empty });
            }
            Endpoint::Completion => {
                self.write(out, CompletionChoice { finish_reason, camshaft, ..CompletionChoice::of(index, "") });
            }
        }
    }

    fn end(&mut self, out: &mut Pieces, totals: Totals) {
        if self.envelope.request.settings.include_usage {
            let nothing: &[CompletionChoice<'_>] = &[];
            sse::write(out.next(), &self.envelope.object(self.object(), nothing, Some(Some(totals.into()))));
        }
        out.next().extend_from_slice(sse::DONE);
    }

    fn fail(&mut self, out: &mut Pieces, error: &Answer, request_id: &str) {
        sse::write(out.next(), &ErrorBody { error: &error.note().object, request_id });
    }
}

impl<'a> AssistantMessage<'a> {
    fn of(choice: &'a WholeChoice) -> Self {
        Self {
            role: "assistant",
            content: Some(choice.content.as_str()).filter(|text| !text.is_empty() || choice.calls.is_empty()),
            refusal: None,
            reasoning_content: Some(choice.reasoning.as_str()).filter(|text| !text.is_empty()),
            tool_calls: choice.calls.iter().map(ToolCall::from).collect(),
        }
    }
}

impl<'a> From<&'a Call> for ToolCall<'a> {
    fn from(call: &'a Call) -> Self {
        let function = CalledFunction { name: &call.name, arguments: &call.arguments };
        Self { id: &call.id, r#type: FunctionType::Function, function }
    }
}

/// The whole response, which holds `share` until the client has taken it.
///
/// # Errors
/// It cannot be written.
pub(super) fn whole(
    request: &Arc<GenerationRequest>,
    choices: &[WholeChoice],
    totals: Totals,
    share: Share,
) -> Result<Response, FlowError> {
    let envelope = Envelope::new(request.clone());
    let usage = Some(Some(totals.into()));
    let choices = choices.iter().enumerate();
    match request.endpoint {
        Endpoint::Chat => {
            let wanted = request.logprobs.is_some();
            let choices: Vec<_> = choices
                .map(|(index, choice)| ChatChoice {
                    index,
                    message: AssistantMessage::of(choice),
                    logprobs: wanted.then(|| ChatLogprobs::new(&request.vocabulary, &choice.logprobs)),
                    finish_reason: choice.finish,
                    camshaft: ChoiceNote::of(choice.finish),
                })
                .collect();
            budget::json(&envelope.object("chat.completion", &choices, usage), share)
        }
        Endpoint::Completion => {
            let choices: Vec<_> = choices
                .map(|(index, choice)| CompletionChoice {
                    text: &choice.content,
                    index,
                    logprobs: logprobs::of_text(request, index, choice),
                    finish_reason: Some(choice.finish),
                    camshaft: ChoiceNote::of(choice.finish),
                })
                .collect();
            budget::json(&envelope.object("text_completion", &choices, usage), share)
        }
    }
}
