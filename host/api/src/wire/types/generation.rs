//! What the bodies of chat and plain completions have in common.
use std::collections::BTreeMap;

use camshaft_core::limits;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Fields of both endpoints. An unknown field is ignored and counted. `x-support` says of a field that it is `ignored`,
/// `logged`, or `refused` unless it is absent, null, empty or false; `x-own` that OpenAI does not have it.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct GenerationFields {
    /// An id from `/v1/models`; the only model where one is served or allowed.
    pub(crate) model: Option<String>,
    /// Tokens to generate at most; by default `limits.max-tokens` for chats, 16 for plain completions.
    #[schemars(range(min = 0))]
    pub(crate) max_tokens: Option<u32>,
    /// The newer name of `max_tokens`.
    #[schemars(range(min = 0))]
    pub(crate) max_completion_tokens: Option<u32>,
    /// Until this many tokens were generated, no end token and no stop ends the text.
    #[schemars(extend("x-own" = true))]
    pub(crate) min_tokens: Option<u32>,
    /// Seconds from arrival after which the generation ends with what it has.
    #[schemars(range(min = 0.001), extend("x-own" = true))]
    pub(crate) max_duration: Option<f64>,
    /// Choices of each prompt.
    #[schemars(range(min = limits::CHOICES.min, max = limits::CHOICES.max))]
    pub(crate) n: Option<u32>,
    /// Choices that are generated of each prompt, at least `n`: the likeliest are answered. Not with `stream`.
    #[schemars(range(min = limits::CHOICES.min, max = limits::CHOICES.max))]
    pub(crate) best_of: Option<u32>,
    /// Texts before which the generation ends.
    pub(crate) stop: Option<Stop>,
    /// Tokens that end the generation, and add no text.
    #[schemars(length(max = limits::STOP_TOKENS), extend("x-own" = true))]
    pub(crate) stop_token_ids: Option<Vec<u32>>,
    /// Goes on past the model's end of text.
    #[schemars(extend("x-own" = true))]
    pub(crate) ignore_eos: Option<bool>,
    /// Sends the answer as events.
    pub(crate) stream: Option<bool>,
    pub(crate) stream_options: Option<StreamOptions>,
    /// 0: the most probable token.
    #[schemars(range(min = limits::TEMPERATURE.min, max = limits::TEMPERATURE.max))]
    pub(crate) temperature: Option<f64>,
    /// The share of probability that is left. 1: all.
    #[schemars(range(min = limits::TOP_P.min, max = limits::TOP_P.max))]
    pub(crate) top_p: Option<f64>,
    /// Tokens that are left. 0: all.
    #[schemars(range(min = limits::TOP_K.min, max = limits::TOP_K.max), extend("x-own" = true))]
    pub(crate) top_k: Option<u32>,
    /// The least probability, as a part of the best one's.
    #[schemars(range(min = limits::MIN_P.min, max = limits::MIN_P.max), extend("x-own" = true))]
    pub(crate) min_p: Option<f64>,
    #[schemars(range(min = limits::TYPICAL_P.min, max = limits::TYPICAL_P.max), extend("x-own" = true))]
    pub(crate) typical_p: Option<f64>,
    #[schemars(range(min = limits::FREQUENCY_PENALTY.min, max = limits::FREQUENCY_PENALTY.max))]
    pub(crate) frequency_penalty: Option<f64>,
    #[schemars(range(min = limits::PRESENCE_PENALTY.min, max = limits::PRESENCE_PENALTY.max))]
    pub(crate) presence_penalty: Option<f64>,
    #[schemars(range(min = limits::REPEAT_PENALTY.min, max = limits::REPEAT_PENALTY.max), extend("x-own" = true))]
    pub(crate) repeat_penalty: Option<f64>,
    /// Another name of `repeat_penalty`.
    #[schemars(range(min = limits::REPEAT_PENALTY.min, max = limits::REPEAT_PENALTY.max), extend("x-own" = true))]
    pub(crate) repetition_penalty: Option<f64>,
    #[schemars(range(min = limits::REPEAT_LAST_N.min, max = limits::REPEAT_LAST_N.max), extend("x-own" = true))]
    pub(crate) repeat_last_n: Option<u32>,
    /// Token ids with what is added to their logits, -100 to 100.
    pub(crate) logit_bias: Option<BTreeMap<String, f64>>,
    /// Equal seeds draw equal tokens from equal logits.
    pub(crate) seed: Option<i64>,
    /// Names of the sampler policies that sample, in this order.
    #[schemars(length(max = limits::SAMPLERS), extend("x-own" = true))]
    pub(crate) samplers: Option<Vec<String>>,
    /// Adapters of the model.
    #[schemars(length(max = limits::ADAPTERS_OF_REQUEST), extend("x-own" = true))]
    pub(crate) lora: Option<Vec<Adapter>>,
    /// Keeps the prefix in the cache.
    #[schemars(length(min = 1, max = limits::SESSION_ID), extend("x-own" = true))]
    pub(crate) session_id: Option<String>,
    /// Only requests with the same key share cached prefixes.
    #[schemars(length(min = 1, max = limits::CACHE_KEY_BYTES))]
    pub(crate) prompt_cache_key: Option<String>,
    /// Cuts a longer prompt at its beginning to this many tokens. -1: to what the context has room for.
    #[schemars(range(min = -1, max = limits::TRUNCATED_TOKENS.max), extend("x-own" = true))]
    pub(crate) truncate_prompt_tokens: Option<i64>,
    /// For scheduler policies.
    #[schemars(extend("x-own" = true))]
    pub(crate) hints: Option<BTreeMap<String, String>>,
    /// Seconds from arrival to the first token.
    #[schemars(range(min = 0.001), extend("x-own" = true))]
    pub(crate) timeout: Option<f64>,
    /// The end user. A hash of it is logged.
    #[schemars(extend("x-support" = "logged"))]
    pub(crate) user: Option<String>,
    /// The end user. A hash of it is logged.
    #[schemars(extend("x-support" = "logged"))]
    pub(crate) safety_identifier: Option<String>,
    #[schemars(extend("x-support" = "refused", "x-own" = true))]
    pub(crate) use_beam_search: Option<bool>,
    #[schemars(extend("x-support" = "refused", "x-own" = true))]
    pub(crate) chat_template: Option<String>,
    /// A grammar that the text matches: in GBNF (`root ::= …`) or Lark (`start: …`), or with its type.
    #[schemars(extend("x-own" = true))]
    pub(crate) grammar: Option<GrammarText>,
    /// A JSON Schema that the text follows.
    #[schemars(extend("x-own" = true))]
    pub(crate) json_schema: Option<Map<String, Value>>,
    /// A JSON Schema that the text follows, or its JSON.
    #[schemars(extend("x-own" = true))]
    pub(crate) guided_json: Option<SchemaText>,
    /// A regular expression that the text matches.
    #[schemars(extend("x-own" = true))]
    pub(crate) guided_regex: Option<String>,
    /// The text is one of these.
    #[schemars(extend("x-own" = true))]
    pub(crate) guided_choice: Option<Vec<String>>,
    /// As `grammar`.
    #[schemars(extend("x-own" = true))]
    pub(crate) guided_grammar: Option<GrammarText>,
    #[schemars(extend("x-support" = "refused", "x-own" = true))]
    pub(crate) guided_whitespace_pattern: Option<String>,
    /// What the text must look like, in one way.
    #[schemars(extend("x-own" = true))]
    pub(crate) structured_outputs: Option<StructuredOutputs>,
    /// What the text must look like.
    pub(crate) response_format: Option<ResponseFormat>,
}

