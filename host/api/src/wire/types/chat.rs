//! `/v1/chat/completions`.
use std::collections::BTreeMap;

use camshaft_core::limits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::generation::{ChoiceNote, FinishReason, GenerationFields, Usage, present};

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ChatRequest {
    #[schemars(length(min = 1, max = limits::MESSAGES))]
    pub(crate) messages: Vec<ChatMessage>,
    /// Log-probabilities of the tokens.
    pub(crate) logprobs: Option<bool>,
    /// Alternatives of each token; only with `logprobs`.
    #[schemars(range(min = limits::TOP_LOGPROBS.min, max = limits::TOP_LOGPROBS.max))]
    pub(crate) top_logprobs: Option<u32>,
    /// Variables for the model's chat template.
    #[schemars(extend("x-own" = true))]
    pub(crate) chat_template_kwargs: Option<BTreeMap<String, Value>>,
    /// False: the prompt ends behind the last message.
    #[schemars(extend("x-own" = true))]
    pub(crate) add_generation_prompt: Option<bool>,
    /// The answer continues the last message, which is the assistant's.
    #[schemars(extend("x-own" = true))]
    pub(crate) continue_final_message: Option<bool>,
    /// Functions that the answer may call.
    #[schemars(length(max = limits::TOOLS))]
    pub(crate) tools: Option<Vec<Tool>>,
    pub(crate) tool_choice: Option<ToolChoice>,
    /// Whether an answer may have several calls; by default it may.
    pub(crate) parallel_tool_calls: Option<bool>,
    /// `none`, `minimal`, `low`, `medium`, `high` or `xhigh`, for templates that know it.
    pub(crate) reasoning_effort: Option<String>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) functions: Option<Vec<Value>>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) audio: Option<Value>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) prediction: Option<Value>,
    #[schemars(extend("x-support" = "refused"))]
    pub(crate) web_search_options: Option<Value>,
    /// Other modalities than text are refused.
    pub(crate) modalities: Option<Vec<String>>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) function_call: Option<Value>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) verbosity: Option<String>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) store: Option<bool>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) service_tier: Option<String>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) prompt_cache_retention: Option<String>,
    #[serde(flatten)]
    pub(crate) generation: GenerationFields,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ChatMessage {
    pub(crate) role: Role,
    /// Required, but of the assistant's.
    pub(crate) content: Option<Content>,
    /// Of a tool's message, the function. Ignored in others.
    pub(crate) name: Option<String>,
    /// Of the assistant's: what it thought.
    #[schemars(extend("x-own" = true))]
    pub(crate) reasoning_content: Option<String>,
    /// Of the assistant's.
    #[schemars(length(max = limits::CALLS))]
    pub(crate) tool_calls: Option<Vec<ToolCall>>,
    /// Of a tool's: the call that it answers.
    pub(crate) tool_call_id: Option<String>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Tool {
    /// `function`.
    pub(crate) r#type: String,
    pub(crate) function: Function,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Function {
    #[schemars(length(min = 1, max = limits::TOOL_NAME_BYTES))]
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON Schema of an object; by default, of one without members.
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Refuse the request if the arguments cannot be held to the schema.
    pub(crate) strict: Option<bool>,
}

/// `none`, `auto` or `required`; a function that must be called; or those that may.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ToolChoice {
    Mode(String),
    Chosen(ChosenTools),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ChosenTools {
    /// `function` or `allowed_tools`.
    pub(crate) r#type: String,
    pub(crate) function: Option<NamedFunction>,
    pub(crate) allowed_tools: Option<AllowedTools>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AllowedTools {
    /// `auto` or `required`.
    pub(crate) mode: Option<String>,
    pub(crate) tools: Vec<AllowedTool>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AllowedTool {
    /// `function`.
    pub(crate) r#type: String,
    pub(crate) function: NamedFunction,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NamedFunction {
    pub(crate) name: String,
}

/// A call of a function.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ToolCall {
    pub(crate) id: String,
    /// `function`.
    pub(crate) r#type: String,
    pub(crate) function: CalledFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CalledFunction {
    pub(crate) name: String,
    /// The JSON of an object; of a call that was cut, of its beginning.
    pub(crate) arguments: String,
}

/// A part of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallDelta {
    /// Which of the answer's calls it is part of.
    pub(crate) index: u64,
    /// Of the first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// `function`, of the first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<String>,
    pub(crate) function: FunctionDelta,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FunctionDelta {
    /// Of the first part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    pub(crate) arguments: String,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Content {
    Text(String),
    /// Their texts are joined.
    Parts(Vec<TextPart>),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct TextPart {
    /// `text`.
    pub(crate) r#type: String,
    pub(crate) text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatCompletion {
    pub(crate) id: String,
    /// `chat.completion`.
    pub(crate) object: String,
    /// Seconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: String,
    /// That the request named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<String>,
    pub(crate) choices: Vec<ChatChoice>,
    pub(crate) usage: Usage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatChoice {
    pub(crate) index: u64,
    pub(crate) message: Answer,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: FinishReason,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) camshaft: Option<ChoiceNote>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    /// `assistant`.
    pub(crate) role: String,
    /// Null where there are calls only.
    pub(crate) content: Option<String>,
    pub(crate) refusal: Option<String>,
    /// What the model thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<ToolCall>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatLogprobs {
    pub(crate) content: Vec<ScoredToken>,
    pub(crate) refusal: Option<Vec<ScoredToken>>,
}

/// A token with its log-probability before any sampler; -9999 stands for a probability of 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScoredToken {
    pub(crate) token: String,
    pub(crate) logprob: f64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) top_logprobs: Vec<Alternative>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Alternative {
    pub(crate) token: String,
    pub(crate) logprob: f64,
    pub(crate) bytes: Vec<u8>,
}

/// An event of a streamed answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatChunk {
    pub(crate) id: String,
    /// `chat.completion.chunk`.
    pub(crate) object: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    pub(crate) system_fingerprint: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) session_id: Option<String>,
    pub(crate) choices: Vec<ChatChunkChoice>,
    /// Null but in the last chunk, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub(crate) usage: Option<Option<Usage>>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatChunkChoice {
    pub(crate) index: u64,
    pub(crate) delta: Delta,
    pub(crate) logprobs: Option<ChatLogprobs>,
    pub(crate) finish_reason: Option<FinishReason>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) camshaft: Option<ChoiceNote>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Delta {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<String>,
    /// One.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) tool_calls: Option<Vec<CallDelta>>,
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub(crate) refusal: Option<Option<String>>,
}
