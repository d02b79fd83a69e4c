//! Random answers out of the families' grammars: each parses, and is what was asked for.
use std::sync::Arc;

use camshaft_core::family::description::{Family, ThinkingState};
use camshaft_core::family::detect::names;
use camshaft_core::family::tools::{Tool, ToolChoice, Tools};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::goldens::cut;
use crate::support::{Call, family, parse, tools};
use crate::vocabulary::{END, Vocabulary};

/// Tokens after which a walk is given up: a grammar need not end.
const TOKENS: usize = 3000;

/// A random answer. Bytes that end things are likelier than others, so that most answers end.
fn walk(vocabulary: &Vocabulary, grammar: &str, hints: &[&str], random: &mut ChaCha8Rng) -> Option<Vec<u32>> {
    let mut matcher = vocabulary.matcher(grammar);
    let mut tokens = Vec::new();
    while tokens.len() < TOKENS {
        if matcher.is_stopped() {
            return Some(tokens);
        }
        // Markers of plain text are unlikely by chance.
        if random.random_ratio(1, 12) {
            let hint = vocabulary.tokens(hints[random.random_range(0..hints.len())]);
            let taken = matcher.try_consume_tokens(&hint).ok()?;
            tokens.extend(&hint[..taken]);
            continue;
        }
        let mask = matcher.compute_mask_or_eos().ok()?;
        let weight = |token: u32| match u8::try_from(token) {
            Ok(b'"' | b'}' | b']' | b'<' | b'|') => 40,
            Ok(b' '..=b'~') => 4,
            Ok(_) => 1,
            Err(_) => 100,
        };
        let allowed: Vec<u32> =
            (0..u32::try_from(mask.len()).expect("a few")).filter(|token| mask.is_allowed(*token)).collect();
        let mut chosen = random.random_range(0..allowed.iter().map(|token| weight(*token)).sum::<u32>());
        let token = allowed.into_iter().find(|token| {
            let found = chosen < weight(*token);
            chosen = chosen.saturating_sub(weight(*token));
            found
        })?;
        if token == END {
            return Some(tokens);
        }
        matcher.consume_token(token).ok()?;
        tokens.push(token);
    }
    None
}

/// What begins the calls of an answer.
fn trigger(family: &Family) -> &'static str {
    family.calls.triggers().next().expect("a marker")
}

/// By hand what the schemas of the three tools say.
fn is_valid(call: &Call) -> bool {
    let Ok(Value::Object(arguments)) = serde_json::from_str(&call.arguments) else { return false };
    match call.name.as_str() {
        "get_weather" => {
            let days =
                arguments.get("days").is_none_or(|days| days.as_f64().is_some_and(|days| (1.0..=14.0).contains(&days)));
            arguments["city"].is_string() && days && arguments.keys().all(|key| key == "city" || key == "days")
        }
        "calculator" => arguments["expression"].is_string(),
        _ => arguments.is_empty(),
    }
}

/// Walks with one seed. Returns how many answers ended, and how many calls they had.
fn walks(family: &'static Family, vocabulary: &Vocabulary, tools: &Arc<Tools>, seed: u64) -> (usize, usize) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut hints = vec![trigger(family), "\n</parameter>\n", "</think>", "ß😀"];
    hints.extend(family.special);
    hints.extend(family.thinking.iter().map(|thinking| thinking.begin));
    let (mut ended, mut calls) = (0, 0);
    for thinking in [ThinkingState::Off, ThinkingState::Possible, ThinkingState::Open] {
        let grammar = vocabulary.grammar(family, tools, thinking);
        let thinking = if family.thinking.is_some() { thinking } else { ThinkingState::Off };
        for _ in 0..4 {
            let Some(tokens) = walk(vocabulary, &grammar, &hints, &mut random) else { continue };
            let text = vocabulary.text(&tokens);
            let answer = parse(family, tools, thinking, [text.as_str()]);
            let shown = format!("{} {thinking:?} {tools:?} {text:?} gives {answer:?}\n{grammar}", family.name);
            ended += 1;
            calls += answer.calls.len();
            assert!(answer.calls.iter().all(|call| call.complete && is_valid(call)), "{shown}");
            assert!(answer.calls.iter().all(|call| tools.get(&call.name).is_some()), "{shown}");
            assert!(!tools.required() || !answer.calls.is_empty(), "{shown}");
            assert!(tools.parallel() || answer.calls.len() <= 1, "{shown}");
            assert!(!answer.content.contains(trigger(family)), "{shown}");
            if answer.calls.is_empty() && answer.reasoning.is_empty() && thinking != ThinkingState::Open {
                let framed = family.channels.is_some() || thinking == ThinkingState::Possible;
                assert!(answer.content == text || framed && text.ends_with(answer.content.as_str()), "{shown}");
            }
            let pieces: Vec<usize> = (0..20).map(|_| random.random_range(1..9)).collect();
            assert_eq!(parse(family, tools, thinking, cut(&text, &pieces)), answer, "{shown}");
        }
    }
    (ended, calls)
}

#[test]
fn whatever_a_grammar_generates_parses() {
    for name in names() {
        for special in [family(name).special, &[]] {
            let vocabulary = Vocabulary::new(special);
            let (mut ended, mut calls) = (0, 0);
            for (seed, choice, parallel) in [
                (1, ToolChoice::Auto, true),
                (2, ToolChoice::Required, true),
                (3, ToolChoice::Required, false),
                (4, ToolChoice::Named("get_weather".into()), false),
            ] {
                let (more, of_them) = walks(family(name), &vocabulary, &tools(&choice, parallel), seed);
                (ended, calls) = (ended + more, calls + of_them);
            }
            assert!(ended >= 24 && calls >= 18, "{name}: only {ended} answers with {calls} calls");
        }
    }
}

