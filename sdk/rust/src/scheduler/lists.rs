//! The parallel lists of a scheduling point, read and written one entry at a time.
use super::{Actions, Arrivals, Point, Priority, Workers};

/// A request that waits, or did.
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// Prompt tokens found in a prefix cache.
    pub cached_tokens: u32,
}

impl Arrival {
    /// The KV cache that the request may come to need, in tokens.
    pub fn kv_tokens(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.max_tokens)
    }

    /// The place in one line of all classes, the smallest first: within a class the order of arrival, and a request that
    /// has waited `ageing_ms` is treated as one of the next higher class that arrives then.
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
    pub running_sequences: u32,
    /// KV cache, in tokens.
    pub kv_free: u32,
    pub kv_total: u32,
    /// Prompt tokens still to prefill.
    pub prefilling_tokens: u32,
    /// Tokens generated per second over the last second.
    pub tokens_per_second: f32,
    pub can_park: bool,
}

impl Arrivals {
    /// One entry after the other. Panics if the host sent lists of unequal length.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Arrival> + '_ {
        (0..self.ids.len()).map(|i| Arrival {
            id: self.ids[i],
            arrived_ms: self.arrived_ms[i],
            tenant: self.tenants[i],
            priority: self.priorities[i],
            weight: self.weights[i],
            deadline_ms: self.deadlines_ms[i],
            prompt_tokens: self.prompt_tokens[i],
            max_tokens: self.max_tokens[i],
            cached_tokens: self.cached_tokens[i],
        })
    }

    /// Adds an entry.
    pub fn push(&mut self, arrival: Arrival) {
        self.ids.push(arrival.id);
        self.arrived_ms.push(arrival.arrived_ms);
        self.tenants.push(arrival.tenant);
        self.priorities.push(arrival.priority);
        self.weights.push(arrival.weight);
        self.deadlines_ms.push(arrival.deadline_ms);
        self.prompt_tokens.push(arrival.prompt_tokens);
        self.max_tokens.push(arrival.max_tokens);
        self.cached_tokens.push(arrival.cached_tokens);
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
            can_park: self.can_park[i],
        })
    }

    /// Adds an entry.
    pub fn push(&mut self, worker: Worker) {
        self.ids.push(worker.id);
        self.healthy.push(worker.healthy);
        self.free_sequences.push(worker.free_sequences);
        self.running_sequences.push(worker.running_sequences);
        self.kv_free.push(worker.kv_free);
        self.kv_total.push(worker.kv_total);
        self.prefilling_tokens.push(worker.prefilling_tokens);
        self.tokens_per_second.push(worker.tokens_per_second);
        self.can_park.push(worker.can_park);
    }
}

impl Point {
    /// A point at which nothing happened yet, for tests of schedulers.
    pub fn at(now_ms: u64) -> Self {
        Self {
            now_ms,
            replay: false,
            tenants: Vec::new(),
            arrived: Arrivals {
                ids: Vec::new(),
                arrived_ms: Vec::new(),
                tenants: Vec::new(),
                priorities: Vec::new(),
                weights: Vec::new(),
                deadlines_ms: Vec::new(),
                prompt_tokens: Vec::new(),
                max_tokens: Vec::new(),
                cached_tokens: Vec::new(),
            },
            dispatched_ids: Vec::new(),
            dispatched_workers: Vec::new(),
            progressed_ids: Vec::new(),
            progressed_prompt: Vec::new(),
            progressed_generated: Vec::new(),
            finished_ids: Vec::new(),
            finished_generated: Vec::new(),
            cancelled_ids: Vec::new(),
            parked_ids: Vec::new(),
            workers: Workers {
                ids: Vec::new(),
                healthy: Vec::new(),
                free_sequences: Vec::new(),
                running_sequences: Vec::new(),
                kv_free: Vec::new(),
                kv_total: Vec::new(),
                prefilling_tokens: Vec::new(),
                tokens_per_second: Vec::new(),
                can_park: Vec::new(),
            },
        }
    }
}

impl Actions {
    /// Nothing to do.
    pub fn none() -> Self {
        Self {
            park_ids: Vec::new(),
            reject_ids: Vec::new(),
            reject_messages: Vec::new(),
            dispatch_ids: Vec::new(),
            dispatch_workers: Vec::new(),
            budget_workers: Vec::new(),
            budget_tokens: Vec::new(),
        }
    }

    /// Takes a running request off its worker, to wait again.
    pub fn park(&mut self, id: u64) {
        self.park_ids.push(id);
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
