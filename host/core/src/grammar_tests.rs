//! What is supported of each kind of grammar, and what becomes of grammars that are made to harm.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::ids::Token;
use crate::limits;
use crate::vocabulary::Vocabulary;

fn store() -> GrammarStore {
    let pieces = (0..=255u8).map(|byte| vec![byte]).chain([Vec::new()]);
    GrammarStore::new(Arc::new(Vocabulary::new(pieces, vec![Token(256)])))
}

/// Whether a text matches a grammar as a whole.
fn matches(store: &GrammarStore, spec: &GrammarSpec, text: &str) -> bool {
    let mut matcher = store.matcher(&Grammar::new(spec.clone())).unwrap_or_else(|error| panic!("{error}: {spec:?}"));
    for byte in text.bytes() {
        if !matcher.mask().is_ok_and(|mask| mask.allows(Token(byte.into())))
            || matcher.accept(Token(byte.into())).is_err()
        {
            return false;
        }
    }
    matcher.mask().is_ok_and(|mask| mask.allows(Token(256)))
}

pub(super) fn check(spec: &GrammarSpec, yes: &[&str], no: &[&str]) {
    let store = store();
    for (texts, expected) in [(yes, true), (no, false)] {
        for text in texts {
            assert_eq!(matches(&store, spec, text), expected, "{text:?} of {spec:?}");
        }
    }
}

fn check_schema(schema: &Value, yes: &[&str], no: &[&str]) {
    check(&GrammarSpec::JsonSchema { schema: schema.to_string() }, yes, no);
}

/// Why a grammar is refused, if it is.
pub(super) fn refused(spec: GrammarSpec) -> Option<String> {
    store().compile(&Grammar::new(spec)).err().map(|error| error.to_string())
}

fn refuses(spec: GrammarSpec) -> String {
    refused(spec).unwrap()
}

fn refuses_schema(schema: &Value) -> String {
    refuses(GrammarSpec::JsonSchema { schema: schema.to_string() })
}

#[test]
fn json_schema_feature_by_feature() {
    check_schema(&json!({ "type": "boolean" }), &["true", "false"], &["null", "1", " true"]);
    check_schema(&json!({ "type": ["string", "null"] }), &["null", "\"x\""], &["1", "x"]);
    check_schema(&json!({ "enum": [1, "a", null, [1, {}]] }), &["1", "\"a\"", "null", "[1, {}]"], &["2", "\"b\""]);
    check_schema(&json!({ "const": { "a": "b" } }), &["{\"a\":\"b\"}", "{ \"a\": \"b\" }"], &["{}", "{\"a\":\"c\"}"]);
    check_schema(&json!({ "type": "integer" }), &["0", "-12", "12345678901234567890"], &["1.5", "01", "--1"]);
    check_schema(&json!({ "type": "number" }), &["0", "-1.5", "2e10"], &["1.", ".5"]);
    check_schema(&json!({ "type": "integer", "minimum": 3, "maximum": 120 }), &["3", "99", "120"], &["2", "121", "-5"]);
    check_schema(
        &json!({ "type": "number", "exclusiveMinimum": 0, "maximum": 1 }),
        &["0.1", "1", "1.0"],
        &["0", "1.01"],
    );
    check_schema(&json!({ "type": "integer", "multipleOf": 7 }), &["0", "14", "-21"], &["13"]);
    check_schema(&json!({ "type": "string" }), &["\"\"", "\"é\\n\\\"\""], &["\"\n\"", "\"\\x\""]);
    check_schema(
        &json!({ "type": "string", "minLength": 2, "maxLength": 3 }),
        &["\"ab\"", "\"äöü\""],
        &["\"a\"", "\"abcd\""],
    );
    check_schema(&json!({ "type": "string", "pattern": "^a\\d+$" }), &["\"a1\""], &["\"a\"", "\"ba1\""]);
    check_schema(&json!({ "type": "string", "pattern": "b" }), &["\"abc\""], &["\"ac\""]);
    for (format, yes, no) in [
        ("date-time", "2024-02-29T10:00:00Z", "2024-13-01T10:00:00Z"),
        ("time", "23:59:60+01:00", "24:00:00Z"),
        ("date", "2024-12-31", "2024-12-32"),
        ("duration", "P1DT2H", "1D"),
        ("email", "a@example.com", "a.example.com"),
        ("hostname", "example.com", "-example"),
        ("ipv4", "127.0.0.1", "256.0.0.1"),
        ("ipv6", "::1", "::g"),
        ("uuid", "123e4567-e89b-12d3-a456-426614174000", "123e4567"),
        ("uri", "https://example.com/a?b#c", "example"),
    ] {
        let quoted = |text: &str| format!("\"{text}\"");
        check_schema(&json!({ "type": "string", "format": format }), &[&quoted(yes)], &[&quoted(no)]);
    }
    check_schema(
        &json!({ "type": "array", "items": { "type": "null" } }),
        &["[]", "[null , null]"],
        &["[1]", "[null,]"],
    );
    check_schema(
        &json!({ "type": "array", "items": { "type": "null" }, "minItems": 1, "maxItems": 2 }),
        &["[null]"],
        &["[]", "[null,null,null]"],
    );
    check_schema(
        &json!({ "prefixItems": [{ "const": 1 }], "items": false, "type": "array" }),
        &["[]", "[1]"],
        &["[1,2]", "[2]"],
    );
    check_schema(
        &json!({ "items": [{ "const": 1 }], "additionalItems": { "const": 2 }, "type": "array" }),
        &["[1,2,2]"],
        &["[2]"],
    );
}

