//! Who waits and runs, at a moment.
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use camshaft_core::policy::{Priority, WorkerFacts};
use serde::Serialize;

/// A snapshot of a pool, or of an embedder, which has no workers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PoolSnapshot {
    pub accepting: bool,
    pub waiting: usize,
    pub running: usize,
    pub waiting_by_priority: BTreeMap<Priority, usize>,
    /// The [`PoolSnapshot::TENANTS`] tenants with the most waiting requests.
    pub waiting_by_tenant: BTreeMap<String, usize>,
    pub workers: Vec<WorkerFacts>,
}

impl PoolSnapshot {
    /// Tenants that a snapshot lists.
    pub const TENANTS: usize = 100;

    /// Counts waiting requests, of which the class and the tenant are given, by both. Of more tenants than a snapshot
    /// lists, those with the most waiting requests are kept.
    pub fn count_waiting<'a>(&mut self, waiting: impl Iterator<Item = (Priority, &'a str)>) {
        let mut tenants: HashMap<&str, usize> = HashMap::new();
        for (priority, tenant) in waiting {
            *self.waiting_by_priority.entry(priority).or_default() += 1;
            *tenants.entry(tenant).or_default() += 1;
        }
        let mut tenants: Vec<(&str, usize)> = tenants.into_iter().collect();
        tenants.sort_unstable_by_key(|&(tenant, waiting)| (Reverse(waiting), tenant));
        let named = tenants.into_iter().take(Self::TENANTS).map(|(tenant, waiting)| (tenant.to_owned(), waiting));
        self.waiting_by_tenant = named.collect();
    }
}
