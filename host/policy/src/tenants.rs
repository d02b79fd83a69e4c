//! Numbers for tenants, for as long as a scheduler's instance lives.
use std::collections::{BTreeSet, HashMap};

use camshaft_core::ids::{RequestId, TenantId};

/// Tenants without a request whose numbers are kept.
const IDLE: usize = 65_536;

/// A number for each tenant. It is the tenant's for as long as it has requests, and then until as many others as are kept have
/// become idle after it. Numbers are not used again.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    numbers: HashMap<TenantId, u32>,
    known: HashMap<u32, Known>,
    of_request: HashMap<RequestId, u32>,
    /// Those without requests, by the turn in which they became idle.
    idle: BTreeSet<(u64, u32)>,
    next: u32,
    turns: u64,
}

#[derive(Debug)]
struct Known {
    tenant: TenantId,
    requests: usize,
    /// When it became idle, while it has no requests.
    since: u64,
}

impl Tenants {
    /// Counts a request, and gives its tenant's number. A request that is known stays where it is.
    pub(crate) fn enter(&mut self, id: RequestId, tenant: &TenantId) -> u32 {
        if let Some(number) = self.of_request.get(&id) {
            return *number;
        }
        let number = self.number(tenant);
        self.of_request.insert(id, number);
        if let Some(known) = self.known.get_mut(&number) {
            if known.requests == 0 {
                self.idle.remove(&(known.since, number));
            }
            known.requests += 1;
        }
        number
    }

    /// Forgets a request that has ended.
    pub(crate) fn leave(&mut self, id: RequestId) {
        let Some(number) = self.of_request.remove(&id) else { return };
        let Some(known) = self.known.get_mut(&number) else { return };
        known.requests -= 1;
        if known.requests > 0 {
            return;
        }
        self.turns += 1;
        known.since = self.turns;
        self.idle.insert((self.turns, number));
        if self.idle.len() > IDLE
            && let Some((_, oldest)) = self.idle.pop_first()
            && let Some(known) = self.known.remove(&oldest)
        {
            self.numbers.remove(&known.tenant);
        }
    }

    pub(crate) fn name(&self, number: u32) -> Option<&TenantId> {
        self.known.get(&number).map(|known| &known.tenant)
    }

    fn number(&mut self, tenant: &TenantId) -> u32 {
        if let Some(number) = self.numbers.get(tenant) {
            return *number;
        }
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        self.numbers.insert(tenant.clone(), number);
        self.idle.insert((self.turns, number));
        self.known.insert(number, Known { tenant: tenant.clone(), requests: 0, since: self.turns });
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(i: usize) -> TenantId {
        TenantId::new(format!("t{i}"))
    }

    #[test]
    fn a_tenant_keeps_its_number_and_others_get_other_ones() {
        let mut tenants = Tenants::default();
        assert_eq!(tenants.enter(RequestId(1), &tenant(0)), 0);
        assert_eq!(tenants.enter(RequestId(2), &tenant(1)), 1);
        assert_eq!(tenants.enter(RequestId(3), &tenant(0)), 0);
        // Told again in a replay.
        assert_eq!(tenants.enter(RequestId(3), &tenant(0)), 0);
        (1..4).for_each(|id| tenants.leave(RequestId(id)));
        assert!(tenants.of_request.is_empty());
        assert_eq!(tenants.enter(RequestId(4), &tenant(1)), 1);
        assert_eq!((tenants.name(1), tenants.name(2)), (Some(&tenant(1)), None));
    }

    #[test]
    fn only_so_many_idle_tenants_are_kept_and_none_with_a_request_is_forgotten() {
        let mut tenants = Tenants::default();
        tenants.enter(RequestId(0), &tenant(0));
        for i in 1..=IDLE {
            tenants.enter(RequestId(i as u64), &tenant(i));
            tenants.leave(RequestId(i as u64));
        }
        assert_eq!(tenants.known.len(), IDLE + 1);
        tenants.enter(RequestId(u64::MAX), &tenant(IDLE + 1));
        tenants.leave(RequestId(u64::MAX));
        assert_eq!((tenants.known.len(), tenants.idle.len(), tenants.numbers.len()), (IDLE + 1, IDLE, IDLE + 1));
        assert_eq!(tenants.name(0), Some(&tenant(0)));
        assert_eq!(tenants.name(1), None, "the first that became idle");
        assert_eq!(tenants.enter(RequestId(1), &tenant(1)), IDLE as u32 + 2, "a number is not used again");
    }
}
