//! Scheduler policy: strict priority classes.
//!
//! The first class with work goes first, within a class the earliest arrival, each to the worker with the fewest active
//! sequences. Some sequences of each worker can be reserved for the high class, so that it is served when everything
//! else is taken. While the next in line fits no worker, all others wait behind it.
//!
//! | setting | |
//! |---|---|
//! | `ageing` | a request that has waited this long counts as one of the next higher class, so that no class starves: `"60s"` (default), or milliseconds as a number |
//! | `reserved-for-high` | sequences of each worker that only high requests may take, at most all but one. Default 0 |
#![forbid(unsafe_code)]

use camshaft_plugin::scheduler::{Actions, Arrival, Book, Point, Policy};
use camshaft_plugin::{Priority, Span};
use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    pub ageing: Span,
    pub reserved_for_high: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { ageing: Span { ms: 60_000 }, reserved_for_high: 0 }
    }
}

/// The policy.
#[derive(Debug)]
pub struct StrictClasses {
    reserved_for_high: u32,
    /// Keyed by the time of arrival, plus the ageing for each class below the first.
    book: Book<u64>,
}

impl Policy for StrictClasses {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        let ageing_ms = settings.ageing.ms;
        if ageing_ms == 0 {
            return Err("ageing must be more than 0: without classes there is scheduler-fcfs".to_owned());
        }
        let book = Book::new(move |request: &Arrival| request.aged_ms(ageing_ms));
        Ok(Self { reserved_for_high: settings.reserved_for_high, book })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        let reserved_for_high = self.reserved_for_high;
        self.book.dispatch(&point.workers, |capacity, request| {
            let reserved = if request.priority == Priority::HIGH { 0 } else { reserved_for_high };
            capacity.place_reserving(request, reserved)
        })
    }
}

camshaft_plugin::export_scheduler!(StrictClasses);

#[cfg(test)]
mod tests;
