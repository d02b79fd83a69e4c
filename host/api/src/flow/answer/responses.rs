//! OpenAI's Responses API: whole responses, and the events of streamed ones.
use std::sync::Arc;

use axum::response::Response;
use camshaft_core::message::TokenLogprob;
use serde_json::{Map, Value};

use super::parts::AnswerPart;
use super::{AnswerDelta, AnswerWriter, WholeChoice};
use crate::flow::budget::{self, Share};
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::request::GenerationRequest;
use crate::wire::dialect::{CUSTOM_INPUT, CallNames, CalledTool, ResponseEcho};
use crate::wire::error::{Answer, ErrorType};
use crate::wire::sse::{self, Pieces};
use crate::wire::stamp;
use crate::wire::types::generation::Finish;
use crate::wire::types::logprobs::ListedTokens;
use crate::wire::types::responses as wire;
use crate::wire::types::responses::{
    IncompleteDetails, InputTokens, ItemPlace, OutputItem, OutputPart, OutputTokens, PartPlace, ResponseError,
    ResponseEvent, ResponseStatus, ResponseUsage,
};

/// Copies of what the model says that a stream may hold at once: as it is kept, and in each of the last four events, where
/// characters may be escaped.
const TEXT_COPIES: usize = 6;
/// Copies of what the request's repeated fields are: in each of the first two events.
const ECHO_COPIES: usize = 2;

/// Writes the events of one response in the order that clients rely on: `response.created` and `response.in_progress`; for
/// each item what opens it, its parts and what closes it; then how the response ended. One item is open at a time.
pub(super) struct ResponsesStreamWriter {
    request: Arc<GenerationRequest>,
    head: Head,
    outcome: Outcome,
    items: Vec<OutputItem>,
    open: Option<OpenBlock>,
    /// Tokens before anything is told.
    held: Vec<TokenLogprob>,
    /// Of the next event.
    sequence: u64,
    /// Of what the model has said.
    text_bytes: usize,
    /// Of what the response repeats.
    echo_bytes: usize,
}

/// What a response is called, and what it repeats of the request.
#[derive(Debug)]
struct Head {
    id: String,
    created_at: u64,
    model: String,
    echo: Map<String, Value>,
    calls: CallNames,
}

/// What became of a response.
#[derive(Debug)]
struct Outcome {
    status: ResponseStatus,
    /// `None`: it goes on.
    finish: Option<Finish>,
    totals: Option<Totals>,
    error: Option<ResponseError>,
}

/// Which item is open, and which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    Call,
}

impl ResponsesStreamWriter {
    pub(super) fn new(echo: ResponseEcho, request: Arc<GenerationRequest>) -> Self {
        let (echo_bytes, head) = (echo.bytes, Head::new(echo, &request));
        let (outcome, items) = (Outcome::open(), Vec::new());
        Self { request, head, outcome, items, open: None, held: Vec::new(), sequence: 0, text_bytes: 0, echo_bytes }
    }

    /// More text of the part that is open.
    fn text(&mut self, out: &mut Pieces, delta: &str, logprobs: Option<&ListedTokens>) {
        self.text_bytes += delta.len();
        let Some((at, _)) = part_place(&self.items) else { return };
        write(&mut self.sequence, out, |sequence_number| match logprobs {
            None => ResponseEvent::ReasoningDelta { sequence_number, at, delta },
            Some(logprobs) => ResponseEvent::TextDelta { sequence_number, at, delta, logprobs },
        });
        if let Some(part) = self.items.last_mut().and_then(OutputItem::parts_mut).and_then(|parts| parts.last_mut()) {
            part.text_mut().push_str(delta);
        }
    }

    fn arguments(&mut self, out: &mut Pieces, delta: &str) {
        self.text_bytes += delta.len();
        self.items.last_mut().into_iter().for_each(|item| item.add_arguments(delta));
        // The text of a custom tool is told once it is complete.
        if matches!(self.items.last(), Some(OutputItem::FunctionCall { .. })) {
            let at = item_place(&self.items);
            let event = |sequence_number| ResponseEvent::ArgumentsDelta { sequence_number, at, delta };
            write(&mut self.sequence, out, event);
        }
    }

    /// Closes what is open and opens what is needed, unless that is open.
    fn open_text(&mut self, out: &mut Pieces, next: OpenBlock) {
        if self.open == Some(next) {
            return;
        }
        self.close_item(out, ResponseStatus::Completed);
        let is_thinking = next == OpenBlock::Thinking;
        self.open_item(out, next, if is_thinking { OutputItem::reasoning() } else { OutputItem::message() });
        if let Some(parts) = self.items.last_mut().and_then(OutputItem::parts_mut) {
            parts.push(if is_thinking { OutputPart::reasoning() } else { OutputPart::text() });
        }
        if let Some((at, part)) = part_place(&self.items) {
            let event = |sequence_number| ResponseEvent::PartAdded { sequence_number, at, part };
            write(&mut self.sequence, out, event);
        }
    }

