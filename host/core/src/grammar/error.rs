//! Why a grammar is refused, and where in it.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::shown::{cut, on_one_line};

/// Maximum characters of what the grammar compiler says.
const REASON_CHARS: usize = 400;

/// What the grammar compiler says of what it cannot do, by its beginning, and what a client is told.
const IN_WORDS: &[(&str, &str)] = &[
    ("panic:", "the grammar compiler cannot compute it"),
    (
        "oneOf constraints are not supported",
        "oneOf is not supported where a value may match two of its schemas, as far as the compiler can tell: use anyOf",
    ),
];

/// What is wrong with a grammar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GrammarFault {
    /// It is none.
    Invalid,
    /// It asks for what is not supported.
    Unsupported,
    /// It is over a bound.
    TooLarge,
    /// The model's vocabulary cannot be constrained.
    Vocabulary,
    /// Nothing is wrong with it: it may be tried again.
    Busy,
}

/// A grammar is refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrammarError {
    pub fault: GrammarFault,
    /// Where in a schema, as `properties.a.uniqueItems`. Empty for the whole of it, and for other grammars, whose errors say line and
    /// column.
    pub path: String,
    pub reason: String,
}

impl GrammarError {
    pub(super) fn invalid(reason: impl Into<String>) -> Self {
        Self::new(GrammarFault::Invalid, reason)
    }

    pub(super) fn unsupported(reason: impl Into<String>) -> Self {
        Self::new(GrammarFault::Unsupported, reason)
    }

    /// It is over a bound.
    pub fn too_large(reason: impl Into<String>) -> Self {
        Self::new(GrammarFault::TooLarge, reason)
    }

    /// It cannot be compiled now.
    pub fn busy(reason: impl Into<String>) -> Self {
        Self::new(GrammarFault::Busy, reason)
    }

    pub(super) fn new(fault: GrammarFault, reason: impl Into<String>) -> Self {
        Self { fault, path: String::new(), reason: reason.into() }
    }

    /// The same, of a part of the grammar.
    #[must_use]
    pub(super) fn at(mut self, path: &str) -> Self {
        path.clone_into(&mut self.path);
        self
    }

    /// The field of the request with the place in it, as `response_format.json_schema.schema.properties.a`.
    pub fn place(&self, field: &str) -> String {
        match self.path.as_str() {
            "" => field.to_owned(),
            path => format!("{field}.{path}"),
        }
    }
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() { f.write_str(&self.reason) } else { write!(f, "{}: {}", self.path, self.reason) }
    }
}

impl std::error::Error for GrammarError {}

/// A client's value as an error shows it: on one line, and cut.
pub(super) fn shown(value: &str) -> String {
    on_one_line(&cut(value))
}

/// Line and column of a byte, from 1 on; the column in characters.
pub(super) fn line_and_column(text: &str, at: usize) -> String {
    let before = text.get(..at).unwrap_or(text);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count()) + 1;
    format!("line {line}, column {column}")
}

/// What the grammar compiler said, without the grammar that it may add. `has_places`: it names places of what the client wrote.
pub(super) fn compiler_reason(error: &str, has_places: bool) -> String {
    let mut lines = error.lines().map(str::trim);
    let (place, said) = split_place(lines.next().unwrap_or_default());
    let place = place.filter(|_| has_places).unwrap_or_default();
    if let Some((_, in_words)) = IN_WORDS.iter().find(|(begins, _)| said.starts_with(begins)) {
        return (*in_words).to_owned();
    }
    // What is wrong with a pattern stands below the pattern.
    let detail = lines.find_map(|line| line.strip_prefix("error: ")).unwrap_or_default();
    let reason: String = format!("{place}{said} {detail}").trim().chars().take(REASON_CHARS).collect();
    on_one_line(&reason)
}

/// The place in `at 3(5): why` or `3(5): why`, in words, and what follows it.
fn split_place(said: &str) -> (Option<String>, &str) {
    let split = said.split_once(": ").and_then(|(place, why)| {
        let (line, column) = place.trim_start_matches("at ").strip_suffix(')')?.split_once('(')?;
        let (line, column): (u32, u32) = (line.parse().ok()?, column.parse().ok()?);
        Some((Some(format!("line {line}, column {column}: ")), why))
    });
    split.unwrap_or((None, said))
}
