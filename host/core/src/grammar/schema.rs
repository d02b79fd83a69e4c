//! Reads a JSON Schema before it is compiled: refuses keywords that are not supported, with their path, and leaves out those that say
//! nothing about values.
//!
//! The compiler ignores keywords that it does not know, refuses some that forbid nothing, and follows no encoded references. What the
//! values of keywords must be is left to it.
use std::collections::HashMap;

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value, json};

use super::error::{GrammarError, GrammarFault, shown};
use crate::limits;
use crate::shown::did_you_mean;

/// What is done with a keyword.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keyword {
    /// Left out: it says nothing about values.
    Annotation,
    /// Refused, unless it forbids nothing.
    Refused,
    Unknown,
    /// Given to the compiler as it is.
    Plain,
    /// A schema or a list of schemas.
    Schemas,
    /// Schemas by name.
    Named,
    Reference,
    /// Values that are generated as they are.
    Values,
    Bound,
    Count,
    Multiple,
}

/// What is not here is refused, too, but for names with `x-`. docs/structured-output.md has the same table, and a test compares them.
const KEYWORDS: &[(Keyword, &[&str])] = &[
    (Keyword::Plain, &["type", "required", "pattern", "format"]),
    (Keyword::Schemas, &["anyOf", "oneOf", "allOf", "items", "prefixItems", "additionalItems", "additionalProperties"]),
    (Keyword::Named, &["properties", "patternProperties"]),
    (Keyword::Reference, &["$ref"]),
    (Keyword::Values, &["enum", "const"]),
    (Keyword::Bound, &["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"]),
    (Keyword::Count, &["minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"]),
    (Keyword::Multiple, &["multipleOf"]),
    (Keyword::Annotation, &["title", "description", "default", "examples", "example", "deprecated"]),
    (Keyword::Annotation, &["readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema"]),
    (Keyword::Annotation, &["discriminator", "externalDocs", "$schema", "$comment", "$anchor", "$defs", "definitions"]),
    (Keyword::Refused, &["not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"]),
    (Keyword::Refused, &["propertyNames", "dependencies", "dependentRequired", "dependentSchemas", "nullable"]),
    (Keyword::Refused, &["unevaluatedItems", "unevaluatedProperties", "$id", "id", "$dynamicRef", "$dynamicAnchor"]),
    (Keyword::Refused, &["$recursiveRef", "$recursiveAnchor"]),
];

/// The formats of strings that are enforced. Of others, as of those of numbers, nothing is checked.
const FORMATS: &[&str] = &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

fn keyword_of(name: &str) -> Keyword {
    if name.starts_with("x-") {
        return Keyword::Annotation;
    }
    KEYWORDS.iter().find(|(_, names)| names.contains(&name)).map_or(Keyword::Unknown, |(keyword, _)| *keyword)
}

/// Whether a keyword says nothing about values.
pub(crate) fn is_annotation(name: &str) -> bool {
    keyword_of(name) == Keyword::Annotation
}

/// A schema that was written.
///
/// # Errors
/// It is no JSON.
pub(super) fn parse(text: &str) -> Result<Value, GrammarError> {
    serde_json::from_str(text).map_err(|error| GrammarError::invalid(format!("the schema is no JSON: {error}")))
}

/// The schema as the compiler may have it, with all that it refers to under `$defs`.
///
/// # Errors
/// It is over a bound, or not supported.
pub(super) fn check(root: &Value) -> Result<Value, GrammarError> {
    check_each(root, false, &mut |_, _| Ok(()))
}

/// A schema of which what is not supported is left out: it takes all that the whole one takes, and more. `None`: it is no schema, or
/// over a bound.
pub(crate) fn loosened(root: &Value) -> Option<Value> {
    check_each(root, true, &mut |_, _| Ok(())).ok()
}

/// Is told each checked schema with its path, those within it first. Its error ends the reading.
type Visit<'a> = &'a mut dyn FnMut(&str, &Value) -> Result<(), GrammarError>;

