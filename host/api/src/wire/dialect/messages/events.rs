//! The events of a streamed message, from the chunks of a chat.
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{Message, UsageObject, stop_reason};
use crate::wire::chat_answer::{CallDelta, ChatAnswer, Choice, Stage, Usage};
use crate::wire::sse::{self, Pieces};
use crate::wire::{anthropic_error, stamp};

/// Writes the events of one message: `message_start`; for each content block what opens it, its deltas and what closes it;
/// `message_delta` with the reason and the usage; `message_stop`. One block is open at a time.
#[derive(Debug)]
pub(crate) struct Events {
    prompt_tokens: u64,
    stage: Stage,
    open: Option<OpenBlock>,
    /// Of the block that is open, or else of the next one.
    index: usize,
    finish_reason: Option<String>,
    usage: Option<Usage>,
}

/// Which block is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    /// The call with this index in the chat.
    Call(usize),
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

impl Events {
    pub(super) fn new(prompt_tokens: u64) -> Self {
        Self { prompt_tokens, stage: Stage::New, open: None, index: 0, finish_reason: None, usage: None }
    }

    pub(crate) fn ended(&self) -> bool {
        self.stage == Stage::Ended
    }

    /// A comment: of a message that has begun, a `ping`.
    pub(crate) fn comment(&self, out: &mut Pieces, text: &str) {
        match self.stage {
            Stage::New => sse::say(out.next(), text),
            Stage::Begun | Stage::Ended => sse::write_named(out.next(), "ping", &json!({"type": "ping"})),
        }
    }

    pub(crate) fn chunk(&mut self, out: &mut Pieces, chunk: ChatAnswer) {
        if let Some(error) = chunk.error {
            self.stage = Stage::Ended;
            let kind = anthropic_error::of_stream(&error);
            sse::write_named(out.next(), "error", &anthropic_error::body(kind, &error.message));
            return;
        }
        self.begin(out, &chunk.model);
        self.usage = chunk.usage.or(self.usage);
        if let Some(choice) = chunk.choices.into_iter().next() {
            self.choice(out, choice);
        }
    }

    /// The chat's last chunk was the one before.
    pub(crate) fn end(&mut self, out: &mut Pieces) {
        self.begin(out, "");
        self.close(out);
        let stop_reason = stop_reason(self.finish_reason.as_deref());
        let usage = self.usage.map_or(UsageObject::begun(self.prompt_tokens), UsageObject::from);
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": null},
            "usage": usage});
        sse::write_named(out.next(), "message_delta", &delta);
        sse::write_named(out.next(), "message_stop", &json!({"type": "message_stop"}));
        self.stage = Stage::Ended;
    }

    fn begin(&mut self, out: &mut Pieces, model: &str) {
        if !self.stage.begin() {
            return;
        }
        let message = Message::new(model, UsageObject::begun(self.prompt_tokens));
        sse::write_named(out.next(), "message_start", &json!({"type": "message_start", "message": message}));
    }

    fn choice(&mut self, out: &mut Pieces, choice: Choice) {
        let Choice { delta, finish_reason, .. } = choice;
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(thinking) = said(delta.reasoning_content) {
            self.turn_to(out, OpenBlock::Thinking, || json!({"type": "thinking", "thinking": "", "signature": ""}));
            self.delta(out, BlockDelta::Thinking { thinking: &thinking });
        }
        for text in [said(delta.content), said(delta.refusal)].into_iter().flatten() {
            self.turn_to(out, OpenBlock::Text, || json!({"type": "text", "text": ""}));
            self.delta(out, BlockDelta::Text { text: &text });
        }
        for (position, call) in delta.tool_calls.unwrap_or_default().into_iter().enumerate() {
            self.call(out, call, position);
        }
        self.finish_reason = finish_reason.or(self.finish_reason.take());
    }

    fn call(&mut self, out: &mut Pieces, call: CallDelta, position: usize) {
        let (name, call_id) = (call.function.name, call.id);
        self.turn_to(out, OpenBlock::Call(call.index.unwrap_or(position)), || {
            let (call_id, name) = (call_id.unwrap_or_else(|| stamp::id("toolu_")), name.unwrap_or_default());
            json!({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        });
        if let Some(partial_json) = call.function.arguments.filter(|more| !more.is_empty()) {
            self.delta(out, BlockDelta::Input { partial_json: &partial_json });
        }
    }

    fn turn_to(&mut self, out: &mut Pieces, next: OpenBlock, block: impl FnOnce() -> Value) {
        if self.open == Some(next) {
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

    fn delta(&self, out: &mut Pieces, delta: BlockDelta<'_>) {
        self.write(out, "content_block_delta", Changed { delta });
    }

    fn write<T: Serialize>(&self, out: &mut Pieces, kind: &'static str, of: T) {
        sse::write_named(out.next(), kind, &BlockEvent { kind, index: self.index, of });
    }
}
