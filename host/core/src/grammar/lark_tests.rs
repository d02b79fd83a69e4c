use serde_json::json;

use super::check;
use crate::grammar::error::GrammarFault;
use crate::limits;

fn read(text: &str) -> Result<String, String> {
    check(text, |schema| schema["dressed"] = json!(1)).map_err(|error| error.to_string())
}

#[test]
fn a_grammar_stays_as_it_is_but_for_its_schemas() {
    let text = "// a \"comment (\n%ignore /[ \\/\\n(]+/\nstart: NAME \"(\" (word | <[5-9]>)* -> x\nNAME: /[a-z]/i # (((\nword: %json { \"type\": \"null\", \"title\": \"t\" }\n  | \"é\"";
    assert_eq!(
        read(text).unwrap(),
        text.replace("%json { \"type\": \"null\", \"title\": \"t\" }", "%json {\"type\":\"null\",\"dressed\":1}")
    );
}

#[test]
fn a_schema_may_say_how_its_json_is_spaced_and_nothing_else_to_the_compiler() {
    let of = |options: &str| read(&format!("start: %json {{\"type\":\"null\",\"x-guidance\":{options}}}")).unwrap();
    let spaced = "{\"whitespace_flexible\":false,\"item_separator\":\", \"}";
    assert!(of(spaced).contains(&format!("\"x-guidance\":{spaced}")), "{}", of(spaced));
    let more = of("{\"whitespace_flexible\":false,\"lenient\":true,\"key_separator\":[1]}");
    assert!(more.contains("\"x-guidance\":{\"whitespace_flexible\":false}"), "{more}");
    assert!(!of("{\"lenient\":true}").contains("x-guidance") && !of("1").contains("x-guidance"));
}

#[test]
fn what_is_not_supported_is_named_with_line_and_column() {
    for (text, expected) in [
        ("start: \"a\n", "line 1, column 8: a string that does not end, or an unknown escape"),
        ("start: /a", "line 1, column 8: a pattern that does not end"),
        ("start: \"a\"\n  | $", "line 2, column 5: no word begins with \"$\""),
        ("start: (\"a\"", "line 1, column 12: a bracket is not closed"),
        ("start: <eos>", "line 1, column 8: <eos>: special tokens are named by number, as <[128000]>"),
        ("start: @other", "line 1, column 8: references to other grammars are not supported"),
        ("start: %lark { start: \"a\" }", "line 1, column 8: %lark is not supported"),
        ("start: x\nx[max_tokens=3]: /a/", "line 2, column 3: max_tokens is not supported"),
        ("start: x\nx[lazy, capture]: /a/", "line 2, column 9: capture is not supported"),
        ("start: x\nx[stop=\"\"]: /a/", "line 2, column 3: stop is not supported"),
        ("start: %json { \"not\": {} }", "line 1, column 8: not: keyword not supported"),
        (
            "%llguidance { \"allow_invalid_utf8\": true }\nstart: \"a\"",
            "line 1, column 1: option \"allow_invalid_utf8\" is not supported; those that are: no_forcing, allow_initial_skip, ignore_once",
        ),
    ] {
        assert_eq!(read(text).unwrap_err(), expected, "{text}");
    }
    assert!(read("start: %json {").unwrap_err().starts_with("line 1, column 8: %json is followed by no JSON"));
}

fn groups(groups: usize) -> String {
    format!("start: {}\"a\"{}", "(".repeat(groups), ")".repeat(groups))
}

#[test]
fn every_bound_holds_at_it_and_not_one_past_it() {
    let text = |bytes: usize| format!("start: \"a\"\n//{}", "x".repeat(bytes - 13));
    assert!(read(&text(limits::GRAMMAR_BYTES)).is_ok());
    assert_eq!(read(&text(limits::GRAMMAR_BYTES + 1)).unwrap_err(), "a grammar of 262145 bytes, at most 262144");
    assert!(read(&groups(limits::GRAMMAR_NESTING)).is_ok());
    let error = check(&groups(limits::GRAMMAR_NESTING + 1), |_| ()).unwrap_err();
    assert_eq!(
        (error.fault, error.reason.as_str()),
        (GrammarFault::TooLarge, "line 1, column 56: over 48 groups within each other")
    );
    assert!(read(&format!("start: {}X\nX: \"a\"", "~".repeat(limits::GRAMMAR_NESTING))).is_ok());
    assert!(read(&format!("start: {}X\nX: \"a\"", "~".repeat(limits::GRAMMAR_NESTING + 1))).is_err());
}
