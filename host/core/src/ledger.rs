//! The KV account of one worker, in tokens.
use std::collections::HashMap;

use crate::ids::RequestId;

/// Who holds how much of a KV cache. `free + held == total` at all times.
#[derive(Debug, Clone)]
pub struct Ledger {
    total: u32,
    free: u32,
    held: HashMap<RequestId, u32>,
}

/// A reservation that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{wanted} KV tokens wanted, {free} of {total} free")]
pub struct NoRoom {
    pub wanted: u32,
    pub free: u32,
    pub total: u32,
}

impl Ledger {
    pub fn new(total: u32) -> Self {
        Self { total, free: total, held: HashMap::new() }
    }

    pub fn total(&self) -> u32 {
        self.total
    }

    pub fn free(&self) -> u32 {
        self.free
    }

    /// Reserves `tokens` for a request that holds nothing yet.
    pub fn reserve(&mut self, id: RequestId, tokens: u32) -> Result<(), NoRoom> {
        let fresh = !self.held.contains_key(&id);
        if tokens > self.free || !fresh {
            return Err(NoRoom { wanted: tokens, free: self.free, total: self.total });
        }
        self.held.insert(id, tokens);
        self.free -= tokens;
        Ok(())
    }

    /// Gives back what a request holds; nothing if it holds nothing.
    pub fn release(&mut self, id: RequestId) {
        self.free += self.held.remove(&id).unwrap_or(0);
    }

    /// Whether the account is balanced.
    pub fn check(&self) -> bool {
        u64::from(self.free) + self.held.values().map(|&held| u64::from(held)).sum::<u64>() == u64::from(self.total)
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
        assert_eq!(ledger.reserve(RequestId(2), 1), Err(NoRoom { wanted: 1, free: 0, total: 10 }));
        ledger.release(RequestId(1));
        assert!(ledger.reserve(RequestId(2), 11).is_err());
        assert_eq!(ledger.free(), 10);
    }

    proptest! {
        #[test]
        fn stays_balanced(acts in prop::collection::vec((0u64..8, 0u32..40, any::<bool>()), 0..200)) {
            let mut ledger = Ledger::new(100);
            for (id, tokens, reserve) in acts {
                if reserve { let _ = ledger.reserve(RequestId(id), tokens); } else { ledger.release(RequestId(id)); }
                prop_assert!(ledger.check());
            }
        }
    }
}
