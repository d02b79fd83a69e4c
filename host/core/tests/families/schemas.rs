//! What the grammars make of schemas: bounds, values that cannot be written, and arguments that may be anything.
use std::sync::Arc;

use camshaft_core::family::constraint::{Content, constraint};
use camshaft_core::family::description::ThinkingState;
use camshaft_core::family::detect::names;
use camshaft_core::family::tools::{Tool, ToolChoice, Tools};
use camshaft_core::limits;
use serde_json::{Map, Value, json};

use crate::support::{auto, family, parse, three_tools};
use crate::vocabulary::Vocabulary;

fn tools_of(parameters: Value) -> Arc<Tools> {
    let tool = Tool { name: "f".into(), description: None, parameters: Some(parameters), strict: false };
    Arc::new(Tools::new(vec![tool], &ToolChoice::Required, false).expect("good tools"))
}

/// The grammar of a call of one tool, or why there is none.
fn grammar(name: &str, parameters: Value) -> Result<String, String> {
    let tools = tools_of(parameters);
    let grammar = constraint(family(name), &tools, Content::Text, ThinkingState::Off, &|_| None);
    grammar.map(|grammar| grammar.expect("there are tools")).map_err(|error| error.to_string())
}

/// Whether a grammar takes the whole of a text, in which control tokens are written as such, and ends there.
fn takes(name: &str, tools: &Tools, text: &str) -> bool {
    let vocabulary = Vocabulary::new(family(name).special);
    let mut matcher = vocabulary.matcher(&vocabulary.grammar(family(name), tools, ThinkingState::Off));
    let tokens = vocabulary.tokens(text);
    matcher.try_consume_tokens(&tokens).expect("a state") == tokens.len() && matcher.is_accepting().expect("a state")
}

#[test]
fn regression_definitions_stand_only_where_a_property_refers_to_one() {
    let long = "x".repeat(64 << 10);
    let mut properties: Map<String, Value> =
        (0..500).map(|at| (format!("p{at}"), json!({ "type": "integer" }))).collect();
    properties.insert("last".to_owned(), json!({ "type": "array", "items": { "$ref": "#/$defs/long" } }));
    let schema = json!({ "properties": properties, "$defs": { "long": { "type": "integer", "description": long } } });
    let text = grammar("qwen3-coder", schema).expect("a grammar");
    assert_eq!(text.matches(&long).count(), 1);
}

#[test]
fn regression_definitions_that_many_properties_refer_to_make_no_endless_grammar() {
    let properties: Map<String, Value> =
        (0..100).map(|at| (format!("p{at}"), json!({ "$ref": "#/$defs/long" }))).collect();
    let schema = json!({ "properties": properties, "$defs": { "long": { "description": "x".repeat(8 << 10) } } });
    let error = grammar("qwen3-coder", schema).expect_err("too large");
    assert!(error.contains("more than the maximum of 262144 bytes"), "{error}");
}

/// In a notation of elements each value has a schema of its own, in which the root is elsewhere.
#[test]
fn regression_a_reference_to_the_root_is_one_in_every_notation() {
    let root = json!({
        "properties": { "value": { "type": "integer" }, "children": { "type": "array", "items": { "$ref": "#" } } },
        "required": ["children"],
        "additionalProperties": false,
    });
    let through = json!({
        "properties": { "value": { "type": "integer" }, "children": { "$ref": "#/$defs/nodes" } },
        "required": ["children"],
        "additionalProperties": false,
        "$defs": { "nodes": { "type": "array", "items": { "$ref": "#" } } },
    });
    let elements = |list: &str| {
        format!("<tool_call>\n<function=f>\n<parameter=children>\n{list}\n</parameter>\n</function>\n</tool_call>")
    };
    let json = |list: &str| format!("[TOOL_CALLS]f[ARGS]{{\"children\": {list}}}");
    for schema in [root, through] {
        let tools = tools_of(schema);
        for (list, fits) in
            [("[]", true), ("[{\"value\": 1, \"children\": []}]", true), ("[[]]", false), ("[{}]", false)]
        {
            assert_eq!(takes("qwen3-coder", &tools, &elements(list)), fits, "{list}");
            assert_eq!(takes("mistral-v11", &tools, &json(list)), fits, "{list}");
        }
    }
}

