//! Finds out where no value matches two schemas of a `oneOf`: there it says the same as `anyOf`, which the compiler takes with any
//! schemas. Of a `oneOf` the compiler refuses references, by which generators of schemas name the alternatives, and constants.
use std::collections::HashSet;

use serde_json::{Map, Value};

/// Pairs of schemas and values that are looked at in all; of what is left over nothing is said.
const WORK: usize = 200_000;
/// Properties within each other, and references and `allOf` along which a schema says more.
const DEPTH: usize = 6;

/// Replaces each `oneOf` in checked schemas by an `anyOf`, where no value matches two of its schemas. They refer to `defs`.
pub(super) fn relax<'s>(schemas: impl IntoIterator<Item = &'s mut Value>, defs: &Map<String, Value>) {
    let mut exclusive = Exclusive { defs, work: 0 };
    schemas.into_iter().for_each(|schema| exclusive.relax(schema));
}

struct Exclusive<'a> {
    defs: &'a Map<String, Value>,
    work: usize,
}

impl<'a> Exclusive<'a> {
    fn relax(&mut self, schema: &mut Value) {
        let map = match schema {
            Value::Array(list) => return list.iter_mut().for_each(|schema| self.relax(schema)),
            Value::Object(map) => map,
            _ => return,
        };
        for (name, value) in map.iter_mut() {
            match (name.as_str(), value) {
                // Values, and no schemas.
                ("const" | "enum" | "required" | "type", _) => {}
                ("properties" | "patternProperties" | "$defs", Value::Object(named)) => {
                    named.values_mut().for_each(|schema| self.relax(schema));
                }
                (_, value) => self.relax(value),
            }
        }
        let alternatives = map.get("oneOf").and_then(Value::as_array);
        if map.contains_key("anyOf") || !alternatives.is_some_and(|list| self.all_exclude_each_other(list)) {
            return;
        }
        // In its place.
        let renamed = |name: String| if name == "oneOf" { "anyOf".to_owned() } else { name };
        *map = std::mem::take(map).into_iter().map(|(name, value)| (renamed(name), value)).collect();
    }

    fn all_exclude_each_other(&mut self, list: &[Value]) -> bool {
        list.iter().enumerate().all(|(at, one)| list[..at].iter().all(|other| self.exclude(one, other, DEPTH)))
    }

    /// Whether certainly no value matches both.
    fn exclude(&mut self, one: &Value, other: &Value, depth: usize) -> bool {
        self.work += 1;
        if self.work > WORK || depth == 0 {
            return false;
        }
        if [one, other].contains(&&Value::Bool(false)) {
            return true;
        }
        let (ones, others) = (self.parts(one), self.parts(other));
        ones.iter().any(|one| others.iter().any(|other| self.parts_exclude(one, other, depth)))
            || self.alternatives_exclude(&ones, other, depth)
            || self.alternatives_exclude(&others, one, depth)
    }

    /// Whether one of the parts has alternatives, each of which excludes the other schema.
    fn alternatives_exclude(&mut self, parts: &[&Map<String, Value>], other: &Value, depth: usize) -> bool {
        let lists = parts.iter().flat_map(|part| [part.get("anyOf"), part.get("oneOf")]);
        let mut lists = lists.flatten().filter_map(Value::as_array);
        lists.any(|list| list.iter().all(|schema| self.exclude(schema, other, depth - 1)))
    }