/// A tool whose schema has objects, lists, listed values and references.
fn booking() -> Arc<Tools> {
    let parameters = json!({
        "type": "object",
        "properties": {
            "kind": { "type": "string", "enum": ["one way", "return"] },
            "seats": { "enum": [1, 2, "all"] },
            "stops": { "type": "array", "items": { "type": "string" }, "minItems": 1, "maxItems": 2 },
            "from": { "$ref": "#/$defs/place" },
            "to": {
                "type": "object",
                "properties": { "lat": { "type": "number", "minimum": -90, "maximum": 90 }, "name": { "type": "string" }, "far": { "type": "boolean" } },
                "required": ["name"],
                "additionalProperties": false,
            },
            "note": {},
            "price": { "type": "number" },
            "legs": { "$ref": "#/$defs/leg" },
            "label": { "type": "string", "enum": ["<|tool_call>", "</tool_call>", "a \"b\""] },
        },
        "required": ["kind", "to"],
        "additionalProperties": false,
        "$defs": {
            "place": { "type": "object", "properties": { "x": { "type": "null" } }, "required": ["x"] },
            "leg": {
                "type": "object",
                "properties": { "km": { "type": "integer" }, "next": { "type": "array", "items": { "$ref": "#/$defs/leg" } } },
                "required": ["km"],
                "additionalProperties": false,
            },
        },
    });
    let tool = Tool { name: "book".into(), description: None, parameters: Some(parameters), strict: false };
    Arc::new(Tools::new(vec![tool], &ToolChoice::Required, false).expect("good tools"))
}

/// By hand what the schema of the booking says, but for what is referred to.
fn is_a_booking(arguments: &str) -> bool {
    let booking = match serde_json::from_str(arguments) {
        Ok(Value::Object(booking)) => booking,
        // Any number is JSON, but not all are numbers here.
        parsed => return parsed.is_err_and(|error| error.to_string().starts_with("number out of range")),
    };
    let listed = |key: &str, values: &[Value]| booking.get(key).is_none_or(|value| values.contains(value));
    let is_stops = |stops: &Value| {
        stops.as_array().is_some_and(|stops| (1..=2).contains(&stops.len()) && stops.iter().all(Value::is_string))
    };
    let is_place = |to: &Value| {
        let of = |key: &str, is: fn(&Value) -> bool| to.get(key).is_none_or(is);
        to["name"].is_string() && of("lat", Value::is_number) && of("far", Value::is_boolean)
    };
    booking.contains_key("kind")
        && listed("kind", &[json!("one way"), json!("return")])
        && listed("label", &[json!("<|tool_call>"), json!("</tool_call>"), json!("a \"b\"")])
        && booking.get("price").is_none_or(Value::is_number)
        && listed("seats", &[json!(1), json!(2), json!("all")])
        && booking.get("stops").is_none_or(is_stops)
        && booking.get("to").is_some_and(is_place)
        && booking.keys().all(|key| {
            ["kind", "seats", "stops", "from", "to", "note", "price", "legs", "label"].contains(&key.as_str())
        })
}

#[test]
fn arguments_without_a_schema_are_any_object_in_every_notation() {
    for name in names() {
        let tools = Arc::new(booking().relaxed(0));
        let vocabulary = Vocabulary::new(family(name).special);
        let grammar = vocabulary.grammar(family(name), &tools, ThinkingState::Off);
        let mut random = ChaCha8Rng::seed_from_u64(6);
        let mut ended = 0;
        for _ in 0..8 {
            let Some(tokens) = walk(&vocabulary, &grammar, &["}", "]", "\n</parameter>\n"], &mut random) else {
                continue;
            };
            let text = vocabulary.text(&tokens);
            let answer = parse(family(name), &tools, ThinkingState::Off, [text.as_str()]);
            let [call] = answer.calls.as_slice() else { panic!("{name}: {text:?} gives {answer:?}") };
            assert!(call.complete && serde_json::from_str::<IgnoredAny>(&call.arguments).is_ok(), "{name}: {answer:?}");
            ended += 1;
        }
        assert!(ended >= 2, "{name}: only {ended} answers");
    }
}

#[test]
fn arguments_follow_schemas_in_every_notation() {
    for name in ["hermes", "qwen3-coder", "gemma4", "functiongemma"] {
        for special in [family(name).special, &[]] {
            let vocabulary = Vocabulary::new(special);
            let grammar = vocabulary.grammar(family(name), &booking(), ThinkingState::Off);
            let hints = ["\n</parameter>\n", "<|\"|>", "<escape>", "a\nb \"c\" \\", "{", "]", "}"];
            let mut random = ChaCha8Rng::seed_from_u64(5);
            let mut ended = 0;
            for _ in 0..24 {
                let Some(tokens) = walk(&vocabulary, &grammar, &hints, &mut random) else { continue };
                let text = vocabulary.text(&tokens);
                let answer = parse(family(name), &booking(), ThinkingState::Off, [text.as_str()]);
                let [call] = answer.calls.as_slice() else { panic!("{name}: {text:?} gives {answer:?}") };
                assert!(call.complete && is_a_booking(&call.arguments), "{name}: {text:?} gives {answer:?}\n{grammar}");
                ended += 1;
            }
            assert!(ended >= 12, "{name}: only {ended} answers");
        }
    }
}
