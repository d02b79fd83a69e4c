//! `/v1/responses`.
use std::collections::BTreeMap;

use camshaft_core::limits;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Number, Value};

use super::chat::ScoredToken;
use super::generation::GenerationFields;
use super::refused::{self, Refused, RefusedFields};

pub(crate) const STATELESS: &str = "this server stores no responses; send the whole conversation as input";

/// What the endpoint refuses wherever it comes.
pub(crate) const REFUSED: &RefusedFields = &[
    ("previous_response_id", Refused::Unsupported(STATELESS)),
    ("conversation", Refused::Unsupported(STATELESS)),
    ("prompt", Refused::Unsupported("this server stores no prompts; send instructions and input")),
    ("context_management", Refused::Unsupported("conversations are not compacted")),
    ("messages", Refused::Foreign("input")),
    ("max_tokens", Refused::Foreign("max_output_tokens")),
    ("max_completion_tokens", Refused::Foreign("max_output_tokens")),
    ("response_format", Refused::Foreign("text.format")),
    ("reasoning_effort", Refused::Foreign("reasoning.effort")),
    ("functions", Refused::Foreign("tools")),
    ("function_call", Refused::Foreign("tool_choice")),
    ("logprobs", Refused::Foreign("include with message.output_text.logprobs")),
    ("n", Refused::Foreign("several requests")),
];

fn describe_others(schema: &mut Schema) {
    refused::describe(schema, REFUSED);
    // The last event carries the usage, whether or not a chat's options ask for it.
    refused::describe_ignored(schema, "stream_options");
}

/// A chat's fields that this API lacks are the chat's here, too.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(transform = describe_others)]
pub(crate) struct ResponsesRequest {
    pub(crate) input: ResponsesInput,
    /// The first message, of role `system`.
    pub(crate) instructions: Option<String>,
    /// Tokens to generate at most; by default `limits.max-tokens`.
    #[schemars(range(min = 1))]
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) tools: Option<Vec<ResponsesTool>>,
    /// `auto`, `none`, `required`, or an object of type `function` or `allowed_tools`.
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) text: Option<TextOptions>,
    pub(crate) reasoning: Option<ReasoningOptions>,
    /// `message.output_text.logprobs` asks for log-probabilities; anything else has no effect.
    pub(crate) include: Option<Vec<String>>,
    /// Alternatives of each token.
    #[schemars(range(min = limits::TOP_LOGPROBS.min, max = limits::TOP_LOGPROBS.max))]
    pub(crate) top_logprobs: Option<u32>,
    /// Repeated by the answer.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Repeated by the answer; no tool is called here.
    pub(crate) max_tool_calls: Option<u32>,
    /// Repeated by the answer.
    pub(crate) service_tier: Option<String>,
    /// Whatever it is, nothing is stored.
    pub(crate) store: Option<bool>,
    /// True is refused.
    pub(crate) background: Option<bool>,
    /// `disabled`.
    pub(crate) truncation: Option<String>,
    /// Variables for the model's chat template.
    #[schemars(extend("x-own" = true))]
    pub(crate) chat_template_kwargs: Option<BTreeMap<String, Value>>,
    #[serde(flatten)]
    pub(crate) generation: GenerationFields,
}

/// A user's text, or the items of a conversation.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ResponsesInput {
    Text(String),
    Items(#[schemars(length(min = 1))] Vec<InputItem>),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum InputItem {
    Typed(TypedItem),
    /// A message may come without its type.
    Message(InputMessage),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum TypedItem {
    Message(InputMessage),
    /// A call of an earlier answer.
    FunctionCall {
        call_id: String,
        name: String,
        /// JSON.
        arguments: String,
    },
    FunctionCallOutput {
        call_id: String,
        output: InputContent,
    },
    /// What the model thought in an earlier answer.
    Reasoning {
        summary: Option<Vec<ReasoningText>>,
        content: Option<Vec<ReasoningText>>,
    },
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct InputMessage {
    pub(crate) role: super::chat::Role,
    pub(crate) content: InputContent,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum InputContent {
    Text(String),
    Parts(Vec<InputPart>),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum InputPart {
    InputText { text: String },
    OutputText { text: String },
    Refusal { refusal: String },
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ReasoningText {
    pub(crate) text: String,
}

/// A function that the client calls for the model.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ResponsesTool {
    /// `function`.
    pub(crate) r#type: String,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// A JSON schema.
    pub(crate) parameters: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct TextOptions {
    /// Of type `text`, `json_object` or `json_schema`.
    pub(crate) format: Option<Map<String, Value>>,
    pub(crate) verbosity: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ReasoningOptions {
    /// `none`, `minimal`, `low`, `medium`, `high`, `xhigh` or `max`.
    pub(crate) effort: Option<String>,
    /// No effect: the whole reasoning is in the answer.
    pub(crate) summary: Option<String>,
}

/// A response, complete or not. From `background` on, what it repeats of the request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Response {
    pub(crate) id: String,
    /// `response`.
    pub(crate) object: String,
    /// Seconds since the Unix epoch.
    pub(crate) created_at: u64,
    pub(crate) model: String,
    pub(crate) status: ResponseStatus,
    pub(crate) error: Option<ResponseError>,
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    pub(crate) output: Vec<OutputItem>,
    pub(crate) usage: Option<ResponseUsage>,
    pub(crate) background: bool,
    pub(crate) previous_response_id: Option<String>,
    pub(crate) store: bool,
    pub(crate) truncation: String,
    pub(crate) user: Option<String>,
    pub(crate) safety_identifier: Option<String>,
    pub(crate) prompt_cache_key: Option<String>,
    pub(crate) service_tier: Option<String>,
    pub(crate) temperature: Option<Number>,
    pub(crate) top_p: Option<Number>,
    pub(crate) max_output_tokens: Option<Number>,
    pub(crate) max_tool_calls: Option<Number>,
    pub(crate) top_logprobs: Option<Number>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) instructions: Option<String>,
    pub(crate) tools: Vec<Value>,
    pub(crate) tool_choice: Value,
    pub(crate) text: Map<String, Value>,
    pub(crate) reasoning: RepeatedReasoning,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseError {
    /// `server_error`, `rate_limit_exceeded` or `invalid_prompt`.
    pub(crate) code: String,
    pub(crate) message: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct IncompleteDetails {
    /// `max_output_tokens` or `content_filter`.
    pub(crate) reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RepeatedReasoning {
    pub(crate) effort: Option<String>,
    pub(crate) summary: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum OutputItem {
    Reasoning {
        id: String,
        /// Empty: the whole reasoning is in `content`.
        summary: Vec<Value>,
        content: Vec<OutputPart>,
        status: ResponseStatus,
    },
    Message {
        id: String,
        status: ResponseStatus,
        /// `assistant`.
        role: String,
        content: Vec<OutputPart>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        /// JSON.
        arguments: String,
        status: ResponseStatus,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum OutputPart {
    ReasoningText {
        text: String,
    },
    OutputText {
        text: String,
        /// Empty.
        annotations: Vec<Value>,
        logprobs: Vec<ScoredToken>,
    },
    Refusal {
        refusal: String,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResponseUsage {
    pub(crate) input_tokens: u64,
    pub(crate) input_tokens_details: InputTokens,
    pub(crate) output_tokens: u64,
    pub(crate) output_tokens_details: OutputTokens,
    pub(crate) total_tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputTokens {
    pub(crate) cached_tokens: u64,
    pub(crate) cache_write_tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputTokens {
    pub(crate) reasoning_tokens: u64,
}