/// As [`check`], with a visitor. `leaves_out`: what is not supported is left out instead of refused.
pub(super) fn check_each(root: &Value, leaves_out: bool, visit: Visit<'_>) -> Result<Value, GrammarError> {
    let mut checker =
        SchemaChecker { root, leaves_out, visit, schemas: 0, names: HashMap::new(), definitions: Map::new() };
    let mut schema = checker.schema(root, &Place::default())?;
    if let (Value::Object(map), false) = (&mut schema, checker.definitions.is_empty()) {
        map.insert("$defs".to_owned(), Value::Object(checker.definitions));
    }
    Ok(schema)
}

/// The member of a schema with settings of the compiler, and those that a grammar may make: how its JSON is spaced.
const JSON_OPTIONS: &str = "x-guidance";
const SPACING: &[&str] = &["whitespace_flexible", "item_separator", "key_separator"];

/// A checked schema with what the compiler is to know of it: between two parts of JSON a space may stand, a line break with an indent, or
/// nothing. More would let a model that lost its way write whitespace up to `max_tokens`. `written`: the schema as it was, which
/// has other spacing if it is JSON within another notation.
pub(super) fn with_spacing(schema: Value, written: &Value) -> Value {
    let mut map = match schema {
        Value::Object(map) => map,
        Value::Bool(true) => Map::new(),
        schema => return schema,
    };
    let mut options = written.get(JSON_OPTIONS).and_then(Value::as_object).cloned().unwrap_or_default();
    options.retain(|name, _| SPACING.contains(&name.as_str()));
    if !options.contains_key(SPACING[0]) {
        let whitespace = format!(r"\x20|\x0D?\x0A[\x20\x09]{{0,{}}}", limits::JSON_INDENT);
        options = Map::from_iter([("whitespace_pattern".to_owned(), Value::from(whitespace))]);
    }
    map.insert(JSON_OPTIONS.to_owned(), Value::Object(options));
    Value::Object(map)
}

/// Where a schema stands.
#[derive(Clone, Default)]
struct Place {
    /// As errors name it: `properties.a`.
    path: String,
    /// Schemas around it, along references too.
    depth: usize,
    /// It is an alternative of a `oneOf`.
    is_alternative: bool,
}

impl Place {
    fn member(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self { path: format!("{}{dot}{}", self.path, shown(name)), depth: self.depth, is_alternative: false }
    }

    fn item(&self, index: usize) -> Self {
        Self { path: format!("{}[{index}]", self.path), ..*self }
    }
}

struct SchemaChecker<'a, 'v> {
    root: &'a Value,
    leaves_out: bool,
    visit: Visit<'v>,
    /// Schemas so far.
    schemas: usize,
    /// What definitions are called, by the schemas that they were made of.
    names: HashMap<*const Value, String>,
    definitions: Map<String, Value>,
}