#[test]
fn the_grammar_of_tools_has_256_kib_and_not_one_byte_more() {
    for name in ["hermes", "qwen3-coder", "gemma4"] {
        let schema = |text: String| json!({ "properties": { "a": { "type": "integer", "description": text } } });
        let empty = grammar(name, schema(String::new())).expect("a grammar").len();
        let filled = |bytes: usize| grammar(name, schema("x".repeat(bytes - empty)));
        assert_eq!(filled(limits::GRAMMAR_BYTES).expect("a grammar").len(), limits::GRAMMAR_BYTES, "{name}");
        assert!(filled(limits::GRAMMAR_BYTES + 1).is_err(), "{name}");
    }
}

#[test]
fn regression_values_that_cannot_be_written_are_refused() {
    let check = |name: &str, schema: Value| {
        let error = grammar(name, json!({ "properties": { "a": {}, "key": schema } })).expect_err("no value");
        assert!(error.contains("no value of the argument \"key\""), "{error}");
    };
    check("qwen3-coder", json!({ "type": "string", "enum": [] }));
    check("qwen3-coder", json!({ "type": "string", "enum": [1, null] }));
    check("qwen3-coder", json!({ "type": "string", "const": "a</parameter>b" }));
    check("gemma4", json!({ "type": "string", "enum": [] }));
    check("gemma4", json!({ "type": "array", "items": { "enum": [] } }));
    check("gemma4", json!({ "type": "array", "minItems": 2, "maxItems": 1 }));
    let one = json!({ "properties": { "a": { "type": "string", "enum": ["x", "</parameter>"] } }, "required": ["a"] });
    let call = |value: &str| {
        format!("<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>")
    };
    assert!(takes("qwen3-coder", &tools_of(one.clone()), &call("x")));
    assert!(!takes("qwen3-coder", &tools_of(one), &call("</parameter>")));
}

#[test]
fn lists_whose_items_a_schema_counts_have_1024_and_not_one_more() {
    let list = |min: usize, max: usize| {
        let list = json!({ "type": "array", "items": { "type": "null" }, "minItems": min, "maxItems": max });
        json!({ "properties": { "a": list }, "required": ["a"] })
    };
    assert!(grammar("gemma4", list(1025, 2000)).expect_err("too many").contains("no value of the argument \"a\""));
    let call = |items: usize| format!("<|tool_call>call:f{{a:[{}]}}<tool_call|>", vec!["null"; items].join(","));
    for (min, items, fits) in [(1024, 1024, true), (1024, 1023, false), (0, 1024, true), (0, 1025, false)] {
        assert_eq!(takes("gemma4", &tools_of(list(min, 2000)), &call(items)), fits, "{min} {items}");
    }
}

#[test]
fn braces_follow_schemas_to_a_depth_of_16_and_take_any_value_below() {
    for (lists, followed) in [(14, true), (15, false)] {
        let item = (0..lists)
            .fold(json!({ "type": "integer" }), |items, _| json!({ "type": "array", "items": items, "minItems": 1 }));
        let tools = tools_of(json!({ "properties": { "a": item }, "required": ["a"] }));
        let call = |value: &str| {
            format!("<|tool_call>call:f{{a:{}{value}{}}}<tool_call|>", "[".repeat(lists), "]".repeat(lists))
        };
        assert!(takes("gemma4", &tools, &call("1")), "{lists}");
        assert_eq!(takes("gemma4", &tools, &call("<|\"|>x<|\"|>")), !followed, "{lists}");
    }
}

/// A client's text is never a control token, whatever it looks like.
#[test]
fn regression_listed_values_are_spelled_without_control_tokens() {
    let vocabulary = Vocabulary::new(family("gemma4").special);
    let tools = tools_of(json!({ "properties": { "a": { "enum": ["<|tool_call>", "x"] } }, "required": ["a"] }));
    let grammar = vocabulary.grammar(family("gemma4"), &tools, ThinkingState::Off);
    let bytes = "<|tool_call>".bytes().map(u32::from).collect();
    for (value, taken) in [(bytes, true), (vocabulary.tokens("<|tool_call>"), false)] {
        let mut matcher = vocabulary.matcher(&grammar);
        let tokens: Vec<u32> =
            [vocabulary.tokens("<|tool_call>call:f{a:<|\"|>"), value, vocabulary.tokens("<|\"|>}<tool_call|>")]
                .concat();
        assert_eq!(matcher.try_consume_tokens(&tokens).expect("a state") == tokens.len(), taken);
    }
}

