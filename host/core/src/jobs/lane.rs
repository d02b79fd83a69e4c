//! What tenants have had of one class of a job queue.
use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use crate::fcfs::aged_class;
use crate::ids::TenantId;
use crate::jobs::order::Position;
use crate::policy::Priority;

/// How far a tenant has come in a class.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// Size by weight that was taken of it, from the others' position when it came.
    pub(super) served: f64,
    /// Of its request that was served last.
    pub(super) job: f64,
    /// Its requests.
    pub(super) jobs: usize,
    /// Those of which an input waits.
    pub(super) waiting: usize,
    /// When the latest of its inputs was taken, or the first one that waits came.
    pub(super) waits_since: Duration,
    /// The class it has in this batch: 0 is the first.
    class: u32,
}

/// Tenants with requests of one class. What is taken of other classes moves nobody here.
#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) tenants: HashMap<TenantId, Progress>,
    /// Where the tenant that waits furthest behind was when one was served. Others may be ahead of it by inputs that filled
    /// a batch.
    pub(super) clock: f64,
    /// The clock when this batch was begun. Positions of several classes count from there.
    begun: f64,
    /// Tenants that wait, the one furthest behind first. Of some, where they were earlier in this batch.
    behind: BinaryHeap<Reverse<(Position, TenantId)>>,
}

impl Lane {
    /// A batch begins: sets the class of each tenant for it.
    pub(super) fn begin(&mut self, priority: Priority, now: Duration) {
        self.begun = self.clock;
        for progress in self.tenants.values_mut() {
            progress.class = aged_class(priority, now.saturating_sub(progress.waits_since));
            if progress.class < priority as u32 {
                // What it owes in its own class would keep it behind all of the higher one.
                progress.served = progress.served.min(self.clock);
            }
        }
        let waiting = self.tenants.iter().filter(|(_, progress)| progress.waiting > 0);
        self.behind = waiting.map(|(tenant, progress)| Reverse((Position(progress.served), tenant.clone()))).collect();
    }

    /// The class and the position of a tenant: the least one is next.
    pub(super) fn standing(&self, tenant: &TenantId) -> (u32, Position) {
        #[cfg(test)]
        crate::jobs::order::count_step();
        let standing = |progress: &Progress| (progress.class, Position(progress.served - self.begun));
        self.tenants.get(tenant).map_or((0, Position(0.0)), standing)
    }

    /// An input is about to be taken.
    pub(super) fn go_on(&mut self) {
        while let Some(mut first) = self.behind.peek_mut() {
            let Reverse((position, tenant)) = &*first;
            let served =
                self.tenants.get(tenant).filter(|progress| progress.waiting > 0).map(|progress| progress.served);
            match served.map(Position) {
                None => drop(PeekMut::pop(first)),
                Some(served) if served == *position => {
                    self.clock = self.clock.max(served.0);
                    return;
                }
                Some(served) => first.0.0 = served,
            }
        }
    }

    /// A request of the tenant has no more inputs that wait.
    pub(super) fn stop_waiting(&mut self, tenant: &TenantId) {
        if let Some(progress) = self.tenants.get_mut(tenant) {
            progress.waiting -= 1;
        }
    }

    /// A tenant that has had more than the others is remembered as long as there are others.
    pub(super) fn forget(&mut self) {
        let (clock, idle) = (self.clock, self.tenants.values().all(|progress| progress.jobs == 0));
        self.tenants.retain(|_, progress| progress.jobs > 0 || (progress.served > clock && !idle));
    }
}
