//! What schedulers, metrics and operators learn of the workers.
use serde::{Deserialize, Serialize};

use crate::ids::WorkerId;

/// Facts about a worker. Newer ones replace older ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerFacts {
    pub worker: WorkerId,
    pub healthy: bool,
    pub free_sequences: u32,
    /// Requests that the worker has, whether they run, wait for KV or are on their way to it.
    pub running_sequences: u32,
    /// KV tokens that a new request may take: 0 while a request waits inside the worker, since that one goes first.
    pub kv_free: u32,
    /// KV tokens that sequences hold, reserves included.
    pub kv_used: u32,
    pub kv_total: u32,
    /// Prompt tokens still to prefill.
    pub prefilling_tokens: u32,
    pub tokens_per_second: f32,
    pub can_preempt: bool,
}

/// KV tokens of several workers together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KvTokens {
    pub free: u64,
    /// Held by requests and by prefixes that they share.
    pub held: u64,
    pub total: u64,
}

impl KvTokens {
    /// What a worker offers (`kv_free`) is less than what is free in it while a request waits inside.
    /// Of healthy workers: nobody can use the KV of one that is down.
    pub fn of<'a>(workers: impl IntoIterator<Item = &'a WorkerFacts>) -> Self {
        let sum = |(held, total), worker: &WorkerFacts| {
            (held + u64::from(worker.kv_used), total + u64::from(worker.kv_total))
        };
        let (held, total): (u64, u64) = workers.into_iter().filter(|worker| worker.healthy).fold((0, 0), sum);
        Self { free: total.saturating_sub(held), held, total }
    }
}
