//! How a token is chosen.
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

pub use crate::bindings::host::camshaft::policy::logits::Row;
pub use crate::bindings::sampler::exports::camshaft::policy::sampler::Request;
use crate::instance::{self, Package, plugin_exports};

/// A sampler policy. An instance serves one sequence, from its start to its end.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// What `[settings]` in the plugin's TOML file holds.
    type Settings: DeserializeOwned;

    /// Makes the policy. Called in every fresh instance: for samplers, once per sequence, and once when the file is
    /// examined, where there is no model and [`vocabulary`](crate::vocabulary) must be left alone.
    ///
    /// # Errors
    /// Settings that cannot serve, in a sentence for the operator. The policy before this one then goes on serving.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// Learns what the client asked for, before the first token.
    fn start(&mut self, request: &Request);

    /// Shapes the row of one token; a token ends the chain, `None` hands the row on. On the worker's thread: every
    /// microsecond delays all sequences of the batch, and each operation on the row costs 0.1 to 0.3 of one.
    fn sample(&mut self, row: &Row) -> Option<u32>;
}

/// Carries a policy to the exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!();

impl<P: Policy, V: Package> crate::bindings::sampler::exports::camshaft::policy::sampler::Guest for Component<P, V> {
    fn start(request: Request) {
        instance::with(|policy: &mut P| policy.start(&request));
    }

    fn sample(row: &Row) -> Option<u32> {
        instance::with(|policy: &mut P| policy.sample(row))
    }
}

/// Makes a [`Policy`](crate::sampler::Policy) the component's answer to "how is a token chosen".
#[macro_export]
macro_rules! export_sampler {
    ($policy:ty) => {
        $crate::__export!(sampler, $policy);
    };
}
