//! Rust types and linking code generated from the WIT packages: one module for each world, types shared between them.
#![allow(unreachable_pub, missing_debug_implementations, clippy::too_many_arguments, clippy::needless_pass_by_value)]

/// Everything that plugins of any hook may import.
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
        with: { "camshaft:policy/logits.row": crate::imports::logits::BorrowedRow },
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
