//! `/v1/messages` and `/v1/messages/count_tokens`.
use std::fmt;

use camshaft_core::limits;
use garde::Validate;
use schemars::{JsonSchema, Schema};
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use serde_with::skip_serializing_none;

use super::chat::ReasoningEffort;
use super::events;
use super::generation::GenerationFields;
use super::values::{TextOrList, TextOrObject, Whole};
use crate::wire::error::MessageErrorObject;
use crate::wire::read::request;

/// Of a message, the tokens to generate are required.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = require_max_tokens)]
pub(crate) struct MessagesRequest {
    #[serde(flatten)]
    pub(crate) fields: CountTokensRequest,
}

fn require_max_tokens(schema: &mut Schema) {
    if let Value::Array(required) = schema.ensure_object().entry("required").or_insert_with(|| json!([])) {
        required.push("max_tokens".into());
    }
}

request! {
    /// A conversation, whose answer is generated or whose tokens are counted. A chat's fields that this API lacks are the chat's here, too.
    CountTokensRequest {
        /// The answer continues a last one of the assistant's, which must be a text.
        #[garde(required, length(min = 1, max = limits::MESSAGES))]
        messages: Vec<ConversationMessage>,
        /// The first message.
        system: TextOrList<MessageBlock>,
        /// Texts before which the answer ends.
        #[garde(length(max = limits::STOP_STRINGS), inner(inner(length(min = 1, max = limits::STOP_BYTES))))]
        stop_sequences: Vec<String>,
        /// Tools of Anthropic's own server are left out.
        #[garde(length(max = limits::TOOLS))]
        tools: Vec<MessagesTool>,
        tool_choice: MessagesToolChoice,
        #[garde(dive)]
        thinking: Thinking,
        output_config: OutputConfig,
        metadata: MessagesMetadata,
        /// One.
        #[garde(range(min = 1.0, max = 1.0))]
        n: Whole,
        /// One.
        #[garde(range(min = 1.0, max = 1.0))]
        best_of: Whole,
    }
    own {
        /// Variables for the model's chat template.
        chat_template_kwargs: Map<String, Value>,
        /// Tokens that the answer may spend on thinking; -1: any number.
        #[garde(range(min = limits::THINKING_BUDGET.min, max = limits::THINKING_BUDGET.max))]
        thinking_budget: Whole,
    }
    ignored {
        service_tier: "Option<String>",
        /// Conversations are not edited.
        context_management: "Option<Map<String, Value>>",
        /// The last events carry the usage in any case.
        stream_options: "Option<Map<String, Value>>",
    }
    refused {
        mcp_servers: "Option<Vec<Value>>", "is not supported: this server calls no tools by itself";
        container: "Option<String>", "is not supported: this server runs no code";
        thread: "Option<Map<String, Value>>", "is not supported: this server keeps no conversations, so send all of it";
        max_completion_tokens: "Option<u32>", "is no field of this endpoint: use max_tokens";
        stop: "Option<Vec<String>>", "is no field of this endpoint: use stop_sequences";
        response_format: "Option<Map<String, Value>>", "is no field of this endpoint: use output_config.format";
        reasoning_effort: "Option<String>", "is no field of this endpoint: use output_config.effort";
        functions: "Option<Vec<Value>>", "is no field of this endpoint: use tools";
        function_call: "Option<String>", "is no field of this endpoint: use tool_choice";
        parallel_tool_calls: "Option<bool>", "is no field of this endpoint: use tool_choice.disable_parallel_tool_use";
        logprobs: "Option<bool>", "is no field of this endpoint: use /v1/chat/completions";
        top_logprobs: "Option<u32>", "is no field of this endpoint: use /v1/chat/completions";
    }
    with generation: GenerationFields
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ConversationMessage {
    pub(crate) role: MessageRole,
    pub(crate) content: TextOrList<MessageBlock>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MessageRole {
    User,
    Assistant,
    /// As the field `system`, in its place.
    System,
}

/// A block of a message, of which each type has some of these fields.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct MessageBlock {
    /// `text`, `thinking`, `tool_use`, `tool_result`, `document` and `search_result` of texts. What only Anthropic's server can read is
    /// left out: `redacted_thinking`, its own tools' calls and results, `tool_reference`.
    pub(crate) r#type: String,
    pub(crate) text: Option<String>,
    pub(crate) thinking: Option<String>,
    /// Of a call.
    pub(crate) id: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) input: Option<Map<String, Value>>,
    /// Of a result.
    pub(crate) tool_use_id: Option<String>,
    pub(crate) content: Option<BlockContent>,
    /// The model reads from the text that it is an error.
    pub(crate) is_error: Option<bool>,
    /// Of a document.
    pub(crate) source: Option<TextOrObject<DocumentSource>>,
    pub(crate) title: Option<String>,
}

