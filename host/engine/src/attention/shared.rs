//! What the nodes of attention of a context have in common.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::entries::Entries;

/// Of all contexts: no two graphs that are computed have the same number.
static GRAPHS: AtomicU64 = AtomicU64::new(0);

/// What threads that compute a graph read. It is changed only before they do.
#[derive(Default)]
pub(crate) struct Shared {
    pub(super) entries: Entries,
    /// The number of the graph.
    graph: u64,
    /// Attention was computed since the graph was numbered.
    is_old: AtomicBool,
}

impl Shared {
    /// Whether keys and values that llama.cpp would have rounded to 16 bits were not.
    pub(crate) fn is_exact(&self) -> bool {
        self.entries.was_needed()
    }

    /// To be called for each node of attention before it is computed: what was computed before was another graph, or another part
    /// of this one.
    pub(super) fn begin(&mut self) {
        if std::mem::take(self.is_old.get_mut()) || self.graph == 0 {
            self.graph = 1 + GRAPHS.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// To be called where a node is computed: the number of its graph.
    pub(super) fn graph(&self) -> u64 {
        if !self.is_old.load(Ordering::Relaxed) {
            self.is_old.store(true, Ordering::Relaxed);
        }
        self.graph
    }
}
