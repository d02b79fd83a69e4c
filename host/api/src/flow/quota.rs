//! Quotas of tenants: the interface of a store of accounts, and the store in this process's memory.
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use camshaft_core::ids::TenantId;
use camshaft_core::policy::{Principal, Quotas};
use camshaft_core::quota::{Account, Exceeded, Standings};

use crate::flow::error::FlowError;

/// Number of accounts past which idle ones are removed.
const ACCOUNTS: usize = 4096;

/// Keeps the accounts of tenants, in this process or for a fleet of processes.
pub trait QuotaStore: Send + Sync + fmt::Debug {
    /// Reserves one request and `tokens` of all the tenant's quotas, or of none.
    ///
    /// # Errors
    /// Names the exceeded quota, and when it will have enough.
    fn reserve(&self, tenant: &TenantId, quotas: &Quotas, tokens: u64) -> Result<Standings, Box<Exceeded>>;
    /// Settles a reservation: the request has ended and used `used` tokens.
    fn settle(&self, tenant: &TenantId, reserved: u64, used: u64);
}

/// Keeps accounts in this process's memory.
#[derive(Debug)]
pub struct LocalQuotas {
    begun: Instant,
    accounts: Mutex<HashMap<TenantId, Account>>,
}

impl Default for LocalQuotas {
    fn default() -> Self {
        Self { begun: Instant::now(), accounts: Mutex::default() }
    }
}

impl QuotaStore for LocalQuotas {
    fn reserve(&self, tenant: &TenantId, quotas: &Quotas, tokens: u64) -> Result<Standings, Box<Exceeded>> {
        let now = self.begun.elapsed();
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= ACCOUNTS && !accounts.contains_key(tenant) {
            accounts.retain(|_, account| !account.is_idle(now));
        }
        accounts.entry(tenant.clone()).or_default().reserve(quotas, tokens, now).map_err(Box::new)
    }

    fn settle(&self, tenant: &TenantId, reserved: u64, used: u64) {
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = accounts.get_mut(tenant) {
            account.settle(reserved, used);
        }
    }
}

/// The reservation of a request. Dropping it settles the account.
#[derive(Debug)]
pub(crate) struct QuotaGrant {
    store: Arc<dyn QuotaStore>,
    tenant: TenantId,
    standings: Standings,
    reserved: u64,
    used: u64,
}

impl QuotaGrant {
    /// Reserves `tokens` for a caller; `None` for a caller without quotas.
    ///
    /// # Errors
    /// 429 if a quota is exceeded.
    pub(crate) fn take(
        store: &Arc<dyn QuotaStore>,
        principal: &Principal,
        tokens: u64,
    ) -> Result<Option<Self>, FlowError> {
        if principal.quotas == Quotas::default() {
            return Ok(None);
        }
        let standings =
            store.reserve(&principal.tenant, &principal.quotas, tokens).map_err(FlowError::QuotaExceeded)?;
        let tenant = principal.tenant.clone();
        Ok(Some(Self { store: store.clone(), tenant, standings, reserved: tokens, used: 0 }))
    }

    /// What the tenant had left of its quotas at the time of the reservation.
    pub(crate) fn standings(&self) -> Standings {
        self.standings
    }

    pub(crate) fn set_used(&mut self, tokens: u64) {
        self.used = tokens;
    }
}

impl Drop for QuotaGrant {
    fn drop(&mut self) {
        self.store.settle(&self.tenant, self.reserved, self.used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_that_is_dropped_settles() {
        let store: Arc<dyn QuotaStore> = Arc::new(LocalQuotas::default());
        let quotas = Quotas { tokens_per_minute: Some(100), concurrent_requests: Some(1), ..Quotas::default() };
        let principal = Principal { quotas, ..Principal::anonymous() };
        let mut grant = QuotaGrant::take(&store, &principal, 90).unwrap().unwrap();
        assert_eq!(grant.standings().tokens.unwrap().remaining, 10);
        assert!(matches!(QuotaGrant::take(&store, &principal, 1), Err(FlowError::QuotaExceeded(_))));
        grant.set_used(30);
        drop(grant);
        let grant = QuotaGrant::take(&store, &principal, 70).unwrap().unwrap();
        assert_eq!(grant.standings().tokens.unwrap().remaining, 0);
        assert!(QuotaGrant::take(&store, &Principal::anonymous(), u64::MAX).unwrap().is_none());
    }
}
