//! What a worker counts besides its events and batches.
use serde::{Deserialize, Serialize};

/// Counts since the worker's last report. A new one is a field here, a line where it is counted and one where it is exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerCounters {
    /// Sequences preempted because KV capacity was short, or because the scheduler asked for it.
    pub preemptions: u64,
    /// Running sequences paused because their readers were behind.
    pub pauses: u64,
    /// Draft tokens that were drawn as proposed.
    pub drafts_accepted: u64,
    /// Draft tokens that were not.
    pub drafts_rejected: u64,
    /// Steps before which the engine had to change adapters.
    pub adapter_switches: u64,
    /// How often filters had text drawn anew, and the tokens that they took back.
    pub rewinds: u64,
    pub tokens_taken_back: u64,
    /// Segments evicted from RAM.
    pub evicted_from_ram: u64,
    /// Segments that the cold tier evicted, could not write or found damaged.
    pub evicted_from_cold: u64,
}

impl WorkerCounters {
    /// A filter took tokens back.
    pub(crate) fn rewound(&mut self, tokens: u32) {
        self.rewinds += 1;
        self.tokens_taken_back += u64::from(tokens);
    }

    /// A draft was verified: `accepted` of its tokens were drawn.
    pub(crate) fn verified(&mut self, drafted: u32, accepted: u32) {
        self.drafts_accepted += u64::from(accepted);
        self.drafts_rejected += u64::from(drafted.saturating_sub(accepted));
    }
}
