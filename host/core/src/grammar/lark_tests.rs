use serde_json::json;

use super::check;
use crate::grammar::error::GrammarFault;
use crate::grammar::pattern::check_pattern;
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
        ("start: x\nx[max_tokens=3]: /a/", "line 2, column 3: max_tokens= is not supported"),
        ("start: x\nx[stop=\"\"]: /a/", "line 2, column 3: stop= is not supported"),
        ("start: %json { \"not\": {} }", "line 1, column 8: not: keyword not supported"),
        ("start: /a{100001}/", "line 1, column 8: 100001 repetitions, at most 100000"),
        ("start: \"a\"{2,100001}", "line 1, column 14: 100001 repetitions, at most 100000"),
        (
            "%llguidance { \"allow_invalid_utf8\": true }\nstart: \"a\"",
            "line 1, column 1: option \"allow_invalid_utf8\" is not supported; those that are: no_forcing, allow_initial_skip, ignore_once",
        ),
    ] {
        assert_eq!(read(text).unwrap_err(), expected, "{text}");
    }
    assert!(read("start: %json {").unwrap_err().starts_with("line 1, column 8: %json is followed by no JSON"));
}

/// Rules that lead to each other in a chain, and groups within each other.
fn chain(rules: usize) -> String {
    let rules: String = (1..=rules).map(|at| format!("r{at}: r{}\n", at + 1)).collect();
    format!("start: r1\n{rules}")
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
    // The last name is one rule more.
    assert!(read(&chain(limits::GRAMMAR_CHAIN - 1)).is_ok());
    assert!(read(&chain(limits::GRAMMAR_CHAIN)).unwrap_err().ends_with("lies over 192 rules and groups deep"));
    assert!(check_pattern(&"a".repeat(limits::PATTERN_BYTES)).is_ok());
    assert!(check_pattern(&"a".repeat(limits::PATTERN_BYTES + 1)).is_err());
}

#[test]
fn counts_of_patterns_are_found_and_nothing_else_is_one() {
    for pattern in ["a{100001}", "a{1,100001}", "(a){ 100001 }", "a{99999999999999999999999}", "\\\\{100001}"] {
        assert!(check_pattern(pattern).is_err(), "{pattern}");
    }
    for pattern in ["a{100000}", "\\{100001}", "a{,5}", "\\p{Greek}{3}", "{", "a\\", "\\u{41}"] {
        assert!(check_pattern(pattern).is_ok(), "{pattern}");
    }
}

#[test]
fn regression_intersections_of_a_terminal_are_bounded_with_those_of_the_terminals_in_it() {
    let bound = limits::GRAMMAR_INTERSECTIONS;
    let flat = |count: usize| format!("start: T\nT: /a/{}\n", " & /a/".repeat(count));
    assert!(check(&flat(bound), |_| {}).is_ok());
    let error = check(&flat(bound + 1), |_| {}).unwrap_err().to_string();
    assert!(error.contains("terminal \"T\" has 11 intersections (&), at most 10"), "{error}");
    let nested = |inner: usize| format!("start: T\nT: U & U\nU: /a/{}\n", " & /a/".repeat(inner));
    assert!(check(&nested(4), |_| {}).is_ok());
    assert!(check(&nested(5), |_| {}).is_err());
}
