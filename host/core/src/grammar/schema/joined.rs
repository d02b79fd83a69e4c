//! How many patterns one text must match at once, where schemas are joined.
use std::collections::HashMap;

use serde_json::{Map, Value};

/// The most patterns and formats that a text anywhere in a checked schema must match together, or more where the compiler may find
/// that some never meet.
pub(super) fn patterns(schema: &Value) -> usize {
    let defs = schema.get("$defs").and_then(Value::as_object);
    Patterns { defs, known: HashMap::new() }.of(schema)
}

struct Patterns<'a> {
    defs: Option<&'a Map<String, Value>>,
    /// `None`: it is being counted, so that this is a recursion.
    known: HashMap<&'a str, Option<usize>>,
}

impl<'a> Patterns<'a> {
    fn of(&mut self, schema: &'a Value) -> usize {
        let Value::Object(map) = schema else { return 0 };
        let own = ["pattern", "format"].iter().filter(|name| map.contains_key(**name)).count();
        let values = self.most(map, &["items", "prefixItems", "additionalItems", "additionalProperties"]);
        let inside = values.max(self.named(map.get("properties")).into_iter().max().unwrap_or(0));
        // What a name matches is joined with the property of that name.
        let by_pattern: usize = self.named(map.get("patternProperties")).into_iter().sum();
        let target = map.get("$ref").and_then(Value::as_str).map_or(0, |to| self.target(to));
        let options = self.most(map, &["anyOf", "oneOf"]);
        own.max(inside + by_pattern) + self.all(map.get("allOf")) + target + options
    }

    fn target(&mut self, reference: &'a str) -> usize {
        let Some(name) = reference.strip_prefix("#/$defs/") else { return 0 };
        if let Some(known) = self.known.get(name) {
            return known.unwrap_or(0);
        }
        self.known.insert(name, None);
        let count = self.defs.and_then(|defs| defs.get(name)).map_or(0, |schema| self.of(schema));
        self.known.insert(name, Some(count));
        count
    }

    /// Of the schemas of these keywords.
    fn most(&mut self, map: &'a Map<String, Value>, keywords: &[&str]) -> usize {
        let schemas: Vec<&Value> = keywords.iter().filter_map(|name| map.get(*name)).collect();
        schemas.into_iter().map(|value| self.each(value).into_iter().max().unwrap_or(0)).max().unwrap_or(0)
    }

    fn all(&mut self, value: Option<&'a Value>) -> usize {
        value.map_or(0, |value| self.each(value).into_iter().sum())
    }

    /// Of each schema of a list, or of the one.
    fn each(&mut self, value: &'a Value) -> Vec<usize> {
        match value {
            Value::Array(list) => list.iter().map(|schema| self.of(schema)).collect(),
            one => vec![self.of(one)],
        }
    }

    /// Of each schema of an object of schemas.
    fn named(&mut self, value: Option<&'a Value>) -> Vec<usize> {
        value.and_then(Value::as_object).into_iter().flat_map(Map::values).map(|schema| self.of(schema)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn patterns_add_up_where_schemas_are_joined_and_nowhere_else() {
        let (p, f) = (json!({ "pattern": "a" }), json!({ "format": "date", "maxLength": 9 }));
        let check = |schema: Value, expected: usize| assert_eq!(patterns(&schema), expected, "{schema}");
        check(json!({ "properties": { "a": p, "b": f, "pattern": p } }), 1);
        check(json!({ "pattern": "a", "format": "date" }), 2);
        check(json!({ "allOf": [p, f, { "maxLength": 9 }] }), 2);
        check(json!({ "pattern": "a", "allOf": [p, { "anyOf": [p, f] }] }), 3);
        check(json!({ "allOf": [{ "properties": { "a": p } }, { "properties": { "a": f } }] }), 2);
        check(json!({ "properties": { "a": p }, "patternProperties": { "a": p, "b": f } }), 3);
        check(json!({ "pattern": "a", "$ref": "#/$defs/r0", "$defs": { "r0": { "allOf": [p, p] } } }), 3);
        check(
            json!({ "$ref": "#/$defs/r0", "$defs": { "r0": { "items": { "$ref": "#/$defs/r0" }, "format": "date" } } }),
            1,
        );
        check(json!({ "items": [p, f] }), 1);
        check(json!(true), 0);
        // Each schema is looked at once, however deep they lie.
        let deep = (0..48).fold(p.clone(), |inner, _| json!({ "items": inner, "allOf": [{}] }));
        check(deep, 1);
    }
}
