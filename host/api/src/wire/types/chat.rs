//! `/v1/chat/completions`.

use std::collections::BTreeMap;

use camshaft_core::limits;
use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::generation::{ChoiceNote, Finish, GenerationFields};
use super::logprobs::ChatLogprobs;
use super::values::{TextOrList, TextOrObject, Whole};
use crate::wire::read::request;

request! {
    ChatRequest {
        #[garde(required, length(min = 1, max = limits::MESSAGES), dive)]
        messages: Vec<ChatMessage>,
        /// Log-probabilities of the tokens.
        logprobs: bool,
        /// Alternatives of each token; only with `logprobs`.
        #[garde(range(min = limits::TOP_LOGPROBS.min, max = limits::TOP_LOGPROBS.max))]
        top_logprobs: Whole,
        /// Functions that the answer may call.
        #[garde(length(max = limits::TOOLS))]
        tools: Vec<ChatTool>,
        tool_choice: TextOrObject<ToolChoiceObject>,
        /// Whether an answer may have several calls; by default it may.
        parallel_tool_calls: bool,
        /// `none`, `minimal`, `low`, `medium`, `high` or `xhigh`, for templates that know it; `max` is `xhigh`.
        reasoning_effort: ReasoningEffort,
        /// The older form of `tools`.
        #[garde(length(max = limits::TOOLS))]
        functions: Vec<FunctionDefinition>,
        /// The older form of `tool_choice`: `none`, `auto`, or a function that must be called.
        function_call: TextOrObject<NamedFunction>,
        /// Other modalities than text are refused.
        #[garde(custom(text_alone))]
        modalities: Vec<String>,
    }
    own {
        /// Variables for the model's chat template.
        chat_template_kwargs: Map<String, Value>,
        /// False: the prompt ends behind the last message.
        add_generation_prompt: bool,
        /// The answer continues the last message, which is the assistant's.
        continue_final_message: bool,
        /// Tokens that the answer may spend on thinking; -1: any number. Unset: as `reasoning_effort` says.
        #[garde(range(min = limits::THINKING_BUDGET.min, max = limits::THINKING_BUDGET.max))]
        thinking_budget: Whole,
    }
    ignored {
        prediction: "Option<Map<String, Value>>",
        web_search_options: "Option<Map<String, Value>>",
        verbosity: "Option<String>",
        metadata: "Option<BTreeMap<String, String>>",
        store: "Option<bool>",
        service_tier: "Option<String>",
        prompt_cache_retention: "Option<String>",
    }
    refused {
        audio: "Option<Map<String, Value>>", "is not supported: no audio is generated";
    }
    with generation: GenerationFields
}

#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct ChatMessage {
    pub(crate) role: Role,
    /// Required, but of the assistant's.
    pub(crate) content: Option<TextOrList<ContentPart>>,
    /// Of a tool's message, the function. Ignored in others.
    pub(crate) name: Option<String>,
    /// Of the assistant's: what it thought.
    #[schemars(extend("x-own" = true))]
    pub(crate) reasoning_content: Option<String>,
    /// Another name of `reasoning_content`.
    #[schemars(extend("x-own" = true))]
    pub(crate) reasoning: Option<String>,
    /// Of the assistant's: instead of its content.
    pub(crate) refusal: Option<String>,
    /// Of the assistant's.
    #[garde(length(max = limits::CALLS))]
    pub(crate) tool_calls: Option<Vec<MessageToolCall>>,
    /// Of a tool's: the call that it answers.
    pub(crate) tool_call_id: Option<String>,
    /// The older form of `tool_calls`, of one call.
    pub(crate) function_call: Option<MessageFunctionCall>,
}

impl ChatMessage {
    pub(crate) fn new(role: Role) -> Self {
        Self {
            role,
            content: None,
            name: None,
            reasoning_content: None,
            reasoning: None,
            refusal: None,
            tool_calls: None,
            tool_call_id: None,
            function_call: None,
        }
    }
}

