//! Scheduler policy: the shortest request first.
//!
//! The length of a request is its maximum output and the prompt tokens to compute, without those that a prefix cache
//! probably holds. Of equal requests, the earlier one goes first. A request that has waited longer than `max-wait` goes
//! before all others, in the order of arrival, so that long ones are not starved. Requests go to the worker with the
//! fewest active sequences; while the next in line fits no worker, all others wait behind it.
//!
//! | setting | |
//! |---|---|
//! | `max-wait` | how long a request may be overtaken: `"500ms"`, `"10s"`, `"2m"`, or milliseconds as a number. Default `"10s"` |
//! | `priority-classes` | `true` (default): the first priority class with work goes first (after what has waited too long). `false`: one line for all |
#![forbid(unsafe_code)]

use camshaft_plugin::Span;
use camshaft_plugin::scheduler::{Actions, Arrival, Book, Capacity, Point, Policy};
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
    /// Keyed by class, tokens to compute and arrival.
    book: Book<(u8, u32, u64)>,
}

impl ShortestFirst {
    /// The request that is dispatched next.
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
        let book = Book::new(move |request: &Arrival| {
            let class = if settings.priority_classes { request.class() } else { 0 };
            (class, tokens_to_compute(request), request.arrived_ms)
        });
        Ok(Self { max_wait_ms: settings.max_wait.ms, book })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        let mut actions = Actions::none();
        let mut capacity = Capacity::of(&point.workers);
        while let Some(request) = self.next(point.now_ms).filter(|_| !capacity.is_exhausted()) {
            let Some(worker) = capacity.place(request) else { break };
            let id = request.id;
            self.book.leave(id);
            actions.dispatch(id, worker);
        }
        actions
    }
}

/// The prompt tokens to compute on the worker that caches most of the prompt, plus the maximum output.
fn tokens_to_compute(request: &Arrival) -> u32 {
    request.prompt_tokens.saturating_sub(request.cached_tokens()).saturating_add(request.max_tokens)
}

camshaft_plugin::export_scheduler!(ShortestFirst);

#[cfg(test)]
mod tests;
