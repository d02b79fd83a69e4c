//! Takes an answer apart as its text comes: text, thinking and tool calls.
use std::sync::Arc;

use crate::family::arguments::Arguments;
use crate::family::content::{Meaning, markers, unmarked_calls};
use crate::family::description::{ContentForm, Family, ThinkingState};
use crate::family::event::{Event, Events};
use crate::family::json::Progress;
use crate::family::marker::{Found, Markers};
use crate::family::prefix::{Cursor, Stop};
use crate::family::tools::Tools;
use crate::limits;

/// Parses one answer. Each text is passed on as soon as it cannot be the beginning of a marker or a call any more; what turns out
/// to be none is content. Whitespace between a marker and what it marks belongs to the marker. The time is linear in the text,
/// and what is held back is bounded, however the text is cut into pieces, on which nothing else depends either.
#[derive(Debug, Clone)]
pub struct Parser {
    family: &'static Family,
    tools: Arc<Tools>,
    thinking: ThinkingState,
    form: ContentForm,
    /// In content, with what each means.
    in_content: (Markers, Vec<Meaning>),
    in_thinking: Markers,
    state: State,
    /// Text that was not used yet.
    held: String,
    calls: usize,
}

#[derive(Debug, Clone)]
enum State {
    /// Before content, where thinking may begin, or a call without a marker. `drops`: whitespace here belongs to a marker.
    Start {
        drops: bool,
    },
    Content,
    /// Content without markers, to the end.
    Verbatim,
    Thinking {
        fresh: bool,
    },
    /// At the marker that begins the first call, or at the call itself if it needs no marker.
    FirstCall,
    Arguments(Arguments),
    /// After the arguments of a call.
    Tail,
    /// After a call.
    NextCall,
}

/// What a state made of the text that it was given.
enum Step {
    /// It used so many bytes, and goes on.
    Used(usize),
    /// It used so many bytes, and needs more text.
    Wait(usize),
}

impl Family {
    /// Whether an answer that may call these tools can be anything but text. Otherwise it needs no parser.
    pub fn parses(&self, tools: &Tools) -> bool {
        let frames = self.channels.is_some() || !self.framing.is_empty();
        frames || self.thinking.is_some() || !tools.callable().is_empty()
    }
}

impl Parser {
    /// For an answer that may call these tools. Without any, calls are content.
    pub fn new(family: &'static Family, tools: Arc<Tools>, form: ContentForm, thinking: ThinkingState) -> Self {
        let thinking = if family.thinking.is_some() { thinking } else { ThinkingState::Off };
        let (markers, meanings) = markers(family, !tools.callable().is_empty(), thinking);
        let ends = family.thinking.iter().flat_map(|thinking| [format!("\n{}", thinking.end), thinking.end.to_owned()]);
        let open = thinking == ThinkingState::Open;
        Self {
            family,
            tools,
            thinking,
            form,
            in_content: (Markers::new(markers), meanings),
            in_thinking: Markers::new(ends.collect()),
            state: if open { State::Thinking { fresh: true } } else { State::Start { drops: false } },
            held: String::new(),
            calls: 0,
        }
    }

    /// Takes the next piece of the answer.
    pub fn push(&mut self, piece: &str) -> Vec<Event> {
        let mut events = Events::default();
        let mut text = std::mem::take(&mut self.held);
        text.push_str(piece);
        let mut at = 0;
        loop {
            match self.step(&text[at..], &mut events) {
                Step::Used(used) => at += used,
                Step::Wait(used) => {
                    self.held = text.split_off(at + used);
                    return events.into_vec();
                }
            }
        }
    }

    /// The answer has ended: what was held back becomes what it can be. A call that has begun and not come to its arguments is
    /// nothing, and no text either. Call it once, last.
    pub fn finish(&mut self) -> Vec<Event> {
        let mut events = Events::default();
        let held = std::mem::take(&mut self.held);
        // Text has no control tokens, and an answer that has to call has no text.
        let is_marker = |marker: &&str| held.trim_ascii_start().starts_with(*marker);
        let never_text = self.tools.required() || self.family.special.iter().any(is_marker);
        match &self.state {
            State::FirstCall | State::NextCall => {}
            State::Start { .. } | State::Content if never_text => {}
            State::Start { drops: true } => events.content(held.trim_ascii_start()),
            State::Start { drops: false } | State::Content | State::Verbatim => events.content(&held),
            State::Thinking { .. } => events.reasoning(&held),
            State::Arguments(_) => {}
            State::Tail => events.end(self.calls - 1),
        }
        events.into_vec()
    }

    /// Whether what comes next is thinking, or its end.
    pub fn is_thinking(&self) -> bool {
        matches!(self.state, State::Thinking { .. })
    }

    fn step(&mut self, text: &str, events: &mut Events) -> Step {
        match &mut self.state {
            State::Start { drops } => {
                let drops = *drops;
                self.start(text, drops)
            }
            State::Content => self.content(text, events),
            State::Verbatim => {
                events.content(text);
                Step::Wait(text.len())
            }
            State::Thinking { fresh } => {
                let fresh = std::mem::take(fresh);
                self.think(text, fresh, events)
            }
            State::FirstCall => self.call(text, true, events),
            State::NextCall => self.call(text, false, events),
            State::Arguments(arguments) => {
                let mut json = String::new();
                let (used, progress) = arguments.feed(text, &mut json);
                events.arguments(self.calls - 1, &json);
                match progress {
                    Progress::More => return Step::Wait(used),
                    Progress::Done => self.state = State::Tail,
                    Progress::Broken => self.state = State::Content,
                }
                Step::Used(used)
            }
            State::Tail => self.tail(text, events),
        }
    }

