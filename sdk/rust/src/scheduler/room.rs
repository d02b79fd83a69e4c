//! What the workers can still take within one scheduling point.
use super::{Arrival, Worker, Workers};

/// The workers' room, used up by what the policy gives them.
#[derive(Debug, Clone)]
pub struct Room {
    workers: Vec<Worker>,
}

impl Room {
    /// The healthy workers with a free sequence, in the host's order.
    pub fn of(workers: &Workers) -> Self {
        Self { workers: workers.iter().filter(|worker| worker.healthy && worker.free_sequences > 0).collect() }
    }

    /// Whether no worker can take anything more.
    pub fn is_full(&self) -> bool {
        self.workers.is_empty()
    }

    /// Takes the room that a request needs on the first worker that has it, and names the worker.
    ///
    /// A worker has room with a free sequence and free KV for prompt and output. An idle worker takes anything, or a
    /// request as large as its cache could wait for ever.
    pub fn take(&mut self, arrival: &Arrival) -> Option<u32> {
        self.take_leaving(arrival, 0)
    }

    /// As [`Room::take`], but leaves so many sequences of each worker free.
    pub fn take_leaving(&mut self, arrival: &Arrival, sequences: u32) -> Option<u32> {
        let kv_tokens = arrival.kv_tokens();
        let has_room = |w: &Worker| w.kv_free >= kv_tokens || w.running_sequences == 0;
        let at = self.workers.iter().position(|w| w.free_sequences > sequences && has_room(w))?;
        let worker = &mut self.workers[at];
        worker.kv_free = worker.kv_free.saturating_sub(kv_tokens);
        worker.running_sequences += 1;
        worker.free_sequences -= 1;
        let id = worker.id;
        if worker.free_sequences == 0 {
            self.workers.remove(at);
        }
        Some(id)
    }
}
