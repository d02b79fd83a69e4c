//! The sampler hook: chooses the next token.
mod plan;

use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::DeserializeOwned;

use crate::Setup;
pub use crate::bindings::host::logits::Row;
use crate::bindings::host::plans;
use crate::bindings::host::sampler_context::Sequence;
pub use crate::bindings::host::types::Refusal;
pub use crate::bindings::sampler::Request as Parameters;
use crate::instance::{self, Package, plugin_exports};
pub use plan::{Plan, Step, Wake};

/// A sampler policy. An instance serves one sequence from its start to its end.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// The shape of `[settings]` in the plugin's TOML file.
    type Settings: DeserializeOwned;

    /// Makes the policy. The host calls it in every fresh instance: for samplers, once per sequence, and once when it
    /// examines the file. Then there is no model, so it must not use [`vocabulary`](crate::vocabulary).
    ///
    /// # Errors
    /// The settings are wrong; says why in a sentence for the operator. The previous version of the policy continues to
    /// serve.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// Learns which policy of which server it is. The host calls it in every fresh instance, after the policy was made.
    ///
    /// # Errors
    /// As [`Policy::new`].
    fn set_up(&mut self, _setup: &Setup) -> Result<(), String> {
        Ok(())
    }

    /// Receives the client's request. The host calls it once, before the first token. With a plan the host shapes the rows
    /// by that, without calls, and calls `sample` only when the plan says so.
    ///
    /// # Errors
    /// The policy refuses the request; its client reads the refusal.
    fn start(&mut self, _request: &Request<'_>) -> Result<Option<Plan>, Refusal> {
        Ok(None)
    }

    /// Shapes the row of one token: of each that is kept, in order, and of none that a sampler forced. Returning a token chooses it and ends the chain; `None` passes the row to the next
    /// sampler. It runs on the worker's thread, where every microsecond delays all sequences of the batch; each
    /// operation on the row costs 0.1 to 0.3 us.
    fn sample(&mut self, _row: &Row) -> Option<u32> {
        None
    }
}

/// The client's request, and what the host can be asked about it.
#[derive(Debug)]
pub struct Request<'a> {
    parameters: Parameters,
    sequence: &'a Sequence,
}

impl Deref for Request<'_> {
    type Target = Parameters;

    fn deref(&self) -> &Parameters {
        &self.parameters
    }
}

impl Request<'_> {
    /// The model that the client asked for.
    pub fn model(&self) -> String {
        self.sequence.model()
    }

    /// Whose request it is.
    pub fn tenant(&self) -> String {
        self.sequence.tenant()
    }

    /// What an auth or validator policy has noted by this name.
    pub fn attribute(&self, name: &str) -> Option<String> {
        self.sequence.attribute(name)
    }

    /// One value of the client's request as JSON text, by its JSON pointer, e.g. `/user`. Costs a pass over the request.
    pub fn field(&self, pointer: &str) -> Option<String> {
        self.sequence.field(pointer)
    }
}

/// Connects a policy to the component's exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!();

impl<P: Policy, V: Package> crate::bindings::sampler::Guest for Component<P, V> {
    fn start(parameters: Parameters, sequence: &Sequence) -> Result<Option<plans::Plan>, Refusal> {
        let request = Request { parameters, sequence };
        instance::with(|policy: &mut P| policy.start(&request)).map(|plan| plan.map(|plan| plan.to_host()))
    }

    fn sample(row: &Row) -> Option<u32> {
        instance::with(|policy: &mut P| policy.sample(row))
    }
}

/// Exports a [`Policy`](crate::sampler::Policy) as the component's sampler hook.
#[macro_export]
macro_rules! export_sampler {
    ($policy:ty) => {
        $crate::__export!(sampler, $policy);
    };
}