    /// A schema, and what its references and `allOf` say beside it.
    fn parts<'s>(&mut self, schema: &'s Value) -> Vec<&'s Map<String, Value>>
    where
        'a: 's,
    {
        let (mut parts, mut open) = (Vec::new(), vec![(schema, DEPTH)]);
        let defs: &'s Map<String, Value> = self.defs;
        while let Some((schema, depth)) = open.pop() {
            let Value::Object(map) = schema else { continue };
            self.work += 1;
            if depth > 0 && self.work <= WORK {
                let name = map.get("$ref").and_then(Value::as_str).and_then(|to| to.strip_prefix("#/$defs/"));
                open.extend(name.and_then(|name| defs.get(name)).map(|target| (target, depth - 1)));
                let all = map.get("allOf").and_then(Value::as_array);
                open.extend(all.into_iter().flatten().map(|schema| (schema, depth - 1)));
            }
            parts.push(map);
        }
        parts
    }

    fn parts_exclude(&mut self, one: &Map<String, Value>, other: &Map<String, Value>, depth: usize) -> bool {
        if let (Some(types), Some(others)) = (types(one), types(other)) {
            if types.is_disjoint(&others) {
                return true;
            }
            let objects = HashSet::from(["object"]);
            if types == objects && others == objects && self.objects_exclude(one, other, depth) {
                return true;
            }
        }
        let (Some(values), Some(others)) = (values(one), values(other)) else { return false };
        self.work += values.len() + others.len();
        let others: HashSet<String> = others.into_iter().map(|value| normal(value).to_string()).collect();
        self.work <= WORK && !values.into_iter().any(|value| others.contains(&normal(value).to_string()))
    }

    /// Of schemas of objects: both require a property that cannot be the same, or one of them allows none of its name.
    fn objects_exclude(&mut self, one: &Map<String, Value>, other: &Map<String, Value>, depth: usize) -> bool {
        let (required, others) = (required(one), required(other));
        self.work += required.len() + others.len();
        if required.iter().any(|name| forbids(other, name)) || others.iter().any(|name| forbids(one, name)) {
            return true;
        }
        required.intersection(&others).any(|name| match (property(one, name), property(other, name)) {
            (Some(one), Some(other)) => self.exclude(one, other, depth - 1),
            _ => false,
        })
    }
}

