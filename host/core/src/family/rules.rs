//! The rules of a tool's arguments, in every notation.
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::family::description::Form;
use crate::family::lark::{Full, Lark, escaped, string, without};
use crate::family::{braces, elements};
use crate::shown::cut;

/// Why a tool's arguments have no rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The notation cannot write an argument's name, which has characters that end names there. It is cut.
    Name(String),
    /// The notation can write no value that the argument of this name may have. It is cut.
    Value(String),
    TooLarge,
}

impl Fault {
    /// The same, of the argument of this name unless it is known already.
    fn of(self, key: &str) -> Self {
        match self {
            Self::Value(name) if name.is_empty() => Self::Value(cut(key)),
            known => known,
        }
    }
}

impl From<Full> for Fault {
    fn from(_: Full) -> Self {
        Self::TooLarge
    }
}

/// Schemas within each other that are followed, at most. What lies deeper may be any value.
const DEPTH: usize = 16;
/// Items of a list whose number a schema bounds, at most. A list that must have more is refused.
const ITEMS: u64 = 1024;

/// The name of an argument, where any is allowed.
const ANY_KEY: &str = "/[a-zA-Z0-9_-]{1,64}/";

/// An object of any members, once there are rules of any value.
const ANY_OBJECT: &str = "\"{\" (any_member (\",\" any_member)*)? \"}\"";

