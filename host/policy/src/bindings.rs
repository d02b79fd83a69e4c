//! Rust types and linking code generated from the WIT packages: one module for each world, types shared between them.
#![allow(unreachable_pub, missing_debug_implementations, clippy::too_many_arguments, clippy::needless_pass_by_value)]

use camshaft_core::policy::Hook;
use wasmtime::AsContextMut;
use wasmtime::component::{Instance, InstancePre, Resource};

/// The type behind a guest's handle to what it borrows for one call: a row, or a context. It is empty: what is borrowed is in the
/// store's data during the call, and the component model revokes the handle when the call ends.
#[derive(Debug)]
pub struct Borrowed;

/// All interfaces that plugins of any hook may import.
pub mod host {
    wasmtime::component::bindgen!({
        inline: "
            package camshaft:all;
            world grants {
                import camshaft:host/types@1.0.0;
                import camshaft:host/context@1.0.0;
                import camshaft:host/log@1.0.0;
                import camshaft:host/clock@1.0.0;
                import camshaft:host/random@1.0.0;
                import camshaft:host/metrics@1.0.0;
                import camshaft:host/state@1.0.0;
                import camshaft:host/crypto@1.0.0;
                import camshaft:host/documents@1.0.0;
                import camshaft:host/vocabulary@1.0.0;
                import camshaft:auth/context@1.0.0;
                import camshaft:validator/context@1.0.0;
                import camshaft:scheduler/context@0.2.0;
                import camshaft:sampler/context@0.2.0;
                import camshaft:sampler/logits@0.2.0;
                import camshaft:sampler/plans@0.2.0;
                import camshaft:filter/context@0.1.0;
            }
        ",
        path: "../../wit",
        world: "camshaft:all/grants",
        imports: { default: trappable },
        with: {
            "camshaft:host/context.setup": crate::bindings::Borrowed,
            "camshaft:auth/context.call": crate::bindings::Borrowed,
            "camshaft:validator/context.draft": crate::bindings::Borrowed,
            "camshaft:scheduler/context.pool": crate::bindings::Borrowed,
            "camshaft:sampler/context.sequence": crate::bindings::Borrowed,
            "camshaft:sampler/logits.row": crate::bindings::Borrowed,
            "camshaft:sampler/plans.plan": camshaft_core::sampling::Plan,
            "camshaft:filter/context.stream": crate::bindings::Borrowed,
        },
    });
    pub use self::camshaft::auth::context as auth_context;
    pub use self::camshaft::filter::context as filter_context;
    pub use self::camshaft::host::{clock, context, crypto, documents, log, metrics, random, state, types, vocabulary};
    pub use self::camshaft::sampler::{context as sampler_context, logits, plans};
    pub use self::camshaft::scheduler::context as scheduler_context;
    pub use self::camshaft::validator::context as validator_context;
}

pub mod auth {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "auth-policy",
        with: {
            "camshaft:host/types": crate::bindings::host::types,
            "camshaft:host/context": crate::bindings::host::context,
            "camshaft:host/log": crate::bindings::host::log,
            "camshaft:host/clock": crate::bindings::host::clock,
            "camshaft:host/random": crate::bindings::host::random,
            "camshaft:host/metrics": crate::bindings::host::metrics,
            "camshaft:host/state": crate::bindings::host::state,
            "camshaft:host/crypto": crate::bindings::host::crypto,
            "camshaft:host/documents": crate::bindings::host::documents,
            "camshaft:auth/context": crate::bindings::host::auth_context,
        },
    });
    pub use self::exports::camshaft::auth::policy::*;
}

pub mod validator {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "validator-policy",
        with: {
            "camshaft:host/types": crate::bindings::host::types,
            "camshaft:host/context": crate::bindings::host::context,
            "camshaft:host/log": crate::bindings::host::log,
            "camshaft:host/clock": crate::bindings::host::clock,
            "camshaft:host/random": crate::bindings::host::random,
            "camshaft:host/metrics": crate::bindings::host::metrics,
            "camshaft:host/state": crate::bindings::host::state,
            "camshaft:host/crypto": crate::bindings::host::crypto,
            "camshaft:host/documents": crate::bindings::host::documents,
            "camshaft:validator/context": crate::bindings::host::validator_context,
        },
    });
    pub use self::exports::camshaft::validator::policy::*;
}

