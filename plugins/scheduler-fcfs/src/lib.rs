//! Scheduler policy: first come, first served.
//!
//! Requests go in the order of their arrival to the first worker with a free sequence and enough KV cache for prompt
//! and output. While the first in line has no room, everybody waits, so that
//! small requests never starve a large one.
//!
//! | setting | |
//! |---|---|
//! | `priority-classes` | `true` (default): the order is kept within each priority class, and the first class with work goes first. `false`: one line for all |
//! | `ageing` | a request that has waited for so long counts as one of the next higher class: `"30s"` (default), milliseconds as a number |
#![forbid(unsafe_code)]

use camshaft_plugin::Span;
use camshaft_plugin::scheduler::{Actions, Arrival, Book, Point, Policy, Room};
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
    /// Keyed by the arrival, which lies later for each class: a request overtakes those of higher classes that came
    /// longer after it than it ages.
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

    fn schedule(&mut self, point: &Point) -> Actions {
        self.book.apply(point);
        let mut actions = Actions::none();
        let mut room = Room::of(&point.workers);
        while let Some(request) = self.book.first().filter(|_| !room.is_full()) {
            let Some(worker) = room.take(request) else { break };
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
