//! Random answers out of the families' grammars: each parses, and is what was asked for.
use camshaft_core::family::description::{Family, ThinkingState};
use camshaft_core::family::detect::names;
use camshaft_core::family::tools::{ToolChoice, Tools};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

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
    if family.calls.open.is_empty() { family.calls.begins[0].trim_ascii() } else { family.calls.open }
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
fn walks(family: &'static Family, vocabulary: &Vocabulary, tools: &std::sync::Arc<Tools>, seed: u64) -> (usize, usize) {
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
