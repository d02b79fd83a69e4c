//! A body that was written for one endpoint, as another one reads it.
use serde_json::{Map, Value};

use crate::wire::error::RequestError;
use crate::wire::json::{self, Body};
use crate::wire::names::Names;
use crate::wire::taken::Taken;
use crate::wire::types::refused::RefusedFields;

/// A body for the endpoint that serves it, and what its answer needs to know.
#[derive(Debug)]
pub(crate) struct Translated<T> {
    pub(crate) body: Body,
    pub(crate) kept: T,
    pub(crate) names: Names,
}

impl<T> Translated<T> {
    pub(crate) fn map<U>(self, kept: impl FnOnce(T) -> U) -> Translated<U> {
        let Self { body, kept: before, names } = self;
        Translated { body, kept: kept(before), names }
    }
}

impl Translated<()> {
    /// A body that its own endpoint reads.
    pub(crate) fn own(body: Body) -> Self {
        Self { body, kept: (), names: Names::default() }
    }
}

/// What the members of a JSON object take in memory, at most: as much as [`json::parsed_bytes`] counts for their text.
pub(crate) fn held_bytes(map: &Map<String, Value>) -> usize {
    let member = |(name, value): (&String, &Value)| name.len() + value_bytes(value);
    json::OBJECT_BYTES + map.iter().map(member).sum::<usize>()
}

fn value_bytes(value: &Value) -> usize {
    json::VALUE_BYTES
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(list) => json::LIST_BYTES + list.iter().map(value_bytes).sum::<usize>(),
            Value::Object(map) => held_bytes(map),
        }
}

/// Refuses fields that this endpoint does not have: ignored, they would silently change the answer.
///
/// # Errors
/// 400 that says which field to use instead, or why there is none.
pub(crate) fn refuse(fields: &Taken, refused: &RefusedFields) -> Result<(), RequestError> {
    match refused.iter().find(|(name, _)| fields.has(name)) {
        None => Ok(()),
        Some((name, why)) => Err(RequestError::field(*name, why.message(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tree_takes_no_more_than_was_counted_for_its_text() {
        let value = json!({"a": [1, null, "text", {"b": [], "c": {}}], "d": true, "e": "x".repeat(1000)});
        let counted = json::parsed_bytes(&value.to_string());
        let held = held_bytes(value.as_object().unwrap());
        assert!(held <= counted && held > 1000 + 9 * json::VALUE_BYTES, "{held} of {counted}");
    }
}
