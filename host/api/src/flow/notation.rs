//! How a model's answers have tool calls and thinking: the notation of its family, and which of its control tokens spell that. And
//! what its chat template takes of a conversation with tools.
use std::sync::Arc;

use camshaft_core::family::description::{CallIds, Described, Family, TemplateUse, ThinkingState};
use camshaft_core::family::detect::Chosen;
use camshaft_core::family::instructions::instructions;
use camshaft_core::ids::Token;
use camshaft_core::message::ShownToken;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::flow::backend::TextModel;
use crate::wire::messages::{Message, Role, ToolCall};
use crate::wire::tools::WantedTools;

/// Length of ids of [`CallIds::NineAlphanumeric`].
const SHORT_ID: usize = 9;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// See the module.
#[derive(Debug)]
pub(crate) struct Notation {
    pub(crate) family: &'static Family,
    /// The family that the chat template shows, where another one is configured.
    contradicted: Option<&'static Family>,
    /// The control tokens among the family's markers.
    pub(crate) shown: Arc<[ShownToken]>,
    /// Tokens that end an answer with calls.
    pub(crate) stops: Vec<Token>,
    /// Whether the chat template knows of thinking.
    thinks: bool,
}

/// A conversation as a model's chat template takes it.
#[derive(Debug)]
pub(crate) struct Written {
    pub(crate) messages: Vec<Message>,
    pub(crate) tools: Vec<Value>,
}

impl Notation {
    /// `family`: the one that the operator names; else the one that the chat template shows.
    pub(crate) fn new(family: Option<&'static Family>, text: &TextModel) -> Self {
        let template = text.info.chat_template.as_deref();
        let Chosen { family, contradicted } = Chosen::new(family, template);
        let template = template.unwrap_or_default();
        let mentioned = |marker: &str| template.contains(marker.trim());
        let control = |marker: &str| {
            let [token] = text.tokenizer.tokenize(marker, false, true)[..] else { return None };
            // What adds text by itself is text to a grammar, too.
            text.info.vocabulary.token_bytes(token).is_some_and(<[u8]>::is_empty).then_some(token)
        };
        let shown = |marker: &&str| Some(ShownToken { token: control(marker)?, text: (*marker).to_owned() });
        Self {
            family,
            contradicted,
            shown: family.special.iter().filter_map(shown).collect(),
            stops: family.stops.iter().filter_map(|stop| control(stop)).collect(),
            thinks: family.thinking.as_ref().is_some_and(|of| mentioned(of.begin) || mentioned(of.end)),
        }
    }

    /// Says in the log in whose notation a model writes.
    pub(crate) fn tell(&self, model: &str) {
        let family = self.family.name;
        tracing::info!(model, family, "tool calls and thinking are written as by this family");
        if let Some(shown) = self.contradicted {
            let shown = shown.name;
            tracing::warn!(model, family, shown, "the chat template shows another family than is configured");
        }
    }

    /// Whether its answers may have thinking apart from their text.
    pub(crate) fn thinks(&self) -> bool {
        self.thinks
    }

    /// Where the answer to a prompt stands. `held`: to a grammar, which would let a model that does not think begin to, and never
    /// come to its answer.
    pub(crate) fn thinking_after(&self, prompt: &str, held: bool) -> ThinkingState {
        match self.family.thinking_after(prompt) {
            ThinkingState::Possible if held && !self.thinks => ThinkingState::Off,
            state => state,
        }
    }

    /// The control token that a marker is.
    pub(crate) fn token(&self, marker: &str) -> Option<u32> {
        self.shown.iter().find(|shown| shown.text == marker).map(|shown| shown.token.0)
    }

    /// A new id of a call.
    pub(crate) fn call_id(&self) -> String {
        match self.family.call_ids {
            CallIds::NineAlphanumeric => letters(rand::random::<[u8; SHORT_ID]>()),
            CallIds::Any => format!("call_{}", letters(rand::random::<[u8; 24]>())),
        }
    }

