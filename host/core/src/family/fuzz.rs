//! Entry point of a fuzz target: the incremental parser of answers.
use std::sync::{Arc, LazyLock};

use serde::de::IgnoredAny;

use crate::family::description::{ContentForm, ThinkingState};
use crate::family::event::Event;
use crate::family::known::FAMILIES;
use crate::family::parser::Parser;
use crate::family::tools::{Tool, ToolChoice, Tools};

static TOOLS: LazyLock<Arc<Tools>> = LazyLock::new(|| {
    let schema = serde_json::json!({ "properties": { "city": { "type": "string" }, "days": { "type": "integer" } } });
    let tool =
        |name: &str| Tool { name: name.into(), description: None, parameters: Some(schema.clone()), strict: false };
    let tools = Tools::new(vec![tool("f"), tool("get_weather")], &ToolChoice::Auto, true);
    Arc::new(tools.unwrap_or_else(|_| Tools::none()))
});

/// Parses an answer whole and in pieces. The first byte chooses the family, the second the state of thinking, the length of the
/// pieces and the form of content.
///
/// # Panics
/// If pieces make a difference, a complete call's arguments are no JSON, or events come in a wrong order.
pub fn answer(bytes: &[u8]) {
    let [family, how, text @ ..] = bytes else { return };
    let text = String::from_utf8_lossy(text);
    let family = FAMILIES[usize::from(*family) % FAMILIES.len()];
    let thinking = [ThinkingState::Off, ThinkingState::Possible, ThinkingState::Open][usize::from(*how) % 3];
    let form = if *how < 128 { ContentForm::Text } else { ContentForm::Json };
    let parse = |pieces: &mut dyn Iterator<Item = &str>| {
        let mut parser = Parser::new(family, TOOLS.clone(), form, thinking);
        let mut events: Vec<Event> = pieces.flat_map(|piece| parser.push(piece)).collect();
        events.extend(parser.finish());
        joined(events)
    };
    let whole = parse(&mut std::iter::once(&*text));
    let ends: Vec<usize> = (0..=text.len()).filter(|at| text.is_char_boundary(*at)).collect();
    let step = usize::from(*how) / 3 % 8 + 1;
    let mut pieces = ends.windows(step + 1).step_by(step).map(|ends| &text[ends[0]..ends[step]]);
    let rest = ends.len().saturating_sub(1) / step * step;
    let tail = &text[ends[rest]..];
    let cut = parse(&mut pieces.by_ref().chain(std::iter::once(tail)));
    assert_eq!(whole, cut, "{}", family.name);
    check(&whole);
}

/// The events with adjacent texts joined.
fn joined(events: Vec<Event>) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::new();
    for event in events {
        match (out.last_mut(), event) {
            (Some(Event::Content(last)), Event::Content(text))
            | (Some(Event::Reasoning(last)), Event::Reasoning(text)) => {
                last.push_str(&text);
            }
            (Some(Event::ToolArguments { delta: last, .. }), Event::ToolArguments { delta, .. }) => {
                last.push_str(&delta)
            }
            (_, event) => out.push(event),
        }
    }
    out
}

fn check(events: &[Event]) {
    let (mut begun, mut arguments) = (0, String::new());
    for event in events {
        match event {
            Event::Content(text) | Event::Reasoning(text) => assert!(!text.is_empty()),
            Event::ToolCallBegin { index, name, .. } => {
                assert!(*index == begun && TOOLS.get(name).is_some());
                begun += 1;
                arguments.clear();
            }
            Event::ToolArguments { index, delta } => {
                assert_eq!(index + 1, begun);
                arguments.push_str(delta);
            }
            Event::ToolCallEnd { index } => {
                assert_eq!(index + 1, begun);
                assert!(arguments.starts_with('{'), "{arguments}");
                assert!(serde_json::from_str::<IgnoredAny>(&arguments).is_ok(), "{arguments}");
            }
        }
    }
}
