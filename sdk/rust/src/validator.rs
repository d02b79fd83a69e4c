//! The validator hook: decides which requests are acceptable.
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
    /// The shape of `[settings]` in the plugin's TOML file.
    type Settings: DeserializeOwned;

    /// Makes the policy. The host calls it in every fresh instance: for validators, once per request.
    ///
    /// # Errors
    /// The settings are wrong; says why in a sentence for the operator. The previous version of the policy continues to
    /// serve.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// Decides on one generation or embedding request, within 5 ms by default.
    ///
    /// # Errors
    /// The host answers the client with the refusal, and calls no further validator.
    fn validate(&mut self, request: &Request) -> Result<Verdict, Refusal>;
}

/// Connects a policy to the component's exports.
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

/// Exports a [`Policy`](crate::validator::Policy) as the component's validator hook.
#[macro_export]
macro_rules! export_validator {
    ($policy:ty) => {
        $crate::__export!(validator, $policy);
    };
}
