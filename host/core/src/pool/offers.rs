//! Which waiting requests the scheduler is told of, where each tenant may run a bounded number: those of a tenant that has as many
//! wait until one of them ends.
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use crate::ids::{RequestId, TenantId};

/// What a model may run at once, below what its workers have room for. `None`: as much as they have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bounds {
    /// Generations on each worker.
    pub sequences: Option<u32>,
    /// Generations of each tenant, on all workers together.
    pub tenant_sequences: Option<u32>,
}

/// A request's place among those that wait: its aged arrival, then the order of arrival.
pub(super) type Turn = (Duration, u64);

/// A request that has not ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Living {
    pub(super) id: RequestId,
    pub(super) turn: Turn,
    /// The scheduler may still be told nothing of it.
    pub(super) waits: bool,
    /// The scheduler has been told of it.
    pub(super) offered: bool,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Offers {
    /// Of each tenant; `None`: all are offered, and none is counted.
    bound: Option<u32>,
    tenants: HashMap<TenantId, Tenant>,
}

#[derive(Debug, Clone, Default)]
struct Tenant {
    /// Requests that the scheduler was told of and that have not ended.
    offered: u32,
    held_back: BTreeMap<Turn, RequestId>,
}

impl Offers {
    /// A request arrives. Whether the scheduler is told of it.
    pub(super) fn enter(&mut self, tenant: &TenantId, turn: Turn, id: RequestId) -> bool {
        let Some(bound) = self.bound else { return true };
        let tenant = self.tenants.entry(tenant.clone()).or_default();
        let offered = tenant.offered < bound;
        match offered {
            true => tenant.offered += 1,
            false => drop(tenant.held_back.insert(turn, id)),
        }
        offered
    }

    /// A request has ended. Returns the one that the scheduler is told of in its place.
    pub(super) fn leave(&mut self, tenant: &TenantId, turn: Turn, offered: bool) -> Option<RequestId> {
        let bound = self.bound?;
        let state = self.tenants.get_mut(tenant)?;
        if !offered {
            state.held_back.remove(&turn);
            return None;
        }
        state.offered = state.offered.saturating_sub(1);
        let next = if state.offered < bound { state.held_back.pop_first() } else { None };
        state.offered += u32::from(next.is_some());
        if state.offered == 0 {
            self.tenants.remove(tenant);
        }
        next.map(|(_, id)| id)
    }

    /// Changes the bound. Returns the requests that are offered now and were not, and those that are no more.
    pub(super) fn set_bound<'a>(
        &mut self,
        bound: Option<u32>,
        living: impl Iterator<Item = (&'a TenantId, Living)>,
    ) -> (Vec<RequestId>, Vec<RequestId>) {
        self.bound = bound;
        self.tenants.clear();
        let mut all: Vec<(&TenantId, Living)> = living.collect();
        // What a worker has goes on whatever the bound is.
        all.sort_unstable_by_key(|(_, living)| (living.waits, living.turn));
        let (mut offered, mut withdrawn) = (Vec::new(), Vec::new());
        for (tenant, Living { id, turn, waits, offered: before }) in all {
            let tenant = self.tenants.entry(tenant.clone()).or_default();
            let now = !waits || bound.is_none_or(|bound| tenant.offered < bound);
            match now {
                true => tenant.offered += 1,
                false => drop(tenant.held_back.insert(turn, id)),
            }
            match (before, now) {
                (false, true) => offered.push(id),
                (true, false) => withdrawn.push(id),
                _ => {}
            }
        }
        if bound.is_none() {
            self.tenants.clear();
        }
        (offered, withdrawn)
    }

    /// Whether the counts are those of these requests.
    pub(super) fn check<'a>(&self, living: impl Iterator<Item = (&'a TenantId, Living)>) -> bool {
        let mut counts: HashMap<&TenantId, (u32, usize)> = HashMap::new();
        for (tenant, living) in living {
            let (offered, held_back) = counts.entry(tenant).or_default();
            *offered += u32::from(living.offered);
            *held_back += usize::from(!living.offered);
        }
        match self.bound {
            None => self.tenants.is_empty() && counts.values().all(|(_, held_back)| *held_back == 0),
            Some(bound) => {
                counts.len() == self.tenants.len()
                    && counts.into_iter().all(|(tenant, (offered, held_back))| {
                        self.tenants.get(tenant).is_some_and(|state| {
                            state.offered == offered
                                && state.held_back.len() == held_back
                                && (held_back == 0 || offered >= bound)
                        })
                    })
            }
        }
    }
}
