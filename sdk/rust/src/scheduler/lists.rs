//! Reads and writes the parallel lists of a scheduling point one entry at a time.
use super::point::Point;
use crate::Priority;
use crate::bindings::scheduler::{Actions, Workers};

/// A request as it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub id: u64,
    /// Milliseconds on the clock of `point.now_ms`.
    pub arrived_ms: u64,
    /// The tenant's number, whose name `point.tenant` tells. It stays while the tenant has requests, and for long after.
    pub tenant: u32,
    /// The smaller, the more urgent: see [`Priority`](crate::Priority).
    pub priority: u8,
    /// Share of the service relative to other tenants.
    pub weight: f64,
    /// Deadline of the first token, in milliseconds on the clock of `point.now_ms`; 0: none.
    pub deadline_ms: u64,
    pub prompt_tokens: u32,
    /// Maximum number of tokens that the request may generate.
    pub max_tokens: u32,
    /// KV tokens that a worker must have free to admit the request. The host checks a dispatch against this number.
    pub need: u32,
    /// Workers whose prefix cache probably holds a prefix of the prompt, as estimated when the request arrived.
    pub cached: Vec<CachedPrefix>,
}

/// Prompt tokens that a worker's prefix cache probably holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPrefix {
    pub worker: u32,
    pub tokens: u32,
}

impl Arrival {
    /// Prompt tokens that a worker's prefix cache probably holds.
    pub fn cached_on(&self, worker: u32) -> u32 {
        self.cached.iter().find(|cached| cached.worker == worker).map_or(0, |cached| cached.tokens)
    }

    /// The largest [`Arrival::cached_on`] of any worker.
    pub fn cached_tokens(&self) -> u32 {
        self.cached.iter().map(|cached| cached.tokens).max().unwrap_or(0)
    }

    /// Sort key for a queue of all classes, the smallest first. It keeps the order of arrival within a class, and
    /// treats a request that has waited for `ageing_ms` like one of the next higher class that arrives at that moment.
    pub fn aged_ms(&self, ageing_ms: u64) -> u64 {
        self.arrived_ms.saturating_add(ageing_ms.saturating_mul(u64::from(self.class())))
    }

    /// The class as a number: 0 for high, 1 for normal, 2 for low priority.
    pub fn class(&self) -> u8 {
        match self.priority {
            Priority::HIGH => 0,
            1..=Priority::NORMAL => 1,
            _ => 2,
        }
    }
}

/// Facts about one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worker {
    pub id: u32,
    pub healthy: bool,
    /// Number of sequences that the worker can still start.
    pub free_sequences: u32,
    /// Number of requests on the worker: those that run, wait for KV, or were just dispatched to it.
    pub running_sequences: u32,
    /// Free and total size of the KV cache, in tokens.
    pub kv_free: u32,
    pub kv_total: u32,
    /// Prompt tokens that are still to be prefilled.
    pub prefilling_tokens: u32,
    /// Tokens generated per second over the last second.
    pub tokens_per_second: f32,
    pub can_preempt: bool,
}

impl Point<'_> {
    /// The requests that arrived. Panics if the host sent lists of unequal length.
    pub fn arrivals(&self) -> impl ExactSizeIterator<Item = Arrival> + '_ {
        let (list, workers) = (&self.arrived, self.workers.ids.len());
        (0..list.ids.len()).map(move |i| Arrival {
            id: list.ids[i],
            arrived_ms: list.arrived_ms[i],
            tenant: list.tenants[i],
            priority: list.priorities[i],
            weight: list.weights[i],
            deadline_ms: list.deadlines_ms[i],
            prompt_tokens: list.prompt_tokens[i],
            max_tokens: list.max_tokens[i],
            need: list.need[i],
            cached: self.cached_of(&list.cached_tokens[i * workers..(i + 1) * workers]),
        })
    }

    /// The workers that hold a prefix. For most requests there are none, and the list allocates nothing.
    fn cached_of(&self, tokens: &[u32]) -> Vec<CachedPrefix> {
        let all = self.workers.ids.iter().zip(tokens).map(|(&worker, &tokens)| CachedPrefix { worker, tokens });
        all.filter(|cached| cached.tokens > 0).collect()
    }
}

impl Workers {
    /// The workers one by one. Panics if the host sent lists of unequal length.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Worker> + '_ {
        (0..self.ids.len()).map(|i| Worker {
            id: self.ids[i],
            healthy: self.healthy[i],
            free_sequences: self.free_sequences[i],
            running_sequences: self.running_sequences[i],
            kv_free: self.kv_free[i],
            kv_total: self.kv_total[i],
            prefilling_tokens: self.prefilling_tokens[i],
            tokens_per_second: self.tokens_per_second[i],
            can_preempt: self.can_preempt[i],
        })
    }
}

impl Actions {
    /// No actions.
    pub fn none() -> Self {
        Self {
            preempt_ids: Vec::new(),
            reject_ids: Vec::new(),
            reject_messages: Vec::new(),
            dispatch_ids: Vec::new(),
            dispatch_workers: Vec::new(),
            budget_workers: Vec::new(),
            budget_tokens: Vec::new(),
        }
    }

    /// Preempts a running request. Its worker saves its KV, and resumes the request when it has capacity again. For
    /// each one that runs and is preempted, one request may be dispatched to its worker even if that has no room.
    pub fn preempt(&mut self, id: u64) {
        self.preempt_ids.push(id);
    }

    /// Rejects a waiting request. The client reads `message` with status 503.
    pub fn reject(&mut self, id: u64, message: impl Into<String>) {
        self.reject_ids.push(id);
        self.reject_messages.push(message.into());
    }

    /// Dispatches a waiting request to a worker.
    pub fn dispatch(&mut self, id: u64, worker: u32) {
        self.dispatch_ids.push(id);
        self.dispatch_workers.push(worker);
    }

    /// Sets how many prompt tokens a worker may prefill per step; 0: the host decides.
    pub fn prefill_budget(&mut self, worker: u32, tokens: u32) {
        self.budget_workers.push(worker);
        self.budget_tokens.push(tokens);
    }
}
