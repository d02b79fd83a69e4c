//! Scheduler policy: requests go to the worker with the most room in its KV cache, in the order of arrival.
//!
//! What a worker's prefix cache probably holds of a prompt counts as room. A worker that is down, has no free sequence or no room
//! for the request is passed over. Where the request fits nowhere, it waits, and all behind it. It suits requests of very
//! different lengths: long ones find room, and few have to give way later.
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
pub struct MemoryAware {
    book: Book<u64>,
}

impl Policy for MemoryAware {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = Classes::SCHEMA;
    type Settings = Classes;

    fn new(settings: Classes) -> Result<Self, String> {
        Ok(Self { book: settings.book() })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        self.book.dispatch(&point.workers, |capacity, request| {
            let room = |worker: &Worker| worker.kv_free.saturating_add(request.cached_on(worker.id));
            capacity.place_by(request, |worker| (Reverse(room(worker)), worker.running_sequences))
        })
    }
}

camshaft_plugin::export_scheduler!(MemoryAware);

#[cfg(test)]
mod tests;
