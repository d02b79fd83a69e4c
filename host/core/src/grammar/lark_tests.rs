use super::check;
use crate::grammar::GrammarSpec;
use crate::grammar::tests::refused;

fn read(text: &str) -> Result<String, String> {
    check(text).map_err(|error| error.to_string())
}

#[test]
fn a_grammar_stays_as_it_is_but_for_its_schemas() {
    let text = "// a \"comment (\n%ignore /[ \\/\\n(@]+/\nstart: NAME \"\\\\\" \"@(\" [capture] (word | <[5-9]>)* -> x\nNAME: /[a-z]/i # (((\nword: %json { \"type\": \"null\", \"title\": \"t\" }\n  | \"é\"";
    let read = read(text).unwrap();
    let (before, after) = read.split_once("%json {\"type\":\"null\",\"x-guidance\":{\"whitespace_pattern\":").unwrap();
    assert_eq!(before, text.split_once("%json").unwrap().0);
    assert!(after.ends_with("}}\n  | \"é\""), "{after}");
}

#[test]
fn what_is_not_supported_is_named_with_line_and_column() {
    for (text, expected) in [
        ("start: <eos>", "line 1, column 8: <eos>: special tokens are named by number, as <[128000]>"),
        ("start: @other", "line 1, column 8: references to other grammars are not supported"),
        ("start: %lark { start: \"a\" }", "line 1, column 8: %lark is not supported"),
        ("start: x\nx[max_tokens=3]: /a/", "line 2, column 2: max_tokens is not supported"),
        ("start: x\nx[lazy, capture]: /a/", "line 2, column 2: capture is not supported"),
        ("start: x\nx [ stop = \"\"]: /a/", "line 2, column 3: stop is not supported"),
        ("start: x\nx[temperature=0.5]: /a/", "line 2, column 2: temperature is not supported"),
        ("start: \"é\" %json { \"not\": {} }", "line 1, column 12: not: keyword not supported"),
        ("start: %json {", "line 1, column 8: %json is followed by no JSON"),
        (
            "%llguidance { \"allow_invalid_utf8\": true }\nstart: \"a\"",
            "line 1, column 1: option \"allow_invalid_utf8\" is not supported; those that are: no_forcing, allow_initial_skip, ignore_once",
        ),
    ] {
        assert_eq!(read(text).unwrap_err(), expected, "{text}");
    }
}

#[test]
fn what_the_compiler_refuses_has_line_and_column_too() {
    for (text, begins) in [
        ("start: \"a\n", "line 1, column 10: lexer error"),
        ("start: /a", "line 2, column 1: lexer error"),
        ("start: \"a\"\n  | $", "line 2, column 5: lexer error"),
        ("start: (\"a\"", "line 1, column 12: "),
        ("start: \"a\"\nx: ]", "line 2, column 4: "),
        ("start: \"a\" other", "line 1, column 8: unknown name: \"other\""),
    ] {
        let error = refused(GrammarSpec::Lark { text: text.to_owned() }).unwrap();
        assert!(error.starts_with(begins), "{text}: {error}");
    }
}

#[test]
fn the_compiler_bounds_groups_within_each_other() {
    let deep = |name: &str, groups: usize| format!("{name} {}\"a\"{}", "(".repeat(groups), ")".repeat(groups));
    let kinds = |groups: usize| {
        [GrammarSpec::Lark { text: deep("start:", groups) }, GrammarSpec::Gbnf { text: deep("root ::=", groups) }]
    };
    assert!(kinds(28).into_iter().all(|spec| refused(spec).is_none()));
    for spec in kinds(29).into_iter().chain(kinds(100_000)) {
        assert!(refused(spec).unwrap().contains("lark grammar too deeply nested"));
    }
}