/// What a block contains; what Anthropic's own tools answer is not read.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum BlockContent {
    Text(String),
    Blocks(Vec<MessageBlock>),
    Other(Map<String, Value>),
}

impl<'de> Deserialize<'de> for BlockContent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;

        impl<'de> Visitor<'de> for Kinds {
            type Value = BlockContent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of content blocks")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<BlockContent, E> {
                Ok(BlockContent::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<BlockContent, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(access)).map(BlockContent::Blocks)
            }

            fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<BlockContent, A::Error> {
                Map::deserialize(MapAccessDeserializer::new(access)).map(BlockContent::Other)
            }
        }

        deserializer.deserialize_any(Kinds)
    }
}

/// A text, or blocks of it.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct DocumentSource {
    /// `text` or `content`.
    pub(crate) r#type: String,
    pub(crate) data: Option<String>,
    pub(crate) content: Option<BlockContent>,
}

/// A tool that the client calls for the model.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessagesTool {
    /// `custom`; others are left out.
    pub(crate) r#type: Option<String>,
    /// Required of `custom`.
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// A JSON schema.
    pub(crate) input_schema: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessagesToolChoice {
    pub(crate) r#type: MessagesToolChoiceType,
    /// With `tool`.
    pub(crate) name: Option<String>,
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MessagesToolChoiceType {
    Auto,
    Any,
    Tool,
    None,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct Thinking {
    pub(crate) r#type: ThinkingType,
    /// With `enabled`: the more, the more effort.
    #[garde(
        range(min = limits::THINKING_TOKENS.min, max = limits::THINKING_TOKENS.max),
        custom(when_enabled(self.r#type))
    )]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) budget_tokens: Option<Whole>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ThinkingType {
    Enabled,
    Adaptive,
    Disabled,
}

fn when_enabled(of: ThinkingType) -> impl FnOnce(&Option<Whole>, &()) -> garde::Result {
    move |budget, &()| match (of, budget) {
        (ThinkingType::Enabled, None) => Err(garde::Error::new("is required")),
        _ => Ok(()),
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OutputConfig {
    pub(crate) effort: Option<ReasoningEffort>,
    pub(crate) format: Option<OutputFormat>,
}

#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OutputFormat {
    pub(crate) r#type: OutputFormatType,
    /// A JSON schema.
    pub(crate) schema: Map<String, Value>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OutputFormatType {
    JsonSchema,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessagesMetadata {
    /// The end user. A hash of it is logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user_id: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Message<'a> {
    pub(crate) id: String,
    /// `message`.
    pub(crate) r#type: &'static str,
    /// `assistant`.
    pub(crate) role: &'static str,
    pub(crate) model: &'a str,
    pub(crate) content: Vec<ContentBlock<'a>>,
    #[serde(flatten)]
    pub(crate) end: MessageEnd<'a>,
    pub(crate) usage: MessageUsage,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum ContentBlock<'a> {
    Thinking {
        thinking: &'a str,
        /// Empty.
        signature: &'static str,
    },
    Text {
        text: &'a str,
    },
    ToolUse {
        id: &'a str,
        name: &'a str,
        #[schemars(with = "Map<String, Value>")]
        input: Box<RawValue>,
    },
}

/// Why a message ended, and the stop sequence if one ended it; both null of one that goes on.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct MessageEnd<'a> {
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) stop_sequence: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    EndTurn,
    StopSequence,
    MaxTokens,
    ToolUse,
    Refusal,
}

/// What was found in the cache is no part of `input_tokens`.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct MessageUsage {
    pub(crate) input_tokens: u64,
    pub(crate) cache_creation_input_tokens: u64,
    pub(crate) cache_read_input_tokens: u64,
    pub(crate) output_tokens: u64,
}

events! {
    /// An event of a streamed message, which also has its type as its name. `error` is the last one of a stream that fails.
    MessageEvent {
        "message_start" MessageStart { message: Message<'a> }
        "content_block_start" BlockStart { index: usize, content_block: ContentBlock<'a> }
        "content_block_delta" BlockDelta { index: usize, delta: PartDelta<'a> }
        "content_block_stop" BlockStop { index: usize }
        "message_delta" MessageDelta { delta: MessageEnd<'a>, usage: MessageUsage }
        "message_stop" MessageStop {}
        "ping" Ping {}
        "error" Error { error: MessageErrorObject<'a>, request_id: &'a str }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type")]
pub(crate) enum PartDelta<'a> {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: &'a str },
    #[serde(rename = "text_delta")]
    Text { text: &'a str },
    /// A part of the text of the input.
    #[serde(rename = "input_json_delta")]
    Input { partial_json: &'a str },
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CountedTokens {
    pub(crate) input_tokens: u64,
}
