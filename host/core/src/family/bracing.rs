//! The rules of arguments in braces: objects with unquoted keys and marked strings.
use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::family::braces;
use crate::family::lark::{Lark, escaped, string, without};
use crate::family::schemas::{ANY_KEY, Fault, all_named, bounded, follow, listed, on_one_line, properties, required};
use crate::shown::cut;

/// Schemas within each other that are followed, at most. What lies deeper may be any value.
const DEPTH: usize = 16;
/// Items of a list whose number a schema bounds, at most. A list that must have more is refused.
const ITEMS: u64 = 1024;

/// The types of values.
const KINDS: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords that say something of values of one type.
const OF_ONE_TYPE: [&str; 13] = [
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "items",
    "minItems",
    "maxItems",
    "properties",
    "required",
    "additionalProperties",
];

/// An object of any members, once there are rules of any value.
const ANY_OBJECT: &str = "\"{\" (any_member (\",\" any_member)*)? \"}\"";

/// The arguments of a call, whose strings stand between two markers.
pub(crate) fn arguments(
    quote: &str,
    (schema, strict): (&Map<String, Value>, bool),
    lark: &mut Lark<'_>,
) -> Result<String, Fault> {
    let but = without(&[escaped(quote)]);
    lark.define("QUOTED", &format!("/(?s:.+)/{but}"))?;
    lark.define("QUOTEDS", &format!("/(?s:.*)/{but}"))?;
    Bracing { quote, any: false, strict, lark }.arguments(schema)
}

/// Rules of objects with unquoted keys and marked strings. They follow types, listed values, alternatives, properties, items, and the
/// bounds of numbers, lists and texts; what else a schema says is not followed.
#[derive(Debug)]
struct Bracing<'a, 'b> {
    quote: &'a str,
    /// Whether there are rules of any value.
    any: bool,
    /// A schema that cannot be followed is refused.
    strict: bool,
    lark: &'a mut Lark<'b>,
}

impl Bracing<'_, '_> {
    /// The arguments of a call: always an object.
    fn arguments(&mut self, schema: &Map<String, Value>) -> Result<String, Fault> {
        if schema.contains_key("properties") || schema.get("additionalProperties") == Some(&Value::Bool(false)) {
            return self.object(schema, 0);
        }
        follow(schema, self.strict, &["type"])?;
        all_named(schema, self.strict)?;
        self.any()?;
        Ok(self.lark.rule(ANY_OBJECT)?)
    }

    fn value(&mut self, schema: &Value, depth: usize) -> Result<String, Fault> {
        if let Some(values) = listed(schema).filter(|values| values.iter().all(|value| self.is_listable(value))) {
            if values.is_empty() {
                return Err(Fault::Value(String::new()));
            }
            let values: Vec<String> = values.into_iter().map(|value| self.listed(value).join(" ")).collect();
            return Ok(self.lark.rule(&values.join(" | "))?);
        }
        let (Value::Object(of), false) = (schema, depth == DEPTH) else { return self.anything(schema) };
        match of.get("type") {
            Some(Value::Array(kinds)) => {
                let named: BTreeSet<&str> = kinds.iter().filter_map(Value::as_str).collect();
                let known = KINDS.into_iter().filter(|kind| named.contains(kind));
                let rules = known.map(|kind| self.of_kind(kind, of, depth)).collect::<Result<Vec<_>, Fault>>()?;
                self.either(&rules)
            }
            Some(kind) => self.of_kind(kind.as_str().unwrap_or_default(), of, depth),
            None => match of.get("anyOf") {
                Some(Value::Array(all)) => {
                    follow(of, self.strict, &["anyOf"])?;
                    let rules = all.iter().map(|of| self.value(of, depth)).collect::<Result<Vec<_>, Fault>>()?;
                    self.either(&rules)
                }
                _ => self.anything(schema),
            },
        }
    }

    /// A value of one type.
    fn of_kind(&mut self, kind: &str, of: &Map<String, Value>, depth: usize) -> Result<String, Fault> {
        match kind {
            "string" => {
                self.follow(of, &["minLength", "maxLength"])?;
                self.text(of)
            }
            "integer" | "number" | "boolean" | "null" => {
                let mut of = of.clone();
                of.insert("type".to_owned(), kind.into());
                Ok(on_one_line(of, self.lark)?)
            }
            "array" => {
                self.follow(of, &["items", "minItems", "maxItems"])?;
                let item = match of.get("items") {
                    Some(items) => self.value(items, depth + 1)?,
                    None => self.any()?,
                };
                let bound = |name| of.get(name).and_then(Value::as_u64);
                self.list(&item, bound("minItems").unwrap_or(0), bound("maxItems"))
            }
            "object" if of.contains_key("properties") => self.object(of, depth),
            _ => {
                self.follow(of, &[])?;
                self.any()
            }
        }
    }

