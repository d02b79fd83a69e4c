//! The runtime of all guests: the engine, and a linker per hook with the interfaces granted to it.
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camshaft_core::policy::Hook;
use camshaft_core::threads::Spawner;
use tokio::sync::Semaphore;
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};

use crate::addresses::Addresses;
use crate::code::{CodeDir, CodeName};
use crate::engine::{self, Clock, compile_error};
use crate::error::PolicyError;
use crate::feeds::Feeds;
use crate::lanes::Lanes;
use crate::memory::memory_left;
use crate::private_dir;
use crate::sandbox::CompileProgram;
use crate::shares::Shares;
use crate::spec::spec;
use crate::store::GuestState;
use crate::task::Task;
use crate::wasi;

/// A tenant may have one in so many of a hook's instances.
const TENANT_SHARE: u32 = 2;
/// Of so many instances of a hook, one may be made ahead.
const AHEAD_SHARE: u32 = 8;

/// The engine and the linker of each hook. Each engine has instances of its own, so that no hook can take another's.
pub(crate) struct Runtime {
    /// In the order of `Hook::ALL`.
    guests: Vec<(Engine, Linker<GuestState>)>,
    cache_dir: Option<PathBuf>,
    /// What compiles, if not this process.
    program: Option<CompileProgram>,
    /// That the guests' engines were made for.
    addresses: Addresses,
    /// Told of calls, so that their deadlines pass.
    pub(crate) clock: Arc<Clock>,
    /// Where slow policies of HTTP requests are called.
    pub(crate) lanes: Lanes,
    /// Where instances are made ahead.
    pub(crate) makers: Lanes,
    /// Where snapshots are taken.
    pub(crate) snapshot_takers: Lanes,
    /// How many may be ready, of each hook's instances.
    ahead: Vec<Arc<Semaphore>>,
    /// What tenants have of each hook's instances.
    shares: Vec<Arc<Shares>>,
    /// Told when something has changed that other processes have a copy of.
    pub(crate) feeds: Arc<Feeds>,
    /// Held while code is loaded.
    loading: Mutex<()>,
    /// Held while another process compiles, where memory has a limit.
    compiling: Mutex<()>,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Keeps compiled code in `cache_dir`. Only the host may write there: code that is loaded runs without further checks.
    /// `program` compiles, if there is one; the code comes back through the directory.
    pub(crate) fn new(cache_dir: Option<&Path>, program: Option<CompileProgram>) -> Result<Self, PolicyError> {
        // What another process compiles must come back some way.
        let wanted = cache_dir.is_some() || program.is_some();
        Self::with_code_in(wanted.then(|| private_dir::usable_dir(cache_dir)).flatten(), program)
    }

    /// The same, with a directory that is the host's alone.
    pub(crate) fn with_code_in(
        cache_dir: Option<PathBuf>,
        program: Option<CompileProgram>,
    ) -> Result<Self, PolicyError> {
        let addresses = Addresses::here();
        let guest = |hook: Hook| {
            let engine = engine::start(spec(hook).instances, addresses)?;
            let linker = linker(&engine, hook).map_err(|error| PolicyError::Runtime(error.into()))?;
            Ok((engine, linker))
        };
        let guests = Hook::ALL.into_iter().map(guest).collect::<Result<_, PolicyError>>()?;
        let places = |hook: Hook| Arc::new(Semaphore::new((spec(hook).instances / AHEAD_SHARE) as usize));
        let share = |hook: Hook| Arc::new(Shares::new(spec(hook).instances / TENANT_SHARE));
        let shares = Hook::ALL.into_iter().map(share).collect();
        let (ahead, lanes) = (Hook::ALL.into_iter().map(places).collect(), Lanes::default());
        let [makers, snapshot_takers] = [(); 2].map(|()| Lanes::new(1, 1, Spawner::detached()));
        let [loading, compiling] = <[Mutex<()>; 2]>::default();
        Ok(Self {
            guests,
            addresses,
            cache_dir,
            program,
            lanes,
            makers,
            snapshot_takers,
            ahead,
            shares,
            clock: Arc::default(),
            feeds: Arc::default(),
            loading,
            compiling,
        })
    }

