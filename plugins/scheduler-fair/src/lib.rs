//! Scheduler policy: fair shares for tenants, by virtual token counters (Sheng et al., "Fairness in Serving Large Language
//! Models", OSDI 2024).
//!
//! Each tenant has a counter of the service that it got: input and output tokens at their prices, divided by its weight.
//! The tenant with the lowest counter goes next, within it the first priority class, then the earliest arrival. A tenant
//! that was idle is lifted to the lowest counter of the active ones, so that it cannot save up service. Requests go to the
//! worker with the fewest active sequences; while the next in line fits no worker, all others wait behind it. What runs
//! is never interrupted, so a tenant could take all sequences for as long as its answers are; therefore each worker keeps some
//! for tenants with nothing running. It keeps no part of the KV cache: where that is full, newcomers wait for it.
//!
//! Between two tenants that always have requests waiting, the service differs by at most `2 max(p L, q M)` over any
//! span of time: `L` the longest prompt, `M` the tokens that run at once, `p` and `q` the prices (theorem 4.4 there),
//! each divided by the smaller weight; and by what the host has not reported yet, 32 tokens of each running request.
//!
//! Counters are handed over to the next instance through the plugin's state store. Where several models have this
//! scheduler, they share it: then the counters of the one that wrote last are handed over.
//!
//! | setting | |
//! |---|---|
//! | `input-price` | of a prompt token. Default 1 |
//! | `output-price` | of a generated token. Default 2 |
//! | `newcomer-share` | of a worker's sequences, rounded down: taken only by tenants with nothing running. Default 0.125 |
#![forbid(unsafe_code)]

mod counters;
mod tenants;

use camshaft_plugin::scheduler::{Actions, Capacity, Point, Policy};
use serde::Deserialize;

pub use tenants::{Prices, Tenants};

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    pub input_price: f64,
    pub output_price: f64,
    pub newcomer_share: f64,
}

impl Default for Settings {
    fn default() -> Self {
        Self { input_price: 1.0, output_price: 2.0, newcomer_share: 0.125 }
    }
}

/// The policy.
#[derive(Debug)]
pub struct FairShares {
    tenants: Tenants,
    newcomer_share: f64,
}

impl Policy for FairShares {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        let Settings { input_price: input, output_price: output, newcomer_share } = settings;
        let good = input >= 0.0 && output > 0.0 && input.is_finite() && output.is_finite();
        if !good {
            return Err(format!("prices must be at least 0, and output-price above it, got {input} and {output}"));
        }
        if !(0.0..=1.0).contains(&newcomer_share) {
            return Err(format!("newcomer-share must be from 0 to 1, got {newcomer_share}"));
        }
        Ok(Self { tenants: Tenants::new(Prices { input, output }), newcomer_share })
    }

    fn schedule(&mut self, point: &Point) -> Actions {
        self.tenants.apply(point);
        let mut actions = Actions::none();
        let mut capacity = Capacity::of(&point.workers);
        let sequences = point.workers.iter().map(|worker| worker.free_sequences + worker.running_sequences).max();
        let kept = (f64::from(sequences.unwrap_or(0)) * self.newcomer_share) as u32;
        while let Some((request, is_newcomer)) = self.tenants.next().filter(|_| !capacity.is_exhausted()) {
            let kept = if is_newcomer { 0 } else { kept };
            let placed = capacity.place_reserving(request, kept).map(|worker| (request.id, worker));
            let placed = placed.or_else(|| {
                // It would fit, were it not for the kept places: others pass it there, and only there.
                capacity.clone().place(request)?;
                let newcomer = self.tenants.next_newcomer()?;
                capacity.place(newcomer).map(|worker| (newcomer.id, worker))
            });
            let Some((id, worker)) = placed else { break };
            self.tenants.serve(id);
            actions.dispatch(id, worker);
        }
        self.tenants.hand_over();
        actions
    }
}

camshaft_plugin::export_scheduler!(FairShares);

#[cfg(test)]
mod tests;
