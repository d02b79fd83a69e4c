//! The trait of scheduler policies and its connection to the component's exports.
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

use super::point::Point;
use crate::Setup;
use crate::bindings::host::scheduler_context::Pool;
use crate::bindings::scheduler::{Actions, Point as Facts};
use crate::instance::{self, Package, plugin_exports};

/// A scheduler policy. The host keeps an instance until it faults. The only clock is `point.now_ms`.
pub trait Policy: Sized + 'static {
    /// The plugin's name.
    const NAME: &'static str;
    /// JSON Schema (2020-12) of the settings, or an empty string.
    const SCHEMA: &'static str = "";
    /// The shape of `[settings]` in the plugin's TOML file.
    type Settings: DeserializeOwned;

    /// Makes the policy. The host calls it in every fresh instance, whose first point then holds the whole state.
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

    /// Answers a scheduling point, within 5 ms by default. An action that the host cannot carry out is a fault.
    fn schedule(&mut self, point: &Point<'_>) -> Actions;
}

/// Connects a policy to the component's exports.
#[doc(hidden)]
#[derive(Debug)]
pub struct Component<P, V>(PhantomData<(P, V)>);

impl<P: Policy, V: Package> Component<P, V> {
    pub fn exists() {}
}

plugin_exports!();

impl<P: Policy, V: Package> crate::bindings::scheduler::Guest for Component<P, V> {
    fn schedule(facts: Facts, cx: &Pool) -> Actions {
        let point = Point::new(facts, cx);
        instance::with(|policy: &mut P| policy.schedule(&point))
    }
}

/// Exports a [`Policy`](crate::scheduler::Policy) as the component's scheduler hook; with `checkpoint`, one that is a
/// [`Checkpoint`](crate::scheduler::Checkpoint) as well.
#[macro_export]
macro_rules! export_scheduler {
    ($policy:ty) => {
        $crate::__export!(scheduler, $policy);
    };
    ($policy:ty, checkpoint) => {
        $crate::__export!(scheduler, $policy, checkpoint);
        const _: fn() = $crate::scheduler::hands_over::<$policy>;
    };
}
