//! Tools, and answers taken apart.
use std::sync::Arc;

use camshaft_core::family::description::{ContentForm, Family, ThinkingState};
use camshaft_core::family::detect::FamilyName;
use camshaft_core::family::event::Event;
use camshaft_core::family::parser::Parser;
use camshaft_core::family::tools::{Tool, ToolChoice, Tools};
use serde_json::{Value, json};

/// What an answer is, however it came.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) reasoning: String,
    pub(crate) content: String,
    pub(crate) calls: Vec<Call>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) name: String,
    pub(crate) id: Option<String>,
    pub(crate) arguments: String,
    pub(crate) complete: bool,
}

pub(crate) fn family(name: &str) -> &'static Family {
    name.parse::<FamilyName>().expect("a family").0
}

fn tool(name: &str, parameters: Option<Value>) -> Tool {
    Tool { name: name.to_owned(), description: None, parameters, strict: false }
}

pub(crate) fn three_tools() -> Vec<Tool> {
    let weather = json!({
        "type": "object",
        "properties": { "city": { "type": "string" }, "days": { "type": "integer", "minimum": 1, "maximum": 14 } },
        "required": ["city"],
        "additionalProperties": false,
    });
    let calculator =
        json!({ "type": "object", "properties": { "expression": { "type": "string" } }, "required": ["expression"] });
    vec![tool("get_weather", Some(weather)), tool("calculator", Some(calculator)), tool("get_time", None)]
}

pub(crate) fn tools(choice: &ToolChoice, parallel: bool) -> Arc<Tools> {
    Arc::new(Tools::new(three_tools(), choice, parallel).expect("good tools"))
}

pub(crate) fn auto() -> Arc<Tools> {
    tools(&ToolChoice::Auto, true)
}

pub(crate) fn parse<'a>(
    family: &'static Family,
    tools: &Arc<Tools>,
    thinking: ThinkingState,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Answer {
    parse_as(family, tools, ContentForm::Text, thinking, pieces)
}

pub(crate) fn parse_as<'a>(
    family: &'static Family,
    tools: &Arc<Tools>,
    form: ContentForm,
    thinking: ThinkingState,
    pieces: impl IntoIterator<Item = &'a str>,
) -> Answer {
    let mut parser = Parser::new(family, tools.clone(), form, thinking);
    let mut answer = Answer::default();
    for piece in pieces {
        answer.take(parser.push(piece));
    }
    answer.take(parser.finish());
    answer
}

impl Answer {
    fn take(&mut self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Content(text) => self.content += &text,
                Event::Reasoning(text) => self.reasoning += &text,
                Event::ToolCallBegin { index, name, id } => {
                    assert_eq!(index, self.calls.len(), "calls are counted in their order");
                    self.calls.push(Call { name, id, arguments: String::new(), complete: false });
                }
                Event::ToolArguments { index, delta } => {
                    assert_eq!(index + 1, self.calls.len(), "arguments are those of the last call");
                    self.calls[index].arguments += &delta;
                }
                Event::ToolCallEnd { index } => {
                    assert_eq!(index + 1, self.calls.len(), "the last call ends");
                    self.calls[index].complete = true;
                }
            }
        }
    }
}