    pub(crate) fn engine(&self, hook: Hook) -> &Engine {
        &self.guests[hook as usize].0
    }

    /// Places for instances of the hook that are made ahead.
    pub(crate) fn ahead(&self, hook: Hook) -> Arc<Semaphore> {
        self.ahead[hook as usize].clone()
    }

    /// What tenants have of the hook's instances.
    pub(crate) fn shares(&self, hook: Hook) -> &Arc<Shares> {
        &self.shares[hook as usize]
    }

    pub(crate) fn engines(&self) -> impl Iterator<Item = Engine> {
        self.guests.iter().map(|(engine, _)| engine.clone())
    }

    /// The interfaces that a component of this hook may import.
    pub(crate) fn linker(&self, hook: Hook) -> &Linker<GuestState> {
        &self.guests[hook as usize].1
    }

    /// A component's code: that which is kept, or else made now.
    ///
    /// # Errors
    /// It cannot be compiled, not within the bounds, or, where another process compiles, is no policy of the hook; or its code
    /// cannot be kept or loaded.
    pub(crate) fn component(&self, task: &Task<'_>) -> Result<Component, PolicyError> {
        let engine = self.engine(task.hook);
        let compile_here = || Component::from_binary(engine, task.bytes).map_err(compile_error);
        let Some(cache_dir) = &self.cache_dir else {
            // A process that has another one compile does so for the sake of its bounds.
            return if self.program.is_some() { Err(PolicyError::NoCodeDirectory) } else { compile_here() };
        };
        let name = CodeName::of(engine, task.hook, task.bytes);
        if let Some(component) = self.kept(cache_dir, &name, engine)? {
            return Ok(component);
        }
        let Some(program) = &self.program else {
            let component = compile_here()?;
            CodeDir::new(cache_dir).keep(&name, &component)?;
            return Ok(component);
        };
        // Each may take all memory that is left, if that is little.
        let alone = memory_left().map(|_| self.compiling.lock().unwrap_or_else(PoisonError::into_inner));
        program.compile(cache_dir, task, self.addresses)?;
        drop(alone);
        let gone = || PolicyError::CodeNotKept { path: cache_dir.clone(), source: ErrorKind::NotFound.into() };
        self.kept(cache_dir, &name, engine)?.ok_or_else(gone)
    }

    /// The directory of compiled code.
    pub(crate) fn code_dir(&self) -> Option<&Path> {
        self.cache_dir.as_deref()
    }

    /// Under which a component's code is kept.
    pub(crate) fn code_name(&self, hook: Hook, component: &[u8]) -> CodeName {
        CodeName::of(self.engine(hook), hook, component)
    }

    /// A component whose code another process has kept under this name.
    ///
    /// # Errors
    /// It is not there any more, or cannot be loaded.
    pub(crate) fn component_kept_as(&self, hook: Hook, name: &CodeName) -> Result<Component, PolicyError> {
        let cache_dir = self.cache_dir.as_deref().ok_or(PolicyError::NoCodeDirectory)?;
        let gone = || PolicyError::CodeNotKept { path: cache_dir.to_owned(), source: ErrorKind::NotFound.into() };
        CodeDir::new(cache_dir).load(self.engine(hook), name)?.ok_or_else(gone)
    }

    /// Keeps a component's code no longer. What is loaded stays so.
    pub(crate) fn forget(&self, name: &CodeName) {
        if let Some(cache_dir) = &self.cache_dir {
            CodeDir::new(cache_dir).forget(name);
        }
    }

    /// The directory may have been removed, and made again by somebody else, since it was used last.
    fn kept(&self, cache_dir: &Path, name: &CodeName, engine: &Engine) -> Result<Option<Component>, PolicyError> {
        let _alone = self.load_alone();
        let cache_dir = private_dir::make_private(cache_dir)?;
        CodeDir::new(&cache_dir).load(engine, name)
    }

    /// Waits until nobody else loads code: what one load takes at its peak is given back when it is done.
    fn load_alone(&self) -> MutexGuard<'_, ()> {
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
