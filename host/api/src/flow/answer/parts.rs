//! Takes an answer apart as it comes: content, thinking and calls, by ids that clients know. A completion is all content.
use std::sync::Arc;

use camshaft_core::family::event::Event;
use camshaft_core::family::parser::Parser;

use crate::flow::catalog::Served;
use crate::flow::constrain::Parts;
use crate::flow::notation::Notation;
use crate::flow::request::GenerationRequest;
use crate::wire::types::generation::Finish;

/// A part of an answer. Calls are counted from 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AnswerPart {
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

impl AnswerPart {
    /// What it brings: text, or the name of a call.
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Content(text) | Self::Reasoning(text) | Self::Arguments { text, .. } => text,
            Self::Call { name, .. } => name,
        }
    }
}

/// Splits the text of one choice into its parts.
#[derive(Debug)]
pub(super) struct PartParser {
    /// Makes ids of calls.
    served: Arc<Served>,
    /// `None`: all is content.
    parser: Option<Parser>,
    /// Whitespace at the end of the content so far, which is none of it if a call follows. Of answers that may have calls.
    gap: Option<String>,
    /// Calls that are complete.
    calls: usize,
    /// Tokens that were thinking.
    reasoning_tokens: u64,
}

/// How many of these tokens are thinking: a share of them, where what they spell is thinking in part.
fn reasoning_tokens(events: &[Event], was_thinking: bool, tokens: u32) -> u64 {
    let bytes = |event: &Event| match event {
        Event::Reasoning(text) => (text.len() as u64, 0),
        Event::Content(text) | Event::ToolArguments { delta: text, .. } => (0, text.len() as u64),
        Event::ToolCallBegin { name, .. } => (0, name.len() as u64),
        Event::ToolCallEnd { .. } => (0, 0),
    };
    let sum = |(thought, said): (u64, u64), event| (thought + bytes(event).0, said + bytes(event).1);
    match events.iter().fold((0, 0), sum) {
        // Markers, or text that is held back.
        (0, 0) => {
            if was_thinking {
                u64::from(tokens)
            } else {
                0
            }
        }
        (thought, said) => (u64::from(tokens) * thought).div_ceil(thought + said),
    }
}

impl PartParser {
    pub(super) fn new(request: &GenerationRequest) -> Self {
        let parts = request.form.parts.as_ref();
        let may_call = parts.is_some_and(|parts| !parts.tools.callable().is_empty());
        let (parser, gap) = (parts.map(Parts::parser), may_call.then(String::new));
        Self { served: request.served.clone(), parser, gap, calls: 0, reasoning_tokens: 0 }
    }

    /// Takes more of the text. `tokens`: how many that is.
    pub(super) fn push(&mut self, text: &str, tokens: u32) -> Vec<AnswerPart> {
        let Some(parser) = &mut self.parser else {
            return if text.is_empty() { Vec::new() } else { vec![AnswerPart::Content(text.to_owned())] };
        };
        let was_thinking = parser.is_thinking();
        let events = parser.push(text);
        self.reasoning_tokens += reasoning_tokens(&events, was_thinking, tokens);
        self.parts(events)
    }

    /// The text has ended.
    pub(super) fn finish(&mut self) -> Vec<AnswerPart> {
        let events = self.parser.as_mut().map(Parser::finish).unwrap_or_default();
        let mut parts = self.parts(events);
        parts.extend(self.take_gap().map(AnswerPart::Content));
        parts
    }

    /// Why the answer ended. One that was cut within a call has ended for its length.
    pub(super) fn finish_reason(&self, finish: Finish) -> Finish {
        match finish {
            Finish::Stop | Finish::StopString(_) if self.calls > 0 => Finish::ToolCalls,
            finish => finish,
        }
    }

    pub(super) fn reasoning_tokens(&self) -> u64 {
        self.reasoning_tokens
    }

    fn parts(&mut self, events: Vec<Event>) -> Vec<AnswerPart> {
        let mut parts = Vec::with_capacity(events.len());
        for event in events {
            match event {
                Event::Content(text) => parts.extend(self.content(text).map(AnswerPart::Content)),
                Event::Reasoning(text) => {
                    parts.extend(self.take_gap().map(AnswerPart::Content));
                    parts.push(AnswerPart::Reasoning(text));
                }
                // The model's own id is left out: clients that join several conversations want each id once.
                Event::ToolCallBegin { index, name, id: _ } => {
                    self.take_gap();
                    let id = self.served.notation().map(Notation::call_id).unwrap_or_default();
                    parts.push(AnswerPart::Call { index, id, name });
                }
                Event::ToolArguments { index, delta } => parts.push(AnswerPart::Arguments { index, text: delta }),
                Event::ToolCallEnd { .. } => self.calls += 1,
            }
        }
        parts
    }

    /// Content that is certain: without whitespace at its end, which a call may follow.
    fn content(&mut self, text: String) -> Option<String> {
        let Some(gap) = &mut self.gap else { return Some(text) };
        let certain = text.trim_end().len();
        if certain == 0 {
            gap.push_str(&text);
            return None;
        }
        let after = text[certain..].to_owned();
        Some(std::mem::replace(gap, after) + &text[..certain])
    }

    fn take_gap(&mut self) -> Option<String> {
        self.gap.as_mut().map(std::mem::take).filter(|gap| !gap.is_empty())
    }
}
