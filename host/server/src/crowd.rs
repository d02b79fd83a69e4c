//! Which connections make room for others, of their tenants.
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use camshaft_core::ids::TenantId;
use tokio::time::Instant;

use crate::activity::{Claim, STRANGE};

/// What a stranger has from its beginning on where there are too many: time for a handshake and a first answer.
const GREETING: Duration = Duration::from_millis(100);

/// Connections that may have to make room, each with its tenant, in the order in which they go, and with the moment from
/// which on they may have to. `claim` says why, from when on, and from when on the client is slow to take its responses.
///
/// The tenant with the most connections is given no time, except to take its responses, not too slowly: whoever always
/// does a little would keep the places for ever. What it does not take goes before what is quiet of other tenants if it
/// has more than half of all. Of its requests that arrive those go first that came last, so that the others get
/// through. Where more than half are strangers, those go, which have next to no time, and nobody else.
pub(crate) fn in_order<T>(
    all: Vec<(Option<TenantId>, T)>,
    now: Instant,
    claim: impl Fn(&T) -> Option<(Claim, Instant, Instant)>,
) -> Vec<(Claim, Instant, T)> {
    let count = all.len();
    let is_flooded = is_flooded(&all);
    let crowd = most_frequent(all.iter().filter_map(|(tenant, _)| tenant.as_ref())).filter(|_| !is_flooded);
    let crowd = crowd.map(|(tenant, of_tenant)| (tenant.clone(), of_tenant * 2 > count));
    let ranked = all.into_iter().filter_map(|(tenant, connection)| {
        let (claim, from, slow) = claim(&connection)?;
        let crowds = crowd.as_ref().filter(|(crowding, _)| tenant.as_ref() == Some(crowding));
        let rank = match (claim, crowds) {
            (Claim::Closing, _) => 0,
            (Claim::Strange, _) => 1,
            _ if is_flooded => return None,
            (Claim::Quiet, Some(_)) => 2,
            (Claim::Stalled, Some((_, true))) => 3,
            (Claim::Quiet, None) => 4,
            (Claim::Stalled, _) => 5,
            (Claim::Working, Some(_)) => 6,
            (Claim::Arriving, _) => 7,
            (Claim::Working, None) => return None,
        };
        let (first, last) = match claim {
            Claim::Arriving if crowds.is_some() => (None, Some(Reverse(from))),
            _ => (Some(from), None),
        };
        let due = match (claim, crowds) {
            (Claim::Strange, _) if is_flooded => from - STRANGE + GREETING,
            (_, None) | (Claim::Closing | Claim::Strange, _) => from,
            (Claim::Stalled, _) => from.min(slow),
            (Claim::Quiet | Claim::Working | Claim::Arriving, _) => from.min(now),
        };
        Some(((rank, first, last), claim, due, connection))
    });
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by_key(|(rank, ..)| *rank);
    ranked.into_iter().map(|(_, claim, from, connection)| (claim, from, connection)).collect()
}

/// Whether more than half are strangers.
pub(crate) fn is_flooded<T>(all: &[(Option<TenantId>, T)]) -> bool {
    all.iter().filter(|(tenant, _)| tenant.is_none()).count() * 2 > all.len()
}

/// The tenant that comes most often, and how often.
fn most_frequent<'a>(tenants: impl Iterator<Item = &'a TenantId>) -> Option<(&'a TenantId, usize)> {
    let mut counts: HashMap<&TenantId, usize> = HashMap::new();
    tenants.for_each(|tenant| *counts.entry(tenant).or_default() += 1);
    counts.into_iter().max_by_key(|(tenant, count)| (*count, Reverse(*tenant)))
}

/// Connections with their tenants and what they hold, in the order in which they are to be cut: those of strangers or tenants
/// that hold more than `part` before others; strangers before tenants, the oldest first; then those of the tenant that holds
/// the most, the largest first.
pub(crate) fn most_dispensable<T>(
    mut holding: Vec<(Option<TenantId>, usize, T)>,
    part: usize,
    accepted: impl Fn(&T) -> Instant,
) -> Vec<(usize, T)> {
    // Strangers are one.
    let mut of_tenants: HashMap<Option<TenantId>, usize> = HashMap::new();
    for (tenant, held, _) in &holding {
        *of_tenants.entry(tenant.clone()).or_default() += held;
    }
    holding.sort_by_cached_key(|(tenant, held, connection)| {
        let of_tenant = of_tenants.get(tenant).copied().unwrap_or(0);
        // Somebody may be let in on those that have just begun, whatever they hold.
        let of_strangers = tenant.is_none().then(|| accepted(connection));
        let has_more = of_tenant > part;
        (!has_more, tenant.is_some(), Reverse(of_tenant), tenant.clone(), of_strangers, Reverse(*held))
    });
    holding.into_iter().map(|(_, held, connection)| (held, connection)).collect()
}
