//! Settings of schedulers that serve in the order of arrival within priority classes.
use serde::Deserialize;

use super::book::Book;
use super::lists::Arrival;
use crate::Span;

/// `[settings]`: whether priority classes count, and how long a request waits until it counts as one of the next higher class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Classes {
    pub priority_classes: bool,
    pub ageing: Span,
}

impl Default for Classes {
    fn default() -> Self {
        Self { priority_classes: true, ageing: Span { ms: 30_000 } }
    }
}

impl Classes {
    /// JSON Schema of the settings.
    pub const SCHEMA: &'static str = include_str!("classes.schema.json");

    /// An empty book in that order: keyed by the time of arrival, plus the ageing for each class below the first, so that a
    /// request overtakes those of higher classes that arrived later than it takes to age.
    pub fn book(self) -> Book<u64> {
        let ageing_ms = if self.priority_classes { self.ageing.ms } else { 0 };
        Book::new(move |request: &Arrival| request.aged_ms(ageing_ms))
    }
}