    /// What the chat template takes.
    pub(crate) fn written(&self, mut messages: Vec<Message>, wanted: &WantedTools) -> Written {
        match self.family.call_ids {
            CallIds::NineAlphanumeric => messages.iter_mut().for_each(shorten_ids),
            CallIds::Any => {}
        }
        match self.family.template {
            TemplateUse::ArgumentsAsObject => {}
            TemplateUse::ArgumentsAsText => {
                for call in messages.iter_mut().flat_map(|message| &mut message.tool_calls) {
                    let arguments = &mut call.function.arguments;
                    // Those of a call that was cut are a text already.
                    if !arguments.is_string() {
                        *arguments = Value::String(arguments.to_string());
                    }
                }
            }
            TemplateUse::NoTools { described_in } => {
                let messages = self.described(self.as_text(messages, wanted), wanted, described_in);
                return Written { messages, tools: Vec::new() };
            }
        }
        Written { messages, tools: wanted.shown.clone() }
    }

    /// For a template that knows no tools: calls are text of the assistant's, and results are the user's, those of one turn in one
    /// message.
    fn as_text(&self, messages: Vec<Message>, wanted: &WantedTools) -> Vec<Message> {
        let mut out: Vec<Message> = Vec::with_capacity(messages.len() + 1);
        let mut after_result = false;
        for mut message in messages {
            let is_result = message.role == Role::Tool;
            match message.role {
                Role::Tool => {
                    let text = format!("<tool_response>\n{}\n</tool_response>", message.content);
                    match out.last_mut().filter(|_| after_result) {
                        Some(last) => last.content += &format!("\n{text}"),
                        None => out.push(Message::new(Role::User, text)),
                    }
                }
                Role::Assistant if !message.tool_calls.is_empty() => {
                    let calls = self.calls_as_text(&message.tool_calls, wanted);
                    message.tool_calls.clear();
                    let gap = if message.content.is_empty() { "" } else { "\n" };
                    message.content = format!("{}{gap}{calls}", message.content);
                    out.push(message);
                }
                Role::System | Role::User | Role::Assistant => out.push(message),
            }
            after_result = is_result;
        }
        out
    }

    /// Adds a description of the tools.
    fn described(&self, mut messages: Vec<Message>, wanted: &WantedTools, place: Described) -> Vec<Message> {
        if wanted.tools.callable().is_empty() {
            return messages;
        }
        let text = instructions(self.family, &wanted.tools);
        match messages.first_mut() {
            Some(first) if first.role == Role::System => first.content = format!("{}\n\n{text}", first.content),
            Some(first) if place == Described::FirstUser && first.role == Role::User => {
                first.content = format!("{text}\n\n{}", first.content);
            }
            _ => messages.insert(0, Message::new(Role::System, text)),
        }
        messages
    }

    fn calls_as_text(&self, calls: &[ToolCall], wanted: &WantedTools) -> String {
        let no_arguments = Map::new();
        let arguments = |call: &'_ ToolCall| call.function.arguments.as_object().cloned();
        let all: Vec<_> = calls.iter().map(|call| (call.function.name.as_str(), arguments(call))).collect();
        let all = all.iter().map(|(name, arguments)| (*name, arguments.as_ref().unwrap_or(&no_arguments)));
        self.family.written(all, |name| wanted.tools.get(name).map(|tool| tool.schema()).unwrap_or_default())
    }
}

/// Letters and digits of random bytes.
fn letters(bytes: impl IntoIterator<Item = u8>) -> String {
    bytes.into_iter().map(|byte| char::from(LETTERS[usize::from(byte) % LETTERS.len()])).collect()
}