    fn start(&mut self, text: &str, drops: bool) -> Step {
        let mut cursor = Cursor::new(text);
        let space = match cursor.space() {
            Ok(()) => cursor.at(),
            Err(_) => 0,
        };
        let thinks = match &self.family.thinking {
            Some(thinking) if self.thinking == ThinkingState::Possible && !drops => cursor.literal(thinking.begin),
            _ => Err(Stop::Fail),
        };
        let calls = match cursor.peek() {
            Err(_) => Err(Stop::More),
            Ok('{') if self.may_call() && unmarked_calls(self.family, &self.tools, self.form) => Ok(()),
            Ok(_) => Err(Stop::Fail),
        };
        match (thinks, calls) {
            (Ok(()), _) => {
                self.state = State::Thinking { fresh: true };
                Step::Used(cursor.at())
            }
            (Err(Stop::More), _) | (_, Err(Stop::More)) => Step::Wait(0),
            (_, Ok(())) => {
                self.state = State::FirstCall;
                Step::Used(if drops { space } else { 0 })
            }
            _ => {
                self.state = State::Content;
                Step::Used(if drops { space } else { 0 })
            }
        }
    }

    fn content(&mut self, text: &str, events: &mut Events) -> Step {
        let (markers, meanings) = &self.in_content;
        let found = markers.find(text);
        let (Found::Marker { at, .. } | Found::Rest { at }) = found;
        // JSON begins where neither whitespace nor a marker is.
        if self.form == ContentForm::Json && !text[..at].trim_ascii().is_empty() {
            self.state = State::Verbatim;
            return Step::Used(0);
        }
        match found {
            Found::Rest { at } => {
                events.content(&text[..at]);
                Step::Wait(at)
            }
            Found::Marker { at, which } => {
                let len = markers.len(which);
                let meaning = meanings[which];
                events.content(&text[..at]);
                match meaning {
                    Meaning::Call if self.may_call() => {
                        self.state = State::FirstCall;
                        return Step::Used(at);
                    }
                    Meaning::Call => events.content(&text[at..at + len]),
                    Meaning::Thinking => self.state = State::Thinking { fresh: true },
                    Meaning::Frame => {}
                }
                Step::Used(at + len)
            }
        }
    }

    fn think(&mut self, text: &str, fresh: bool, events: &mut Events) -> Step {
        if fresh {
            let mut cursor = Cursor::new(text);
            // Too much whitespace belongs to the thoughts.
            let space = cursor.space().map_or(0, |()| cursor.at());
            if space == text.len() {
                self.state = State::Thinking { fresh: true };
                return Step::Wait(0);
            }
            return Step::Used(space);
        }
        match self.in_thinking.find(text) {
            Found::Rest { at } => {
                events.reasoning(&text[..at]);
                Step::Wait(at)
            }
            Found::Marker { at, which } => {
                events.reasoning(&text[..at]);
                self.state = State::Start { drops: true };
                Step::Used(at + self.in_thinking.len(which))
            }
        }
    }

    fn call(&mut self, text: &str, first: bool, events: &mut Events) -> Step {
        let calls = &self.family.calls;
        let mut cursor = Cursor::new(text);
        let begun = if first { cursor.begin(calls, true).map(|()| false) } else { cursor.next(calls) };
        let head = match begun {
            Ok(true) => {
                self.state = State::Start { drops: true };
                return Step::Used(cursor.at());
            }
            Ok(false) if self.may_call() => cursor.head(&calls.form, &self.tools),
            Ok(false) => Err(Stop::Fail),
            Err(stop) => Err(stop),
        };
        match head {
            Err(Stop::More) => Step::Wait(0),
            Err(Stop::Fail) => {
                // Content may have markers again, but not the one that was no call's.
                let used = if first { cursor.at() } else { 0 };
                events.content(&text[..used]);
                self.state = State::Content;
                Step::Used(used)
            }
            Ok(head) => {
                events.begin(self.calls, head.name, head.id);
                self.state = match self.tools.position(head.name) {
                    Some(tool) if head.arguments => State::Arguments(Arguments::new(&calls.form, &self.tools, tool)),
                    _ => {
                        events.arguments(self.calls, "{}");
                        State::Tail
                    }
                };
                self.calls += 1;
                Step::Used(cursor.at())
            }
        }
    }

    fn tail(&mut self, text: &str, events: &mut Events) -> Step {
        let mut cursor = Cursor::new(text);
        let tail = cursor.tail(&self.family.calls);
        if tail == Err(Stop::More) {
            return Step::Wait(0);
        }
        events.end(self.calls - 1);
        self.state = if tail.is_ok() { State::NextCall } else { State::Content };
        Step::Used(cursor.at())
    }

    fn may_call(&self) -> bool {
        self.calls < limits::CALLS && !self.tools.callable().is_empty()
    }
}
