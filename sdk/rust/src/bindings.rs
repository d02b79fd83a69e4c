//! Bindings that `wit-bindgen` generates from the contract in `wit/`.
//!
//! Worlds share their imports and the `plugin` export, so these are generated once, and each hook's export on its own.
//! The linker joins what a component uses; an interface that a plugin does not call does not become an import.
//!
//! This is the only module with `unsafe`, all of it generated. Plugins use the modules at the crate's root instead.
#![allow(unsafe_code, unreachable_pub, missing_debug_implementations, clippy::all)]

pub mod host {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package camshaft:sdk;
            world host {
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
        world: "camshaft:sdk/host",
        generate_all,
        generate_unused_types: true,
        additional_derives: [PartialEq],
    });
    pub use self::camshaft::auth::context as auth_context;
    pub use self::camshaft::filter::context as filter_context;
    pub use self::camshaft::host::{clock, context, crypto, documents, log, metrics, random, state, types, vocabulary};
    pub use self::camshaft::sampler::{context as sampler_context, logits, plans};
    pub use self::camshaft::scheduler::context as scheduler_context;
    pub use self::camshaft::validator::context as validator_context;
}

pub mod plugin {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world plugin { export camshaft:host/plugin@1.0.0; }",
        world: "camshaft:sdk/plugin",
        pub_export_macro: true,
        with: { "camshaft:host/context@1.0.0": crate::bindings::host::context },
    });
    pub use self::exports::camshaft::host::plugin::*;
}

pub mod auth {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world auth { export camshaft:auth/policy@1.0.0; }",
        world: "camshaft:sdk/auth",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: {
            "camshaft:host/types@1.0.0": crate::bindings::host::types,
            "camshaft:auth/context@1.0.0": crate::bindings::host::auth_context,
        },
    });
    pub use self::exports::camshaft::auth::policy::*;
}

pub mod validator {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world validator { export camshaft:validator/policy@1.0.0; }",
        world: "camshaft:sdk/validator",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: {
            "camshaft:host/types@1.0.0": crate::bindings::host::types,
            "camshaft:validator/context@1.0.0": crate::bindings::host::validator_context,
        },
    });
    pub use self::exports::camshaft::validator::policy::*;
}

pub mod scheduler {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world scheduler { export camshaft:scheduler/policy@0.2.0; }",
        world: "camshaft:sdk/scheduler",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: {
            "camshaft:host/types@1.0.0": crate::bindings::host::types,
            "camshaft:scheduler/context@0.2.0": crate::bindings::host::scheduler_context,
        },
    });
    pub use self::exports::camshaft::scheduler::policy::*;
}

pub mod checkpoint {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world checkpoint { export camshaft:scheduler/checkpoint@0.2.0; }",
        world: "camshaft:sdk/checkpoint",
        pub_export_macro: true,
    });
    pub use self::exports::camshaft::scheduler::checkpoint::*;
}

pub mod sampler {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world sampler { export camshaft:sampler/policy@0.2.0; }",
        world: "camshaft:sdk/sampler",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: {
            "camshaft:host/types@1.0.0": crate::bindings::host::types,
            "camshaft:sampler/context@0.2.0": crate::bindings::host::sampler_context,
            "camshaft:sampler/logits@0.2.0": crate::bindings::host::logits,
            "camshaft:sampler/plans@0.2.0": crate::bindings::host::plans,
        },
    });
    pub use self::exports::camshaft::sampler::policy::*;
}

pub mod filter {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world filter { export camshaft:filter/policy@0.1.0; }",
        world: "camshaft:sdk/filter",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: {
            "camshaft:host/types@1.0.0": crate::bindings::host::types,
            "camshaft:filter/context@0.1.0": crate::bindings::host::filter_context,
        },
    });
    pub use self::exports::camshaft::filter::policy::*;
}
