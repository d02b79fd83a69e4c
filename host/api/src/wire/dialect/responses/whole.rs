//! A whole response, from the answer of a chat.
use super::output::{Head, Item, Logprobs, Outcome, Part, ResponseObject, Status};
use crate::wire::chat_answer::{ChatAnswer, Choice};
use crate::wire::stamp;

/// # Errors
/// It cannot be written.
pub(super) fn write(mut head: Head, answer: ChatAnswer) -> Result<Vec<u8>, serde_json::Error> {
    if !answer.model.is_empty() {
        head.model = answer.model;
    }
    let choice = answer.choices.into_iter().next().unwrap_or_default();
    let mut outcome = Outcome { finish_reason: choice.finish_reason.clone(), usage: answer.usage, ..Outcome::open() };
    outcome.status = outcome.ended();
    let mut items = items(choice);
    items.iter_mut().for_each(|item| item.set_status(Status::Completed));
    if let Some(last) = items.last_mut() {
        last.set_status(outcome.status);
    }
    serde_json::to_vec(&ResponseObject::new(&head, &outcome, &items))
}

/// What the model thought, said and called; at least one item.
fn items(choice: Choice) -> Vec<Item> {
    let Choice { delta, logprobs, .. } = choice;
    let said = |text: Option<String>| text.filter(|text| !text.is_empty());
    let mut items = Vec::new();
    if let Some(text) = said(delta.reasoning_content) {
        items.push(Item::reasoning().with(vec![Part::ReasoningText { text }]));
    }
    let logprobs = Logprobs::of(logprobs);
    let mut parts = Vec::new();
    if let Some(text) = delta.content.filter(|text| !text.is_empty() || !logprobs.is_empty()) {
        parts.push(Part::OutputText { text, annotations: [], logprobs });
    }
    parts.extend(said(delta.refusal).map(|refusal| Part::Refusal { refusal }));
    let calls = delta.tool_calls.unwrap_or_default();
    if parts.is_empty() && items.is_empty() && calls.is_empty() {
        parts.push(Part::text());
    }
    if !parts.is_empty() {
        items.push(Item::message().with(parts));
    }
    items.extend(calls.into_iter().map(|call| {
        let call_id = call.id.unwrap_or_else(|| stamp::id("call_"));
        let mut item = Item::call(call_id, call.function.name.unwrap_or_default());
        item.add_arguments(&call.function.arguments.unwrap_or_default());
        item
    }));
    items
}
