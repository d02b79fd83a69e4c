use serde_json::{Value, json};

use super::keywords::{FORMATS, KEYWORDS, Keyword};
use super::{check, loosened};
use crate::grammar::GrammarSpec;
use crate::grammar::error::GrammarFault;
use crate::grammar::tests::check as matches;
use crate::limits;

/// What the compiler is given, or the error.
fn read(schema: &Value) -> Result<Value, String> {
    check(&schema.to_string()).map(|checked| checked.schema).map_err(|error| error.to_string())
}

fn refuses(schema: &Value, expected: &str) {
    assert_eq!(read(schema).unwrap_err(), expected, "{schema}");
}

#[test]
fn unsupported_keywords_are_named_with_their_path() {
    refuses(
        &json!({ "type": "object", "properties": { "a": { "type": "array", "uniqueItems": true } } }),
        "properties.a.uniqueItems: keyword not supported",
    );
    refuses(
        &json!({ "anyOf": [{ "type": "null" }, { "not": { "type": "string" } }] }),
        "anyOf[1].not: keyword not supported",
    );
    refuses(
        &json!({ "items": { "$ref": "#/$defs/node" }, "$defs": { "node": { "contains": {} } } }),
        "$defs.node.contains: keyword not supported",
    );
    refuses(&json!({ "maxlength": 3 }), "maxlength: keyword not supported; did you mean `maxLength`?");
    refuses(
        &json!({ "type": "string", "nullable": true }),
        "nullable: keyword not supported; add \"null\" to the schema's types",
    );
    refuses(
        &json!({ "$ref": "https://example.com/x" }),
        "$ref: \"https://example.com/x\" does not lie in this schema (#/...)",
    );
    refuses(&json!({ "items": { "$id": "x" } }), "items.$id: keyword not supported below the root");
}

#[test]
fn a_keyword_that_forbids_nothing_is_taken() {
    for schema in [
        json!({ "propertyNames": { "type": "string" } }),
        json!({ "propertyNames": true }),
        json!({ "unevaluatedProperties": {} }),
        json!({ "additionalProperties": false, "unevaluatedProperties": false }),
        json!({ "unevaluatedItems": true, "minContains": 1, "dependentRequired": {}, "$recursiveAnchor": false }),
        json!({ "not": false, "if": { "type": "string" }, "then": true }),
        json!({ "if": { "type": "string" } }),
        json!({ "then": { "type": "string" } }),
        json!({ "type": "string", "format": "phone" }),
    ] {
        let taken = check(&schema.to_string()).unwrap_or_else(|error| panic!("{schema}: {error}")).schema;
        let left = ["additionalProperties", "type"].map(|name| taken.get(name).cloned());
        assert_eq!(left, ["additionalProperties", "type"].map(|name| schema.get(name).cloned()), "{schema}");
        assert!(taken.as_object().unwrap().len() <= 1, "{taken}");
    }
    for schema in [
        json!({ "propertyNames": { "type": "string", "minLength": 2 } }),
        json!({ "unevaluatedProperties": false }),
        json!({ "if": { "type": "string" }, "then": { "minLength": 1 } }),
        json!({ "contains": true, "minContains": 1 }),
        json!({ "dependentRequired": { "title": ["b"] } }),
    ] {
        assert_eq!(check(&schema.to_string()).unwrap_err().fault, GrammarFault::Unsupported, "{schema}");
    }
}

#[test]
fn a_loosened_schema_lacks_only_what_is_not_supported() {
    let schema = json!({ "type": "object", "required": ["a"], "propertyNames": { "pattern": "^a" }, "properties": {
        "a": { "type": "string", "not": { "const": "x" }, "maxLength": 3, "maxlength": 2 },
        "b": { "$ref": "https://example.com/x" },
        "c": { "type": "array", "items": { "type": "integer", "minimum": 1 }, "uniqueItems": true },
    } });
    let expected = json!({ "type": "object", "properties": {
        "a": { "type": "string", "maxLength": 3 },
        "b": {},
        "c": { "type": "array", "items": { "type": "integer", "minimum": 1 } },
    }, "required": ["a"] });
    assert_eq!(loosened(&schema), Some(expected));
    assert_eq!(loosened(&json!({ "properties": 3 })), None);
}

#[test]
fn what_is_no_schema_is_refused_with_its_place() {
    for (text, begins) in
        [("", "the schema is no JSON"), ("{", "the schema is no JSON"), ("[1]", "a schema is an object")]
    {
        let error = check(text).unwrap_err();
        assert!(error.reason.starts_with(begins) && error.fault == GrammarFault::Invalid, "{error}");
    }
    refuses(&json!({ "properties": { "a": 3 } }), "properties.a: a schema is an object, true or false");
    refuses(
        &json!({ "type": "text" }),
        "type: \"text\" is none of null, boolean, integer, number, string, array, object",
    );
    refuses(&json!({ "anyOf": [] }), "anyOf: must be a list of at least one schema");
    refuses(&json!({ "enum": [] }), "enum: must be a list of at least one value");
    refuses(&json!({ "required": true }), "required: must be a list of strings");
    refuses(&json!({ "multipleOf": 0 }), "multipleOf: must be a number above 0");
    refuses(&json!({ "minItems": -1 }), "minItems: must be a whole number from 0 to 100000");
    refuses(&json!({ "minItems": 1.5 }), "minItems: must be a whole number from 0 to 100000");
    refuses(&json!({ "$ref": "#/$defs/none" }), "$ref: \"#/$defs/none\" refers to nothing in this schema");
}

