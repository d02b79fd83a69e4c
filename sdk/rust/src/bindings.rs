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
        world: "camshaft:sdk/host",
        generate_all,
        generate_unused_types: true,
        additional_derives: [PartialEq],
    });
}

pub mod plugin {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world plugin { export camshaft:policy/plugin@0.1.0; }",
        world: "camshaft:sdk/plugin",
        pub_export_macro: true,
    });
}

pub mod auth {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world auth { export camshaft:policy/auth@0.1.0; }",
        world: "camshaft:sdk/auth",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: { "camshaft:policy/types@0.1.0": crate::bindings::host::camshaft::policy::types },
    });
}

pub mod validator {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world validator { export camshaft:policy/validator@0.1.0; }",
        world: "camshaft:sdk/validator",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: { "camshaft:policy/types@0.1.0": crate::bindings::host::camshaft::policy::types },
    });
}

pub mod scheduler {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world scheduler { export camshaft:policy/scheduler@0.1.0; }",
        world: "camshaft:sdk/scheduler",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: { "camshaft:policy/types@0.1.0": crate::bindings::host::camshaft::policy::types },
    });
}

pub mod sampler {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "package camshaft:sdk; world sampler { export camshaft:policy/sampler@0.1.0; }",
        world: "camshaft:sdk/sampler",
        pub_export_macro: true,
        additional_derives: [PartialEq],
        with: { "camshaft:policy/logits@0.1.0": crate::bindings::host::camshaft::policy::logits },
    });
}
