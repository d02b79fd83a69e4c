//! The tenants, with their counters and queues.
use std::collections::{BTreeMap, BTreeSet};

use camshaft_plugin::scheduler::{Arrival, Point};

use crate::counters;

/// Maximum number of idle tenants whose counters are kept. Those with the lowest counters are removed first, because
/// they would be lifted anyway.
const IDLE_TENANTS: usize = 4096;

/// How many tokens a request generates from one report of its progress to the next.
const REPORTED_TOKENS: u32 = 32;

/// Prices of tokens.
#[derive(Debug, Clone, Copy)]
pub struct Prices {
    pub input: f64,
    pub output: f64,
}

#[derive(Debug)]
struct Tenant {
    /// Service that the tenant got, divided by its weight.
    counter: f64,
    changed: bool,
    /// Waiting requests by class, arrival and id.
    line: BTreeSet<(u8, u64, u64)>,
    /// Number of its requests that workers have.
    running: usize,
    /// Number of those that are parked.
    away: usize,
}

/// A request that a worker has, and that is not parked.
#[derive(Debug)]
pub struct RunningRequest<'a> {
    pub id: u64,
    pub tenant: &'a str,
    pub weight: f64,
    pub class: u8,
    pub worker: u32,
    /// Requests that began later have higher numbers.
    pub order: u64,
    /// KV tokens that it holds, as far as was reported, or that the worker keeps for it; maybe some together with others.
    pub held_tokens: u32,
    /// Counter of its tenant.
    pub service: f64,
}

#[derive(Debug)]
struct Request {
    arrival: Arrival,
    tenant: String,
    /// `None`: it waits.
    run: Option<Run>,
    /// Output tokens that were charged; `None` if an earlier instance charged the first ones.
    charged: Option<u32>,
}

/// Since a request was dispatched.
#[derive(Debug)]
struct Run {
    worker: u32,
    order: u64,
    /// Output tokens that were reported; `None`: nothing was.
    generated: Option<u32>,
    /// It was preempted, and has not gone on as far as is known.
    parked: bool,
    /// It was preempted for others at least once.
    gave_way: bool,
    /// Nobody knows whether it gave way or is only paused: a replay said so.
    is_unsure: bool,
    /// How often others gave way since it went on last, so that it does again.
    returns: u32,
}

/// The state of the policy.
#[derive(Debug)]
pub struct Tenants {
    prices: Prices,
    tenants: BTreeMap<String, Tenant>,
    /// By the host's numbers; asking costs a call.
    names: BTreeMap<u32, String>,
    requests: BTreeMap<u64, Request>,
    /// Tenants with waiting requests, by the bits of their counter, which order non-negative floating-point numbers.
    active: BTreeSet<(u64, String)>,
    /// Those of them that have nothing running but what is parked.
    newcomers: BTreeSet<(u64, String)>,
    /// Ids of running requests.
    running: BTreeSet<u64>,
    /// Requests that were ever dispatched.
    dispatched: u64,
    /// Tenants with waiting or running requests.
    busy: BTreeSet<(u64, String)>,
    /// Counter of the tenant that was the last to have neither.
    last_counter: f64,
    /// Counters that an earlier version left of tenants that have not come since; `None`: it left nothing.
    handed: Option<BTreeMap<String, f64>>,
}

impl Tenants {
    pub fn new(prices: Prices) -> Self {
        Self {
            prices,
            tenants: BTreeMap::new(),
            names: BTreeMap::new(),
            requests: BTreeMap::new(),
            active: BTreeSet::new(),
            newcomers: BTreeSet::new(),
            running: BTreeSet::new(),
            dispatched: 0,
            busy: BTreeSet::new(),
            last_counter: 0.0,
            handed: None,
        }
    }

    /// What an earlier version has counted.
    pub fn begin_with(&mut self, counters: BTreeMap<String, f64>) {
        self.handed = Some(counters);
    }

    /// All counters, for a later version.
    pub fn counters(&self) -> impl Iterator<Item = (&str, f64)> {
        let handed = self.handed.iter().flatten().map(|(name, counter)| (name.as_str(), *counter));
        self.tenants.iter().map(|(name, tenant)| (name.as_str(), tenant.counter)).chain(handed)
    }

