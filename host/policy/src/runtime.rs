//! The runtime of all guests: the engine, and a linker per hook with the interfaces granted to it.
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use camshaft_core::policy::Hook;
use wasmtime::Engine;
use wasmtime::component::Linker;

use crate::engine;
use crate::error::PolicyError;
use crate::sandbox::CompileProgram;
use crate::spec::spec;
use crate::store::GuestState;
use crate::task::Task;
use crate::wasi;

/// The engine and the linker of each hook. Each engine has instances of its own, so that no hook can take another's.
pub(crate) struct Runtime {
    /// In the order of `Hook::ALL`.
    guests: Vec<(Engine, Linker<GuestState>)>,
    cache_dir: Option<PathBuf>,
    /// What compiles, if not this process.
    program: Option<CompileProgram>,
    /// Held while code is loaded.
    loading: Mutex<()>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Caches compiled code in `cache_dir`. Only the host may write there: cached code runs without further checks.
    /// `program` compiles, if there is one; the code comes back through the cache.
    pub(crate) fn new(cache_dir: Option<&Path>, program: Option<CompileProgram>) -> Result<Self, PolicyError> {
        // What another process compiles must come back some way.
        let wanted = cache_dir.is_some() || program.is_some();
        let cache_dir = wanted.then(|| engine::usable_cache(cache_dir)).flatten();
        let cache = cache_dir.as_deref().map(engine::open_cache).transpose()?;
        let guest = |hook: Hook| {
            let engine = engine::start(spec(hook).instances, cache.clone())?;
            let linker = linker(&engine, hook).map_err(|error| PolicyError::Runtime(error.into()))?;
            Ok((engine, linker))
        };
        let guests = Hook::ALL.into_iter().map(guest).collect::<Result<_, PolicyError>>()?;
        Ok(Self { guests, cache_dir, program, loading: Mutex::default() })
    }

    pub(crate) fn engine(&self, hook: Hook) -> &Engine {
        &self.guests[hook as usize].0
    }

    pub(crate) fn engines(&self) -> impl Iterator<Item = Engine> {
        self.guests.iter().map(|(engine, _)| engine.clone())
    }

    /// The interfaces that a component of this hook may import.
    pub(crate) fn linker(&self, hook: Hook) -> &Linker<GuestState> {
        &self.guests[hook as usize].1
    }

    /// Has another process put the component's code into the cache, if there is one that compiles. Returns the bytes that
    /// the code takes where it is loaded.
    ///
    /// # Errors
    /// It cannot be compiled, not within the bounds, or is no policy of the hook: its code is not to be loaded.
    pub(crate) fn compile_apart(&self, task: &Task<'_>) -> Result<Option<u64>, PolicyError> {
        match (&self.program, &self.cache_dir) {
            (Some(program), Some(cache_dir)) => program.compile(cache_dir, task).map(Some),
            // Here it would be compiled without bounds.
            (Some(_), None) => Err(PolicyError::NoCodeDirectory),
            (None, _) => Ok(None),
        }
    }

    /// Whether code that is loaded now is this user's own.
    ///
    /// # Errors
    /// As [`engine::make_private`].
    pub(crate) fn check_cache(&self) -> Result<(), PolicyError> {
        self.cache_dir.as_deref().map_or(Ok(()), |dir| engine::make_private(dir).map(drop))
    }

    /// Waits until nobody else loads code: what one load takes at its peak is given back when it is done.
    pub(crate) fn load_alone(&self) -> MutexGuard<'_, ()> {
        self.loading.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interfaces that components of this hook may import.
pub(crate) fn linker(engine: &Engine, hook: Hook) -> wasmtime::Result<Linker<GuestState>> {
    let mut linker = Linker::new(engine);
    wasi::add_to_linker(&mut linker)?;
    for grant in spec(hook).grants {
        (grant.link)(&mut linker)?;
    }
    Ok(linker)
}
