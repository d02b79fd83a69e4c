//! Reads typed fields of a JSON object, with errors that name the field's path and the bound.
use camshaft_core::limits::Range;
use serde_json::{Map, Value};

use crate::wire::error::RequestError;
use crate::wire::lists::{IdLists, Lists};

/// An object, with its path in the body.
#[derive(Debug, Clone)]
pub(crate) struct Fields<'a> {
    map: &'a Map<String, Value>,
    /// Prefix of a field's name: empty for the body itself, else e.g. `messages[2].`.
    prefix: String,
    /// Of the body itself: its lists of token ids.
    lists: Option<&'a Lists>,
}

impl<'a> Fields<'a> {
    /// Fields of a body without lists of token ids.
    #[cfg(test)]
    pub(crate) fn of_body(map: &'a Map<String, Value>) -> Self {
        Self { map, prefix: String::new(), lists: None }
    }

    /// Fields of a body, of which `lists` are not in the map.
    pub(crate) fn with_lists(map: &'a Map<String, Value>, lists: &'a Lists) -> Self {
        Self { map, prefix: String::new(), lists: Some(lists) }
    }

    /// Fields of a value at `path`, which must be an object.
    pub(crate) fn of(value: &'a Value, path: &str) -> Result<Self, RequestError> {
        let map = value.as_object().ok_or_else(|| wrong_type(path, "an object", value))?;
        Ok(Self { map, prefix: format!("{path}."), lists: None })
    }

    pub(crate) fn path(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    /// The names of all fields that are not null, in their order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.map.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| name.as_str())
    }

    /// The value under `name`; `null` counts as absent.
    pub(crate) fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|value| !value.is_null())
    }

    pub(crate) fn require(&self, name: &str) -> Result<&'a Value, RequestError> {
        self.get(name).ok_or_else(|| RequestError::field(self.path(name), format!("{} is required", self.path(name))))
    }

    pub(crate) fn text(&self, name: &str) -> Result<Option<&'a str>, RequestError> {
        self.typed(name, "a string", Value::as_str)
    }

    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, RequestError> {
        self.typed(name, "a boolean", Value::as_bool)
    }

    pub(crate) fn list(&self, name: &str) -> Result<Option<&'a Vec<Value>>, RequestError> {
        self.typed(name, "a list", Value::as_array)
    }

    pub(crate) fn object(&self, name: &str) -> Result<Option<&'a Map<String, Value>>, RequestError> {
        self.typed(name, "an object", Value::as_object)
    }

    /// A number within `range`.
    pub(crate) fn number(&self, name: &str, range: Range) -> Result<Option<f64>, RequestError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        number(value, &self.path(name), range).map(Some)
    }

    /// An integer within `range` (of non-negative 32-bit numbers).
    pub(crate) fn integer(&self, name: &str, range: Range) -> Result<Option<u32>, RequestError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        integer(value, &self.path(name), range).map(Some)
    }

    /// The token ids under `name`, if it holds nothing else.
    pub(crate) fn ids(&self, name: &str) -> Option<&'a IdLists> {
        self.lists?.get(name)
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, RequestError> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| wrong_type(&self.path(name), expected, value))
    }
}

/// A number within `range`.
pub(crate) fn number(value: &Value, path: &str, range: Range) -> Result<f64, RequestError> {
    let number = value.as_f64().ok_or_else(|| wrong_type(path, "a number", value))?;
    if range.contains(number) { Ok(number) } else { Err(out_of_range(path, range, value)) }
}

/// An integer within `range` (of non-negative 32-bit numbers).
pub(crate) fn integer(value: &Value, path: &str, range: Range) -> Result<u32, RequestError> {
    if !value.is_i64() && !value.is_u64() && !is_huge_integer(value) {
        return Err(wrong_type(path, "an integer", value));
    }
    let within = value.as_f64().is_some_and(|number| range.contains(number));
    let integer = value.as_u64().and_then(|number| u32::try_from(number).ok()).filter(|_| within);
    integer.ok_or_else(|| out_of_range(path, range, value))
}

/// An integer beyond 64 bits is parsed as a floating-point number. It counts as an integer out of range, not as a wrong
/// type.
fn is_huge_integer(value: &Value) -> bool {
    value.as_f64().is_some_and(|number| number.abs() >= 9.2e18)
}

pub(crate) fn wrong_type(path: &str, expected: &str, value: &Value) -> RequestError {
    let got = match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "a boolean".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(_) => "a string".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    };
    RequestError::field(path, format!("{path} must be {expected}, got {got}"))
}

fn out_of_range(path: &str, range: Range, value: &Value) -> RequestError {
    RequestError::field(path, format!("{path} must be between {} and {}, got {value}", range.min, range.max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const RANGE: Range = Range { min: 1.0, max: 128.0 };

    fn check(value: &Value, expected: Result<u32, &str>) {
        let got = integer(value, "n", RANGE).map_err(|error| error.to_string());
        assert_eq!(got, expected.map_err(str::to_owned), "{value}");
    }

    #[test]
    fn accepts_integers_at_their_bounds_and_refuses_one_past() {
        check(&json!(1), Ok(1));
        check(&json!(128), Ok(128));
        check(&json!(0), Err("n must be between 1 and 128, got 0"));
        check(&json!(129), Err("n must be between 1 and 128, got 129"));
        check(&json!(-1), Err("n must be between 1 and 128, got -1"));
        check(&json!(4294967297_u64), Err("n must be between 1 and 128, got 4294967297"));
        check(&json!(u64::MAX), Err("n must be between 1 and 128, got 18446744073709551615"));
    }

    #[test]
    fn refuses_other_types_and_says_what_came() {
        check(&json!(1.5), Err("n must be an integer, got 1.5"));
        check(&json!("1"), Err("n must be an integer, got a string"));
        check(&json!([1]), Err("n must be an integer, got a list"));
        let huge = serde_json::from_str::<Value>("1000000000000000000000").unwrap();
        assert!(integer(&huge, "n", RANGE).unwrap_err().to_string().starts_with("n must be between 1 and 128"));
    }

    #[test]
    fn names_the_path_of_a_nested_field() {
        let body = json!({"stream_options": {"include_usage": 1}});
        let options = Fields::of(&body["stream_options"], "stream_options").unwrap();
        let error = options.flag("include_usage").unwrap_err();
        assert_eq!(error.to_string(), "stream_options.include_usage must be a boolean, got 1");
    }

    #[test]
    fn takes_null_for_absent() {
        let body = json!({"temperature": null});
        let fields = Fields::of_body(body.as_object().unwrap());
        assert_eq!(fields.number("temperature", RANGE).unwrap(), None);
        assert_eq!(fields.require("temperature").unwrap_err().to_string(), "temperature is required");
    }
}
