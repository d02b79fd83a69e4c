//! Values that the server chooses unless the configuration does: "auto".
use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{Deserialize, DeserializeOwned, Deserializer, Error};
use serde::ser::{Serialize, Serializer};
use serde_json::json;

const AUTO: &str = "auto";

/// A value, or "auto": it follows from the models and the machine, see [`camshaft_core::sizes`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Auto<T> {
    #[default]
    Auto,
    Set(T),
}

impl<T> Auto<T> {
    /// `None`: it is to be chosen.
    pub fn set(self) -> Option<T> {
        match self {
            Self::Auto => None,
            Self::Set(value) => Some(value),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Auto<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str(AUTO),
            Self::Set(value) => value.fmt(f),
        }
    }
}

impl<T: Serialize> Serialize for Auto<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => serializer.serialize_str(AUTO),
            Self::Set(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: DeserializeOwned> Deserialize<'de> for Auto<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        if value.as_str() == Some(AUTO) {
            return Ok(Self::Auto);
        }
        let read = T::deserialize(value);
        read.map(Self::Set).map_err(|error| D::Error::custom(format!("{}, or \"auto\"", error.message().trim_end())))
    }
}

impl<T: JsonSchema> JsonSchema for Auto<T> {
    fn schema_name() -> Cow<'static, str> {
        format!("Auto{}", T::schema_name()).into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        if let Some(cases) = schema.get_mut("oneOf").and_then(|cases| cases.as_array_mut()) {
            cases.insert(0, json!({"const": AUTO, "type": "string"}));
            return schema;
        }
        // Bounds of a number hold for numbers only, so both types may stand in one schema.
        let pattern = schema.get("pattern").and_then(|pattern| pattern.as_str()).map(|of| format!("^auto$|{of}"));
        schema.insert("type".to_owned(), json!(["integer", "string"]));
        schema.insert("pattern".to_owned(), json!(pattern.unwrap_or_else(|| "^auto$".to_owned())));
        schema
    }
}

#[cfg(test)]
mod tests {
    use super::super::quantity::ByteSize;
    use super::*;

    #[test]
    fn auto_or_a_value_and_nothing_else() {
        let number = |text: &str| Auto::<u32>::deserialize(text.parse::<toml::Value>().unwrap());
        assert_eq!(number("\"auto\"").unwrap(), Auto::Auto);
        assert_eq!(number("7").unwrap(), Auto::Set(7));
        let error = number("\"automatic\"").unwrap_err().to_string();
        assert!(error.contains("automatic") && error.contains("or \"auto\""), "{error}");
        let size = Auto::<ByteSize>::deserialize(toml::Value::from("2MiB")).unwrap();
        assert_eq!((size, size.to_string()), (Auto::Set(ByteSize(2 << 20)), "2MiB".to_owned()));
        assert_eq!(toml::Value::try_from(Auto::<u32>::Auto).unwrap().as_str(), Some("auto"));
    }
}
