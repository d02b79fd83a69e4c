//! What a template takes, found out by rendering small conversations with it. llama.cpp does the same (`common/jinja/caps.cpp`).
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::jinja::Jinja;
use crate::message::{CalledFunction, Conversation, Message, Role, ToolCall};

/// See the module. Where a template shows nothing of a kind, it is changed to text before it is rendered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// It tells of the functions in `tools`.
    pub tools: bool,
    /// It tells of them only if each has a description.
    pub wants_descriptions: bool,
    /// It shows earlier calls, with arguments of this form.
    pub calls: Option<Arguments>,
    /// It shows calls only where `content` is none.
    pub calls_without_content: bool,
    /// It shows several calls of one message.
    pub several_calls: bool,
    /// It shows results of tools.
    pub results: bool,
    /// It refuses ids of calls that are not nine letters and digits.
    pub nine_letter_ids: bool,
    pub system: SystemTexts,
}

/// The form of the arguments of earlier calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Arguments {
    Object,
    /// JSON.
    Text,
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

const SYSTEM: [&str; 3] = ["probe-system-one", "probe-system-two", "probe-system-three"];
const FUNCTION: &str = "probe_function";
/// Of the arguments of a call: none of the function's, so that it stands in no description.
const KEY: &str = "probe_key";
const VALUES: [&str; 2] = ["probe-value-one", "probe-value-two"];
const RESULTS: [&str; 2] = ["probe-result-one", "probe-result-two"];
const IDS: [&str; 2] = ["abcDEF123", "ghiJKL456"];
/// What an id of another length looks like.
const LONG_ID: &str = "call_0123456789abcdefghijklmn";

/// The form of an earlier call's arguments, and the content beside it.
type Form = (Arguments, Option<&'static str>);

const FORMS: [Form; 4] =
    [(Arguments::Object, Some("")), (Arguments::Text, Some("")), (Arguments::Object, None), (Arguments::Text, None)];

impl Capabilities {
    pub(crate) fn find(jinja: &Jinja) -> Self {
        let mut probe = Probe { jinja, tools: Vec::new() };
        let system = probe.system();
        let parameters = json!({"type": "object", "properties": {"x": {"type": "string"}}, "required": ["x"]});
        probe.tools.push(json!({"type": "function", "function": {"name": FUNCTION, "parameters": parameters}}));
        let bare = probe.render(&[user()]).contains(FUNCTION);
        if !bare {
            describe(&mut probe.tools[0]["function"]);
        }
        let tools = bare || probe.render(&[user()]).contains(FUNCTION);
        if !tools {
            probe.tools.clear();
        }
        let form = FORMS.into_iter().find(|form| probe.shows_arguments(*form));
        let calls = |ids: &[&'static str]| form.map(|form| probe.calls(form, ids));
        let one = calls(&IDS[..1]);
        // The call before a result is a text where none is shown.
        let one = one.unwrap_or_else(|| probe.render(&[user(), answer(), result((IDS[0], RESULTS[0]))]));
        let shows_two = |prompt: String| VALUES.iter().chain(&RESULTS).all(|text| prompt.contains(text));
        Self {
            tools,
            wants_descriptions: tools && !bare,
            calls: form.map(|(arguments, _)| arguments),
            calls_without_content: form.is_some_and(|(_, content)| content.is_none()),
            several_calls: calls(&IDS).is_some_and(shows_two),
            results: one.contains(RESULTS[0]),
            nine_letter_ids: calls(&[LONG_ID]).is_some_and(|prompt| prompt.is_empty()),
            system,
        }
    }
}

struct Probe<'a> {
    jinja: &'a Jinja,
    tools: Vec<Value>,
}

impl Probe<'_> {
    /// The prompt; an empty one of what the template refuses.
    fn render(&self, messages: &[Message]) -> String {
        let conversation = Conversation { messages, tools: &self.tools, variables: &Map::new() };
        self.jinja.render(conversation).unwrap_or_default()
    }

    /// The prompt of calls with these ids and their results.
    fn calls(&self, (arguments, content): Form, ids: &[&'static str]) -> String {
        let call = |(id, value)| {
            let arguments = arguments.of(json!({ KEY: value }));
            ToolCall { id, function: CalledFunction { name: FUNCTION.to_owned(), arguments } }
        };
        let tool_calls = ids.iter().map(|id| (*id).to_owned()).zip(VALUES).map(call).collect();
        let calling = Message { content: content.map(str::to_owned), tool_calls, ..answer() };
        let results = ids.iter().copied().zip(RESULTS).map(result);
        self.render(&[user(), calling].into_iter().chain(results).collect::<Vec<_>>())
    }

    /// Whether it shows the arguments of a call, neither quoted once more nor as Python would write them.
    fn shows_arguments(&self, form: Form) -> bool {
        let prompt = self.calls(form, &IDS[..1]);
        let misspelled = [format!("\\\"{KEY}"), format!("'{KEY}'"), format!("&#34;{KEY}")];
        prompt.contains(VALUES[0]) && !misspelled.iter().any(|wrong| prompt.contains(wrong))
    }

    fn system(&self) -> SystemTexts {
        let shows = |messages: &[Message]| {
            let prompt = self.render(messages);
            messages.iter().all(|message| message.role == Role::Assistant || prompt.contains(message.text()))
        };
        let [first, second, third] = SYSTEM.map(|text| Message::new(Role::System, text));
        if !shows(&[first.clone(), user()]) {
            SystemTexts::None
        } else if shows(&[first, second, user(), answer(), third, user()]) {
            SystemTexts::Anywhere
        } else {
            SystemTexts::Leading
        }
    }
}

impl Arguments {
    /// Arguments in this form.
    pub(crate) fn of(self, arguments: Value) -> Value {
        match self {
            Self::Object => arguments,
            Self::Text => Value::String(arguments.to_string()),
        }
    }
}

fn user() -> Message {
    Message::new(Role::User, "probe-user-text")
}

fn answer() -> Message {
    Message::new(Role::Assistant, "probe-answer-text")
}

fn result((id, text): (&str, &str)) -> Message {
    let (tool_call_id, name) = (Some(id.to_owned()), Some(FUNCTION.to_owned()));
    Message { tool_call_id, name, ..Message::new(Role::Tool, text) }
}

/// Adds the descriptions that a function and its parameters lack.
pub(crate) fn describe(function: &mut Value) {
    let add = |of: &mut Value| {
        let of = of.as_object_mut();
        of.map(|of| of.entry("description").or_insert_with(|| Value::from("")));
    };
    add(function);
    let properties = function.pointer_mut("/parameters/properties").and_then(Value::as_object_mut);
    properties.into_iter().flat_map(Map::values_mut).for_each(add);
}
