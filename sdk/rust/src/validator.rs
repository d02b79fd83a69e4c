//! What is acceptable.
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

pub use crate::Refusal;
pub use crate::bindings::validator::exports::camshaft::policy::validator::{Request, Verdict};
use crate::instance::{self, Package, plugin_exports};

/// A validator policy.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// What `[settings]` in the plugin's TOML file holds.
    type Settings: DeserializeOwned;

    /// Makes the policy. Called in every fresh instance: for validators, once per request.
    ///
    /// # Errors
    /// Settings that cannot serve, in a sentence for the operator. The policy before this one then goes on serving.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// Decides on one generation or embedding request, within 5 ms unless configured otherwise.
    ///
    /// # Errors
    /// A refusal is the answer to the client; later validators are not asked.
    fn validate(&mut self, request: &Request) -> Result<Verdict, Refusal>;
}

/// Carries a policy to the exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!();

impl<P: Policy, V: Package> crate::bindings::validator::exports::camshaft::policy::validator::Guest
    for Component<P, V>
{
    fn validate(request: Request) -> Result<Verdict, Refusal> {
        instance::with(|policy: &mut P| policy.validate(&request))
    }
}

/// Makes a [`Policy`](crate::validator::Policy) the component's answer to "what is acceptable".
#[macro_export]
macro_rules! export_validator {
    ($policy:ty) => {
        $crate::__export!(validator, $policy);
    };
}
