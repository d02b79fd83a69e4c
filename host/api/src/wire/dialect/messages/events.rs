//! The events of a streamed message, from the chunks of a chat.
use serde::Serialize;
use serde_json::{Value, json};

use super::answer::{Message, UsageObject, id, stop_reason};
use crate::wire::chat_answer::{CallDelta, ChatAnswer, Choice, Usage};
use crate::wire::{anthropic_error, sse};

/// Writes the events of one message: `message_start`; for each content block what opens it, its deltas and what closes it;
/// `message_delta` with the reason and the usage; `message_stop`. One block is open at a time.
#[derive(Debug)]
pub(crate) struct Events {
    prompt_tokens: u64,
    doing: Doing,
    begun: bool,
    ended: bool,
    /// Of the block that is open, or comes next.
    index: usize,
    finish_reason: Option<String>,
    usage: Option<Usage>,
}

/// Which block is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Thinking,
    Saying,
    /// The call with this index in the chat.
    Calling(usize),
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
        Self {
            prompt_tokens,
            doing: Doing::Nothing,
            begun: false,
            ended: false,
            index: 0,
            finish_reason: None,
            usage: None,
        }
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// A comment: of a message that has begun, a `ping`.
    pub(crate) fn comment(&self, out: &mut Vec<u8>, text: &str) {
        match self.begun {
            true => sse::write_named(out, "ping", &json!({"type": "ping"})),
            false => sse::say(out, text),
        }
    }

    pub(crate) fn chunk(&mut self, out: &mut Vec<u8>, chunk: ChatAnswer) {
        if let Some(error) = chunk.error {
            self.ended = true;
            let kind = anthropic_error::of_stream(&error);
            sse::write_named(out, "error", &anthropic_error::body(kind, &error.message));
            return;
        }
        self.begin(out, &chunk.model);
        self.usage = chunk.usage.or(self.usage);
        if let Some(choice) = chunk.choices.into_iter().next() {
            self.choice(out, choice);
        }
    }

    /// The chat's last chunk was the one before.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) {
        self.begin(out, "");
        self.close(out);
        let stop_reason = stop_reason(self.finish_reason.as_deref());
        let usage = self.usage.map_or(UsageObject::begun(self.prompt_tokens), UsageObject::from);
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": stop_reason, "stop_sequence": null},
            "usage": usage});
        sse::write_named(out, "message_delta", &delta);
        sse::write_named(out, "message_stop", &json!({"type": "message_stop"}));
        self.ended = true;
    }

    fn begin(&mut self, out: &mut Vec<u8>, model: &str) {
        if std::mem::replace(&mut self.begun, true) {
            return;
        }
        let message = Message::new(model, UsageObject::begun(self.prompt_tokens));
        sse::write_named(out, "message_start", &json!({"type": "message_start", "message": message}));
    }

    fn choice(&mut self, out: &mut Vec<u8>, choice: Choice) {
        let Choice { delta, finish_reason, .. } = choice;
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(thinking) = said(delta.reasoning_content) {
            self.turn_to(out, Doing::Thinking, || json!({"type": "thinking", "thinking": "", "signature": ""}));
            self.delta(out, BlockDelta::Thinking { thinking: &thinking });
        }
        for text in [said(delta.content), said(delta.refusal)].into_iter().flatten() {
            self.turn_to(out, Doing::Saying, || json!({"type": "text", "text": ""}));
            self.delta(out, BlockDelta::Text { text: &text });
        }
        for (position, call) in delta.tool_calls.unwrap_or_default().into_iter().enumerate() {
            self.call(out, call, position);
        }
        self.finish_reason = finish_reason.or(self.finish_reason.take());
    }

    fn call(&mut self, out: &mut Vec<u8>, call: CallDelta, position: usize) {
        let (name, call_id) = (call.function.name, call.id);
        self.turn_to(out, Doing::Calling(call.index.unwrap_or(position)), || {
            let (call_id, name) = (call_id.unwrap_or_else(|| id("toolu")), name.unwrap_or_default());
            json!({"type": "tool_use", "id": call_id, "name": name, "input": {}})
        });
        if let Some(partial_json) = call.function.arguments.filter(|more| !more.is_empty()) {
            self.delta(out, BlockDelta::Input { partial_json: &partial_json });
        }
    }

    fn turn_to(&mut self, out: &mut Vec<u8>, next: Doing, block: impl FnOnce() -> Value) {
        if self.doing == next {
            return;
        }
        self.close(out);
        self.doing = next;
        self.write(out, "content_block_start", Begun { content_block: block() });
    }

    fn close(&mut self, out: &mut Vec<u8>) {
        if std::mem::replace(&mut self.doing, Doing::Nothing) != Doing::Nothing {
            self.write(out, "content_block_stop", Nothing {});
            self.index += 1;
        }
    }

    fn delta(&self, out: &mut Vec<u8>, delta: BlockDelta<'_>) {
        self.write(out, "content_block_delta", Changed { delta });
    }

    fn write<T: Serialize>(&self, out: &mut Vec<u8>, kind: &'static str, of: T) {
        sse::write_named(out, kind, &BlockEvent { kind, index: self.index, of });
    }
}
