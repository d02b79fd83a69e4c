//! Chats and completions in OpenAI's shapes.
use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;

use super::logprobs::{ChatLogprobs, TextLogprobs, TextProgress};
use super::parts::AnswerPart;
use super::usage::OpenAiUsage;
use super::{AnswerDelta, AnswerWriter, Call, Finish, WholeChoice, logprobs};
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::kept;
use crate::flow::request::{Endpoint, GenerationRequest};
use crate::wire::answer::Answer;
use crate::wire::sse::{self, Pieces};
use crate::wire::stamp;

/// The fields that all objects of one response share.
#[derive(Debug)]
struct Envelope {
    id: String,
    created: u64,
    request: Arc<GenerationRequest>,
}

/// A response, or one chunk of it.
#[derive(Debug, Serialize)]
struct Object<'a, C> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'a str,
    /// That the request named.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    choices: &'a [C],
    /// Absent, `null`, or present.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<OpenAiUsage>>,
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
        usage: Option<Option<OpenAiUsage>>,
    ) -> Object<'a, C> {
        let Self { id, created, request } = self;
        let (model, system_fingerprint) = (request.model_name(), request.served.fingerprint.as_str());
        let session_id = request.settings.session.as_ref().map(|session| session.as_str());
        Object { id, object, created: *created, model, system_fingerprint, session_id, choices, usage }
    }
}

/// What OpenAI's shapes have no word for, of one choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct ChoiceNote {
    finish_detail: &'static str,
}

impl ChoiceNote {
    /// `None`: `finish_reason` says it all.
    fn of(finish: Finish) -> Option<Self> {
        (finish == Finish::Expired).then_some(Self { finish_detail: "max_duration" })
    }
}

/// A call, or a part of one in a chunk, where it has its index.
#[derive(Debug, Serialize)]
struct CallObject<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: FunctionObject<'a>,
}

#[derive(Debug, Serialize)]
struct FunctionObject<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

const FUNCTION: &str = "function";

impl<'a> CallObject<'a> {
    /// `of`: the id and the name, where the call begins.
    fn part(index: usize, of: Option<(&'a str, &'a str)>, arguments: &'a str) -> Self {
        let (id, name) = of.unzip();
        let function = FunctionObject { name, arguments };
        Self { index: Some(index), id, kind: id.map(|_| FUNCTION), function }
    }

    fn whole(call: &'a Call) -> Self {
        Self { index: None, ..Self::part(0, Some((&call.id, &call.name)), &call.arguments) }
    }
}

#[derive(Debug, Serialize)]
struct ChatChunkChoice<'a> {
    index: usize,
    delta: ChatDelta<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    camshaft: Option<ChoiceNote>,
}

#[derive(Debug, Default, Serialize)]
struct ChatDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallObject<'a>; 1]>,
    /// Present, as `null`, only with the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Option<&'a str>>,
}

impl<'a> ChatChunkChoice<'a> {
    /// It goes on.
    fn of(index: usize, delta: ChatDelta<'a>) -> Self {
        Self { index, delta, logprobs: None, finish_reason: None, camshaft: None }
    }
}

/// Also of a whole completion.
#[derive(Debug, Serialize)]
struct TextChoice<'a> {
    text: &'a str,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    camshaft: Option<ChoiceNote>,
}

impl<'a> TextChoice<'a> {
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
            AnswerPart::Call { index, id, name } => call(CallObject::part(*index, Some((id, name)), "")),
            AnswerPart::Arguments { index, text } => call(CallObject::part(*index, None, text)),
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
                    self.write(out, TextChoice { logprobs, ..TextChoice::of(index, &echo) });
                }
            }
        }
    }

    fn delta(&mut self, out: &mut Pieces, index: usize, delta: &AnswerDelta) {
        let any = !delta.logprobs.is_empty();
        let request = self.envelope.request.clone();
        match request.endpoint {
            Endpoint::Chat => {
                let mut logprobs = any.then(|| logprobs::chat(&request.vocabulary, &delta.logprobs));
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
                    self.write(out, TextChoice { logprobs, ..TextChoice::of(index, delta.text()) });
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
                self.write(out, TextChoice { finish_reason, camshaft, ..TextChoice::of(index, "") });
            }
        }
    }

    fn end(&mut self, out: &mut Pieces, totals: Totals) {
        if self.envelope.request.settings.include_usage {
            let nothing: &[TextChoice<'_>] = &[];
            sse::write(out.next(), &self.envelope.object(self.object(), nothing, Some(Some(totals.into()))));
        }
        out.next().extend_from_slice(sse::DONE);
    }

    fn fail(&mut self, out: &mut Pieces, error: &Answer) {
        sse::write(out.next(), &error.body());
    }
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

impl<'a> AssistantMessage<'a> {
    fn of(choice: &'a WholeChoice) -> Self {
        Self {
            role: "assistant",
            content: Some(choice.content.as_str()).filter(|text| !text.is_empty() || choice.calls.is_empty()),
            refusal: None,
            reasoning_content: Some(choice.reasoning.as_str()).filter(|text| !text.is_empty()),
            tool_calls: choice.calls.iter().map(CallObject::whole).collect(),
        }
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
                    logprobs: wanted.then(|| logprobs::chat(&request.vocabulary, &choice.logprobs)),
                    finish_reason: choice.finish,
                    camshaft: ChoiceNote::of(choice.finish),
                })
                .collect();
            kept::json(&envelope.object("chat.completion", &choices, usage), share)
        }
        Endpoint::Completion => {
            let choices: Vec<_> = choices
                .map(|(index, choice)| TextChoice {
                    text: &choice.content,
                    index,
                    logprobs: logprobs::of_text(request, index, choice),
                    finish_reason: Some(choice.finish),
                    camshaft: ChoiceNote::of(choice.finish),
                })
                .collect();
            kept::json(&envelope.object("text_completion", &choices, usage), share)
        }
    }
}
