use camshaft_core::ids::Token;
use camshaft_core::sampling::LogitBias;
use serde_json::json;

use super::*;

/// What the tests change of the bounds.
#[derive(Clone, Copy)]
struct Changed {
    unset_tokens: u32,
    max_duration: Option<Duration>,
}

const EXTENT: Changed = Changed { unset_tokens: 64, max_duration: None };

fn read(body: &Value) -> Result<GenerationSettings, RequestError> {
    read_within(body, EXTENT)
}

fn read_within(body: &Value, extent: Changed) -> Result<GenerationSettings, RequestError> {
    let (samplers, sampling) = ([PolicyName::from("avoid-words")], SamplingParams::default());
    settings_of(body, extent, (&samplers, &sampling))
}

fn settings_of(
    body: &Value,
    Changed { unset_tokens, max_duration }: Changed,
    (samplers, sampling): (&[PolicyName], &SamplingParams),
) -> Result<GenerationSettings, RequestError> {
    let fields: GenerationFields = crate::wire::read::read(&body.to_string())?.request;
    let bounds = Bounds {
        least_tokens: 1,
        max_tokens: 64,
        unset_tokens,
        max_duration,
        max_timeout: Duration::from_secs(600),
        vocabulary_size: 256,
        samplers,
        sampling,
    };
    GenerationSettings::new(&fields, bounds)
}

/// `param` and message of the refusal.
fn refusal(body: &Value) -> (Option<String>, String) {
    let error = read(body).unwrap_err().answer().note().object.clone();
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
            assert!(message.starts_with(name) && message.contains(&value.to_string()), "{message}");
        }
    }
    let top_k = Range { min: -1.0, ..limits::TOP_K };
    let integers = [("top_k", top_k), ("repeat_last_n", limits::REPEAT_LAST_N), ("n", limits::CHOICES)];
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
    assert_eq!((seed(json!(7.0)), seed(json!(-2))), (7, u64::MAX - 1));
    assert_ne!(seed(json!(-1)), seed(json!(-1)), "asks for a random one");
    assert_ne!(seed(Value::Null), seed(Value::Null));
    assert_eq!(refusal(&json!({"seed": 1.5})).0.as_deref(), Some("seed"));
}

#[test]
fn reads_stop_as_one_string_or_several() {
    let stop = |value: Value| read(&json!({"stop": value})).map(|settings| settings.extent.stop);
    assert_eq!(stop(json!("x")).unwrap(), ["x"]);
    assert_eq!(stop(json!(["a", "b", "c", "d"])).unwrap().len(), 4);
    assert_eq!(stop(json!("y".repeat(512))).unwrap().len(), 1);
    let many = |count| json!(vec!["x"; count]);
    assert_eq!(stop(many(limits::STOP_STRINGS)).unwrap().len(), limits::STOP_STRINGS);
    for bad in [many(limits::STOP_STRINGS + 1), json!(""), json!(["a", ""]), json!("y".repeat(513))] {
        assert_eq!(refusal(&json!({"stop": bad})).0.as_deref(), Some("stop"));
    }
    assert_eq!(refusal(&json!({"stop": [1]})).0.as_deref(), Some("stop[0]"));
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
    assert_eq!(refusal(&json!({"logit_bias": {"7": 101}})).0.as_deref(), Some("logit_bias"));
    let many = |count: usize| json!({"logit_bias": (0..count).map(|i| (i.to_string(), 1)).collect::<std::collections::HashMap<_, _>>()});
    assert!(read(&many(1024)).is_err_and(|error| !error.to_string().contains("length")), "it is not too long");
    assert_eq!(refusal(&many(1025)).0.as_deref(), Some("logit_bias"));
}