#[test]
fn objects_of_json_schema_feature_by_feature() {
    let point = json!({ "type": "object", "properties": { "x": { "type": "null" }, "y": { "type": "null" } }, "required": ["y"] });
    check_schema(
        &point,
        &["{\"y\":null}", "{\"x\":null,\"y\":null}", "{\"y\":null,\"z\":[1]}"],
        &["{}", "{\"x\":null}", "{\"y\":null,\"x\":null}"],
    );
    let mut closed = point;
    closed["additionalProperties"] = json!(false);
    check_schema(&closed, &["{\"y\":null}"], &["{\"y\":null,\"z\":1}"]);
    check_schema(
        &json!({ "type": "object", "additionalProperties": { "type": "null" }, "minProperties": 1, "maxProperties": 2 }),
        &["{\"a\":null}", "{\"a\":null,\"b\":null}"],
        &["{}", "{\"a\":1}", "{\"a\":null,\"b\":null,\"c\":null}"],
    );
    check_schema(
        &json!({ "type": "object", "patternProperties": { "^n": { "const": 1 }, "^s": { "const": "s" } }, "additionalProperties": false }),
        &["{}", "{\"n1\":1,\"sx\":\"s\"}"],
        &["{\"n1\":\"s\"}", "{\"a\":1}"],
    );
    check(&GrammarSpec::JsonObject, &["{}", "{\"a\": [1, {\"b\": null}]}"], &["[]", "1", ""]);
}

#[test]
fn combinations_and_references_of_json_schema() {
    check_schema(&json!({ "anyOf": [{ "const": 1 }, { "type": "null" }] }), &["1", "null"], &["2"]);
    check_schema(&json!({ "oneOf": [{ "type": "string" }, { "type": "null" }] }), &["\"\"", "null"], &["1"]);
    check_schema(&json!({ "allOf": [{ "type": "integer", "minimum": 3 }, { "maximum": 5 }] }), &["4"], &["2", "6"]);
    check_schema(&json!({ "type": "integer", "anyOf": [{ "minimum": 9 }, { "maximum": 1 }] }), &["9", "0"], &["5"]);
    let tree = json!({
        "$ref": "#/$defs/node",
        "$defs": { "node": {
            "type": "object", "additionalProperties": false, "required": ["value"],
            "properties": { "value": { "type": "integer" }, "children": { "type": "array", "items": { "$ref": "#/$defs/node" } } },
        } },
    });
    check_schema(
        &tree,
        &["{\"value\":1}", "{\"value\":1,\"children\":[{\"value\":2,\"children\":[]}]}"],
        &["{\"value\":1,\"children\":[1]}"],
    );
    let linked = json!({ "type": "object", "properties": { "next": { "anyOf": [{ "$ref": "#" }, { "type": "null" }] } }, "additionalProperties": false });
    check_schema(&linked, &["{\"next\":{\"next\":null}}", "{}"], &["{\"next\":1}"]);
    check_schema(&json!(true), &["1", "{\"a\":[]}"], &["", "{"]);
    check_schema(&json!({}), &["1", "[null]"], &["x"]);
}