/// Gives calls that other models made ids that the template takes. Equal ids stay equal.
fn shorten_ids(message: &mut Message) {
    let ids = message.tool_calls.iter_mut().map(|call| &mut call.id).chain(&mut message.tool_call_id);
    for id in ids {
        let fits = id.len() == SHORT_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !fits {
            *id = letters(Sha256::digest(id.as_bytes()).into_iter().take(SHORT_ID));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::CalledFunction;
    use camshaft_core::family::detect::FamilyName;
    use serde_json::json;

    fn notation(family: &str) -> Notation {
        let FamilyName(family) = family.parse().unwrap();
        Notation { family, contradicted: None, shown: Arc::default(), stops: Vec::new(), thinks: false }
    }

    #[test]
    fn a_model_whose_template_knows_of_no_thinking_does_not_think_where_it_is_held_to_a_grammar() {
        let without = notation("hermes");
        let with = Notation { thinks: true, ..notation("hermes") };
        assert_eq!(without.thinking_after("assistant:", false), ThinkingState::Possible);
        assert_eq!(without.thinking_after("assistant:", true), ThinkingState::Off);
        assert_eq!(with.thinking_after("assistant:", true), ThinkingState::Possible);
        assert_eq!(without.thinking_after("assistant:<think>\n", true), ThinkingState::Open);
    }

    fn wanted(names: &[&str]) -> WantedTools {
        let tool = |name: &&str| json!({"type": "function", "function": {"name": name, "description": "d"}});
        let body = json!({ "tools": names.iter().map(tool).collect::<Vec<_>>() });
        let body = json!({"messages": [{"role": "user", "content": "hi"}], "tools": body["tools"]}).to_string();
        WantedTools::read(&crate::wire::read::read(&body).unwrap().request).unwrap()
    }

    fn talk() -> Vec<Message> {
        let call = |id: &str| ToolCall {
            id: id.to_owned(),
            function: CalledFunction { name: "f".to_owned(), arguments: json!({"a": 1}) },
        };
        let result =
            |id: &str, text: &str| Message { tool_call_id: Some(id.to_owned()), ..Message::new(Role::Tool, text) };
        vec![
            Message::new(Role::User, "hi"),
            Message { tool_calls: vec![call("call_1"), call("abcDEF123")], ..Message::new(Role::Assistant, "so") },
            result("call_1", "one"),
            result("abcDEF123", "two"),
        ]
    }

    #[test]
    fn templates_without_tools_read_them_as_text() {
        let Written { messages, tools } = notation("generic").written(talk(), &wanted(&["f"]));
        assert!(tools.is_empty());
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant, Role::User]);
        assert!(messages[0].content.contains("\"name\":\"f\""), "{}", messages[0].content);
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>";
        assert_eq!(messages[2].content, format!("so\n{call}\n{call}"));
        assert!(messages[2].tool_calls.is_empty());
        let results = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>";
        assert_eq!(messages[3].content, results);
        let system = vec![Message::new(Role::System, "be brief"), Message::new(Role::User, "hi")];
        let Written { messages, .. } = notation("generic").written(system.clone(), &wanted(&["f"]));
        assert!(messages[0].content.starts_with("be brief\n\nYou can call"), "{}", messages[0].content);
        assert_eq!(notation("generic").written(system.clone(), &wanted(&[])).messages, system, "nothing to describe");
        let Written { messages, .. } = notation("gemma").written(vec![Message::new(Role::User, "hi")], &wanted(&["f"]));
        assert!(messages.len() == 1 && messages[0].content.starts_with("You can call"), "{messages:?}");
        assert!(messages[0].content.ends_with("\n\nhi"), "{messages:?}");
    }

    #[test]
    fn templates_take_arguments_as_their_family_has_them() {
        let of = |family: &str| notation(family).written(talk(), &wanted(&["f"]));
        let Written { messages, tools } = of("hermes");
        assert_eq!((messages, tools), (talk(), wanted(&["f"]).shown));
        let text = of("deepseek-r1").messages[1].tool_calls[0].function.arguments.clone();
        assert_eq!(text, json!("{\"a\":1}"));
    }

    #[test]
    fn ids_are_such_as_the_template_demands_and_still_belong_together() {
        for family in ["mistral", "mistral-v11"] {
            let own = notation(family).call_id();
            assert!(own.len() == SHORT_ID && own != notation(family).call_id(), "{own}");
            let mut talk = talk();
            talk[1].tool_calls[1].id.clone_from(&own);
            talk[3].tool_call_id = Some(own.clone());
            let messages = notation(family).written(talk, &wanted(&["f"])).messages;
            let ids: Vec<&str> = messages[1].tool_calls.iter().map(|call| call.id.as_str()).collect();
            assert!(ids[0].len() == SHORT_ID && ids[0] != "call_1", "{ids:?}");
            assert_eq!(ids[1], own, "as it was given");
            assert_eq!(messages[2].tool_call_id.as_deref(), Some(ids[0]));
            assert_eq!(messages[3].tool_call_id.as_deref(), Some(ids[1]));
        }
        let own = notation("hermes").call_id();
        assert!(own.len() == 29 && own.starts_with("call_") && own != notation("hermes").call_id(), "{own}");
    }
}
