use serde_json::{Value, json};

use super::{FORMATS, KEYWORDS, Keyword, check, loosened, parse, with_spacing};
use crate::grammar::GrammarSpec;
use crate::grammar::error::GrammarFault;
use crate::grammar::tests::{check as matches, refused};
use crate::limits;

/// What the compiler is given, or the error.
fn read(schema: &Value) -> Result<Value, String> {
    check(schema).map_err(|error| error.to_string())
}

fn compile(schema: &Value) -> Result<(), String> {
    refused(GrammarSpec::JsonSchema { schema: schema.to_string() }).map_or(Ok(()), Err)
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
        let taken = check(&schema).unwrap_or_else(|error| panic!("{schema}: {error}"));
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
        assert_eq!(check(&schema).unwrap_err().fault, GrammarFault::Unsupported, "{schema}");
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
    assert_eq!(loosened(&json!({ "$ref": "#/$defs/none" })), None);
}

#[test]
fn what_is_no_schema_is_refused_with_its_place() {
    for text in ["", "{"] {
        let error = parse(text).unwrap_err();
        assert!(error.reason.starts_with("the schema is no JSON") && error.fault == GrammarFault::Invalid, "{error}");
    }
    refuses(
        &json!({ "items": { "$ref": "#/$defs/none" } }),
        "items.$ref: \"#/$defs/none\" refers to nothing in this schema",
    );
    refuses(&json!({ "$ref": 3 }), "$ref: must be a string");
    refuses(&json!({ "properties": { "a": 3 } }), "properties.a: a schema is an object, true or false");
    assert_eq!(loosened(&json!({ "properties": { "a": 3 } })), None);
    // The rest is for the compiler to say.
    for (schema, begins) in [
        (json!({ "items": { "type": "text" } }), "items: Invalid type: text"),
        (json!({ "properties": 3 }), "properties must be an object"),
        (json!({ "anyOf": [] }), "Unsatisfiable schema: anyOf is empty"),
        (json!({ "enum": [] }), "Unsatisfiable schema: anyOf is empty"),
        (json!({ "required": true }), "Expected array for 'required', got true"),
        (json!({ "minItems": -1 }), "Expected positive integer for 'minItems', got -1"),
        (json!({ "minItems": 1.5 }), "Expected positive integer for 'minItems', got 1.5"),
        (json!(false), "Unsatisfiable schema: schema is false"),
    ] {
        let error = compile(&schema).unwrap_err();
        assert!(error.starts_with(begins), "{schema}: {error}");
    }
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
    for schema in nested(limits::SCHEMA_DEPTH) {
        assert!(read(&schema).is_ok(), "{schema}");
    }
    for schema in nested(limits::SCHEMA_DEPTH + 1) {
        assert!(read(&schema).unwrap_err().ends_with("over 48 schemas within each other"), "{schema}");
    }

    // The root counts, too.
    let list = |count: usize| json!({ "prefixItems": vec![true; count] });
    assert!(read(&list(limits::SCHEMA_NODES - 1)).is_ok());
    refuses(
        &list(limits::SCHEMA_NODES),
        &format!("prefixItems[{}]: over 10000 schemas in all", limits::SCHEMA_NODES - 1),
    );

    for (value, ok) in [
        (json!(99_999_999), true),
        (json!(100_000_000), false),
        (json!(0.000_001), true),
        (json!(0.000_000_1), false),
        (json!(12.345_678), true),
        (json!(123.456_789), false),
    ] {
        assert_eq!(read(&json!({ "multipleOf": value })).is_ok(), ok, "{value}");
    }
}

#[test]
fn a_bound_that_is_looser_than_any_number_that_can_be_written_is_cut() {
    let far = json!({ "minimum": i64::MIN, "exclusiveMaximum": f64::MAX });
    let narrower = json!({ "minimum": -limits::SCHEMA_BOUND, "exclusiveMaximum": limits::SCHEMA_BOUND });
    assert_eq!(read(&far).unwrap(), narrower);
    let at = json!({ "exclusiveMinimum": -limits::SCHEMA_BOUND, "maximum": 1e18 });
    assert_eq!(read(&at).unwrap(), at);
    let narrow = json!({ "type": "integer", "minimum": i64::MIN, "maximum": u64::MAX });
    let spec = GrammarSpec::JsonSchema { schema: narrow.to_string() };
    matches(&spec, &["-1000000000000000000", "0", "1000000000000000000"], &["1000000000000000001"]);
    assert!(compile(&json!({ "minimum": 1e19 })).is_err(), "it is not loosened");
}

#[test]
fn a_count_may_be_written_with_a_point() {
    assert_eq!(read(&json!({ "maxItems": 3.0, "minItems": 1.5 })).unwrap(), json!({ "maxItems": 3, "minItems": 1.5 }));
}

