use super::*;
use serde_json::json;

fn read(body: &Value) -> Result<GenerationSettings, RequestError> {
    let samplers = [PolicyName::from("avoid-words")];
    let max_timeout = Duration::from_secs(600);
    let bounds = Bounds { max_tokens: 64, max_timeout, vocabulary_size: 256, samplers: &samplers };
    GenerationSettings::read(&Fields::of_body(body.as_object().unwrap()), bounds)
}

/// `param` and message of the refusal.
fn refusal(body: &Value) -> (Option<String>, String) {
    let error = read(body).unwrap_err().answer().body().error;
    (error.param, error.message)
}

#[test]
fn accepts_every_numeric_parameter_at_its_bounds_and_refuses_one_past() {
    let cases = [
        ("temperature", limits::TEMPERATURE, 0.01),
        ("top_p", limits::TOP_P, 0.01),
        ("min_p", limits::MIN_P, 0.01),
        ("typical_p", limits::TYPICAL_P, 0.01),
        ("repeat_penalty", limits::REPEAT_PENALTY, 0.001),
        ("repetition_penalty", limits::REPEAT_PENALTY, 0.001),
        ("frequency_penalty", limits::FREQUENCY_PENALTY, 0.01),
        ("presence_penalty", limits::PRESENCE_PENALTY, 0.01),
    ];
    for (name, range, past) in cases {
        assert!(read(&json!({name: range.min})).is_ok(), "{name}");
        assert!(read(&json!({name: range.max})).is_ok(), "{name}");
        for value in [range.min - past, range.max + past] {
            let (param, message) = refusal(&json!({name: value}));
            assert_eq!(param.as_deref(), Some(name));
            let bounds = format!("{name} must be between {} and {}, got {value}", range.min, range.max);
            assert_eq!(message, bounds);
        }
    }
    let integers = [
        ("top_k", limits::TOP_K),
        ("repeat_last_n", limits::REPEAT_LAST_N),
        ("n", limits::CHOICES),
        ("max_tokens", Range { min: 1.0, max: 64.0 }),
        ("max_completion_tokens", Range { min: 1.0, max: 64.0 }),
    ];
    for (name, range) in integers {
        assert!(read(&json!({name: range.min as i64})).is_ok(), "{name}");
        assert!(read(&json!({name: range.max as i64})).is_ok(), "{name}");
        for value in [range.min as i64 - 1, range.max as i64 + 1, i64::MIN, i64::MAX] {
            assert_eq!(refusal(&json!({name: value})).0.as_deref(), Some(name), "{value}");
        }
    }
}

#[test]
fn keeps_what_the_kernels_need_where_openai_allows_zero() {
    let settings = read(&json!({"top_p": 0, "typical_p": 1e-300, "temperature": 1e-40})).unwrap();
    assert!(settings.sampling.top_p > 0.0 && settings.sampling.typical_p > 0.0);
    assert_eq!(settings.sampling.temperature, 0.0);
}

#[test]
fn takes_any_64_bit_seed_and_draws_one_if_absent() {
    let seed = |value: Value| read(&json!({"seed": value})).unwrap().sampling.seed;
    assert_eq!(seed(json!(7)), 7);
    assert_eq!(seed(json!(u64::MAX)), u64::MAX);
    assert_eq!(seed(json!(-1)), u64::MAX);
    assert_ne!(seed(Value::Null), seed(Value::Null));
    assert_eq!(refusal(&json!({"seed": 1.5})).0.as_deref(), Some("seed"));
}

#[test]
fn reads_stop_as_one_string_or_up_to_four() {
    let stop = |value: Value| read(&json!({"stop": value})).map(|settings| settings.stop);
    assert_eq!(stop(json!("x")).unwrap(), ["x"]);
    assert_eq!(stop(json!(["a", "b", "c", "d"])).unwrap().len(), 4);
    assert_eq!(stop(json!("y".repeat(512))).unwrap().len(), 1);
    for bad in [json!(["a", "b", "c", "d", "e"]), json!(""), json!(["a", ""]), json!("y".repeat(513)), json!([1])] {
        assert_eq!(refusal(&json!({"stop": bad})).0.as_deref(), Some("stop"));
    }
}

#[test]
fn checks_logit_bias_keys_values_and_count() {
    let settings = read(&json!({"logit_bias": {"0": -100, "255": 100}})).unwrap();
    let last = LogitBias { token: Token(255), bias: 100.0 };
    assert_eq!(settings.sampling.logit_bias, [LogitBias { token: Token(0), bias: -100.0 }, last]);
    for bad in
        [json!({"256": 1}), json!({"-1": 1}), json!({"1.5": 1}), json!({"cat": 1}), json!({"+7": 1}), json!({"07": 1})]
    {
        assert_eq!(refusal(&json!({"logit_bias": bad})).0.as_deref(), Some("logit_bias"));
    }
    assert_eq!(refusal(&json!({"logit_bias": {"7": 101}})).0.as_deref(), Some("logit_bias.7"));
    let many = |count: usize| json!({"logit_bias": (0..count).map(|i| (i.to_string(), 1)).collect::<std::collections::HashMap<_, _>>()});
    let (_, message) = refusal(&many(1025));
    assert_eq!(message, "logit_bias has 1025 entries, at most 1024");
}

