//! What the families' grammars take, and what they do not.
use camshaft_core::family::constraint::{Content, constraint};
use camshaft_core::family::description::{Thinking, ThinkingState};
use camshaft_core::family::detect::names;
use camshaft_core::family::tools::{Tool, ToolChoice, Tools};
use serde_json::json;

use crate::goldens;
use crate::support::{auto, family, tools};
use crate::vocabulary::Vocabulary;

/// How much of a text a grammar takes, and whether the answer may end there.
fn takes(vocabulary: &Vocabulary, name: &str, tools: &Tools, thinking: ThinkingState, text: &str) -> (usize, bool) {
    let mut matcher = vocabulary.matcher(&vocabulary.grammar(family(name), tools, thinking));
    let tokens = vocabulary.tokens(text);
    let taken = matcher.try_consume_tokens(&tokens).expect("a grammar that goes on");
    (vocabulary.text(&tokens[..taken]).len(), taken == tokens.len() && matcher.is_accepting().expect("a state"))
}

/// Vocabularies with a family's control tokens, and without.
fn vocabularies(name: &str) -> [Vocabulary; 2] {
    [Vocabulary::new(family(name).special), Vocabulary::new(&[])]
}

/// Titles of transcripts that are as models are meant to write.
const WELL_FORMED: [&str; 9] = [
    "plain text",
    "one call",
    "two calls",
    "text, then a call",
    "thinking, then a call",
    "thinking, then text",
    "thinking twice",
    "thinking that the prompt opened, then text (thinking is open)",
    "thinking that the prompt opened, then a call (thinking is open)",
];

#[test]
fn grammars_take_the_well_formed_transcripts_of_their_family() {
    for name in names() {
        for vocabulary in vocabularies(name) {
            let mut taken = 0;
            for golden in goldens::of(name).into_iter().filter(|golden| WELL_FORMED.contains(&golden.title.as_str())) {
                if name == "harmony" && golden.title == "two calls" {
                    continue;
                }
                // What ends a turn is no part of a grammar.
                let text = golden.text.trim_end_matches("<|call|>").trim_end_matches("<|return|>");
                let found = takes(&vocabulary, name, &auto(), golden.thinking, text);
                assert_eq!(found, (text.len(), true), "{name}: {} {:?}", golden.title, text.get(found.0..));
                taken += 1;
            }
            assert!(taken >= 4, "{name}: {taken}");
        }
    }
}

/// Where the answer must call, only calls are taken.
#[test]
fn a_required_call_is_the_only_answer() {
    let required = tools(&ToolChoice::Required, true);
    for name in names() {
        for vocabulary in vocabularies(name) {
            for golden in goldens::of(name) {
                let text = golden.text.trim_end_matches("<|call|>");
                let (taken, ends) = takes(&vocabulary, name, &required, golden.thinking, text);
                match golden.title.as_str() {
                    "one call" | "thinking, then a call" => {
                        assert!(ends, "{name}: {} {:?}", golden.title, &text[taken..])
                    }
                    "plain text" => assert!(!ends && taken < text.len(), "{name}: {taken}"),
                    _ => {}
                }
            }
            let (_, ends) = takes(&vocabulary, name, &required, ThinkingState::Possible, "");
            assert!(!ends, "{name} takes an empty answer");
        }
    }
}

#[test]
fn a_named_tool_is_the_only_one_that_is_called() {
    let named = tools(&ToolChoice::Named("calculator".into()), true);
    let allowed = tools(&ToolChoice::Allowed { names: vec!["calculator".into()], required: false }, true);
    for name in names() {
        for vocabulary in vocabularies(name) {
            let goldens = goldens::of(name);
            let weather = goldens.iter().find(|golden| golden.title == "one call").expect("a call");
            for tools in [&named, &allowed] {
                let text = weather.text.trim_end_matches("<|call|>");
                let (taken, ends) = takes(&vocabulary, name, tools, ThinkingState::Possible, text);
                assert!(!ends && taken < text.find("get_weather").expect("a name") + 3, "{name} takes {taken} bytes");
            }
        }
    }
}

#[test]
fn without_parallel_calls_an_answer_has_one() {
    let single = tools(&ToolChoice::Auto, false);
    for name in names() {
        for vocabulary in vocabularies(name) {
            let goldens = goldens::of(name);
            let text_of =
                |title: &str| goldens.iter().find(|golden| golden.title == title).expect("a transcript").text.clone();
            let (one, two) = (text_of("one call"), text_of("two calls"));
            let one = one.trim_end_matches("<|call|>");
            assert!(takes(&vocabulary, name, &single, ThinkingState::Possible, one).1, "{name}");
            assert!(!takes(&vocabulary, name, &single, ThinkingState::Possible, &two).1, "{name}");
        }
    }
}

