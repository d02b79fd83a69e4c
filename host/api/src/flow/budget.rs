//! The memory of requests in flight: their bodies, what is parsed from them, and whole responses.
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_core::ids::TenantId;

/// What a token of a prompt takes, here and with the worker.
pub(crate) const TOKEN_BYTES: usize = 8;
/// What a candidate of a token takes: as numbers, and as text in the response.
const CANDIDATE_BYTES: usize = 160;
/// One request may take half of the budget: with it, its tenant leaves as much.
const REQUEST_PART: u64 = 2;

/// What a text takes until its response is sent: as it is, and in the response.
pub(crate) fn text_bytes(text: usize) -> usize {
    3 * text
}

/// Upper bound of what the log-probabilities of `tokens` tokens take until their response is sent.
pub(crate) fn logprob_bytes(tokens: usize, alternatives: u32) -> usize {
    tokens.saturating_mul((alternatives as usize + 2) * CANDIDATE_BYTES)
}

/// What all requests may take together.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: AtomicU64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    tenants: HashMap<TenantId, u64>,
}

/// There is no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoRoom {
    #[error("the server holds as many and as large requests as it may (limits.bodies)")]
    Now,
    /// The request alone is over what a tenant may ever take.
    #[error(
        "this request with its response may take {bytes} bytes of memory, and one request may take {most} (half of \
         limits.bodies): ask for fewer inputs, choices, tokens or alternatives at once"
    )]
    Ever { bytes: u64, most: u64 },
}

impl Budget {
    pub(crate) fn new(bytes: u64) -> Arc<Self> {
        Arc::new(Self { bytes: AtomicU64::new(bytes), taken: Mutex::default() })
    }

    /// Sets the budget. Requests that hold more now keep it.
    pub(crate) fn set(&self, bytes: u64) {
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// A request's share, empty at first.
    pub(crate) fn share(self: &Arc<Self>, tenant: &TenantId) -> Share {
        Share { budget: self.clone(), tenant: tenant.clone(), bytes: 0 }
    }

    /// Whether more than three quarters are taken, which one tenant alone cannot do by what it sends.
    pub(crate) fn is_pressed(&self) -> bool {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).bytes > self.pressure()
    }

    /// Whether it is pressed, or the tenant holds more than half of what it leaves free.
    fn is_tight(&self, tenant: &TenantId) -> bool {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.tenants.get(tenant).copied().unwrap_or(0);
        let free = self.bytes.load(Ordering::Relaxed).saturating_sub(taken.bytes);
        taken.bytes > self.pressure() || own > free / 2
    }

    fn pressure(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) / 4 * 3
    }
}

/// What one request takes. Dropping it gives all of it back.
#[derive(Debug)]
pub(crate) struct Share {
    budget: Arc<Budget>,
    tenant: TenantId,
    bytes: u64,
}

