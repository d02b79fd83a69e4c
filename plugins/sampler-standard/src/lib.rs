//! Sampler policy: the standard chain, in llama.cpp's order.
//!
//! `logit_bias`, repetition, frequency and presence penalties, top-k, typical, top-p, min-p, temperature. Then the host
//! draws with the request's seed, or the next sampler of the chain continues. At temperature 0 only the best token is
//! kept, after bias and penalties. Every value comes from the request. Steps that change nothing are skipped, because
//! each costs a host call.
//!
//! There are no settings.
#![forbid(unsafe_code)]

mod plan;

use camshaft_plugin::NoSettings;
use camshaft_plugin::sampler::{Policy, Request, Row};

pub use plan::{Step, plan};

/// The policy's state: the steps of one request.
#[derive(Debug, Default)]
pub struct Standard {
    steps: Vec<Step>,
}

impl Policy for Standard {
    const NAME: &'static str = env!("CARGO_PKG_NAME");
    const SCHEMA: &'static str = r#"{"type": "object", "additionalProperties": false}"#;
    type Settings = NoSettings;

    fn new(_: NoSettings) -> Result<Self, String> {
        Ok(Self::default())
    }

    fn start(&mut self, request: &Request<'_>) {
        self.steps = plan(request);
    }

    fn sample(&mut self, row: &Row) -> Option<u32> {
        for step in &self.steps {
            match step {
                Step::Bias { ids, values } => row.bias(ids, values),
                Step::Penalize { last_n, repeat, frequency, presence } => {
                    row.penalize(*last_n, *repeat, *frequency, *presence);
                }
                Step::KeepBest => row.keep_best(),
                Step::KeepTopK(k) => row.keep_top_k(*k),
                Step::KeepTypical(p) => row.keep_typical(*p, 1),
                Step::KeepTopP(p) => row.keep_top_p(*p, 1),
                Step::KeepMinP(p) => row.keep_min_p(*p, 1),
                Step::Temperature(t) => row.temperature(*t),
            }
        }
        None
    }
}

camshaft_plugin::export_sampler!(Standard);
