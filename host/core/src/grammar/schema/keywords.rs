//! The keywords of JSON Schema, by what is done with each. docs/structured-output.md has the same table, and a test compares them.

/// What a keyword is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keyword {
    /// Says nothing about values.
    Annotation,
    /// A schema.
    Schema,
    /// A list of schemas, at least one.
    Schemas,
    /// A schema or a list of schemas.
    SchemaOrSchemas,
    /// Schemas by name.
    Named,
    Reference,
    Type,
    Values,
    Value,
    Required,
    Count,
    Number,
    /// A number or, as in draft 4, whether the neighbour is exclusive.
    Exclusive,
    Multiple,
    Pattern,
    Format,
    /// Says nothing if it is false.
    FalseOnly,
    /// Changes where references lead.
    Identity,
    Unsupported,
}

/// Sorted by kind. What is not here is refused too, but for `x-` names.
pub(super) const KEYWORDS: &[(&str, Keyword)] = &[
    ("$ref", Keyword::Reference),
    ("type", Keyword::Type),
    ("enum", Keyword::Values),
    ("const", Keyword::Value),
    ("anyOf", Keyword::Schemas),
    ("oneOf", Keyword::Schemas),
    ("allOf", Keyword::Schemas),
    ("properties", Keyword::Named),
    ("patternProperties", Keyword::Named),
    ("additionalProperties", Keyword::Schema),
    ("required", Keyword::Required),
    ("minProperties", Keyword::Count),
    ("maxProperties", Keyword::Count),
    ("items", Keyword::SchemaOrSchemas),
    ("prefixItems", Keyword::Schemas),
    ("additionalItems", Keyword::Schema),
    ("minItems", Keyword::Count),
    ("maxItems", Keyword::Count),
    ("minLength", Keyword::Count),
    ("maxLength", Keyword::Count),
    ("pattern", Keyword::Pattern),
    ("format", Keyword::Format),
    ("minimum", Keyword::Number),
    ("maximum", Keyword::Number),
    ("exclusiveMinimum", Keyword::Exclusive),
    ("exclusiveMaximum", Keyword::Exclusive),
    ("multipleOf", Keyword::Multiple),
    ("uniqueItems", Keyword::FalseOnly),
    ("nullable", Keyword::FalseOnly),
    ("$id", Keyword::Identity),
    ("id", Keyword::Identity),
    ("$schema", Keyword::Annotation),
    ("$comment", Keyword::Annotation),
    ("$anchor", Keyword::Annotation),
    ("$defs", Keyword::Annotation),
    ("definitions", Keyword::Annotation),
    ("title", Keyword::Annotation),
    ("description", Keyword::Annotation),
    ("default", Keyword::Annotation),
    ("examples", Keyword::Annotation),
    ("example", Keyword::Annotation),
    ("deprecated", Keyword::Annotation),
    ("readOnly", Keyword::Annotation),
    ("writeOnly", Keyword::Annotation),
    ("contentMediaType", Keyword::Annotation),
    ("contentEncoding", Keyword::Annotation),
    ("contentSchema", Keyword::Annotation),
    ("discriminator", Keyword::Annotation),
    ("externalDocs", Keyword::Annotation),
    ("not", Keyword::Unsupported),
    ("if", Keyword::Unsupported),
    ("then", Keyword::Unsupported),
    ("else", Keyword::Unsupported),
    ("contains", Keyword::Unsupported),
    ("minContains", Keyword::Unsupported),
    ("maxContains", Keyword::Unsupported),
    ("propertyNames", Keyword::Unsupported),
    ("dependencies", Keyword::Unsupported),
    ("dependentRequired", Keyword::Unsupported),
    ("dependentSchemas", Keyword::Unsupported),
    ("unevaluatedItems", Keyword::Unsupported),
    ("unevaluatedProperties", Keyword::Unsupported),
    ("$dynamicRef", Keyword::Unsupported),
    ("$dynamicAnchor", Keyword::Unsupported),
    ("$recursiveRef", Keyword::Unsupported),
    ("$recursiveAnchor", Keyword::Unsupported),
];

/// The formats of strings that are enforced.
pub(super) const FORMATS: &[&str] =
    &["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// In the order in which the compiler takes them where a schema names none.
pub(super) const TYPES: &[&str] = &["null", "boolean", "integer", "number", "string", "array", "object"];

/// `None`: nobody knows it.
pub(super) fn keyword(name: &str) -> Option<Keyword> {
    if name.starts_with("x-") {
        return Some(Keyword::Annotation);
    }
    KEYWORDS.iter().find(|(known, _)| *known == name).map(|(_, keyword)| *keyword)
}

/// Whether a keyword says nothing of values.
pub(crate) fn is_annotation(name: &str) -> bool {
    keyword(name) == Some(Keyword::Annotation)
}

/// Keywords whose schemas the compiler visits together, in this order, whatever the order in which a schema names them.
const VISITED: &[&str] =
    &["prefixItems", "items", "additionalItems", "properties", "patternProperties", "additionalProperties"];

/// A keyword's place among those that the compiler visits together; `None`: it applies in its own place.
pub(super) fn visit(name: &str) -> Option<usize> {
    match name {
        "$ref" | "const" | "enum" | "allOf" | "anyOf" | "oneOf" => None,
        _ => Some(VISITED.iter().position(|known| *known == name).map_or(0, |at| at + 1)),
    }
}