impl Share {
    /// Takes more. A tenant may hold as much as it leaves free: the first one half, the next a quarter, and so on, so that some
    /// is left for whoever holds nothing, and equal parts where all take a little at a time (Choudhury and Hahne, "Dynamic
    /// Queue Length Thresholds for Shared-Memory Packet Switches", 1998).
    ///
    /// # Errors
    /// There is no room for the tenant. The share stays as it is.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        let (bytes, all) = (bytes as u64, self.budget.bytes.load(Ordering::Relaxed));
        let (alone, most) = (self.bytes.saturating_add(bytes), all / REQUEST_PART);
        if alone > most {
            return Err(NoRoom::Ever { bytes: alone, most });
        }
        let mut taken = self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let own = taken.tenants.get(&self.tenant).copied().unwrap_or(0);
        let (total, own) = (taken.bytes.saturating_add(bytes), own.saturating_add(bytes));
        if own > all.saturating_sub(total) {
            return Err(NoRoom::Now);
        }
        taken.bytes = total;
        taken.tenants.insert(self.tenant.clone(), own);
        self.bytes = alone;
        Ok(())
    }

    /// Takes more, whether or not there is room, for work that is too far to refuse: the text of generations that run.
    /// Others are refused sooner then.
    pub(crate) fn add(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let mut taken = self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes += bytes as u64;
        *taken.tenants.entry(self.tenant.clone()).or_default() += bytes as u64;
        self.bytes += bytes as u64;
    }

    /// Takes as much as this and no more, whether or not there is room.
    pub(crate) fn set(&mut self, bytes: usize) {
        match (bytes as u64).checked_sub(self.bytes) {
            Some(more) => self.add(more as usize),
            None => self.give_back(self.bytes - bytes as u64),
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes as much as this and no more.
    ///
    /// # Errors
    /// As [`Share::grow`].
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), NoRoom> {
        match (bytes as u64).checked_sub(self.bytes) {
            Some(more) => self.grow(usize::try_from(more).unwrap_or(usize::MAX)),
            None => {
                self.give_back(self.bytes - bytes as u64);
                Ok(())
            }
        }
    }

    /// Whether others may soon find no room, so that nobody should hold much for long.
    pub(crate) fn is_tight(&self) -> bool {
        self.budget.is_tight(&self.tenant)
    }

    fn give_back(&mut self, bytes: u64) {
        self.bytes -= bytes;
        let mut taken = self.budget.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.bytes -= bytes;
        if let Some(own) = taken.tenants.get_mut(&self.tenant) {
            *own -= bytes;
            if *own == 0 {
                taken.tenants.remove(&self.tenant);
            }
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_quarters_are_no_pressure_and_a_byte_more_is() {
        let budget = Budget::new(1024);
        let mut shares: Vec<Share> = ["a", "b", "c"].map(|name| budget.share(&TenantId::from(name))).into();
        assert!(shares[0].grow(512).is_ok() && shares[0].grow(1).is_err(), "all that one tenant can take");
        assert!(shares[1].grow(256).is_ok() && !budget.is_pressed());
        assert!(shares[2].grow(1).is_ok() && budget.is_pressed());
        shares.pop();
        assert!(!budget.is_pressed());
    }

    #[test]
    fn regression_all_requests_together_have_a_bound() {
        let budget = Budget::new(100);
        let [mut first, mut second, mut third] = ["a", "b", "c"].map(|tenant| budget.share(&tenant.into()));
        first.grow(50).unwrap();
        assert_eq!(second.grow(26), Err(NoRoom::Now));
        second.grow(25).unwrap();
        assert_eq!(third.grow(13), Err(NoRoom::Now));
        third.grow(12).unwrap();
        second.resize(24).unwrap();
        third.grow(1).unwrap();
        assert_eq!(third.grow(1), Err(NoRoom::Now));
        drop(first);
        third.grow(24).unwrap();
        budget.set(10);
        assert_eq!(second.resize(50), Err(NoRoom::Ever { bytes: 50, most: 5 }));
        second.resize(1).unwrap();
        drop((second, third));
        assert!(budget.taken.lock().unwrap().tenants.is_empty());
        assert_eq!(budget.taken.lock().unwrap().bytes, 0);
    }

    #[test]
    fn regression_what_will_never_fit_says_so() {
        let budget = Budget::new(100);
        let mut share = budget.share(&"a".into());
        share.grow(20).unwrap();
        assert_eq!(share.grow(31), Err(NoRoom::Ever { bytes: 51, most: 50 }));
        share.grow(30).unwrap();
        assert_eq!(share.grow(usize::MAX), Err(NoRoom::Ever { bytes: u64::MAX, most: 50 }));
    }

    #[test]
    fn what_must_be_held_counts_but_is_not_refused() {
        let budget = Budget::new(100);
        let [mut first, mut second] = ["a", "b"].map(|tenant| budget.share(&tenant.into()));
        first.add(90);
        assert_eq!((first.bytes(), second.grow(6)), (90, Err(NoRoom::Now)));
        first.set(195);
        assert_eq!((first.bytes(), second.grow(1)), (195, Err(NoRoom::Now)));
        first.set(40);
        second.grow(30).unwrap();
        drop((first, second));
        assert!(budget.taken.lock().unwrap().tenants.is_empty());
        assert_eq!(budget.taken.lock().unwrap().bytes, 0);
    }

    #[test]
    fn a_tenant_leaves_room_for_others() {
        let budget = Budget::new(100);
        let mut greedy = [budget.share(&"a".into()), budget.share(&"a".into())];
        greedy[0].grow(33).unwrap();
        assert!(!greedy[0].is_tight());
        greedy[1].grow(1).unwrap();
        assert!(greedy[0].is_tight(), "of its own part");
        assert!(!budget.share(&"b".into()).is_tight());
        assert_eq!(greedy[1].grow(17), Err(NoRoom::Now));
        greedy[1].grow(16).unwrap();
        let mut polite = [budget.share(&"b".into()), budget.share(&"c".into())];
        polite[0].grow(25).unwrap();
        assert!(!budget.share(&"d".into()).is_tight());
        polite[1].grow(1).unwrap();
        assert!(budget.share(&"d".into()).is_tight(), "of all");
    }

    #[test]
    fn regression_a_few_tenants_do_not_take_all() {
        let budget = Budget::new(1 << 20);
        let mut greedy: Vec<Share> = Vec::new();
        for tenant in ["a", "b", "c", "d", "e"] {
            let mut share = budget.share(&tenant.into());
            while share.grow(64).is_ok() {}
            greedy.push(share);
        }
        // A 64th of all: half of what five leave free.
        let mut honest = budget.share(&"f".into());
        assert_eq!(honest.grow((16 << 10) + 64), Err(NoRoom::Now));
        honest.grow(16 << 10).unwrap();
    }
}
