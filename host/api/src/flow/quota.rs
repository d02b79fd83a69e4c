//! Quotas of tenants: the interface of a store of accounts, and the store in this process's memory.
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::ids::TenantId;
use camshaft_core::message::Event;
use camshaft_core::policy::{Principal, Quotas};
use camshaft_core::quota::{Account, Demand, Exceeded, Reservation, Standings};

use crate::flow::error::FlowError;

/// Number of accounts past which idle ones are removed.
const ACCOUNTS: usize = 4096;

/// Keeps the accounts of tenants, in this process or for a fleet of processes.
pub trait QuotaStore: Send + Sync + fmt::Debug {
    /// Counts a request of the tenant, as [`Account::admit`].
    ///
    /// # Errors
    /// Names the exceeded quota, and when it will have enough.
    fn admit(&self, tenant: &TenantId, quotas: &Quotas) -> Result<Reservation, Box<Exceeded>>;
    /// Reserves what the request asks for, as [`Account::reserve`].
    ///
    /// # Errors
    /// As [`QuotaStore::admit`].
    fn reserve(&self, tenant: &TenantId, request: &mut Reservation, demand: Demand) -> Result<(), Box<Exceeded>>;
    /// Pays for reading a long body, as [`Account::read`].
    fn read(&self, tenant: &TenantId, request: &mut Reservation, bytes: u64);
    /// Settles a reservation: the request has ended and used `used` tokens.
    fn settle(&self, tenant: &TenantId, request: &Reservation, used: u64);
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

impl LocalQuotas {
    /// The tenant's account. Accounts that say nothing are removed first, if there are many.
    fn with<T>(&self, tenant: &TenantId, act: impl FnOnce(&mut Account, Duration) -> T) -> T {
        let now = self.begun.elapsed();
        let mut accounts = self.accounts.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= ACCOUNTS && !accounts.contains_key(tenant) {
            accounts.retain(|_, account| !account.is_idle(now));
        }
        act(accounts.entry(tenant.clone()).or_default(), now)
    }
}

impl QuotaStore for LocalQuotas {
    fn admit(&self, tenant: &TenantId, quotas: &Quotas) -> Result<Reservation, Box<Exceeded>> {
        self.with(tenant, |account, now| account.admit(quotas, now)).map_err(Box::new)
    }

    fn reserve(&self, tenant: &TenantId, request: &mut Reservation, demand: Demand) -> Result<(), Box<Exceeded>> {
        self.with(tenant, |account, now| account.reserve(request, demand, now)).map_err(Box::new)
    }

    fn read(&self, tenant: &TenantId, request: &mut Reservation, bytes: u64) {
        self.with(tenant, |account, now| account.read(request, bytes, now));
    }

    fn settle(&self, tenant: &TenantId, request: &Reservation, used: u64) {
        self.with(tenant, |account, _| account.settle(request, used));
    }
}

/// A request in its tenant's account. Dropping it settles the account.
#[derive(Debug)]
pub(crate) struct QuotaGrant {
    store: Arc<dyn QuotaStore>,
    tenant: TenantId,
    request: Reservation,
    used: u64,
}

impl QuotaGrant {
    /// Counts a request, before anything is spent on its body; `None` for a caller without quotas.
    ///
    /// # Errors
    /// 429 if a quota is exceeded.
    pub(crate) fn admit(store: &Arc<dyn QuotaStore>, principal: &Principal) -> Result<Option<Self>, FlowError> {
        if principal.quotas == Quotas::default() {
            return Ok(None);
        }
        let tenant = principal.tenant.clone();
        let request = store.admit(&tenant, &principal.quotas).map_err(FlowError::QuotaExceeded)?;
        Ok(Some(Self { store: store.clone(), tenant, request, used: 0 }))
    }

    /// Pays for reading a long body, until [`QuotaGrant::reserve`] says what it asks for.
    pub(crate) fn read(&mut self, bytes: usize) {
        self.store.read(&self.tenant, &mut self.request, bytes as u64);
    }

    /// Reserves what the request asks for.
    ///
    /// # Errors
    /// 429 if a quota is exceeded.
    pub(crate) fn reserve(&mut self, demand: Demand) -> Result<(), FlowError> {
        let reserved = self.store.reserve(&self.tenant, &mut self.request, demand);
        reserved.map_err(FlowError::QuotaExceeded)
    }

    /// What the tenant had left of its quotas at the time of the reservation.
    pub(crate) fn standings(&self) -> Standings {
        self.request.standings
    }

    /// For what is used after this grant is settled.
    pub(crate) fn rest(&self) -> Self {
        Self { store: self.store.clone(), tenant: self.tenant.clone(), request: self.request.rest(), used: 0 }
    }

