//! The rules of a tool's arguments, in every notation.
use serde_json::{Map, Value, json};

use crate::family::description::Form;
use crate::family::lark::{Lark, escaped, string, without};
use crate::family::schemas::{
    ANY_KEY, Fault, all_named, bounded, follow, listed, on_one_line, properties, required, spaced,
};
use crate::family::{bracing, elements};
use crate::shown::cut;

/// What the arguments of a call are: JSON that follows the schema, or the family's own notation.
/// `strict`: a schema that the notation cannot follow is refused.
pub(crate) fn arguments(
    form: &Form,
    (schema, strict): (&Map<String, Value>, bool),
    lark: &mut Lark<'_>,
) -> Result<String, Fault> {
    match form {
        Form::Object(_) | Form::List(_) | Form::Named { .. } => Ok(spaced(schema.clone(), lark)?),
        Form::Elements => all_elements((schema, strict), lark),
        Form::Braces { quote } => bracing::arguments(quote, (schema, strict), lark),
    }
}

/// An element for each property, in their order. Any elements where the schema names no properties.
fn all_elements((schema, strict): (&Map<String, Value>, bool), lark: &mut Lark<'_>) -> Result<String, Fault> {
    let end = format!("\n{}\n", elements::VALUE_END);
    let but = without(&[escaped(elements::VALUE_END)]);
    lark.define("VALUE", &format!("/(?s:.*)/{but}"))?;
    follow(schema, strict, &["type", "properties", "required", "additionalProperties"])?;
    all_named(schema, strict)?;
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
            None => {
                let of = of.as_object().cloned().unwrap_or_default();
                let text = follow(&of, strict, &["type", "minLength", "maxLength"]);
                let text = text.and_then(|()| bounded(&of, 0, &but, lark)).map_err(|fault| fault.of(key))?;
                lark.lazy(&format!("{} {}", text.as_deref().unwrap_or("VALUE"), string(&end)))?
            }
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
            // A place is one in the root, whatever definitions the property has itself.
            schema.insert(definitions.to_owned(), found.clone());
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
        // Values, in which nothing is a reference.
        listed if matches!(key.as_str(), "const" | "enum" | "default" | "examples") => listed.clone(),
        Value::Object(members) => Value::Object(members.iter().map(moved).collect()),
        Value::Array(items) => items.iter().map(|item| moved((key, item)).1).collect(),
        other => other.clone(),
    };
    (key.clone(), value)
}