impl<'a> SchemaChecker<'a, '_> {
    /// The compiler does not look through references to find out whether alternatives exclude each other, so that it has
    /// what they refer to. A schema with such alternatives is a definition, so that recursive ones come to an end.
    fn schema(&mut self, value: &'a Value, place: &Place) -> Result<Value, GrammarError> {
        if place.is_alternative {
            let (mut value, mut place) = (value, place.clone());
            // References may go round in a circle.
            for _ in 0..limits::SCHEMA_DEPTH {
                let Some(to) = value.get("$ref").filter(|_| constraints(value).eq(["$ref"])) else { break };
                let (target, at) = self.target(to, &place)?;
                (value, place) = (target, Place { is_alternative: true, ..at });
            }
            return self.body(value, &place);
        }
        if value.get("oneOf").is_none() {
            return self.body(value, place);
        }
        Ok(json!({ "$ref": self.definition(value, place)? }))
    }

    fn body(&mut self, value: &'a Value, place: &Place) -> Result<Value, GrammarError> {
        self.schemas += 1;
        let too_large = |why: String| Err(GrammarError::too_large(why).at(&place.path));
        if self.schemas > limits::SCHEMA_NODES {
            return too_large(format!("over {} schemas in all", limits::SCHEMA_NODES));
        }
        if place.depth >= limits::SCHEMA_DEPTH {
            return too_large(format!("over {} schemas within each other", limits::SCHEMA_DEPTH));
        }
        let map = match value {
            Value::Object(map) => map,
            Value::Bool(_) => return Ok(value.clone()),
            _ => return Err(GrammarError::invalid("a schema is an object, true or false").at(&place.path)),
        };
        let mut out = Map::new();
        for (name, value) in map {
            match self.keyword((name, value), map, place) {
                Ok(None) => {}
                Ok(Some(checked)) => _ = out.insert(name.clone(), checked),
                Err(error) if self.leaves_out && error.fault == GrammarFault::Unsupported => {}
                Err(error) => return Err(error),
            }
        }
        let schema = Value::Object(out);
        (self.visit)(&place.path, &schema)?;
        Ok(schema)
    }

    /// A keyword's value as the compiler may have it. `None`: the keyword is left out.
    fn keyword(
        &mut self,
        (name, value): (&str, &'a Value),
        schema: &Map<String, Value>,
        around: &Place,
    ) -> Result<Option<Value>, GrammarError> {
        let place = Place { depth: around.depth + 1, ..around.member(name) };
        let unsupported = |why: &str| Err(GrammarError::unsupported(why).at(&place.path));
        let checked = match keyword_of(name) {
            Keyword::Annotation => return Ok(None),
            _ if forbids_nothing(name, schema, around) => return Ok(None),
            Keyword::Refused | Keyword::Unknown => return unsupported(&refusal(name)),
            Keyword::Schemas => {
                let is_alternative = name == "oneOf" || around.is_alternative && matches!(name, "anyOf" | "allOf");
                self.schemas(value, &Place { is_alternative, ..place })?
            }
            Keyword::Named => self.named(value, &place)?,
            Keyword::Reference => {
                let (target, at) = self.target(value, &place)?;
                self.definition(target, &at)?
            }
            Keyword::Values if is_exact(value) => value.clone(),
            Keyword::Values => return unsupported(INEXACT),
            Keyword::Bound => match cut_bound(name, value) {
                Some(bound) => bound,
                None if value.is_f64() || is_exact(value) => value.clone(),
                None => return unsupported(INEXACT),
            },
            Keyword::Count => whole(value).map_or_else(|| value.clone(), Value::from),
            Keyword::Multiple if !is_divisor(value) => {
                return unsupported("only 8 digits, 6 of them behind the decimal point, are supported");
            }
            Keyword::Multiple | Keyword::Plain => value.clone(),
        };
        Ok(Some(checked))
    }

    /// A list of schemas, or a single one.
    fn schemas(&mut self, value: &'a Value, place: &Place) -> Result<Value, GrammarError> {
        let Value::Array(list) = value else { return self.schema(value, place) };
        let schemas = list.iter().enumerate().map(|(at, schema)| self.schema(schema, &place.item(at)));
        schemas.collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    fn named(&mut self, value: &'a Value, place: &Place) -> Result<Value, GrammarError> {
        let Value::Object(named) = value else { return Ok(value.clone()) };
        let schemas = named.iter().map(|(name, schema)| Ok((name.clone(), self.schema(schema, &place.member(name))?)));
        schemas.collect::<Result<_, _>>().map(Value::Object)
    }

    /// The schema that a reference leads to, and its place.
    fn target(&self, to: &Value, place: &Place) -> Result<(&'a Value, Place), GrammarError> {
        let refused = |error: GrammarError| Err(error.at(&place.path));
        let Some(to) = to.as_str() else { return refused(GrammarError::invalid("must be a string")) };
        let Some(pointer) = to.strip_prefix('#').filter(|to| to.is_empty() || to.starts_with('/')) else {
            let why = format!("\"{}\" does not lie in this schema (#/...)", shown(to));
            return refused(GrammarError::unsupported(why));
        };
        let pointer = percent_decode_str(pointer).decode_utf8_lossy();
        let Some(target) = self.root.pointer(&pointer) else {
            let why = format!("\"{}\" refers to nothing in this schema", shown(to));
            return refused(GrammarError::invalid(why));
        };
        let root = Place { depth: place.depth, ..Place::default() };
        Ok((target, pointer.split('/').skip(1).fold(root, |place, part| place.member(part))))
    }

    /// A reference to a schema, which is checked when it is met for the first time.
    fn definition(&mut self, target: &'a Value, place: &Place) -> Result<Value, GrammarError> {
        let key = std::ptr::from_ref(target);
        let name = match self.names.get(&key) {
            Some(name) => name.clone(),
            None => {
                let name = format!("r{}", self.names.len());
                self.names.insert(key, name.clone());
                let schema = self.body(target, place)?;
                self.definitions.insert(name.clone(), schema);
                name
            }
        };
        Ok(Value::String(format!("#/$defs/{name}")))
    }
}

/// Whether a keyword forbids nothing here.
fn forbids_nothing(name: &str, schema: &Map<String, Value>, place: &Place) -> bool {
    let value = &schema[name];
    match name {
        "format" => value.as_str().is_some_and(|format| !FORMATS.contains(&format)),
        "uniqueItems" | "nullable" | "not" | "$recursiveAnchor" => *value == Value::Bool(false),
        // What old generators write at every schema.
        "$id" | "id" => place.path.is_empty() || value.as_str().is_some_and(|id| id.starts_with('#')),
        // Names are strings.
        "propertyNames" => takes_all(value) || (value["type"] == "string" && constraints(value).eq(["type"])),
        // What is not named may be forbidden already.
        "unevaluatedProperties" => takes_all(value) || schema.get("additionalProperties") == Some(&Value::Bool(false)),
        "unevaluatedItems" => takes_all(value),
        "if" => ["then", "else"].iter().all(|name| schema.get(*name).is_none_or(takes_all)),
        "then" | "else" => !schema.contains_key("if") || takes_all(value),
        "minContains" | "maxContains" => !schema.contains_key("contains"),
        "dependencies" | "dependentRequired" | "dependentSchemas" => value.as_object().is_some_and(Map::is_empty),
        _ => false,
    }
}

/// The keywords of a schema that say something about values.
fn constraints(schema: &Value) -> impl Iterator<Item = &str> {
    schema.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).filter(|name| !is_annotation(name))
}

