//! What an answer is made of.

/// A part of an answer. Adjacent parts of the same kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Text for the user.
    Content(String),
    /// Text of the model's thinking.
    Reasoning(String),
    /// A call begins. Calls are counted from 0. `id`: the identifier that the model gave before its arguments, which another of its
    /// answers may give again.
    ToolCallBegin { index: usize, name: String, id: Option<String> },
    /// More of the arguments of the call that began last: JSON text.
    ToolArguments { index: usize, delta: String },
    /// The call is complete: its arguments are a JSON object, which may be deeper than readers of JSON take. A call without it was cut.
    ToolCallEnd { index: usize },
}

/// Events in the order of the text, adjacent texts joined.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<Event>);

impl Events {
    pub(crate) fn content(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Content(last)) => last.push_str(text),
            _ => self.0.push(Event::Content(text.to_owned())),
        }
    }

    pub(crate) fn reasoning(&mut self, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::Reasoning(last)) => last.push_str(text),
            _ => self.0.push(Event::Reasoning(text.to_owned())),
        }
    }

    pub(crate) fn arguments(&mut self, index: usize, text: &str) {
        match self.0.last_mut() {
            _ if text.is_empty() => {}
            Some(Event::ToolArguments { delta, .. }) => delta.push_str(text),
            _ => self.0.push(Event::ToolArguments { index, delta: text.to_owned() }),
        }
    }

    pub(crate) fn begin(&mut self, index: usize, name: &str, id: Option<&str>) {
        self.0.push(Event::ToolCallBegin { index, name: name.to_owned(), id: id.map(str::to_owned) });
    }

    pub(crate) fn end(&mut self, index: usize) {
        self.0.push(Event::ToolCallEnd { index });
    }

    pub(crate) fn into_vec(self) -> Vec<Event> {
        self.0
    }
}