#[test]
fn refuses_what_would_change_the_answer_and_ignores_the_rest() {
    let unsupported = json!([{"type": "function"}]);
    for (name, value) in [
        ("tools", unsupported.clone()),
        ("functions", unsupported),
        ("response_format", json!({"type": "json_object"})),
        ("suffix", json!("end")),
        ("best_of", json!(2)),
        ("stream_options", json!({"include_usage": true})),
        ("samplers", json!("avoid-words")),
    ] {
        assert_eq!(refusal(&json!({name: value})).0.as_deref(), Some(name));
    }
    assert_eq!(refusal(&json!({"samplers": ["avoid-words", "nope"]})).0.as_deref(), Some("samplers[1]"));
    let twice = refusal(&json!({"samplers": ["avoid-words", "avoid-words"]}));
    assert_eq!(twice.0.as_deref(), Some("samplers[1]"));
    assert!(twice.1.contains("named twice"), "{twice:?}");
    let harmless = json!({"tools": [], "functions": null, "response_format": {"type": "text"}, "suffix": "",
        "best_of": 1, "user": "me", "service_tier": "auto", "store": true, "x_unknown": {"deep": [1]},
        "samplers": ["avoid-words"], "stream": true, "stream_options": {"include_usage": true}});
    let settings = read(&harmless).unwrap();
    assert!(settings.include_usage && settings.stream);
    assert_eq!(settings.samplers, Some(vec!["avoid-words".to_owned()]));
}

#[test]
fn takes_a_timeout_up_to_the_longest_from_field_and_header() {
    let timeout = |value: Value| read(&json!({"timeout": value})).map(|settings| settings.timeout);
    assert_eq!(timeout(json!(600)).unwrap(), Some(Duration::from_secs(600)));
    assert_eq!(timeout(json!(0.001)).unwrap(), Some(Duration::from_millis(1)));
    assert_eq!(timeout(Value::Null).unwrap(), None);
    for bad in [json!(600.5), json!(0), json!(-1), json!("1"), json!(1e300)] {
        assert_eq!(refusal(&json!({"timeout": bad})).0.as_deref(), Some("timeout"));
    }
    let header = |text: &'static str| {
        let headers = HeaderMap::from_iter([(TIMEOUT_HEADER.parse().unwrap(), text.parse().unwrap())]);
        timeout_header(&headers, Duration::from_secs(600)).map_err(|error| error.to_string())
    };
    assert_eq!(header("1.5"), Ok(Some(Duration::from_millis(1500))));
    for bad in ["601", "0", "soon", "NaN", "-1"] {
        let error = header(bad).unwrap_err();
        assert_eq!(error, format!("x-request-timeout must be seconds between 0.001 and 600, got {bad:?}"));
    }
}

#[test]
fn takes_a_session_of_1_to_128_visible_characters() {
    let session = |name: &str| read(&json!({"session_id": name})).map(|settings| settings.session);
    assert_eq!(session(&"s".repeat(128)).unwrap(), Some(SessionId::new("s".repeat(128))));
    for bad in ["", "a b", "é", "\n", &"s".repeat(129)] {
        assert_eq!(refusal(&json!({"session_id": bad})).0.as_deref(), Some("session_id"), "{bad:?}");
    }
    assert_eq!(refusal(&json!({"session_id": 7})).0.as_deref(), Some("session_id"));
}

#[test]
fn prefers_the_new_name_of_max_tokens() {
    let settings = read(&json!({"max_tokens": 5, "max_completion_tokens": 6})).unwrap();
    assert_eq!(settings.max_tokens, Some(6));
    assert_eq!(read(&json!({})).unwrap().max_tokens, None);
}

#[test]
fn takes_hints_up_to_their_bounds_and_refuses_one_past_and_other_types() {
    let hints = |body: &Value| read(&json!({ "hints": body })).map(|settings| settings.hints);
    assert_eq!(read(&json!({})).unwrap().hints.get("a"), None);
    let all: serde_json::Map<String, Value> =
        (0..8).map(|n| (format!("{n}{}", "x".repeat(63)), json!("é".repeat(128)))).collect();
    let taken = hints(&Value::Object(all.clone())).unwrap();
    assert_eq!(taken.get(&format!("7{}", "x".repeat(63))), Some("é".repeat(128).as_str()));
    let mut more = all;
    more.insert("ninth".to_owned(), json!(""));
    let long = json!({ "n".repeat(65): "v" });
    for (bad, param) in [
        (Value::Object(more), "hints"),
        (long, "hints"),
        (json!({"": "v"}), "hints"),
        (json!({"two words": "v"}), "hints"),
        (json!({"n": "v".repeat(257)}), "hints.n"),
        (json!({"n": 7}), "hints.n"),
        (json!({"n": null}), "hints.n"),
        (json!({"n": ["v"]}), "hints.n"),
        (json!("n"), "hints"),
        (json!(["n", "v"]), "hints"),
    ] {
        let (found, message) = refusal(&json!({ "hints": bad }));
        assert_eq!(found.as_deref(), Some(param), "{bad}");
        assert!(message.len() < 400, "{message}");
    }
}