#[test]
fn annotations_and_what_generators_add_say_nothing() {
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "$id": "https://example.com/me", "title": "T", "x-order": 3,
        "type": "object", "discriminator": { "propertyName": "kind" },
        "properties": {
            "n": { "type": "integer", "format": "int32", "default": 3, "examples": [1], "nullable": false, "$id": "#/properties/n" },
            "l": { "items": true, "uniqueItems": false, "description": "d", "maxItems": 3.0 },
        },
    });
    let expected = json!({
        "type": "object",
        "properties": { "n": { "type": "integer" }, "l": { "items": true, "maxItems": 3 } },
    });
    assert_eq!(read(&schema).unwrap(), expected);
}

#[test]
fn names_that_spell_keywords_and_values_that_spell_schemas_are_none() {
    let schema = json!({
        "type": "object", "properties": { "not": { "const": { "uniqueItems": true } }, "$ref": { "enum": [{ "if": 1 }] } },
    });
    assert_eq!(read(&schema).unwrap(), schema);
}

#[test]
fn references_lead_to_one_copy_of_what_they_refer_to() {
    let schema = json!({
        "$defs": {
            "a/b c": { "type": "object", "properties": { "next": { "$ref": "#/$defs/a~1b%20c" }, "all": { "$ref": "#" } } },
            "unused": { "not": {} },
        },
        "anyOf": [{ "$ref": "#/$defs/a~1b c" }, { "$ref": "#/$defs/a~1b%20c" }],
    });
    let read = read(&schema).unwrap();
    assert_eq!(read["anyOf"], json!([{ "$ref": "#/$defs/r0" }, { "$ref": "#/$defs/r0" }]));
    assert_eq!(read["$defs"].as_object().unwrap().len(), 2);
    assert_eq!(read["$defs"]["r0"]["properties"]["next"], json!({ "$ref": "#/$defs/r0" }));
    assert_eq!(read["$defs"]["r1"]["anyOf"], read["anyOf"]);
}

/// Schemas within each other: by themselves, and along references.
fn nested(depth: usize) -> [Value; 2] {
    let inside = (1..depth).fold(json!({ "type": "null" }), |inner, _| json!({ "items": inner }));
    let defs: serde_json::Map<String, Value> = (0..depth - 1)
        .map(|at| {
            (
                format!("d{at}"),
                if at + 2 < depth { json!({ "$ref": format!("#/$defs/d{}", at + 1) }) } else { json!({}) },
            )
        })
        .collect();
    [inside, json!({ "$ref": "#/$defs/d0", "$defs": defs })]
}

#[test]
fn every_bound_holds_at_it_and_not_one_past_it() {
    let text = |bytes: usize| format!("{{\"title\":\"{}\"}}", "a".repeat(bytes - 12));
    assert!(check(&text(limits::GRAMMAR_BYTES)).is_ok());
    let error = check(&text(limits::GRAMMAR_BYTES + 1)).unwrap_err();
    assert_eq!(
        (error.fault, error.reason.as_str()),
        (GrammarFault::TooLarge, "a schema of 262145 bytes, at most 262144")
    );

    for schema in nested(limits::SCHEMA_DEPTH) {
        assert!(read(&schema).is_ok(), "{schema}");
    }
    for schema in nested(limits::SCHEMA_DEPTH + 1) {
        assert!(read(&schema).unwrap_err().ends_with("over 48 schemas within each other"), "{schema}");
    }

    // The root and the list count, too.
    let values = |count: usize| json!({ "enum": (0..count).collect::<Vec<_>>() });
    assert!(read(&values(limits::SCHEMA_NODES - 2)).is_ok());
    refuses(&values(limits::SCHEMA_NODES - 1), "enum: over 10000 schemas and values in all");

    for (value, ok) in
        [(json!(10_001), true), (json!(0.000_001), true), (json!(0.000_000_1), false), (json!(1e-300), false)]
    {
        assert_eq!(read(&json!({ "multipleOf": value })).is_ok(), ok, "{value}");
    }

    for (value, ok) in [(1e18, true), (1.1e18, false), (1e-30, true), (0.9e-30, false), (0.0, true)] {
        assert_eq!(read(&json!({ "minimum": value })).is_ok(), ok, "{value}");
        assert_eq!(read(&json!({ "exclusiveMaximum": -value })).is_ok(), ok, "{value}");
    }
    refuses(&json!({ "items": { "minimum": 1e308 } }), "items.minimum: 1e+308, in size from 1e-30 to 1e18");
    let far = json!({ "minimum": i64::MIN, "exclusiveMaximum": 1e30 });
    let narrower =
        json!({ "minimum": -1_000_000_000_000_000_000i64, "exclusiveMaximum": 1_000_000_000_000_000_000i64 });
    assert_eq!(check(&far.to_string()).unwrap().schema, narrower);
    let exact = json!({ "oneOf": [{ "maximum": 2e18 }, { "exclusiveMinimum": 1e18 }] });
    refuses(&exact, "oneOf[0].maximum: 2e+18, in size from 1e-30 to 1e18");
    let unbounded = json!({ "minimum": -f64::MAX, "exclusiveMaximum": f64::MAX });
    assert_eq!(check(&unbounded.to_string()).unwrap().schema, json!({}), "as any double");

    for name in ["minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"] {
        let at = |count: u64| json!({ (name): count });
        assert!(read(&at(limits::GRAMMAR_REPETITIONS)).is_ok());
        refuses(&at(limits::GRAMMAR_REPETITIONS + 1), &format!("{name}: 100001, at most 100000"));
        refuses(&at(u64::MAX), &format!("{name}: {}, at most 100000", u64::MAX));
    }
}

