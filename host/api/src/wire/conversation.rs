//! Builds the messages of a chat request from what other endpoints call a conversation.
use serde_json::{Map, Value};

/// Messages of a chat request. What an assistant thought, said and called in one turn is one message.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Value>,
    turn: Option<Turn>,
}

/// The assistant's turn that is being read.
#[derive(Debug, Default)]
struct Turn {
    reasoning: Option<String>,
    content: Option<Value>,
    refusal: Option<String>,
    calls: Vec<Value>,
}

impl Turn {
    fn has_spoken(&self) -> bool {
        self.content.is_some() || self.refusal.is_some() || !self.calls.is_empty()
    }

    fn message(self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), "assistant".into());
        message.insert("content".to_owned(), self.content.unwrap_or(Value::Null));
        let texts = [("reasoning_content", self.reasoning), ("refusal", self.refusal)];
        message.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?.into()))));
        if !self.calls.is_empty() {
            message.insert("tool_calls".to_owned(), self.calls.into());
        }
        message.into()
    }
}

impl Conversation {
    /// A message of any role but the assistant's and a tool's.
    pub(crate) fn say(&mut self, role: &str, texts: Vec<String>) {
        self.end_turn();
        self.messages.push(object([("role", role.into()), ("content", content(texts))]));
    }

    /// A tool's result.
    pub(crate) fn result(&mut self, call: String, text: String) {
        self.end_turn();
        let members = [("role", "tool".into()), ("tool_call_id", call.into()), ("content", text.into())];
        self.messages.push(object(members));
    }

    /// The assistant thought this before it said the next thing.
    pub(crate) fn thought(&mut self, text: &str) {
        if self.turn.as_ref().is_some_and(Turn::has_spoken) {
            self.end_turn();
        }
        self.turn().reasoning.get_or_insert_default().push_str(text);
    }

    /// The assistant said this: a new turn, unless it only thought in this one.
    pub(crate) fn said(&mut self, texts: Vec<String>, refusal: Option<String>) {
        if self.turn.as_ref().is_some_and(Turn::has_spoken) {
            self.end_turn();
        }
        let turn = self.turn();
        turn.content = (!texts.is_empty() || refusal.is_none()).then(|| content(texts));
        turn.refusal = refusal;
    }

    /// The assistant called a tool, with arguments in JSON.
    pub(crate) fn called(&mut self, id: String, name: String, arguments: String) {
        let function = object([("name", name.into()), ("arguments", arguments.into())]);
        self.turn().calls.push(object([("id", id.into()), ("type", "function".into()), ("function", function)]));
    }

    /// What follows is another turn, even if the assistant's.
    pub(crate) fn end_turn(&mut self) {
        self.messages.extend(self.turn.take().map(Turn::message));
    }

    pub(crate) fn messages(mut self) -> Vec<Value> {
        self.end_turn();
        self.messages
    }

    fn turn(&mut self) -> &mut Turn {
        self.turn.get_or_insert_default()
    }
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
        assert_eq!(Value::Array(conversation.messages()), expected);
    }

    #[test]
    fn several_texts_are_parts() {
        let mut conversation = Conversation::default();
        conversation.say("system", vec!["a".into(), "b".into()]);
        conversation.say("user", Vec::new());
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(
            conversation.messages(),
            [json!({"role": "system", "content": parts}), json!({"role": "user", "content": ""})]
        );
    }
}
