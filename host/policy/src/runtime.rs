//! The runtime of all guests: the engine, and a linker per hook with the interfaces granted to it.
use std::fmt;
use std::path::Path;

use camshaft_core::policy::Hook;
use wasmtime::Engine;
use wasmtime::component::Linker;

use crate::engine;
use crate::error::PolicyError;
use crate::spec::spec;
use crate::store::GuestState;
use crate::wasi;

/// The engine and the linker of each hook.
pub(crate) struct Runtime {
    pub(crate) engine: Engine,
    /// In the order of `Hook::ALL`.
    linkers: Vec<Linker<GuestState>>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Caches compiled code in `cache_dir`. Only the host may write there: cached code runs without further checks.
    pub(crate) fn new(cache_dir: Option<&Path>) -> Result<Self, PolicyError> {
        let engine = engine::start(cache_dir)?;
        let linkers: wasmtime::Result<_> = Hook::ALL.into_iter().map(|hook| linker(&engine, hook)).collect();
        let linkers = linkers.map_err(|error| PolicyError::Runtime(error.into()))?;
        Ok(Self { engine, linkers })
    }

    /// The interfaces that a component of this hook may import.
    pub(crate) fn linker(&self, hook: Hook) -> &Linker<GuestState> {
        &self.linkers[hook as usize]
    }
}

fn linker(engine: &Engine, hook: Hook) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    wasi::add_to_linker(&mut linker)?;
    for grant in spec(hook).grants {
        (grant.link)(&mut linker)?;
    }
    Ok(linker)
}
