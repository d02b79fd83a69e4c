//! Anthropic's Messages API: its messages, and the events of streamed ones.
use std::sync::Arc;

use axum::response::Response;
use serde_json::json;
use serde_json::value::RawValue;

use super::parts::AnswerPart;
use super::{AnswerDelta, AnswerWriter, Call, WholeChoice};
use crate::flow::budget::{self, Share};
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::request::GenerationRequest;
use crate::wire::error::{self, Answer, MessageErrorObject};
use crate::wire::sse::{self, Pieces};
use crate::wire::stamp;
use crate::wire::types::generation::Finish;
use crate::wire::types::messages::{
    ContentBlock, Message, MessageEnd, MessageEvent, MessageUsage, PartDelta, StopReason,
};

impl From<Totals> for MessageUsage {
    fn from(totals: Totals) -> Self {
        Self {
            input_tokens: totals.prompt_tokens.saturating_sub(totals.cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: totals.cached_tokens,
            output_tokens: totals.generated_tokens,
        }
    }
}

impl<'a> Message<'a> {
    fn new(request: &'a GenerationRequest, totals: Totals) -> Self {
        Self {
            id: stamp::id("msg_"),
            r#type: "message",
            role: "assistant",
            model: request.model_name(),
            content: Vec::new(),
            end: MessageEnd::default(),
            usage: totals.into(),
        }
    }
}

impl<'a> MessageEnd<'a> {
    fn new(finish: Finish, request: &'a GenerationRequest) -> Self {
        let (reason, stop_sequence) = match finish {
            Finish::Stop => (StopReason::EndTurn, None),
            Finish::StopString(stop) => {
                let stop = request.settings.extent.stop.get(usize::from(stop));
                (StopReason::StopSequence, stop.map(String::as_str))
            }
            Finish::Length | Finish::Expired => (StopReason::MaxTokens, None),
            Finish::ToolCalls => (StopReason::ToolUse, None),
            Finish::ContentFilter => (StopReason::Refusal, None),
        };
        Self { stop_reason: Some(reason), stop_sequence }
    }
}

/// A whole message.
///
/// # Errors
/// It cannot be written.
pub(super) fn whole(
    request: &GenerationRequest,
    choices: &[WholeChoice],
    totals: Totals,
    share: Share,
) -> Result<Response, FlowError> {
    let mut message = Message::new(request, totals);
    for choice in choices {
        message.end = MessageEnd::new(choice.finish, request);
        message.content = blocks(choice);
    }
    budget::json(&message, share)
}

fn blocks(choice: &WholeChoice) -> Vec<ContentBlock<'_>> {
    let mut blocks = Vec::new();
    if !choice.reasoning.is_empty() {
        blocks.push(ContentBlock::Thinking { thinking: &choice.reasoning, signature: "" });
    }
    if !choice.content.is_empty() {
        blocks.push(ContentBlock::Text { text: &choice.content });
    }
    for Call { id, name, arguments } in &choice.calls {
        blocks.push(ContentBlock::ToolUse { id, name, input: input(arguments) });
    }
    blocks
}

/// The arguments of a call as they are, if they are an object. Others, such as arguments that `max_tokens` cut, are one of
/// their own.
fn input(arguments: &str) -> Box<RawValue> {
    let is_object = |text: &str| text.starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok();
    let text = match arguments.trim() {
        "" => "{}".to_owned(),
        text if is_object(text) => text.to_owned(),
        _ => json!({"incomplete_arguments": arguments}).to_string(),
    };
    RawValue::from_string(text).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

/// Writes the events of one message: `message_start`; for each content block what opens it, its deltas and what closes it;
/// `message_delta` with the reason and the usage; `message_stop`. One block is open at a time.
pub(super) struct MessagesStreamWriter {
    request: Arc<GenerationRequest>,
    has_begun: bool,
    open: Option<OpenBlock>,
    /// Of the block that is open, or else of the next one.
    index: usize,
    finish: Finish,
}

/// Which block is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    Call,
}

impl MessagesStreamWriter {
    pub(super) fn new(request: Arc<GenerationRequest>) -> Self {
        Self { request, has_begun: false, open: None, index: 0, finish: Finish::Length }
    }

    fn open(&mut self, out: &mut Pieces, next: OpenBlock, content_block: ContentBlock<'_>) {
        // Each call is a block of its own.
        if self.open == Some(next) && next != OpenBlock::Call {
            return;
        }
        self.close(out);
        self.open = Some(next);
        write(out, &MessageEvent::BlockStart { index: self.index, content_block });
    }

    fn close(&mut self, out: &mut Pieces) {
        if self.open.take().is_some() {
            write(out, &MessageEvent::BlockStop { index: self.index });
            self.index += 1;
        }
    }

    fn change(&self, out: &mut Pieces, delta: PartDelta<'_>) {
        write(out, &MessageEvent::BlockDelta { index: self.index, delta });
    }
}

fn write(out: &mut Pieces, event: &MessageEvent<'_>) {
    sse::write_named(out.next(), event.name(), event);
}

impl AnswerWriter for MessagesStreamWriter {
    fn begin(&mut self, out: &mut Pieces, _: usize) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let totals = Totals { prompt_tokens: self.request.prompt_tokens(), ..Totals::default() };
        write(out, &MessageEvent::MessageStart { message: Message::new(&self.request, totals) });
    }

    fn delta(&mut self, out: &mut Pieces, _: usize, delta: &AnswerDelta) {
        for part in &delta.parts {
            match part {
                AnswerPart::Reasoning(thinking) => {
                    self.open(out, OpenBlock::Thinking, ContentBlock::Thinking { thinking: "", signature: "" });
                    self.change(out, PartDelta::Thinking { thinking });
                }
                AnswerPart::Content(text) => {
                    self.open(out, OpenBlock::Text, ContentBlock::Text { text: "" });
                    self.change(out, PartDelta::Text { text });
                }
                AnswerPart::Call { id, name, .. } => {
                    self.open(out, OpenBlock::Call, ContentBlock::ToolUse { id, name, input: input("") });
                }
                AnswerPart::Arguments { text, .. } => {
                    if !text.is_empty() {
                        self.change(out, PartDelta::Input { partial_json: text });
                    }
                }
            }
        }
    }

    fn finish(&mut self, _: &mut Pieces, _: usize, finish: Finish) {
        self.finish = finish;
    }

    fn end(&mut self, out: &mut Pieces, totals: Totals) {
        self.close(out);
        let delta = MessageEnd::new(self.finish, &self.request);
        write(out, &MessageEvent::MessageDelta { delta, usage: totals.into() });
        write(out, &MessageEvent::MessageStop {});
    }

    fn fail(&mut self, out: &mut Pieces, error: &Answer, request_id: &str) {
        let (_, kind) = error::of_anthropic(error.status().as_u16(), error.note().code());
        write(out, &MessageEvent::Error { error: MessageErrorObject::new(kind, error.note()), request_id });
    }

    /// Of a message that has begun, a `ping`.
    fn comment(&mut self, out: &mut Pieces, text: &str) {
        match self.has_begun {
            false => sse::say(out.next(), text),
            true => write(out, &MessageEvent::Ping {}),
        }
    }
}
