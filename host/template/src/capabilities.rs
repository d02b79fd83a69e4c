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
    /// One or several in front.
    Leading { several: bool },
    /// It refuses them, or leaves them out.
    None,
}

const USER: &str = "probe-user-text";
const ANSWER: &str = "probe-answer-text";
const SYSTEM: [&str; 2] = ["probe-system-one", "probe-system-two"];
const FUNCTION: &str = "probe_function";
const PARAMETER: &str = "probe_parameter";
/// Of the arguments of a call: none of the function's, so that it stands in no description.
const KEY: &str = "probe_key";
const VALUES: [&str; 2] = ["probe-value-one", "probe-value-two"];
const RESULTS: [&str; 2] = ["probe-result-one", "probe-result-two"];
const IDS: [&str; 2] = ["abcDEF123", "ghiJKL456"];
/// What an id of another length looks like.
const LONG_ID: &str = "call_0123456789abcdefghijklmn";

impl Capabilities {
    pub(crate) fn find(jinja: &Jinja) -> Self {
        let probe = Probe(jinja);
        let shows_tool = |described: bool| {
            let tool = [tool(described)];
            probe.shows(&[user()], &tool, &[FUNCTION])
        };
        let (bare, described) = (shows_tool(false), shows_tool(true));
        let tools = bare || described;
        let offered = [tool(described)];
        let offered = if tools { &offered[..] } else { &[] };
        let forms = [
            (Arguments::Object, Some("")),
            (Arguments::Text, Some("")),
            (Arguments::Object, None),
            (Arguments::Text, None),
        ];
        let form = forms.into_iter().find(|(arguments, content)| probe.shows_call(*arguments, *content, offered));
        let calls = form.map(|(arguments, _)| arguments);
        let content = form.and_then(|(_, content)| content);
        let with = |ids: [&str; 2], count: usize| {
            let calls = (0..count).map(|at| call(ids[at], at, calls.unwrap_or(Arguments::Object))).collect();
            let results = (0..count).map(|at| result(ids[at], at));
            let messages: Vec<Message> = [user(), calling(calls, content)].into_iter().chain(results).collect();
            let shown: Vec<&str> = VALUES[..count].iter().chain(&RESULTS[..count]).copied().collect();
            (messages, shown)
        };
        let several_calls = calls.is_some() && {
            let (messages, shown) = with(IDS, 2);
            probe.shows(&messages, offered, &shown)
        };
        let results = match calls {
            Some(_) => {
                let (messages, _) = with(IDS, 1);
                probe.shows(&messages, offered, &RESULTS[..1])
            }
            // The call before it is a text then.
            None => probe.shows(&[user(), answer(), result(IDS[0], 0)], offered, &RESULTS[..1]),
        };
        let nine_letter_ids = calls.is_some() && {
            let (messages, _) = with([LONG_ID; 2], 1);
            probe.render(&messages, offered).is_none()
        };
        Self {
            tools,
            wants_descriptions: described && !bare,
            calls,
            calls_without_content: calls.is_some() && content.is_none(),
            several_calls,
            results,
            nine_letter_ids,
            system: probe.system(),
        }
    }
}

struct Probe<'a>(&'a Jinja);

impl Probe<'_> {
    fn render(&self, messages: &[Message], tools: &[Value]) -> Option<String> {
        let variables = Map::new();
        self.0.render(Conversation { messages, tools, variables: &variables }).ok()
    }

    fn shows(&self, messages: &[Message], tools: &[Value], texts: &[&str]) -> bool {
        self.render(messages, tools).is_some_and(|prompt| texts.iter().all(|text| prompt.contains(text)))
    }

    /// Whether it shows the arguments of a call, neither quoted once more nor as Python would write them.
    fn shows_call(&self, arguments: Arguments, content: Option<&str>, tools: &[Value]) -> bool {
        let messages = [user(), calling(vec![call(IDS[0], 0, arguments)], content), result(IDS[0], 0)];
        let Some(prompt) = self.render(&messages, tools) else { return false };
        let misspelled = [format!("\\\"{KEY}"), format!("'{KEY}'"), format!("&#34;{KEY}")];
        prompt.contains(VALUES[0]) && !misspelled.iter().any(|wrong| prompt.contains(wrong.as_str()))
    }

    fn system(&self) -> SystemTexts {
        let system = |at: usize| Message::new(Role::System, SYSTEM[at]);
        let shows = |messages: &[Message]| {
            let texts = SYSTEM.iter().filter(|text| messages.iter().any(|message| message.text() == **text));
            let texts: Vec<&str> = texts.copied().chain([USER]).collect();
            self.shows(messages, &[], &texts)
        };
        if !shows(&[system(0), user()]) {
            return SystemTexts::None;
        }
        let several = shows(&[system(0), system(1), user()]);
        if several && shows(&[system(0), user(), answer(), system(1), user()]) {
            return SystemTexts::Anywhere;
        }
        SystemTexts::Leading { several }
    }
}

fn user() -> Message {
    Message::new(Role::User, USER)
}

fn answer() -> Message {
    Message::new(Role::Assistant, ANSWER)
}

fn call(id: &str, at: usize, arguments: Arguments) -> ToolCall {
    let value = json!({ KEY: VALUES[at] });
    let arguments = match arguments {
        Arguments::Object => value,
        Arguments::Text => Value::String(value.to_string()),
    };
    ToolCall { id: id.to_owned(), function: CalledFunction { name: FUNCTION.to_owned(), arguments } }
}

fn calling(tool_calls: Vec<ToolCall>, content: Option<&str>) -> Message {
    Message { content: content.map(str::to_owned), tool_calls, ..Message::new(Role::Assistant, "") }
}

fn result(id: &str, at: usize) -> Message {
    let (tool_call_id, name) = (Some(id.to_owned()), Some(FUNCTION.to_owned()));
    Message { tool_call_id, name, ..Message::new(Role::Tool, RESULTS[at]) }
}

fn tool(described: bool) -> Value {
    let mut function = json!({"name": FUNCTION, "parameters": {"type": "object", "properties": {PARAMETER: {"type": "string"}}, "required": [PARAMETER]}});
    if described {
        describe(&mut function);
    }
    json!({"type": "function", "function": function})
}

/// Adds the descriptions that a function and its parameters lack.
pub(crate) fn describe(function: &mut Value) {
    let Some(function) = function.as_object_mut() else { return };
    function.entry("description").or_insert_with(|| Value::from(""));
    let properties = function.get_mut("parameters").and_then(|parameters| parameters.get_mut("properties"));
    for property in properties.and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if let Some(property) = property.as_object_mut() {
            property.entry("description").or_insert_with(|| Value::from(""));
        }
    }
}