    pub(crate) fn set_used(&mut self, tokens: u64) {
        self.used = tokens;
    }
}

impl Drop for QuotaGrant {
    fn drop(&mut self) {
        self.store.settle(&self.tenant, &self.request, self.used);
    }
}

/// What a choice has used, counted where its tokens are drawn: a client that takes nothing of them pays all the same. Shared by the
/// worker's side of a choice, which counts, and by its request.
#[derive(Debug, Clone, Default)]
pub struct Spent(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    started: AtomicBool,
    tokens: AtomicU32,
    /// Set when the request has ended.
    settled: OnceLock<Settled>,
}

/// What the request has paid of a choice, and who pays the rest.
#[derive(Debug)]
struct Settled {
    /// Of the prompt; 0 if another choice pays it.
    prompt_tokens: u64,
    paid: u64,
    rest: QuotaGrant,
}

impl Counts {
    fn used(&self, prompt_tokens: u64) -> u64 {
        let prompt = if self.started.load(Ordering::Relaxed) { prompt_tokens } else { 0 };
        prompt + u64::from(self.tokens.load(Ordering::Relaxed))
    }
}

/// Neither the request nor the worker counts any more.
impl Drop for Counts {
    fn drop(&mut self) {
        if let Some(Settled { prompt_tokens, paid, mut rest }) = self.settled.take() {
            rest.set_used(self.used(prompt_tokens).saturating_sub(paid));
        }
    }
}

impl Spent {
    /// Counts what an event says, before anybody decides whether to send it.
    pub fn note(&self, event: &Event) {
        match event {
            Event::Started { .. } => self.0.started.store(true, Ordering::Relaxed),
            Event::Delta { delta, .. } => drop(self.0.tokens.fetch_add(delta.tokens, Ordering::Relaxed)),
            // Not all tokens have text.
            Event::Finished { usage, .. } => drop(self.0.tokens.fetch_max(usage.generated_tokens, Ordering::Relaxed)),
            _ => {}
        }
    }

    /// The request has ended: what it has to pay for the choice so far, `prompt_tokens` of it once the prompt is being
    /// computed. What the worker counts after that is taken from `rest`.
    pub(crate) fn settle(&self, prompt_tokens: u64, rest: QuotaGrant) -> u64 {
        let paid = self.0.used(prompt_tokens);
        // A request ends once.
        let _ = self.0.settled.set(Settled { prompt_tokens, paid, rest });
        paid
    }

    /// Tokens drawn so far.
    pub fn tokens(&self) -> u32 {
        self.0.tokens.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod quota_tests {
    use super::*;

    fn take(store: &Arc<dyn QuotaStore>, principal: &Principal, tokens: u64) -> Result<Option<QuotaGrant>, FlowError> {
        let mut grant = QuotaGrant::admit(store, principal)?;
        grant.as_mut().map_or(Ok(()), |grant| grant.reserve(Demand { choices: 1, tokens, read: 0 }))?;
        Ok(grant)
    }

    #[test]
    fn a_grant_that_is_dropped_settles() {
        let store: Arc<dyn QuotaStore> = Arc::new(LocalQuotas::default());
        let quotas = Quotas { tokens_per_minute: Some(100), concurrent_requests: Some(1), ..Quotas::default() };
        let principal = Principal { quotas, ..Principal::anonymous() };
        let mut grant = take(&store, &principal, 90).unwrap().unwrap();
        assert_eq!(grant.standings().tokens.unwrap().remaining, 10);
        assert!(matches!(take(&store, &principal, 1), Err(FlowError::QuotaExceeded(_))));
        grant.set_used(30);
        drop(grant);
        let grant = take(&store, &principal, 70).unwrap().unwrap();
        assert_eq!(grant.standings().tokens.unwrap().remaining, 0);
        assert!(take(&store, &Principal::anonymous(), u64::MAX).unwrap().is_none());
    }
}

#[cfg(test)]
mod spent_tests {
    use camshaft_core::ids::RequestId;
    use camshaft_core::message::Delta;
    use camshaft_core::policy::{Principal, Quotas};
    use camshaft_core::quota::Demand;

    use super::*;
    use crate::flow::quota::{LocalQuotas, QuotaStore};

    #[test]
    fn regression_what_is_computed_after_the_client_has_left_is_paid() {
        let store: Arc<dyn QuotaStore> = Arc::new(LocalQuotas::default());
        let quotas = Quotas { tokens_per_minute: Some(1000), concurrent_requests: Some(1), ..Quotas::default() };
        let principal = Principal { quotas, ..Principal::anonymous() };
        let mut grant = QuotaGrant::admit(&store, &principal).unwrap().unwrap();
        grant.reserve(Demand { choices: 1, tokens: 900, read: 700 }).unwrap();
        let request = Spent::default();
        let worker = request.clone();
        assert_eq!(request.settle(700, grant.rest()), 0, "nothing was computed");
        drop((request, grant));
        let id = RequestId(1);
        worker.note(&Event::Started { id, cached_tokens: 0 });
        worker.note(&Event::Delta { id, delta: Delta { tokens: 3, ..Delta::default() } });
        let left = |store: &Arc<dyn QuotaStore>| {
            let grant = QuotaGrant::admit(store, &principal).unwrap().unwrap();
            grant.standings().tokens.unwrap().remaining
        };
        assert_eq!(left(&store), 1000, "the worker has not ended, and its client does not run");
        drop(worker);
        let left = left(&store);
        // A few come back while the test runs.
        assert!((297..900).contains(&left), "{left}");
    }
}