#[test]
fn regression_numbers_that_would_be_written_as_others_are_refused() {
    let kept = [
        json!(9_007_199_254_740_992u64),
        json!(1u64 << 60),
        json!(-5),
        json!(0.1),
        json!(123_456.789),
        json!(1e300),
        json!(-0.0),
    ];
    for value in kept {
        for schema in [json!({ "const": value }), json!({ "enum": [[value]] })] {
            assert!(read(&schema).is_ok(), "{schema}");
        }
    }
    let lost = [
        json!(9_007_199_254_740_993u64),
        json!(u64::MAX),
        json!(i64::MIN + 1),
        json!(-110_757_887.898_478_75),
        json!(1_000_000_000_000_000.2),
    ];
    for value in lost {
        for schema in [json!({ "const": { "a": value } }), json!({ "enum": [value] })] {
            assert!(read(&schema).unwrap_err().contains("only whole numbers that a double holds"), "{schema}");
        }
    }
    assert!(read(&json!({ "minimum": 900_719_925_474_099_301u64 })).unwrap_err().contains("only whole numbers"));
}

#[test]
fn long_names_are_cut_in_paths() {
    let error = read(&json!({ "properties": { ("x".repeat(5000)): { "not": {} } } })).unwrap_err();
    assert!(error.len() < 200, "{error}");
}

#[test]
fn the_page_lists_every_keyword_with_what_is_done_with_it() {
    let page = include_str!("../../../../docs/structured-output.md");
    let names = |line: &str, name: &str| line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{name}`")));
    let row = |name: &str| page.lines().find(|line| names(line, name));
    for (name, keyword) in KEYWORDS {
        let row = row(name).unwrap_or_else(|| panic!("no row has {name}"));
        let expected = match keyword {
            Keyword::Annotation => "ignored",
            Keyword::Unsupported => "refused",
            Keyword::FalseOnly | Keyword::Identity => "refused",
            _ => "enforced",
        };
        assert!(row.contains(expected), "{name} is {expected}: {row}");
    }
    for format in FORMATS {
        assert!(page.contains(&format!("`{format}`")), "{format}");
    }
}

#[test]
fn alternatives_that_exclude_each_other_may_be_references() {
    let tagged = |kind: &str, name: &str| {
        json!({ "type": "object", "title": kind, "properties": { "kind": { "const": kind, "type": "string" }, (name): { "type": "integer" } },
            "required": ["kind", name], "additionalProperties": false })
    };
    let schema = json!({
        "$defs": { "Cat": tagged("cat", "lives"), "Dog": tagged("dog", "age") }, "type": "object",
        "properties": { "pet": {
            "discriminator": { "mapping": { "cat": "#/$defs/Cat", "dog": "#/$defs/Dog" }, "propertyName": "kind" },
            "oneOf": [{ "$ref": "#/$defs/Cat" }, { "$ref": "#/$defs/Dog" }, { "const": 1 }, { "const": 2 }],
        } },
        "required": ["pet"], "additionalProperties": false,
    });
    let spec = GrammarSpec::JsonSchema { schema: schema.to_string() };
    matches(
        &spec,
        &[r#"{"pet":{"kind":"cat","lives":9}}"#, r#"{"pet":{"kind":"dog","age":3}}"#, r#"{"pet":2}"#],
        &[r#"{"pet":{"kind":"dog","lives":9}}"#, r#"{"pet":{"kind":"cow","age":3}}"#, r#"{"pet":3}"#],
    );
}
