use super::to_lark;
use crate::limits;

#[test]
fn rules_become_rules_or_terminals() {
    let gbnf = "# JSON\nroot ::= object\nobject ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\npair ::= str \":\" ws (str | object)\nstr ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]* \"\\\"\"\nws ::= [ \\t\\n]{0,20}\n";
    let expected = "start: r0\nr0: r1\nr1: \"{\" T2 (r3 (\",\" T2 r3)*)? \"}\"\nT2: (/[\\x{20}\\x{9}\\x{a}]/){0,20}\nr3: T4 \":\" T2 (T4 | r1)\nT4: \"\\\"\" (/[^\\x{22}\\x{5c}\\x{0}-\\x{1f}]/)* \"\\\"\"\n";
    assert_eq!(to_lark(gbnf).unwrap(), expected);
}

#[test]
fn a_grammar_whose_rules_do_not_lead_back_is_one_terminal() {
    let lark = to_lark("root ::= [a-z]+ \"end\" | other{2,}\nother ::= . | \"\\u00e9\"").unwrap();
    assert_eq!(lark, "start: T0\nT0: ((/[\\x{61}-\\x{7a}]/)+ \"end\") | (T1){2,}\nT1: /(?s:.)/ | \"é\"\n");
}

#[test]
fn errors_name_line_and_column() {
    for (text, expected) in [
        ("", "no rule is called \"root\""),
        ("root = \"a\"", "line 1, column 6: expected \"::=\", found \"=\""),
        ("root ::= \"a", "line 1, column 12: expected a character, found the end"),
        ("root ::= (\"a\"", "line 1, column 14: expected \")\", found the end"),
        ("root ::= \"a\")", "line 1, column 13: expected the end of the rule, found \")\""),
        ("root ::= x\n", "line 1, column 11: no rule is called \"x\""),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule \"root\" was defined before"),
        ("root ::= [b-a]", "line 1, column 14: a range whose end is before its beginning, found \"]\""),
        ("root ::= \"\\q\"", "line 1, column 13: an unknown escape, found \"\"\""),
        ("root ::= \"\\uD800\"", "line 1, column 13: an escape that is no character, found \"D\""),
        ("root ::= \"a\"**", "line 1, column 14: a repetition follows another one, found \"*\""),
        ("root ::= \"a\"{3,2}", "line 1, column 18: the largest count is below the smallest, found the end"),
        ("root ::= \"a\"{100001}", "line 1, column 20: 100001 repetitions, at most 100000"),
        ("root ::= <[5]>", "line 1, column 10: tokens are not supported in GBNF; use Lark"),
    ] {
        assert_eq!(to_lark(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn every_bound_holds_at_it_and_not_one_past_it() {
    let groups = |n: usize| format!("root ::= {}\"a\"{}", "(".repeat(n), ")".repeat(n));
    assert!(to_lark(&groups(limits::GRAMMAR_NESTING)).is_ok());
    assert!(to_lark(&groups(limits::GRAMMAR_NESTING + 1)).is_err());
    let long = |bytes: usize| format!("root ::= \"a\"\n#{}", "x".repeat(bytes - 14));
    assert!(to_lark(&long(limits::GRAMMAR_BYTES)).is_ok());
    assert!(to_lark(&long(limits::GRAMMAR_BYTES + 1)).is_err());
    assert!(to_lark("root ::= \"a\"{100000}").is_ok());
}
