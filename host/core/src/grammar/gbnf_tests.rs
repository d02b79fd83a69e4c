use super::to_lark;
use crate::grammar::GrammarSpec;
use crate::grammar::tests::{check, refused};

#[test]
fn rules_become_rules_or_terminals() {
    let gbnf = "# JSON\nroot ::= object\nobject ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\npair ::= str \":\" ws (str | object)\nstr ::= \"\\\"\" [^\"\\\\\\x00-\\x1F]* \"\\\"\"\nws ::= [ \\t]{0,20}\n";
    let expected = "start: r0\nr0: r1\nr1: \"{\" T2 ( r3 ( \",\" T2 r3)*)? \"}\"\nT2: /[\\x{20}-\\x{20}\\x{9}-\\x{9}]/{0,20}\nr3: T4 \":\" T2 ( T4 | r1)\nT4: \"\\\"\" /[^\\x{22}-\\x{22}\\x{5c}-\\x{5c}\\x{0}-\\x{1f}]/* \"\\\"\"\n";
    assert_eq!(to_lark(gbnf).unwrap(), expected);
}

#[test]
fn a_grammar_whose_rules_do_not_lead_back_is_one_terminal() {
    let lark = to_lark("root ::= [a-z]+ \"end\" | other{2,}\nother ::= . | \"\\u00e9\"").unwrap();
    assert_eq!(lark, "start: T0\nT0: /[\\x{61}-\\x{7a}]/+ \"end\" | T1{2,}\nT1: /(?s:.)/ | \"é\"\n");
}

#[test]
fn alternatives_and_groups_may_be_empty_and_stand_on_several_lines() {
    let gbnf = |text: &str| GrammarSpec::Gbnf { text: text.to_owned() };
    check(&gbnf("root ::= (\n  \"a\" # one\n  |\n) rest* \r\nrest ::= | \"b\" root"), &["", "a", "bab"], &["aa"]);
    check(&gbnf("root ::= x \"!\"\nx ::= () | \"y\" {1 , 2}"), &["!", "y!", "yy!"], &["yyy!"]);
}

#[test]
fn errors_name_line_and_column() {
    for (text, expected) in [
        ("", "no rule is called \"root\""),
        ("root = \"a\"", "line 1, column 6: expected \"::=\", found \"=\""),
        ("root ::= \"a", "line 1, column 12: expected a character, found the end"),
        ("root ::= (\"a\"", "line 1, column 14: expected \")\", found the end"),
        ("root ::= \"a\")", "line 1, column 13: expected the end of the rule, found \")\""),
        ("root ::= x\n", "line 1, column 10: no rule is called \"x\""),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: rule \"root\" was defined before"),
        ("root ::= \"\\q\"", "line 1, column 13: an unknown escape, found \"\"\""),
        ("root ::= \"\\uD800\"", "line 1, column 13: an escape that is no character, found \"D\""),
        ("root ::= \"a\"**", "line 1, column 14: there is nothing to repeat, found \"*\""),
        ("root ::= ( | +)", "line 1, column 14: there is nothing to repeat, found \"+\""),
        ("root ::= \"a\"{,2}", "line 1, column 16: expected a count, found \"}\""),
        ("root ::= <[5]>", "line 1, column 10: tokens are not supported in GBNF; use Lark"),
    ] {
        assert_eq!(to_lark(text).unwrap_err().to_string(), expected, "{text}");
    }
}

#[test]
fn what_the_compiler_refuses_names_no_place_in_another_text() {
    for (text, begins) in [
        ("root ::= [b-a]", "invalid regex "),
        ("root ::= []", "invalid regex "),
        ("root ::= \"a\"{3,2}", "range end must be >= start"),
        ("root ::= \"a\"{9999999999}", "error parsing signed integer"),
    ] {
        let error = refused(GrammarSpec::Gbnf { text: text.to_owned() }).unwrap();
        assert!(error.starts_with(begins), "{text}: {error}");
    }
}