/// Any depth that a grammar takes, the parser takes, too.
#[test]
fn regression_values_of_any_depth_are_generated_and_read() {
    for (name, before, after) in [
        ("gemma4", "<|tool_call>call:f{a:", "}<tool_call|>"),
        ("mistral-v11", "[TOOL_CALLS]f[ARGS]{\"a\": ", "}"),
        ("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=a>\n", "\n</parameter>\n</function>\n</tool_call>"),
    ] {
        let tools = tools_of(json!({ "properties": { "a": {} }, "required": ["a"] }));
        for levels in [127, 128, 129, 1000] {
            let text = format!("{before}{}{}{after}", "[".repeat(levels), "]".repeat(levels));
            assert!(takes(name, &tools, &text), "{name} {levels}");
            let answer = parse(family(name), &tools, ThinkingState::Off, [text.as_str()]);
            assert!(answer.calls.len() == 1 && answer.calls[0].complete, "{name} {levels}: {answer:?}");
        }
    }
}

#[test]
fn regression_a_schema_beside_required_calls_is_not_compiled() {
    let tools = tools_of(json!({}));
    let schema = json!({ "const": "of the content" });
    for name in names() {
        let content = Content::Json(&schema);
        let text = constraint(family(name), &tools, content, ThinkingState::Off, &|_| None);
        assert!(!text.expect("a grammar").expect("calls").contains("of the content"), "{name}");
    }
}

#[test]
fn a_relaxed_tool_loses_what_is_not_supported_and_then_takes_any_object_and_the_others_stay() {
    let tools = Tools::new(three_tools(), &ToolChoice::Auto, true).expect("good tools");
    let unique =
        json!({ "type": "object", "required": ["a"], "properties": { "a": { "items": true, "uniqueItems": true } } });
    let held = json!({ "type": "object", "required": ["a"], "properties": { "a": { "items": true } } });
    assert_eq!(tools_of(unique).relaxed(0).callable()[0].parameters, Some(held));
    let relaxed = tools.relaxed(0).relaxed(0);
    assert_eq!(relaxed.callable()[0].parameters, Some(json!({ "type": "object" })));
    assert_eq!(relaxed.callable()[0].name, tools.callable()[0].name);
    assert_eq!(relaxed.callable()[1..], tools.callable()[1..]);
    assert_eq!((relaxed.required(), relaxed.parallel()), (tools.required(), tools.parallel()));
    assert_eq!(tools.relaxed(3), tools);
    let any = tools_of(json!({ "properties": { "a": { "type": "integer" } } })).relaxed(0).relaxed(0);
    for (name, text) in [
        ("hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": [1]}}\n</tool_call>"),
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=b>\n[1]\n</parameter>\n<parameter=c>\nx\n</parameter>\n</function>\n</tool_call>",
        ),
        ("qwen3-coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>"),
        ("gemma4", "<|tool_call>call:f{b:[1],c:<|\"|>x<|\"|>}<tool_call|>"),
        ("gemma4", "<|tool_call>call:f{}<tool_call|>"),
    ] {
        assert!(takes(name, &any, text), "{name} {text}");
        let answer = parse(family(name), &Arc::new(any.clone()), ThinkingState::Off, [text]);
        assert!(answer.calls.len() == 1 && answer.calls[0].complete, "{name}: {answer:?}");
    }
}

/// Arguments are an object, whatever the schema says of them.
#[test]
fn regression_arguments_in_braces_are_an_object() {
    for schema in [json!({}), json!({ "const": 1 }), json!({ "enum": ["x"] }), json!({ "type": "object" })] {
        let tools = tools_of(schema);
        for value in ["1", "[1]", "<|\"|>x<|\"|>"] {
            assert!(!takes("gemma4", &tools, &format!("<|tool_call>call:f{value}<tool_call|>")), "{tools:?} {value}");
        }
        assert!(takes("gemma4", &tools, "<|tool_call>call:f{b:1}<tool_call|>"), "{tools:?}");
    }
    assert!(!takes(
        "gemma4",
        &tools_of(json!({ "additionalProperties": false })),
        "<|tool_call>call:f{b:1}<tool_call|>"
    ));
}

#[test]
fn text_of_families_without_thinking_calls_and_framing_needs_no_parser() {
    let none = Tools::none();
    for name in names() {
        let expected = !["llama3", "gemma", "functiongemma"].contains(&name);
        assert_eq!(family(name).parses(&none), expected, "{name}");
        assert!(family(name).parses(&auto()), "{name}");
    }
}