    fn open_item(&mut self, out: &mut Pieces, block: OpenBlock, item: OutputItem) {
        self.open = Some(block);
        let output_index = self.items.len();
        let event = |sequence_number| ResponseEvent::ItemAdded { sequence_number, output_index, item: &item };
        write(&mut self.sequence, out, event);
        self.items.push(item);
    }

    fn close_item(&mut self, out: &mut Pieces, status: ResponseStatus) {
        match self.open.take() {
            None => return,
            Some(OpenBlock::Call) => self.close_call(out),
            Some(OpenBlock::Thinking | OpenBlock::Text) => self.close_part(out),
        }
        let output_index = item_place(&self.items).output_index;
        if let Some(item) = self.items.last_mut() {
            item.set_status(status);
            let event = |sequence_number| ResponseEvent::ItemDone { sequence_number, output_index, item };
            write(&mut self.sequence, out, event);
        }
    }

    fn close_call(&mut self, out: &mut Pieces) {
        self.items.last_mut().into_iter().for_each(OutputItem::end_input);
        let at = item_place(&self.items);
        match self.items.last() {
            Some(OutputItem::CustomToolCall { input, .. }) => {
                let delta = |sequence_number| ResponseEvent::InputDelta { sequence_number, at, delta: input };
                write(&mut self.sequence, out, delta);
                write(&mut self.sequence, out, |sequence_number| ResponseEvent::InputDone {
                    sequence_number,
                    at,
                    input,
                });
            }
            Some(OutputItem::FunctionCall { name, arguments, .. }) => {
                let done = |sequence_number| ResponseEvent::ArgumentsDone { sequence_number, at, name, arguments };
                write(&mut self.sequence, out, done);
            }
            Some(OutputItem::Reasoning { .. } | OutputItem::Message { .. }) | None => {}
        }
    }

    fn close_part(&mut self, out: &mut Pieces) {
        let Some((at, part)) = part_place(&self.items) else { return };
        write(&mut self.sequence, out, |sequence_number| match part {
            OutputPart::ReasoningText { text } => ResponseEvent::ReasoningDone { sequence_number, at, text },
            OutputPart::OutputText { text, logprobs, .. } => {
                ResponseEvent::TextDone { sequence_number, at, text, logprobs }
            }
        });
        write(&mut self.sequence, out, |sequence_number| ResponseEvent::PartDone { sequence_number, at, part });
    }

    /// An event with the response as it is now.
    fn with_response<'a>(
        &'a mut self,
        out: &mut Pieces,
        event: impl FnOnce(u64, wire::Response<'a>) -> ResponseEvent<'a>,
    ) {
        let response = self.head.response(&self.outcome, &self.items);
        write(&mut self.sequence, out, |sequence_number| event(sequence_number, response));
    }
}

/// Writes the event that has the next number.
fn write<'a>(sequence: &mut u64, out: &mut Pieces, event: impl FnOnce(u64) -> ResponseEvent<'a>) {
    let event = event(*sequence);
    *sequence += 1;
    sse::write_named(out.next(), event.name(), &event);
}

/// The item that is open, the last one.
fn item_place(items: &[OutputItem]) -> ItemPlace<'_> {
    let item_id = items.last().map(OutputItem::id).unwrap_or_default();
    ItemPlace { item_id, output_index: items.len().saturating_sub(1) }
}

/// Its part that is open.
fn part_place(items: &[OutputItem]) -> Option<(PartPlace<'_>, &OutputPart)> {
    let parts = items.last()?.parts();
    Some((PartPlace { item: item_place(items), content_index: parts.len().checked_sub(1)? }, parts.last()?))
}

impl AnswerWriter for ResponsesStreamWriter {
    fn held_bytes(&self) -> usize {
        ECHO_COPIES * self.echo_bytes + TEXT_COPIES * self.text_bytes
    }

    fn begin(&mut self, out: &mut Pieces, _: usize) {
        if self.sequence == 0 {
            self.with_response(out, |sequence_number, response| ResponseEvent::Created { sequence_number, response });
            self.with_response(out, |sequence_number, response| ResponseEvent::InProgress {
                sequence_number,
                response,
            });
        }
    }