#[test]
fn refuses_what_would_change_the_answer_and_ignores_the_rest() {
    for (name, value) in [
        ("chat_template", json!("{{ messages }}")),
        ("use_beam_search", json!(true)),
        ("stream_options", json!({"include_usage": true})),
        ("samplers", json!("avoid-words")),
    ] {
        assert_eq!(refusal(&json!({name: value})).0.as_deref(), Some(name));
    }
    assert_eq!(refusal(&json!({"samplers": ["avoid-words", "nope"]})).0.as_deref(), Some("samplers[1]"));
    let twice = refusal(&json!({"samplers": ["avoid-words", "avoid-words"]}));
    assert_eq!(twice.0.as_deref(), Some("samplers"));
    let harmless = json!({"tools": [], "functions": null, "response_format": {"type": "text"}, "modalities": ["text"],
        "use_beam_search": false, "chat_template": null,
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
fn regression_more_tokens_than_the_bound_are_cut_to_it() {
    for name in ["max_tokens", "max_completion_tokens"] {
        let most = |value: Value| read(&json!({ name: value })).unwrap().extent.max_tokens;
        let got = [json!(1), json!(64), json!(65), json!(128_000), json!(u64::MAX)].map(most);
        assert_eq!(got, [1, 64, 64, 64, 64], "{name}");
        assert_eq!([json!(99.0), json!(1e300)].map(most), [64, 64], "as any other number");
        for bad in [json!(0), json!(-1), json!(1.5), json!("many")] {
            assert_eq!(refusal(&json!({ name: bad })).0.as_deref(), Some(name), "{bad}");
        }
    }
}

#[test]
fn prefers_the_new_name_of_max_tokens() {
    let settings = read(&json!({"max_tokens": 5, "max_completion_tokens": 6})).unwrap();
    assert_eq!((settings.extent.max_tokens, settings.extent.max_tokens_set), (6, true));
    let unset = read_within(&json!({}), Changed { unset_tokens: 16, ..EXTENT }).unwrap();
    assert_eq!((unset.extent.max_tokens, unset.extent.max_tokens_set), (16, false));
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
        (json!({"n": "v".repeat(257)}), "hints"),
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

#[test]
fn a_model_has_defaults_of_its_own_for_what_a_request_leaves_out() {
    let sampling = SamplingParams { temperature: 0.6, top_k: 20, repeat_penalty: 1.1, ..SamplingParams::default() };
    let read = |body: Value| {
        let settings = settings_of(&body, EXTENT, (&[], &sampling)).unwrap();
        (settings.sampling.temperature, settings.sampling.top_k, settings.sampling.repeat_penalty)
    };
    assert_eq!(read(json!({})), (0.6, 20, 1.1));
    for off in [0, -1] {
        assert_eq!(read(json!({"temperature": 1, "top_k": off})), (1.0, 0, 1.1));
    }
}

#[test]
fn reads_stop_tokens_up_to_their_number_and_the_size_of_the_vocabulary() {
    let stop = |value: Value| read(&json!({"stop_token_ids": value})).map(|settings| settings.extent.stop_tokens);
    assert_eq!(stop(json!([0, 255])).unwrap(), [Token(0), Token(255)]);
    assert_eq!(stop(json!(vec![7; limits::STOP_TOKENS])).unwrap().len(), limits::STOP_TOKENS);
    for (bad, param) in [
        (json!(vec![7; limits::STOP_TOKENS + 1]), "stop_token_ids"),
        (json!(7), "stop_token_ids"),
        (json!([0, 256]), "stop_token_ids[1]"),
        (json!([-1]), "stop_token_ids[0]"),
        (json!(["end"]), "stop_token_ids[0]"),
    ] {
        assert_eq!(refusal(&json!({ "stop_token_ids": bad })).0.as_deref(), Some(param), "{bad}");
    }
}

#[test]
fn takes_a_minimum_up_to_the_maximum_and_no_more() {
    let least = |body: Value| read(&body).map(|settings| settings.extent.min_tokens);
    assert_eq!(least(json!({"min_tokens": 64})).unwrap(), 64);
    assert_eq!(least(json!({"min_tokens": 5, "max_tokens": 5})).unwrap(), 5);
    assert_eq!(refusal(&json!({"min_tokens": 6, "max_tokens": 5})).0.as_deref(), Some("min_tokens"));
    for bad in [json!(65), json!(-1), json!("1")] {
        assert_eq!(refusal(&json!({ "min_tokens": bad })).0.as_deref(), Some("min_tokens"), "{bad}");
    }
}

#[test]
fn takes_a_duration_up_to_the_servers_or_a_day() {
    let seconds = Duration::from_secs;
    let duration = |value: Value, bound| {
        let read = read_within(&json!({ "max_duration": value }), Changed { max_duration: bound, ..EXTENT });
        read.map(|settings| settings.extent.max_duration).map_err(|error| error.to_string())
    };
    assert_eq!(duration(json!(86_400), None), Ok(Some(seconds(86_400))));
    assert_eq!(duration(Value::Null, None), Ok(None));
    assert_eq!(duration(Value::Null, Some(seconds(9))), Ok(Some(seconds(9))), "the server's holds for all");
    assert_eq!(duration(json!(9), Some(seconds(9))), Ok(Some(seconds(9))));
    assert_eq!(duration(json!(0.001), Some(seconds(9))), Ok(Some(Duration::from_millis(1))));
    assert!(duration(json!(9.5), Some(seconds(9))).unwrap_err().starts_with("max_duration"));
    for bad in [json!(86_401), json!(0), json!(-1), json!("1"), json!(1e300)] {
        assert!(duration(bad.clone(), None).unwrap_err().starts_with("max_duration"), "{bad}");
    }
}

#[test]
fn generates_more_choices_than_it_answers_unless_they_are_streamed() {
    let best = |body: Value| read(&body).map(|settings| (settings.n, settings.best_of));
    assert_eq!(best(json!({})).unwrap(), (1, 1));
    assert_eq!(best(json!({"n": 3})).unwrap(), (3, 3));
    assert_eq!(best(json!({"n": 2, "best_of": 128})).unwrap(), (2, 128));
    assert_eq!(best(json!({"n": 2, "best_of": 2, "stream": true})).unwrap(), (2, 2));
    for bad in [json!({"best_of": 129}), json!({"n": 3, "best_of": 2}), json!({"best_of": 2, "stream": true})] {
        assert_eq!(refusal(&bad).0.as_deref(), Some("best_of"), "{bad}");
    }
}

#[test]
fn cuts_a_prompt_to_a_number_of_tokens_or_to_the_context() {
    let truncate = |value: Value| read(&json!({ "truncate_prompt_tokens": value })).map(|settings| settings.truncate);
    assert_eq!(truncate(json!(1)).unwrap(), Some(Truncate::Last(1)));
    assert_eq!(truncate(json!(2_147_483_647)).unwrap(), Some(Truncate::Last(i32::MAX as u32)));
    assert_eq!(truncate(json!(-1)).unwrap(), Some(Truncate::Context));
    assert_eq!(truncate(Value::Null).unwrap(), None);
    for bad in [json!(0), json!(-2), json!(2_147_483_648_u64), json!(1.5), json!("5")] {
        assert_eq!(refusal(&json!({ "truncate_prompt_tokens": bad })).0.as_deref(), Some("truncate_prompt_tokens"));
    }
}

#[test]
fn takes_a_cache_key_of_1_to_128_bytes_and_an_end_user_of_either_name() {
    let key = |value: Value| read(&json!({ "prompt_cache_key": value })).map(|settings| settings.cache_key);
    assert_eq!(key(json!("k".repeat(128))).unwrap(), Some("k".repeat(128)));
    for bad in [json!(""), json!("k".repeat(129)), json!(7)] {
        assert_eq!(refusal(&json!({ "prompt_cache_key": bad })).0.as_deref(), Some("prompt_cache_key"));
    }
    let user = |body: Value| read(&body).unwrap().user;
    assert_eq!(user(json!({"user": "ann"})).as_deref(), Some("ann"));
    assert_eq!(user(json!({"user": "ann", "safety_identifier": "bo"})).as_deref(), Some("bo"));
    assert_eq!(user(json!({"user": 7, "safety_identifier": ""})), None);
    assert_eq!(user(json!({"user": "\u{e4}".repeat(513)})).unwrap().chars().count(), 512);
}
