//! Renders the chunks of a streamed response.
use camshaft_core::message::{Delta, FinishReason};
use serde::Serialize;

use super::logprobs::{self, ChatLogprobs, ScoredPrompt, TextLogprobs, TextOffset};
use super::parts::{Part, PartReader};
use super::usage::UsageObject;
use super::{CallObject, ChoiceNote, Envelope, FUNCTION, Finish, FunctionObject};
use crate::flow::generation::Totals;
use crate::flow::request::{Endpoint, GenerationRequest, Prompt};
use crate::wire::sse;

/// Writes the frames of one response in the order that clients rely on. Each choice has an opening chunk (chat: the
/// role, with empty content; completions: the prompt if it is echoed), its text, and a final chunk. The usage comes
/// last.
#[derive(Debug)]
pub(crate) struct Chunks {
    request: GenerationRequest,
    envelope: Envelope,
    choices: Vec<ChoiceProgress>,
}

#[derive(Debug)]
struct ChoiceProgress {
    opened: bool,
    /// For `text_offset`.
    offset: TextOffset,
    /// Of the prompt that it echoes, if that has log-probabilities.
    scored: Option<ScoredPrompt>,
    /// Of a chat.
    parts: PartReader,
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

#[derive(Debug, Serialize)]
struct TextChunkChoice<'a> {
    text: &'a str,
    index: usize,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    camshaft: Option<ChoiceNote>,
}

impl<'a> ChatDelta<'a> {
    fn of(part: &'a Part) -> Self {
        let call = |index: &usize, id: Option<&'a String>, name: Option<&'a String>, arguments: &'a str| {
            let function = FunctionObject { name: name.map(String::as_str), arguments };
            let (id, kind) = (id.map(String::as_str), id.map(|_| FUNCTION));
            Self { tool_calls: Some([CallObject { index: Some(*index), id, kind, function }]), ..Self::default() }
        };
        match part {
            Part::Content(text) => Self { content: Some(text), ..Self::default() },
            Part::Reasoning(text) => Self { reasoning_content: Some(text), ..Self::default() },
            Part::Call { index, id, name } => call(index, Some(id), Some(name), ""),
            Part::Arguments { index, text } => call(index, None, None, text),
        }
    }
}

impl Chunks {
    pub(crate) fn new(request: GenerationRequest) -> Self {
        let progress = |prompt: &Prompt| {
            let scores = || ScoredPrompt::new(&request.vocabulary, &prompt.tokens, &prompt.echo);
            let scored = request.scores_prompts.then(scores);
            let (offset, parts) = (TextOffset::after(&prompt.echo), PartReader::new(&request));
            ChoiceProgress { opened: false, offset, scored, parts }
        };
        let choices = request.choices().map(progress).collect();
        Self { envelope: Envelope::new(&request), request, choices }
    }

    /// Writes the opening chunk of a choice, before any other chunk of it. Later calls do nothing.
    pub(crate) fn open(&mut self, out: &mut Vec<u8>, index: usize) {
        if std::mem::replace(&mut self.choices[index].opened, true) {
            return;
        }
        match self.request.endpoint {
            Endpoint::Chat => {
                let delta = ChatDelta {
                    role: Some("assistant"),
                    content: Some(""),
                    refusal: Some(None),
                    ..ChatDelta::default()
                };
                self.chat(out, ChatChunkChoice { index, delta, logprobs: None, finish_reason: None, camshaft: None });
            }
            Endpoint::Completion => {
                let echo = self.request.choices().nth(index).map_or("", |prompt| prompt.echo.as_str());
                if !echo.is_empty() || self.choices[index].scored.is_some() {
                    let (vocabulary, progress) = (&self.request.vocabulary, &mut self.choices[index]);
                    let (offset, scored) = (&mut progress.offset, progress.scored.as_mut());
                    // The first token, which has none.
                    let logprobs = scored.map(|scored| logprobs::text(vocabulary, &[], offset, Some(scored)));
                    let (text, finish_reason, camshaft) = (echo, None, None);
                    self.text(out, TextChunkChoice { text, index, logprobs, finish_reason, camshaft });
                }
            }
        }
    }

