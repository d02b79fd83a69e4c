//! Decides which requests may wait for a model, by the queue's watermarks and each tenant's share.
use std::collections::HashMap;

use crate::ids::TenantId;

/// How many requests may wait: at `high` the queue stops accepting, at `low` it accepts again. Meanwhile each tenant of
/// which none waits may still have one wait, up to [`EXTRA`] times `high` in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watermarks {
    /// At least 1.
    pub high: usize,
    /// Below `high`.
    pub low: usize,
}

/// The queue holds at most this multiple of its high mark. Past it everybody is refused. This bounds what a caller with many
/// tenants can take.
pub(crate) const EXTRA: usize = 2;

/// Choices that wait of a request which is the only one of its tenant. They enter together: a request of which one choice is
/// refused fails as a whole.
pub(crate) const TOGETHER: usize = 8;

/// Who may still enter the queue. Ordered from empty to full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fill {
    /// Everybody, within its share.
    Open,
    /// Tenants of which none waits.
    Full,
    /// Nobody.
    Over,
}

impl Fill {
    /// The fill of a queue that would hold `count`, where `bound` closes it.
    pub(crate) fn of(count: usize, bound: usize) -> Self {
        match count {
            count if count <= bound => Self::Open,
            count if count <= bound.saturating_mul(EXTRA) => Self::Full,
            _ => Self::Over,
        }
    }
}

/// Counts the requests that wait, each choice as one.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    watermarks: Watermarks,
    open: bool,
    waiting: usize,
    /// What waits of each tenant of which something does.
    by_tenant: HashMap<TenantId, Own>,
}

/// What waits of one tenant.
#[derive(Debug, Clone)]
struct Own {
    waiting: usize,
    /// The request that all of them belong to; `None` once a second request has entered.
    only: Option<u64>,
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

    /// Lets one choice of a request wait, or returns false. `other` is the fill of whatever else bounds the queue; `request`
    /// is the same for all choices of a request. A choice is refused if the queue is closed and another request of the tenant
    /// waits, if the tenant's share of `high` is taken, or if nobody may enter. A share holds at least one request with up to
    /// [`TOGETHER`] choices.
    pub(crate) fn enter(&mut self, tenant: &TenantId, share: Option<f64>, other: Fill, request: u64) -> bool {
        let own = self.by_tenant.get(tenant);
        let is_only = own.is_none_or(|own| own.only == Some(request));
        let own = own.map_or(0, |own| own.waiting);
        let max = match other.max(self.fill()) {
            Fill::Open => share.map_or(usize::MAX, |share| ((self.watermarks.high as f64 * share) as usize).max(1)),
            Fill::Full => 1,
            Fill::Over => 0,
        };
        let max = if is_only && max > 0 { max.max(TOGETHER) } else { max };
        if own >= max {
            return false;
        }
        let only = is_only.then_some(request);
        self.by_tenant.insert(tenant.clone(), Own { waiting: own + 1, only });
        self.waiting += 1;
        self.note_crossing();
        true
    }

    /// The fill of the queue with one choice more.
    fn fill(&self) -> Fill {
        let fill = Fill::of(self.waiting + 1, self.watermarks.high);
        // Between the marks the queue stays closed.
        if self.open { fill } else { fill.max(Fill::Full) }
    }