    fn delta(&mut self, out: &mut Pieces, _: usize, delta: &AnswerDelta) {
        let mut drawn = std::mem::take(&mut self.held);
        drawn.extend_from_slice(&delta.logprobs);
        // They go with the first text; with an empty one if all of it is held back within a text. What is held back before anything
        // is told may begin a text, or a call, whose tokens are not told.
        let mut list = ListedTokens::new(&self.request.vocabulary, &drawn);
        match self.open {
            _ if !delta.parts.is_empty() || list.is_empty() => {}
            None => self.held = drawn,
            Some(OpenBlock::Text) => self.text(out, "", Some(&list)),
            Some(OpenBlock::Thinking | OpenBlock::Call) => {}
        }
        for part in &delta.parts {
            match part {
                AnswerPart::Reasoning(text) => {
                    self.open_text(out, OpenBlock::Thinking);
                    self.text(out, text, None);
                }
                AnswerPart::Content(text) => {
                    self.open_text(out, OpenBlock::Text);
                    self.text(out, text, Some(&std::mem::take(&mut list)));
                }
                AnswerPart::Call { id, name, .. } => {
                    self.close_item(out, ResponseStatus::Completed);
                    self.open_item(out, OpenBlock::Call, OutputItem::call(id.clone(), name.clone(), &self.head.calls));
                }
                AnswerPart::Arguments { text, .. } => {
                    if !text.is_empty() {
                        self.arguments(out, text);
                    }
                }
            }
        }
    }

    fn finish(&mut self, _: &mut Pieces, _: usize, finish: Finish) {
        self.outcome.finish = Some(finish);
    }

    fn end(&mut self, out: &mut Pieces, totals: Totals) {
        if self.items.is_empty() {
            self.open_text(out, OpenBlock::Text);
            let list = ListedTokens::new(&self.request.vocabulary, &self.held);
            if !list.is_empty() {
                self.text(out, "", Some(&list));
            }
        }
        let status = self.outcome.ended();
        self.close_item(out, status);
        (self.outcome.status, self.outcome.totals) = (status, Some(totals));
        self.with_response(out, |sequence_number, response| match status {
            ResponseStatus::Incomplete => ResponseEvent::Incomplete { sequence_number, response },
            _ => ResponseEvent::Completed { sequence_number, response },
        });
    }

    fn fail(&mut self, out: &mut Pieces, error: &Answer, request_id: &str) {
        self.close_item(out, ResponseStatus::Incomplete);
        (self.outcome.status, self.outcome.error) = (ResponseStatus::Failed, Some(error.into()));
        let event = |sequence_number, response| ResponseEvent::Failed { sequence_number, response, request_id };
        write(&mut self.sequence, out, |number| event(number, self.head.response(&self.outcome, &self.items)));
    }
}

/// A whole response.
///
/// # Errors
/// It cannot be written.
pub(super) fn whole(
    echo: ResponseEcho,
    request: &GenerationRequest,
    choices: Vec<WholeChoice>,
    totals: Totals,
    share: Share,
) -> Result<Response, FlowError> {
    let (head, mut outcome, mut items) = (Head::new(echo, request), Outcome::open(), Vec::new());
    for choice in choices {
        outcome.finish = Some(choice.finish);
        items = output_of(request, choice, &head.calls);
    }
    (outcome.status, outcome.totals) = (outcome.ended(), Some(totals));
    items.iter_mut().for_each(|item| item.set_status(ResponseStatus::Completed));
    if let Some(last) = items.last_mut() {
        last.set_status(outcome.status);
    }
    budget::json(&head.response(&outcome, &items), share)
}

/// What the model thought, said and called; at least one item.
fn output_of(request: &GenerationRequest, choice: WholeChoice, names: &CallNames) -> Vec<OutputItem> {
    let mut items = Vec::new();
    if !choice.reasoning.is_empty() {
        items.push(OutputItem::reasoning().with(OutputPart::ReasoningText { text: choice.reasoning }));
    }
    let logprobs = ListedTokens::new(&request.vocabulary, &choice.logprobs);
    let calls = !choice.calls.is_empty();
    let is_shown = !choice.content.is_empty() || !calls && (items.is_empty() || !logprobs.is_empty());
    if is_shown {
        let text = OutputPart::OutputText { text: choice.content, annotations: [], logprobs };
        items.push(OutputItem::message().with(text));
    }
    items.extend(choice.calls.into_iter().map(|call| {
        let mut item = OutputItem::call(call.id, call.name, names);
        item.add_arguments(&call.arguments);
        item.end_input();
        item
    }));
    items
}

impl Head {
    fn new(echo: ResponseEcho, request: &GenerationRequest) -> Self {
        let (id, model) = (stamp::id("resp_"), request.model_name().to_owned());
        Self { id, created_at: stamp::now(), model, echo: echo.fields, calls: echo.calls }
    }

