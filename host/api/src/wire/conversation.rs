//! Builds the messages of a chat request from what other endpoints call a conversation.
use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::wire::names::{Origin, Place};

/// Messages of a chat request. What an assistant thought, said and called in one turn is one message.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Entry>,
    turn: Option<Turn>,
    /// Of what is added.
    at: Place,
}

/// A message, and where it comes from.
#[derive(Debug)]
struct Entry {
    message: Value,
    origin: Origin,
}

/// The assistant's turn that is being read.
#[derive(Debug, Default)]
struct Turn {
    reasoning: Option<String>,
    content: Option<Value>,
    refusal: Option<String>,
    calls: Vec<Value>,
    origin: Origin,
}

impl Turn {
    fn has_said(&self) -> bool {
        self.content.is_some() || self.refusal.is_some()
    }

    fn entry(self) -> Entry {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), self.content.unwrap_or(Value::Null));
        let texts = [("reasoning_content", self.reasoning), ("refusal", self.refusal)];
        message.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into()))));
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.calls.into());
        }
        Entry { message: message.into(), origin: self.origin }
    }
}

impl Entry {
    /// The ids of the calls in it.
    fn calls(&self) -> impl Iterator<Item = &str> {
        let calls = self.message.get("tool_calls").and_then(Value::as_array);
        calls.into_iter().flatten().filter_map(|call| call["id"].as_str())
    }

    /// The id of the call whose result it is.
    fn answers(&self) -> Option<&str> {
        self.message.get("tool_call_id").and_then(Value::as_str)
    }
}

impl Conversation {
    /// Says where what is added next comes from.
    pub(crate) fn read_at(&mut self, place: Place) {
        self.at = place;
    }

    /// A message of any role but the assistant's and a tool's.
    pub(crate) fn say(&mut self, role: &str, texts: Vec<String>) {
        self.end_turn();
        self.add(object([("role", role.into()), ("content", content(texts))]));
    }

    /// A tool's result.
    pub(crate) fn result(&mut self, call: String, text: String) {
        self.end_turn();
        let members = [("role", "tool".into()), ("tool_call_id", call.into()), ("content", text.into())];
        self.add(object(members));
    }

    /// The assistant thought this before it said the next thing.
    pub(crate) fn thought(&mut self, text: &str) {
        if self.turn.as_ref().is_some_and(|turn| turn.has_said() || !turn.calls.is_empty()) {
            self.end_turn();
        }
        self.turn().reasoning.get_or_insert_default().push_str(text);
    }

    /// The assistant said this: a new turn, unless it only thought and called in this one. (In a chat, what is said beside calls is
    /// before them.)
    pub(crate) fn said(&mut self, texts: Vec<String>, refusal: Option<String>) {
        if self.turn.as_ref().is_some_and(Turn::has_said) {
            self.end_turn();
        }
        let turn = self.turn();
        turn.content = (!texts.is_empty() || refusal.is_none()).then(|| content(texts));
        turn.refusal = refusal;
    }

    /// The assistant called a tool, with arguments in JSON.
    pub(crate) fn called(&mut self, id: String, name: String, arguments: String) {
        let function = object([("name", name.into()), ("arguments", arguments.into())]);
        let (at, turn) = (self.at, self.turn());
        turn.calls.push(object([("id", id.into()), ("type", "function".into()), ("function", function)]));
        turn.origin.calls.push(at);
    }

    /// What follows is another turn, even if the assistant's.
    pub(crate) fn end_turn(&mut self) {
        self.messages.extend(self.turn.take().map(Turn::entry));
    }

    /// The messages, and where each comes from.
    pub(crate) fn messages(mut self) -> (Vec<Value>, Vec<Origin>) {
        self.end_turn();
        put_results_behind_calls(&mut self.messages);
        self.messages.into_iter().map(|entry| (entry.message, entry.origin)).unzip()
    }

    fn add(&mut self, message: Value) {
        self.messages.push(Entry { message, origin: Origin { at: self.at, calls: Vec::new() } });
    }

    fn turn(&mut self) -> &mut Turn {
        let origin = Origin { at: self.at, calls: Vec::new() };
        self.turn.get_or_insert_with(|| Turn { origin, ..Turn::default() })
    }
}

