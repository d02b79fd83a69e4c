//! Whose requests give way, so that a tenant with nothing running does not wait for the answers of others.
use std::cmp::Reverse;
use std::collections::BTreeMap;

use camshaft_plugin::scheduler::{Actions, Arrival, Point, Worker};

use crate::tenants::{RunningRequest, Tenants};

/// Shortest time from one newcomer that others give way to, to the next: saving and restoring KV takes the workers' time.
const INTERVAL_MS: u64 = 250;

/// How often more give way to a newcomer that has not begun, each time after twice the time, and twice as many.
const AGAIN: u32 = 4;

/// The last newcomer that others gave way to.
#[derive(Debug, Default)]
pub(crate) struct Newcomers {
    last: Option<Newcomer>,
}

#[derive(Debug)]
struct Newcomer {
    id: u64,
    worker: u32,
    /// When requests gave way last.
    at_ms: u64,
    /// How often more did.
    again: u32,
}

impl Newcomers {
    /// Preempts requests of the tenants that have the most, and dispatches one of a tenant that has none in their place.
    pub(crate) fn admit(&mut self, point: &Point, tenants: &mut Tenants, actions: &mut Actions) {
        let now_ms = point.now_ms;
        if let Some(last) = &mut self.last {
            let begins = last.again < AGAIN && tenants.awaits(last.id);
            let again = if begins { last.again } else { 0 };
            if now_ms < last.at_ms.saturating_add(INTERVAL_MS << again) {
                return;
            }
            // Those that gave way may have shared what they held with others, so that less came free than was thought.
            let is_full = |worker: &Worker| worker.id == last.worker && worker.kv_free == 0;
            if begins && point.workers.iter().any(|worker| is_full(&worker)) {
                let Some(newcomer) = tenants.arrival(last.id) else { return };
                give_way(some(tenants, newcomer, last.worker, again), tenants, actions);
                (last.at_ms, last.again) = (now_ms, again + 1);
                return;
            }
        }
        let place = tenants.next_newcomer().and_then(|newcomer| {
            let workers = point.workers.iter().filter(|worker| worker.healthy && worker.can_preempt);
            let ways = workers.filter_map(|worker| Some((newcomer.id, worker.id, way(tenants, newcomer, &worker)?)));
            ways.min_by_key(|(.., way)| way.len())
        });
        let Some((id, worker, way)) = place else { return self.bring_back(now_ms, tenants, actions) };
        give_way(way, tenants, actions);
        tenants.serve(id, worker);
        actions.dispatch(id, worker);
        self.last = Some(Newcomer { id, worker, at_ms: now_ms, again: 0 });
    }

    /// Preempts requests of the tenants that have the most where one waits to go on whose tenant has nothing else running.
    fn bring_back(&mut self, now_ms: u64, tenants: &mut Tenants, actions: &mut Actions) {
        let Some((stranded, worker, returns)) = tenants.stranded().filter(|(.., returns)| *returns < AGAIN) else {
            return;
        };
        let (id, way) = (stranded.id, some(tenants, stranded, worker, returns));
        if !way.is_empty() {
            give_way(way, tenants, actions);
            tenants.returns(id);
            self.last = Some(Newcomer { id, worker, at_ms: now_ms, again: AGAIN });
        }
    }
}

/// The requests that give way after others did `again` times.
fn some(tenants: &Tenants, newcomer: &Arrival, worker: u32, again: u32) -> Vec<u64> {
    victims(tenants, newcomer, worker).iter().take(1 << again).map(|victim| victim.id).collect()
}

fn give_way(ids: Vec<u64>, tenants: &mut Tenants, actions: &mut Actions) {
    for id in ids {
        tenants.gave_way(id);
        actions.preempt(id);
    }
}

/// The fewest requests that make room for a newcomer on a worker, as far as anybody knows what they hold.
fn way(tenants: &Tenants, newcomer: &Arrival, worker: &Worker) -> Option<Vec<u64>> {
    let (mut free, mut way) = (worker.kv_free, Vec::new());
    for victim in victims(tenants, newcomer, worker.id) {
        free = free.saturating_add(victim.held_tokens);
        way.push(victim.id);
        if free >= newcomer.need {
            return Some(way);
        }
    }
    None
}

/// The requests on a worker that may give way to a newcomer, in the order in which they do: each time one of the tenant that
/// has the most running for its weight, of those that got no less service, and of it the one that began last. A tenant keeps
/// one, and nobody gives way to a lower class.
fn victims<'a>(tenants: &'a Tenants, newcomer: &Arrival, worker: u32) -> Vec<RunningRequest<'a>> {
    let mut running: BTreeMap<&str, Vec<RunningRequest<'_>>> = BTreeMap::new();
    let service = tenants.service_of(newcomer.id);
    for request in tenants.running().filter(|request| request.service >= service) {
        running.entry(request.tenant).or_default().push(request);
    }
    let mut victims = Vec::new();
    for (_, mut requests) in running {
        let count = requests.len();
        requests.retain(|request| request.worker == worker && request.class >= newcomer.class());
        requests.sort_unstable_by_key(|request| Reverse(request.order));
        let shares = requests.into_iter().enumerate().take(count - 1);
        victims.extend(shares.map(|(gone, request)| ((count - gone) as f64 / request.weight, request)));
    }
    victims.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    victims.into_iter().map(|(_, request)| request).collect()
}
