//! The family of a model, by its name.
use std::borrow::Cow;

use camshaft_core::family::description::Family;
use camshaft_core::family::detect::{FamilyName, names};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How the answers of a model have tool calls and thinking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FamilyKey(pub &'static Family);

impl Serialize for FamilyKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name)
    }
}

impl<'de> Deserialize<'de> for FamilyKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<'de, str>::deserialize(deserializer)?;
        name.parse().map(|FamilyName(family)| Self(family)).map_err(D::Error::custom)
    }
}

impl JsonSchema for FamilyKey {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FamilyKey".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": names().collect::<Vec<_>>() })
    }
}
