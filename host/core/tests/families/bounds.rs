//! What an attacker would have a model write: the parser takes each at its bounds and past them.
use std::sync::Arc;

use camshaft_core::family::description::{ContentForm, ThinkingState};
use camshaft_core::family::detect::names;
use camshaft_core::family::event::Event;
use camshaft_core::family::parser::Parser;
use camshaft_core::family::tools::Tools;
use camshaft_core::limits;

use crate::goldens::{self, cut};
use crate::support::{auto, family, parse, parse_as};

const BYTES: usize = 2 << 20;

/// The longest text that any family may hold back, with room.
const HELD: usize = 2048;

/// Feeds a long text in small pieces, and checks that what was held back never grows.
fn is_bounded(name: &str, text: &str) {
    let mut parser = Parser::new(family(name), auto(), ContentForm::Text, ThinkingState::Possible);
    let (mut given, mut passed) = (0, 0);
    let shown: String = text.chars().take(40).collect();
    for piece in cut(text, &[1, 7, 4096]) {
        given += piece.len();
        passed += parser.push(piece).iter().map(length).sum::<usize>();
        assert!(given < passed + HELD, "{name} holds back {} bytes of {shown:?}…", given - passed);
    }
    passed += parser.finish().iter().map(length).sum::<usize>();
    assert_eq!(passed, text.len(), "{name} loses text of {shown:?}…");
}

fn length(event: &Event) -> usize {
    match event {
        Event::Content(text) | Event::Reasoning(text) => text.len(),
        Event::ToolArguments { delta, .. } => delta.len(),
        Event::ToolCallBegin { .. } | Event::ToolCallEnd { .. } => 0,
    }
}

#[test]
fn megabytes_of_one_letter_pass_through_every_family_at_once() {
    for name in names() {
        for letter in ["a", "<", "[", "{", "`", "\"", "｜", "x\n"] {
            is_bounded(name, &letter.repeat(BYTES / letter.len() / 8));
        }
    }
    is_bounded("hermes", &"<".repeat(BYTES));
}

#[test]
fn megabytes_of_beginnings_of_calls_that_are_none_are_content() {
    let beginnings = [
        ("hermes", "<tool_call>\n{\"name\": \"get_we"),
        ("hermes", "<tool_call>{\"id\":\"x\",\"id\":\"x\",\"id\":\"x\",\"id\":\"x\","),
        ("generic", "<tool_call>{                              "),
        ("mistral", "[TOOL_CALLS][{\"name\": \"get_weather\", \"x\""),
        ("mistral-v11", "[TOOL_CALLS]get_weather[ARG"),
        ("deepseek-r1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```jso"),
        ("harmony", "<|channel|>commentary to=functions.get_weather <|constrain|>json"),
        ("gemma4", "<|tool_call>call:get_weathe"),
        ("qwen3-coder", "<tool_call>\n<function=get_weathe"),
    ];
    for (name, beginning) in beginnings {
        is_bounded(name, &beginning.repeat(BYTES / 4 / beginning.len()));
    }
}

#[test]
fn megabytes_of_calls_that_break_off_take_no_longer_than_other_text() {
    let tag = "<tool_call>\n<function=get_weather>\n<parameter=";
    let answer =
        parse(family("qwen3-coder"), &auto(), ThinkingState::Possible, [tag.repeat(BYTES / tag.len()).as_str()]);
    assert_eq!(answer.calls.len(), limits::CALLS);
    let call = "<|tool_call>call:get_weather{days:1";
    let answer = parse(family("gemma4"), &auto(), ThinkingState::Possible, [call.repeat(BYTES / call.len()).as_str()]);
    assert_eq!(answer.calls.len(), limits::CALLS);
}

#[test]
fn an_answer_has_128_calls_and_what_follows_is_text() {
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    for (count, content) in [(128, ""), (129, call)] {
        let answer = parse(family("hermes"), &auto(), ThinkingState::Possible, [call.repeat(count).as_str()]);
        assert_eq!(answer.calls.len(), 128);
        assert!(answer.calls.iter().all(|call| call.complete));
        assert_eq!(answer.content, content);
    }
}