    /// A request left the queue.
    pub(crate) fn leave(&mut self, tenant: &TenantId) {
        self.waiting -= 1;
        self.note_crossing();
        if let Some(own) = self.by_tenant.get_mut(tenant) {
            own.waiting -= 1;
            if own.waiting == 0 {
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
        self.by_tenant.values().map(|own| own.waiting).sum::<usize>() == self.waiting
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    impl Gate {
        /// A request of its own wants to wait.
        fn enter_new(&mut self, tenant: &TenantId, share: Option<f64>, other: Fill) -> bool {
            static NEXT: AtomicU64 = AtomicU64::new(1000);
            self.enter(tenant, share, other, NEXT.fetch_add(1, Ordering::Relaxed))
        }
    }

    fn tenant(number: usize) -> TenantId {
        TenantId::from(format!("t{number}").as_str())
    }

    /// A gate in which `waiting` requests of tenant 0 wait.
    fn filled(watermarks: Watermarks, waiting: usize) -> Gate {
        let mut gate = Gate::new(watermarks);
        (0..waiting).for_each(|_| assert!(gate.enter_new(&tenant(0), None, Fill::Open)));
        gate
    }

    #[test]
    fn regression_a_tenant_without_a_share_fills_the_queue_for_nobody_but_itself() {
        let mut gate = filled(Watermarks { high: 4, low: 2 }, 4);
        assert!(!gate.enter_new(&tenant(0), None, Fill::Open), "the one that filled it");
        assert!(gate.enter_new(&tenant(1), None, Fill::Open), "one of which none waits");
        assert!(!gate.enter_new(&tenant(1), None, Fill::Open), "one of which one waits");
        gate.leave(&tenant(1));
        assert!(gate.enter_new(&tenant(1), Some(0.01), Fill::Open), "again");
        assert!(gate.check());
    }

    #[test]
    fn regression_a_closed_queue_takes_one_of_each_tenant_between_its_marks() {
        let mut gate = filled(Watermarks { high: 4, low: 2 }, 4);
        gate.leave(&tenant(0));
        assert!(!gate.is_open() && gate.waiting() == 3);
        assert!(!gate.enter_new(&tenant(0), None, Fill::Open));
        assert!(gate.enter_new(&tenant(1), None, Fill::Open) && !gate.enter_new(&tenant(1), None, Fill::Open));
        (0..2).for_each(|_| gate.leave(&tenant(0)));
        assert!(gate.is_open() && gate.enter_new(&tenant(1), None, Fill::Open));
    }

    #[test]
    fn many_tenants_together_take_at_most_twice_the_high_mark() {
        let mut gate = Gate::new(Watermarks { high: 4, low: 2 });
        let entered = (0..100).filter(|&number| gate.enter_new(&tenant(number), None, Fill::Open)).count();
        assert_eq!((entered, gate.waiting()), (8, 8), "at the bound, and none past it");
        gate.leave(&tenant(0));
        assert!(gate.enter_new(&tenant(100), None, Fill::Open) && !gate.enter_new(&tenant(101), None, Fill::Open));
        // They hold the queue closed for nobody of which none waits, once there is room at all.
        (1..6).for_each(|number| gate.leave(&tenant(number)));
        assert!(!gate.is_open() && gate.enter_new(&tenant(101), None, Fill::Open) && gate.check());
    }

    #[test]
    fn whatever_else_is_bounded_closes_the_gate_alike() {
        assert_eq!([4, 5, 8, 9].map(|count| Fill::of(count, 4)), [Fill::Open, Fill::Full, Fill::Full, Fill::Over]);
        let mut gate = filled(Watermarks { high: 100, low: 2 }, 1);
        assert!(!gate.enter_new(&tenant(0), None, Fill::Full) && gate.enter_new(&tenant(1), None, Fill::Full));
        assert!(!gate.enter_new(&tenant(2), None, Fill::Over) && gate.enter_new(&tenant(2), None, Fill::Open));
    }

    #[test]
    fn regression_the_choices_of_a_request_enter_a_full_queue_together() {
        let mut gate = filled(Watermarks { high: 100, low: 50 }, 100);
        let mut enter = |number, request| gate.enter(&tenant(number), None, Fill::Open, request);
        assert!((0..TOGETHER).all(|_| enter(1, 7)), "at the bound");
        assert!(!enter(1, 7), "one past it");
        assert!(!enter(1, 8), "another request of the tenant");
        assert!(!enter(0, 9), "the one that filled it");
        assert!(enter(2, 10) && !enter(2, 11) && enter(2, 10));
        // One whose first choice is served goes on with the others.
        gate.leave(&tenant(2));
        assert!(gate.enter(&tenant(2), None, Fill::Open, 10) && gate.check());
        assert_eq!(gate.waiting(), 100 + TOGETHER + 2);
    }

    #[test]
    fn a_share_holds_so_many_choices_and_always_one_request_of_a_few() {
        // Of 100 places: what the share is, and what one request may take of it.
        for (share, places, alone) in [(0.01, 1, TOGETHER), (0.08, 8, 8), (0.09, 9, 9), (0.5, 50, 50)] {
            let gate = || Gate::new(Watermarks { high: 100, low: 50 });
            let mut one = gate();
            let mut enter = |request| one.enter(&tenant(1), Some(share), Fill::Open, request);
            assert!((0..alone).all(|_| enter(1)), "{share}: at the bound");
            assert!(!enter(1) && !enter(2), "{share}: one past it, and another request");
            let mut several = gate();
            let mut enter = |request| several.enter(&tenant(1), Some(share), Fill::Open, request);
            assert!((0..places as u64).all(&mut enter), "{share}: at the bound");
            assert_eq!(enter(0), places == 1, "{share}: one past it, unless it is the only request's");
            assert!(!enter(100), "{share}: another request");
        }
    }
}