#[test]
fn whitespace_is_free_between_parts_and_bounded() {
    let list = json!({ "type": "array", "items": { "const": 1 } });
    let spaces = |count: usize| format!("[\n{}1]", " ".repeat(count));
    check_schema(
        &list,
        &["[1,1]", "[\n\t 1 ,\r\n1\n]", "[ 1 , 1 ]", &spaces(limits::JSON_INDENT)],
        &[" [1]", "[1] ", "[  1,1]", "[\n\n1,1]", &spaces(limits::JSON_INDENT + 1)],
    );
}

#[test]
fn what_the_compiler_refuses_is_named_with_the_innermost_schema() {
    let lax = json!({ "properties": { "a": { "items": { "oneOf": [{ "type": "integer" }, { "minimum": 3 }] } } } });
    let error = refuses_schema(&lax);
    assert!(error.starts_with("properties.a.items: oneOf is not supported where"), "{error}");
    let error = refuses_schema(
        &json!({ "type": "object", "properties": { "a": { "type": "integer", "minimum": 5, "maximum": 3 } }, "required": ["a"] }),
    );
    assert!(error.starts_with("properties.a: ") && error.contains("nsatisfiable"), "{error}");
    let error = refuses_schema(&json!({ "type": "string", "pattern": "(?=a)b" }));
    assert!(error.contains("error: look-around"), "{error}");
    let error = refuses_schema(&json!({ "type": "object", "properties": { "a": {}, "b": {} }, "minProperties": 2 }));
    assert!(error.contains("min/maxProperties only supported"), "{error}");
}

#[test]
fn other_grammars_match_what_they_say() {
    let regex = |pattern: &str| GrammarSpec::Regex { pattern: pattern.to_owned() };
    check(&regex("[a-c]+/\\d"), &["abc/7"], &["", "abc/", "abc/77", "/7"]);
    check(&regex("(?i)yes|no"), &["YES", "no"], &["maybe"]);
    let choice = |texts: &[&str]| GrammarSpec::Choice { texts: texts.iter().map(|text| (*text).to_owned()).collect() };
    check(&choice(&["a", "ab", "\"\\\n\u{7f}", "é"]), &["a", "ab", "\"\\\n\u{7f}", "é"], &["", "b", "aba"]);
    let lark = |text: &str| GrammarSpec::Lark { text: text.to_owned() };
    check(
        &lark(
            "start: \"call \" NAME \"(\" arguments? \")\"\narguments: %json { \"type\": \"integer\" } (\",\" %json { \"enum\": [\"x\"] })?\nNAME: /[a-z]+/",
        ),
        &["call f()", "call f(12)", "call f(12,\"x\")"],
        &["call f", "call (1)", "call f(\"x\")"],
    );
    let gbnf = |text: &str| GrammarSpec::Gbnf { text: text.to_owned() };
    check(&gbnf("root ::= [a-z]+ \"end\""), &["fooend", "endend"], &["end", "foo"]);
    check(
        &gbnf("root ::= value\nvalue ::= \"[\" (value (\",\" value)*)? \"]\" | number\nnumber ::= \"-\"? [0-9]{1,3}"),
        &["[]", "[1,[-22,333]]", "7"],
        &["[1,]", "1234", "["],
    );
    check(&gbnf("root ::= .{2} [^a-z]?"), &["é\n", "abC"], &["a", "abc"]);
}

#[test]
fn a_pattern_that_is_none_is_named_without_a_place_in_another_text() {
    let pattern = |pattern: &str| refuses(GrammarSpec::Regex { pattern: pattern.to_owned() });
    for (text, why) in [("a(", "unclosed group"), ("[z-a]: b", "start must be <= the end")] {
        let reason = pattern(text);
        assert!(reason.starts_with(&format!("invalid regex \"{text}\"")) && reason.contains(why), "{reason}");
    }
}

