//! How a family spells a call: the text around its arguments.
use serde_json::{Map, Value};

use crate::family::description::{Calls, Family, Form};
use crate::family::elements::{END, KEY_BEGIN, VALUE_END, is_text};

impl Calls {
    /// Before the first call of an answer, with its beginning.
    pub(crate) fn first(&self) -> String {
        let list = if let Form::List(_) = self.form { "[" } else { "" };
        format!("{}{list}{}", self.open, self.begin())
    }

    /// Before another call, with its beginning.
    pub(crate) fn another(&self) -> String {
        format!("{}{}", self.separator, if self.unmarked { "" } else { self.begin() })
    }

    /// After the last call.
    pub(crate) fn last(&self) -> String {
        let list = if let Form::List(_) = self.form { "]" } else { "" };
        format!("{list}{}", self.close)
    }

    /// Between a call's beginning and its arguments.
    pub(crate) fn before_arguments(&self, name: &str) -> String {
        match &self.form {
            Form::Object(keys) | Form::List(keys) => {
                format!("{{\"{}\": \"{name}\", \"{}\": ", keys.name, keys.arguments)
            }
            Form::Named { between, .. } => format!("{name}{}", between.first().unwrap_or(&"")),
            Form::Elements => format!("<function={name}>\n"),
            Form::Braces { .. } => name.to_owned(),
        }
    }

    /// Between a call's arguments and what follows it.
    pub(crate) fn after_arguments(&self) -> String {
        let brace = if let Form::Object(_) | Form::List(_) = self.form { "}" } else { "" };
        format!("{brace}{}", self.end)
    }

    fn begin(&self) -> &'static str {
        self.begins.first().copied().unwrap_or_default()
    }

    fn arguments(&self, schema: &Map<String, Value>, arguments: &Map<String, Value>) -> String {
        match &self.form {
            Form::Elements => {
                let properties = schema.get("properties").and_then(Value::as_object);
                let element = |(key, value): (&String, &Value)| {
                    let text = properties.and_then(|properties| properties.get(key)).is_none_or(is_text);
                    let value = value.as_str().filter(|_| text).map_or_else(|| value.to_string(), str::to_owned);
                    format!("{KEY_BEGIN}{key}>\n{value}\n{VALUE_END}\n")
                };
                arguments.iter().map(element).collect::<String>() + END
            }
            Form::Braces { quote } => braces(&Value::Object(arguments.clone()), quote),
            _ => Value::Object(arguments.clone()).to_string(),
        }
    }
}

impl Family {
    /// The text that an answer with these calls has, for prompts whose template knows no calls. `schema` is that of the tool of
    /// this name.
    pub fn written<'a>(
        &self,
        calls: impl IntoIterator<Item = (&'a str, &'a Map<String, Value>)>,
        schema: impl Fn(&str) -> Map<String, Value>,
    ) -> String {
        let mut text = String::new();
        for (name, arguments) in calls {
            text += &if text.is_empty() { self.calls.first() } else { self.calls.another() };
            text += &self.calls.before_arguments(name);
            text += &self.calls.arguments(&schema(name), arguments);
            text += &self.calls.after_arguments();
        }
        if !text.is_empty() {
            text += &self.calls.last();
        }
        text
    }
}

/// A value with unquoted keys, and marked strings.
fn braces(value: &Value, quote: &str) -> String {
    let joined = |parts: Vec<String>| parts.join(",");
    match value {
        Value::String(text) => format!("{quote}{text}{quote}"),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(|item| braces(item, quote)).collect())),
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| format!("{key}:{}", braces(value, quote));
            format!("{{{}}}", joined(members.iter().map(member).collect()))
        }
        scalar => scalar.to_string(),
    }
}
