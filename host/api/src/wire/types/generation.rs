//! What the bodies of all requests that generate have in common.
use std::collections::{BTreeMap, BTreeSet};

use camshaft_core::limits;
use camshaft_core::message::FinishReason;
use garde::Validate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};
use serde_with::skip_serializing_none;

use super::values::{Seed, TextOrList, TextOrObject, Whole};
use crate::wire::read::request;
use crate::wire::read::rules::{is_visible, refused};

request! {
    /// Fields of all requests that generate. An unknown field is ignored and counted. `x-support` says of a field that it is `ignored`,
    /// `logged`, or `refused` unless it is absent, null, empty or false; `x-own` that OpenAI does not have it.
    GenerationFields {
        /// An id from `/v1/models`; the only model where one is served or allowed.
        model: String,
        /// Tokens to generate at most; by default `limits.max-tokens` for chats, 16 for plain completions.
        #[garde(range(min = 0.0))]
        max_tokens: Whole,
        /// The newer name of `max_tokens`.
        #[garde(range(min = 0.0))]
        max_completion_tokens: Whole,
        /// Choices of each prompt.
        #[garde(range(min = limits::CHOICES.min, max = limits::CHOICES.max))]
        n: Whole,
        /// Choices that are generated of each prompt, at least `n`: the likeliest are answered. Not with `stream`.
        #[garde(range(min = limits::CHOICES.min, max = limits::CHOICES.max))]
        best_of: Whole,
        /// Texts before which the generation ends.
        #[garde(length(max = limits::STOP_STRINGS), custom(stop_strings))]
        stop: TextOrList<String>,
        /// Sends the answer as events.
        stream: bool,
        stream_options: StreamOptions,
        /// 0: the most probable token.
        #[garde(range(min = limits::TEMPERATURE.min, max = limits::TEMPERATURE.max))]
        temperature: f64,
        /// The share of probability that is left. 1: all.
        #[garde(range(min = limits::TOP_P.min, max = limits::TOP_P.max))]
        top_p: f64,
        #[garde(range(min = limits::FREQUENCY_PENALTY.min, max = limits::FREQUENCY_PENALTY.max))]
        frequency_penalty: f64,
        #[garde(range(min = limits::PRESENCE_PENALTY.min, max = limits::PRESENCE_PENALTY.max))]
        presence_penalty: f64,
        /// Token ids with what is added to their logits, -100 to 100.
        #[garde(length(max = limits::LOGIT_BIAS_ENTRIES), custom(biases))]
        logit_bias: BTreeMap<String, f64>,
        /// Equal seeds draw equal tokens from equal logits. -1: a random one.
        seed: Seed,
        /// Only requests with the same key share cached prefixes.
        #[garde(length(min = 1, max = limits::CACHE_KEY_BYTES))]
        prompt_cache_key: String,
        /// The end user. A hash of it is logged.
        #[schemars(with = "Option<String>", extend("x-support" = "logged"))]
        user: Value,
        /// The end user. A hash of it is logged.
        #[schemars(with = "Option<String>", extend("x-support" = "logged"))]
        safety_identifier: Value,
        #[garde(custom(refused("is not supported: sequences are sampled one by one; best_of returns the likeliest of several")))]
        #[schemars(with = "Option<bool>", extend("x-support" = "refused", "x-own" = true))]
        use_beam_search: Value,
        #[garde(custom(refused("is not supported: a model's chats are rendered with its own template")))]
        #[schemars(with = "Option<String>", extend("x-support" = "refused", "x-own" = true))]
        chat_template: Value,
        #[garde(custom(refused("is not supported")))]
        #[schemars(with = "Option<String>", extend("x-support" = "refused", "x-own" = true))]
        guided_whitespace_pattern: Value,
        /// What the text must look like.
        #[garde(dive)]
        response_format: ResponseFormat,
    }
    own {
        /// Until this many tokens were generated, no end token and no stop ends the text.
        #[garde(range(min = 0.0))]
        min_tokens: Whole,
        /// Seconds from arrival after which the generation ends with what it has.
        #[garde(range(min = 0.001))]
        max_duration: f64,
        /// Tokens that end the generation, and add no text.
        #[garde(length(max = limits::STOP_TOKENS))]
        stop_token_ids: Vec<u32>,
        /// Goes on past the model's end of text.
        ignore_eos: bool,
        /// Tokens that are left. 0 or -1: all.
        #[garde(range(min = -1.0, max = limits::TOP_K.max))]
        top_k: Whole,
        /// The least probability, as a part of the best one's.
        #[garde(range(min = limits::MIN_P.min, max = limits::MIN_P.max))]
        min_p: f64,
        #[garde(range(min = limits::TYPICAL_P.min, max = limits::TYPICAL_P.max))]
        typical_p: f64,
        #[garde(range(min = limits::REPEAT_PENALTY.min, max = limits::REPEAT_PENALTY.max))]
        repeat_penalty: f64,
        /// Another name of `repeat_penalty`.
        #[garde(range(min = limits::REPEAT_PENALTY.min, max = limits::REPEAT_PENALTY.max))]
        repetition_penalty: f64,
        #[garde(range(min = limits::REPEAT_LAST_N.min, max = limits::REPEAT_LAST_N.max))]
        repeat_last_n: Whole,
        /// Names of the sampler policies that sample, in this order.
        #[garde(length(max = limits::SAMPLERS), custom(each_once))]
        samplers: Vec<String>,
        /// Adapters of the model.
        #[garde(length(max = limits::ADAPTERS_OF_REQUEST), dive, custom(adapters_once))]
        lora: Vec<LoraEntry>,
        /// Keeps the prefix in the cache.
        #[garde(length(min = 1, max = limits::SESSION_ID), custom(visible))]
        session_id: String,
        /// Cuts a longer prompt at its beginning to this many tokens. -1: to what the context has room for.
        #[garde(range(min = -1.0, max = limits::TRUNCATED_TOKENS.max), custom(not_zero))]
        truncate_prompt_tokens: Whole,
        /// For scheduler policies.
        #[garde(length(max = limits::HINTS), custom(named_hints))]
        hints: BTreeMap<String, String>,
        /// Seconds from arrival to the first token.
        #[garde(range(min = 0.001))]
        timeout: f64,
        /// A grammar that the text matches: in GBNF (`root ::= …`) or Lark (`start: …`), or with its type.
        grammar: TextOrObject<TypedGrammar>,
        /// A JSON Schema that the text follows.
        json_schema: Map<String, Value>,
        /// A JSON Schema that the text follows, or its JSON.
        guided_json: TextOrObject<Map<String, Value>>,
        /// A regular expression that the text matches.
        guided_regex: String,
        /// The text is one of these.
        guided_choice: Vec<String>,
        /// As `grammar`.
        guided_grammar: TextOrObject<TypedGrammar>,
        /// What the text must look like, in one way.
        #[garde(dive)]
        structured_outputs: StructuredOutputs,
    }
}

