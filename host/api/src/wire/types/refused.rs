//! Fields that an endpoint refuses because another one serves the request, which would read or ignore them.
use schemars::Schema;
use serde_json::{Map, Value, json};

/// Why a field is refused.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Refused {
    /// The endpoint has another field for it, or another endpoint has it.
    Foreign(&'static str),
    /// Nothing here does this.
    Unsupported(&'static str),
}

/// Names of fields, each with why it is refused.
pub(crate) type RefusedFields = [(&'static str, Refused)];

impl Refused {
    /// What the client is told.
    pub(crate) fn message(self, name: &str) -> String {
        match self {
            Self::Foreign(instead) => format!("{name} is no field of this endpoint: use {instead}"),
            Self::Unsupported(why) => format!("{name} is not supported: {why}"),
        }
    }
}

/// Describes these fields of a body as refused.
pub(crate) fn describe(schema: &mut Schema, refused: &RefusedFields) {
    for (name, why) in refused {
        put(schema, name, json!({"description": why.message(name), "x-support": "refused"}));
    }
}

/// Describes a field of a body as one without effect.
pub(crate) fn describe_ignored(schema: &mut Schema, name: &str) {
    put(schema, name, json!({"x-support": "ignored"}));
}

fn put(schema: &mut Schema, name: &str, property: Value) {
    let properties = schema.ensure_object().entry("properties").or_insert_with(|| Map::new().into());
    if let Value::Object(properties) = properties {
        properties.insert(name.to_owned(), property);
    }
}
