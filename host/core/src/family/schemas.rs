//! What the rules of arguments read of schemas, and the rules of JSON.
use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::family::lark::{Full, Lark};
use crate::grammar::is_annotation;
use crate::shown::cut;

/// Why a tool's arguments have no rules.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The notation cannot write an argument's name, which has characters that end names there. It is cut.
    Name(String),
    /// The notation can write no value that the argument of this name may have. It is cut.
    Value(String),
    /// A schema must be followed, and the notation cannot follow this keyword of the argument. Both are cut.
    Keyword {
        property: String,
        keyword: String,
    },
    TooLarge,
}

impl Fault {
    /// The same, of the argument of this name unless it is known already.
    pub(crate) fn of(self, key: &str) -> Self {
        match self {
            Self::Value(name) if name.is_empty() => Self::Value(cut(key)),
            Self::Keyword { property, keyword } if property.is_empty() => Self::Keyword { property: cut(key), keyword },
            known => known,
        }
    }
}

impl From<Full> for Fault {
    fn from(_: Full) -> Self {
        Self::TooLarge
    }
}

/// The name of an argument, where any is allowed.
pub(crate) const ANY_KEY: &str = "/[a-zA-Z0-9_-]{1,64}/";

/// Refuses a schema that must be followed, and has other keywords than those that are.
pub(crate) fn follow(schema: &Map<String, Value>, strict: bool, followed: &[&str]) -> Result<(), Fault> {
    let known = |key: &str| followed.contains(&key) || is_annotation(key);
    match schema.keys().find(|key| strict && !known(key)) {
        Some(keyword) => Err(Fault::Keyword { property: String::new(), keyword: cut(keyword) }),
        None => Ok(()),
    }
}

/// Refuses a schema that must be followed, and requires properties that it does not name.
pub(crate) fn all_named(schema: &Map<String, Value>, strict: bool) -> Result<(), Fault> {
    let named: HashSet<&str> = properties(schema).map(|(name, _)| name.as_str()).collect();
    if strict && !required(schema).is_subset(&named) {
        return Err(Fault::Keyword { property: String::new(), keyword: "required".to_owned() });
    }
    Ok(())
}

/// The terminal of a text of as many characters as a schema says, if it says anything of them. `but`: what else a text is not.
/// `least`: characters that it has in any case.
pub(crate) fn bounded(
    schema: &Map<String, Value>,
    least: u64,
    but: &str,
    lark: &mut Lark<'_>,
) -> Result<Option<String>, Fault> {
    let bound = |name| schema.get(name).and_then(Value::as_u64);
    let (min, max) = (bound("minLength").unwrap_or(0).max(least), bound("maxLength"));
    if min <= least && max.is_none() {
        return Ok(None);
    }
    if max.is_some_and(|max| max < min) {
        return Err(Fault::Value(String::new()));
    }
    let max = max.map(|max| max.to_string()).unwrap_or_default();
    Ok(Some(lark.terminal(&format!("/(?s:.{{{min},{max}}})/{but}"))?))
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
pub(crate) fn spaced(mut schema: Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Full> {
    schema.remove(OPTIONS);
    lark.rule(&format!("%json {}", Value::Object(schema)))
}

/// JSON with settings of llguidance's compiler.
fn compiled(mut schema: Map<String, Value>, options: Value, lark: &mut Lark<'_>) -> Result<String, Full> {
    schema.insert(OPTIONS.to_owned(), options);
    lark.rule(&format!("%json {}", Value::Object(schema)))
}

/// JSON of one line. The whitespace after it belongs to what follows.
pub(crate) fn on_one_line(schema: Map<String, Value>, lark: &mut Lark<'_>) -> Result<String, Full> {
    compiled(schema, json!({ "whitespace_flexible": false, "item_separator": ", ", "key_separator": ": " }), lark)
}

/// The properties that an object of this schema must have.
pub(crate) fn required(schema: &Map<String, Value>) -> HashSet<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// The properties that a schema names, in their order.
pub(crate) fn properties(schema: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    schema.get("properties").and_then(Value::as_object).into_iter().flatten()
}

/// The values that a schema lists, if it lists any.
pub(crate) fn listed(schema: &Value) -> Option<Vec<&Value>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(only), _) => Some(vec![only]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}