#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct StreamOptions {
    /// A last chunk has the usage.
    pub(crate) include_usage: Option<bool>,
    #[schemars(with = "Option<bool>", extend("x-support" = "ignored"))]
    pub(crate) include_obfuscation: Option<Value>,
}

/// An adapter of the model.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct LoraEntry {
    pub(crate) id: String,
    /// By default, the adapter's own.
    #[garde(range(min = limits::ADAPTER_SCALE.min, max = limits::ADAPTER_SCALE.max))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) scale: Option<f64>,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct ResponseFormat {
    pub(crate) r#type: ResponseFormatType,
    /// Of a `json_schema`.
    #[garde(dive)]
    pub(crate) json_schema: Option<NamedSchema>,
    /// Of a `json_object`: the JSON Schema that it follows.
    #[schemars(extend("x-own" = true))]
    pub(crate) schema: Option<Map<String, Value>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResponseFormatType {
    Text,
    JsonObject,
    JsonSchema,
}

#[skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
pub(crate) struct NamedSchema {
    #[garde(length(min = 1, max = SCHEMA_NAME_BYTES), custom(schema_name))]
    pub(crate) name: Option<String>,
    pub(crate) description: Option<String>,
    /// A JSON Schema.
    pub(crate) schema: Map<String, Value>,
    /// Every schema is followed strictly.
    pub(crate) strict: Option<bool>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct TypedGrammar {
    pub(crate) r#type: GrammarType,
    /// Text; of `json`, a JSON Schema.
    #[schemars(with = "TextOrObject<Map<String, Value>>")]
    pub(crate) value: TextOrObject<Map<String, Value>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GrammarType {
    Gbnf,
    Lark,
    Regex,
    #[serde(alias = "json_schema")]
    Json,
}

/// One of these.
#[skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema, Validate)]
#[garde(allow_unvalidated)]
#[serde(default)]
pub(crate) struct StructuredOutputs {
    pub(crate) json: Option<TextOrObject<Map<String, Value>>>,
    pub(crate) json_object: Option<bool>,
    pub(crate) regex: Option<String>,
    pub(crate) choice: Option<Vec<String>>,
    pub(crate) grammar: Option<TextOrObject<TypedGrammar>>,
    #[garde(custom(refused("is not supported")))]
    #[schemars(with = "Option<String>", extend("x-support" = "refused"))]
    pub(crate) whitespace_pattern: Option<Value>,
    #[garde(custom(refused("is not supported")))]
    #[schemars(with = "Option<bool>", extend("x-support" = "refused"))]
    pub(crate) disable_any_whitespace: Option<Value>,
    #[garde(custom(refused("is not supported")))]
    #[schemars(with = "Option<bool>", extend("x-support" = "refused"))]
    pub(crate) disable_additional_properties: Option<Value>,
    #[garde(custom(refused("is not supported")))]
    #[schemars(with = "Option<String>", extend("x-support" = "refused"))]
    pub(crate) structural_tag: Option<Value>,
}

pub(crate) const SCHEMA_NAME_BYTES: usize = 64;

fn fail(why: String) -> garde::Result {
    Err(garde::Error::new(why))
}

fn stop_strings(stop: &Option<TextOrList<String>>, &(): &()) -> garde::Result {
    let texts = match stop {
        None => return Ok(()),
        Some(TextOrList::Text(text)) => std::slice::from_ref(text),
        Some(TextOrList::List(texts)) => texts,
    };
    match texts.iter().find(|text| text.is_empty() || text.len() > limits::STOP_BYTES) {
        None => Ok(()),
        Some(text) => {
            fail(format!("must have 1 to {} bytes in each string, one has {}", limits::STOP_BYTES, text.len()))
        }
    }
}

fn biases(biases: &Option<BTreeMap<String, f64>>, &(): &()) -> garde::Result {
    let range = limits::LOGIT_BIAS;
    match biases.iter().flatten().find(|(_, bias)| !range.contains(**bias)) {
        None => Ok(()),
        Some((_, bias)) => fail(format!("must have biases between {} and {}, one is {bias}", range.min, range.max)),
    }
}

fn each_once(names: &Option<Vec<String>>, &(): &()) -> garde::Result {
    let mut seen = BTreeSet::new();
    match names.iter().flatten().find(|name| !seen.insert(*name)) {
        None => Ok(()),
        Some(name) => fail(format!("names {:?} twice", crate::wire::echo::Shown(name))),
    }
}

pub(crate) fn adapters_once(entries: &Option<Vec<LoraEntry>>, &(): &()) -> garde::Result {
    let names = entries.as_ref().map(|entries| entries.iter().map(|entry| entry.id.clone()).collect());
    each_once(&names, &())
}

pub(crate) fn visible(text: &Option<String>, &(): &()) -> garde::Result {
    match text.as_deref().is_none_or(is_visible) {
        true => Ok(()),
        false => fail("must have visible ASCII characters alone".to_owned()),
    }
}

pub(crate) fn not_zero(number: &Option<Whole>, &(): &()) -> garde::Result {
    if *number == Some(Whole(0)) { fail("must be -1, or 1 or more".to_owned()) } else { Ok(()) }
}

fn named_hints(hints: &Option<BTreeMap<String, String>>, &(): &()) -> garde::Result {
    let (name_bytes, value_bytes) = (limits::HINT_NAME_BYTES, limits::HINT_VALUE_BYTES);
    for (name, value) in hints.iter().flatten() {
        if name.is_empty() || name.len() > name_bytes || !is_visible(name) {
            return fail(format!(
                "must have names of 1 to {name_bytes} visible ASCII characters, one has {} bytes",
                name.len()
            ));
        }
        if value.len() > value_bytes {
            return fail(format!("must have at most {value_bytes} bytes under {name}, got {}", value.len()));
        }
    }
    Ok(())
}

pub(crate) fn schema_name(name: &Option<String>, &(): &()) -> garde::Result {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    match name.as_ref().is_none_or(|name| name.bytes().all(known)) {
        true => Ok(()),
        false => fail("must have letters, digits, `_` or `-` alone".to_owned()),
    }
}

/// Why a text ended, as OpenAI's `finish_reason` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "snake_case")]
pub(crate) enum Finish {
    Stop,
    /// The stop string of this index.
    #[schemars(skip)]
    StopString(u8),
    Length,
    /// The time that the request allowed; OpenAI's shapes have no word for it.
    #[schemars(skip)]
    Expired,
    ContentFilter,
    /// Of a chat.
    ToolCalls,
}

impl Serialize for Finish {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Finish {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Stop | Self::StopString(_) => "stop",
            Self::Length | Self::Expired => "length",
            Self::ContentFilter => "content_filter",
            Self::ToolCalls => "tool_calls",
        }
    }
}

impl From<FinishReason> for Finish {
    fn from(reason: FinishReason) -> Self {
        match reason {
            FinishReason::Stop => Self::Stop,
            FinishReason::StopString(stop) => Self::StopString(stop),
            FinishReason::Filtered => Self::ContentFilter,
            FinishReason::Expired => Self::Expired,
            // `RunningChoices` turns a cancelled generation into an error.
            FinishReason::Length | FinishReason::Cancelled => Self::Length,
        }
    }
}

/// What OpenAI's shapes have no word for, of one choice.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct ChoiceNote {
    /// `max_duration`.
    pub(crate) finish_detail: &'static str,
}

