//! The events of a response, from the chunks of a chat.
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::output::{ErrorObject, IncompleteDetails, Item, Logprobs, Part, ResponseObject, Status, UsageObject, id};
use crate::wire::chat_answer::{CallDelta, ChatAnswer, Choice, StreamError, Usage};
use crate::wire::sse;

/// Writes the events of one response in the order that clients rely on: `response.created` and `response.in_progress`; for
/// each item what opens it, its parts and what closes it; then how the response ended. One item is open at a time.
#[derive(Debug)]
pub(crate) struct Events {
    id: String,
    created_at: u64,
    model: String,
    echo: Map<String, Value>,
    whole: bool,
    items: Vec<Item>,
    doing: Doing,
    /// Of the next event.
    sequence: u64,
    status: Status,
    finish_reason: Option<String>,
    usage: Option<Usage>,
    error: Option<StreamError>,
    text_bytes: usize,
}

/// What the model does: which item is open, and which part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    Nothing,
    Thinking,
    Saying,
    Refusing,
    /// The call with this index in the chat.
    Calling(usize),
}

impl Doing {
    /// Whether both are parts of one item.
    fn shares_item(self, other: Self) -> bool {
        self == other || matches!((self, other), (Self::Saying, Self::Refusing) | (Self::Refusing, Self::Saying))
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

/// The tokens among a chat's log-probabilities.
#[derive(Debug, Deserialize)]
struct ChatLogprobs {
    content: Option<Box<RawValue>>,
}

impl Events {
    /// `whole`: of one answer without chunks, which keeps its log-probabilities. Those of a stream are in its deltas alone.
    pub(super) fn new(model: String, echo: Map<String, Value>, whole: bool) -> Self {
        Self {
            id: id("resp"),
            created_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs()),
            model,
            echo,
            whole,
            items: Vec::new(),
            doing: Doing::Nothing,
            sequence: 0,
            status: Status::InProgress,
            finish_reason: None,
            usage: None,
            error: None,
            text_bytes: 0,
        }
    }

    /// Bytes of the texts that are kept for the last events.
    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    pub(crate) fn ended(&self) -> bool {
        self.status != Status::InProgress
    }

    /// A chunk of the chat, or all of it.
    pub(crate) fn chunk(&mut self, out: &mut Vec<u8>, chunk: ChatAnswer) {
        if !chunk.model.is_empty() {
            self.model = chunk.model;
        }
        self.begin(out);
        if let Some(error) = chunk.error {
            self.fail(out, error);
            return;
        }
        self.usage = chunk.usage.or(self.usage);
        if let Some(choice) = chunk.choices.into_iter().next() {
            self.choice(out, choice);
        }
    }

    /// The chat's last chunk was the one before.
    pub(crate) fn end(&mut self, out: &mut Vec<u8>) {
        self.begin(out);
        if self.items.is_empty() {
            self.turn_to(out, Doing::Saying);
        }
        let incomplete = IncompleteDetails::of(self.finish_reason.as_deref()).is_some();
        let status = if incomplete { Status::Incomplete } else { Status::Completed };
        self.close_item(out, status);
        self.status = status;
        let kind = if incomplete { "response.incomplete" } else { "response.completed" };
        self.with_response(out, kind);
    }

    /// The chat failed.
    pub(crate) fn fail(&mut self, out: &mut Vec<u8>, error: StreamError) {
        self.begin(out);
        self.close_item(out, Status::Incomplete);
        (self.status, self.error) = (Status::Failed, Some(error));
        self.with_response(out, "response.failed");
    }

    /// The response as it is now.
    ///
    /// # Errors
    /// It cannot be written.
    pub(super) fn response(&self) -> Result<Vec<u8>, serde_json::Error> {
        serde_json::to_vec(&self.object())
    }

    fn object(&self) -> ResponseObject<'_> {
        ResponseObject {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            model: &self.model,
            status: self.status,
            error: self.error.as_ref().map(ErrorObject::of),
            incomplete_details: match self.status {
                Status::Incomplete => IncompleteDetails::of(self.finish_reason.as_deref()),
                _ => None,
            },
            output: &self.items,
            usage: self.usage.map(UsageObject::from),
            echo: &self.echo,
        }
    }

    fn begin(&mut self, out: &mut Vec<u8>) {
        if self.sequence == 0 {
            self.with_response(out, "response.created");
            self.with_response(out, "response.in_progress");
        }
    }