pub mod scheduler {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "scheduler-policy",
        with: {
            "camshaft:host/types": crate::bindings::host::types,
            "camshaft:host/context": crate::bindings::host::context,
            "camshaft:host/log": crate::bindings::host::log,
            "camshaft:host/random": crate::bindings::host::random,
            "camshaft:host/metrics": crate::bindings::host::metrics,
            "camshaft:host/state": crate::bindings::host::state,
            "camshaft:host/crypto": crate::bindings::host::crypto,
            "camshaft:host/documents": crate::bindings::host::documents,
            "camshaft:scheduler/context": crate::bindings::host::scheduler_context,
        },
    });
    pub use self::exports::camshaft::scheduler::policy::*;
}

/// What a scheduler may export beside its hook.
pub mod checkpoint {
    wasmtime::component::bindgen!({
        inline: "package camshaft:all; world checkpoints { export camshaft:scheduler/checkpoint@0.2.0; }",
        path: "../../wit",
        world: "camshaft:all/checkpoints",
    });
}

pub mod sampler {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "sampler-policy",
        with: {
            "camshaft:host/types": crate::bindings::host::types,
            "camshaft:host/context": crate::bindings::host::context,
            "camshaft:host/log": crate::bindings::host::log,
            "camshaft:host/random": crate::bindings::host::random,
            "camshaft:host/metrics": crate::bindings::host::metrics,
            "camshaft:host/state": crate::bindings::host::state,
            "camshaft:host/crypto": crate::bindings::host::crypto,
            "camshaft:host/documents": crate::bindings::host::documents,
            "camshaft:sampler/context": crate::bindings::host::sampler_context,
            "camshaft:host/vocabulary": crate::bindings::host::vocabulary,
            "camshaft:sampler/logits": crate::bindings::host::logits,
            "camshaft:sampler/plans": crate::bindings::host::plans,
        },
    });
    pub use self::exports::camshaft::sampler::policy::*;
}

pub mod filter {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "filter-policy",
        with: {
            "camshaft:host/types": crate::bindings::host::types,
            "camshaft:host/context": crate::bindings::host::context,
            "camshaft:host/log": crate::bindings::host::log,
            "camshaft:host/random": crate::bindings::host::random,
            "camshaft:host/metrics": crate::bindings::host::metrics,
            "camshaft:host/state": crate::bindings::host::state,
            "camshaft:host/crypto": crate::bindings::host::crypto,
            "camshaft:host/documents": crate::bindings::host::documents,
            "camshaft:filter/context": crate::bindings::host::filter_context,
        },
    });
    pub use self::exports::camshaft::filter::policy::*;
}

/// The interface that a hook's policies export, without its version.
pub fn export_of(hook: Hook) -> String {
    format!("camshaft:{hook}/policy")
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

        impl<T: 'static> HookPre<T> {
            /// An instance, and the handle by which exports are found that not every plugin has. Slower than
            /// [`HookPre::instantiate`].
            pub fn instantiate_whole(
                &self,
                mut store: impl AsContextMut<Data = T>,
            ) -> wasmtime::Result<(HookGuest, Instance)> {
                match self {
                    $(Self::$hook(pre) => {
                        let instance = pre.instance_pre().instantiate(&mut store)?;
                        Ok((HookGuest::$hook($module::$guest::new(&mut store, &instance)?), instance))
                    })+
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
                        let said = guest.camshaft_host_plugin().call_describe(store)?;
                        let (name, version, settings_schema) = (said.name, said.version, said.settings_schema);
                        Ok(Description { name, version, settings_schema })
                    })+
                }
            }

            pub fn configure(&self, store: impl AsContextMut, settings: &str) -> wasmtime::Result<Result<(), String>> {
                match self {
                    $(Self::$hook(guest) => guest.camshaft_host_plugin().call_configure(store, settings, Resource::new_borrow(0)),)+
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
    Filter => filter::FilterPolicy, FilterPolicyPre;
}
