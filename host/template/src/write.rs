//! Writes a conversation for a template: what the template cannot show as it is stands in the text of a message instead.
use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use camshaft_core::family::description::Family;
use camshaft_core::family::instructions::instructions;
use camshaft_core::family::tools::Tools;
use rand::distr::{Alphanumeric, SampleString};
use serde_json::{Map, Value};

use crate::capabilities::{CallForm, Capabilities, SystemTexts, TemplateTraits, describe};
use crate::message::{CalledFunction, Message, Role, ToolCall};

/// Letters and digits of a call's id where the template takes no other number.
const SHORT_ID: usize = 9;

/// A conversation as a template takes it.
#[derive(Debug)]
pub struct Written {
    pub messages: Vec<Message>,
    pub tools: Vec<Value>,
    /// Whether the conversation has tools, even if they are described in a message.
    pub has_tools: bool,
}

impl TemplateTraits {
    /// Writes a conversation for this template. `shown`: the functions that the prompt tells of, as OpenAI has them; `tools`: those
    /// that may be called; `family`: whose notation the answer is read in.
    pub fn write(&self, mut messages: Vec<Message>, shown: &[Value], tools: &Tools, family: &Family) -> Written {
        let has_tools = !shown.is_empty();
        let mut capabilities = *self.capabilities(has_tools);
        if family.notation_in_prompt {
            capabilities = Capabilities { tools: false, calls: None, results: false, ..capabilities };
        }
        name_results(&mut messages);
        if capabilities.nine_letter_ids {
            messages.iter_mut().for_each(shorten_ids);
        }
        let mut shown = shown.to_vec();
        if !capabilities.tools {
            shown.clear();
            describe_tools(&mut messages, tools, family);
        } else if capabilities.wants_descriptions {
            shown.iter_mut().filter_map(|tool| tool.get_mut("function")).for_each(describe);
        }
        if capabilities.calls.is_some() && !capabilities.several_calls {
            messages = one_call_at_a_time(messages);
        }
        messages.iter_mut().for_each(|message| write_calls(message, capabilities.calls, tools, family));
        let messages = put_into_users(messages, capabilities.results, capabilities.system);
        Written { messages, tools: shown, has_tools }
    }
}

/// Describes the functions in the system's text.
fn describe_tools(messages: &mut Vec<Message>, tools: &Tools, family: &Family) {
    if tools.callable().is_empty() {
        return;
    }
    let text = instructions(family, tools);
    match messages.first_mut() {
        Some(first) if first.role == Role::System => first.content = Some(format!("{}\n\n{text}", first.text())),
        _ => messages.insert(0, Message::new(Role::System, text)),
    }
}

/// Writes calls in a form, or into the text of their message.
fn write_calls(message: &mut Message, form: Option<CallForm>, tools: &Tools, family: &Family) {
    if message.tool_calls.is_empty() {
        return;
    }
    // Of a text and calls, a template that wants no content would show the text alone.
    let Some(form) = form.filter(|form| !form.no_content || message.text().is_empty()) else {
        let calls = std::mem::take(&mut message.tool_calls);
        let none = Map::new();
        let named = calls.iter().map(|ToolCall { function: CalledFunction { name, arguments }, .. }| {
            (name.as_str(), arguments.as_object().unwrap_or(&none))
        });
        let schema = |name: &str| tools.get(name).map(|tool| tool.schema()).unwrap_or_default();
        let written = family.written(named, schema);
        let gap = if message.text().is_empty() { "" } else { "\n" };
        message.content.get_or_insert_default().extend([gap, &written]);
        return;
    };
    message.content.take_if(|_| form.no_content);
    for ToolCall { function, .. } in &mut message.tool_calls {
        function.arguments = form.arguments(function.arguments.take());
    }
}

/// Puts what the template does not show into messages of the user's: results, those of one call of the assistant's together, with
/// what the user says then; system texts before or behind what the user says. Leading system texts become one where that is shown.
fn put_into_users(messages: Vec<Message>, shows_results: bool, systems: SystemTexts) -> Vec<Message> {
    let mut written: Vec<Message> = Vec::with_capacity(messages.len());
    // Whether the last one waits for what the user says: templates refuse two messages of the user's, one behind the other.
    let mut waits = false;
    for mut message in messages {
        let is_result = message.role == Role::Tool;
        let leads = systems == SystemTexts::Leading && written.last().is_none_or(|last| last.role == Role::System);
        let moves = is_result && !shows_results || message.role == Role::System && systems != SystemTexts::Anywhere;
        if moves && is_result {
            message = Message::new(Role::User, format!("<tool_response>\n{}\n</tool_response>", message.text()));
        } else if moves && !leads {
            message.role = Role::User;
        }
        if let Some(last) = written.last_mut().filter(|last| last.role == message.role && (moves || waits)) {
            last.content.get_or_insert_default().extend([if is_result { "\n" } else { "\n\n" }, message.text()]);
            waits &= moves;
        } else {
            waits = moves;
            written.push(message);
        }
    }
    written
}

