//! What the schema knows of the keys: which there are, what type each has, and its bounds.
use std::fmt;

use camshaft_core::shown::did_you_mean;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde_json::Value as Json;
use toml::Value;

use super::error::Wrong;
use super::fixed::Fixed;
use super::live::Live;
use super::tree::{self, Node, Source};
use super::values::{ByteSize, DurationValue, SIZE, SPAN};

/// The schema of the whole file and of each half of it.
#[derive(Debug)]
pub(super) struct Keys {
    pub(super) all: Json,
    pub(super) live: Json,
    pub(super) fixed: Json,
}

impl Keys {
    pub(super) fn new() -> Self {
        let (live, fixed) = (half::<Live>(), half::<Fixed>());
        let mut all = fixed.clone();
        join(&mut all, &live);
        all["title"] = Json::from("Camshaft configuration");
        all["description"] =
            Json::from("Flags beat environment variables, which beat this file, which beats the defaults.");
        Self { all, live, fixed }
    }

    /// The schema at a key: `queue.timeout`, `model.0.id`.
    pub(super) fn at(&self, key: &str) -> Option<&Json> {
        key.split('.').try_fold(&self.all, child)
    }

    /// Everything that the schema refuses: unknown keys, values where sections belong, numbers out of bounds.
    pub(super) fn check(&self, tree: &Node) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        check(&self.all, "", tree, &mut wrong);
        wrong
    }
}

fn half<T: JsonSchema>() -> Json {
    let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// Adds the properties of `other`, section by section.
fn join(schema: &mut Json, other: &Json) {
    let Some(theirs) = other["properties"].as_object() else { return };
    for (key, value) in theirs {
        let ours = &mut schema["properties"];
        match ours.get_mut(key) {
            Some(present) => join(present, value),
            None => ours[key] = value.clone(),
        }
    }
    // Keys of both halves stand in such a section, so that neither half's default or description says it all.
    if let Some(section) = schema.as_object_mut() {
        section.remove("default");
        if let (Some(ours), Some(theirs)) = (&section.get("description"), other["description"].as_str()) {
            let both = format!("{} {theirs}", ours.as_str().unwrap_or_default());
            section.insert("description".to_owned(), Json::from(both));
        }
    }
}

fn child<'a>(schema: &'a Json, segment: &str) -> Option<&'a Json> {
    match segment.parse::<usize>() {
        Ok(_) if is_list_of_tables(schema) => schema.get("items"),
        _ => schema.get("properties")?.get(segment),
    }
}

fn is_list_of_tables(schema: &Json) -> bool {
    schema["items"]["properties"].is_object()
}

fn is_section(schema: &Json) -> bool {
    schema["properties"].is_object()
}

/// Whether any text is a value of such a key as it is.
pub(super) fn is_text(schema: &Json) -> bool {
    match &schema["type"] {
        Json::String(one) => one == "string",
        Json::Array(several) => several.iter().all(|one| one == "string" || one == "null"),
        _ => false,
    }
}

fn join_key(above: &str, segment: &str) -> String {
    if above.is_empty() { segment.to_owned() } else { format!("{above}.{segment}") }
}

fn check(schema: &Json, key: &str, node: &Node, wrong: &mut Vec<Wrong>) {
    match node {
        Node::Table(table) if is_section(schema) => {
            for (name, below) in table {
                let key = join_key(key, name);
                match child(schema, name) {
                    Some(schema) => check(schema, &key, below, wrong),
                    None => {
                        let meant = flattened(schema, name, below).unwrap_or_else(|| nearest(schema, name));
                        wrong.push(Wrong::new(&key, format!("unknown key `{key}`{meant}")));
                    }
                }
            }
        }
        Node::List(list, _) if is_list_of_tables(schema) => {
            for (i, entry) in list.iter().enumerate() {
                check(&schema["items"], &join_key(key, &i.to_string()), entry, wrong);
            }
        }
        Node::Leaf(value, _) if is_section(schema) => {
            wrong.push(Wrong::new(key, format!("is a section with keys of its own, got {value}")));
        }
        Node::Leaf(Value::Array(list), _) if is_list_of_tables(schema) && list.is_empty() => {}
        Node::Leaf(value, _) if is_list_of_tables(schema) => {
            wrong.push(Wrong::new(key, format!("is a list of sections ([[{key}]]), got {value}")));
        }
        Node::Leaf(Value::Array(list), _) => {
            let each = list.iter().filter_map(|value| out_of_bounds(&schema["items"], value));
            wrong.extend(each.map(|why| Wrong::new(key, why)));
        }
        Node::Leaf(value, _) => wrong.extend(out_of_bounds(schema, value).map(|why| Wrong::new(key, why))),
        Node::Table(_) if is_list_of_tables(schema) => {
            wrong.push(Wrong::new(key, format!("is a list of sections: write [[{key}]]")));
        }
        Node::Table(_) | Node::List(..) => wrong.push(Wrong::new(key, "is a single value, got a section")),
    }
}

/// What was meant by `queue-high-watermark`, as which `CAMSHAFT_QUEUE_HIGH_WATERMARK` is read.
fn flattened(schema: &Json, name: &str, given: &Node) -> Option<String> {
    let Node::Leaf(_, Source::Environment(variable)) = given else { return None };
    let sections = schema["properties"].as_object()?.iter();
    let (section, rest) = sections.filter(|(_, below)| is_section(below)).find_map(|(section, below)| {
        let rest = name.strip_prefix(section.as_str())?.strip_prefix('-')?;
        below["properties"].get(rest).map(|_| (section, rest))
    })?;
    let of_rest = variable.len() - rest.len();
    let (before, after) = (variable[..of_rest].trim_end_matches('_'), &variable[of_rest..]);
    Some(format!("; did you mean `{section}.{rest}`? Two underscores end the name of a section: {before}__{after}"))
}

