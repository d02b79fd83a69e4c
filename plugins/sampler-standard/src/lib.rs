//! Sampler policy: the standard chain, in llama.cpp's order.
//!
//! `logit_bias`, repetition, frequency and presence penalties, top-k, typical, top-p, min-p, temperature. Then the host
//! draws with the request's seed, or the next sampler of the chain continues. At temperature 0 only the best token is
//! kept, after bias and penalties. Every value comes from the request. All is left to the host as a plan, so tokens cost no
//! calls; steps that change nothing are not in it.
//!
//! There are no settings.
#![forbid(unsafe_code)]

mod plan;

use camshaft_plugin::NoSettings;
use camshaft_plugin::sampler::{Plan, Policy, Refusal, Request};

pub use plan::steps;

/// The policy, which keeps nothing.
#[derive(Debug)]
pub struct Standard;

impl Policy for Standard {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false}"#;
    type Settings = NoSettings;

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self)
    }

    fn start(&mut self, request: &Request<'_>) -> Result<Option<Plan>, Refusal> {
        Ok(Some(Plan::of(steps(request))))
    }
}

camshaft_plugin::export_sampler!(Standard);