/// What the arguments of a call are: JSON that follows the schema, or the family's own notation.
pub(crate) fn arguments(form: &Form, schema: &Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Fault> {
    match form {
        Form::Object(_) | Form::List(_) | Form::Named { .. } => Ok(spaced(schema.clone(), lark)?),
        Form::Elements => all_elements(schema, lark),
        Form::Braces { quote } => {
            let but = without(&[escaped(quote)]);
            lark.define("QUOTED", &format!("/(?s:.+)/{but}"))?;
            lark.define("QUOTEDS", &format!("/(?s:.*)/{but}"))?;
            Bracing { quote, any: false, lark }.arguments(schema)
        }
    }
}

/// The member of a schema with settings of llguidance's compiler.
const OPTIONS: &str = "x-guidance";

/// JSON that follows a schema.
pub(crate) fn json(schema: &Value, lark: &mut Lark<'_>) -> Result<String, Full> {
    match schema {
        Value::Object(schema) => spaced(schema.clone(), lark),
        other => spaced(Map::from_iter([("allOf".to_owned(), Value::from(vec![other.clone()]))]), lark),
    }
}

/// JSON with whitespace as all generated JSON may have it.
fn spaced(mut schema: Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Full> {
    schema.remove(OPTIONS);
    lark.rule(&format!("%json {}", Value::Object(schema)))
}

/// JSON with settings of llguidance's compiler.
fn compiled(mut schema: Map<String, Value>, options: Value, lark: &mut Lark<'_>) -> Result<String, Full> {
    schema.insert(OPTIONS.to_owned(), options);
    lark.rule(&format!("%json {}", Value::Object(schema)))
}

/// JSON of one line. The whitespace after it belongs to what follows.
fn on_one_line(schema: Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Full> {
    compiled(schema, json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " }), lark)
}

/// The properties that an object of this schema must have.
fn required(schema: &Map<String, Value>) -> HashSet<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
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

/// An element for each property, in their order. Any elements where the schema names no properties.
fn all_elements(schema: &Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Fault> {
    let end = format!("\n{}\n", elements::VALUE_END);
    lark.define("VALUE", &format!("/(?s:.*)/{}", without(&[escaped(elements::VALUE_END)])))?;
    if !schema.contains_key("properties") && schema.get("additionalProperties") != Some(&Value::Bool(false)) {
        let value = lark.lazy(&format!("VALUE {}", string(&end)))?;
        lark.define("ANY_KEY", ANY_KEY)?;
        let element = lark.rule(&format!("{} ANY_KEY {} {value}", string(elements::KEY_BEGIN), string(">\n")))?;
        return Ok(lark.rule(&format!("{element}* {}", string(elements::END)))?);
    }
    let required = required(schema);
    let elsewhere = schema.values().any(|of| refers(of, &|place| !is_definition(place)));
    let mut all = Vec::new();
    for (key, of) in properties(schema) {
        if !elements::is_key(key) {
            return Err(Fault::Name(cut(key)));
        }
        let value = match listed(of) {
            _ if !elements::is_text(of) => {
                let value = on_one_line(on_its_own(of, schema, elsewhere), lark)?;
                format!("{value} {}", string(&end))
            }
            Some(values) => {
                let values = values.into_iter().filter_map(Value::as_str);
                let values = values.filter(|value| !value.contains(elements::VALUE_END));
                let values: Vec<String> = values.map(|value| string(&format!("{value}{end}"))).collect();
                if values.is_empty() {
                    return Err(Fault::Value(cut(key)));
                }
                format!("({})", values.join(" | "))
            }
            None => lark.lazy(&format!("VALUE {}", string(&end)))?,
        };
        let element = lark.rule(&format!("{} {value}", string(&format!("{}{key}>\n", elements::KEY_BEGIN))))?;
        all.push(format!("{element}{}", if required.contains(key.as_str()) { "" } else { "?" }));
    }
    all.push(string(elements::END));
    Ok(lark.rule(&all.join(" "))?)
}

/// A property's schema on its own, with what it may refer to. `elsewhere`: something in the root refers to other places in it than
/// definitions.
fn on_its_own(of: &Value, root: &Map<String, Value>, elsewhere: bool) -> Map<String, Value> {
    let mut schema = of.as_object().cloned().unwrap_or_default();
    if !refers(of, &|_| true) {
        return schema;
    }
    if elsewhere {
        schema = schema.iter().map(moved).collect();
        let root: Map<String, Value> = root.iter().map(moved).collect();
        schema.insert(DEFINITIONS[0].to_owned(), json!({ "root": root }));
        return schema;
    }
    for definitions in DEFINITIONS {
        if let Some(found) = root.get(definitions) {
            schema.entry(definitions).or_insert_with(|| found.clone());
        }
    }
    schema
}

const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

fn is_definition(place: &str) -> bool {
    place.strip_prefix("#/").and_then(|place| place.split_once('/')).is_some_and(|(of, _)| DEFINITIONS.contains(&of))
}

/// Whether a schema, or one in it, refers to such a place. What only looks like a reference counts, too.
fn refers(schema: &Value, to: &dyn Fn(&str) -> bool) -> bool {
    match schema {
        Value::Object(members) => members.iter().any(|(key, value)| match value {
            Value::String(place) if key == "$ref" => to(place),
            value => refers(value, to),
        }),
        Value::Array(items) => items.iter().any(|item| refers(item, to)),
        _ => false,
    }
}

/// A member of a schema whose root is now the definition `root`.
fn moved((key, value): (&String, &Value)) -> (String, Value) {
    let value = match value {
        Value::String(place) if key == "$ref" && place.starts_with('#') => {
            Value::from(format!("#/{}/root{}", DEFINITIONS[0], &place[1..]))
        }
        Value::Object(members) => Value::Object(members.iter().map(moved).collect()),
        Value::Array(items) => items.iter().map(|item| moved((key, item)).1).collect(),
        other => other.clone(),
    };
    (key.clone(), value)
}

/// Rules of objects with unquoted keys and marked strings. They follow types, listed values, properties, items and the bounds of
/// numbers; what else a schema says is not followed.
#[derive(Debug)]
struct Bracing<'a, 'b> {
    quote: &'a str,
    /// Whether there are rules of any value.
    any: bool,
    lark: &'a mut Lark<'b>,
}

impl Bracing<'_, '_> {
    /// The arguments of a call: always an object.
    fn arguments(&mut self, schema: &Map<String, Value>) -> Result<String, Fault> {
        if schema.contains_key("properties") || schema.get("additionalProperties") == Some(&Value::Bool(false)) {
            return self.object(schema, 0);
        }
        self.any()?;
        Ok(self.lark.rule(ANY_OBJECT)?)
    }

    fn value(&mut self, schema: &Value, depth: usize) -> Result<String, Fault> {
        let scalars = listed(schema).filter(|values| values.iter().all(|value| self.is_listable(value)));
        if let Some(values) = scalars {
            if values.is_empty() {
                return Err(Fault::Value(String::new()));
            }
            let values: Vec<String> = values.into_iter().map(|value| self.listed(value)).collect();
            return Ok(self.lark.rule(&values.join(" | "))?);
        }
        let kind = schema.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, schema) {
            _ if depth == DEPTH => self.any(),
            ("string", _) => self.text(),
            ("integer" | "number" | "boolean" | "null", Value::Object(schema)) => {
                Ok(on_one_line(schema.clone(), self.lark)?)
            }
            ("array", Value::Object(schema)) => {
                let item = match schema.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => self.any()?,
                };
                let bound = |name| schema.get(name).and_then(Value::as_u64);
                self.list(&item, bound("minItems").unwrap_or(0), bound("maxItems"))
            }
            ("object", Value::Object(schema)) if schema.contains_key("properties") => self.object(schema, depth),
            _ => self.any(),
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
            // Only the quotes are control tokens, whatever the client's text looks like.
            Value::String(text) if self.lark.begins_with_token(self.quote) => {
                let quote = self.lark.spelled(self.quote);
                format!("{quote} {} {quote}", string(text))
            }
            Value::String(text) => string(&format!("{0}{text}{0}", self.quote)),
            scalar => string(&scalar.to_string()),
        }
    }

    fn text(&mut self) -> Result<String, Fault> {
        let rest = self.lark.until("QUOTED", "QUOTEDS", self.quote)?;
        let body = format!("{} {rest}", self.lark.spelled(self.quote));
        Ok(self.lark.rule(&body)?)
    }

    fn list(&mut self, item: &str, min: u64, max: Option<u64>) -> Result<String, Fault> {
        let max = max.map(|max| max.min(ITEMS));
        if min > max.unwrap_or(ITEMS) {
            return Err(Fault::Value(String::new()));
        }
        let least = min.saturating_sub(1);
        let more = match max {
            Some(0) => return Ok(string("[]")),
            Some(max) => format!("{{{least},{}}}", max - 1),
            None if least > 0 => format!("{{{least},}}"),
            None => "*".to_owned(),
        };
        let items = format!("({item} (\",\" {item}){more}){}", if min == 0 { "?" } else { "" });
        Ok(self.lark.rule(&format!("\"[\" {items} \"]\""))?)
    }

    /// Properties in their order, separated by commas, those that are not required only perhaps.
    fn object(&mut self, schema: &Map<String, Value>, depth: usize) -> Result<String, Fault> {
        let required = required(schema);
        let mut members = Vec::new();
        for (key, of) in properties(schema) {
            if !braces::is_key(key) {
                return Err(Fault::Name(cut(key)));
            }
            let value = self.value(of, depth + 1).map_err(|fault| fault.of(key))?;
            let member = self.lark.rule(&format!("{} {value}", string(&format!("{key}:"))))?;
            members.push((member, required.contains(key.as_str())));
        }
        // From the last on: what may follow a member, and what may be all members from it on.
        let (mut after, mut all) = (String::new(), Some(String::new()));
        for (member, required) in members.iter().rev() {
            let from_here = format!("{member} {after}");
            let or_later = match all.filter(|_| !required) {
                Some(later) if later.is_empty() => format!("{from_here} | \"\""),
                Some(later) => format!("{from_here} | {later}"),
                None => from_here,
            };
            all = Some(self.lark.rule(&or_later)?);
            let optional = if *required { "" } else { "?" };
            after = self.lark.rule(&format!("(\",\" {member}){optional} {after}"))?;
        }
        Ok(self.lark.rule(&format!("\"{{\" {} \"}}\"", all.unwrap_or_default()))?)
    }

    /// The rule of a value of any kind.
    fn any(&mut self) -> Result<String, Fault> {
        if !self.any {
            let text = self.text()?;
            let scalar = json!({ "type": ["number", "boolean", "null"] });
            let scalar = on_one_line(scalar.as_object().cloned().unwrap_or_default(), self.lark)?;
            self.lark.define("ANY_KEY", ANY_KEY)?;
            self.lark.define("any_member", "ANY_KEY \":\" any_value")?;
            let list = "\"[\" (any_value (\",\" any_value)*)? \"]\"";
            self.lark.define("any_value", &format!("{text} | {scalar} | {list} | {ANY_OBJECT}"))?;
            self.any = true;
        }
        Ok("any_value".to_owned())
    }
}