/// A key of a section that has this very name, or else the key here with a similar one, or else all that there are.
fn nearest(schema: &Json, name: &str) -> String {
    let sections = schema["properties"].as_object().into_iter().flatten();
    let below = |(section, below): (&String, &Json)| match is_list_of_tables(below) {
        true => below["items"]["properties"].get(name).map(|_| format!("{section}.0.{name}")),
        false => below["properties"].get(name).map(|_| format!("{section}.{name}")),
    };
    if let Some(meant) = sections.filter_map(below).next() {
        return format!("; did you mean `{meant}`?");
    }
    let known = schema["properties"].as_object().into_iter().flat_map(|known| known.keys());
    did_you_mean(name, "", known.map(String::as_str))
}

/// What is wrong with a value's size. Values of another type are for serde to refuse.
fn out_of_bounds(schema: &Json, value: &Value) -> Option<String> {
    let format = schema["format"].as_str().unwrap_or_default();
    if format == SPAN {
        let span = |text: &Json| text.as_str().and_then(|text| Value::from(text).try_into::<DurationValue>().ok());
        let given: DurationValue = value.clone().try_into().ok()?;
        return beyond(given, span(&schema["x-minimum"]), span(&schema["x-maximum"]));
    }
    if format == SIZE {
        let size = |text: &Json| text.as_str().and_then(|text| Value::from(text).try_into::<ByteSize>().ok());
        let given: ByteSize = value.clone().try_into().ok()?;
        return beyond(given, size(&schema["x-minimum"]), size(&schema["x-maximum"]));
    }
    let given = value.as_float().or_else(|| value.as_integer().map(|number| number as f64))?;
    beyond(Number(given), schema["minimum"].as_f64().map(Number), schema["maximum"].as_f64().map(Number))
}

/// A number of any type; what is not comparable is out of bounds.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn beyond<T: PartialOrd + Copy + fmt::Display>(given: T, min: Option<T>, max: Option<T>) -> Option<String> {
    let good = min.is_none_or(|min| given >= min) && max.is_none_or(|max| given <= max);
    match (good, min, max) {
        (true, ..) | (false, None, None) => None,
        (false, Some(min), Some(max)) => Some(format!("must be between {min} and {max}, got {given}")),
        (false, Some(min), None) => Some(format!("must be at least {min}, got {given}")),
        (false, None, Some(max)) => Some(format!("must be at most {max}, got {given}")),
    }
}

/// The values of a tree that stand in `half`, as serde reads them. Paths of a file are relative to it.
pub(super) fn project(half: &Json, node: &Node) -> Option<Value> {
    match node {
        Node::Table(table) => {
            let below = |(name, node): (&String, &Node)| Some((name.clone(), project(child(half, name)?, node)?));
            Some(Value::Table(table.iter().filter_map(below).collect()))
        }
        Node::List(list, _) => {
            Some(Value::Array(list.iter().filter_map(|entry| project(&half["items"], entry)).collect()))
        }
        Node::Leaf(value, source) => Some(resolved(half, value, source)),
    }
}

fn resolved(schema: &Json, value: &Value, source: &Source) -> Value {
    match (value.as_str(), tree::directory(source)) {
        (Some(text), Some(directory))
            if schema["format"] == "path" && !text.is_empty() && !is_builtin(schema, text) =>
        {
            Value::String(directory.join(text).to_string_lossy().into_owned())
        }
        _ => value.clone(),
    }
}

/// Whether a text names what is in the program, not a file.
fn is_builtin(schema: &Json, text: &str) -> bool {
    schema["x-builtin"].as_array().is_some_and(|names| names.iter().any(|name| name == text))
}

/// JSON schema (2020-12) of the configuration file.
pub(crate) fn schema() -> Json {
    Keys::new().all
}

/// The keys in which two values of a half differ; lists of different lengths differ as a whole.
pub(crate) fn changed<T: Serialize>(old: &T, new: &T) -> Vec<String> {
    // Both were read from TOML, so they can be written as such.
    let value = |half: &T| Value::try_from(half).unwrap_or(Value::Boolean(false));
    let mut keys = Vec::new();
    differ("", &value(old), &value(new), &mut keys);
    keys
}

fn differ(key: &str, old: &Value, new: &Value, keys: &mut Vec<String>) {
    match (old, new) {
        (Value::Table(old), Value::Table(new)) => {
            let added = new.keys().filter(|name| !old.contains_key(*name));
            for name in old.keys().chain(added) {
                // An option that is unset is not there.
                let (old, new) = (old.get(name), new.get(name));
                match (old, new) {
                    (Some(old), Some(new)) => differ(&join_key(key, name), old, new, keys),
                    _ => keys.push(join_key(key, name)),
                }
            }
        }
        (Value::Array(old), Value::Array(new))
            if old.len() == new.len() && old.iter().chain(new).all(Value::is_table) =>
        {
            for (i, (old, new)) in old.iter().zip(new).enumerate() {
                differ(&join_key(key, &i.to_string()), old, new, keys);
            }
        }
        (old, new) if old != new => keys.push(key.to_owned()),
        _ => {}
    }
}
