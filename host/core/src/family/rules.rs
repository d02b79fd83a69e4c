//! The rules of a tool's arguments, in every notation.
use serde_json::{Map, Value, json};

use crate::family::description::Form;
use crate::family::lark::{Lark, escaped, string, without};
use crate::family::prefix::SPACE;
use crate::family::{braces, elements};

/// The name of an argument that a notation cannot write: it has characters that end names there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unwritable(pub(crate) String);

/// Schemas within each other that are followed, at most. What lies deeper may be any value.
const DEPTH: usize = 16;
/// Items of a list whose bounds are followed, at most.
const ITEMS: u64 = 1024;

/// What the arguments of a call are: JSON that follows the schema, or the family's own notation.
pub(crate) fn arguments(form: &Form, schema: &Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Unwritable> {
    match form {
        Form::Object(_) | Form::List(_) | Form::Named { .. } => Ok(spaced(schema.clone(), lark)),
        Form::Elements => all_elements(schema, lark),
        Form::Braces { quote } => {
            let but = without(&[escaped(quote)]);
            lark.define("QUOTED", &format!("/(?s:.+)/{but}"));
            lark.define("QUOTEDS", &format!("/(?s:.*)/{but}"));
            Bracing { quote, any: None, lark }.value(&Value::Object(schema.clone()), 0)
        }
    }
}

/// JSON that follows a schema.
pub(crate) fn json(schema: &Value, lark: &mut Lark<'_>) -> String {
    match schema {
        Value::Object(schema) => spaced(schema.clone(), lark),
        other => spaced(Map::from_iter([("allOf".to_owned(), Value::from(vec![other.clone()]))]), lark),
    }
}

/// JSON with spaces as models write them, but never so much that whitespace alone fills an answer.
fn spaced(schema: Map<String, Value>, lark: &mut Lark<'_>) -> String {
    compiled(schema, json!({ "whitespace_pattern": format!("[ \\n\\r\\t]{{1,{SPACE}}}") }), lark)
}

/// JSON with settings of llguidance's compiler.
fn compiled(mut schema: Map<String, Value>, options: Value, lark: &mut Lark<'_>) -> String {
    schema.insert("x-guidance".to_owned(), options);
    lark.rule(&format!("%json {}", Value::Object(schema)))
}

/// JSON of one line. The whitespace after it belongs to what follows.
fn on_one_line(schema: Map<String, Value>, lark: &mut Lark<'_>) -> String {
    compiled(schema, json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " }), lark)
}

/// Whether an object of this schema must have a property.
fn is_required(schema: &Map<String, Value>, property: &str) -> bool {
    let required = schema.get("required").and_then(Value::as_array);
    required.is_some_and(|required| required.iter().any(|name| name == property))
}

fn properties(schema: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// The values that a schema lists, if it lists any.
fn listed(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(only), _) => Some(vec![only]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

/// An element for each property, in their order.
fn all_elements(schema: &Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Unwritable> {
    let end = format!("\n{}\n", elements::VALUE_END);
    lark.define("VALUE", &format!("/(?s:.*)/{}", without(&[escaped(elements::VALUE_END)])));
    let mut all = Vec::new();
    for (key, of) in properties(schema) {
        if !elements::is_key(key) {
            return Err(Unwritable(key.chars().take(elements::KEY_BYTES).collect()));
        }
        let value = match listed(of) {
            _ if !elements::is_text(of) => {
                let value = on_one_line(with_definitions(of, schema), lark);
                format!("{value} {}", string(&end))
            }
            Some(values) => {
                let values = values.into_iter().filter_map(Value::as_str);
                let values = values.filter(|value| !value.contains(elements::VALUE_END));
                format!("({})", values.map(|value| string(&format!("{value}{end}"))).collect::<Vec<_>>().join(" | "))
            }
            None => lark.lazy(&format!("VALUE {}", string(&end))),
        };
        let element = lark.rule(&format!("{} {value}", string(&format!("{}{key}>\n", elements::KEY_BEGIN))));
        all.push(format!("{element}{}", if is_required(schema, key) { "" } else { "?" }));
    }
    all.push(string(elements::END));
    Ok(lark.rule(&all.join(" ")))
}

/// A property's schema on its own, with the definitions to which it may refer.
fn with_definitions(of: &Value, root: &Map<String, Value>) -> Map<String, Value> {
    let mut schema = of.as_object().cloned().unwrap_or_default();
    for definitions in ["$defs", "definitions"] {
        if let Some(found) = root.get(definitions) {
            schema.entry(definitions).or_insert_with(|| found.clone());
        }
    }
    schema
}

/// Rules of objects with bare keys and marked strings. They follow types, listed values, properties, items and the bounds of
/// numbers; what else a schema says is not followed.
#[derive(Debug)]
struct Bracing<'a, 'b> {
    quote: &'a str,
    /// The rule of any value, once there is one.
    any: Option<String>,
    lark: &'a mut Lark<'b>,
}

impl Bracing<'_, '_> {
    fn value(&mut self, schema: &Value, depth: usize) -> Result<String, Unwritable> {
        let scalars =
            listed(schema).filter(|values| !values.is_empty() && values.iter().all(|value| self.is_listable(value)));
        if let Some(values) = scalars {
            let values: Vec<String> = values.into_iter().map(|value| self.listed(value)).collect();
            return Ok(self.lark.rule(&values.join(" | ")));
        }
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, schema) {
            _ if depth == DEPTH => Ok(self.any()),
            ("string", _) => Ok(self.text()),
            ("integer" | "number" | "boolean" | "null", Value::Object(schema)) => {
                Ok(on_one_line(schema.clone(), self.lark))
            }
            ("array", Value::Object(schema)) => {
                let item = match schema.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => self.any(),
                };
                let bound = |name| schema.get(name).and_then(Value::as_u64).filter(|items| *items <= ITEMS);
                Ok(self.list(&item, bound("minItems").unwrap_or(0), bound("maxItems")))
            }
            ("object", Value::Object(schema)) if schema.contains_key("properties") => self.object(schema, depth),
            _ => Ok(self.any()),
        }
    }

    fn is_listable(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => !text.contains(self.quote),
            Value::Array(_) | Value::Object(_) => false,
            _ => true,
        }
    }

    fn listed(&self, value: &Value) -> String {
        match value {
            Value::String(text) => self.lark.spelled(&format!("{0}{text}{0}", self.quote)),
            scalar => string(&scalar.to_string()),
        }
    }

    fn text(&mut self) -> String {
        let rest = self.lark.until("QUOTED", "QUOTEDS", self.quote);
        let body = format!("{} {rest}", self.lark.spelled(self.quote));
        self.lark.rule(&body)
    }

    fn list(&mut self, item: &str, min: u64, max: Option<u64>) -> String {
        if max == Some(0) {
            return string("[]");
        }
        let more = match max {
            Some(max) => format!("{{{},{}}}", min.saturating_sub(1), (max - 1).max(min.saturating_sub(1))),
            None if min > 1 => format!("{{{},}}", min - 1),
            None => "*".to_owned(),
        };
        let items = format!("({item} (\",\" {item}){more}){}", if min == 0 { "?" } else { "" });
        self.lark.rule(&format!("\"[\" {items} \"]\""))
    }

    /// Properties in their order, separated by commas, those that are not required only perhaps.
    fn object(&mut self, schema: &Map<String, Value>, depth: usize) -> Result<String, Unwritable> {
        let mut members = Vec::new();
        for (key, of) in properties(schema) {
            if !braces::is_key(key) {
                return Err(Unwritable(key.chars().take(braces::WORD_BYTES).collect()));
            }
            let value = self.value(of, depth + 1)?;
            members
                .push((self.lark.rule(&format!("{} {value}", string(&format!("{key}:")))), is_required(schema, key)));
        }
        // From the last on: what may follow a member, and what may be all members from it on.
        let (mut after, mut all) = (String::new(), Some(String::new()));
        for (member, required) in members.iter().rev() {
            let from_here = format!("{member} {after}");
            all = match all.filter(|_| !required) {
                Some(later) => {
                    Some(self.lark.rule(&format!("{from_here} | {}", if later.is_empty() { "\"\"" } else { &later })))
                }
                None => Some(self.lark.rule(&from_here)),
            };
            let optional = if *required { "" } else { "?" };
            after = self.lark.rule(&format!("(\",\" {member}){optional} {after}"));
        }
        Ok(self.lark.rule(&format!("\"{{\" {} \"}}\"", all.unwrap_or_default())))
    }

    /// The rule of a value of any kind.
    fn any(&mut self) -> String {
        if let Some(any) = &self.any {
            return any.clone();
        }
        let text = self.text();
        let scalar = json!({ "type": ["number", "boolean", "null"] });
        let scalar = on_one_line(scalar.as_object().cloned().unwrap_or_default(), self.lark);
        let list = "\"[\" (any_value (\",\" any_value)*)? \"]\"";
        let object = "\"{\" (any_member (\",\" any_member)*)? \"}\"";
        self.lark.define("ANY_KEY", "/[a-zA-Z0-9_-]{1,64}/");
        self.lark.define("any_member", "ANY_KEY \":\" any_value");
        self.lark.define("any_value", &format!("{text} | {scalar} | {list} | {object}"));
        self.any = Some("any_value".to_owned());
        "any_value".to_owned()
    }
}
