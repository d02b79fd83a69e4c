//! Scheduler policy: the shortest request first.
//!
//! Short is what has few prompt tokens and asks for few output tokens; of equals, the earlier one goes first. A request
//! that has waited longer than `max-wait` goes before all others, in the order of arrival, so that long ones are not
//! starved. While the next in line has no room on any worker, everybody waits.
//!
//! | setting | |
//! |---|---|
//! | `max-wait` | how long a request may be overtaken: `"500ms"`, `"10s"`, `"2m"`, or milliseconds as a number. Default `"10s"` |
//! | `priority-classes` | `true` (default): the first priority class with work goes first (after what has waited too long). `false`: one line for all |
#![forbid(unsafe_code)]

use camshaft_plugin::Span;
use camshaft_plugin::scheduler::{Actions, Arrival, Book, Point, Policy, Room};
use serde::Deserialize;

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    pub max_wait: Span,
    pub priority_classes: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { max_wait: Span { ms: 10_000 }, priority_classes: true }
    }
}

/// The policy.
#[derive(Debug)]
pub struct ShortestFirst {
    max_wait_ms: u64,
    /// Keyed by class, tokens and arrival.
    book: Book<(u8, u32, u64)>,
}

impl ShortestFirst {
    /// The request that is served next.
    fn next(&self, now_ms: u64) -> Option<&Arrival> {
        let overdue = |request: &&Arrival| now_ms.saturating_sub(request.arrived_ms) > self.max_wait_ms;
        self.book.oldest().filter(overdue).or_else(|| self.book.first())
    }
}

impl Policy for ShortestFirst {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        let by_class: fn(&Arrival) -> (u8, u32, u64) = |r| (r.class(), r.kv_tokens(), r.arrived_ms);
        let one_line: fn(&Arrival) -> (u8, u32, u64) = |r| (0, r.kv_tokens(), r.arrived_ms);
        let book = Book::new(if settings.priority_classes { by_class } else { one_line });
        Ok(Self { max_wait_ms: settings.max_wait.ms, book })
    }

    fn schedule(&mut self, point: &Point) -> Actions {
        self.book.apply(point);
        let mut actions = Actions::none();
        let mut room = Room::of(&point.workers);
        while let Some(request) = self.next(point.now_ms).filter(|_| !room.is_full()) {
            let Some(worker) = room.take(request) else { break };
            let id = request.id;
            self.book.leave(id);
            actions.dispatch(id, worker);
        }
        actions
    }
}

camshaft_plugin::export_scheduler!(ShortestFirst);

#[cfg(test)]
mod tests;
