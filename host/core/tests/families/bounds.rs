//! What an attacker would have a model write: the parser takes each at its bounds and past them.
use std::sync::Arc;

use camshaft_core::family::description::{ContentForm, ThinkingState};
use camshaft_core::family::detect::names;
use camshaft_core::family::event::Event;
use camshaft_core::family::parser::Parser;
use camshaft_core::family::tools::{Tool, ToolChoice, Tools};
use camshaft_core::limits;

use crate::goldens::{self, cut};
use crate::support::{auto, family, parse, parse_as, tools};

const BYTES: usize = 2 << 20;

/// The longest text that any family may hold back, with room.
const HELD: usize = 2048;

/// Feeds a long text in small pieces, and checks that what was held back never grows. `lost`: at most, of a call that was cut.
fn is_bounded(name: &str, text: &str, lost: usize) {
    let mut parser = Parser::new(family(name), auto(), ContentForm::Text, ThinkingState::Possible);
    let (mut given, mut passed) = (0, 0);
    let shown: String = text.chars().take(40).collect();
    for piece in cut(text, &[1, 7, 4096]) {
        given += piece.len();
        passed += parser.push(piece).iter().map(length).sum::<usize>();
        assert!(given < passed + HELD, "{name} holds back {} bytes of {shown:?}…", given - passed);
    }
    passed += parser.finish().iter().map(length).sum::<usize>();
    assert!((text.len() - lost..=text.len()).contains(&passed), "{name} loses text of {shown:?}…");
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
            is_bounded(name, &letter.repeat(BYTES / letter.len() / 8), 0);
        }
    }
    is_bounded("hermes", &"<".repeat(BYTES), 0);
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
        // The last one is a call that was cut.
        is_bounded(name, &beginning.repeat(BYTES / 4 / beginning.len()), beginning.len());
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
fn regression_numbers_in_braces_have_any_number_of_digits() {
    for digits in [128, 129, 100_000] {
        let number = "1".repeat(digits);
        let text = format!("<|tool_call>call:get_weather{{days:{number},hours:-{number}.{number}e9}}<tool_call|>");
        let expected = format!("{{\"days\": {number}, \"hours\": -{number}.{number}e9}}");
        let pieces = cut(&text, &[1, 7]);
        for pieces in [vec![text.as_str()], pieces] {
            let answer = parse(family("gemma4"), &auto(), ThinkingState::Possible, pieces);
            assert!(answer.calls[0].complete && answer.calls[0].arguments == expected, "{digits}");
        }
    }
    let mut parser = Parser::new(family("gemma4"), auto(), ContentForm::Text, ThinkingState::Possible);
    parser.push("<|tool_call>call:get_weather{days:1");
    assert_eq!(parser.push("2"), [Event::ToolArguments { index: 0, delta: "2".to_owned() }]);
}

/// Whether a text is a call and nothing else.
fn is_call(name: &str, text: &str) -> bool {
    let answer = parse(family(name), &auto(), ThinkingState::Possible, [text]);
    answer.content.is_empty() && answer.calls.len() == 1 && answer.calls[0].complete
}

#[test]
fn whitespace_between_two_parts_has_32_characters_and_not_one_more() {
    let call = |spaces: usize| {
        format!("<tool_call>{}{{\"name\": \"get_time\", \"arguments\": {{}}}}</tool_call>", " ".repeat(spaces))
    };
    assert!(is_call("hermes", &call(32)) && !is_call("hermes", &call(33)));
}

#[test]
fn a_call_has_4_members_up_to_its_arguments_and_4_after_them_of_64_bytes() {
    let call = |before: usize, after: usize, bytes: usize| {
        let member = format!("\"id\": \"{}\"", "x".repeat(bytes));
        let (before, after) = (format!("{member}, ").repeat(before), format!(", {member}").repeat(after));
        format!("<tool_call>{{{before}\"name\": \"get_time\", \"arguments\": {{}}{after}}}</tool_call>")
    };
    assert!(is_call("hermes", &call(2, 0, 1)) && !is_call("hermes", &call(3, 0, 1)));
    assert!(is_call("hermes", &call(0, 4, 1)) && !is_call("hermes", &call(0, 5, 1)));
    assert!(is_call("hermes", &call(1, 1, 64)) && !is_call("hermes", &call(1, 0, 65)));
    assert!(!is_call("hermes", &call(0, 1, 65)));
}

