//! The KV account of one worker, in tokens.
use std::collections::HashMap;

use crate::ids::RequestId;

/// How much of a KV cache each request holds. `free + shared + held == total` at all times.
#[derive(Debug, Clone)]
pub struct Ledger {
    total: u32,
    free: u32,
    /// Held by the prefix tree for all running sequences, counted once.
    shared: u32,
    /// Reserved by each request for itself.
    held: HashMap<RequestId, u32>,
}

/// A reservation exceeds what is free.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} KV tokens wanted, {free} of {total} free")]
pub struct InsufficientKv {
    pub wanted: u32,
    pub free: u32,
    pub total: u32,
}

impl Ledger {
    pub fn new(total: u32) -> Self {
        Self { total, free: total, shared: 0, held: HashMap::new() }
    }

    pub fn total(&self) -> u32 {
        self.total
    }

    pub fn free(&self) -> u32 {
        self.free
    }

    fn insufficient(&self, wanted: u32) -> InsufficientKv {
        InsufficientKv { wanted, free: self.free, total: self.total }
    }

    /// Reserves `tokens` for a request that holds nothing yet.
    pub fn reserve(&mut self, id: RequestId, tokens: u32) -> Result<(), InsufficientKv> {
        let fresh = !self.held.contains_key(&id);
        if tokens > self.free || !fresh {
            return Err(self.insufficient(tokens));
        }
        self.held.insert(id, tokens);
        self.free -= tokens;
        Ok(())
    }

    /// Reserves `tokens` more for a request that holds some.
    pub fn grow(&mut self, id: RequestId, tokens: u32) -> Result<(), InsufficientKv> {
        let insufficient = self.insufficient(tokens);
        let held = self.held.get_mut(&id).filter(|_| tokens <= self.free).ok_or(insufficient)?;
        *held += tokens;
        self.free -= tokens;
        Ok(())
    }

    /// What a request holds for itself.
    pub fn held(&self, id: RequestId) -> u32 {
        self.held.get(&id).copied().unwrap_or(0)
    }

    /// Gives back what a request holds; nothing if it holds nothing.
    pub fn release(&mut self, id: RequestId) {
        self.free += self.held.remove(&id).unwrap_or(0);
    }

    /// Sets what the tree holds from now on.
    pub fn set_shared(&mut self, tokens: u32) -> Result<(), InsufficientKv> {
        let available = self.free + self.shared;
        if tokens > available {
            return Err(self.insufficient(tokens - self.shared));
        }
        (self.free, self.shared) = (available - tokens, tokens);
        Ok(())
    }

    /// Whether the account is balanced.
    pub fn check(&self) -> bool {
        let held: u64 = self.held.values().map(|&held| u64::from(held)).sum();
        u64::from(self.free) + u64::from(self.shared) + held == u64::from(self.total)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reserves_up_to_the_bound_and_not_one_past_it() {
        let mut ledger = Ledger::new(10);
        assert!(ledger.reserve(RequestId(1), 10).is_ok());
        assert_eq!(ledger.reserve(RequestId(2), 1), Err(InsufficientKv { wanted: 1, free: 0, total: 10 }));
        ledger.release(RequestId(1));
        assert!(ledger.reserve(RequestId(2), 11).is_err());
        assert_eq!(ledger.free(), 10);
    }

    #[test]
    fn shared_tokens_and_growth_take_from_the_same_capacity() {
        let mut ledger = Ledger::new(10);
        assert!(ledger.set_shared(4).is_ok() && ledger.reserve(RequestId(1), 3).is_ok());
        assert_eq!(ledger.grow(RequestId(1), 4), Err(InsufficientKv { wanted: 4, free: 3, total: 10 }));
        assert!(ledger.grow(RequestId(1), 3).is_ok());
        assert_eq!((ledger.held(RequestId(1)), ledger.free()), (6, 0));
        assert!(ledger.grow(RequestId(2), 0).is_err(), "it holds nothing to grow from");
        assert_eq!(ledger.set_shared(5), Err(InsufficientKv { wanted: 1, free: 0, total: 10 }));
        assert!(ledger.set_shared(1).is_ok() && ledger.check());
        assert_eq!(ledger.free(), 3);
    }

    proptest! {
        #[test]
        fn stays_balanced(acts in prop::collection::vec((0u64..8, 0u32..40, 0u8..4), 0..200)) {
            let mut ledger = Ledger::new(100);
            for (id, tokens, act) in acts {
                let before = ledger.clone();
                let done = match act {
                    0 => ledger.reserve(RequestId(id), tokens).is_ok(),
                    1 => ledger.grow(RequestId(id), tokens).is_ok(),
                    2 => ledger.set_shared(tokens).is_ok(),
                    _ => { ledger.release(RequestId(id)); true }
                };
                prop_assert!(ledger.check());
                prop_assert!(done || before.free() == ledger.free());
            }
        }
    }
}