    fn response<'a>(&'a self, outcome: &'a Outcome, output: &'a [OutputItem]) -> wire::Response<'a> {
        wire::Response {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            model: &self.model,
            status: outcome.status,
            error: outcome.error.as_ref(),
            incomplete_details: match outcome.status {
                ResponseStatus::Incomplete => outcome.finish.and_then(IncompleteDetails::of),
                _ => None,
            },
            output,
            usage: outcome.totals.map(ResponseUsage::from),
            repeated: &self.echo,
        }
    }
}

impl Outcome {
    /// Of a response that has begun.
    fn open() -> Self {
        Self { status: ResponseStatus::InProgress, finish: None, totals: None, error: None }
    }

    /// The status once the answer has ended.
    fn ended(&self) -> ResponseStatus {
        match self.finish.and_then(IncompleteDetails::of) {
            Some(_) => ResponseStatus::Incomplete,
            None => ResponseStatus::Completed,
        }
    }
}

impl From<Totals> for ResponseUsage {
    fn from(totals: Totals) -> Self {
        Self {
            input_tokens: totals.prompt_tokens,
            input_tokens_details: InputTokens { cached_tokens: totals.cached_tokens, cache_write_tokens: 0 },
            output_tokens: totals.generated_tokens,
            output_tokens_details: OutputTokens { reasoning_tokens: totals.reasoning_tokens },
            total_tokens: totals.prompt_tokens + totals.generated_tokens,
        }
    }
}

impl From<&Answer> for ResponseError {
    fn from(answer: &Answer) -> Self {
        let error = &answer.note().object;
        let code = match error.kind {
            ErrorType::RateLimit => "rate_limit_exceeded",
            ErrorType::InvalidRequest => "invalid_prompt",
            ErrorType::Authentication | ErrorType::Permission | ErrorType::Server => "server_error",
        };
        Self { code, message: error.message.clone() }
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

impl OutputItem {
    fn reasoning() -> Self {
        Self::Reasoning { id: stamp::id("rs_"), summary: [], content: Vec::new(), status: ResponseStatus::InProgress }
    }

    fn message() -> Self {
        Self::Message {
            id: stamp::id("msg_"),
            status: ResponseStatus::InProgress,
            role: "assistant",
            content: Vec::new(),
        }
    }

    /// A call of a function, or of the client's tool that it stands for.
    fn call(call_id: String, function: String, names: &CallNames) -> Self {
        let status = ResponseStatus::InProgress;
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
    fn with(mut self, part: OutputPart) -> Self {
        if let Some(parts) = self.parts_mut() {
            *parts = vec![part];
        }
        self
    }

    /// More arguments of a call.
    fn add_arguments(&mut self, more: &str) {
        if let Self::FunctionCall { arguments: text, .. } | Self::CustomToolCall { input: text, .. } = self {
            text.push_str(more);
        }
    }

    /// The arguments of a call have ended: those that stand for the text of a custom tool become it.
    fn end_input(&mut self) {
        let Self::CustomToolCall { input, .. } = self else { return };
        let read = |text: &str| serde_json::from_str::<Map<String, Value>>(text).ok();
        // A call that was cut may end within the text.
        let arguments = read(input).or_else(|| read(&format!("{input}\"}}")));
        let text = arguments.and_then(|mut arguments| arguments.remove(CUSTOM_INPUT));
        *input = text.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    }

    fn id(&self) -> &str {
        match self {
            Self::Reasoning { id, .. }
            | Self::Message { id, .. }
            | Self::FunctionCall { id, .. }
            | Self::CustomToolCall { id, .. } => id,
        }
    }

    fn set_status(&mut self, to: ResponseStatus) {
        match self {
            Self::Reasoning { status, .. }
            | Self::Message { status, .. }
            | Self::FunctionCall { status, .. }
            | Self::CustomToolCall { status, .. } => *status = to,
        }
    }

    /// Empty for a call, which has none.
    fn parts(&self) -> &[OutputPart] {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => content,
            Self::FunctionCall { .. } | Self::CustomToolCall { .. } => &[],
        }
    }

    fn parts_mut(&mut self) -> Option<&mut Vec<OutputPart>> {
        match self {
            Self::Reasoning { content, .. } | Self::Message { content, .. } => Some(content),
            Self::FunctionCall { .. } | Self::CustomToolCall { .. } => None,
        }
    }
}

impl OutputPart {
    fn reasoning() -> Self {
        Self::ReasoningText { text: String::new() }
    }

    fn text() -> Self {
        Self::OutputText { text: String::new(), annotations: [], logprobs: ListedTokens::default() }
    }

    fn text_mut(&mut self) -> &mut String {
        match self {
            Self::ReasoningText { text } | Self::OutputText { text, .. } => text,
        }
    }
}
