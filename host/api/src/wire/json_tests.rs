use super::*;
use proptest::prelude::*;

#[test]
fn says_where_json_is_broken_and_bounds_its_depth() {
    let message = |text: &str| parse(text).unwrap_err().to_string();
    assert!(message("{\"a\": 1,\n \"b\": }").ends_with("line 2 column 7"), "{}", message("{\"a\": 1,\n \"b\": }"));
    assert_eq!(message("[1]"), "the request body must be a JSON object");
    assert_eq!(message("7"), "the request body must be a JSON object");
    assert!(message("{} {}").contains("trailing"));
    assert!(message(&"[".repeat(100_000)).contains("recursion limit"));
    let lone_surrogate = parse(r#"{"a": "\ud800"}"#).unwrap_err().answer().body().error;
    assert_eq!(lone_surrogate.code.as_deref(), Some("invalid_json"));
    assert!(parse(&format!("{{\"a\": {}{}}}", "[".repeat(120), "]".repeat(120))).is_ok());
}

/// Every shape a list may have, and what is kept of it as numbers.
#[test]
fn lists_of_ids_are_kept_as_numbers_and_everything_else_as_it_is() {
    let check = |list: &str, expected: Option<IdLists>| {
        let text = format!(r#"{{"a":[1,2],"prompt":{list},"z":null}}"#);
        let body = parse(&text).unwrap();
        assert_eq!(body.lists.get("prompt"), expected.as_ref(), "{list}");
        let plain: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_value(&body).unwrap(), plain, "{list}");
        assert_eq!(body.lists.get("a"), None, "only fields that hold ids");
    };
    check("[1,2,4294967295]", Some(IdLists::One(vec![1, 2, u32::MAX])));
    check("[[1],[],[2,3]]", Some(IdLists::Several(vec![vec![1], vec![], vec![2, 3]])));
    for other in [
        "[]",
        "\"text\"",
        "7",
        "null",
        "{\"a\":[1]}",
        "[1,2,4294967296]",
        "[1,-1]",
        "[1,1.5,2]",
        "[1,[2]]",
        "[[1],2]",
        "[[1],\"a\"]",
        "[[1,\"a\",2],[3]]",
        "[[1],[2,[3]]]",
        "[\"a\",\"b\"]",
        "[1,null]",
        "[[1,{\"a\":1}]]",
    ] {
        check(other, None);
    }
}

/// Any JSON value, more often of ids than of anything else.
fn value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        6 => any::<u32>().prop_map(Value::from),
        1 => any::<u64>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        // Numbers that reading and writing does not round.
        1 => any::<i32>().prop_map(|number| Value::from(f64::from(number) / 4.0)),
        1 => any::<bool>().prop_map(Value::from),
        1 => "\\PC{0,4}".prop_map(Value::from),
        1 => Just(Value::Null),
    ];
    scalar.prop_recursive(3, 32, 6, |inner| {
        prop_oneof![
            4 => prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            1 => prop::collection::hash_map("[a-c]", inner, 0..3).prop_map(|map| map.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn a_body_is_what_its_text_says(prompt in value(), input in value(), other in value()) {
        let plain = serde_json::json!({"prompt": prompt, "a": other, "input": input});
        let text = plain.to_string();
        let body = parse(&text).unwrap();
        prop_assert_eq!(serde_json::to_value(&body).unwrap(), plain);
        prop_assert_eq!(parse(&serde_json::to_string(&body).unwrap()).unwrap(), body);
    }
}

#[test]
fn the_last_of_two_equal_fields_counts() {
    let body = parse(r#"{"prompt":[1],"prompt":"text"}"#).unwrap();
    assert_eq!((body.lists.get("prompt"), body.map["prompt"].as_str()), (None, Some("text")));
    let body = parse(r#"{"prompt":"text","prompt":[1]}"#).unwrap();
    assert_eq!(body.lists.get("prompt"), Some(&IdLists::One(vec![1])));
}

#[test]
fn a_patch_replaces_lists() {
    let patched = |patch: &str| {
        let mut body = parse(r#"{"prompt":[1,2],"n":1}"#).unwrap();
        body.patch(&parse(patch).unwrap());
        serde_json::to_string(&body).unwrap()
    };
    assert_eq!(patched(r#"{"n":2}"#), r#"{"prompt":[1,2],"n":2}"#);
    assert_eq!(patched(r#"{"prompt":[3]}"#), r#"{"prompt":[3],"n":1}"#);
    assert_eq!(patched(r#"{"prompt":"a"}"#), r#"{"prompt":"a","n":1}"#);
    assert_eq!(patched(r#"{"prompt":null}"#), r#"{"n":1}"#);
}

#[test]
fn regression_values_have_a_bound_and_ids_do_not_count() {
    let text = |values: usize| format!(r#"{{"x":[{}]}}"#, vec!["0"; values].join(","));
    // The list is a value, too.
    assert!(parse(&text(VALUES - 1)).is_ok());
    assert!(matches!(parse(&text(VALUES)), Err(RequestError::TooManyValues { max: VALUES })));
    let ids = vec!["7"; 4 * VALUES].join(",");
    assert!(parse(&format!(r#"{{"prompt":[{ids}]}}"#)).is_ok());
    assert!(parse(&format!(r#"{{"prompt":[[{ids}],[1]]}}"#)).is_ok());
    for mixed in [format!("[{ids},1.5]"), format!("[[{ids},1.5]]"), format!("[{ids},[1]]"), format!("[[{ids}],1]")] {
        let text = format!(r#"{{"prompt":{mixed}}}"#);
        assert!(matches!(parse(&text), Err(RequestError::TooManyValues { .. })), "a mixture is a tree");
    }
    let empty = vec!["[]"; VALUES].join(",");
    assert!(parse(&format!(r#"{{"prompt":[{empty}]}}"#)).is_err(), "each list counts");
}

/// Resident memory of this process.
fn resident_bytes() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

#[test]
fn regression_a_tree_takes_no_more_than_was_reserved_for_it() {
    // All trees stay: memory that was freed is no growth when it is used again.
    let mut trees = Vec::new();
    for (item, values) in [
        ("1", 1),
        ("\"a\"", 1),
        ("[]", 1),
        ("[1]", 2),
        ("[[[[1]]]]", 5),
        ("[1,2,3,4,5]", 6),
        ("{}", 1),
        ("{\"a\":1}", 2),
        ("{\"a\":{\"a\":{\"a\":{\"a\":1}}}}", 5),
        ("{\"a\":1,\"b\":2,\"c\":3,\"d\":4}", 5),
        ("{\"a\":[1]}", 3),
    ] {
        let items = vec![item; (VALUES - 2) / values].join(",");
        let text = format!("{{\"a\":[{items}]}}");
        let before = resident_bytes();
        trees.push(parse(&text).unwrap());
        let (took, reserved) = (resident_bytes() - before, parsed_bytes(&text));
        assert!(took <= reserved, "{item}: {took} bytes, and {reserved} were reserved");
        assert!(took * 16 > reserved, "{item}: {took} bytes, and {reserved} were reserved");
    }
}