    pub(crate) fn delta(&mut self, out: &mut Vec<u8>, index: usize, delta: &Delta) {
        if delta.text.is_empty() && delta.logprobs.is_empty() && self.request.endpoint == Endpoint::Completion {
            return;
        }
        let vocabulary = &self.request.vocabulary;
        let text = delta.text.as_str();
        let any = !delta.logprobs.is_empty();
        match self.request.endpoint {
            Endpoint::Chat => {
                let parts = self.choices[index].parts.push(&self.request, text, delta.tokens);
                let mut logprobs = any.then(|| logprobs::chat(vocabulary, &delta.logprobs));
                if parts.is_empty() && any {
                    // The text of the tokens is held back.
                    let delta = ChatDelta { content: Some(""), ..ChatDelta::default() };
                    let logprobs = logprobs.take();
                    self.chat(out, ChatChunkChoice { index, delta, logprobs, finish_reason: None, camshaft: None });
                }
                for part in &parts {
                    let (delta, logprobs) = (ChatDelta::of(part), logprobs.take());
                    self.chat(out, ChatChunkChoice { index, delta, logprobs, finish_reason: None, camshaft: None });
                }
            }
            Endpoint::Completion => {
                let ChoiceProgress { offset, scored, .. } = &mut self.choices[index];
                let logprobs = any.then(|| logprobs::text(vocabulary, &delta.logprobs, offset, scored.as_mut()));
                self.text(out, TextChunkChoice { text, index, logprobs, finish_reason: None, camshaft: None });
            }
        }
    }

    pub(crate) fn end(&mut self, out: &mut Vec<u8>, index: usize, reason: FinishReason) {
        let camshaft = ChoiceNote::of(reason);
        match self.request.endpoint {
            Endpoint::Chat => {
                for part in &self.choices[index].parts.finish(&self.request) {
                    let (delta, finish_reason) = (ChatDelta::of(part), None);
                    self.chat(out, ChatChunkChoice { index, delta, logprobs: None, finish_reason, camshaft: None });
                }
                let finish_reason = Some(self.choices[index].parts.finish_reason(reason));
                self.chat(
                    out,
                    ChatChunkChoice { index, delta: ChatDelta::default(), logprobs: None, finish_reason, camshaft },
                );
            }
            Endpoint::Completion => {
                let finish_reason = Some(Finish::from(reason));
                self.text(out, TextChunkChoice { text: "", index, logprobs: None, finish_reason, camshaft });
            }
        }
    }

    /// Writes the usage chunk if the client asked for it.
    pub(crate) fn usage(&self, out: &mut Vec<u8>, totals: Totals) {
        if self.request.settings.include_usage {
            let nothing: &[TextChunkChoice<'_>] = &[];
            let reasoning = self.choices.iter().map(|choice| choice.parts.reasoning_tokens()).sum();
            let usage = Some(Some(UsageObject::new(totals, reasoning)));
            sse::write(out, &self.envelope.object(self.object(), nothing, usage));
        }
    }

    fn chat(&self, out: &mut Vec<u8>, choice: ChatChunkChoice<'_>) {
        sse::write(out, &self.envelope.object(self.object(), &[choice], self.no_usage()));
    }

    fn text(&self, out: &mut Vec<u8>, choice: TextChunkChoice<'_>) {
        sse::write(out, &self.envelope.object(self.object(), &[choice], self.no_usage()));
    }

    fn object(&self) -> &'static str {
        match self.request.endpoint {
            Endpoint::Chat => "chat.completion.chunk",
            Endpoint::Completion => "text_completion",
        }
    }

    /// `null` if a usage chunk follows at the end; otherwise absent.
    fn no_usage(&self) -> Option<Option<UsageObject>> {
        self.request.settings.include_usage.then_some(None)
    }
}
