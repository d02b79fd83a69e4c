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
    /// Number of its requests that run.
    running: usize,
}

#[derive(Debug)]
struct Request {
    arrival: Arrival,
    tenant: String,
    /// Whether the request runs, and how many output tokens were charged; `None` if an earlier instance charged the
    /// first ones.
    running: bool,
    charged: Option<u32>,
}

/// The state of the policy.
#[derive(Debug)]
pub struct Tenants {
    prices: Prices,
    tenants: BTreeMap<String, Tenant>,
    requests: BTreeMap<u64, Request>,
    /// Tenants with waiting requests, by the bits of their counter, which order non-negative floating-point numbers.
    active: BTreeSet<(u64, String)>,
    /// Those of them that have nothing running.
    newcomers: BTreeSet<(u64, String)>,
    /// Counter of the tenant whose queue was the last to become empty.
    last_counter: f64,
}

impl Tenants {
    pub fn new(prices: Prices) -> Self {
        let (tenants, requests) = (BTreeMap::new(), BTreeMap::new());
        Self { prices, tenants, requests, active: BTreeSet::new(), newcomers: BTreeSet::new(), last_counter: 0.0 }
    }

    /// Applies the events of a point.
    pub fn apply(&mut self, point: &Point) {
        if point.replay {
            *self = Self::new(self.prices);
        }
        for arrival in point.arrivals() {
            let tenant = point.tenants.get(arrival.tenant as usize).map_or("", String::as_str);
            self.arrive(arrival, tenant, point.replay);
        }
        for &id in &point.dispatched_ids {
            if point.replay {
                // The saved counter already includes what happened before this instance.
                self.leave_line(id);
                self.run(id, None);
            } else {
                self.serve(id);
            }
        }
        for (&id, &generated) in point.progressed_ids.iter().zip(&point.progressed_generated) {
            self.charge_output(id, generated);
        }
        for (&id, &generated) in point.finished_ids.iter().zip(&point.finished_generated) {
            self.charge_output(id, generated);
            self.forget(id);
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

    /// The request to serve next, and whether its tenant has nothing running.
    pub fn next(&self) -> Option<(&Arrival, bool)> {
        let (_, name) = self.active.first()?;
        Some((self.first_of(name)?, self.tenants.get(name)?.running == 0))
    }

    /// The request to serve next of those whose tenants have nothing running.
    pub fn next_newcomer(&self) -> Option<&Arrival> {
        let (_, name) = self.newcomers.first()?;
        self.first_of(name)
    }

    fn first_of(&self, name: &str) -> Option<&Arrival> {
        let (_, _, id) = self.tenants.get(name)?.line.first()?;
        self.requests.get(id).map(|request| &request.arrival)
    }

    /// Charges the input of a request that is dispatched.
    pub fn serve(&mut self, id: u64) {
        let Some(request) = self.requests.get(&id).filter(|request| !request.running) else { return };
        let (name, cost) = (request.tenant.clone(), f64::from(request.arrival.prompt_tokens) * self.prices.input);
        let weight = request.arrival.weight;
        self.leave_line(id);
        self.run(id, Some(0));
        self.charge(&name, cost / weight);
    }

    /// A request runs from now on.
    fn run(&mut self, id: u64, charged: Option<u32>) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let began = !std::mem::replace(&mut request.running, true);
        request.charged = charged;
        let name = request.tenant.clone();
        self.change(&name, |tenant| tenant.running += usize::from(began));
    }

    /// Changes a tenant and keeps the orders.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut Tenant)) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let before = (tenant.counter.to_bits(), name.to_owned());
        self.active.remove(&before);
        self.newcomers.remove(&before);
        change(tenant);
        if !tenant.line.is_empty() {
            let now = (tenant.counter.to_bits(), before.1);
            if tenant.running == 0 {
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
        let lowest = self.active.first().map_or(self.last_counter, |(bits, _)| f64::from_bits(*bits));
        let known = self.tenants.contains_key(name);
        let counter = || counters::load(name).filter(|_| replay).unwrap_or(0.0);
        self.tenants.entry(name.to_owned()).or_insert_with(|| Tenant {
            counter: counter(),
            changed: false,
            line: BTreeSet::new(),
            running: 0,
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
        self.requests.insert(id, Request { arrival, tenant: name.to_owned(), running: false, charged: Some(0) });
    }

    fn charge_output(&mut self, id: u64, generated: u32) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.running) else { return };
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
        let mut emptied = None;
        self.change(&name, |tenant| {
            let left = tenant.line.remove(&waits);
            emptied = (left && tenant.line.is_empty()).then_some(tenant.counter);
        });
        self.last_counter = emptied.unwrap_or(self.last_counter);
    }

    fn forget(&mut self, id: u64) {
        self.leave_line(id);
        if let Some(request) = self.requests.remove(&id).filter(|request| request.running) {
            self.change(&request.tenant, |tenant| tenant.running -= 1);
        }
    }
}
