//! The trait of scheduler policies, and its way to the component's exports.
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use crate::bindings::scheduler::exports::camshaft::policy::scheduler::{Actions, Point};
use crate::instance::{self, Package, plugin_exports};

/// A scheduler policy. An instance is kept as long as it does not fault; it must not ask for the time, which reaches it
/// only as `point.now_ms`.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// What `[settings]` in the plugin's TOML file holds.
    type Settings: DeserializeOwned;

    /// Makes the policy. Called in every fresh instance; the first point then carries the whole state.
    ///
    /// # Errors
    /// Settings that cannot serve, in a sentence for the operator. The policy before this one then goes on serving.
    fn new(settings: Self::Settings) -> Result<Self, String>;

    /// Answers a scheduling point, within 5 ms unless configured otherwise. An action that the host cannot carry out
    /// is a fault.
    fn schedule(&mut self, point: &Point) -> Actions;
}

/// Carries a policy to the exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!();

impl<P: Policy, V: Package> crate::bindings::scheduler::exports::camshaft::policy::scheduler::Guest
    for Component<P, V>
{
    fn schedule(point: Point) -> Actions {
        instance::with(|policy: &mut P| policy.schedule(&point))
    }
}

/// Makes a [`Policy`](crate::scheduler::Policy) the component's answer to "who goes first".
#[macro_export]
macro_rules! export_scheduler {
    ($policy:ty) => {
        $crate::__export!(scheduler, $policy);
    };
}