/// Gives results the names of the functions that were called: some templates write them.
fn name_results(messages: &mut [Message]) {
    let mut names: HashMap<String, String> = HashMap::new();
    for message in messages {
        names.extend(message.tool_calls.iter().map(|call| (call.id.clone(), call.function.name.clone())));
        if message.role == Role::Tool && message.name.is_none() {
            message.name = message.tool_call_id.as_ref().and_then(|id| names.get(id)).cloned();
        }
    }
}

/// Gives calls that other models made ids that the template takes. Equal ids stay equal.
fn shorten_ids(message: &mut Message) {
    for id in message.tool_calls.iter_mut().map(|call| &mut call.id).chain(&mut message.tool_call_id) {
        let fits = id.len() == SHORT_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !fits {
            let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(&*id);
            *id = format!("{hash:0SHORT_ID$x}")[..SHORT_ID].to_owned();
        }
    }
}

/// A new id of a call, of nine letters and digits or as long as OpenAI's.
pub fn call_id(nine_letters: bool) -> String {
    let letters = |count| Alphanumeric.sample_string(&mut rand::rng(), count);
    if nine_letters { letters(SHORT_ID) } else { format!("call_{}", letters(24)) }
}

/// Each call in a message of its own, with its results behind it.
fn one_call_at_a_time(messages: Vec<Message>) -> Vec<Message> {
    let mut written: Vec<Message> = Vec::with_capacity(messages.len());
    for mut message in messages {
        let others = message.tool_calls.split_off(message.tool_calls.len().min(1));
        let before = message.tool_call_id.as_ref().and_then(|id| {
            let calls = |other: &Message| other.tool_calls.iter().any(|call| call.id == *id);
            written.iter().rposition(|other| calls(other) || other.tool_call_id.as_ref() == Some(id))
        });
        written.insert(before.map_or(written.len(), |at| at + 1), message);
        let alone = |call| Message { tool_calls: vec![call], ..Message::new(Role::Assistant, "") };
        written.extend(others.into_iter().map(alone));
    }
    written
}

#[cfg(test)]
mod tests {
    use camshaft_core::family::detect::FamilyName;
    use camshaft_core::family::tools::{Tool, ToolChoice};
    use serde_json::json;

    use super::*;
    use crate::template::{ChatTemplate, Source};

