//! Reads the server-sent events of a generation, one by one or all at once.
use std::io::{BufRead, BufReader};
use std::time::Instant;

use serde_json::Value;

use crate::client::{Body, Open};

/// A streamed response. Every event must be JSON in whole characters: anything else fails the test.
#[derive(Debug)]
pub struct Stream {
    lines: BufReader<Body>,
    collected: Collected,
}

/// The events received so far.
#[derive(Debug, Clone, Default)]
pub struct Collected {
    /// Every event except `[DONE]`, with the time at which it was read.
    pub events: Vec<(Instant, Value)>,
    /// Whether `[DONE]` came.
    pub done: bool,
    /// Whether the connection ended in the middle of the body.
    pub broken: bool,
}

impl Stream {
    /// # Panics
    /// If the response is not an event stream.
    pub fn new(open: Open) -> Self {
        let content_type = open.header("content-type").unwrap_or_default();
        assert!(content_type.starts_with("text/event-stream"), "content type {content_type:?}");
        Self { lines: BufReader::new(open.body), collected: Collected::default() }
    }

    /// The events read so far.
    pub fn so_far(&self) -> &Collected {
        &self.collected
    }

    /// Reads until the text of all choices has at least this many bytes in total, or the stream ends.
    pub fn read_text(&mut self, bytes: usize) -> &Collected {
        let mut read = self.collected.text_from(None).len();
        while read < bytes {
            match self.next() {
                Some(event) => read += text_of(&event).len(),
                None => break,
            }
        }
        &self.collected
    }

    /// Reads to the end.
    pub fn finish(mut self) -> Collected {
        while self.next().is_some() {}
        self.collected
    }

    fn data(&mut self) -> Option<String> {
        loop {
            let mut line = Vec::new();
            match self.lines.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => {}
                Err(_) => {
                    self.collected.broken = true;
                    return None;
                }
            }
            let line = String::from_utf8(line).expect("an event is UTF-8");
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(data) = line.strip_prefix("data:") {
                return Some(data.trim_start().to_owned());
            }
            assert!(line.is_empty() || line.starts_with(':'), "neither data nor a comment: {line:?}");
        }
    }
}

impl Iterator for Stream {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        let data = self.data()?;
        assert!(!self.collected.done, "an event after [DONE]: {data}");
        if data == "[DONE]" {
            self.collected.done = true;
            return self.next();
        }
        let event: Value = serde_json::from_str(&data).unwrap_or_else(|error| panic!("not JSON ({error}): {data}"));
        self.collected.events.push((Instant::now(), event.clone()));
        Some(event)
    }
}

impl Collected {
    /// The events without their timestamps.
    pub fn values(&self) -> impl Iterator<Item = &Value> {
        self.events.iter().map(|(_, event)| event)
    }

    /// The choices of all events, flattened.
    pub fn choices(&self) -> impl Iterator<Item = &Value> {
        self.values().flat_map(|event| event["choices"].as_array().into_iter().flatten())
    }

    /// The text of one choice.
    pub fn text(&self, choice: u64) -> String {
        self.choices().filter(|item| item["index"] == choice).map(choice_text).collect()
    }

    /// The text of all choices read at `moment` or later; all text if it is `None`.
    pub fn text_from(&self, moment: Option<Instant>) -> String {
        let late = self.events.iter().filter(|(at, _)| moment.is_none_or(|moment| *at >= moment));
        late.map(|(_, event)| text_of(event)).collect()
    }

    /// The finish reason of one choice, if it has finished.
    pub fn finish_reason(&self, choice: u64) -> Option<&str> {
        self.choices().filter(|item| item["index"] == choice).find_map(|item| item["finish_reason"].as_str())
    }

    /// The error that ended the stream.
    pub fn error(&self) -> Option<&Value> {
        self.values().find_map(|event| event.get("error"))
    }

    /// Whether the stream ended with `[DONE]` and without an error.
    pub fn is_good(&self) -> bool {
        self.done && !self.broken && self.error().is_none()
    }
}

/// The text of all choices in an event.
fn text_of(event: &Value) -> String {
    event["choices"].as_array().into_iter().flatten().map(choice_text).collect()
}

/// The text of a choice: `delta.content` in chats, `text` in completions.
fn choice_text(choice: &Value) -> &str {
    choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default()
}
