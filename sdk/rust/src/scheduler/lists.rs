//! The parallel lists of a scheduling point, read and written one entry at a time.
use crate::bindings::host::camshaft::policy::types::Priority;
use crate::bindings::scheduler::exports::camshaft::policy::scheduler::{Actions, Point, Workers};

/// A request that waits, or did.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    pub id: u64,
    /// Milliseconds on the clock of `point.now_ms`.
    pub arrived_ms: u64,
    /// Index into `point.tenants` of the point that the request arrived in.
    pub tenant: u32,
    pub priority: Priority,
    /// Share of the service against other tenants.
    pub weight: f64,
    /// Latest moment of the first token, in milliseconds on the clock of `point.now_ms`; 0: none.
    pub deadline_ms: u64,
    pub prompt_tokens: u32,
    /// The most that the request may generate.
    pub max_tokens: u32,
    /// KV tokens that a worker must have free to admit the request: what the host checks a dispatch with.
    pub need: u32,
    /// Workers whose prefix cache probably holds a beginning of the prompt: an estimate of when the request arrived.
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

    /// As [`Arrival::cached_on`], on the worker that holds most.
    pub fn cached_tokens(&self) -> u32 {
        self.cached.iter().map(|cached| cached.tokens).max().unwrap_or(0)
    }

    /// The position in one queue of all classes, the smallest first: within a class the order of arrival, and a request
    /// that has waited `ageing_ms` is treated as one of the next higher class that arrives then.
    pub fn aged_ms(&self, ageing_ms: u64) -> u64 {
        self.arrived_ms.saturating_add(ageing_ms.saturating_mul(u64::from(self.class())))
    }

    /// 0 for the class that goes first, then 1 and 2.
    pub fn class(&self) -> u8 {
        match self.priority {
            Priority::High => 0,
            Priority::Normal => 1,
            Priority::Low => 2,
        }
    }
}

/// Facts about one worker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Worker {
    pub id: u32,
    pub healthy: bool,
    /// Sequences that can still be started.
    pub free_sequences: u32,
    /// Requests that the worker has, whether they run, wait for KV or are on their way to it.
    pub running_sequences: u32,
    /// KV cache, in tokens.
    pub kv_free: u32,
    pub kv_total: u32,
    /// Prompt tokens still to prefill.
    pub prefilling_tokens: u32,
    /// Tokens generated per second over the last second.
    pub tokens_per_second: f32,
    pub can_preempt: bool,
}

impl Point {
    /// The requests that arrived, one after the other. Panics if the host sent lists of unequal length.
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

    /// The workers that hold something; most requests find nothing anywhere and cost no allocation.
    fn cached_of(&self, tokens: &[u32]) -> Vec<CachedPrefix> {
        let all = self.workers.ids.iter().zip(tokens).map(|(&worker, &tokens)| CachedPrefix { worker, tokens });
        all.filter(|cached| cached.tokens > 0).collect()
    }
}

impl Workers {
    /// One entry after the other. Panics if the host sent lists of unequal length.
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
    /// Nothing to do.
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

    /// Preempts a running request: its worker saves its KV and resumes it when others leave capacity.
    pub fn preempt(&mut self, id: u64) {
        self.preempt_ids.push(id);
    }

    /// Refuses a waiting request; the client reads `message` with status 503.
    pub fn reject(&mut self, id: u64, message: impl Into<String>) {
        self.reject_ids.push(id);
        self.reject_messages.push(message.into());
    }

    /// Gives a waiting request to a worker.
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
