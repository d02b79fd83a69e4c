//! A worker as the pool accounts for it: what the worker reported last, and what the pool has sent it since.
use std::collections::{HashMap, HashSet};

use crate::engine::EngineLimits;
use crate::ids::{RequestId, WorkerId};
use crate::policy::WorkerFacts;

/// As many times what a worker runs at once it may have, where schedulers send it requests in the place of others.
pub(super) const CROWD: usize = 4;

#[derive(Debug, Clone)]
pub(super) struct WorkerAccount {
    /// As the worker's newest report says.
    reported: WorkerFacts,
    sequences: u32,
    /// Of them, as many may run.
    most: u32,
    /// KV tokens that one request can hold at most.
    request_tokens: u32,
    /// Requests that were sent to the worker, have not ended and are not paused.
    running: u32,
    /// Requests whose readers are behind. Others may have their places.
    paused: HashSet<RequestId>,
    /// KV tokens of requests that were sent and that no report has shown as admitted.
    in_flight: HashMap<RequestId, u32>,
}

impl WorkerAccount {
    /// An idle worker.
    pub(super) fn new(worker: WorkerId, limits: EngineLimits) -> Self {
        let reported = WorkerFacts {
            worker,
            healthy: true,
            free_sequences: limits.sequences,
            running_sequences: 0,
            kv_free: limits.kv_tokens,
            kv_used: 0,
            kv_total: limits.kv_tokens,
            prefilling_tokens: 0,
            tokens_per_second: 0.0,
            can_preempt: true,
        };
        Self {
            reported,
            sequences: limits.sequences,
            most: u32::MAX,
            request_tokens: limits.context_tokens.min(limits.kv_tokens),
            running: 0,
            paused: HashSet::new(),
            in_flight: HashMap::new(),
        }
    }

    /// The reported facts, less what requests in flight will take.
    pub(super) fn facts(&self) -> WorkerFacts {
        WorkerFacts {
            // Requests that were resumed may be too many for a while.
            free_sequences: self.sequences.min(self.most).saturating_sub(self.running),
            running_sequences: self.running,
            kv_free: self.reported.kv_free.saturating_sub(self.in_flight.values().sum()),
            ..self.reported.clone()
        }
    }

    /// KV tokens that one request can hold at most, whatever else the worker has.
    pub(super) fn request_tokens(&self) -> u32 {
        self.request_tokens
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.reported.healthy
    }

    pub(super) fn running(&self) -> usize {
        self.running as usize
    }

    /// Changes how many requests may run at once. Those that run go on.
    pub(super) fn bound(&mut self, most: Option<u32>) {
        self.most = most.unwrap_or(u32::MAX);
    }

    /// Requests that the worker has, paused or not.
    pub(super) fn dispatched(&self) -> usize {
        self.running() + self.paused.len()
    }

    pub(super) fn is_paused(&self, id: RequestId) -> bool {
        self.paused.contains(&id)
    }

    /// Requests that may be sent past what the worker runs at once.
    pub(super) fn crowd_left(&self) -> usize {
        (CROWD * self.sequences as usize).saturating_sub(self.dispatched())
    }

    /// A request that runs is paused: from now on the worker's facts offer its KV.
    pub(super) fn paused(&mut self, id: RequestId) {
        self.in_flight.remove(&id);
        if self.paused.insert(id) {
            self.running -= 1;
        }
    }

    pub(super) fn resumed(&mut self, id: RequestId) {
        if self.paused.remove(&id) {
            self.running += 1;
        }
    }

    /// Takes over the facts of a report. True if anything changed.
    pub(super) fn report(&mut self, facts: WorkerFacts) -> bool {
        let changed = self.reported != facts;
        self.reported = facts;
        changed
    }

    /// The worker was sent a request.
    pub(super) fn sent(&mut self, id: RequestId, need: u32) {
        self.in_flight.insert(id, need);
        self.running += 1;
    }

    /// The worker admitted a request: from now on its facts include the request's KV.
    pub(super) fn admitted(&mut self, id: RequestId) {
        self.in_flight.remove(&id);
    }

    /// A request that the worker had has ended.
    pub(super) fn ended(&mut self, id: RequestId) {
        self.in_flight.remove(&id);
        if !self.paused.remove(&id) {
            self.running -= 1;
        }
    }

    /// The worker is down. Its requests have ended before.
    pub(super) fn lost(&mut self) {
        self.reported.healthy = false;
        (self.reported.kv_used, self.reported.tokens_per_second) = (0, 0.0);
    }

    /// Whether the counts agree with each other.
    pub(super) fn check(&self) -> bool {
        self.in_flight.len() <= self.running as usize
    }
}