#[test]
fn names_have_64_bytes_and_keys_128_and_not_one_more() {
    let tool = |bytes: usize| format!("<tool_call>{{\"name\": \"{}\", \"arguments\": {{}}}}", "x".repeat(bytes));
    let named = Tool { name: "x".repeat(64), description: None, parameters: None, strict: false };
    let tools = Arc::new(Tools::new(vec![named], &ToolChoice::Auto, false).expect("a tool"));
    for (bytes, calls) in [(64, 1), (65, 0)] {
        let answer = parse(family("hermes"), &tools, ThinkingState::Possible, [tool(bytes).as_str()]);
        assert_eq!(answer.calls.len(), calls, "{bytes}");
    }
    for (bytes, fits) in [(128, true), (129, false)] {
        let key = "k".repeat(bytes);
        let elements =
            format!("<tool_call><function=get_time><parameter={key}>\nx\n</parameter></function></tool_call>");
        assert_eq!(is_call("qwen3-coder", &elements), fits, "{bytes}");
        assert_eq!(is_call("gemma4", &format!("<|tool_call>call:get_time{{{key}:1}}<tool_call|>")), fits, "{bytes}");
        let quoted = format!("<|tool_call>call:get_time{{<|\"|>{key}<|\"|>:1}}<tool_call|>");
        assert_eq!(is_call("gemma4", &quoted), fits, "{bytes}");
    }
}

#[test]
fn a_parser_knows_whether_thinking_comes_next() {
    let mut parser = Parser::new(family("hermes"), auto(), ContentForm::Text, ThinkingState::Possible);
    for (piece, thinks) in [("<thi", false), ("nk>", true), ("Hm.</", true), ("think>", false), ("Four.", false)] {
        parser.push(piece);
        assert_eq!(parser.is_thinking(), thinks, "{piece}");
    }
    assert!(Parser::new(family("hermes"), auto(), ContentForm::Text, ThinkingState::Open).is_thinking());
    assert!(!Parser::new(family("llama3"), auto(), ContentForm::Text, ThinkingState::Open).is_thinking());
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
        ("llama3", "", "<|python_tag|>{}"),
    ] {
        let json = format!("{{\"text\": \"{marker}\"}}");
        let text = format!("{begin}{json}");
        for pieces in [vec![text.as_str()], cut(&text, &[1])] {
            let answer = parse_as(family(name), &auto(), ContentForm::Json, ThinkingState::Possible, pieces);
            assert_eq!(answer.content.trim_start(), json, "{name}");
            assert!(answer.calls.is_empty(), "{name}");
        }
        let title = if name == "llama3" { "one call after the tag" } else { "thinking, then a call" };
        let call = &goldens::of(name).into_iter().find(|golden| golden.title == title).expect("a call");
        let answer = parse_as(family(name), &auto(), ContentForm::Json, ThinkingState::Possible, [call.text.as_str()]);
        assert_eq!(answer, call.answer, "{name}");
    }
}

/// Where content is JSON and calls are not required, an object is content, as the grammar has it.
#[test]
fn regression_json_content_that_looks_like_a_call_is_content() {
    let json = "{\"name\": \"get_time\", \"parameters\": {}}";
    for (choice, content, calls) in [(ToolChoice::Auto, json, 0), (ToolChoice::Required, "", 1)] {
        for pieces in [vec![json], cut(json, &[1])] {
            let tools = tools(&choice, true);
            let answer = parse_as(family("llama3"), &tools, ContentForm::Json, ThinkingState::Off, pieces);
            assert_eq!((answer.content.as_str(), answer.calls.len()), (content, calls), "{choice:?}");
        }
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
