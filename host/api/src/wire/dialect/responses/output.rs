//! The objects of the Responses API: a response, its items and their parts.
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::wire::chat_answer::{StreamError, Usage};
use crate::wire::stamp;

/// What a response is called, and what it repeats of the request.
#[derive(Debug)]
pub(super) struct Head {
    id: String,
    created_at: u64,
    pub(super) model: String,
    echo: Map<String, Value>,
}

/// What became of a response.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) status: Status,
    /// The chat's.
    pub(super) finish_reason: Option<String>,
    pub(super) usage: Option<Usage>,
    pub(super) error: Option<StreamError>,
}

/// A response, complete or not.
#[derive(Debug, Serialize)]
pub(super) struct ResponseObject<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    model: &'a str,
    status: Status,
    error: Option<ErrorObject<'a>>,
    incomplete_details: Option<IncompleteDetails>,
    output: &'a [Item],
    usage: Option<UsageObject>,
    #[serde(flatten)]
    echo: &'a Map<String, Value>,
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
pub(super) struct Logprobs(Option<Box<RawValue>>);

/// The tokens among a chat's log-probabilities.
#[derive(Debug, Deserialize)]
struct ChatLogprobs {
    content: Option<Box<RawValue>>,
}

impl Logprobs {
    /// Of a chat's choice.
    pub(super) fn of(chat: Option<Box<RawValue>>) -> Self {
        let all = chat.and_then(|all| serde_json::from_str::<ChatLogprobs>(all.get()).ok());
        Self(all.and_then(|all| all.content).filter(|list| list.get() != "[]"))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

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

impl Head {
    pub(super) fn new(model: String, echo: Map<String, Value>) -> Self {
        Self { id: stamp::id("resp_"), created_at: stamp::now(), model, echo }
    }
}

impl Outcome {
    /// Of a response that has begun.
    pub(super) fn open() -> Self {
        Self { status: Status::InProgress, finish_reason: None, usage: None, error: None }
    }

    /// The status once the chat has ended.
    pub(super) fn ended(&self) -> Status {
        match IncompleteDetails::of(self.finish_reason.as_deref()) {
            Some(_) => Status::Incomplete,
            None => Status::Completed,
        }
    }
}

impl<'a> ResponseObject<'a> {
    pub(super) fn new(head: &'a Head, outcome: &'a Outcome, output: &'a [Item]) -> Self {
        Self {
            id: &head.id,
            object: "response",
            created_at: head.created_at,
            model: &head.model,
            status: outcome.status,
            error: outcome.error.as_ref().map(ErrorObject::of),
            incomplete_details: match outcome.status {
                Status::Incomplete => IncompleteDetails::of(outcome.finish_reason.as_deref()),
                _ => None,
            },
            output,
            usage: outcome.usage.map(UsageObject::from),
            echo: &head.echo,
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
        Self::Reasoning { id: stamp::id("rs_"), summary: [], content: Vec::new(), status: Status::InProgress }
    }

    pub(super) fn message() -> Self {
        Self::Message { id: stamp::id("msg_"), status: Status::InProgress, role: "assistant", content: Vec::new() }
    }

    pub(super) fn call(call_id: String, name: String) -> Self {
        Self::FunctionCall { id: stamp::id("fc_"), call_id, name, arguments: String::new(), status: Status::InProgress }
    }

    /// With these parts; a call has none.
    pub(super) fn with(mut self, parts: Vec<Part>) -> Self {
        if let Some(own) = self.parts_mut() {
            *own = parts;
        }
        self
    }

    /// More arguments of a call.
    pub(super) fn add_arguments(&mut self, more: &str) {
        if let Self::FunctionCall { arguments, .. } = self {
            arguments.push_str(more);
        }
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
    pub(super) fn reasoning() -> Self {
        Self::ReasoningText { text: String::new() }
    }

    pub(super) fn text() -> Self {
        Self::OutputText { text: String::new(), annotations: [], logprobs: Logprobs::default() }
    }

    pub(super) fn refusal() -> Self {
        Self::Refusal { refusal: String::new() }
    }

    pub(super) fn text_mut(&mut self) -> &mut String {
        match self {
            Self::ReasoningText { text } | Self::OutputText { text, .. } => text,
            Self::Refusal { refusal } => refusal,
        }
    }
}
