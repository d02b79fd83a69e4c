//! Who may wait: the queue's watermarks, and each tenant's share of it.
use std::collections::HashMap;

use crate::ids::TenantId;

/// How many generations may wait: at `high` the queue stops accepting, at `low` it accepts again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// At least 1.
    pub high: usize,
    /// Below `high`.
    pub low: usize,
}

/// Counts those who wait.
#[derive(Debug)]
pub(super) struct Gate {
    watermarks: Watermarks,
    open: bool,
    waiting: usize,
    /// By tenant; none is 0.
    of_tenant: HashMap<TenantId, usize>,
}

impl Gate {
    pub(super) fn new(watermarks: Watermarks) -> Self {
        Self { watermarks, open: true, waiting: 0, of_tenant: HashMap::new() }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Lets one more wait; false if the queue is closed, or the tenant has its share (of `high`, at least one) waiting.
    pub(super) fn enter(&mut self, tenant: &TenantId, share: Option<f64>) -> bool {
        let most = share.map_or(usize::MAX, |share| ((self.watermarks.high as f64 * share) as usize).max(1));
        let own = self.of_tenant.get(tenant).copied().unwrap_or(0);
        if !self.open || own >= most {
            return false;
        }
        self.of_tenant.insert(tenant.clone(), own + 1);
        self.waiting += 1;
        self.note_crossing();
        true
    }

    /// One of those who waited does no longer.
    pub(super) fn leave(&mut self, tenant: &TenantId) {
        self.waiting -= 1;
        self.note_crossing();
        if let Some(own) = self.of_tenant.get_mut(tenant) {
            *own -= 1;
            if *own == 0 {
                self.of_tenant.remove(tenant);
            }
        }
    }

    /// Bounds the queue anew; who waits already goes on waiting.
    pub(super) fn set_watermarks(&mut self, watermarks: Watermarks) {
        self.watermarks = watermarks;
        // Between the new marks it is as if it had come from below.
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
    pub(super) fn check(&self) -> bool {
        self.of_tenant.values().sum::<usize>() == self.waiting
    }
}