    /// Applies the events of a point.
    pub fn apply(&mut self, point: &Point<'_>) {
        if point.replay {
            *self = Self { handed: self.handed.take(), ..Self::new(self.prices) };
        }
        for arrival in point.arrivals() {
            let tenant = match self.names.get(&arrival.tenant) {
                Some(name) => name.clone(),
                None => {
                    let name = point.tenant(arrival.tenant);
                    self.names.insert(arrival.tenant, name.clone());
                    name
                }
            };
            self.arrive(arrival, &tenant, point.replay);
        }
        for (&id, &worker) in point.dispatched_ids.iter().zip(&point.dispatched_workers) {
            if point.replay {
                // The saved counter already includes what happened before this instance.
                self.leave_line(id);
                self.run(id, worker, None);
            } else {
                self.serve(id, worker);
            }
        }
        for (&id, &generated) in point.progressed_ids.iter().zip(&point.progressed_generated) {
            self.charge_output(id, generated);
            self.went_on(id, generated);
        }
        for (&id, &generated) in point.finished_ids.iter().zip(&point.finished_generated) {
            self.charge_output(id, generated);
            self.forget(id);
        }
        // After what they had generated before.
        for &id in &point.preempted_ids {
            self.park(id);
            if let Some(run) = self.run_of(id).filter(|_| point.replay) {
                run.is_unsure = true;
            }
        }
        for &id in &point.cancelled_ids {
            self.charge_unreported(id);
            self.forget(id);
        }
    }

    /// Nobody says how much a request had generated when it was cancelled: as much as it may have had. Whoever always leaves
    /// before the first report would pay for nothing.
    fn charge_unreported(&mut self, id: u64) {
        let Some(request) = self.requests.get(&id) else { return };
        let most = request.charged.map_or(0, |charged| (charged + REPORTED_TOKENS).min(request.arrival.max_tokens));
        self.charge_output(id, most);
    }

    /// The request to serve next.
    pub fn next(&self) -> Option<&Arrival> {
        let (_, name) = self.active.first()?;
        self.first_of(name)
    }

    /// Of each tenant that waits and has nothing running, the request to serve next; the least served tenant first.
    pub fn newcomers(&self) -> impl Iterator<Item = &Arrival> {
        self.newcomers.iter().filter_map(|(_, name)| self.first_of(name))
    }

    fn first_of(&self, name: &str) -> Option<&Arrival> {
        let (_, _, id) = self.tenants.get(name)?.line.first()?;
        self.requests.get(id).map(|request| &request.arrival)
    }