#[test]
fn a_schema_within_a_grammar_may_say_how_its_json_is_spaced_and_nothing_else_to_the_compiler() {
    let spaced = |options: Value| with_spacing(json!({}), &json!({ "x-guidance": options }))["x-guidance"].clone();
    let own = json!({ "whitespace_flexible": false, "item_separator": ", " });
    assert_eq!(spaced(own.clone()), own);
    assert_eq!(spaced(json!({ "whitespace_flexible": true, "lenient": true })), json!({ "whitespace_flexible": true }));
    for without in [json!({ "lenient": true }), json!(1)] {
        let keys: Vec<_> = spaced(without).as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["whitespace_pattern"]);
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
    for (name, keyword) in KEYWORDS.iter().flat_map(|(keyword, names)| names.iter().map(move |name| (name, keyword))) {
        let row = row(name).unwrap_or_else(|| panic!("no row has {name}"));
        let expected = match keyword {
            Keyword::Annotation => "ignored",
            Keyword::Refused => "refused",
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
            "oneOf": [{ "$ref": "#/$defs/Cat" }, { "$ref": "#/$defs/Dog" }, { "const": "x" }, { "const": "y" }],
        } },
        "required": ["pet"], "additionalProperties": false,
    });
    let spec = GrammarSpec::JsonSchema { schema: schema.to_string() };
    matches(
        &spec,
        &[r#"{"pet":{"kind":"cat","lives":9}}"#, r#"{"pet":{"kind":"dog","age":3}}"#, r#"{"pet":"y"}"#],
        &[r#"{"pet":{"kind":"dog","lives":9}}"#, r#"{"pet":{"kind":"cow","age":3}}"#, r#"{"pet":"z"}"#],
    );
}

/// Schemas of which each refers to the next from within, as trees of expressions do.
fn exclusive_schemas() -> Value {
    json!({
        "cat": { "type": "object", "properties": { "kind": { "const": "cat" } }, "required": ["kind"] },
        "dog": { "type": "object", "properties": { "kind": { "enum": ["dog", "puppy"] } }, "required": ["kind"] },
        "loose": { "type": "object", "properties": { "kind": { "const": "loose" } } },
        "text": { "type": "string" },
        "again": { "$ref": "#/$defs/again" },
        "alias": { "$ref": "#/$defs/dog", "title": "Alias" },
        "tree": { "oneOf": [{ "$ref": "#/$defs/leaf" }, { "$ref": "#/$defs/fork" }] },
        "leaf": { "type": "object", "properties": { "kind": { "const": "leaf" } }, "required": ["kind"] },
        "fork": {
            "type": "object", "required": ["kind", "left"], "additionalProperties": false,
            "properties": { "kind": { "const": "fork" }, "left": { "$ref": "#/$defs/tree" } },
        },
    })
}

#[test]
fn one_of_is_taken_where_no_value_matches_two_and_refused_elsewhere() {
    let reference = |name: &str| json!({ "$ref": format!("#/$defs/{name}") });
    let closed = |name: &str| json!({ "type": "object", "properties": { (name): true }, "required": [name], "additionalProperties": false });
    let nested = |kind: &str| json!({ "type": "object", "required": ["in"], "properties": { "in": { "type": "object", "required": ["k"], "properties": { "k": { "const": kind } } } } });
    let compiled = |list: &Value| {
        compile(&json!({ "type": "object", "properties": { "a": { "oneOf": list } }, "$defs": exclusive_schemas() }))
    };
    for list in [
        json!([reference("cat"), reference("dog")]),
        json!([reference("cat"), reference("loose")]),
        json!([reference("cat"), reference("alias")]),
        json!([reference("cat"), reference("dog"), reference("text"), { "type": "null" }]),
        json!([reference("tree"), { "oneOf": [reference("cat"), reference("dog")] }]),
        json!([{ "allOf": [reference("cat"), { "maxProperties": 3 }] }, reference("dog")]),
        json!([{ "type": "integer" }, { "type": ["string", "null"] }, { "const": true }]),
        json!([closed("a"), closed("b")]),
        json!([nested("x"), nested("y")]),
        json!([{ "anyOf": [{ "type": "null" }, reference("dog")] }, reference("text")]),
    ] {
        assert_eq!(compiled(&list), Ok(()), "{list}");
    }
    for list in [
        json!([reference("cat"), reference("cat")]),
        json!([reference("loose"), reference("loose")]),
        json!([reference("again"), reference("text")]),
        json!([{ "type": "integer" }, { "type": "number" }]),
        json!([{ "const": 1 }, { "const": 2 }]),
        json!([{ "enum": ["a", "b"] }, { "enum": ["b", "c"] }]),
        json!([{ "type": "string" }, { "maxLength": 3 }]),
        json!([true, { "type": "string" }]),
    ] {
        assert!(compiled(&list).is_err(), "{list}");
    }
    let tree = json!({ "$ref": "#/$defs/tree", "$defs": exclusive_schemas() });
    matches(
        &GrammarSpec::JsonSchema { schema: tree.to_string() },
        &[r#"{"kind":"leaf"}"#, r#"{"kind":"fork","left":{"kind":"fork","left":{"kind":"leaf"}}}"#],
        &[r#"{"kind":"fork"}"#, r#"{"kind":"fork","left":{"kind":"cat"}}"#],
    );
}

#[test]
fn alternatives_that_refer_to_each_other_are_bounded() {
    let mut defs: serde_json::Map<String, Value> = (0..40)
        .map(|at| {
            let next = json!({ "$ref": format!("#/$defs/d{}", at + 1) });
            (format!("d{at}"), json!({ "oneOf": [next, next] }))
        })
        .collect();
    defs.insert("d40".to_owned(), json!({ "type": "null" }));
    let error = read(&json!({ "$ref": "#/$defs/d0", "$defs": defs })).unwrap_err();
    assert!(error.ends_with("over 10000 schemas in all"), "{error}");
    let circle = json!({ "oneOf": [{ "$ref": "#" }, { "type": "null" }] });
    assert!(read(&circle).unwrap_err().ends_with("over 48 schemas within each other"));
}
