//! What a worker tells the pool: one message a step, in which events and facts agree.
//!
//! An event and the facts that it explains never travel apart. The pool would otherwise offer capacity that is not there
//! yet, or withhold capacity that is already there.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cache::CacheFacts;
pub use crate::counters::WorkerCounters;
use crate::message::Event;
use crate::policy::WorkerFacts;
use crate::reserve::GROWTH_TOKENS;
use crate::worker::Worker;

/// Batches that one report tells of. It is then sent although nothing else happened.
const MAX_BATCHES: usize = 256;
/// A step that begins so long after the one of the last report is reported although nothing else happened: slow steps move
/// gauges, too.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What happened on a worker since its last report, and what holds after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In order, without deltas. `Finished` and `Failed` stand here after their KV entries were given back.
    pub events: Vec<Event>,
    pub facts: WorkerFacts,
    pub cache: CacheFacts,
    /// Tokens of each batch that was decoded.
    pub batches: Vec<u32>,
    pub counters: WorkerCounters,
}

impl Report {
    /// Facts alone: nothing happened.
    pub fn of(facts: WorkerFacts) -> Self {
        let (events, batches) = (Vec::new(), Vec::new());
        Self { events, facts, cache: CacheFacts::default(), batches, counters: WorkerCounters::default() }
    }
}

/// What a worker offers for new requests.
#[derive(Debug, Clone, Copy)]
struct Offer {
    free_sequences: u32,
    kv_free: u32,
}

/// Gathers a worker's events until the step is over.
#[derive(Debug, Default)]
pub struct Reporter {
    events: Vec<Event>,
    batches: Vec<u32>,
    /// What the last report offered.
    offered: Option<Offer>,
    /// When the last step began that decoded a batch, and that of the last report.
    begun: Duration,
    reported: Duration,
}

impl Reporter {
    /// An event happened. Deltas are for clients only.
    pub fn note(&mut self, event: &Event) {
        if !matches!(event, Event::Delta { .. }) {
            self.events.push(event.clone());
        }
    }

    /// The worker decoded a batch, in a step that began at this time.
    pub fn decoded(&mut self, tokens: usize, begun: Duration) {
        self.begun = begun;
        self.batches.push(u32::try_from(tokens).unwrap_or(u32::MAX));
    }

    /// A step or a command is over: the report, if the pool has to hear of it. Tokens alone wake nobody for a while, but the
    /// offer may have changed without an event: sequences grow, and while a request waits inside the worker it offers no KV.
    pub fn take(&mut self, worker: &mut Worker) -> Option<Report> {
        let facts = worker.facts();
        let offer = Offer { free_sequences: facts.free_sequences, kv_free: facts.kv_free };
        let is_known = self.offered.is_some_and(|offered| offered.is_close_to(offer));
        let is_old = !self.batches.is_empty() && self.begun.saturating_sub(self.reported) >= MAX_AGE;
        if is_known && !is_old && self.events.is_empty() && self.batches.len() < MAX_BATCHES {
            return None;
        }
        self.offered = Some(offer);
        self.reported = self.begun;
        let (events, batches) = (std::mem::take(&mut self.events), std::mem::take(&mut self.batches));
        Some(Report { events, facts, cache: worker.cache_facts(), batches, counters: worker.take_counters() })
    }
}

impl Offer {
    /// Whether the pool may go on with the older of two offers. Free KV may differ by less than one sequence grows at a time.
    fn is_close_to(self, other: Offer) -> bool {
        self.free_sequences == other.free_sequences
            && (self.kv_free == 0) == (other.kv_free == 0)
            && self.kv_free.abs_diff(other.kv_free) < GROWTH_TOKENS
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
