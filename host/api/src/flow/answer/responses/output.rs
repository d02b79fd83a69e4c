//! The objects of the Responses API: a response, its items and their parts.
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::flow::answer::Finish;
use crate::flow::answer::usage::ResponsesUsage;
use crate::flow::generation::Totals;
use crate::flow::request::GenerationRequest;
use crate::wire::dialect::{CUSTOM_INPUT, CallNames, CalledTool, ResponseEcho};
use crate::wire::error::{Answer, ErrorType};
use crate::wire::stamp;

/// What a response is called, and what it repeats of the request.
#[derive(Debug)]
pub(super) struct Head {
    id: String,
    created_at: u64,
    model: String,
    echo: Map<String, Value>,
    pub(super) calls: CallNames,
}

/// What became of a response.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) status: Status,
    /// `None`: it goes on.
    pub(super) finish: Option<Finish>,
    pub(super) totals: Option<Totals>,
    pub(super) error: Option<ErrorObject>,
}

/// A response, complete or not.
#[derive(Debug, Serialize)]
pub(super) struct ResponseObject<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    model: &'a str,
    status: Status,
    error: Option<&'a ErrorObject>,
    incomplete_details: Option<IncompleteDetails>,
    output: &'a [Item],
    usage: Option<ResponsesUsage>,
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
    Reasoning {
        id: String,
        summary: [(); 0],
        content: Vec<Part>,
        status: Status,
    },
    Message {
        id: String,
        status: Status,
        role: &'static str,
        content: Vec<Part>,
    },
    FunctionCall {
        id: String,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        arguments: String,
        status: Status,
    },
    CustomToolCall {
        id: String,
        call_id: String,
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        namespace: Option<String>,
        /// The arguments of the function that stands for the tool, until [`Item::end_input`].
        input: String,
        status: Status,
    },
}

/// A part of an item.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Part {
    ReasoningText { text: String },
    OutputText { text: String, annotations: [(); 0], logprobs: Logprobs },
}

/// Log-probabilities of tokens, as a chat lists them.
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
pub(super) struct ErrorObject {
    code: &'static str,
    message: String,
}

impl Head {
    pub(super) fn new(echo: ResponseEcho, request: &GenerationRequest) -> Self {
        let (id, model) = (stamp::id("resp_"), request.model_name().to_owned());
        Self { id, created_at: stamp::now(), model, echo: echo.fields, calls: echo.calls }
    }
}

impl Outcome {
    /// Of a response that has begun.
    pub(super) fn open() -> Self {
        Self { status: Status::InProgress, finish: None, totals: None, error: None }
    }

    /// The status once the answer has ended.
    pub(super) fn ended(&self) -> Status {
        match self.finish.and_then(IncompleteDetails::of) {
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
            error: outcome.error.as_ref(),
            incomplete_details: match outcome.status {
                Status::Incomplete => outcome.finish.and_then(IncompleteDetails::of),
                _ => None,
            },
            output,
            usage: outcome.totals.map(ResponsesUsage::from),
            echo: &head.echo,
        }
    }
}

impl From<&Answer> for ErrorObject {
    fn from(answer: &Answer) -> Self {
        let error = answer.body().error;
        let code = match error.kind {
            ErrorType::RateLimit => "rate_limit_exceeded",
            ErrorType::InvalidRequest => "invalid_prompt",
            ErrorType::Authentication | ErrorType::Permission | ErrorType::Server => "server_error",
        };
        Self { code, message: error.message }
    }
}

impl IncompleteDetails {
    /// `None`: the response is complete.
    fn of(finish: Finish) -> Option<Self> {
        match finish {
            Finish::Length | Finish::Expired => Some(Self { reason: "max_output_tokens" }),
            Finish::ContentFilter => Some(Self { reason: "content_filter" }),
            Finish::Stop | Finish::StopString(_) | Finish::ToolCalls => None,
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

    /// A call of a function, or of the client's tool that it stands for.
    pub(super) fn call(call_id: String, function: String, names: &CallNames) -> Self {
        let status = Status::InProgress;
        let CalledTool { name, namespace, is_custom } = match names.of(&function) {
            Some(tool) => tool.clone(),
            None => CalledTool { name: function, namespace: None, is_custom: false },
        };
        match is_custom {
            true => {
                Self::CustomToolCall { id: stamp::id("ctc_"), call_id, name, namespace, input: String::new(), status }
            }
            false => {
                let (id, arguments) = (stamp::id("fc_"), String::new());
                Self::FunctionCall { id, call_id, name, namespace, arguments, status }
            }
        }
    }

    /// With this part; a call has none.
    pub(super) fn with(mut self, part: Part) -> Self {
        if let Some(parts) = self.parts_mut() {
            *parts = vec![part];
        }
        self
    }

    /// More arguments of a call.
    pub(super) fn add_arguments(&mut self, more: &str) {
        if let Self::FunctionCall { arguments: text, .. } | Self::CustomToolCall { input: text, .. } = self {
            text.push_str(more);
        }
    }

    /// The arguments of a call have ended: those that stand for the text of a custom tool become it.
    pub(super) fn end_input(&mut self) {
        let Self::CustomToolCall { input, .. } = self else { return };
        let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
        // A call that was cut may end within the text.
        let arguments = read(input).or_else(|| read(&format!("{input}\"}}")));
        let text = arguments.and_then(|mut arguments| arguments.remove(CUSTOM_INPUT));
        *input = text.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    }

    pub(super) fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::CustomToolCall { id, .. } => id,
        }
    }

    pub(super) fn set_status(&mut self, to: Status) {
        match self {
            Self::Reasoning { status, .. }
            | Self::Message { status, .. }
            | Self::FunctionCall { status, .. }
            | Self::CustomToolCall { status, .. } => *status = to,
        }
    }

    /// Empty for a call, which has none.
    pub(super) fn parts(&self) -> &[Part] {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content,
            Self::FunctionCall { .. } | Self::CustomToolCall { .. } => &[],
        }
    }

    /// The last part.
    pub(super) fn open_part(&mut self) -> Option<&mut Part> {
        self.parts_mut().and_then(|parts| parts.last_mut())
    }

    pub(super) fn parts_mut(&mut self) -> Option<&mut Vec<Part>> {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => Some(content),
            Self::FunctionCall { .. } | Self::CustomToolCall { .. } => None,
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

    pub(super) fn text_mut(&mut self) -> &mut String {
        match self {
            Self::ReasoningText { text } | Self::OutputText { text, .. } => text,
        }
    }
}