/// A call in a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessageToolCall {
    pub(crate) id: String,
    /// `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<FunctionType>,
    pub(crate) function: MessageFunctionCall,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct MessageFunctionCall {
    pub(crate) name: String,
    /// An object or its JSON; of a call that was cut, the beginning of that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) arguments: Option<TextOrObject<Map<String, Value>>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FunctionType {
    Function,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ChatTool {
    /// `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<FunctionType>,
    pub(crate) function: FunctionDefinition,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct FunctionDefinition {
    #[schemars(length(min = 1, max = limits::TOOL_NAME_BYTES))]
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    /// JSON Schema of an object; by default, of one without members.
    pub(crate) parameters: Option<Map<String, Value>>,
    /// Refuse the request if the arguments cannot be held to the schema.
    pub(crate) strict: Option<bool>,
}

/// `none`, `auto` or `required`; a function that must be called; or those that may.
#[skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ToolChoiceObject {
    pub(crate) r#type: ToolChoiceType,
    pub(crate) function: Option<NamedFunction>,
    pub(crate) allowed_tools: Option<AllowedTools>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ToolChoiceType {
    Function,
    AllowedTools,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AllowedTools {
    /// By default `auto`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mode: Option<AllowedToolsMode>,
    pub(crate) tools: Vec<AllowedTool>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AllowedToolsMode {
    Auto,
    Required,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct AllowedTool {
    /// `function`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) r#type: Option<FunctionType>,
    pub(crate) function: NamedFunction,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NamedFunction {
    pub(crate) name: String,
}

/// How much a model shall think.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
    Xhigh,
    Max,
}

impl ChatRequest {
    /// Tokens that the answer may spend on thinking. `None`: any number.
    pub(crate) fn thinking_tokens(&self) -> Option<u32> {
        match self.thinking_budget {
            Some(Whole(-1)) => None,
            Some(budget) => Some(budget.get()),
            None => self.reasoning_effort.and_then(ReasoningEffort::tokens),
        }
    }
}

impl ReasoningEffort {
    /// The effort that a budget of thinking means.
    pub(crate) fn of_budget(tokens: u32) -> Self {
        match tokens {
            limits::THINKING_HIGH.. => Self::High,
            limits::THINKING_MEDIUM.. => Self::Medium,
            _ => Self::Low,
        }
    }

    /// The budget up to which it is this effort. `None`: any.
    fn tokens(self) -> Option<u32> {
        match self {
            Self::None => Some(0),
            Self::Minimal => Some(limits::THINKING_TOKENS.min as u32),
            Self::Low => Some(limits::THINKING_MEDIUM),
            Self::Medium => Some(limits::THINKING_HIGH),
            Self::High | Self::Xhigh | Self::Max => None,
        }
    }

    /// As chat templates know it. `None`: the model shall not think.
    pub(crate) fn for_templates(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Minimal => Some("minimal"),
            Self::Low => Some("low"),
            Self::Medium => Some("medium"),
            Self::High => Some("high"),
            Self::Xhigh | Self::Max => Some("xhigh"),
        }
    }
}

fn text_alone(modalities: &Option<Vec<String>>, &(): &()) -> garde::Result {
    match modalities.iter().flatten().find(|modality| *modality != "text") {
        None => Ok(()),
        Some(_) => Err(garde::Error::new("may hold text only")),
    }
}

/// A call of a function.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ToolCall<'a> {
    pub(crate) id: &'a str,
    pub(crate) r#type: FunctionType,
    pub(crate) function: CalledFunction<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CalledFunction<'a> {
    pub(crate) name: &'a str,
    /// The JSON of an object; of a call that was cut, of its beginning.
    pub(crate) arguments: &'a str,
}

/// A part of a call.
#[skip_serializing_none]
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct CallDelta<'a> {
    /// Which of the answer's calls it is part of.
    pub(crate) index: usize,
    /// Of the first part.
    pub(crate) id: Option<&'a str>,
    /// Of the first part.
    pub(crate) r#type: Option<FunctionType>,
    pub(crate) function: FunctionDelta<'a>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FunctionDelta<'a> {
    /// Of the first part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'a str>,
    pub(crate) arguments: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    System,
    /// As `system`.
    Developer,
    User,
    Assistant,
    Tool,
    /// The older form of `tool`.
    Function,
}

/// A part of a message. Texts are joined.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ContentPart {
    /// `text`, or of the assistant's `refusal`. In a tool's result anything else is named in its place.
    pub(crate) r#type: String,
    pub(crate) text: Option<String>,
    pub(crate) refusal: Option<String>,
}

impl ContentPart {
    pub(crate) fn of(text: String) -> Self {
        Self { r#type: "text".to_owned(), text: Some(text), refusal: None }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChoice<'a> {
    pub(crate) index: usize,
    pub(crate) message: AssistantMessage<'a>,
    pub(crate) logprobs: Option<ChatLogprobs<'a>>,
    pub(crate) finish_reason: Finish,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) camshaft: Option<ChoiceNote>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct AssistantMessage<'a> {
    /// `assistant`.
    pub(crate) role: &'static str,
    /// Null where there are calls only.
    pub(crate) content: Option<&'a str>,
    pub(crate) refusal: Option<&'a str>,
    /// What the model thought.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(default)]
    pub(crate) tool_calls: Vec<ToolCall<'a>>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChunkChoice<'a> {
    pub(crate) index: usize,
    pub(crate) delta: ChatDelta<'a>,
    pub(crate) logprobs: Option<ChatLogprobs<'a>>,
    /// Null but in a choice's last event.
    pub(crate) finish_reason: Option<Finish>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) camshaft: Option<ChoiceNote>,
}

#[skip_serializing_none]
#[derive(Debug, Default, Serialize, JsonSchema)]
pub(crate) struct ChatDelta<'a> {
    pub(crate) role: Option<&'static str>,
    pub(crate) content: Option<&'a str>,
    pub(crate) reasoning_content: Option<&'a str>,
    pub(crate) tool_calls: Option<[CallDelta<'a>; 1]>,
    /// Present, as `null`, only with the role.
    pub(crate) refusal: Option<Option<&'a str>>,
}