/// Whether any value follows a schema.
fn takes_all(schema: &Value) -> bool {
    *schema == Value::Bool(true) || (schema.is_object() && constraints(schema).next().is_none())
}

fn refusal(name: &str) -> String {
    let hint = match (name, keyword_of(name)) {
        ("nullable", _) => "; add \"null\" to the schema's types".to_owned(),
        ("$id" | "id", _) => " below the root".to_owned(),
        (_, Keyword::Unknown) => {
            let supported = KEYWORDS.iter().filter(|(keyword, _)| *keyword != Keyword::Refused);
            let similar = did_you_mean(name, "", supported.flat_map(|(_, names)| names.iter().copied()));
            Some(similar).filter(|similar| similar.starts_with("; did")).unwrap_or_default()
        }
        _ => String::new(),
    };
    format!("keyword not supported{hint}")
}

const INEXACT: &str = "only whole numbers that a double holds, and others of at most 15 digits, are supported";

/// Whether all numbers are written as they are: the compiler has them as doubles, and what is read from JSON may be off by the last
/// bit of one.
fn is_exact(value: &Value) -> bool {
    match value {
        Value::Array(list) => list.iter().all(is_exact),
        Value::Object(map) => map.values().all(is_exact),
        Value::Number(number) => match (number.as_i128(), number.as_f64()) {
            (Some(whole), _) => (whole as f64) as i128 == whole,
            // The digits before the exponent, with their point.
            (_, double) => double.is_some_and(|double| format!("{:e}", double.abs()).find('e') <= Some(15 + 1)),
        },
        _ => true,
    }
}

/// A bound that is looser than the largest number that the compiler takes: that one, which is stricter.
fn cut_bound(name: &str, value: &Value) -> Option<Value> {
    let largest = if name.ends_with("inimum") { -limits::SCHEMA_BOUND } else { limits::SCHEMA_BOUND };
    let times = value.as_f64()? / largest as f64;
    (times > 1.0).then(|| Value::from(largest))
}

/// A count that is written as 3.0 is one, too.
fn whole(value: &Value) -> Option<u64> {
    value.as_f64().filter(|count| value.is_f64() && count.fract() == 0.0 && *count >= 0.0).map(|count| count as u64)
}

/// Whether the compiler can compute remainders of a number, which it does in 32 bits.
fn is_divisor(value: &Value) -> bool {
    let digits = value.as_f64().map(|number| number.to_string()).unwrap_or_default();
    let (whole, decimals) = digits.split_once('.').unwrap_or((&digits, ""));
    decimals.len() <= 6 && whole.len() + decimals.len() <= 8
}

#[cfg(test)]
#[path = "schema_tests.rs"]
mod tests;
