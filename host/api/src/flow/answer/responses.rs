//! OpenAI's Responses API: whole responses, and the events of streamed ones.
mod output;

use std::sync::Arc;

use axum::response::Response;
use camshaft_core::message::TokenLogprob;
use serde::Serialize;

use super::parts::AnswerPart;
use super::{AnswerDelta, AnswerWriter, Finish, WholeChoice, logprobs};
use crate::flow::budget::Share;
use crate::flow::error::FlowError;
use crate::flow::generation::Totals;
use crate::flow::kept;
use crate::flow::request::GenerationRequest;
use crate::wire::answer::Answer;
use crate::wire::dialect::{CallNames, ResponseEcho};
use crate::wire::sse::{self, Pieces};
use output::{Head, Item, Logprobs, Outcome, Part, ResponseObject, Status};

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
    items: Vec<Item>,
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

/// Which item is open, and which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpenBlock {
    Thinking,
    Text,
    Call,
}

/// An event. Of its fields, each kind has some.
#[derive(Debug, Default, Serialize)]
struct Event<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    sequence_number: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    response: Option<ResponseObject<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_index: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    item: Option<&'a Item>,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<&'a Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delta: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a Logprobs>,
}

impl ResponsesStreamWriter {
    pub(super) fn new(echo: ResponseEcho, request: Arc<GenerationRequest>) -> Self {
        let (echo_bytes, head) = (echo.bytes, Head::new(echo, &request));
        let (outcome, items) = (Outcome::open(), Vec::new());
        Self { request, head, outcome, items, open: None, held: Vec::new(), sequence: 0, text_bytes: 0, echo_bytes }
    }

    /// Text of the part that is open.
    fn text(&mut self, out: &mut Pieces, kind: &'static str, text: &str, list: Option<&Logprobs>) {
        self.text_bytes += text.len();
        let delta = Event { delta: Some(text), logprobs: list, ..at_part(&self.items) };
        Self::write(&mut self.sequence, out, kind, delta);
        if let Some(part) = self.items.last_mut().and_then(Item::open_part) {
            part.text_mut().push_str(text);
        }
    }

    fn arguments(&mut self, out: &mut Pieces, more: &str) {
        self.text_bytes += more.len();
        let Some(item) = self.items.last_mut() else { return };
        item.add_arguments(more);
        // The text of a custom tool is told once it is complete.
        if matches!(item, Item::CustomToolCall { .. }) {
            return;
        }
        let event = Event { delta: Some(more), ..at_item(&self.items) };
        Self::write(&mut self.sequence, out, "response.function_call_arguments.delta", event);
    }

    /// Closes what is open and opens what is needed, unless that is open.
    fn open_text(&mut self, out: &mut Pieces, next: OpenBlock) {
        if self.open == Some(next) {
            return;
        }
        self.close_item(out, Status::Completed);
        let is_thinking = next == OpenBlock::Thinking;
        self.open_item(out, next, if is_thinking { Item::reasoning() } else { Item::message() });
        if let Some(parts) = self.items.last_mut().and_then(Item::parts_mut) {
            parts.push(if is_thinking { Part::reasoning() } else { Part::text() });
        }
        self.with_part(out, "response.content_part.added");
    }

    fn open_item(&mut self, out: &mut Pieces, block: OpenBlock, item: Item) {
        self.open = Some(block);
        self.items.push(item);
        self.with_item(out, "response.output_item.added");
    }

    fn close_item(&mut self, out: &mut Pieces, status: Status) {
        match self.open.take() {
            None => return,
            Some(OpenBlock::Call) => self.close_call(out),
            Some(OpenBlock::Thinking | OpenBlock::Text) => self.close_part(out),
        }
        if let Some(item) = self.items.last_mut() {
            item.set_status(status);
        }
        self.with_item(out, "response.output_item.done");
    }

    fn close_call(&mut self, out: &mut Pieces) {
        self.items.last_mut().into_iter().for_each(Item::end_input);
        if let Some(Item::CustomToolCall { input, .. }) = self.items.last() {
            let event = Event { delta: Some(input), ..at_item(&self.items) };
            Self::write(&mut self.sequence, out, "response.custom_tool_call_input.delta", event);
            let event = Event { input: Some(input), ..at_item(&self.items) };
            return Self::write(&mut self.sequence, out, "response.custom_tool_call_input.done", event);
        }
        let Some(Item::FunctionCall { name, arguments, .. }) = self.items.last() else { return };
        let (name, arguments) = (Some(name.as_str()), Some(arguments.as_str()));
        let event = Event { name, arguments, ..at_item(&self.items) };
        Self::write(&mut self.sequence, out, "response.function_call_arguments.done", event);
    }

    fn close_part(&mut self, out: &mut Pieces) {
        let Some(part) = self.items.last().and_then(|item| item.parts().last()) else { return };
        let at = at_part(&self.items);
        let (kind, event) = match part {
            Part::ReasoningText { text } => ("response.reasoning_text.done", Event { text: Some(text), ..at }),
            Part::OutputText { text, logprobs, .. } => {
                let event = Event { text: Some(text), logprobs: Some(logprobs), ..at };
                ("response.output_text.done", event)
            }
        };
        Self::write(&mut self.sequence, out, kind, event);
        self.with_part(out, "response.content_part.done");
    }

