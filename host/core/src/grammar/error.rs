//! Why a grammar is refused, and where in it.
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::shown::on_one_line;

/// Maximum characters of a client's value in an error.
const SHOWN_CHARS: usize = 128;
/// Maximum characters of what the grammar compiler says.
const REASON_CHARS: usize = 400;

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
    cut(value, SHOWN_CHARS)
}

/// What the compiler said of a pattern, which it read within a grammar that the client did not write: without the place in that one.
pub(super) fn pattern_reason(reason: &str) -> String {
    let place = |said: &str| said.starts_with("at ") && said.ends_with(')');
    match reason.split_once(": ") {
        Some((said, rest)) if place(said) => rest.replacen(" (in regex)", "", 1),
        _ => reason.to_owned(),
    }
}

/// What the grammar compiler said, without the grammar that it may add.
pub(super) fn compiler_reason(error: &str) -> String {
    let mut lines = error.lines().map(str::trim);
    let said = lines.next().unwrap_or_default();
    if said.starts_with("panic:") {
        return "the grammar compiler cannot compute it".to_owned();
    }
    if said.starts_with("oneOf constraints are not supported") {
        return "oneOf is not supported where a value may match two of its schemas, as far as the compiler can tell: use anyOf"
            .to_owned();
    }
    if said.starts_with("Unable to determine if regex is empty") {
        return "to find out whether a text matches its patterns, formats and lengths together takes too much work"
            .to_owned();
    }
    // What is wrong with a pattern stands below the pattern.
    let detail = lines.find_map(|line| line.strip_prefix("error: ")).unwrap_or_default();
    cut(format!("{said} {detail}").trim(), REASON_CHARS)
}

fn cut(text: &str, max: usize) -> String {
    let mut shown: String = text.chars().take(max).collect();
    if shown.len() < text.len() {
        shown.push_str("...");
    }
    on_one_line(&shown)
}
