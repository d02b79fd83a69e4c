//! The WebAssembly engine of the process: its bounds, its cache of compiled code, and the thread that advances
//! deadlines.
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{Cache, CacheConfig, Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::error::PolicyError;

/// How often deadlines are checked.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// Maximum linear memory of a guest.
pub(crate) const MEMORY_MAX_BYTES: usize = 64 << 20;
/// Maximum core instances, tables and memories of one component. Interpreters (Python, JavaScript) need many.
pub(crate) const CORE_INSTANCES: usize = 128;
pub(crate) const TABLES: usize = 64;
pub(crate) const MEMORIES: usize = 8;
/// Maximum entries of one table.
pub(crate) const TABLE_ENTRIES: usize = 65_536;
/// Maximum number of instances at once: a sampler per running sequence, and the short-lived ones of requests.
const INSTANCES: u32 = 2048;
/// Core instances and tables of an ordinary component, to size the totals.
const CORE_PER_INSTANCE: u32 = 8;
/// Bytes of a freed slot that the host resets itself instead of returning them to the system: about as much as a call
/// of a small component writes. Returning them halves the throughput of the HTTP threads (see `docs/benchmarks.md`).
const KEEP_RESIDENT_BYTES: usize = 256 << 10;

/// Sets up the engine. Caches compiled code in `cache_dir`. Only the host may write there: cached code runs without
/// further checks.
pub(crate) fn start(cache_dir: Option<&Path>) -> Result<Engine, PolicyError> {
    Engine::new(&config(cache_dir)?).map_err(|error| PolicyError::Runtime(error.into()))
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
        // If the kernel can tell which pages were written (Linux 6.7), reset only those.
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(KEEP_RESIDENT_BYTES)
        .table_keep_resident(KEEP_RESIDENT_BYTES);
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        // Support for asynchronous calls would triple the cost of each synchronous one.
        .concurrency_support(false)
        .epoch_interruption(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    if let Some(dir) = cache_dir {
        config.cache(Some(open_cache(dir)?));
    }
    Ok(config)
}

/// Opens the cache of compiled code. No other user may be able to write to its directory.
fn open_cache(dir: &Path) -> Result<Cache, PolicyError> {
    let failed = |source| PolicyError::Read { path: dir.to_path_buf(), source };
    let dir = std::path::absolute(dir).map_err(failed)?;
    fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(failed)?;
    let meta = fs::metadata(&dir).map_err(failed)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(PolicyError::ForeignCache { path: dir });
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    let mut cache = CacheConfig::new();
    cache.with_directory(&dir);
    Cache::new(cache).map_err(|error| PolicyError::Runtime(error.into()))
}

/// The thread that advances the engine's epoch, so that deadlines pass while guests run.
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
