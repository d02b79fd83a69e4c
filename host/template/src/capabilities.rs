//! What a template takes, found out by rendering small conversations with it. llama.cpp does the same (`common/jinja/caps.cpp`).
use std::slice;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::message::{CalledFunction, Conversation, Message, Role, ToolCall};
use crate::template::ChatTemplate;

/// What a template takes of chats without tools and with them, found out by rendering small conversations with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateTraits([Capabilities; 2]);

/// See the module. Where a template shows nothing of a kind, it is changed to text before it is rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// It tells of the functions in `tools`.
    pub tools: bool,
    /// It tells of them only if each has a description.
    pub wants_descriptions: bool,
    /// It shows earlier calls, of this form.
    pub calls: Option<CallForm>,
    /// It shows several calls of one message.
    pub several_calls: bool,
    /// It shows results of tools.
    pub results: bool,
    /// It refuses ids of calls that are not nine letters and digits.
    pub nine_letter_ids: bool,
    pub system: SystemTexts,
}

/// The form of earlier calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallForm {
    /// The arguments are JSON, and no object.
    pub text_arguments: bool,
    /// They are shown only where `content` is none.
    pub no_content: bool,
}

/// Which system texts a template shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SystemTexts {
    /// All, wherever they stand.
    Anywhere,
    /// One in front.
    Leading,
    /// It refuses them, or leaves them out.
    None,
}

/// The argument that has the text of a call that was cut, as in answers of Anthropic's API.
const INCOMPLETE: &str = "incomplete_arguments";
const SYSTEM: [&str; 3] = ["probe-system-one", "probe-system-two", "probe-system-three"];
const FUNCTION: &str = "probe_function";
/// Of the arguments of a call: none of the function's, so that it stands in no description.
const KEY: &str = "probe_key";
const VALUES: [&str; 2] = ["probe-value-one", "probe-value-two"];
const RESULTS: [&str; 2] = ["probe-result-one", "probe-result-two"];
const IDS: [&str; 2] = ["abcDEF123", "ghiJKL456"];

impl ChatTemplate {
    /// Finds out what it takes.
    pub fn traits(&self) -> TemplateTraits {
        TemplateTraits([false, true].map(|has_tools| Capabilities::find(self, has_tools)))
    }
}

impl TemplateTraits {
    /// Of a chat with tools, or without.
    pub fn capabilities(&self, has_tools: bool) -> &Capabilities {
        &self.0[usize::from(has_tools)]
    }
}

impl Capabilities {
    fn find(template: &ChatTemplate, has_tools: bool) -> Self {
        // Of what it refuses, it shows nothing.
        let prompt = |tools: &[Value], messages: &[Message]| {
            let conversation = Conversation { messages, tools, variables: &Map::new() };
            template.render(has_tools, conversation).unwrap_or_default()
        };
        let parameters = json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]});
        let bare = json!({"type": "function", "function": {"name": FUNCTION, "parameters": parameters}});
        let mut described = bare.clone();
        describe(&mut described["function"]);
        let tools = [slice::from_ref(&bare), slice::from_ref(&described)];
        let tools = tools.into_iter().find(|tools| prompt(tools, &[user()]).contains(FUNCTION)).unwrap_or(&[]);
        let forms = [(false, false), (true, false), (false, true), (true, true)];
        let mut forms = forms.map(|(text_arguments, no_content)| CallForm { text_arguments, no_content }).into_iter();
        let form = forms.find(|form| shows_arguments(&prompt(tools, &calls(Some(*form), &IDS[..1]))));
        let shows_two = |prompt: &str| VALUES.iter().chain(&RESULTS).all(|text| prompt.contains(text));
        Self {
            tools: !tools.is_empty(),
            wants_descriptions: tools == slice::from_ref(&described),
            calls: form,
            several_calls: form.is_some() && shows_two(&prompt(tools, &calls(form, &IDS))),
            results: prompt(tools, &calls(form, &IDS[..1])).contains(RESULTS[0]),
            nine_letter_ids: form.is_some() && prompt(tools, &calls(form, &["an-id-that-is-longer"])).is_empty(),
            system: SystemTexts::find(|messages| prompt(&[], messages)),
        }
    }
}

impl SystemTexts {
    fn find(prompt: impl Fn(&[Message]) -> String) -> Self {
        let shows = |messages: &[Message]| {
            let prompt = prompt(messages);
            messages.iter().all(|message| message.role == Role::Assistant || prompt.contains(message.text()))
        };
        let [first, second, third] = SYSTEM.map(|text| Message::new(Role::System, text));
        match (shows(&[first.clone(), user()]), shows(&[first, second, user(), answer(), third, user()])) {
            (false, _) => Self::None,
            (true, false) => Self::Leading,
            (true, true) => Self::Anywhere,
        }
    }
}

impl CallForm {
    /// Arguments in this form. Those of a call that was cut are a text.
    pub(crate) fn arguments(self, arguments: Value) -> Value {
        match (self.text_arguments, arguments) {
            (false, text @ Value::String(_)) => json!({ INCOMPLETE: text }),
            (true, object @ Value::Object(_)) => Value::String(object.to_string()),
            (_, arguments) => arguments,
        }
    }
}

/// A conversation of calls with these ids and their results. `form`: `None` for a text in place of the calls.
fn calls(form: Option<CallForm>, ids: &[&str]) -> Vec<Message> {
    let ids = ids.iter().copied().map(str::to_owned);
    let mut calling = answer();
    if let Some(form) = form {
        let call = |(id, value)| {
            let arguments = form.arguments(json!({ KEY: value }));
            ToolCall { id, function: CalledFunction { name: FUNCTION.to_owned(), arguments } }
        };
        calling.content = (!form.no_content).then(String::new);
        calling.tool_calls = ids.clone().zip(VALUES).map(call).collect();
    }
    let name = Some(FUNCTION.to_owned());
    let result = |(id, text)| Message { tool_call_id: Some(id), name: name.clone(), ..Message::new(Role::Tool, text) };
    [user(), calling].into_iter().chain(ids.zip(RESULTS).map(result)).collect()
}

/// Whether a prompt has the arguments of a call, neither quoted once more nor as Python would write them.
fn shows_arguments(prompt: &str) -> bool {
    let misspelled = [format!("\\\"{KEY}"), format!("'{KEY}'"), format!("&#34;{KEY}")];
    prompt.contains(VALUES[0]) && !misspelled.iter().any(|wrong| prompt.contains(wrong))
}

fn user() -> Message {
    Message::new(Role::User, "probe-user-text")
}

fn answer() -> Message {
    Message::new(Role::Assistant, "probe-answer-text")
}

/// Adds the descriptions that a function and its parameters lack.
pub(crate) fn describe(function: &mut Value) {
    let add = |of: &mut Map<String, Value>| _ = of.entry("description").or_insert_with(|| "".into());
    function.as_object_mut().into_iter().for_each(add);
    let properties = function.pointer_mut("/parameters/properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).filter_map(Value::as_object_mut).for_each(add);
}