/// A call of the only tool with one argument, in a notation of braces or of elements. `quote` stands around texts.
fn call_of(name: &str, value: &str) -> String {
    match name {
        "gemma4" => format!("<|tool_call>call:f{{a:{}}}<tool_call|>", value.replace('\'', "<|\"|>")),
        "functiongemma" => {
            format!("<start_function_call>call:f{{a:{}}}<end_function_call>", value.replace('\'', "<escape>"))
        }
        _ => {
            let value = value.replace('\'', "");
            format!("<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>")
        }
    }
}

fn one_argument(of: Value) -> Value {
    let properties = Map::from_iter([("a".to_owned(), of)]);
    json!({ "properties": properties, "required": ["a"], "additionalProperties": false })
}

#[test]
fn texts_have_as_many_characters_as_their_schema_says_in_every_notation() {
    for name in ["gemma4", "functiongemma", "qwen3-coder"] {
        let check = |schema: Value, text: &str, fits: bool| {
            let tools = tools_of(one_argument(schema.clone()));
            assert_eq!(takes(name, &tools, &call_of(name, &format!("'{text}'"))), fits, "{name} {schema} {text:?}");
        };
        let between = json!({ "type": "string", "minLength": 2, "maxLength": 4 });
        for (text, fits) in [("", false), ("a", false), ("aé", true), ("aé\n😀", true), ("abcde", false)] {
            check(between.clone(), text, fits);
        }
        let most = json!({ "type": "string", "maxLength": 2 });
        for (text, fits) in [("", true), ("ab", true), ("abc", false)] {
            check(most.clone(), text, fits);
        }
        for (text, fits) in [("abc", false), ("abcd", true), ("abcdefgh", true)] {
            check(json!({ "type": "string", "minLength": 4 }), text, fits);
        }
        check(json!({ "type": "string", "maxLength": 0 }), "", true);
        check(json!({ "type": "string", "maxLength": 0 }), "a", false);
        for (min, max) in [(3, 2), (1, 0)] {
            let error = grammar(name, one_argument(json!({ "type": "string", "minLength": min, "maxLength": max })));
            assert!(error.unwrap_err().contains("can write no value of the argument \"a\""), "{name}");
        }
    }
}

#[test]
fn lists_objects_and_alternatives_are_followed_in_braces() {
    for name in ["gemma4", "functiongemma"] {
        let check = |schema: Value, value: &str, fits: bool| {
            let tools = tools_of(one_argument(schema.clone()));
            assert_eq!(takes(name, &tools, &call_of(name, value)), fits, "{name} {schema} {value}");
        };
        let listed = json!({ "enum": [1, "two", [3, ""], { "b": { "c": null } }] });
        for (value, fits) in
            [("1", true), ("'two'", true), ("[3,'']", true), ("{b:{c:null}}", true), ("two", false), ("[3]", false)]
        {
            check(listed.clone(), value, fits);
        }
        let several = json!({ "type": ["integer", "null", "string"], "minimum": 3, "maxLength": 1 });
        for (value, fits) in [("3", true), ("null", true), ("'a'", true), ("2", false), ("'ab'", false)] {
            check(several.clone(), value, fits);
        }
        let either =
            json!({ "anyOf": [{ "type": "boolean" }, { "type": "object", "properties": { "b": { "const": 1 } } }] });
        for (value, fits) in [("true", true), ("{b:1}", true), ("{}", true), ("{b:2}", false), ("1", false)] {
            check(either.clone(), value, fits);
        }
    }
}

#[test]
fn lists_in_braces_have_as_many_items_as_their_schema_says() {
    for name in ["gemma4", "functiongemma"] {
        for (min, max, fitting) in
            [(0, 0, 0..=0), (0, 1, 0..=1), (1, 1, 1..=1), (0, 2, 0..=2), (2, 2, 2..=2), (2, 4, 2..=4)]
        {
            let schema = json!({ "type": "array", "items": { "type": "integer" }, "minItems": min, "maxItems": max });
            let tools = tools_of(one_argument(schema));
            for count in 0..6 {
                let list = format!("[{}]", vec!["7"; count].join(","));
                assert_eq!(
                    takes(name, &tools, &call_of(name, &list)),
                    fitting.contains(&count),
                    "{name} {min} {max} {list}"
                );
            }
        }
    }
}