#[test]
fn grammars_refuse_what_is_no_call() {
    let check = |name: &str, text: &str, taken: &str| {
        for vocabulary in vocabularies(name) {
            let found = takes(&vocabulary, name, &auto(), ThinkingState::Possible, text);
            assert_eq!(found, (taken.len(), false), "{name}: {text:?} is taken up to {:?}", &text[..found.0]);
        }
    };
    // An unknown tool, a value of another type, one out of its bounds, a missing argument, and text after a call.
    check("hermes", "<tool_call>\n{\"name\": \"rm\"", "<tool_call>\n{\"name\": \"");
    let weather = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": ";
    check("hermes", &format!("{weather}1}}"), weather);
    check("hermes", &format!("{weather}\"a\", \"days\": 15}}"), &format!("{weather}\"a\", \"days\": 1"));
    let calculator = "Hm. <tool_call>\n{\"name\": \"calculator\", \"arguments\": {";
    check("hermes", &format!("{calculator}}}"), calculator);
    let call = "<tool_call>\n{\"name\": \"get_time\", \"arguments\": {}}\n</tool_call>";
    check("hermes", &format!("{call}\nDone."), &format!("{call}\n"));
    // A marker in text, also in other words.
    check("hermes", "Use <tool_call> for calls.", "Use <tool_call>");
    check("mistral", "Use [TOOL_CALLS] for calls.", "Use [TOOL_CALLS] ");
    check("llama3", "{\"city\": \"Paris\"}", "{\"");
    check("llama3", " {\"name\": \"rm\"", " ");
    check(
        "qwen3-coder",
        "<tool_call>\n<function=get_weather>\n<parameter=days>",
        "<tool_call>\n<function=get_weather>\n<parameter=",
    );
    check("gemma4", "<|tool_call>call:get_weather{city:1", "<|tool_call>call:get_weather{city:");
    check("harmony", "Four.", "");
}

/// Control tokens are no text, and neither are their names in other tokens.
#[test]
fn free_text_has_no_marker_in_any_tokens() {
    let vocabulary = Vocabulary::new(family("mistral").special);
    let mut matcher = vocabulary.matcher(&vocabulary.grammar(family("mistral"), &auto(), ThinkingState::Possible));
    let bytes: Vec<u32> = b"a [TOOL_CALLS]".iter().map(|byte| u32::from(*byte)).collect();
    assert_eq!(matcher.try_consume_tokens(&bytes).expect("a state"), bytes.len() - 1);
}

#[test]
fn text_without_tools_needs_no_grammar() {
    let none = tools(&ToolChoice::None, true);
    for name in names() {
        let grammar = constraint(family(name), &none, Content::Text, ThinkingState::Possible, &|_| None);
        assert_eq!(grammar, Ok(None));
    }
}

/// What an answer of JSON is with its family's framing, and whether the grammar takes it.
fn json_answer(name: &str, tools: &Tools, text: &str, vocabulary: &Vocabulary) -> bool {
    let schema = json!({ "type": "object", "properties": { "sum": { "type": "integer" } }, "required": ["sum"] });
    let content = Content::Json(&schema);
    let grammar = vocabulary.grammar_with(family(name), tools, content, ThinkingState::Possible);
    let mut matcher = vocabulary.matcher(&grammar);
    let tokens = vocabulary.tokens(text);
    matcher.try_consume_tokens(&tokens).expect("a state") == tokens.len() && matcher.is_accepting().expect("a state")
}

#[test]
fn json_is_content_after_thinking_or_instead_of_calls() {
    let none = tools(&ToolChoice::None, true);
    let required = tools(&ToolChoice::Required, true);
    for name in names() {
        for vocabulary in vocabularies(name) {
            let family = family(name);
            let begin = family.channels.as_ref().map_or("", |channels| channels.answer);
            let next = family.channels.as_ref().map_or("", |channels| channels.next);
            let goldens = goldens::of(name);
            let title = if family.calls.unmarked { "one call after the tag" } else { "one call" };
            let call = &goldens.iter().find(|golden| golden.title == title).expect("a call").text;
            let call = call.trim_end_matches("<|call|>");
            let thought = |thinking: &Thinking| format!("{}Hm.{}{next}", thinking.begin, thinking.end);
            let thought = family.thinking.as_ref().map_or(String::new(), thought);
            for tools in [&none, &auto()] {
                let answer = format!("{thought}{begin}{{\"sum\": 4}}");
                assert!(json_answer(name, tools, &answer, &vocabulary), "{name} {answer}");
                assert!(!json_answer(name, tools, &format!("{thought}{begin}Four."), &vocabulary), "{name}");
                assert!(!json_answer(name, tools, &format!("{begin}{{}}"), &vocabulary), "{name}");
            }
            assert!(json_answer(name, &auto(), call, &vocabulary), "{name}");
            assert!(json_answer(name, &required, call, &vocabulary), "{name}");
            assert!(!json_answer(name, &none, call, &vocabulary), "{name}");
            assert!(!json_answer(name, &required, &format!("{begin}{{\"sum\": 4}}"), &vocabulary), "{name}");
        }
    }
}

#[test]
fn an_argument_whose_name_the_notation_cannot_write_is_refused() {
    let tool = |key: &str| {
        let parameters = json!({ "properties": { "where": { "type": "object", "properties": { key: {} } }, key: {} } });
        let tool = Tool { name: "f".into(), description: None, parameters: Some(parameters), strict: false };
        Tools::new(vec![tool], &ToolChoice::Auto, true).expect("good tools")
    };
    for (name, key) in [("qwen3-coder", "a>b"), ("qwen3-coder", "a\nb"), ("gemma4", "a:b"), ("gemma4", "a}")] {
        let error = constraint(family(name), &tool(key), Content::Text, ThinkingState::Off, &|_| None).unwrap_err();
        assert!(error.to_string().contains(&format!("{key:?}")), "{error}");
    }
    for (name, bytes) in [("qwen3-coder", 128), ("gemma4", 128)] {
        let grammar =
            |bytes| constraint(family(name), &tool(&"k".repeat(bytes)), Content::Text, ThinkingState::Off, &|_| None);
        assert!(grammar(bytes).is_ok() && grammar(bytes + 1).is_err());
    }
    assert!(constraint(family("hermes"), &tool("a>b\n:}"), Content::Text, ThinkingState::Off, &|_| None).is_ok());
}