/// The types that its values may have, where it says so. Whole numbers are numbers.
fn types(schema: &Map<String, Value>) -> Option<HashSet<&str>> {
    let named = |name| match Value::as_str(name) {
        Some("integer") => Some("number"),
        name => name,
    };
    match (schema.get("type"), values(schema)) {
        (Some(Value::Array(list)), _) => list.iter().map(named).collect(),
        (Some(one), _) => named(one).map(|name| HashSet::from([name])),
        (None, Some(values)) => Some(values.into_iter().map(type_of).collect()),
        (None, None) => None,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// The values that it has, where it lists them.
fn values(schema: &Map<String, Value>) -> Option<Vec<&Value>> {
    let listed = || schema.get("enum").and_then(Value::as_array).map(|list| list.iter().collect());
    schema.get("const").map(|value| vec![value]).or_else(listed)
}

/// The same value for all that are equal: 1 and 1.0 are, and so are 0 and -0.0.
fn normal(value: &Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().map_or(Value::Null, |number| Value::from(number + 0.0)),
        Value::Array(list) => list.iter().map(normal).collect(),
        Value::Object(map) => {
            let mut sorted: Vec<_> = map.iter().map(|(name, value)| (name.clone(), normal(value))).collect();
            sorted.sort_by(|one, other| one.0.cmp(&other.0));
            Value::Object(sorted.into_iter().collect())
        }
        other => other.clone(),
    }
}

fn required(schema: &Map<String, Value>) -> HashSet<&str> {
    schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn property<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Value> {
    schema.get("properties").and_then(|all| all.get(name))
}

/// Whether objects have no property of this name.
fn forbids(schema: &Map<String, Value>, name: &str) -> bool {
    let closed = schema.get("additionalProperties") == Some(&Value::Bool(false));
    let named = property(schema, name);
    named == Some(&Value::Bool(false)) || (closed && named.is_none() && !schema.contains_key("patternProperties"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn relaxed(schema: &Value) -> bool {
        let defs = json!({
            "cat": { "type": "object", "properties": { "kind": { "const": "cat" } }, "required": ["kind"] },
            "dog": { "type": "object", "properties": { "kind": { "enum": ["dog", "puppy"] } }, "required": ["kind"] },
            "loose": { "type": "object", "properties": { "kind": { "const": "loose" } } },
            "text": { "type": "string" },
            "again": { "$ref": "#/$defs/again" },
        });
        let mut schema = json!({ "properties": { "a": schema } });
        relax([&mut schema], defs.as_object().unwrap());
        let inner = &schema["properties"]["a"];
        assert_ne!(inner.get("oneOf").is_some(), inner.get("anyOf").is_some());
        inner.get("anyOf").is_some()
    }

    fn reference(name: &str) -> Value {
        json!({ "$ref": format!("#/$defs/{name}") })
    }

    #[test]
    fn schemas_that_no_value_matches_together_exclude_each_other() {
        let closed = |name: &str| json!({ "type": "object", "properties": { (name): true }, "required": [name], "additionalProperties": false });
        let nested = |kind: &str| json!({ "type": "object", "required": ["in"], "properties": { "in": { "type": "object", "required": ["k"], "properties": { "k": { "const": kind } } } } });
        for list in [
            json!([reference("cat"), reference("dog")]),
            json!([reference("cat"), reference("dog"), reference("text"), { "type": "null" }]),
            json!([{ "allOf": [reference("cat"), { "maxProperties": 3 }] }, reference("dog")]),
            json!([{ "const": 1 }, { "const": 2 }, { "enum": [3.5, "1", null, [1], { "a": 1 }] }]),
            json!([{ "type": "integer" }, { "type": ["string", "null"] }, { "const": true }]),
            json!([closed("a"), closed("b")]),
            json!([nested("x"), nested("y")]),
            json!([{ "anyOf": [{ "type": "null" }, { "type": "boolean" }] }, reference("text")]),
            json!([false, true]),
        ] {
            assert!(relaxed(&json!({ "oneOf": list })), "{list}");
        }
    }

    #[test]
    fn where_a_value_may_match_two_one_of_stays() {
        for list in [
            json!([reference("cat"), reference("cat")]),
            json!([reference("cat"), reference("loose")]),
            json!([reference("again"), reference("text")]),
            json!([{ "type": "integer" }, { "type": "number" }]),
            json!([{ "const": 1 }, { "const": 1.0 }]),
            json!([{ "const": 0 }, { "const": -0.0 }]),
            json!([{ "const": { "a": 1, "b": 2 } }, { "const": { "b": 2.0, "a": 1 } }]),
            json!([{ "enum": [1, 2] }, { "enum": [2, 3] }]),
            json!([{ "type": "string" }, { "maxLength": 3 }]),
            json!([{ "type": ["object", "null"], "required": ["a"], "properties": { "a": { "const": 1 } } },
                { "type": ["object", "null"], "required": ["a"], "properties": { "a": { "const": 2 } } }]),
            json!([{ "type": "object", "required": ["a"], "additionalProperties": false, "patternProperties": { "^b": true } },
                { "type": "object", "required": ["b"] }]),
            json!([true, { "type": "string" }]),
        ] {
            assert!(!relaxed(&json!({ "oneOf": list })), "{list}");
        }
        // What is a value says nothing of schemas.
        let mut value = json!({ "const": { "oneOf": [{ "type": "null" }, { "type": "string" }] } });
        let before = value.clone();
        relax([&mut value], &Map::new());
        assert_eq!(value, before);
    }

    #[test]
    fn the_work_is_bounded() {
        let constants = |count: usize| (0..count).map(|at| json!({ "const": at })).collect::<Vec<_>>();
        assert!(relaxed(&json!({ "oneOf": constants(128) })));
        assert!(!relaxed(&json!({ "oneOf": constants(4000) })));
        // Each level doubles what is looked at.
        let deep = (0..12).fold(json!({ "type": "string" }), |inner, _| json!({ "anyOf": [inner.clone(), inner] }));
        assert!(!relaxed(&json!({ "oneOf": [deep.clone(), deep] })));
    }
}