    /// Shows everything, tools and calls as JSON.
    const ALL: &str = "{{ tools | tojson if tools }}{% for m in messages %}[{{ m.role }}|{{ m.content }}\
                       {% for c in m.tool_calls %}|{{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}]{% endfor %}";

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::compile(Source { template: Some(source), ..Source::default() }).unwrap()
    }

    fn family(name: &str) -> &'static Family {
        let FamilyName(family) = name.parse().unwrap();
        family
    }

    fn tools(names: &[&str]) -> Tools {
        let tool = |name: &&str| Tool { name: (*name).into(), description: None, parameters: None, strict: false };
        Tools::new(names.iter().map(tool).collect(), &ToolChoice::Auto, true).unwrap()
    }

    fn shown(names: &[&str]) -> Vec<Value> {
        names
            .iter()
            .map(
                |name| json!({"type": "function", "function": {"name": name, "parameters": {"properties": {"x": {}}}}}),
            )
            .collect()
    }

    fn write(source: &str, of: &str, messages: Vec<Message>, names: &[&str]) -> Written {
        template(source).traits().write(messages, &shown(names), &tools(names), family(of))
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

    fn said(written: &Written) -> Vec<(Role, &str)> {
        written.messages.iter().map(|message| (message.role, message.text())).collect()
    }

    #[test]
    fn a_template_that_shows_everything_gets_it_as_it_is() {
        let written = write(ALL, "hermes", talk(), &["f"]);
        let mut expected = talk();
        expected[2..].iter_mut().for_each(|result| result.name = Some("f".to_owned()));
        assert_eq!((written.messages, written.tools), (expected, shown(&["f"])));
    }

    #[test]
    fn templates_without_tools_read_them_as_text() {
        let plain = "{% for m in messages if m.role != 'tool' %}[{{ m.role }}|{{ m.content }}]{% endfor %}";
        let written = write(plain, "hermes", talk(), &["f"]);
        assert!(written.tools.is_empty() && written.has_tools);
        let call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\":1}}\n</tool_call>";
        let calls = format!("so\n{call}\n{call}");
        let results = "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>";
        assert_eq!(said(&written)[1..], [(Role::User, "hi"), (Role::Assistant, &*calls), (Role::User, results)]);
        let told = written.messages[0].text();
        assert!(written.messages[0].role == Role::System && told.contains("\"name\":\"f\""), "{told}");
        assert!(written.messages.iter().all(|message| message.tool_calls.is_empty()));
        let mut goes_on = talk();
        goes_on.push(Message::new(Role::User, "and?"));
        let results = format!("{results}\n\nand?");
        assert_eq!(said(&write(plain, "hermes", goes_on, &["f"]))[3..], [(Role::User, &*results)]);
        let mut told = talk();
        told.extend([Message::new(Role::System, "be brief"), Message::new(Role::User, "and?")]);
        let hides = "{% for m in messages if m.role in ['user', 'assistant'] %}{{ m.content }}{% endfor %}";
        let last = said(&write(hides, "hermes", told, &["f"]))[2].1.to_owned();
        assert!(last.ends_with("two\n</tool_response>\n\nbe brief\n\nand?"), "one message of the user's: {last}");
        // A model of which no notation is known learns it from the prompt, whatever its template shows.
        let unknown = write(ALL, "generic", talk(), &["f"]);
        assert_eq!((said(&unknown), unknown.tools.len()), (said(&written), 0));
        assert_eq!(
            write(plain, "hermes", vec![Message::new(Role::User, "hi")], &[]).messages.len(),
            1,
            "nothing to describe"
        );
    }

    #[test]
    fn arguments_have_the_form_that_the_template_shows() {
        let written = |shows: &str| {
            let source = ALL.replace("{{ c.function.arguments | tojson }}", shows);
            write(&source, "hermes", talk(), &["f"]).messages[1].clone()
        };
        let arguments = |shows: &str| written(shows).tool_calls[0].function.arguments.clone();
        assert_eq!(arguments("{{ c.function.arguments | tojson }}"), json!({"a": 1}));
        assert_eq!(arguments("{{ c.function.arguments }}"), json!("{\"a\":1}"));
        assert_eq!(arguments("{{ ' ' + c.function.arguments }}"), json!("{\"a\":1}"));
        assert_eq!(
            arguments("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}"),
            json!({"a": 1})
        );
        assert!(written("").tool_calls.is_empty(), "calls that it does not show are text");
        let mut cut = talk();
        cut[1].tool_calls[0].function.arguments = json!("{\"a\": ");
        let cut = write(ALL, "hermes", cut, &["f"]).messages[1].tool_calls[0].function.arguments.clone();
        assert_eq!(cut, json!({"incomplete_arguments": "{\"a\": "}));
    }

    #[test]
    fn content_is_none_where_only_that_shows_the_calls() {
        let source = "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls | tojson }}{% else %}{{ m.content }}\
                      {% endif %}{% endfor %}";
        let mut talk = talk();
        talk[1].content = Some(String::new());
        assert_eq!(write(source, "hermes", talk.clone(), &[]).messages[1].content, None);
        let with_text = write(source, "hermes", self::talk(), &[]).messages[1].clone();
        assert!(with_text.text().starts_with("so\n<tool_call>") && with_text.tool_calls.is_empty(), "{with_text:?}");
        assert_eq!(write(ALL, "hermes", talk, &[]).messages[1].content.as_deref(), Some(""));
    }

    #[test]
    fn calls_stand_alone_where_the_template_takes_one_at_a_time() {
        let source = format!(
            "{{% for m in messages %}}{{% if m.tool_calls and m.tool_calls | length > 1 %}}{{{{ raise_exception('one') }}}}\
                              {{% endif %}}{{% endfor %}}{ALL}"
        );
        let written = write(&source, "hermes", talk(), &["f"]);
        let said: Vec<(Role, &str, usize)> =
            written.messages.iter().map(|message| (message.role, message.text(), message.tool_calls.len())).collect();
        let expected = [
            (Role::User, "hi", 0),
            (Role::Assistant, "so", 1),
            (Role::Tool, "one", 0),
            (Role::Assistant, "", 1),
            (Role::Tool, "two", 0),
        ];
        assert_eq!(said, expected);
    }

    #[test]
    fn system_texts_stand_where_the_template_shows_them() {
        let message = Message::new;
        let talk = || {
            vec![
                message(Role::System, "a"),
                message(Role::System, "b"),
                message(Role::User, "hi"),
                message(Role::Assistant, "so"),
                message(Role::System, "c"),
                message(Role::User, "and"),
            ]
        };
        let written = |source: &str| write(source, "hermes", talk(), &[]);
        assert_eq!(written(ALL).messages, talk());
        let others = "{% for m in messages %}{% if m.role != 'system' %}[{{ m.content }}]{% endif %}{% endfor %}";
        let first =
            format!("{{% if messages[0].role == 'system' %}}{{{{ messages[0].content }}}}{{% endif %}}{others}");
        let expected =
            [(Role::System, "a\n\nb"), (Role::User, "hi"), (Role::Assistant, "so"), (Role::User, "c\n\nand")];
        assert_eq!(said(&written(&first)), expected);
        let expected = [(Role::User, "a\n\nb\n\nhi"), (Role::Assistant, "so"), (Role::User, "c\n\nand")];
        assert_eq!(said(&written(others)), expected);
        let last = vec![message(Role::User, "hi"), message(Role::System, "c")];
        assert_eq!(said(&write(others, "hermes", last, &[])), [(Role::User, "hi\n\nc")]);
        let continued = vec![message(Role::User, "hi"), message(Role::System, "c"), message(Role::Assistant, "{")];
        assert_eq!(said(&write(others, "hermes", continued, &[])), [(Role::User, "hi\n\nc"), (Role::Assistant, "{")]);
        let late = vec![message(Role::Assistant, "so"), message(Role::System, "c"), message(Role::Assistant, "{")];
        let expected = [(Role::Assistant, "so"), (Role::User, "c"), (Role::Assistant, "{")];
        assert_eq!(said(&write(others, "hermes", late, &[])), expected);
    }

    #[test]
    fn missing_descriptions_are_filled_in_where_the_template_wants_them() {
        let wants = "{% for t in tools or [] %}{{ t.function.name + t.function.description }}\
                     {% for n, p in t.function.parameters.properties.items() %}{{ n + p.description }}{% endfor %}{% endfor %}";
        let written = write(&format!("{wants}{ALL}"), "hermes", talk(), &["f"]);
        let function = &written.tools[0]["function"];
        assert_eq!(
            (&function["description"], &function["parameters"]["properties"]["x"]["description"]),
            (&json!(""), &json!(""))
        );
    }

    #[test]
    fn ids_are_such_as_the_template_demands_and_still_belong_together() {
        let source = format!(
            "{{% for m in messages %}}{{% for c in m.tool_calls %}}{{% if c.id | length != 9 %}}\
                              {{{{ raise_exception('nine') }}}}{{% endif %}}{{% endfor %}}{{% endfor %}}{ALL}"
        );
        let own = call_id(true);
        assert!(own.len() == SHORT_ID && own != call_id(true), "{own}");
        let mut talk = talk();
        talk[1].tool_calls[1].id.clone_from(&own);
        talk[3].tool_call_id = Some(own.clone());
        let messages = write(&source, "mistral", talk, &["f"]).messages;
        let ids: Vec<&str> = messages[1].tool_calls.iter().map(|call| call.id.as_str()).collect();
        assert!(ids[0].len() == SHORT_ID && ids[0] != "call_1", "{ids:?}");
        assert_eq!(ids[1], own, "as it was given");
        assert_eq!(messages[2].tool_call_id.as_deref(), Some(ids[0]));
        assert_eq!(messages[3].tool_call_id.as_deref(), Some(ids[1]));
        let own = call_id(false);
        assert!(own.len() == 29 && own.starts_with("call_") && own != call_id(false), "{own}");
    }

    #[test]
    fn chats_with_tools_have_a_template_of_their_own_where_the_model_brings_one() {
        let source = Source { template: Some("plain"), with_tools: Some(ALL), ..Source::default() };
        let template = ChatTemplate::compile(source).unwrap();
        let traits = template.traits();
        assert!(!traits.capabilities(false).tools && traits.capabilities(true).tools);
        let (messages, variables) = ([Message::new(Role::User, "hi")], Map::new());
        let render = |tools: &[Value]| {
            let conversation = crate::message::Conversation { messages: &messages, tools, variables: &variables };
            template.render(!tools.is_empty(), conversation).unwrap()
        };
        assert_eq!(render(&[]), "plain");
        assert!(render(&shown(&["f"])).ends_with("[user|hi]"));
    }
}
