//! Scheduler policy: requests go to the worker with the fewest active sequences, in the order of arrival.
//!
//! Of workers with as many, the one with the fewest prompt tokens to compute is taken, then the one with the most free KV. A worker
//! that is down, has no free sequence or no room for the request is passed over. Where the request fits nowhere, it waits, and all
//! behind it.
//!
//! | setting | |
//! |---|---|
//! | `priority-classes` | `true` (default): higher classes go first, and arrival orders requests within a class |
//! | `ageing` | `"30s"` (default): a request that has waited this long counts as one of the next higher class |
#![forbid(unsafe_code)]

use std::cmp::Reverse;

use camshaft_plugin::scheduler::{Actions, Book, Classes, Point, Policy, Worker};

/// The policy.
#[derive(Debug)]
pub struct LeastLoaded {
    book: Book<u64>,
}

impl Policy for LeastLoaded {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = Classes::SCHEMA;
    type Settings = Classes;

    fn new(settings: Classes) -> Result<Self, String> {
        Ok(Self { book: settings.book() })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        let load = |worker: &Worker| (worker.running_sequences, worker.prefilling_tokens, Reverse(worker.kv_free));
        self.book.dispatch(&point.workers, |capacity, request| capacity.place_by(request, load))
    }
}

camshaft_plugin::export_scheduler!(LeastLoaded);

#[cfg(test)]
mod tests;
