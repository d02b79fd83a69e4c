//! Builds the messages of a chat request from what other endpoints call a conversation.
use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::wire::names::{Origin, Place};
use crate::wire::types::chat::{ChatMessage, ContentPart, MessageFunctionCall, MessageToolCall, Role};
use crate::wire::types::values::{TextOrList, TextOrObject};

/// Messages of a chat request. What an assistant thought, said and called in one turn is one message.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Entry>,
    /// The assistant's turn that is being read.
    turn: Option<Entry>,
    /// Of what is added.
    at: Place,
}

/// A message, and where it comes from.
#[derive(Debug)]
struct Entry {
    message: ChatMessage,
    origin: Origin,
}

impl Entry {
    fn has_said(&self) -> bool {
        self.message.content.is_some() || self.message.refusal.is_some()
    }

    fn calls(&self) -> &[MessageToolCall] {
        self.message.tool_calls.as_deref().unwrap_or_default()
    }
}

impl Conversation {
    /// Says where what is added next comes from.
    pub(crate) fn read_at(&mut self, place: Place) {
        self.at = place;
    }

    /// A message of any role but the assistant's and a tool's.
    pub(crate) fn say(&mut self, role: Role, texts: Vec<String>) {
        self.end_turn();
        self.add(ChatMessage { content: Some(content(texts)), ..ChatMessage::new(role) });
    }

    /// A tool's result.
    pub(crate) fn result(&mut self, call: String, text: String) {
        self.end_turn();
        let content = Some(TextOrList::Text(text));
        self.add(ChatMessage { content, tool_call_id: Some(call), ..ChatMessage::new(Role::Tool) });
    }

    /// The assistant thought this before it said the next thing.
    pub(crate) fn thought(&mut self, text: &str) {
        if self.turn.as_ref().is_some_and(|turn| turn.has_said() || !turn.calls().is_empty()) {
            self.end_turn();
        }
        self.turn().message.reasoning_content.get_or_insert_default().push_str(text);
    }

    /// The assistant said this: a new turn, unless it only thought and called in this one. (In a chat, what is said beside calls is
    /// before them.)
    pub(crate) fn said(&mut self, texts: Vec<String>, refusal: Option<String>) {
        if self.turn.as_ref().is_some_and(Entry::has_said) {
            self.end_turn();
        }
        let message = &mut self.turn().message;
        message.content = (!texts.is_empty() || refusal.is_none()).then(|| content(texts));
        message.refusal = refusal;
    }

    /// The assistant called a tool.
    pub(crate) fn called(&mut self, id: String, name: String, arguments: Option<TextOrObject<Map<String, Value>>>) {
        let (at, turn) = (self.at, self.turn());
        let function = MessageFunctionCall { name, arguments };
        turn.message.tool_calls.get_or_insert_default().push(MessageToolCall { id, r#type: None, function });
        turn.origin.calls.push(at);
    }

    /// What follows is another turn, even if the assistant's.
    pub(crate) fn end_turn(&mut self) {
        self.messages.extend(self.turn.take());
    }

    /// The messages, and where each comes from.
    pub(crate) fn messages(mut self) -> (Vec<ChatMessage>, Vec<Origin>) {
        self.end_turn();
        put_results_behind_calls(&mut self.messages);
        self.messages.into_iter().map(|entry| (entry.message, entry.origin)).unzip()
    }

    fn add(&mut self, message: ChatMessage) {
        self.messages.push(Entry { message, origin: Origin { at: self.at, calls: Vec::new() } });
    }

    fn turn(&mut self) -> &mut Entry {
        let origin = Origin { at: self.at, calls: Vec::new() };
        self.turn.get_or_insert_with(|| Entry { message: ChatMessage::new(Role::Assistant), origin })
    }
}

/// Moves results to their calls where other messages stand between them, which other APIs take and chats do not. A result without a
/// call stays where it is.
fn put_results_behind_calls(messages: &mut Vec<Entry>) {
    let mut callers: HashMap<&str, usize> = HashMap::new();
    let mut places = Vec::with_capacity(messages.len());
    for (at, entry) in messages.iter().enumerate() {
        callers.extend(entry.calls().iter().map(|call| (call.id.as_str(), at)));
        let answers = entry.message.tool_call_id.as_deref();
        places.push(answers.and_then(|id| callers.get(id).copied()).unwrap_or(at));
    }
    if places.is_sorted() {
        return;
    }
    let mut placed: Vec<(usize, Entry)> = places.into_iter().zip(messages.drain(..)).collect();
    // Stable: results stay in their order.
    placed.sort_by_key(|(place, _)| *place);
    messages.extend(placed.into_iter().map(|(_, entry)| entry));
}

/// One text as it is, several as parts.
fn content(mut texts: Vec<String>) -> TextOrList<ContentPart> {
    match texts.len() {
        0 => TextOrList::Text(String::new()),
        1 => TextOrList::Text(texts.remove(0)),
        _ => TextOrList::List(texts.into_iter().map(ContentPart::of).collect()),
    }
}
