//! Random mixtures of markers, calls and text, and calls that are written and read again.
use camshaft_core::family::description::ThinkingState;
use camshaft_core::family::detect::names;
use camshaft_core::family::fuzz;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::support::{auto, family, parse};

/// Parts of what any family writes, some of them cut.
fn parts() -> Vec<String> {
    let mut parts: Vec<String> = [
        "f",
        "get_weather",
        "{\"name\": \"f\", \"arguments\": {",
        "{\"name\":\"f\",\"parameters\":",
        "{}",
        "}",
        "{",
        "[",
        "]",
        ", ",
        ";",
        ",",
        "\"",
        "\\",
        "\n",
        " ",
        "é",
        "😀",
        "1",
        "-0.5e",
        "city:",
        "days:",
        "null",
        "```json\n",
        "\n```",
        "functions.f",
        "<function=f>\n",
        "<parameter=city>\n",
        "<parameter=days>\n",
        "\n</parameter>\n",
        "</function>",
        "<response>",
        "<",
        "｜",
    ]
    .map(str::to_owned)
    .into();
    for name in names() {
        let family = family(name);
        parts.extend(
            family.special.iter().chain(family.framing).chain(family.calls.begins).map(|part| (*part).to_owned()),
        );
        parts.extend(family.channels.iter().map(|channels| channels.answer.to_owned()));
    }
    let cut: Vec<String> = parts
        .iter()
        .filter(|part| part.is_ascii() && part.len() > 3)
        .map(|part| part[..part.len() - 2].to_owned())
        .collect();
    parts.extend(cut);
    parts
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn mixtures_of_markers_read_the_same_in_pieces(
        family in 0..u8::try_from(names().count()).expect("a few"),
        how in any::<u8>(),
        parts in prop::collection::vec(prop::sample::select(parts()), 0..24),
    ) {
        fuzz::answer(&[vec![family, how], parts.concat().into_bytes()].concat());
    }

    #[test]
    fn calls_that_are_written_are_read_again(
        city in "[^<\\x00]{0,12}",
        days in prop::option::of(1..15i32),
        others in prop::collection::vec("[a-z \"\\\\{}\\[\\]:,\n]{0,12}", 0..3),
    ) {
        let mut calls = vec![("get_weather", Map::from_iter([("city".to_owned(), Value::from(city))]))];
        if let Some(days) = days {
            calls[0].1.insert("days".to_owned(), Value::from(days));
        }
        calls.extend(others.into_iter().map(|text| ("calculator", Map::from_iter([("expression".to_owned(), json!(text))]))));
        for name in names() {
            // A model of this family makes one call at a time.
            let calls = &calls[..if family(name).calls.parallel { calls.len() } else { 1 }];
            let tools = auto();
            let schema = |name: &str| tools.get(name).expect("a tool").schema();
            let text = family(name).written(calls.iter().map(|(name, arguments)| (*name, arguments)), schema);
            let answer = parse(family(name), &tools, ThinkingState::Possible, [text.as_str()]);
            prop_assert!(answer.content.is_empty() && answer.reasoning.is_empty(), "{}: {:?} {:?}", name, text, answer);
            let read: Vec<(&str, Value)> = answer
                .calls
                .iter()
                .map(|call| (call.name.as_str(), serde_json::from_str(&call.arguments).expect("JSON")))
                .collect();
            let written: Vec<(&str, Value)> = calls.iter().map(|(name, arguments)| (*name, Value::Object(arguments.clone()))).collect();
            prop_assert_eq!(read, written, "{}: {:?}", name, text);
        }
    }
}
