//! A whole answer of the Messages API, and what its stream has of the same shapes.
use serde::Serialize;
use serde_json::value::RawValue;

use crate::wire::chat_answer::{ChatAnswer, Delta, Usage};
use crate::wire::stamp;

/// A message.
#[derive(Debug, Serialize)]
pub(super) struct Message<'a> {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) kind: &'static str,
    pub(super) role: &'static str,
    pub(super) model: &'a str,
    pub(super) content: Vec<Block>,
    pub(super) stop_reason: Option<&'static str>,
    /// Which of the stop sequences ended the text is not known.
    pub(super) stop_sequence: Option<&'static str>,
    pub(super) usage: UsageObject,
}

/// A content block.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
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

/// What was read from the cache is no part of `input_tokens`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct UsageObject {
    pub(super) input_tokens: u64,
    pub(super) cache_creation_input_tokens: u64,
    pub(super) cache_read_input_tokens: u64,
    pub(super) output_tokens: u64,
}

impl UsageObject {
    /// Of a message that begins.
    pub(super) fn begun(prompt_tokens: u64) -> Self {
        Self {
            input_tokens: prompt_tokens,
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: 0,
            output_tokens: 0,
        }
    }
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        let cached = usage.prompt_tokens_details.cached_tokens;
        Self {
            input_tokens: usage.prompt_tokens.saturating_sub(cached),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached,
            output_tokens: usage.completion_tokens,
        }
    }
}

impl<'a> Message<'a> {
    pub(super) fn new(model: &'a str, usage: UsageObject) -> Self {
        Self {
            id: stamp::id("msg_"),
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }
}

/// Of a chat's `finish_reason`.
pub(super) fn stop_reason(finish_reason: Option<&str>) -> &'static str {
    match finish_reason {
        Some("length") => "max_tokens",
        Some("tool_calls" | "function_call") => "tool_use",
        Some("content_filter") => "refusal",
        _ => "end_turn",
    }
}

/// # Errors
/// It cannot be written.
pub(super) fn whole(answer: ChatAnswer) -> Result<Vec<u8>, serde_json::Error> {
    let choice = answer.choices.into_iter().next().unwrap_or_default();
    let mut message = Message::new(&answer.model, answer.usage.unwrap_or_default().into());
    message.content = blocks(choice.delta)?;
    message.stop_reason = Some(stop_reason(choice.finish_reason.as_deref()));
    serde_json::to_vec(&message)
}

fn blocks(delta: Delta) -> Result<Vec<Block>, serde_json::Error> {
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let mut blocks = Vec::new();
    blocks.extend(said(delta.reasoning_content).map(|thinking| Block::Thinking { thinking, signature: "" }));
    blocks.extend(said(delta.content).map(|text| Block::Text { text }));
    blocks.extend(said(delta.refusal).map(|text| Block::Text { text }));
    for call in delta.tool_calls.unwrap_or_default() {
        let input = input(&call.function.arguments.unwrap_or_default())?;
        let id = call.id.unwrap_or_else(|| stamp::id("toolu_"));
        blocks.push(Block::ToolUse { id, name: call.function.name.unwrap_or_default(), input });
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
        false => serde_json::value::to_raw_value(&serde_json::json!({"incomplete_arguments": arguments})),
    }
}
