//! The WebAssembly runtime of the process: one engine, a linker for each hook, the thread that moves deadlines on.
use std::fmt;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use camshaft_core::policy::Hook;
use wasmtime::component::{HasSelf, Linker};
use wasmtime::{Cache, CacheConfig, Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::bindings::host;
use crate::error::PolicyError;
use crate::sidecar::MEMORY_MAX_BYTES;
use crate::store::{CORE_INSTANCES, GuestState, MEMORIES, TABLE_ENTRIES, TABLES};
use crate::wasi;

/// How often deadlines are looked at.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Instances that may exist at once: a sampler for each running sequence, and what requests use in passing.
const INSTANCES: u32 = 2048;
/// Core instances and tables of an ordinary component, to size the totals.
const CORE_PER_INSTANCE: u32 = 8;
/// Memory of a freed slot that is reset by hand instead of being given back to the system: what a call of a small
/// component writes to. Giving it back halves what all HTTP threads together get done, see `docs/benchmarks.md`.
const KEEP_RESIDENT_BYTES: usize = 256 << 10;

/// The engine and what is linked for each hook.
pub(crate) struct Runtime {
    pub(crate) engine: Engine,
    linkers: [Linker<GuestState>; 4],
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Sets up the engine. Compiled code is kept in `cache_dir`, which must be the host's alone: what lies there is run
    /// without further checks.
    pub(crate) fn new(cache_dir: Option<&Path>) -> Result<Self, PolicyError> {
        let failed = |error: wasmtime::Error| PolicyError::Runtime(format!("{error:#}"));
        let engine = Engine::new(&config(cache_dir)?).map_err(failed)?;
        let [auth, validator, scheduler, sampler] = Hook::ALL.map(|hook| linker(&engine, hook).map_err(failed));
        Ok(Self { linkers: [auth?, validator?, scheduler?, sampler?], engine })
    }

    /// What a component of this hook may import.
    pub(crate) fn linker(&self, hook: Hook) -> &Linker<GuestState> {
        &self.linkers[hook as usize]
    }
}

fn config(cache_dir: Option<&Path>) -> Result<Config, PolicyError> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(INSTANCES)
        .total_core_instances(INSTANCES * CORE_PER_INSTANCE)
        .total_memories(INSTANCES)
        .total_tables(INSTANCES * CORE_PER_INSTANCE)
        .total_stacks(1)
        .max_core_instances_per_component(CORE_INSTANCES as u32)
        .max_memories_per_component(MEMORIES as u32)
        .max_tables_per_component(TABLES as u32)
        .table_elements(TABLE_ENTRIES)
        .max_memory_size(MEMORY_MAX_BYTES)
        // Where the kernel can tell which pages were written (Linux 6.7), only those are reset.
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES);
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        // Bookkeeping for asynchronous calls would triple the cost of each synchronous one.
        .concurrency_support(false)
        .epoch_interruption(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    if let Some(dir) = cache_dir {
        config.cache(Some(open_cache(dir)?));
    }
    Ok(config)
}

/// Opens the cache of compiled code in a directory that no other user can write.
fn open_cache(dir: &Path) -> Result<Cache, PolicyError> {
    let failed = |source| PolicyError::Read { path: dir.to_path_buf(), source };
    let dir = std::path::absolute(dir).map_err(failed)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed)?;
    let meta = fs::metadata(&dir).map_err(failed)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(PolicyError::Runtime(format!("the cache directory {} belongs to another user", dir.display())));
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    let mut cache = CacheConfig::new();
    cache.with_directory(&dir);
    Cache::new(cache).map_err(|error| PolicyError::Runtime(format!("{error:#}")))
}

fn linker(engine: &Engine, hook: Hook) -> wasmtime::Result<Linker<GuestState>> {
    type Own = HasSelf<GuestState>;
    let mut linker = Linker::new(engine);
    wasi::add_to_linker(&mut linker)?;
    host::types::add_to_linker::<_, Own>(&mut linker, |state| state)?;
    host::log::add_to_linker::<_, Own>(&mut linker, |state| state)?;
    host::random::add_to_linker::<_, Own>(&mut linker, |state| state)?;
    host::metrics::add_to_linker::<_, Own>(&mut linker, |state| state)?;
    host::state::add_to_linker::<_, Own>(&mut linker, |state| state)?;
    if hook != Hook::Scheduler {
        host::clock::add_to_linker::<_, Own>(&mut linker, |state| state)?;
    }
    if hook == Hook::Sampler {
        host::vocabulary::add_to_linker::<_, Own>(&mut linker, |state| state)?;
        host::logits::add_to_linker::<_, Own>(&mut linker, |state| state)?;
    }
    Ok(linker)
}

/// The thread that moves the engine's epoch on, so that deadlines pass while guests run.
#[derive(Debug)]
pub(crate) struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(engine: &Engine) -> Result<Self, PolicyError> {
        const NAME: &str = "policy-epoch";
        let stop = Arc::new(AtomicBool::new(false));
        let (engine, stopped) = (engine.clone(), Arc::clone(&stop));
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                engine.increment_epoch();
            }
        };
        let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(run);
        let thread = thread.map_err(|source| PolicyError::Thread { name: NAME, source })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the thread. Calls into guests after this have no deadline.
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the epoch thread panicked");
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.stop();
    }
}