#[test]
fn arguments_may_have_127_levels_and_not_one_more() {
    for (levels, complete) in [(126, true), (127, false)] {
        let arguments = format!("{{\"expression\": {}{}}}", "[".repeat(levels), "]".repeat(levels));
        let text = format!("[TOOL_CALLS]calculator[ARGS]{arguments}");
        let answer = parse(family("mistral-v11"), &auto(), ThinkingState::Possible, [text.as_str()]);
        assert_eq!(answer.calls[0].complete, complete, "{levels}");
    }
}

#[test]
fn arguments_stream_as_they_come() {
    let mut parser = Parser::new(family("hermes"), auto(), ContentForm::Text, ThinkingState::Possible);
    parser.push("<tool_call>\n{\"name\": \"calculator\", \"arguments\": ");
    for piece in ["{", "\"expr", "ession\": \"1 ", "+ 1\"", "}"] {
        let events = parser.push(piece);
        let delta = events.iter().map(|event| format!("{event:?}")).collect::<String>();
        assert!(delta.contains(&format!("{piece:?}")), "{piece:?} gives {delta}");
    }
}

#[test]
fn without_tools_calls_are_text_and_thinking_is_thinking() {
    let none = Arc::new(Tools::none());
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    let text = format!("<think>Hm.</think>{call}");
    let answer = parse(family("hermes"), &none, ThinkingState::Possible, [text.as_str()]);
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("Hm.", call));
    let answer = parse(family("hermes"), &none, ThinkingState::Off, [text.as_str()]);
    assert_eq!((answer.reasoning.as_str(), answer.content.as_str()), ("", text.as_str()));
}

/// Where content is JSON, a client's own text in it cannot become a call, and no part of it is lost.
#[test]
fn markers_within_json_content_are_content() {
    for (name, begin, marker) in [
        ("mistral-v11", "", "[TOOL_CALLS]get_time[ARGS]{}"),
        ("qwen3-coder", "\n", "<tool_call><function=get_time></function></tool_call>"),
        ("granite", "<think>Hm.</think>", "<response>"),
        ("harmony", "<|channel|>final<|message|>", "<|end|><|start|>assistant<|channel|>analysis<|message|>"),
    ] {
        let json = format!("{{\"text\": \"{marker}\"}}");
        let text = format!("{begin}{json}");
        for pieces in [vec![text.as_str()], cut(&text, &[1])] {
            let answer = parse_as(family(name), &auto(), ContentForm::Json, ThinkingState::Possible, pieces);
            assert_eq!(answer.content.trim_start(), json, "{name}");
            assert!(answer.calls.is_empty(), "{name}");
        }
        let call =
            &goldens::of(name).into_iter().find(|golden| golden.title == "thinking, then a call").expect("a call");
        let answer = parse_as(family(name), &auto(), ContentForm::Json, ThinkingState::Possible, [call.text.as_str()]);
        assert_eq!(answer, call.answer, "{name}");
    }
}

#[test]
fn thinking_that_a_prompt_opens_is_seen_at_its_end() {
    let check = |name: &str, prompt: &str, expected| {
        assert_eq!(family(name).thinking_after(prompt), expected, "{name} {prompt:?}")
    };
    check("hermes", "<|im_start|>assistant\n", ThinkingState::Possible);
    check("hermes", "<|im_start|>assistant\n<think>\n", ThinkingState::Open);
    check("hermes", "<|im_start|>assistant\n<think>\n\n</think>\n\n", ThinkingState::Possible);
    check("deepseek-v3.1", "<｜Assistant｜><think>", ThinkingState::Open);
    check("harmony", "<|start|>assistant", ThinkingState::Possible);
    check("llama3", "<think>", ThinkingState::Off);
}