#[test]
fn a_grammar_may_have_256_kib_and_not_one_byte_more() {
    let max = limits::GRAMMAR_BYTES;
    let specs = |bytes: usize| {
        let filled = |text: &str| format!("{text}{}", "x".repeat(bytes - text.len()));
        [
            GrammarSpec::JsonSchema { schema: format!("{{\"title\":\"{}\"}}", "a".repeat(bytes - 12)) },
            GrammarSpec::Lark { text: filled("start: \"a\"\n//") },
            GrammarSpec::Gbnf { text: filled("root ::= \"a\"\n#") },
            GrammarSpec::Choice { texts: vec!["a".to_owned(), "b".repeat(bytes - 1)] },
        ]
    };
    assert!(specs(max).iter().all(|spec| spec.check_size().is_ok()));
    for spec in specs(max)[..3].iter().cloned() {
        assert_eq!(refused(spec), None);
    }
    for spec in specs(max + 1) {
        assert_eq!(refuses(spec), "a grammar of 262145 bytes, at most 262144");
    }
}

#[test]
fn a_grammar_that_nothing_matches_is_refused() {
    assert!(refuses(GrammarSpec::Lark { text: "start: start \"a\"".to_owned() }).contains("no text"));
    assert!(refuses(GrammarSpec::Regex { pattern: String::new() }).contains("empty"));
    assert!(refuses(GrammarSpec::Choice { texts: Vec::new() }).contains("at least one choice"));
    assert!(refuses(GrammarSpec::Choice { texts: vec![String::new()] }).contains("none of them empty"));
    let error = refuses(GrammarSpec::Regex { pattern: "(".to_owned() });
    assert!(error.contains("regex"), "{error}");
}

fn numbered(n: usize) -> Grammar {
    Grammar::new(GrammarSpec::Choice { texts: vec![format!("text {n}")] })
}

/// Two requests with it, one after the other.
fn compile_twice(store: &GrammarStore, n: usize) {
    (0..2).for_each(|_| drop(store.compile(&numbered(n)).unwrap()));
}

#[test]
fn a_store_keeps_the_grammars_that_were_used_last_and_none_that_was_used_once() {
    let store = store();
    let has = |n: usize| store.has(&numbered(n));
    for n in 0..limits::GRAMMARS {
        compile_twice(&store, n);
    }
    assert!((0..limits::GRAMMARS).all(has));
    store.compile(&numbered(0)).unwrap();
    assert!((0..limits::GRAMMARS).all(has), "it was there");
    let used = store.compile(&numbered(1000)).unwrap();
    assert!((0..limits::GRAMMARS).all(has) && has(1000));
    drop(used);
    assert!((0..limits::GRAMMARS).all(has) && !has(1000));
    store.compile(&numbered(1000)).unwrap();
    assert!(has(0) && has(2) && has(1000) && !has(1));
    let store = GrammarStore::of_worker(store.vocabulary().clone());
    compile_twice(&store, 0);
    assert!(!store.has(&numbered(0)), "somebody else holds what is kept");
}

#[derive(Debug)]
struct There(Arc<AtomicBool>);

impl CompiledElsewhere for There {
    fn is_there(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn bytes(&self) -> usize {
        1
    }
}

#[test]
fn regression_what_was_compiled_where_somebody_ended_is_compiled_again() {
    let (alive, compiled) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
    let (process, count) = (alive.clone(), compiled.clone());
    let store = GrammarStore::elsewhere(store().vocabulary().clone(), move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(There(process.clone())))
    });
    compile_twice(&store, 0);
    compile_twice(&store, 0);
    assert_eq!((compiled.load(Ordering::Relaxed), store.has(&numbered(0))), (2, true), "the second time it is kept");
    alive.store(false, Ordering::Relaxed);
    assert!(!store.has(&numbered(0)));
    alive.store(true, Ordering::Relaxed);
    let (again, before) = (store.compile(&numbered(0)), compiled.load(Ordering::Relaxed));
    assert!(again.is_ok() && before == 2, "it is there again");
    alive.store(false, Ordering::Relaxed);
    store.compile(&numbered(0)).unwrap();
    assert_eq!(compiled.load(Ordering::Relaxed), 3);
}

