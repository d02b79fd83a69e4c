//! The tenants, with their counters and queues.
use std::collections::{BTreeMap, BTreeSet};

use camshaft_plugin::scheduler::{Arrival, Point};

use crate::counters;

/// Maximum number of idle tenants whose counters are kept. Those with the lowest counters are removed first, because
/// they would be lifted anyway.
const IDLE_TENANTS: usize = 4096;

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
    /// Counter of the tenant whose queue was the last to become empty.
    last_counter: f64,
}

impl Tenants {
    pub fn new(prices: Prices) -> Self {
        Self { prices, tenants: BTreeMap::new(), requests: BTreeMap::new(), active: BTreeSet::new(), last_counter: 0.0 }
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
                if let Some(request) = self.requests.get_mut(&id) {
                    (request.running, request.charged) = (true, None);
                }
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
        point.cancelled_ids.iter().for_each(|&id| self.forget(id));
    }

    /// The request to serve next.
    pub fn next(&self) -> Option<&Arrival> {
        let (_, name) = self.active.first()?;
        let (_, _, id) = self.tenants.get(name)?.line.first()?;
        self.requests.get(id).map(|request| &request.arrival)
    }

    /// Charges the input of a request that is dispatched.
    pub fn serve(&mut self, id: u64) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| !request.running) else { return };
        (request.running, request.charged) = (true, Some(0));
        let (name, cost) = (request.tenant.clone(), f64::from(request.arrival.prompt_tokens) * self.prices.input);
        let weight = request.arrival.weight;
        self.leave_line(id);
        self.charge(&name, cost / weight);
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
            let idle = self.tenants.iter().filter(|(_, tenant)| tenant.line.is_empty());
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
        let tenant = self.tenants.entry(name.to_owned()).or_insert_with(|| Tenant {
            counter: counter(),
            changed: false,
            line: BTreeSet::new(),
        });
        if tenant.line.is_empty() {
            // A counter that a replay restored is not lifted.
            let as_handed_over = replay && !known;
            if !as_handed_over && lowest > tenant.counter {
                (tenant.counter, tenant.changed) = (lowest, true);
            }
            self.active.insert((tenant.counter.to_bits(), name.to_owned()));
        }
        let id = arrival.id;
        tenant.line.insert((arrival.class(), arrival.arrived_ms, id));
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
        let Some(tenant) = self.tenants.get_mut(name).filter(|_| cost > 0.0) else { return };
        if !tenant.line.is_empty() {
            self.active.remove(&(tenant.counter.to_bits(), name.to_owned()));
            self.active.insert(((tenant.counter + cost).to_bits(), name.to_owned()));
        }
        (tenant.counter, tenant.changed) = (tenant.counter + cost, true);
    }

    fn leave_line(&mut self, id: u64) {
        let Some(request) = self.requests.get(&id) else { return };
        let Some(tenant) = self.tenants.get_mut(&request.tenant) else { return };
        let arrival = &request.arrival;
        if tenant.line.remove(&(arrival.class(), arrival.arrived_ms, id)) && tenant.line.is_empty() {
            self.active.remove(&(tenant.counter.to_bits(), request.tenant.clone()));
            self.last_counter = tenant.counter;
        }
    }

    fn forget(&mut self, id: u64) {
        self.leave_line(id);
        self.requests.remove(&id);
    }
}
