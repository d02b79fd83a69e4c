//! `/v1/responses`.
use std::borrow::Cow;
use std::collections::BTreeMap;

use camshaft_core::limits;
use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::chat::ReasoningEffort;
use super::events;
use super::generation::{GenerationFields, ResponseFormatType, SCHEMA_NAME_BYTES, schema_name};
use super::logprobs::{ListedTokens, ScoredToken};
use super::values::{TextOrList, TextOrObject, Whole};
use crate::wire::read::request;

request! {
    /// A chat's fields that this API lacks are the chat's here, too.
    ResponsesRequest {
        #[garde(required, length(min = 1, max = limits::MESSAGES))]
        input: TextOrList<InputItem>,
        /// The first message, of role `system`.
        instructions: String,
        /// Tokens to generate at most; by default `limits.max-tokens`.
        #[garde(range(min = 1.0))]
        max_output_tokens: Whole,
        /// Those of OpenAI's own server are left out.
        #[garde(length(max = limits::TOOLS))]
        tools: Vec<ResponsesTool>,
        /// `auto`, `none`, `required`, or an object of type `function`, `custom` or `allowed_tools`.
        tool_choice: TextOrObject<ResponsesToolChoice>,
        parallel_tool_calls: bool,
        #[garde(dive)]
        text: TextOptions,
        reasoning: ReasoningOptions,
        /// `message.output_text.logprobs` asks for log-probabilities; anything else has no effect.
        include: Vec<String>,
        /// Alternatives of each token.
        #[garde(range(min = limits::TOP_LOGPROBS.min, max = limits::TOP_LOGPROBS.max))]
        top_logprobs: Whole,
        /// Repeated by the answer.
        #[garde(length(max = limits::METADATA), custom(short_texts))]
        metadata: BTreeMap<String, String>,
        /// Repeated by the answer; no tool is called here.
        max_tool_calls: Whole,
        /// Repeated by the answer.
        service_tier: String,
        /// Repeated by the answer.
        user: String,
        /// Repeated by the answer.
        safety_identifier: String,
        /// Whatever it is, nothing is stored.
        store: bool,
        /// True is refused.
        #[garde(custom(not_background))]
        background: bool,
        /// `disabled`.
        truncation: Truncation,
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
        /// The last event carries the usage in any case.
        stream_options: "Option<Map<String, Value>>",
        /// Conversations are not compacted.
        context_management: "Option<Map<String, Value>>",
    }
    refused {
        previous_response_id: "Option<String>", "is not supported: this server stores no responses; send the whole conversation as input";
        conversation: "Option<String>", "is not supported: this server stores no responses; send the whole conversation as input";
        prompt: "Option<Map<String, Value>>", "is not supported: this server stores no prompts; send instructions and input";
        messages: "Option<Vec<Value>>", "is no field of this endpoint: use input";
        max_tokens: "Option<u32>", "is no field of this endpoint: use max_output_tokens";
        max_completion_tokens: "Option<u32>", "is no field of this endpoint: use max_output_tokens";
        response_format: "Option<Map<String, Value>>", "is no field of this endpoint: use text.format";
        reasoning_effort: "Option<String>", "is no field of this endpoint: use reasoning.effort";
        functions: "Option<Vec<Value>>", "is no field of this endpoint: use tools";
        function_call: "Option<String>", "is no field of this endpoint: use tool_choice";
        logprobs: "Option<bool>", "is no field of this endpoint: use include with message.output_text.logprobs";
    }
    with generation: GenerationFields
}

fn short_texts(texts: &Option<BTreeMap<String, String>>, &(): &()) -> garde::Result {
    let (name_chars, value_chars) = (limits::METADATA_NAME_CHARS, limits::METADATA_VALUE_CHARS);
    let is_long =
        |(name, value): &(&String, &String)| name.chars().count() > name_chars || value.chars().count() > value_chars;
    match texts.iter().flatten().find(is_long) {
        None => Ok(()),
        Some(_) => {
            let why = format!("must have at most {name_chars} characters in a name, and {value_chars} in a text");
            Err(garde::Error::new(why))
        }
    }
}

