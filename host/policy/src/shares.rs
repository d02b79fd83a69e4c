//! How many of a hook's instances one tenant has for its requests: never all of them.
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use camshaft_core::ids::TenantId;

/// The instances of one hook that serve requests, by tenant.
#[derive(Debug)]
pub(crate) struct Shares {
    /// Of one tenant.
    most: u32,
    taken: Mutex<HashMap<TenantId, u32>>,
}

/// One instance of a tenant. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Share {
    shares: Arc<Shares>,
    tenant: TenantId,
}

impl Shares {
    pub(crate) fn new(most: u32) -> Self {
        Self { most, taken: Mutex::default() }
    }

    /// Takes one more for the tenant.
    ///
    /// # Errors
    /// How many it has: as many as one may.
    pub(crate) fn take(self: &Arc<Self>, tenant: &TenantId) -> Result<Share, u32> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let has = taken.get(tenant).copied().unwrap_or_default();
        if has >= self.most {
            return Err(has);
        }
        taken.insert(tenant.clone(), has + 1);
        Ok(Share { shares: self.clone(), tenant: tenant.clone() })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(has) = taken.get_mut(&self.tenant) {
            *has -= 1;
            if *has == 0 {
                taken.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_takes_as_many_as_the_bound_and_nothing_is_kept_of_one_that_has_none() {
        let shares = Arc::new(Shares::new(2));
        let [a, b] = ["a", "b"].map(TenantId::from);
        let first = shares.take(&a).unwrap();
        let _second = shares.take(&a).unwrap();
        assert_eq!(shares.take(&a).unwrap_err(), 2);
        drop(shares.take(&b).unwrap());
        assert!(!shares.taken.lock().unwrap().contains_key(&b));
        drop(first);
        assert!(shares.take(&a).is_ok());
    }
}
