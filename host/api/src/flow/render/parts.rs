//! Takes a chat's answer apart as it comes: content, thinking and calls, by ids that clients know.
use camshaft_core::family::event::Event;
use camshaft_core::family::parser::Parser;
use camshaft_core::message::FinishReason;

use super::Finish;
use crate::flow::request::GenerationRequest;

/// A part of an answer. Calls are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Content(String),
    Reasoning(String),
    Call {
        index: usize,
        id: String,
        name: String,
    },
    /// More of a call's arguments, which are JSON.
    Arguments {
        index: usize,
        text: String,
    },
}

/// See the module.
#[derive(Debug)]
pub(super) struct PartReader {
    /// `None`: all is content.
    parser: Option<Parser>,
    /// Calls that are complete.
    calls: usize,
    /// Tokens that were thinking.
    reasoning_tokens: u64,
}

impl PartReader {
    pub(super) fn new(request: &GenerationRequest) -> Self {
        let parser = request.form.parts.as_ref().map(|parts| parts.parser());
        Self { parser, calls: 0, reasoning_tokens: 0 }
    }

    /// Takes more of the text, which so many tokens spell.
    pub(super) fn push(&mut self, request: &GenerationRequest, text: &str, tokens: u32) -> Vec<Part> {
        let Some(parser) = &mut self.parser else {
            return if text.is_empty() { Vec::new() } else { vec![Part::Content(text.to_owned())] };
        };
        if parser.is_thinking() {
            self.reasoning_tokens += u64::from(tokens);
        }
        let events = parser.push(text);
        self.parts(request, events)
    }

    /// The text has ended.
    pub(super) fn finish(&mut self, request: &GenerationRequest) -> Vec<Part> {
        let events = self.parser.as_mut().map(Parser::finish).unwrap_or_default();
        self.parts(request, events)
    }

    /// Why the answer ended. One that was cut within a call has ended for its length.
    pub(super) fn finish_reason(&self, reason: FinishReason) -> Finish {
        match Finish::from(reason) {
            Finish::Stop if self.calls > 0 => Finish::ToolCalls,
            reason => reason,
        }
    }

    pub(super) fn reasoning_tokens(&self) -> u64 {
        self.reasoning_tokens
    }

    fn parts(&mut self, request: &GenerationRequest, events: Vec<Event>) -> Vec<Part> {
        let part = |event| match event {
            Event::Content(text) => Some(Part::Content(text)),
            Event::Reasoning(text) => Some(Part::Reasoning(text)),
            Event::ToolCallBegin { index, name, id } => {
                let id = id.unwrap_or_else(|| request.call_id());
                Some(Part::Call { index, id, name })
            }
            Event::ToolArguments { index, delta } => Some(Part::Arguments { index, text: delta }),
            Event::ToolCallEnd { .. } => {
                self.calls += 1;
                None
            }
        };
        events.into_iter().filter_map(part).collect()
    }
}
