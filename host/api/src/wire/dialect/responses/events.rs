//! The events of a response, from the chunks of a chat.
use serde::Serialize;

use super::output::{Head, Item, Logprobs, Outcome, Part, ResponseObject, Status};
use crate::wire::chat_answer::{CallDelta, ChatAnswer, Choice, StreamError};
use crate::wire::sse::{self, Pieces};
use crate::wire::stamp;

/// Copies of what the model says that a stream may hold at once: as it is kept, and in each of the last four events, where
/// characters may be escaped.
const TEXT_COPIES: usize = 6;
/// Copies of what the request's repeated fields are: in each of the first two events.
const ECHO_COPIES: usize = 2;

/// Writes the events of one response in the order that clients rely on: `response.created` and `response.in_progress`; for
/// each item what opens it, its parts and what closes it; then how the response ended. One item is open at a time.
#[derive(Debug)]
pub(crate) struct Events {
    head: Head,
    outcome: Outcome,
    items: Vec<Item>,
    open: Option<OpenBlock>,
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
    Refusal,
    /// The call with this index in the chat.
    Call(usize),
}

impl OpenBlock {
    /// Whether both are parts of one item.
    fn shares_item(self, other: Self) -> bool {
        matches!((self, other), (Self::Text, Self::Refusal) | (Self::Refusal, Self::Text))
    }
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
    refusal: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<&'a Logprobs>,
}

impl Events {
    /// `echo_bytes`: of what the head repeats of the request.
    pub(super) fn new(head: Head, echo_bytes: usize) -> Self {
        Self { head, outcome: Outcome::open(), items: Vec::new(), open: None, sequence: 0, text_bytes: 0, echo_bytes }
    }

    /// What the stream takes in memory besides the request, at most.
    pub(crate) fn held_bytes(&self) -> usize {
        ECHO_COPIES * self.echo_bytes + TEXT_COPIES * self.text_bytes
    }

    pub(crate) fn ended(&self) -> bool {
        self.outcome.status != Status::InProgress
    }

    pub(crate) fn chunk(&mut self, out: &mut Pieces, chunk: ChatAnswer) {
        if !chunk.model.is_empty() {
            self.head.model = chunk.model;
        }
        self.begin(out);
        if let Some(error) = chunk.error {
            self.fail(out, error);
            return;
        }
        self.outcome.usage = chunk.usage.or(self.outcome.usage);
        if let Some(choice) = chunk.choices.into_iter().next() {
            self.choice(out, choice);
        }
    }

    /// The chat's last chunk was the one before.
    pub(crate) fn end(&mut self, out: &mut Pieces) {
        self.begin(out);
        if self.items.is_empty() {
            self.turn_to(out, OpenBlock::Text);
        }
        let status = self.outcome.ended();
        self.close_item(out, status);
        self.outcome.status = status;
        let incomplete = status == Status::Incomplete;
        self.with_response(out, if incomplete { "response.incomplete" } else { "response.completed" });
    }

    fn fail(&mut self, out: &mut Pieces, error: StreamError) {
        self.close_item(out, Status::Incomplete);
        (self.outcome.status, self.outcome.error) = (Status::Failed, Some(error));
        self.with_response(out, "response.failed");
    }

    fn begin(&mut self, out: &mut Pieces) {
        if self.sequence == 0 {
            self.with_response(out, "response.created");
            self.with_response(out, "response.in_progress");
        }
    }

    fn choice(&mut self, out: &mut Pieces, choice: Choice) {
        let Choice { delta, logprobs, finish_reason, .. } = choice;
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(text) = said(delta.reasoning_content) {
            self.turn_to(out, OpenBlock::Thinking);
            self.text(out, "response.reasoning_text.delta", &text, None);
        }
        let list = Logprobs::of(logprobs);
        if let Some(text) = delta.content.filter(|text| !text.is_empty() || !list.is_empty()) {
            self.turn_to(out, OpenBlock::Text);
            self.text(out, "response.output_text.delta", &text, Some(&list));
        }
        if let Some(text) = said(delta.refusal) {
            self.turn_to(out, OpenBlock::Refusal);
            self.text(out, "response.refusal.delta", &text, None);
        }
        for (position, call) in delta.tool_calls.unwrap_or_default().into_iter().enumerate() {
            self.call(out, call, position);
        }
        self.outcome.finish_reason = finish_reason.or(self.outcome.finish_reason.take());
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

    fn call(&mut self, out: &mut Pieces, call: CallDelta, position: usize) {
        let block = OpenBlock::Call(call.index.unwrap_or(position));
        if self.open != Some(block) {
            self.close_item(out, Status::Completed);
            self.open = Some(block);
            let call_id = call.id.unwrap_or_else(|| stamp::id("call_"));
            self.open_item(out, Item::call(call_id, call.function.name.unwrap_or_default()));
        }
        let Some(more) = call.function.arguments.filter(|more| !more.is_empty()) else { return };
        self.text_bytes += more.len();
        if let Some(item) = self.items.last_mut() {
            item.add_arguments(&more);
        }
        let event = Event { delta: Some(&more), ..at_item(&self.items) };
        Self::write(&mut self.sequence, out, "response.function_call_arguments.delta", event);
    }

    /// Closes what is open and opens what is needed.
    fn turn_to(&mut self, out: &mut Pieces, next: OpenBlock) {
        if self.open == Some(next) {
            return;
        }
        if self.open.is_some_and(|open| open.shares_item(next)) {
            self.close_part(out);
        } else {
            self.close_item(out, Status::Completed);
            self.open_item(out, if next == OpenBlock::Thinking { Item::reasoning() } else { Item::message() });
        }
        self.open = Some(next);
        let part = match next {
            OpenBlock::Thinking => Part::reasoning(),
            OpenBlock::Refusal => Part::refusal(),
            OpenBlock::Text | OpenBlock::Call(_) => Part::text(),
        };
        if let Some(parts) = self.items.last_mut().and_then(Item::parts_mut) {
            parts.push(part);
        }
        self.with_part(out, "response.content_part.added");
    }

    fn open_item(&mut self, out: &mut Pieces, item: Item) {
        self.items.push(item);
        self.with_item(out, "response.output_item.added");
    }

    fn close_item(&mut self, out: &mut Pieces, status: Status) {
        match self.open.take() {
            None => return,
            Some(OpenBlock::Call(_)) => self.close_call(out),
            Some(OpenBlock::Thinking | OpenBlock::Text | OpenBlock::Refusal) => self.close_part(out),
        }
        if let Some(item) = self.items.last_mut() {
            item.set_status(status);
        }
        self.with_item(out, "response.output_item.done");
    }

    fn close_call(&mut self, out: &mut Pieces) {
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
            Part::Refusal { refusal } => ("response.refusal.done", Event { refusal: Some(refusal), ..at }),
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