    fn with_part(&mut self, out: &mut Pieces, kind: &'static str) {
        let part = self.items.last().and_then(|item| item.parts().last());
        Self::write(&mut self.sequence, out, kind, Event { part, ..at_part(&self.items) });
    }

    fn with_item(&mut self, out: &mut Pieces, kind: &'static str) {
        let event =
            Event { item: self.items.last(), output_index: self.items.len().checked_sub(1), ..Event::default() };
        Self::write(&mut self.sequence, out, kind, event);
    }

    fn with_response(&mut self, out: &mut Pieces, kind: &'static str) {
        let response = Some(ResponseObject::new(&self.head, &self.outcome, &self.items));
        Self::write(&mut self.sequence, out, kind, Event { response, ..Event::default() });
    }

    fn write(sequence: &mut u64, out: &mut Pieces, kind: &'static str, event: Event<'_>) {
        sse::write_named(out.next(), kind, &Event { kind, sequence_number: *sequence, ..event });
        *sequence += 1;
    }
}

impl AnswerWriter for ResponsesStreamWriter {
    fn held_bytes(&self) -> usize {
        ECHO_COPIES * self.echo_bytes + TEXT_COPIES * self.text_bytes
    }

    fn begin(&mut self, out: &mut Pieces, _: usize) {
        if self.sequence == 0 {
            self.with_response(out, "response.created");
            self.with_response(out, "response.in_progress");
        }
    }

    fn delta(&mut self, out: &mut Pieces, _: usize, delta: &AnswerDelta) {
        let mut drawn = std::mem::take(&mut self.held);
        drawn.extend_from_slice(&delta.logprobs);
        // They go with the first text; with an empty one if all of it is held back within a text. What is held back before anything
        // is told may begin a text, or a call, whose tokens are not told.
        let mut list = Logprobs(logprobs::list(&self.request.vocabulary, &drawn));
        match self.open {
            _ if !delta.parts.is_empty() || list.0.is_none() => {}
            None => self.held = drawn,
            Some(OpenBlock::Text) => self.text(out, "response.output_text.delta", "", Some(&list)),
            Some(OpenBlock::Thinking | OpenBlock::Call) => {}
        }
        for part in &delta.parts {
            match part {
                AnswerPart::Reasoning(text) => {
                    self.open_text(out, OpenBlock::Thinking);
                    self.text(out, "response.reasoning_text.delta", text, None);
                }
                AnswerPart::Content(text) => {
                    self.open_text(out, OpenBlock::Text);
                    self.text(out, "response.output_text.delta", text, Some(&std::mem::take(&mut list)));
                }
                AnswerPart::Call { id, name, .. } => {
                    self.close_item(out, Status::Completed);
                    self.open_item(out, OpenBlock::Call, Item::call(id.clone(), name.clone(), &self.head.calls));
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
            let list = Logprobs(logprobs::list(&self.request.vocabulary, &self.held));
            if list.0.is_some() {
                self.text(out, "response.output_text.delta", "", Some(&list));
            }
        }
        let status = self.outcome.ended();
        self.close_item(out, status);
        (self.outcome.status, self.outcome.totals) = (status, Some(totals));
        let incomplete = status == Status::Incomplete;
        self.with_response(out, if incomplete { "response.incomplete" } else { "response.completed" });
    }

    fn fail(&mut self, out: &mut Pieces, error: &Answer) {
        self.close_item(out, Status::Incomplete);
        (self.outcome.status, self.outcome.error) = (Status::Failed, Some(error.into()));
        self.with_response(out, "response.failed");
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
    items.iter_mut().for_each(|item| item.set_status(Status::Completed));
    if let Some(last) = items.last_mut() {
        last.set_status(outcome.status);
    }
    kept::json(&ResponseObject::new(&head, &outcome, &items), share)
}

/// What the model thought, said and called; at least one item.
fn output_of(request: &GenerationRequest, choice: WholeChoice, names: &CallNames) -> Vec<Item> {
    let mut items = Vec::new();
    if !choice.reasoning.is_empty() {
        items.push(Item::reasoning().with(Part::ReasoningText { text: choice.reasoning }));
    }
    let logprobs = Logprobs(logprobs::list(&request.vocabulary, &choice.logprobs));
    let calls = !choice.calls.is_empty();
    let is_shown = !choice.content.is_empty() || !calls && (items.is_empty() || logprobs.0.is_some());
    if is_shown {
        let text = Part::OutputText { text: choice.content, annotations: [], logprobs };
        items.push(Item::message().with(text));
    }
    items.extend(choice.calls.into_iter().map(|call| {
        let mut item = Item::call(call.id, call.name, names);
        item.add_arguments(&call.arguments);
        item.end_input();
        item
    }));
    items
}

/// An event about the item that is open, the last one.
fn at_item(items: &[Item]) -> Event<'_> {
    let item_id = items.last().map(Item::id);
    Event { item_id, output_index: items.len().checked_sub(1), ..Event::default() }
}

/// An event about its part that is open.
fn at_part(items: &[Item]) -> Event<'_> {
    let content_index = items.last().and_then(|item| item.parts().len().checked_sub(1));
    Event { content_index, ..at_item(items) }
}
