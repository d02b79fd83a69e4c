//! Scheduler policy: requests go to one worker after the other, in the order of arrival.
//!
//! A worker that is down, has no free sequence or no room for the request is passed over. Where the request fits nowhere, it
//! waits, and all behind it. It suits workers that are equal and requests that are, too; otherwise `scheduler-least-loaded`
//! spreads better.
//!
//! A new version goes on after the worker that the last one used.
//!
//! | setting | |
//! |---|---|
//! | `priority-classes` | `true` (default): higher classes go first, and arrival orders requests within a class |
//! | `ageing` | `"30s"` (default): a request that has waited this long counts as one of the next higher class |
#![forbid(unsafe_code)]

use camshaft_plugin::scheduler::{Actions, Book, Checkpoint, Classes, Point, Policy};

/// The policy.
#[derive(Debug)]
pub struct RoundRobin {
    book: Book<u64>,
    /// Where the last request went.
    last: Option<u32>,
}

impl Policy for RoundRobin {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = Classes::SCHEMA;
    type Settings = Classes;

    fn new(settings: Classes) -> Result<Self, String> {
        Ok(Self { book: settings.book(), last: None })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.book.apply(point);
        let last = &mut self.last;
        self.book.dispatch(&point.workers, |capacity, request| {
            let placed = capacity.place_by(request, |worker| (Some(worker.id) <= *last, worker.id))?;
            *last = Some(placed);
            Some(placed)
        })
    }
}

impl Checkpoint for RoundRobin {
    fn save(&mut self) -> Vec<u8> {
        self.last.map(u32::to_le_bytes).map(Vec::from).unwrap_or_default()
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.last = match bytes {
            [] => None,
            bytes => {
                let worker = bytes.try_into().map_err(|_| format!("{} bytes, not a worker's 4", bytes.len()))?;
                Some(u32::from_le_bytes(worker))
            }
        };
        Ok(())
    }
}

camshaft_plugin::export_scheduler!(RoundRobin, checkpoint);

#[cfg(test)]
mod tests;
