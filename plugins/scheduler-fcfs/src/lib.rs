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

use camshaft_plugin::scheduler::{Actions, Book, Classes, Point, Policy};

/// The policy.
#[derive(Debug)]
pub struct FirstComeFirstServed {
    book: Book<u64>,
}

impl Policy for FirstComeFirstServed {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = Classes::SCHEMA;
    type Settings = Classes;

    fn new(settings: Classes) -> Result<Self, String> {
        Ok(Self { book: settings.book() })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        self.book.dispatch(&point.workers, |capacity, request| capacity.place(request))
    }
}

camshaft_plugin::export_scheduler!(FirstComeFirstServed);

#[cfg(test)]
mod tests;