    /// Refuses what else a schema says of values of one type. What it says of other types that they may have is followed there.
    fn follow(&self, of: &Map<String, Value>, followed: &[&str]) -> Result<(), Fault> {
        let of_others = if of.get("type").is_some_and(Value::is_array) { &OF_ONE_TYPE[..] } else { &[] };
        follow(of, self.strict, &[&["type"], followed, of_others].concat())
    }

    /// One of several rules.
    fn either(&mut self, rules: &[String]) -> Result<String, Fault> {
        if rules.is_empty() {
            return Err(Fault::Value(String::new()));
        }
        Ok(self.lark.rule(&rules.join(" | "))?)
    }

    /// Any value, for a schema that is not followed.
    fn anything(&mut self, schema: &Value) -> Result<String, Fault> {
        if let Value::Object(schema) = schema {
            follow(schema, self.strict, &[])?;
        }
        self.any()
    }

    fn is_listable(&self, value: &Value) -> bool {
        match value {
            Value::String(text) => !text.contains(self.quote),
            Value::Array(items) => items.iter().all(|item| self.is_listable(item)),
            Value::Object(members) => members.iter().all(|(key, value)| braces::is_key(key) && self.is_listable(value)),
            _ => true,
        }
    }

    /// A value, in parts. Only the quotes are control tokens, whatever the client's text looks like.
    fn listed(&self, value: &Value) -> Vec<String> {
        let joined = |parts: Vec<Vec<String>>| parts.join(&string(","));
        match value {
            Value::String(text) => {
                let quote = self.lark.spelled(self.quote);
                let text = Some(string(text)).filter(|_| !text.is_empty());
                [Some(quote.clone()), text, Some(quote)].into_iter().flatten().collect()
            }
            Value::Array(items) => {
                let items = joined(items.iter().map(|item| self.listed(item)).collect());
                [vec![string("[")], items, vec![string("]")]].concat()
            }
            Value::Object(members) => {
                let member =
                    |(key, value): (&String, &Value)| [vec![string(&format!("{key}:"))], self.listed(value)].concat();
                [vec![string("{")], joined(members.iter().map(member).collect()), vec![string("}")]].concat()
            }
            scalar => vec![string(&scalar.to_string())],
        }
    }

    /// A text of as many characters as a schema says.
    fn text(&mut self, schema: &Map<String, Value>) -> Result<String, Fault> {
        let but = without(&[escaped(self.quote)]);
        let quote = self.lark.spelled(self.quote);
        let bound = |name| schema.get(name).and_then(Value::as_u64);
        let (may_be_empty, is_empty) = (bound("minLength").unwrap_or(0) == 0, bound("maxLength") == Some(0));
        let rest = match self.lark.begins_with_token(self.quote) {
            true if is_empty && may_be_empty => quote.clone(),
            // Terminals have a character at least.
            true => match bounded(schema, 1, &but, self.lark)? {
                Some(text) if may_be_empty => format!("{text}? {quote}"),
                Some(text) => format!("{text} {quote}"),
                None => self.lark.until("QUOTED", "QUOTEDS", self.quote)?,
            },
            false => match bounded(schema, 0, &but, self.lark)? {
                Some(text) => self.lark.lazy(&format!("{text} {quote}"))?,
                None => self.lark.until("QUOTED", "QUOTEDS", self.quote)?,
            },
        };
        Ok(self.lark.rule(&format!("{quote} {rest}"))?)
    }

    fn list(&mut self, item: &str, min: u64, max: Option<u64>) -> Result<String, Fault> {
        let max = max.map(|max| max.min(ITEMS));
        if min > max.unwrap_or(ITEMS) {
            return Err(Fault::Value(String::new()));
        }
        let least = min.saturating_sub(1);
        let another = format!("(\",\" {item})");
        let more = match max {
            Some(0) => return Ok(string("[]")),
            Some(1) => String::new(),
            Some(max) => format!("{another}{{{least},{}}}", max - 1),
            None if least > 0 => format!("{another}{{{least},}}"),
            None => format!("{another}*"),
        };
        let items = format!("({item} {more}){}", if min == 0 { "?" } else { "" });
        Ok(self.lark.rule(&format!("\"[\" {items} \"]\""))?)
    }

    /// Properties in their order, separated by commas, those that are not required only perhaps.
    fn object(&mut self, schema: &Map<String, Value>, depth: usize) -> Result<String, Fault> {
        self.follow(schema, &["properties", "required", "additionalProperties"])?;
        all_named(schema, self.strict)?;
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
            let text = self.text(&Map::new())?;
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
