//! What a worker tells the pool: one message a step, in which events and facts agree.
//!
//! An event and the facts that it explains never travel apart. The pool would otherwise offer capacity that is not there
//! yet, or not offer what is there already.
use serde::{Deserialize, Serialize};

use crate::cache::CacheFacts;
use crate::message::Event;
use crate::policy::WorkerFacts;
use crate::worker::Worker;

/// Batches after which a report is sent although nothing else is to be told.
const MAX_BATCHES: usize = 256;

/// What happened on a worker since its last report, and what holds after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// In order, without deltas. `Finished` and `Failed` stand here after their KV entries were given back.
    pub events: Vec<Event>,
    pub facts: WorkerFacts,
    pub cache: CacheFacts,
    /// Tokens of each batch that was decoded.
    pub batches: Vec<u32>,
}

/// Gathers a worker's events until the step is over.
#[derive(Debug, Default)]
pub struct Reporter {
    events: Vec<Event>,
    batches: Vec<u32>,
    /// What the pool was last told of whether the worker takes more: free sequences, and whether any KV is offered.
    offered: Option<(u32, bool)>,
}

impl Reporter {
    /// The worker told something. Deltas are for clients only.
    pub fn note(&mut self, event: &Event) {
        if !matches!(event, Event::Delta { .. }) {
            self.events.push(event.clone());
        }
    }

    /// The worker decoded a batch.
    pub fn decoded(&mut self, tokens: usize) {
        self.batches.push(u32::try_from(tokens).unwrap_or(u32::MAX));
    }

    /// A step or a command is over: the report, if the pool has to hear of it. Tokens alone wake nobody. A request that
    /// has to wait inside the worker is no event, but the worker takes no more then.
    pub fn take(&mut self, worker: &Worker) -> Option<Report> {
        let facts = worker.facts();
        let offered = (facts.free_sequences, facts.kv_free > 0);
        let told = self.offered == Some(offered);
        if told && self.events.is_empty() && self.batches.len() < MAX_BATCHES {
            return None;
        }
        self.offered = Some(offered);
        let (events, batches) = (std::mem::take(&mut self.events), std::mem::take(&mut self.batches));
        Some(Report { events, facts, cache: worker.cache_facts(), batches })
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
