//! Whose requests give way, so that a tenant with nothing running does not wait for the answers of others.
use std::cmp::Reverse;
use std::collections::BTreeMap;

use camshaft_plugin::scheduler::{Actions, Arrival, Point};

use crate::tenants::{RunningRequest, Tenants};

/// Shortest time from one newcomer that others give way to, to the next: saving and restoring KV takes the workers' time.
const INTERVAL_MS: u64 = 250;

/// How many newcomers are looked at to whom somebody gives way, those with the least service first, until one has room.
const TRIES: usize = 16;

/// How often others give way, twice as many each time, so that a request goes on whose tenant has nothing else running.
const RETURNS: u32 = 4;

/// When requests were last preempted for others, or none could be.
#[derive(Debug, Default)]
pub(crate) struct Newcomers {
    pub(crate) tried_ms: Option<u64>,
    /// How many sequences each worker runs at once, where a free one was seen.
    sequences: BTreeMap<u32, u32>,
}

impl Newcomers {
    /// Preempts requests of the tenants that have the most, and dispatches one of a tenant that has none in their place.
    pub(crate) fn admit(&mut self, point: &Point<'_>, tenants: &mut Tenants, actions: &mut Actions) {
        for worker in point.workers.iter().filter(|worker| worker.free_sequences > 0) {
            self.sequences.insert(worker.id, worker.free_sequences + worker.running_sequences);
        }
        let is_soon = |tried: u64| point.now_ms < tried.saturating_add(INTERVAL_MS);
        let anybody = tenants.newcomers().next().is_some() || tenants.stranded().next().is_some();
        if !anybody || self.tried_ms.is_some_and(is_soon) {
            return;
        }
        self.tried_ms = Some(point.now_ms);
        let victims = Victims::of(tenants, point, &self.sequences);
        let place = |newcomer: &Arrival| {
            let service = tenants.service_of(newcomer.id);
            let ways = victims.workers.iter().filter_map(|worker| Some((worker.id, worker.way(newcomer, service)?)));
            let (worker, way) = ways.min_by_key(|(_, way)| way.len())?;
            Some((newcomer.id, worker, way))
        };
        let may = |newcomer: &&Arrival| victims.any_before(newcomer, tenants.service_of(newcomer.id));
        let newcomer = tenants.newcomers().filter(may).take(TRIES).find_map(place);
        if let Some((id, worker, way)) = newcomer {
            give_way(way, tenants, actions);
            tenants.serve(id, worker);
            actions.dispatch(id, worker);
        } else if let Some((id, way)) = victims.return_of(tenants) {
            tenants.returns(id);
            give_way(way, tenants, actions);
        }
    }
}

fn give_way(ids: Vec<u64>, tenants: &mut Tenants, actions: &mut Actions) {
    for id in ids {
        tenants.gave_way(id);
        actions.preempt(id);
    }
}

/// What may give way.
struct Victims<'a> {
    workers: Vec<Field<'a>>,
    /// Of each class, the most service that one of them got.
    service: BTreeMap<u8, f64>,
}

/// The requests on a worker that may give way, in the order in which they do: each time one of the tenant that has the most
/// running for its weight, and of it the one that began last. A tenant keeps one.
struct Field<'a> {
    id: u32,
    kv_free: u32,
    /// By how much their tenant has.
    victims: Vec<(f64, RunningRequest<'a>)>,
}

impl<'a> Victims<'a> {
    /// On workers that can preempt and have less than twice as many requests as they run at once.
    fn of(tenants: &'a Tenants, point: &Point<'_>, sequences: &BTreeMap<u32, u32>) -> Self {
        let mut of_tenants: BTreeMap<&str, Vec<RunningRequest<'_>>> = BTreeMap::new();
        let mut of_workers: BTreeMap<u32, (u32, Vec<_>)> = BTreeMap::new();
        for request in tenants.running() {
            of_workers.entry(request.worker).or_default().0 += 1;
            of_tenants.entry(request.tenant).or_default().push(request);
        }
        for (_, mut requests) in of_tenants {
            requests.sort_unstable_by_key(|request| Reverse(request.order));
            let count = requests.len();
            let mut gone: BTreeMap<u32, usize> = BTreeMap::new();
            for request in requests {
                let gone = gone.entry(request.worker).or_default();
                if *gone + 1 < count {
                    let share = (count - *gone) as f64 / request.weight;
                    of_workers.entry(request.worker).or_default().1.push((share, request));
                }
                *gone += 1;
            }
        }
        let workers = point.workers.iter().filter(|worker| worker.healthy && worker.can_preempt).filter_map(|worker| {
            let (running, mut victims) = of_workers.remove(&worker.id)?;
            victims.sort_by(|(one, _), (other, _)| other.total_cmp(one));
            // Where none was ever free, as many as run.
            let at_once = sequences.get(&worker.id).copied().unwrap_or(running);
            let has_room = worker.running_sequences < at_once.saturating_mul(2);
            has_room.then_some(Field { id: worker.id, kv_free: worker.kv_free, victims })
        });
        let workers: Vec<Field<'_>> = workers.collect();
        let mut service = BTreeMap::new();
        for (_, victim) in workers.iter().flat_map(|worker| &worker.victims) {
            let most: &mut f64 = service.entry(victim.class).or_default();
            *most = most.max(victim.service);
        }
        Self { workers, service }
    }

    /// Whether anybody may give way to a newcomer, room or not.
    fn any_before(&self, newcomer: &Arrival, service: f64) -> bool {
        self.service.range(newcomer.class()..).any(|(_, most)| *most >= service)
    }

    /// A request that gave way and whose tenant has nothing else running, and those that give way to it.
    fn return_of(&self, tenants: &Tenants) -> Option<(u64, Vec<u64>)> {
        let mut stranded = tenants.stranded().filter(|(.., returns)| *returns < RETURNS);
        stranded.find_map(|(request, worker, returns)| {
            let field = self.workers.iter().find(|field| field.id == worker)?;
            let service = tenants.service_of(request.id);
            let way: Vec<u64> = field.before(request, service).take(1 << returns).map(|victim| victim.id).collect();
            (!way.is_empty()).then_some((request.id, way))
        })
    }
}

impl<'a> Field<'a> {
    /// Nobody gives way to a lower class, nor to a tenant that got more service.
    fn before(&self, newcomer: &Arrival, service: f64) -> impl Iterator<Item = &RunningRequest<'a>> {
        let class = newcomer.class();
        let victims = self.victims.iter().map(|(_, victim)| victim);
        victims.filter(move |victim| victim.service >= service && victim.class >= class)
    }

    /// The fewest requests that make room for a newcomer, as far as anybody knows what they hold. They may share it with
    /// others: then the newcomer waits in the worker, before those that gave way, until there is room.
    fn way(&self, newcomer: &Arrival, service: f64) -> Option<Vec<u64>> {
        let (mut free, mut way) = (self.kv_free, Vec::new());
        for victim in self.before(newcomer, service) {
            free = free.saturating_add(victim.held_tokens);
            way.push(victim.id);
            if free >= newcomer.need {
                return Some(way);
            }
        }
        None
    }
}
