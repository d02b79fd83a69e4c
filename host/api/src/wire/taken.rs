//! Takes typed fields out of a JSON object that becomes another one, without copies of their texts.
use camshaft_core::limits::Range;
use serde_json::{Map, Value};

use crate::wire::error::RequestError;
use crate::wire::fields::{self, wrong_type};

/// An object, with its path in the body. What is not taken is left.
#[derive(Debug)]
pub(crate) struct Taken {
    map: Map<String, Value>,
    /// As of [`crate::wire::fields::Fields`].
    prefix: String,
}

impl Taken {
    /// The fields of a body.
    pub(crate) fn of_body(map: Map<String, Value>) -> Self {
        Self { map, prefix: String::new() }
    }

    /// The fields of a value at `path`.
    ///
    /// # Errors
    /// 400: it is no object.
    pub(crate) fn of(value: Value, path: &str) -> Result<Self, RequestError> {
        match value {
            Value::Object(map) => Ok(Self { map, prefix: format!("{path}.") }),
            other => Err(wrong_type(path, "an object", &other)),
        }
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// `null` counts as absent.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.map.get(name).is_some_and(|value| !value.is_null())
    }

    /// Takes the value under `name`; `null` counts as absent.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        self.map.remove(name).filter(|value| !value.is_null())
    }

    pub(crate) fn text(&mut self, name: &str) -> Result<Option<String>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong_type(&self.path(name), "a string", &other)),
        }
    }

    pub(crate) fn required_text(&mut self, name: &str) -> Result<String, RequestError> {
        self.text(name)?.ok_or_else(|| self.missing(name))
    }

    pub(crate) fn list(&mut self, name: &str) -> Result<Option<Vec<Value>>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Array(list)) => Ok(Some(list)),
            Some(other) => Err(wrong_type(&self.path(name), "a list", &other)),
        }
    }

    /// The fields of an object under `name`.
    pub(crate) fn object(&mut self, name: &str) -> Result<Option<Self>, RequestError> {
        self.take(name).map(|value| Self::of(value, &self.path(name))).transpose()
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<Option<bool>, RequestError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => Err(wrong_type(&self.path(name), "a boolean", &other)),
        }
    }

    pub(crate) fn integer(&mut self, name: &str, range: Range) -> Result<Option<u32>, RequestError> {
        self.take(name).map(|value| fields::integer(&value, &self.path(name), range)).transpose()
    }

    /// Puts a value back.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.map.insert(name.to_owned(), value);
    }

    pub(crate) fn missing(&self, name: &str) -> RequestError {
        let path = self.path(name);
        RequestError::field(path.clone(), format!("{path} is required"))
    }

    /// What was not taken.
    pub(crate) fn rest(self) -> Map<String, Value> {
        self.map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn taken(value: Value) -> Taken {
        Taken::of(value, "a[1]").unwrap()
    }

    #[test]
    fn takes_what_it_is_asked_for_and_leaves_the_rest() {
        let mut fields = taken(json!({"s": "x", "l": [1], "o": {"f": true}, "n": null, "i": 3, "kept": 1}));
        assert_eq!(fields.required_text("s").unwrap(), "x");
        assert_eq!(fields.list("l").unwrap(), Some(vec![json!(1)]));
        assert_eq!(fields.object("o").unwrap().unwrap().flag("f").unwrap(), Some(true));
        assert_eq!((fields.text("n").unwrap(), fields.text("s").unwrap()), (None, None));
        assert_eq!(fields.integer("i", Range { min: 1.0, max: 3.0 }).unwrap(), Some(3));
        assert_eq!(Value::Object(fields.rest()), json!({"kept": 1}));
    }

    #[test]
    fn errors_name_the_path_and_what_came() {
        let check = |error: RequestError, expected: &str| assert_eq!(error.to_string(), expected);
        let mut fields = taken(json!({"s": 1, "l": {}, "o": [], "f": "no", "i": 4}));
        check(fields.text("s").unwrap_err(), "a[1].s must be a string, got 1");
        check(fields.list("l").unwrap_err(), "a[1].l must be a list, got an object");
        check(fields.object("o").unwrap_err(), "a[1].o must be an object, got a list");
        check(fields.flag("f").unwrap_err(), "a[1].f must be a boolean, got a string");
        let range = Range { min: 1.0, max: 3.0 };
        check(fields.integer("i", range).unwrap_err(), "a[1].i must be between 1 and 3, got 4");
        check(fields.required_text("none").unwrap_err(), "a[1].none is required");
        check(Taken::of(json!("x"), "b").unwrap_err(), "b must be an object, got a string");
    }
}
