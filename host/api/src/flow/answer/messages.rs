//! Anthropic's Messages API: its messages, and the events of streamed ones.
use std::sync::Arc;

use axum::response::Response;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::parts::AnswerPart;
use super::usage::MessagesUsage;
use super::{AnswerDelta, AnswerWriter, Finish, WholeChoice};
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::kept;
use crate::flow::request::GenerationRequest;
use crate::wire::answer::Answer;
use crate::wire::sse::{self, Pieces};
use crate::wire::{anthropic_error, stamp};

#[derive(Debug, Serialize)]
struct Message<'a> {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: &'a str,
    content: Vec<Block>,
    #[serde(flatten)]
    stop: Stop<'a>,
    usage: MessagesUsage,
}

/// A content block.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block {
    /// Thinking blocks carry an empty signature.
    Thinking {
        thinking: String,
        signature: &'static str,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Box<RawValue>,
    },
}

impl<'a> Message<'a> {
    fn new(request: &'a GenerationRequest, totals: Totals) -> Self {
        Self {
            id: stamp::id("msg_"),
            kind: "message",
            role: "assistant",
            model: request.model_name(),
            content: Vec::new(),
            stop: Stop::default(),
            usage: totals.into(),
        }
    }
}

/// Why a message ended, and the stop sequence if one ended it.
#[derive(Debug, Default, Serialize)]
struct Stop<'a> {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
}

impl<'a> Stop<'a> {
    fn new(finish: Finish, request: &'a GenerationRequest) -> Self {
        let (reason, stop_sequence) = match finish {
            Finish::Stop => ("end_turn", None),
            Finish::StopString(stop) => {
                ("stop_sequence", request.settings.extent.stop.get(usize::from(stop)).map(String::as_str))
            }
            Finish::Length | Finish::Expired => ("max_tokens", None),
            Finish::ToolCalls => ("tool_use", None),
            Finish::ContentFilter => ("refusal", None),
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
    choices: Vec<WholeChoice>,
    totals: Totals,
    share: Share,
) -> Result<Response, FlowError> {
    let mut message = Message::new(request, totals);
    for choice in choices {
        message.stop = Stop::new(choice.finish, request);
        message.content = blocks(choice).map_err(FlowError::Serialize)?;
    }
    kept::json(&message, share)
}

fn blocks(choice: WholeChoice) -> Result<Vec<Block>, serde_json::Error> {
    let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
    let mut blocks = Vec::new();
    blocks.extend(non_empty(choice.reasoning).map(|thinking| Block::Thinking { thinking, signature: "" }));
    blocks.extend(non_empty(choice.content).map(|text| Block::Text { text }));
    for call in choice.calls {
        blocks.push(Block::ToolUse { id: call.id, name: call.name, input: input(&call.arguments)? });
    }
    Ok(blocks)
}

/// The arguments of a call as they are, if they are an object. Others, such as arguments that `max_tokens` cut, are one of
/// their own.
fn input(arguments: &str) -> Result<Box<RawValue>, serde_json::Error> {
    let text = arguments.trim();
    if text.is_empty() {
        return RawValue::from_string("{}".to_owned());
    }
    let is_object = text.starts_with('{') && serde_json::from_str::<&RawValue>(text).is_ok();
    match is_object {
        true => RawValue::from_string(text.to_owned()),
        false => serde_json::value::to_raw_value(&json!({"incomplete_arguments": arguments})),
    }
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

/// An event about a block.
#[derive(Debug, Serialize)]
struct BlockEvent<T> {
    #[serde(rename = "type")]
    kind: &'static str,
    index: usize,
    #[serde(flatten)]
    of: T,
}

#[derive(Debug, Serialize)]
struct Begun {
    content_block: Value,
}

#[derive(Debug, Serialize)]
struct Changed<'a> {
    delta: BlockDelta<'a>,
}

#[derive(Debug, Serialize)]
struct Nothing {}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum BlockDelta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

impl MessagesStreamWriter {
    pub(super) fn new(request: Arc<GenerationRequest>) -> Self {
        Self { request, has_begun: false, open: None, index: 0, finish: Finish::Length }
    }

    fn open(&mut self, out: &mut Pieces, next: OpenBlock, block: impl FnOnce() -> Value) {
        // Each call is a block of its own.
        if self.open == Some(next) && next != OpenBlock::Call {
            return;
        }
        self.close(out);
        self.open = Some(next);
        self.write(out, "content_block_start", Begun { content_block: block() });
    }

    fn close(&mut self, out: &mut Pieces) {
        if self.open.take().is_some() {
            self.write(out, "content_block_stop", Nothing {});
            self.index += 1;
        }
    }

    fn change(&self, out: &mut Pieces, delta: BlockDelta<'_>) {
        self.write(out, "content_block_delta", Changed { delta });
    }

    fn write<T: Serialize>(&self, out: &mut Pieces, kind: &'static str, of: T) {
        sse::write_named(out.next(), kind, &BlockEvent { kind, index: self.index, of });
    }
}

impl AnswerWriter for MessagesStreamWriter {
    fn begin(&mut self, out: &mut Pieces, _: usize) {
        if std::mem::replace(&mut self.has_begun, true) {
            return;
        }
        let totals = Totals { prompt_tokens: self.request.prompt_tokens(), ..Totals::default() };
        let message = Message::new(&self.request, totals);
        sse::write_named(out.next(), "message_start", &json!({"type": "message_start", "message": message}));
    }

    fn delta(&mut self, out: &mut Pieces, _: usize, delta: &AnswerDelta) {
        for part in &delta.parts {
            match part {
                AnswerPart::Reasoning(thinking) => {
                    self.open(
                        out,
                        OpenBlock::Thinking,
                        || json!({"type": "thinking", "thinking": "", "signature": ""}),
                    );
                    self.change(out, BlockDelta::Thinking { thinking });
                }
                AnswerPart::Content(text) => {
                    self.open(out, OpenBlock::Text, || json!({"type": "text", "text": ""}));
                    self.change(out, BlockDelta::Text { text });
                }
                AnswerPart::Call { id, name, .. } => {
                    self.open(out, OpenBlock::Call, || json!({"type": "tool_use", "id": id, "name": name, "input": {}}))
                }
                AnswerPart::Arguments { text, .. } => {
                    if !text.is_empty() {
                        self.change(out, BlockDelta::Input { partial_json: text });
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
        let delta = Stop::new(self.finish, &self.request);
        let delta = json!({"type": "message_delta", "delta": delta, "usage": MessagesUsage::from(totals)});
        sse::write_named(out.next(), "message_delta", &delta);
        sse::write_named(out.next(), "message_stop", &json!({"type": "message_stop"}));
    }

    fn fail(&mut self, out: &mut Pieces, error: &Answer) {
        let note = error.note();
        let (_, kind) = anthropic_error::of_answer(error.status().as_u16(), &note.code);
        sse::write_named(out.next(), "error", &anthropic_error::body(kind, &note.message));
    }

    /// Of a message that has begun, a `ping`.
    fn comment(&mut self, out: &mut Pieces, text: &str) {
        match self.has_begun {
            false => sse::say(out.next(), text),
            true => sse::write_named(out.next(), "ping", &json!({"type": "ping"})),
        }
    }
}