#[test]
fn a_grammar_that_is_in_use_is_there_for_its_worker_though_others_took_its_place() {
    let store = store();
    let in_use = store.compile(&numbered(0)).unwrap();
    for n in 1..=limits::GRAMMARS {
        compile_twice(&store, n);
    }
    assert!(store.has(&numbered(0)), "compiled still");
    store.matcher(&numbered(0)).unwrap();
    assert!(!store.has(&numbered(1)), "it took the place of the one that was not used for longest");
    for n in 1..=limits::GRAMMARS {
        compile_twice(&store, n);
    }
    drop(in_use);
    assert!(!store.has(&numbered(0)), "nobody uses it any more");
}

#[test]
fn what_was_refused_is_not_compiled_again_and_what_others_found_out_is_known() {
    let store = store();
    let good = Grammar::new(GrammarSpec::Regex { pattern: "a+".to_owned() });
    assert_eq!(store.verdict(&good), None);
    store.judge(&good, &Ok(()));
    assert_eq!((store.verdict(&good), store.has(&good)), (Some(Ok(())), false));
    let bad = Grammar::new(GrammarSpec::Lark { text: "start: nothing".to_owned() });
    assert!(!store.has(&bad));
    let error = store.compile(&bad).unwrap_err();
    assert!(store.has(&bad), "known to be refused");
    assert_eq!(store.verdict(&bad), Some(Err(error.clone())));
    assert_eq!(store.matcher(&bad).unwrap_err(), error);
    let other = |n: usize| Grammar::new(GrammarSpec::Choice { texts: vec![n.to_string()] });
    for n in 1..=limits::GRAMMAR_VERDICTS {
        store.judge(&other(n), &Err(error.clone()));
    }
    assert!(!store.has(&bad) && store.has(&other(1)));
    store.judge(&other(limits::GRAMMAR_VERDICTS + 1), &Err(error));
    assert!(!store.has(&other(1)) && store.has(&other(2)));
}

#[test]
fn only_the_schemas_of_grammars_can_be_read() {
    let schema =
        |schema: Value| GrammarStore::read(&Grammar::new(GrammarSpec::JsonSchema { schema: schema.to_string() }));
    assert!(schema(json!({ "type": "string" })).is_ok());
    assert_eq!(schema(json!({ "items": { "not": {} } })).unwrap_err().path, "items.not");
    assert!(GrammarStore::read(&Grammar::new(GrammarSpec::Lark { text: "?".to_owned() })).is_ok());
}

#[test]
fn a_vocabulary_that_is_too_large_has_no_grammars() {
    let grammar = Grammar::new(GrammarSpec::JsonObject);
    let store = GrammarStore::new(Arc::new(Vocabulary::new([[0u8; 0]; 0], Vec::new())));
    assert_eq!(store.compile(&grammar).unwrap_err().fault, GrammarFault::Vocabulary);
    let long = "x".repeat(512);
    let store = GrammarStore::new(Arc::new(Vocabulary::new(std::iter::repeat_n(&long, 9000), Vec::new())));
    let error = store.compile(&grammar).unwrap_err();
    assert_eq!(error.reason, "the vocabulary has 4608000 bytes, grammars work with up to 4194303");
    // Without end tokens, and with tokens that are none of any text.
    let pieces = (0..=255u8).map(|byte| vec![byte]).chain([vec![b'a'; 5000], vec![b'a', 255]]);
    let store = GrammarStore::new(Arc::new(Vocabulary::new(pieces, Vec::new())));
    let mut matcher = store.matcher(&Grammar::new(GrammarSpec::Regex { pattern: "a*b".to_owned() })).unwrap();
    let mask = matcher.mask().unwrap();
    assert!(mask.allows(Token(97)) && !mask.allows(Token(256)) && !mask.allows(Token(257)));
    assert!(matcher.accept(Token(98)).unwrap());
    assert!(matcher.mask().unwrap().is_final());
}

#[test]
fn the_fuzz_targets_run_on_what_people_write() {
    let schema =
        json!({ "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"] }).to_string();
    for data in [schema.as_bytes(), b"", b"\xff", b"{}", b"root ::= [a-z]+", b"start: \"a\"+"] {
        fuzz::schema(data);
        fuzz::gbnf(data);
    }
}