    fn choice(&mut self, out: &mut Vec<u8>, choice: Choice) {
        let Choice { delta, logprobs, finish_reason, .. } = choice;
        let said = |text: Option<String>| text.filter(|text| !text.is_empty());
        if let Some(text) = said(delta.reasoning_content) {
            self.turn_to(out, Doing::Thinking);
            self.text(out, "response.reasoning_text.delta", &text, None);
        }
        let logprobs = logprobs.and_then(|all| serde_json::from_str::<ChatLogprobs>(all.get()).ok());
        let logprobs = logprobs.and_then(|all| all.content);
        if let Some(text) = said(delta.content) {
            self.turn_to(out, Doing::Saying);
            let list = Logprobs(logprobs);
            self.text(out, "response.output_text.delta", &text, Some(&list));
            if let Some(Part::OutputText { logprobs, .. }) = self.items.last_mut().and_then(Item::open_part)
                && self.whole
            {
                *logprobs = list;
            }
        }
        if let Some(text) = said(delta.refusal) {
            self.turn_to(out, Doing::Refusing);
            self.text(out, "response.refusal.delta", &text, None);
        }
        for (position, call) in delta.tool_calls.unwrap_or_default().into_iter().enumerate() {
            self.call(out, call, position);
        }
        self.finish_reason = finish_reason.or(self.finish_reason.take());
    }

    /// Text of the part that is open.
    fn text(&mut self, out: &mut Vec<u8>, kind: &'static str, text: &str, list: Option<&Logprobs>) {
        self.text_bytes += text.len();
        let delta = Event { delta: Some(text), logprobs: list, ..at_part(&self.items) };
        Self::write(&mut self.sequence, out, kind, delta);
        if let Some(part) = self.items.last_mut().and_then(Item::open_part) {
            part.text_mut().push_str(text);
        }
    }

    fn call(&mut self, out: &mut Vec<u8>, call: CallDelta, position: usize) {
        let doing = Doing::Calling(call.index.unwrap_or(position));
        if self.doing != doing {
            self.close_item(out, Status::Completed);
            self.doing = doing;
            let call_id = call.id.unwrap_or_else(|| id("call"));
            self.open_item(out, Item::call(call_id, call.function.name.unwrap_or_default()));
        }
        let Some(more) = call.function.arguments.filter(|more| !more.is_empty()) else { return };
        self.text_bytes += more.len();
        if let Some(Item::FunctionCall { arguments, .. }) = self.items.last_mut() {
            arguments.push_str(&more);
        }
        let event = Event { delta: Some(&more), ..at_item(&self.items) };
        Self::write(&mut self.sequence, out, "response.function_call_arguments.delta", event);
    }

    /// Closes what is open and opens what is needed.
    fn turn_to(&mut self, out: &mut Vec<u8>, next: Doing) {
        if self.doing == next {
            return;
        }
        if self.doing.shares_item(next) {
            self.close_part(out);
        } else {
            self.close_item(out, Status::Completed);
            self.open_item(out, if next == Doing::Thinking { Item::reasoning() } else { Item::message() });
        }
        self.doing = next;
        let part = match next {
            Doing::Thinking => Part::ReasoningText { text: String::new() },
            Doing::Refusing => Part::Refusal { refusal: String::new() },
            _ => Part::OutputText { text: String::new(), annotations: [], logprobs: Logprobs::default() },
        };
        if let Some(parts) = self.items.last_mut().and_then(Item::parts_mut) {
            parts.push(part);
        }
        self.with_part(out, "response.content_part.added");
    }

    fn open_item(&mut self, out: &mut Vec<u8>, item: Item) {
        self.items.push(item);
        self.with_item(out, "response.output_item.added");
    }

    fn close_item(&mut self, out: &mut Vec<u8>, status: Status) {
        match self.doing {
            Doing::Nothing => return,
            Doing::Calling(_) => self.close_call(out),
            Doing::Thinking | Doing::Saying | Doing::Refusing => self.close_part(out),
        }
        self.doing = Doing::Nothing;
        if let Some(item) = self.items.last_mut() {
            item.set_status(status);
        }
        self.with_item(out, "response.output_item.done");
    }

    fn close_call(&mut self, out: &mut Vec<u8>) {
        let Some(Item::FunctionCall { name, arguments, .. }) = self.items.last() else { return };
        let (name, arguments) = (Some(name.as_str()), Some(arguments.as_str()));
        let event = Event { name, arguments, ..at_item(&self.items) };
        Self::write(&mut self.sequence, out, "response.function_call_arguments.done", event);
    }

    fn close_part(&mut self, out: &mut Vec<u8>) {
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

    fn with_part(&mut self, out: &mut Vec<u8>, kind: &'static str) {
        let part = self.items.last().and_then(|item| item.parts().last());
        Self::write(&mut self.sequence, out, kind, Event { part, ..at_part(&self.items) });
    }

    fn with_item(&mut self, out: &mut Vec<u8>, kind: &'static str) {
        let event =
            Event { item: self.items.last(), output_index: self.items.len().checked_sub(1), ..Event::default() };
        Self::write(&mut self.sequence, out, kind, event);
    }

    fn with_response(&mut self, out: &mut Vec<u8>, kind: &'static str) {
        let sequence = self.sequence;
        let event = Event { kind, sequence_number: sequence, response: Some(self.object()), ..Event::default() };
        sse::write_named(out, kind, &event);
        self.sequence = sequence + 1;
    }

    fn write(sequence: &mut u64, out: &mut Vec<u8>, kind: &'static str, event: Event<'_>) {
        sse::write_named(out, kind, &Event { kind, sequence_number: *sequence, ..event });
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
