//! Golden transcripts: what each family's models write, and what it means.
use std::fs;
use std::path::PathBuf;

use camshaft_core::family::description::ThinkingState;
use camshaft_core::family::detect::names;
use camshaft_core::family::tools::ToolChoice;
use proptest::prelude::*;
use serde_json::Value;

use crate::support::{Answer, Call, auto, family, parse, tools};

pub(crate) struct Golden {
    pub(crate) title: String,
    pub(crate) thinking: ThinkingState,
    pub(crate) text: String,
    pub(crate) answer: Answer,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/families/goldens")
}

/// The transcripts of a family: `== title`, the text, `--`, and the answer as JSON.
pub(crate) fn of(name: &str) -> Vec<Golden> {
    let file = fs::read_to_string(folder().join(format!("{name}.txt"))).expect("every family has transcripts");
    let cases = file.strip_prefix("== ").expect("a title").split("\n== ");
    cases.map(golden).collect()
}

fn golden(case: &str) -> Golden {
    let (title, rest) = case.split_once('\n').expect("a text after the title");
    let (text, expected) = rest.split_once("\n--\n").expect("an answer after the text");
    let expected: Value = serde_json::from_str(expected).unwrap_or_else(|error| panic!("{title}: {error}"));
    let of = |key: &str| expected.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let calls = expected.get("calls").and_then(Value::as_array).into_iter().flatten();
    let text_of = |value: &Value| value.as_str().expect("a string").to_owned();
    let call = |(at, call): (usize, &Value)| Call {
        name: text_of(&call[0]),
        id: expected["ids"].get(at.to_string()).map(text_of),
        arguments: text_of(&call[1]),
        complete: call[2] == "complete",
    };
    Golden {
        title: title.to_owned(),
        thinking: if title.contains("(thinking is open)") { ThinkingState::Open } else { ThinkingState::Possible },
        text: text.to_owned(),
        answer: Answer {
            reasoning: of("reasoning"),
            content: of("content"),
            calls: calls.enumerate().map(call).collect(),
        },
    }
}

#[test]
fn every_family_reads_its_golden_transcripts() {
    for name in names() {
        let goldens = of(name);
        assert!(goldens.len() >= 6, "{name} has only {} transcripts", goldens.len());
        for golden in goldens {
            let answer = parse(family(name), &auto(), golden.thinking, [golden.text.as_str()]);
            assert_eq!(answer, golden.answer, "{name}: {}", golden.title);
        }
    }
}

#[test]
fn transcripts_read_the_same_cut_anywhere() {
    for name in names() {
        for golden in of(name) {
            let text = golden.text.as_str();
            let ends: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
            for &at in &ends {
                let answer = parse(family(name), &auto(), golden.thinking, [&text[..at], &text[at..]]);
                assert_eq!(answer, golden.answer, "{name}: {}, cut at {at}", golden.title);
            }
            let single = ends.windows(2).map(|ends| &text[ends[0]..ends[1]]);
            let answer = parse(family(name), &auto(), golden.thinking, single);
            assert_eq!(answer, golden.answer, "{name}: {}, by characters", golden.title);
        }
    }
}

#[test]
fn an_answer_that_is_cut_has_no_beginning_of_a_call_in_its_text() {
    let required = tools(&ToolChoice::Required, true);
    for name in names() {
        let family = family(name);
        let calls = &family.calls;
        let markers = calls.begins.iter().copied().chain([calls.open]).chain(family.framing.iter().copied());
        let markers = markers.chain(family.special.iter().copied());
        let markers: Vec<&str> = markers.chain(family.thinking.iter().map(|thinking| thinking.begin)).collect();
        for golden in of(name) {
            let ends = (0..=golden.text.len()).filter(|at| golden.text.is_char_boundary(*at));
            for text in ends.map(|at| &golden.text[..at]) {
                let content = parse(family, &auto(), golden.thinking, [text]).content;
                let told =
                    content.bytes().zip(golden.answer.content.bytes()).take_while(|(one, other)| one == other).count();
                // It may still have been text.
                let rest = content[told..].trim_start();
                let begins = |marker: &&str| marker.starts_with(rest) && *marker != rest;
                assert!(
                    rest.is_empty() || markers.iter().any(begins),
                    "{name}: {}: {text:?} has {content:?}",
                    golden.title
                );
                if golden.answer.content.is_empty() && !golden.answer.calls.is_empty() {
                    let content = parse(family, &required, golden.thinking, [text]).content;
                    assert_eq!(content, "", "{name}: {}: {text:?}", golden.title);
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn transcripts_read_the_same_in_random_pieces(lengths in prop::collection::vec(1usize..12, 1..40)) {
        for name in names() {
            for golden in of(name) {
                let pieces = cut(&golden.text, &lengths);
                let answer = parse(family(name), &auto(), golden.thinking, pieces);
                prop_assert_eq!(&answer, &golden.answer, "{}: {}", name, golden.title);
            }
        }
    }
}

/// Pieces of so many bytes in turn, longer where a character is.
pub(crate) fn cut<'a>(mut text: &'a str, lengths: &[usize]) -> Vec<&'a str> {
    let mut pieces = Vec::new();
    for length in lengths.iter().cycle() {
        if text.is_empty() {
            break;
        }
        let (piece, rest) = text.split_at(text.ceil_char_boundary(*length));
        pieces.push(piece);
        text = rest;
    }
    pieces
}
