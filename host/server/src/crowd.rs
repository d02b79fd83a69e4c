//! Which connections make room for others, of their tenants.
use std::cmp::Reverse;
use std::collections::HashMap;

use camshaft_core::ids::TenantId;
use tokio::time::Instant;

use crate::activity::Claim;

/// Connections that may have to make room, each with its tenant, in the order in which they go, and with the moment from
/// which on they may have to.
///
/// The tenant with the most connections is given no time: whoever always does a little would keep the places for ever. What
/// it holds goes before what is quiet of other tenants if that is more than half of all.
pub(crate) fn in_order<T>(
    all: Vec<(Option<TenantId>, T)>,
    now: Instant,
    claim: impl Fn(&T) -> Option<(Claim, Instant)>,
) -> Vec<(Claim, Instant, T)> {
    let count = all.len();
    let crowd = most_frequent(all.iter().filter_map(|(tenant, _)| tenant.as_ref()));
    let crowd = crowd.map(|(tenant, of_tenant)| (tenant.clone(), of_tenant * 2 > count));
    let ranked = all.into_iter().filter_map(|(tenant, connection)| {
        let (claim, from) = claim(&connection)?;
        let crowds = crowd.as_ref().filter(|(crowding, _)| tenant.as_ref() == Some(crowding));
        let (rank, hurries) = match (claim, crowds) {
            (Claim::Closing, _) => (0, false),
            (Claim::Strange, _) => (1, false),
            (Claim::Quiet, Some(_)) => (2, true),
            (Claim::Stalled | Claim::Arriving, Some((_, true))) => (3, true),
            (Claim::Quiet, None) => (4, false),
            (Claim::Stalled | Claim::Arriving, crowds) => (5, crowds.is_some()),
        };
        Some(((rank, claim, from), if hurries { from.min(now) } else { from }, connection))
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, ..)| *rank);
    ranked.into_iter().map(|((_, claim, _), from, connection)| (claim, from, connection)).collect()
}

/// The tenant that comes most often, and how often.
fn most_frequent<'a>(tenants: impl Iterator<Item = &'a TenantId>) -> Option<(&'a TenantId, usize)> {
    let mut counts: HashMap<&TenantId, usize> = HashMap::new();
    tenants.for_each(|tenant| *counts.entry(tenant).or_default() += 1);
    counts.into_iter().max_by_key(|(tenant, count)| (*count, Reverse(*tenant)))
}

/// Connections with their tenants and what they hold, in the order in which they are to be cut.
pub(crate) fn most_dispensable<T>(mut holding: Vec<(Option<TenantId>, usize, T)>) -> Vec<(usize, T)> {
    let mut of_tenants: HashMap<TenantId, usize> = HashMap::new();
    for (tenant, held, _) in &holding {
        tenant.iter().for_each(|tenant| *of_tenants.entry(tenant.clone()).or_default() += held);
    }
    holding.sort_by_cached_key(|(tenant, held, _)| {
        let of_tenant = tenant.as_ref().and_then(|tenant| of_tenants.get(tenant));
        (tenant.is_some(), Reverse(of_tenant.copied()), tenant.clone(), Reverse(*held))
    });
    holding.into_iter().map(|(_, held, connection)| (held, connection)).collect()
}