/// One text, or up to four.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Stop {
    One(String),
    Several(#[schemars(length(max = limits::STOP_STRINGS))] Vec<String>),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StreamOptions {
    /// A last chunk has the usage.
    pub(crate) include_usage: Option<bool>,
    #[schemars(extend("x-support" = "ignored"))]
    pub(crate) include_obfuscation: Option<bool>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Adapter {
    pub(crate) id: String,
    pub(crate) scale: Option<f64>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct ResponseFormat {
    /// `text`, `json_object` or `json_schema`.
    pub(crate) r#type: String,
    /// Of a `json_schema`.
    pub(crate) json_schema: Option<NamedSchema>,
    /// Of a `json_object`: the JSON Schema that it follows.
    #[schemars(extend("x-own" = true))]
    pub(crate) schema: Option<Map<String, Value>>,
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct NamedSchema {
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// A JSON Schema.
    pub(crate) schema: Map<String, Value>,
    /// Every schema is followed strictly.
    pub(crate) strict: Option<bool>,
}

/// A JSON Schema or its JSON.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum SchemaText {
    Schema(Map<String, Value>),
    Text(String),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum GrammarText {
    Text(String),
    Typed(TypedGrammar),
}

#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct TypedGrammar {
    /// `gbnf`, `lark`, `regex` or `json`.
    pub(crate) r#type: String,
    /// Text; of `json`, a JSON Schema.
    pub(crate) value: Value,
}

/// One of these.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StructuredOutputs {
    pub(crate) json: Option<SchemaText>,
    pub(crate) json_object: Option<bool>,
    pub(crate) regex: Option<String>,
    pub(crate) choice: Option<Vec<String>>,
    pub(crate) grammar: Option<GrammarText>,
}

/// Why a text ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FinishReason {
    Stop,
    Length,
    ContentFilter,
    /// Of a chat.
    ToolCalls,
}

/// What OpenAI's shapes have no word for, of one choice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChoiceNote {
    /// `max_duration`.
    pub(crate) finish_detail: String,
}

/// Tokens of a request, its prompts counted once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) prompt_tokens_details: PromptTokens,
    pub(crate) completion_tokens_details: CompletionTokens,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PromptTokens {
    pub(crate) cached_tokens: u64,
    pub(crate) audio_tokens: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletionTokens {
    pub(crate) reasoning_tokens: u64,
    pub(crate) audio_tokens: u64,
    pub(crate) accepted_prediction_tokens: u64,
    pub(crate) rejected_prediction_tokens: u64,
}

/// Reads a field that is absent, null or present.
pub(crate) fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(value).map(Some)
}
