//! Decides which requests may wait for a model, by the queue's watermarks and each tenant's share.
use std::collections::HashMap;

use crate::ids::TenantId;

/// How many requests may wait: at `high` the queue stops accepting, at `low` it accepts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// At least 1.
    pub high: usize,
    /// Below `high`.
    pub low: usize,
}

/// Counts the requests that wait.
#[derive(Debug)]
pub(crate) struct Gate {
    watermarks: Watermarks,
    open: bool,
    waiting: usize,
    /// Waiting requests of each tenant that has any.
    by_tenant: HashMap<TenantId, usize>,
}

impl Gate {
    pub(crate) fn new(watermarks: Watermarks) -> Self {
        Self { watermarks, open: true, waiting: 0, by_tenant: HashMap::new() }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// One more request wants to wait. False if the queue is closed, or if the tenant's share of it (of `high`, at least one
    /// request) is taken.
    pub(crate) fn enter(&mut self, tenant: &TenantId, share: Option<f64>) -> bool {
        let max = share.map_or(usize::MAX, |share| ((self.watermarks.high as f64 * share) as usize).max(1));
        let own = self.by_tenant.get(tenant).copied().unwrap_or(0);
        if !self.open || own >= max {
            return false;
        }
        self.by_tenant.insert(tenant.clone(), own + 1);
        self.waiting += 1;
        self.note_crossing();
        true
    }

    /// A request left the queue.
    pub(crate) fn leave(&mut self, tenant: &TenantId) {
        self.waiting -= 1;
        self.note_crossing();
        if let Some(own) = self.by_tenant.get_mut(tenant) {
            *own -= 1;
            if *own == 0 {
                self.by_tenant.remove(tenant);
            }
        }
    }

    /// Changes the bounds. Requests that wait already stay.
    pub(crate) fn set_watermarks(&mut self, watermarks: Watermarks) {
        self.watermarks = watermarks;
        // Between the new marks the queue is open, as if it had filled up to here.
        self.open = self.waiting < watermarks.high;
        self.note_crossing();
    }

    fn note_crossing(&mut self) {
        if self.waiting >= self.watermarks.high {
            self.open = false;
        } else if self.waiting <= self.watermarks.low {
            self.open = true;
        }
    }

    /// Whether the counts add up.
    pub(crate) fn check(&self) -> bool {
        self.by_tenant.values().sum::<usize>() == self.waiting
    }
}