    /// The requests that workers have, without parked ones.
    pub fn running(&self) -> impl Iterator<Item = RunningRequest<'_>> {
        self.running.iter().filter_map(|&id| {
            let Request { arrival, tenant, run, .. } = self.requests.get(&id)?;
            let run = run.as_ref().filter(|run| !run.parked)?;
            let reported = run.generated.map_or(0, |generated| arrival.prompt_tokens.saturating_add(generated));
            Some(RunningRequest {
                id,
                tenant,
                weight: arrival.weight,
                class: arrival.class(),
                worker: run.worker,
                order: run.order,
                held_tokens: reported.max(arrival.need),
                service: self.counter(tenant).unwrap_or(0.0),
            })
        })
    }

    /// The parked requests that gave way and whose tenants have nothing else running, with their workers and how often others
    /// gave way to them.
    pub fn stranded(&self) -> impl Iterator<Item = (&Arrival, u32, u32)> {
        self.running.iter().filter_map(|id| {
            let Request { arrival, tenant, run, .. } = self.requests.get(id)?;
            // Whoever is paused goes on by nobody's leave: one try shows it.
            let may_return = |run: &&Run| run.parked && (run.gave_way || run.is_unsure && run.returns == 0);
            let run = run.as_ref().filter(may_return)?;
            let tenant = self.tenants.get(tenant)?;
            (tenant.running == tenant.away).then_some((arrival, run.worker, run.returns))
        })
    }

    /// Counter of a request's tenant.
    pub fn service_of(&self, id: u64) -> f64 {
        self.requests.get(&id).and_then(|request| self.counter(&request.tenant)).unwrap_or(0.0)
    }

    /// A request is preempted for others.
    pub fn gave_way(&mut self, id: u64) {
        self.park(id);
        if let Some(run) = self.run_of(id) {
            run.gave_way = true;
        }
    }

    fn run_of(&mut self, id: u64) -> Option<&mut Run> {
        self.requests.get_mut(&id)?.run.as_mut()
    }

    fn park(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if request.run.as_mut().is_some_and(|run| !std::mem::replace(&mut run.parked, true)) {
            let name = request.tenant.clone();
            self.change(&name, |tenant| tenant.away += 1);
        }
    }

    /// Others gave way so that a request goes on.
    pub fn returns(&mut self, id: u64) {
        if let Some(run) = self.run_of(id) {
            run.returns += 1;
        }
    }

    /// A request has generated so much.
    fn went_on(&mut self, id: u64, generated: u32) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let Some(run) = request.run.as_mut() else { return };
        (run.generated, run.returns, run.is_unsure) = (Some(generated), 0, false);
        if std::mem::take(&mut run.parked) {
            let name = request.tenant.clone();
            self.change(&name, |tenant| tenant.away -= 1);
        }
    }

    /// Charges the input of a request that is dispatched. The host may choose another worker, and says so afterwards.
    pub fn serve(&mut self, id: u64, worker: u32) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        if let Some(run) = &mut request.run {
            run.worker = worker;
            return;
        }
        let (name, cost) = (request.tenant.clone(), f64::from(request.arrival.prompt_tokens) * self.prices.input);
        let weight = request.arrival.weight;
        self.leave_line(id);
        self.run(id, worker, Some(0));
        self.charge(&name, cost / weight);
    }

    /// A request runs from now on.
    fn run(&mut self, id: u64, worker: u32, charged: Option<u32>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        self.dispatched += 1;
        request.run = Some(Run {
            worker,
            order: self.dispatched,
            generated: None,
            parked: false,
            gave_way: false,
            is_unsure: false,
            returns: 0,
        });
        request.charged = charged;
        let (began, name) = (self.running.insert(id), request.tenant.clone());
        self.change(&name, |tenant| tenant.running += usize::from(began));
    }

    /// Changes a tenant and keeps the orders.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Tenant)) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let before = (tenant.counter.to_bits(), name.to_owned());
        self.active.remove(&before);
        self.newcomers.remove(&before);
        let was_busy = self.busy.remove(&before);
        change(tenant);
        let now = (tenant.counter.to_bits(), before.1);
        if !tenant.line.is_empty() || tenant.running > 0 {
            self.busy.insert(now.clone());
        } else if was_busy {
            self.last_counter = tenant.counter;
        }
        if !tenant.line.is_empty() {
            if tenant.running == tenant.away {
                self.newcomers.insert(now.clone());
            }
            self.active.insert(now);
        }
    }

    /// The service that a tenant got, divided by its weight.
    pub fn counter(&self, name: &str) -> Option<f64> {
        self.tenants.get(name).map(|tenant| tenant.counter)
    }

    /// Saves changed counters for the next instance.
    pub fn hand_over(&mut self) {
        for (name, tenant) in self.tenants.iter_mut().filter(|(_, tenant)| tenant.changed) {
            counters::save(name, tenant.counter);
            tenant.changed = false;
        }
        if self.names.len() > 2 * IDLE_TENANTS {
            self.names.clear();
        }
        while self.tenants.len() > IDLE_TENANTS + self.active.len() {
            let idle = self.tenants.iter().filter(|(_, tenant)| tenant.line.is_empty() && tenant.running == 0);
            let Some(name) = idle.min_by(|a, b| a.1.counter.total_cmp(&b.1.counter)).map(|(name, _)| name.clone())
            else {
                return;
            };
            self.tenants.remove(&name);
        }
    }

    fn arrive(&mut self, arrival: Arrival, name: &str, replay: bool) {
        self.forget(arrival.id);
        let lowest = self.busy.first().map_or(self.last_counter, |(bits, _)| f64::from_bits(*bits));
        let known = self.tenants.contains_key(name);
        let counter = match &mut self.handed {
            Some(handed) => handed.remove(name),
            None if replay && !known => counters::load(name),
            None => None,
        };
        let counter = counter.unwrap_or(0.0);
        self.tenants.entry(name.to_owned()).or_insert_with(|| Tenant {
            counter,
            changed: false,
            line: BTreeSet::new(),
            running: 0,
            away: 0,
        });
        // A counter that a replay restored is not lifted.
        let as_handed_over = replay && !known;
        let waits = (arrival.class(), arrival.arrived_ms, arrival.id);
        self.change(name, |tenant| {
            if tenant.line.is_empty() && !as_handed_over && lowest > tenant.counter {
                (tenant.counter, tenant.changed) = (lowest, true);
            }
            tenant.line.insert(waits);
        });
        let id = arrival.id;
        self.requests.insert(id, Request { arrival, tenant: name.to_owned(), run: None, charged: Some(0) });
    }

    fn charge_output(&mut self, id: u64, generated: u32) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.run.is_some()) else { return };
        let before = request.charged.replace(generated).unwrap_or(generated);
        let cost = f64::from(generated.saturating_sub(before)) * self.prices.output / request.arrival.weight;
        let name = request.tenant.clone();
        self.charge(&name, cost);
    }

    fn charge(&mut self, name: &str, cost: f64) {
        if cost > 0.0 {
            self.change(name, |tenant| (tenant.counter, tenant.changed) = (tenant.counter + cost, true));
        }
    }

    fn leave_line(&mut self, id: u64) {
        let Some(request) = self.requests.get(&id) else { return };
        let (name, arrival) = (request.tenant.clone(), &request.arrival);
        let waits = (arrival.class(), arrival.arrived_ms, id);
        self.change(&name, |tenant| {
            tenant.line.remove(&waits);
        });
    }

    fn forget(&mut self, id: u64) {
        self.leave_line(id);
        self.running.remove(&id);
        if let Some(Request { tenant, run: Some(run), .. }) = self.requests.remove(&id) {
            self.change(&tenant, |tenant| {
                tenant.running -= 1;
                tenant.away -= usize::from(run.parked);
            });
        }
    }
}
