//! The objects of the Responses API: a response, its items and their parts.
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::wire::chat_answer::{StreamError, Usage};

/// A response, complete or not.
#[derive(Debug, Serialize)]
pub(super) struct ResponseObject<'a> {
    pub(super) id: &'a str,
    pub(super) object: &'static str,
    pub(super) created_at: u64,
    pub(super) model: &'a str,
    pub(super) status: Status,
    pub(super) error: Option<ErrorObject<'a>>,
    pub(super) incomplete_details: Option<IncompleteDetails>,
    pub(super) output: &'a [Item],
    pub(super) usage: Option<UsageObject>,
    #[serde(flatten)]
    pub(super) echo: &'a Map<String, Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Status {
    InProgress,
    Completed,
    Incomplete,
    Failed,
}

/// An item of the output.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Item {
    Reasoning { id: String, summary: [(); 0], content: Vec<Part>, status: Status },
    Message { id: String, status: Status, role: &'static str, content: Vec<Part> },
    FunctionCall { id: String, call_id: String, name: String, arguments: String, status: Status },
}

/// A part of an item.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part {
    ReasoningText { text: String },
    OutputText { text: String, annotations: [(); 0], logprobs: Logprobs },
    Refusal { refusal: String },
}

/// Log-probabilities of tokens, as a chat has them.
#[derive(Debug, Default)]
pub(super) struct Logprobs(pub(super) Option<Box<RawValue>>);

impl Serialize for Logprobs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0 {
            Some(list) => list.serialize(serializer),
            None => serializer.collect_seq([(); 0]),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct IncompleteDetails {
    reason: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct ErrorObject<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct UsageObject {
    input_tokens: u64,
    input_tokens_details: InputDetails,
    output_tokens: u64,
    output_tokens_details: OutputDetails,
    total_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct InputDetails {
    cached_tokens: u64,
    /// What a request leaves in the cache costs nothing.
    cache_write_tokens: u64,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct OutputDetails {
    reasoning_tokens: u64,
}

impl From<Usage> for UsageObject {
    fn from(usage: Usage) -> Self {
        let cached_tokens = usage.prompt_tokens_details.cached_tokens;
        let reasoning_tokens = usage.completion_tokens_details.reasoning_tokens;
        Self {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens, cache_write_tokens: 0 },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens },
            total_tokens: usage.total_tokens,
        }
    }
}

impl<'a> ErrorObject<'a> {
    pub(super) fn of(error: &'a StreamError) -> Self {
        let code = match error.kind.as_str() {
            "rate_limit_error" => "rate_limit_exceeded",
            "invalid_request_error" => "invalid_prompt",
            _ => "server_error",
        };
        Self { code, message: &error.message }
    }
}

impl IncompleteDetails {
    /// Of a chat's `finish_reason`. `None`: the response is complete.
    pub(super) fn of(finish_reason: Option<&str>) -> Option<Self> {
        match finish_reason {
            Some("length") => Some(Self { reason: "max_output_tokens" }),
            Some("content_filter") => Some(Self { reason: "content_filter" }),
            _ => None,
        }
    }
}

impl Item {
    pub(super) fn reasoning() -> Self {
        Self::Reasoning { id: id("rs"), summary: [], content: Vec::new(), status: Status::InProgress }
    }

    pub(super) fn message() -> Self {
        Self::Message { id: id("msg"), status: Status::InProgress, role: "assistant", content: Vec::new() }
    }

    pub(super) fn call(call_id: String, name: String) -> Self {
        Self::FunctionCall { id: id("fc"), call_id, name, arguments: String::new(), status: Status::InProgress }
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. } | Self::Message { id, .. } | Self::FunctionCall { id, .. } => id,
        }
    }

    pub(super) fn set_status(&mut self, to: Status) {
        match self {
            Self::Reasoning { status, .. } | Self::Message { status, .. } | Self::FunctionCall { status, .. } => {
                *status = to;
            }
        }
    }

    /// Empty for a call, which has none.
    pub(super) fn parts(&self) -> &[Part] {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content,
            Self::FunctionCall { .. } => &[],
        }
    }

    /// The last part.
    pub(super) fn open_part(&mut self) -> Option<&mut Part> {
        self.parts_mut().and_then(|parts| parts.last_mut())
    }

    pub(super) fn parts_mut(&mut self) -> Option<&mut Vec<Part>> {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => Some(content),
            Self::FunctionCall { .. } => None,
        }
    }
}

impl Part {
    pub(super) fn text_mut(&mut self) -> &mut String {
        match self {
            Self::ReasoningText { text } | Self::OutputText { text, .. } => text,
            Self::Refusal { refusal } => refusal,
        }
    }
}

/// A fresh name of an object of this kind.
pub(super) fn id(kind: &str) -> String {
    format!("{kind}_{:032x}", rand::random::<u128>())
}
