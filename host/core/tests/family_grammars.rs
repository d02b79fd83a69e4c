//! The families' grammars pass the checks of clients' grammars, and compile for a vocabulary.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]
use std::sync::Arc;

use camshaft_core::family::constraint::{Content, constraint};
use camshaft_core::family::description::{Family, ThinkingState};
use camshaft_core::family::detect::{FamilyName, names};
use camshaft_core::family::tools::{Tool, ToolChoice, Tools};
use camshaft_core::grammar::{Grammar, GrammarSpec, GrammarStore};
use camshaft_core::ids::Token;
use camshaft_core::vocabulary::Vocabulary;
use serde_json::{Value, json};

/// Bytes, the end of text, and a family's control tokens, which have no bytes.
fn store(family: &Family) -> GrammarStore {
    let control = std::iter::repeat_n(Vec::new(), 1 + family.special.len());
    let pieces = (0..=255u8).map(|byte| vec![byte]).chain(control);
    GrammarStore::new(Arc::new(Vocabulary::new(pieces, vec![Token(256)])))
}

fn tools(choice: &ToolChoice) -> Tools {
    let tool = |name: &str, parameters: Option<Value>| Tool {
        name: name.to_owned(),
        description: None,
        parameters,
        strict: false,
    };
    let schema = json!({
        "properties": {
            "city": { "type": "string", "enum": ["Zürich", "a\u{7f}b", "\"q\" \\"] },
            "days": { "type": "array", "items": { "type": "integer", "minimum": 1 }, "minItems": 1, "maxItems": 9 },
            "note": { "type": "string" },
            "tree": { "$ref": "#/$defs/node" },
            "any": {},
        },
        "required": ["city"],
        "$defs": { "node": { "type": "object", "properties": { "next": { "$ref": "#/$defs/node" } } } },
    });
    let tools = vec![tool("get_weather", Some(schema)), tool("get_time", None), tool("run", Some(json!({})))];
    Tools::new(tools, choice, true).expect("good tools")
}

#[test]
fn the_grammars_of_all_families_compile() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] });
    for name in names() {
        let family = name.parse::<FamilyName>().expect("a family").0;
        let store = store(family);
        let control = |text: &str| {
            let at = family.special.iter().position(|special| *special == text)?;
            u32::try_from(257 + at).ok()
        };
        let none = |_: &str| None;
        for content in [Content::Text, Content::Json(&schema)] {
            for choice in [ToolChoice::Auto, ToolChoice::Required, ToolChoice::None] {
                for thinking in [ThinkingState::Off, ThinkingState::Possible, ThinkingState::Open] {
                    for token in [&control as &dyn Fn(&str) -> Option<u32>, &none] {
                        let text = constraint(family, &tools(&choice), content, thinking, token).expect("a grammar");
                        let Some(text) = text else { continue };
                        let compiled = store.compile(&Grammar::new(GrammarSpec::Lark { text: text.clone() }));
                        assert_eq!(compiled.map(drop), Ok(()), "{name} {choice:?} {thinking:?} {content:?}\n{text}");
                    }
                }
            }
        }
    }
}

/// What the notation says of the spacing of JSON holds where the grammar is compiled, too.
#[test]
fn regression_json_in_elements_is_on_one_line() {
    let family = "qwen3-coder".parse::<FamilyName>().expect("a family").0;
    let schema =
        json!({ "properties": { "a": { "type": "array", "items": { "type": "integer" } } }, "required": ["a"] });
    let tool = Tool { name: "f".to_owned(), description: None, parameters: Some(schema), strict: true };
    let tools = Tools::new(vec![tool], &ToolChoice::Required, false).expect("good tools");
    let text =
        constraint(family, &tools, Content::Text, ThinkingState::Off, &|_| None).expect("a grammar").expect("tools");
    let (store, grammar) = (store(family), Grammar::new(GrammarSpec::Lark { text }));
    for (value, fits) in [("[1, 2]", true), ("[1,\n 2]", false), ("[ 1]", false)] {
        let text =
            format!("<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>");
        let tokens: Vec<Token> = text.bytes().map(|byte| Token(u32::from(byte))).collect();
        let mut matcher = store.matcher(&grammar).expect("it compiles");
        assert_eq!(matcher.allowed(&tokens) == tokens.len(), fits, "{value}");
    }
}
