//! Rust types and linking code generated from the WIT packages: one module for each world, types shared between them.
#![allow(unreachable_pub, missing_debug_implementations, clippy::too_many_arguments, clippy::needless_pass_by_value)]

use camshaft_core::policy::Hook;
use wasmtime::AsContextMut;
use wasmtime::component::InstancePre;

/// The type behind a guest's row handle. It is empty: the row itself is in the store's data during the call, and the
/// component model revokes the borrowed handle when the call ends.
#[derive(Debug)]
pub struct BorrowedRow;

/// All interfaces that plugins of any hook may import.
pub mod host {
    wasmtime::component::bindgen!({
        inline: "
            package camshaft:host;
            world grants {
                import camshaft:policy/types@0.1.0;
                import camshaft:policy/log@0.1.0;
                import camshaft:policy/clock@0.1.0;
                import camshaft:policy/random@0.1.0;
                import camshaft:policy/metrics@0.1.0;
                import camshaft:policy/state@0.1.0;
                import camshaft:policy/vocabulary@0.1.0;
                import camshaft:policy/logits@0.1.0;
            }
        ",
        path: "../../wit",
        world: "camshaft:host/grants",
        imports: { default: trappable },
        with: { "camshaft:policy/logits.row": crate::bindings::BorrowedRow },
    });
    pub use self::camshaft::policy::{clock, log, logits, metrics, random, state, types, vocabulary};
}

pub mod auth {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "auth-policy",
        with: {
            "camshaft:policy/types": crate::bindings::host::types,
            "camshaft:policy/log": crate::bindings::host::log,
            "camshaft:policy/clock": crate::bindings::host::clock,
            "camshaft:policy/random": crate::bindings::host::random,
            "camshaft:policy/metrics": crate::bindings::host::metrics,
            "camshaft:policy/state": crate::bindings::host::state,
        },
    });
    pub use self::exports::camshaft::policy::auth::*;
}

pub mod validator {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "validator-policy",
        with: {
            "camshaft:policy/types": crate::bindings::host::types,
            "camshaft:policy/log": crate::bindings::host::log,
            "camshaft:policy/clock": crate::bindings::host::clock,
            "camshaft:policy/random": crate::bindings::host::random,
            "camshaft:policy/metrics": crate::bindings::host::metrics,
            "camshaft:policy/state": crate::bindings::host::state,
        },
    });
    pub use self::exports::camshaft::policy::validator::*;
}

pub mod scheduler {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "scheduler-policy",
        with: {
            "camshaft:policy/types": crate::bindings::host::types,
            "camshaft:policy/log": crate::bindings::host::log,
            "camshaft:policy/random": crate::bindings::host::random,
            "camshaft:policy/metrics": crate::bindings::host::metrics,
            "camshaft:policy/state": crate::bindings::host::state,
        },
    });
    pub use self::exports::camshaft::policy::scheduler::*;
}

pub mod sampler {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "sampler-policy",
        with: {
            "camshaft:policy/log": crate::bindings::host::log,
            "camshaft:policy/clock": crate::bindings::host::clock,
            "camshaft:policy/random": crate::bindings::host::random,
            "camshaft:policy/metrics": crate::bindings::host::metrics,
            "camshaft:policy/state": crate::bindings::host::state,
            "camshaft:policy/vocabulary": crate::bindings::host::vocabulary,
            "camshaft:policy/logits": crate::bindings::host::logits,
        },
    });
    pub use self::exports::camshaft::policy::sampler::*;
}

/// The description of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    pub name: String,
    pub version: String,
    pub settings_schema: String,
}

macro_rules! hooks {
    ($($hook:ident => $module:ident::$guest:ident, $pre:ident;)+) => {
        /// A component linked for its hook.
        #[derive(Clone)]
        pub enum HookPre<T: 'static> {
            $($hook($module::$pre<T>),)+
        }

        impl<T: 'static> HookPre<T> {
            /// # Errors
            /// The component lacks an export of the hook's world.
            pub fn new(hook: Hook, pre: InstancePre<T>) -> wasmtime::Result<Self> {
                match hook {
                    $(Hook::$hook => $module::$pre::new(pre).map(Self::$hook),)+
                }
            }

            pub fn hook(&self) -> Hook {
                match self {
                    $(Self::$hook(_) => Hook::$hook,)+
                }
            }

            pub fn instantiate(&self, store: impl AsContextMut<Data = T>) -> wasmtime::Result<HookGuest> {
                match self {
                    $(Self::$hook(pre) => pre.instantiate(store).map(HookGuest::$hook),)+
                }
            }
        }

        /// An instance of any hook, with the exports that all plugins have.
        pub enum HookGuest {
            $($hook($module::$guest),)+
        }

        impl HookGuest {
            pub fn describe(&self, store: impl AsContextMut) -> wasmtime::Result<Description> {
                match self {
                    $(Self::$hook(guest) => {
                        let said = guest.camshaft_policy_plugin().call_describe(store)?;
                        let (name, version, settings_schema) = (said.name, said.version, said.settings_schema);
                        Ok(Description { name, version, settings_schema })
                    })+
                }
            }

            pub fn configure(&self, store: impl AsContextMut, settings: &str) -> wasmtime::Result<Result<(), String>> {
                match self {
                    $(Self::$hook(guest) => guest.camshaft_policy_plugin().call_configure(store, settings),)+
                }
            }
        }
    };
}

hooks! {
    Auth => auth::AuthPolicy, AuthPolicyPre;
    Validator => validator::ValidatorPolicy, ValidatorPolicyPre;
    Scheduler => scheduler::SchedulerPolicy, SchedulerPolicyPre;
    Sampler => sampler::SamplerPolicy, SamplerPolicyPre;
}
