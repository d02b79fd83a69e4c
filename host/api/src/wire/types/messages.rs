//! `/v1/messages` and `/v1/messages/count_tokens`.
use camshaft_core::limits;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::generation::GenerationFields;
use super::refused::{self, Refused, RefusedFields};

/// What the endpoints refuse wherever it comes.
pub(crate) const REFUSED: &RefusedFields = &[
    ("mcp_servers", Refused::Unsupported("this server calls no tools by itself")),
    ("container", Refused::Unsupported("this server runs no code")),
    ("thread", Refused::Unsupported("this server keeps no conversations, so send all of it")),
    ("context_management", Refused::Unsupported("conversations are not edited")),
    ("max_completion_tokens", Refused::Foreign("max_tokens")),
    ("stop", Refused::Foreign("stop_sequences")),
    ("response_format", Refused::Foreign("output_config.format")),
    ("reasoning_effort", Refused::Foreign("output_config.effort")),
    ("functions", Refused::Foreign("tools")),
    ("function_call", Refused::Foreign("tool_choice")),
    ("parallel_tool_calls", Refused::Foreign("tool_choice.disable_parallel_tool_use")),
    ("stream_options", Refused::Foreign("stream: the last events carry the usage")),
    ("logprobs", Refused::Foreign("/v1/chat/completions")),
    ("top_logprobs", Refused::Foreign("/v1/chat/completions")),
    ("n", Refused::Foreign("several requests")),
];

fn describe_refused(schema: &mut Schema) {
    refused::describe(schema, REFUSED);
}

fn require_max_tokens(schema: &mut Schema) {
    if let Value::Array(required) = schema.ensure_object().entry("required").or_insert_with(|| json!([])) {
        required.push("max_tokens".into());
    }
}

/// A chat's fields that this API lacks are the chat's here, too.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = require_max_tokens)]
pub(crate) struct MessagesRequest {
    #[serde(flatten)]
    pub(crate) fields: CountTokensRequest,
}

/// As `/v1/messages` has them.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = describe_refused)]
pub(crate) struct CountTokensRequest {
    /// The answer continues a last one of the assistant's, which must be a text.
    #[schemars(length(min = 1, max = limits::MESSAGES))]
    pub(crate) messages: Vec<ConversationMessage>,
    /// The first message.
    pub(crate) system: Option<MessageContent>,
    /// Texts before which the answer ends.
    #[schemars(length(max = limits::STOP_STRINGS))]
    pub(crate) stop_sequences: Option<Vec<String>>,
    pub(crate) tools: Option<Vec<MessagesTool>>,
    pub(crate) tool_choice: Option<MessagesToolChoice>,
    pub(crate) thinking: Option<Thinking>,
    pub(crate) output_config: Option<OutputConfig>,
    pub(crate) metadata: Option<MessagesMetadata>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) service_tier: Option<String>,
    /// Variables for the model's chat template.
    #[schemars(extend("x-own" = true))]
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(flatten)]
    pub(crate) generation: GenerationFields,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ConversationMessage {
    pub(crate) role: MessageRole,
    pub(crate) content: MessageContent,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MessageRole {
    User,
    Assistant,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum MessageContent {
    Text(String),
    Blocks(Vec<MessageBlock>),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum MessageBlock {
    Text {
        text: String,
    },
    /// Of the assistant.
    Thinking {
        thinking: String,
    },
    /// Left out.
    RedactedThinking {
        data: Option<String>,
    },
    /// Of the assistant.
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
    /// Of the user: a text or text blocks.
    ToolResult {
        tool_use_id: String,
        content: Option<Value>,
        is_error: Option<bool>,
    },
}

/// A tool that the client calls for the model.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessagesTool {
    /// `custom`.
    pub(crate) r#type: Option<String>,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A JSON schema.
    pub(crate) input_schema: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessagesToolChoice {
    /// `auto`, `any`, `tool` or `none`.
    pub(crate) r#type: String,
    /// With `tool`.
    pub(crate) name: Option<String>,
    pub(crate) disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Thinking {
    /// `enabled`, `adaptive` or `disabled`.
    pub(crate) r#type: String,
    /// With `enabled`: the more, the more effort.
    #[schemars(range(min = limits::THINKING_TOKENS.min, max = limits::THINKING_TOKENS.max))]
    pub(crate) budget_tokens: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct OutputConfig {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    pub(crate) effort: Option<String>,
    /// Of type `json_schema`.
    pub(crate) format: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessagesMetadata {
    /// The end user. A hash of it is logged.
    pub(crate) user_id: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Message {
    pub(crate) id: String,
    /// `message`.
    pub(crate) r#type: String,
    /// `assistant`.
    pub(crate) role: String,
    pub(crate) model: String,
    pub(crate) content: Vec<ContentBlock>,
    pub(crate) stop_reason: Option<StopReason>,
    /// Null: which of the sequences ended the text is not known.
    pub(crate) stop_sequence: Option<String>,
    pub(crate) usage: MessageUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ContentBlock {
    Thinking {
        thinking: String,
        /// Empty.
        signature: String,
    },
    Text {
        text: String,
    },
    ToolUse {
        id: String,
        name: String,
        input: Map<String, Value>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum StopReason {
    EndTurn,
    MaxTokens,
    ToolUse,
    Refusal,
}

/// What was found in the cache is no part of `input_tokens`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageUsage {
    pub(crate) input_tokens: u64,
    pub(crate) cache_creation_input_tokens: u64,
    pub(crate) cache_read_input_tokens: u64,
    pub(crate) output_tokens: u64,
}

/// An event of a streamed message, which also has its type as its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum MessageEvent {
    MessageStart {
        message: Message,
    },
    ContentBlockStart {
        index: u64,
        content_block: ContentBlock,
    },
    ContentBlockDelta {
        index: u64,
        delta: BlockDelta,
    },
    ContentBlockStop {
        index: u64,
    },
    MessageDelta {
        delta: MessageEnd,
        usage: MessageUsage,
    },
    MessageStop {},
    Ping {},
    /// The last one of a stream that fails.
    Error {
        error: MessageErrorObject,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", deny_unknown_fields)]
pub(crate) enum BlockDelta {
    #[serde(rename = "thinking_delta")]
    Thinking { thinking: String },
    #[serde(rename = "text_delta")]
    Text { text: String },
    /// A part of the text of the input.
    #[serde(rename = "input_json_delta")]
    Input { partial_json: String },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageEnd {
    pub(crate) stop_reason: Option<StopReason>,
    pub(crate) stop_sequence: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CountedTokens {
    pub(crate) input_tokens: u64,
}

/// An error on any path of this API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageErrorResponse {
    /// `error`.
    pub(crate) r#type: String,
    pub(crate) error: MessageErrorObject,
    pub(crate) request_id: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageErrorObject {
    pub(crate) r#type: String,
    pub(crate) message: String,
    /// Of an error about `thread`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) details: Option<MessageErrorDetails>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageErrorDetails {
    /// `thread_unsupported_request`
    pub(crate) error_code: String,
}