/// Moves results to their calls where other messages stand between them, which other APIs take and chats do not. A result without a
/// call stays where it is.
fn put_results_behind_calls(messages: &mut Vec<Entry>) {
    let mut callers: HashMap<&str, usize> = HashMap::new();
    let mut places = Vec::with_capacity(messages.len());
    for (at, entry) in messages.iter().enumerate() {
        callers.extend(entry.calls().map(|id| (id, at)));
        places.push(entry.answers().and_then(|id| callers.get(id).copied()).unwrap_or(at));
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
fn content(mut texts: Vec<String>) -> Value {
    match texts.len() {
        0 => String::new().into(),
        1 => texts.remove(0).into(),
        _ => texts.into_iter().map(|text| object([("type", "text".into()), ("text", text.into())])).collect(),
    }
}

/// An object of these members, which are moved into it: `json!` copies them.
pub(crate) fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(text: &str) -> Vec<String> {
        vec![text.to_owned()]
    }

    #[test]
    fn what_an_assistant_thinks_says_and_calls_in_one_turn_is_one_message() {
        let mut conversation = Conversation::default();
        conversation.say("user", text("weather?"));
        conversation.thought("I look.");
        conversation.said(text("One moment."), None);
        conversation.called("c1".into(), "look".into(), "{}".into());
        conversation.called("c2".into(), "look".into(), "{\"a\":1}".into());
        conversation.result("c1".into(), "rain".into());
        conversation.said(text("It rains."), None);
        conversation.said(text("A lot."), None);
        conversation.thought("Again.");
        conversation.said(Vec::new(), Some("no".into()));
        let call = |id: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": "look", "arguments": arguments}});
        let expected = json!([
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": "One moment.", "reasoning_content": "I look.",
                "tool_calls": [call("c1", "{}"), call("c2", "{\"a\":1}")]},
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            {"role": "assistant", "content": "It rains."},
            {"role": "assistant", "content": "A lot."},
            {"role": "assistant", "content": null, "reasoning_content": "Again.", "refusal": "no"},
        ]);
        assert_eq!(Value::Array(conversation.messages().0), expected);
    }

    #[test]
    fn several_texts_are_parts() {
        let mut conversation = Conversation::default();
        conversation.say("system", vec!["a".into(), "b".into()]);
        conversation.say("user", Vec::new());
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(
            conversation.messages().0,
            [json!({"role": "system", "content": parts}), json!({"role": "user", "content": ""})]
        );
    }

    /// The roles of the messages, with the ids of calls and of their results.
    fn outline(conversation: Conversation) -> Vec<String> {
        let (messages, origins) = conversation.messages();
        assert_eq!(messages.len(), origins.len());
        let outline = |message: Value| {
            let entry = Entry { message, origin: Origin::default() };
            let ids: Vec<&str> = entry.calls().chain(entry.answers()).collect();
            format!("{} {}", entry.message["role"].as_str().unwrap(), ids.join(" ")).trim_end().to_owned()
        };
        messages.into_iter().map(outline).collect()
    }

    #[test]
    fn results_follow_the_turn_with_their_call_wherever_they_come() {
        let mut conversation = Conversation::default();
        let call = |conversation: &mut Conversation, id: &str| conversation.called(id.into(), "f".into(), "{}".into());
        let result = |conversation: &mut Conversation, id: &str| conversation.result(id.into(), "r".into());
        call(&mut conversation, "a");
        call(&mut conversation, "b");
        conversation.said(text("I have asked."), None);
        conversation.say("user", text("hurry"));
        result(&mut conversation, "b");
        result(&mut conversation, "unknown");
        conversation.say("user", text("and?"));
        result(&mut conversation, "a");
        // An id that comes again is that of its last call.
        call(&mut conversation, "a");
        result(&mut conversation, "a");
        let expected = ["assistant a b", "tool b", "tool a", "user", "tool unknown", "user", "assistant a", "tool a"];
        assert_eq!(outline(conversation), expected);
    }

    #[test]
    fn messages_and_calls_know_where_they_come_from() {
        let mut conversation = Conversation::default();
        conversation.say("system", text("s"));
        conversation.read_at(Place::item(0));
        conversation.thought("hm");
        conversation.read_at(Place::item(1));
        conversation.called("a".into(), "f".into(), "{}".into());
        conversation.read_at(Place::item(2).part(1));
        conversation.called("b".into(), "f".into(), "{}".into());
        conversation.read_at(Place::item(3));
        conversation.say("user", text("so?"));
        conversation.read_at(Place::item(4).part(2));
        conversation.result("a".into(), "1".into());
        let from = |at: Place, calls: Vec<Place>| Origin { at, calls };
        let expected = [
            from(Place::default(), Vec::new()),
            from(Place::item(0), vec![Place::item(1), Place::item(2).part(1)]),
            from(Place::item(4).part(2), Vec::new()),
            from(Place::item(3), Vec::new()),
        ];
        assert_eq!(conversation.messages().1, expected);
    }
}
