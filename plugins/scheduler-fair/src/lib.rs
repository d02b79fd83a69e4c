//! Scheduler policy: fair shares for tenants, by virtual token counters (Sheng et al., "Fairness in Serving Large Language
//! Models", OSDI 2024).
//!
//! Each tenant has a counter of the service that it got: input and output tokens at their prices, divided by its weight.
//! The tenant with the lowest counter goes next, within it the first priority class, then the earliest arrival. A tenant
//! that was idle is lifted to the lowest counter of those that wait or run, so that it cannot save up service. Requests go
//! to the worker with the fewest active sequences; while the next in line fits no worker, all others wait behind it.
//!
//! Answers may be long, and one tenant could take all sequences or the whole KV cache with its own. What runs therefore gives
//! way to a tenant that has nothing running, four times a second at most: requests of the tenants that have the most for
//! their weight, and that got no less service, are preempted, the latest first. Their workers go on with them when something
//! else ends and no other goes before them. A tenant keeps one of its requests, and no class gives way to a lower one.
//!
//! Between two tenants that always have requests waiting, the service differs by at most `2 max(p L, q M)` over any
//! span of time: `L` the longest prompt, `M` the tokens that run at once, `p` and `q` the prices (theorem 4.4 there),
//! each divided by the smaller weight; and by what the host has not reported yet, 32 tokens of each running request.
//!
//! A new version gets the counters of the model's last one as a checkpoint. After a fault there is none, so counters are also
//! written to the plugin's state store. Where several models have this scheduler, they share that: then the counters of the one
//! that wrote last are used.
//!
//! | setting | |
//! |---|---|
//! | `input-price` | of a prompt token. Default 1 |
//! | `output-price` | of a generated token. Default 2 |
//! | `preempt` | whether what runs gives way to tenants with nothing running. Default true |
#![forbid(unsafe_code)]

mod counters;
mod handed;
mod newcomers;
mod tenants;

use camshaft_plugin::scheduler::{Actions, Capacity, Checkpoint, Point, Policy};
use newcomers::Newcomers;
use serde::Deserialize;

pub use tenants::{Prices, RunningRequest, Tenants};

/// `[settings]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Settings {
    pub input_price: f64,
    pub output_price: f64,
    pub preempt: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { input_price: 1.0, output_price: 2.0, preempt: true }
    }
}

/// The policy.
#[derive(Debug)]
pub struct FairShares {
    tenants: Tenants,
    /// `None`: nobody gives way.
    newcomers: Option<Newcomers>,
}

impl Policy for FairShares {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = include_str!("../settings.schema.json");
    type Settings = Settings;

    fn new(settings: Settings) -> Result<Self, String> {
        let Settings { input_price: input, output_price: output, preempt } = settings;
        let good = input >= 0.0 && output > 0.0 && input.is_finite() && output.is_finite();
        if !good {
            return Err(format!("prices must be at least 0, and output-price above it, got {input} and {output}"));
        }
        Ok(Self { tenants: Tenants::new(Prices { input, output }), newcomers: preempt.then(Newcomers::default) })
    }

    fn schedule(&mut self, point: &Point<'_>) -> Actions {
        self.tenants.apply(point);
        let mut actions = Actions::none();
        let mut capacity = Capacity::of(&point.workers);
        while let Some(request) = self.tenants.next().filter(|_| !capacity.is_exhausted()) {
            let Some(worker) = capacity.place(request) else { break };
            let id = request.id;
            self.tenants.serve(id, worker);
            actions.dispatch(id, worker);
        }
        // What is dispatched only now cannot give way.
        if let Some(newcomers) = self.newcomers.as_mut().filter(|_| actions.dispatch_ids.is_empty()) {
            newcomers.admit(point, &mut self.tenants, &mut actions);
        }
        self.tenants.hand_over();
        actions
    }
}

impl Checkpoint for FairShares {
    fn save(&mut self) -> Vec<u8> {
        handed::write(self.tenants.counters())
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.tenants.begin_with(handed::read(bytes)?);
        Ok(())
    }
}

camshaft_plugin::export_scheduler!(FairShares, checkpoint);

#[cfg(test)]
mod tests;