#[test]
fn a_strict_tool_that_requires_what_it_does_not_name_is_followed_or_refused() {
    let constraint = |name, strict, parameters: &Value| {
        let tool = Tool { name: "f".into(), description: None, parameters: Some(parameters.clone()), strict };
        let tools = Tools::new(vec![tool], &ToolChoice::Required, false).expect("good tools");
        constraint(family(name), &tools, Content::Text, ThinkingState::Off, &|_| None).map(drop)
    };
    let unnamed =
        json!({ "type": "object", "properties": {}, "required": ["x"], "additionalProperties": { "type": "integer" } });
    let alone = json!({ "type": "object", "required": ["x"] });
    let within = one_argument(json!({ "type": "object", "properties": { "b": true }, "required": ["b", "x"] }));
    for parameters in [unnamed, alone, within] {
        for name in ["qwen3-coder", "gemma4", "functiongemma"] {
            assert_eq!(constraint(name, false, &parameters), Ok(()), "{name} {parameters}");
            // A value that is no text is JSON in elements.
            if name != "qwen3-coder" || parameters["properties"].get("a").is_none() {
                let error = constraint(name, true, &parameters).unwrap_err().to_string();
                assert!(error.contains("\"required\""), "{name} {parameters}: {error}");
            }
        }
        assert_eq!(constraint("hermes", true, &parameters), Ok(()), "{parameters}");
    }
}

#[test]
fn a_strict_tool_is_held_to_its_schema_or_refused() {
    let of = |strict, schema: Value| {
        let tool = Tool { name: "f".into(), description: None, parameters: Some(one_argument(schema)), strict };
        Arc::new(Tools::new(vec![tool], &ToolChoice::Required, false).expect("good tools"))
    };
    let constraint =
        |name, tools: &Tools| constraint(family(name), tools, Content::Text, ThinkingState::Off, &|_| None);
    let pattern = json!({ "type": "string", "pattern": "^a+$" });
    let nested = json!({ "type": "array", "items": { "type": "object", "properties": { "b": { "$ref": "#" } } } });
    for (name, schema, keyword, property) in [
        ("qwen3-coder", &pattern, "pattern", "a"),
        ("gemma4", &pattern, "pattern", "a"),
        ("functiongemma", &nested, "$ref", "b"),
    ] {
        let error = constraint(name, &of(true, schema.clone())).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{keyword:?} of the argument {property:?} of the strict tool \"f\"")),
            "{error}"
        );
        assert!(constraint(name, &of(false, schema.clone())).is_ok(), "{name}");
    }
    // JSON is held to more, and what says nothing of values is no obstacle.
    assert!(constraint("hermes", &of(true, pattern)).is_ok());
    let told = json!({ "type": "string", "description": "d", "title": "t", "x-own": 1, "default": "" });
    for name in names() {
        assert!(constraint(name, &of(true, told.clone())).is_ok(), "{name}");
    }
}

#[test]
fn regression_a_long_list_of_types_is_not_followed_once_for_each() {
    let kinds = vec!["x"; 50_000];
    let schema = one_argument(json!({ "type": kinds }));
    assert!(grammar("gemma4", schema).unwrap_err().contains("can write no value"));
    let kinds = vec!["null"; 50_000];
    assert!(grammar("gemma4", one_argument(json!({ "type": kinds }))).unwrap().len() < 4096);
}

#[test]
fn a_strict_tool_may_be_of_several_types_but_not_more() {
    let of = |schema: Value| {
        let tool = Tool { name: "f".into(), description: None, parameters: Some(one_argument(schema)), strict: true };
        let tools = Tools::new(vec![tool], &ToolChoice::Required, false).expect("good tools");
        constraint(family("gemma4"), &tools, Content::Text, ThinkingState::Off, &|_| None).is_ok()
    };
    assert!(of(json!({ "type": ["string", "integer"], "maxLength": 3, "minimum": 1 })));
    assert!(!of(json!({ "type": ["string", "integer"], "pattern": "a" })));
}

#[test]
fn regression_a_propertys_own_definitions_are_none_of_the_roots() {
    let schema = json!({
        "properties": { "a": { "type": "array", "items": { "$ref": "#/$defs/x" }, "$defs": { "x": { "type": "null" } } } },
        "required": ["a"],
        "$defs": { "x": { "const": 1 } },
    });
    let tools = tools_of(schema);
    assert!(takes("qwen3-coder", &tools, &call_of("qwen3-coder", "[1]")));
    assert!(!takes("qwen3-coder", &tools, &call_of("qwen3-coder", "[null]")));
}