impl ChoiceNote {
    /// `None`: `finish_reason` says it all.
    pub(crate) fn of(finish: Finish) -> Option<Self> {
        (finish == Finish::Expired).then_some(Self { finish_detail: "max_duration" })
    }
}

/// An answer of chats or completions, or an event of one that is streamed.
#[skip_serializing_none]
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{C}List")]
pub(crate) struct ChoiceList<'a, C> {
    pub(crate) id: &'a str,
    /// `chat.completion`, of an event `chat.completion.chunk`; of completions `text_completion`.
    pub(crate) object: &'static str,
    /// Seconds since the Unix epoch.
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) system_fingerprint: &'a str,
    /// That the request named.
    pub(crate) session_id: Option<&'a str>,
    pub(crate) choices: &'a [C],
    /// Of an event: null but in the last one, where it was asked for, or else absent.
    pub(crate) usage: Option<Option<Usage>>,
}

/// Tokens of a request, its prompts counted once.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct Usage {
    pub(crate) prompt_tokens: u64,
    pub(crate) completion_tokens: u64,
    pub(crate) total_tokens: u64,
    pub(crate) prompt_tokens_details: PromptTokens,
    pub(crate) completion_tokens_details: CompletionTokens,
}

/// Clients expect all of these fields.
#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct PromptTokens {
    pub(crate) cached_tokens: u64,
    pub(crate) audio_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize, JsonSchema)]
pub(crate) struct CompletionTokens {
    pub(crate) reasoning_tokens: u64,
    pub(crate) audio_tokens: u64,
    pub(crate) accepted_prediction_tokens: u64,
    pub(crate) rejected_prediction_tokens: u64,
}