fn not_background(background: &Option<bool>, &(): &()) -> garde::Result {
    match background {
        Some(true) => Err(garde::Error::new("is not supported: this server stores no responses")),
        _ => Ok(()),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Truncation {
    /// No input is left out.
    Disabled,
}

/// An item of a conversation, of which each type has some of these fields.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct InputItem {
    /// `message`, also where it is absent; `function_call`, `custom_tool_call`, `local_shell_call` and their outputs; `reasoning`. What only
    /// OpenAI's server can read is left out: `compaction`, `web_search_call`, `tool_search_call`, `additional_tools` and their outputs.
    pub(crate) r#type: Option<String>,
    /// Of a message.
    pub(crate) role: Option<ItemRole>,
    /// Of a message, or of reasoning.
    pub(crate) content: Option<TextOrList<InputPart>>,
    /// Of a call and of its output.
    pub(crate) call_id: Option<String>,
    /// Of a call.
    pub(crate) name: Option<String>,
    /// Of a call of a tool that is in a namespace.
    pub(crate) namespace: Option<String>,
    /// Of a function's call: an object or its JSON.
    pub(crate) arguments: Option<TextOrObject<Map<String, Value>>>,
    /// Of a custom tool's call.
    pub(crate) input: Option<String>,
    /// Of a shell's call.
    pub(crate) action: Option<Map<String, Value>>,
    /// Of a call's output.
    pub(crate) output: Option<TextOrList<InputPart>>,
    /// Of reasoning.
    pub(crate) summary: Option<Vec<InputPart>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ItemRole {
    System,
    Developer,
    User,
    Assistant,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct InputPart {
    /// `input_text`, `output_text`, `text`, `summary_text`, `reasoning_text` or `refusal`.
    pub(crate) r#type: String,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<String>,
}

/// A tool that the client calls for the model.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ResponsesTool {
    /// `function`, `custom` or `namespace`; others are left out.
    pub(crate) r#type: String,
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// Of a function: a JSON schema.
    pub(crate) parameters: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
    /// Of a custom tool: what its text looks like.
    pub(crate) format: Option<CustomFormat>,
    /// Of a namespace.
    pub(crate) tools: Option<Vec<ResponsesTool>>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct CustomFormat {
    /// `text` or `grammar`.
    pub(crate) r#type: String,
    /// `lark` or `regex`.
    pub(crate) syntax: Option<String>,
    pub(crate) definition: Option<String>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ResponsesToolChoice {
    /// `function`, `custom` or `allowed_tools`; that of a tool which is left out is `auto`.
    pub(crate) r#type: String,
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
    pub(crate) mode: Option<super::chat::AllowedToolsMode>,
    pub(crate) tools: Option<Vec<AllowedResponsesTool>>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AllowedResponsesTool {
    pub(crate) r#type: String,
    pub(crate) name: Option<String>,
    pub(crate) namespace: Option<String>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct TextOptions {
    #[garde(dive)]
    pub(crate) format: Option<TextFormat>,
    pub(crate) verbosity: Option<String>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct TextFormat {
    pub(crate) r#type: ResponseFormatType,
    #[garde(length(min = 1, max = SCHEMA_NAME_BYTES), custom(schema_name))]
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// A JSON Schema.
    pub(crate) schema: Option<Map<String, Value>>,
    pub(crate) strict: Option<bool>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ReasoningOptions {
    pub(crate) effort: Option<ReasoningEffort>,
    /// No effect: the whole reasoning is in the answer.
    pub(crate) summary: Option<String>,
}

/// `/v1/responses/input_tokens`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CountedInput {
    /// `response.input_tokens`.
    pub(crate) object: &'static str,
    pub(crate) input_tokens: u64,
}

/// A response, complete or not.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Response<'a> {
    pub(crate) id: &'a str,
    /// `response`.
    pub(crate) object: &'static str,
    /// Seconds since the Unix epoch.
    pub(crate) created_at: u64,
    pub(crate) model: &'a str,
    pub(crate) status: ResponseStatus,
    pub(crate) error: Option<&'a ResponseError>,
    pub(crate) incomplete_details: Option<IncompleteDetails>,
    pub(crate) output: &'a [OutputItem],
    pub(crate) usage: Option<ResponseUsage>,
    #[serde(flatten)]
    #[schemars(with = "Repeated<'_>")]
    pub(crate) repeated: &'a Map<String, Value>,
}

/// What a response repeats of its request.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Repeated<'a> {
    pub(crate) background: bool,
    pub(crate) previous_response_id: Option<&'static str>,
    pub(crate) store: bool,
    pub(crate) truncation: Truncation,
    pub(crate) user: Option<&'a str>,
    pub(crate) safety_identifier: Option<&'a str>,
    pub(crate) prompt_cache_key: Option<&'a str>,
    pub(crate) service_tier: Option<&'a str>,
    pub(crate) temperature: Option<f64>,
    pub(crate) top_p: Option<f64>,
    pub(crate) max_output_tokens: Option<Whole>,
    pub(crate) max_tool_calls: Option<Whole>,
    pub(crate) top_logprobs: Option<Whole>,
    pub(crate) parallel_tool_calls: bool,
    pub(crate) metadata: Cow<'a, BTreeMap<String, String>>,
    pub(crate) instructions: Option<&'a str>,
    pub(crate) tools: &'a [ResponsesTool],
    pub(crate) tool_choice: TextOrObject<ResponsesToolChoice>,
    /// With a `format`.
    pub(crate) text: Map<String, Value>,
    pub(crate) reasoning: RepeatedReasoning<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct RepeatedReasoning<'a> {
    pub(crate) effort: Option<ReasoningEffort>,
    pub(crate) summary: Option<&'a str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseError {
    /// `server_error`, `rate_limit_exceeded` or `invalid_prompt`.
    pub(crate) code: &'static str,
    pub(crate) message: String,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct IncompleteDetails {
    /// `max_output_tokens` or `content_filter`.
    pub(crate) reason: &'static str,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputItem {
    Reasoning {
        id: String,
        /// Empty: the whole reasoning is in `content`.
        summary: [(); 0],
        content: Vec<OutputPart>,
        status: ResponseStatus,
    },
    Message {
        id: String,
        status: ResponseStatus,
        /// `assistant`.
        role: &'static str,
        content: Vec<OutputPart>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// JSON.
        arguments: String,
        status: ResponseStatus,
    },
    CustomToolCall {
        id: String,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        // Until its end, the arguments of the function that stands for the tool.
        input: String,
        status: ResponseStatus,
    },
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum OutputPart {
    ReasoningText {
        text: String,
    },
    OutputText {
        text: String,
        /// Empty.
        annotations: [(); 0],
        /// Of a streamed text: empty, because they are in its deltas.
        #[schemars(with = "Vec<ScoredToken>")]
        logprobs: ListedTokens,
    },
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct ResponseUsage {
    pub(crate) input_tokens: u64,
    pub(crate) input_tokens_details: InputTokens,
    pub(crate) output_tokens: u64,
    pub(crate) output_tokens_details: OutputTokens,
    pub(crate) total_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct InputTokens {
    pub(crate) cached_tokens: u64,
    /// What a request leaves in the cache costs nothing.
    pub(crate) cache_write_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct OutputTokens {
    pub(crate) reasoning_tokens: u64,
}

events! {
    /// An event, which also has its type as its name. `sequence_number` counts from 0.
    ResponseEvent {
        "response.created" Created { sequence_number: u64, response: Response<'a> }
        "response.in_progress" InProgress { sequence_number: u64, response: Response<'a> }
        "response.output_item.added" ItemAdded { sequence_number: u64, output_index: usize, item: &'a OutputItem }
        "response.content_part.added" PartAdded {
            sequence_number: u64, #[serde(flatten)] at: PartPlace<'a>, part: &'a OutputPart,
        }
        "response.reasoning_text.delta" ReasoningDelta {
            sequence_number: u64, #[serde(flatten)] at: PartPlace<'a>, delta: &'a str,
        }
        "response.reasoning_text.done" ReasoningDone {
            sequence_number: u64, #[serde(flatten)] at: PartPlace<'a>, text: &'a str,
        }
        "response.output_text.delta" TextDelta {
            sequence_number: u64, #[serde(flatten)] at: PartPlace<'a>, delta: &'a str,
            #[schemars(with = "Vec<ScoredToken>")] logprobs: &'a ListedTokens,
        }
        "response.output_text.done" TextDone {
            sequence_number: u64, #[serde(flatten)] at: PartPlace<'a>, text: &'a str,
            #[schemars(with = "Vec<ScoredToken>")] logprobs: &'a ListedTokens,
        }
        "response.function_call_arguments.delta" ArgumentsDelta {
            sequence_number: u64, #[serde(flatten)] at: ItemPlace<'a>, delta: &'a str,
        }
        "response.function_call_arguments.done" ArgumentsDone {
            sequence_number: u64, #[serde(flatten)] at: ItemPlace<'a>, name: &'a str, arguments: &'a str,
        }
        "response.custom_tool_call_input.delta" InputDelta {
            sequence_number: u64, #[serde(flatten)] at: ItemPlace<'a>, delta: &'a str,
        }
        "response.custom_tool_call_input.done" InputDone {
            sequence_number: u64, #[serde(flatten)] at: ItemPlace<'a>, input: &'a str,
        }
        "response.content_part.done" PartDone {
            sequence_number: u64, #[serde(flatten)] at: PartPlace<'a>, part: &'a OutputPart,
        }
        "response.output_item.done" ItemDone { sequence_number: u64, output_index: usize, item: &'a OutputItem }
        "response.completed" Completed { sequence_number: u64, response: Response<'a> }
        "response.incomplete" Incomplete { sequence_number: u64, response: Response<'a> }
        "response.failed" Failed { sequence_number: u64, response: Response<'a>, request_id: &'a str }
    }
}

/// The item that an event is about.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct ItemPlace<'a> {
    pub(crate) item_id: &'a str,
    pub(crate) output_index: usize,
}

/// The part that an event is about, and its item.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct PartPlace<'a> {
    #[serde(flatten)]
    pub(crate) item: ItemPlace<'a>,
    pub(crate) content_index: usize,
}
