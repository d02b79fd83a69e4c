//! Scheduler policy: first come, first served.
//!
//! Requests are dispatched in the order of their arrival, each to the worker with the fewest active sequences among those
//! with a free sequence and enough free KV. While the first in line fits no worker, all others wait behind it, so that
//! small requests never starve a large one.
//!
//! | setting | |
//! |---|---|
//! | `priority-classes` | `true` (default): the order is kept within each priority class, and the first class with work goes first. `false`: one line for all |
//! | `ageing` | a request that has waited this long counts as one of the next higher class: `"30s"` (default), or milliseconds as a number |
#![forbid(unsafe_code)]

use camshaft_plugin::Span;
use camshaft_plugin::scheduler::{Actions, Arrival, Book, Capacity, Point, Policy};
use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    pub priority_classes: bool,
    pub ageing: Span,
}

impl Default for Settings {
    fn default() -> Self {
        Self { priority_classes: true, ageing: Span { ms: 30_000 } }
    }
}

/// The policy.
#[derive(Debug)]
pub struct FirstComeFirstServed {
    /// Keyed by the time of arrival, plus the ageing for each class below the first: a request overtakes those of higher
    /// classes that arrived later than it takes to age.
    book: Book<u64>,
}

impl Policy for FirstComeFirstServed {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        let ageing_ms = if settings.priority_classes { settings.ageing.ms } else { 0 };
        Ok(Self { book: Book::new(move |request: &Arrival| request.aged_ms(ageing_ms)) })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        let mut actions = Actions::none();
        let mut capacity = Capacity::of(&point.workers);
        while let Some(request) = self.book.first().filter(|_| !capacity.is_exhausted()) {
            let Some(worker) = capacity.place(request) else { break };
            let id = request.id;
            self.book.leave(id);
            actions.dispatch(id, worker);
        }
        actions
    }
}

camshaft_plugin::export_scheduler!(FirstComeFirstServed);

#[cfg(test)]
mod tests;
