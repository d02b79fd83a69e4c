//! Who waits in a queue, for snapshots of it.
use std::cmp::Reverse;
use std::collections::HashMap;

use camshaft_api::PoolSnapshot;
use camshaft_core::policy::Priority;

/// Counts waiting requests, of which the class and the tenant are given, by both. Of more tenants than a snapshot lists,
/// those with the most waiting requests are kept.
pub(crate) fn count_waiting<'a>(snapshot: &mut PoolSnapshot, waiting: impl Iterator<Item = (Priority, &'a str)>) {
    let mut tenants: HashMap<&str, usize> = HashMap::new();
    for (priority, tenant) in waiting {
        *snapshot.waiting_by_priority.entry(priority).or_default() += 1;
        *tenants.entry(tenant).or_default() += 1;
    }
    let mut tenants: Vec<(&str, usize)> = tenants.into_iter().collect();
    tenants.sort_unstable_by_key(|&(tenant, waiting)| (Reverse(waiting), tenant));
    let named = tenants.into_iter().take(PoolSnapshot::TENANTS).map(|(tenant, waiting)| (tenant.to_owned(), waiting));
    snapshot.waiting_by_tenant = named.collect();
}
