//! The WebAssembly engine of the process: its bounds, its cache of compiled code, and the thread that advances
//! deadlines.
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::{
    Cache, CacheConfig, Config, CustomCodeMemory, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig,
};

use crate::error::PolicyError;
use crate::trust::check_trusted;

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
/// Maximum machine code of one component. The server loads it, whatever the size of the component.
pub(crate) const CODE_MAX_BYTES: usize = 64 << 20;
/// Core instances and tables of an ordinary component, to size the totals.
const CORE_PER_INSTANCE: u32 = 8;
/// Bytes of a freed slot that the host resets itself instead of returning them to the system: about as much as a call
/// of a small component writes. Returning them halves the throughput of the HTTP threads (see `docs/benchmarks.md`).
const KEEP_RESIDENT_BYTES: usize = 256 << 10;

/// What a directory for compiled code must at least take.
const TRIAL_BYTES: usize = 64 << 10;

/// Sets up an engine that can run so many instances at once.
pub(crate) fn start(instances: u32, cache: Option<Cache>) -> Result<Engine, PolicyError> {
    started(config(cache), pool(instances))
}

/// An engine that makes the same code but runs none: it reserves no memory for instances, and refuses the same components.
/// More code than `code_max_bytes` is refused before it goes into the cache.
pub(crate) fn for_compiling(cache: Cache, code_max_bytes: usize) -> Result<Engine, PolicyError> {
    let mut pool = pool(0);
    // It must have as many tables as one module may.
    pool.total_tables(1);
    let mut config = config(Some(cache));
    config.with_custom_code_memory(Some(Arc::new(Measured { code_max_bytes })));
    started(config, pool)
}

fn started(mut config: Config, pool: PoolingAllocationConfig) -> Result<Engine, PolicyError> {
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config).map_err(|error| PolicyError::Runtime(error.into()))
}

/// Code past [`CODE_MAX_BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("compiles to {code_bytes} bytes of code, which exceeds the maximum of {code_max_bytes}")]
pub(crate) struct CodeTooLarge {
    pub(crate) code_bytes: usize,
    code_max_bytes: usize,
}

/// Measures code where it would become executable: once it is made, and before the cache takes it.
struct Measured {
    code_max_bytes: usize,
}

impl CustomCodeMemory for Measured {
    fn required_alignment(&self) -> usize {
        1
    }

    fn publish_executable(&self, _: *const u8, code_bytes: usize) -> wasmtime::Result<()> {
        let code_max_bytes = self.code_max_bytes;
        if code_bytes > code_max_bytes {
            return Err(CodeTooLarge { code_bytes, code_max_bytes }.into());
        }
        Ok(())
    }

    fn unpublish_executable(&self, _: *const u8, _: usize) -> wasmtime::Result<()> {
        Ok(())
    }
}

fn pool(instances: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances * CORE_PER_INSTANCE)
        .total_memories(instances)
        .total_tables(instances * CORE_PER_INSTANCE)
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
    pool
}

/// What decides how code is compiled: all engines of this host find each other's code in the cache.
fn config(cache: Option<Cache>) -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        // Support for asynchronous calls would triple the cost of each synchronous one.
        .concurrency_support(false)
        .epoch_interruption(true)
        .cache(cache);
    config
}

/// The directory in which compiled code can be kept: this one, or one for temporary files or in memory, where there is none
/// or the first cannot be written to.
pub(crate) fn usable_cache(dir: Option<&Path>) -> Option<PathBuf> {
    usable_cache_of(dir, &[std::env::temp_dir(), PathBuf::from("/dev/shm")])
}

fn usable_cache_of(dir: Option<&Path>, temporary: &[PathBuf]) -> Option<PathBuf> {
    let own = format!("camshaft-compiled-{}", rustix::process::geteuid().as_raw());
    let others: Vec<PathBuf> = temporary.iter().map(|above| above.join(&own)).collect();
    let why = match dir.map(make_private) {
        Some(Ok(dir)) => return Some(dir),
        Some(Err(error)) => error.sentence(),
        None => "neither XDG_CACHE_HOME nor HOME names a directory".to_owned(),
    };
    let found = others.iter().find_map(|other| make_private(other).ok());
    let instead = found.as_deref().map(|dir| tracing::field::display(dir.display()));
    tracing::warn!(why, instead, "compiled policies are not kept where they should be");
    found
}

/// Makes a directory to which no other user can write, and in which nobody else has put anything, and checks that this process
/// can write there. To be called before each use: the directory may have been removed, and made again by somebody else.
///
/// # Errors
/// It belongs to somebody else, lies where others can replace it, or cannot be made.
pub(crate) fn make_private(dir: &Path) -> Result<PathBuf, PolicyError> {
    make_private_by(dir, |dir| fs::DirBuilder::new().recursive(true).mode(0o700).create(dir))
}

fn make_private_by(dir: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<PathBuf, PolicyError> {
    let failed = |source| PolicyError::Cache { path: dir.to_path_buf(), source };
    let dir = std::path::absolute(dir).map_err(failed)?;
    let check = || check_trusted(&dir).map_err(|error| failed(io::Error::other(error)));
    check()?;
    make(&dir).map_err(failed)?;
    // Somebody else may have made a part of it meanwhile.
    check()?;
    let meta = fs::metadata(&dir).map_err(failed)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(PolicyError::ForeignCache { path: dir });
    }
    if meta.mode() & 0o077 != 0 {
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    let was = match meta.mode() & 0o077 {
        0 => Openness::Closed,
        open if open & 0o022 == 0 => Openness::Entered,
        _ => Openness::Written,
    };
    remove_foreign(&dir, was).map_err(failed)?;
    // A file system may be read-only whatever its modes say.
    let trial = dir.join(format!(".trial-{}-{:?}", std::process::id(), std::thread::current().id()));
    // On a full one files can be made, but nothing can be written to them.
    let written = fs::write(&trial, [0; TRIAL_BYTES]);
    fs::remove_file(&trial).and(written).map_err(failed)?;
    Ok(dir)
}

/// What others could do in the directory of compiled code before it was made private.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Openness {
    Closed,
    /// They could write to what lies in it, if that allows them.
    Entered,
    /// They could put files in it whose names nobody can tell from good ones.
    Written,
}

/// Removes what somebody else has made below a directory, or could have changed.
fn remove_foreign(dir: &Path, was: Openness) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = match fs::symlink_metadata(&path) {
            // Another process that compiles has renamed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            meta => meta?,
        };
        let writable = was == Openness::Entered && meta.mode() & 0o022 != 0;
        let foreign = was == Openness::Written || meta.uid() != own || meta.is_symlink() || writable;
        let removed = match (foreign, meta.is_dir()) {
            (false, true) => remove_foreign(&path, was),
            (false, false) => Ok(()),
            (true, true) => fs::remove_dir_all(&path),
            (true, false) => fs::remove_file(&path),
        };
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            removed => removed?,
        }
    }
    Ok(())
}

/// Opens the cache of compiled code, to which only this host writes: cached code runs without further checks.
pub(crate) fn open_cache(dir: &Path) -> Result<Cache, PolicyError> {
    let mut cache = CacheConfig::new();
    cache.with_directory(dir);
    Cache::new(cache).map_err(|error| PolicyError::Runtime(error.into()))
}

/// The thread that advances the engines' epochs, so that deadlines pass while guests run.
#[derive(Debug)]
pub(crate) struct Ticker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(engines: impl Iterator<Item = Engine>) -> Result<Self, PolicyError> {
        const NAME: &str = "policy-epoch";
        let stop = Arc::new(AtomicBool::new(false));
        let (engines, stopped) = (engines.collect::<Vec<_>>(), Arc::clone(&stop));
        let run = move || {
            while !stopped.load(Ordering::Relaxed) {
                std::thread::sleep(TICK);
                engines.iter().for_each(Engine::increment_epoch);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_what_others_could_have_put_among_compiled_code_is_removed() {
        // The directory's mode, and those of a directory in it and of a file in that; whether the file stays.
        let rows = [
            (0o700, 0o775, 0o664, true),
            (0o755, 0o755, 0o644, true),
            (0o755, 0o755, 0o646, false),
            (0o755, 0o777, 0o644, false),
            (0o1777, 0o755, 0o644, false),
        ];
        for (top, inner, file, stays) in rows {
            let above = tempfile::tempdir().unwrap();
            let dir = above.path().join("compiled");
            let path = dir.join("modules/code");
            fs::create_dir_all(dir.join("modules")).unwrap();
            fs::write(&path, "code").unwrap();
            fs::create_dir(above.path().join("elsewhere")).unwrap();
            fs::write(above.path().join("elsewhere/code"), "code").unwrap();
            std::os::unix::fs::symlink(above.path().join("elsewhere"), dir.join("link")).unwrap();
            for (path, mode) in [(&path, file), (&dir.join("modules"), inner), (&dir, top)] {
                fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
            }
            make_private(&dir).unwrap();
            assert_eq!(path.exists(), stays, "{top:o} {inner:o} {file:o}");
            assert!(fs::symlink_metadata(dir.join("link")).is_err(), "a link leads where others may write");
            assert!(above.path().join("elsewhere/code").exists(), "what it leads to stays");
            assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn regression_without_a_directory_of_its_own_compiled_code_is_kept_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        let (temporary, blocked) = (dir.path().join("temporary"), dir.path().join("file"));
        fs::create_dir(&temporary).unwrap();
        fs::write(&blocked, "").unwrap();
        for wanted in [None, Some(blocked.as_path())] {
            let found = usable_cache_of(wanted, &[blocked.clone(), temporary.clone()]);
            assert!(found.as_ref().is_some_and(|found| found.starts_with(&temporary)), "{wanted:?}: {found:?}");
            assert_eq!(usable_cache_of(wanted, std::slice::from_ref(&blocked)), None, "{wanted:?}");
        }
    }

    #[test]
    fn regression_a_directory_that_somebody_else_makes_meanwhile_is_not_trusted() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("made/by/others");
        let made = make_private_by(&cache, |cache| {
            fs::create_dir_all(cache)?;
            fs::set_permissions(dir.path().join("made"), fs::Permissions::from_mode(0o777))
        });
        let why = made.unwrap_err().sentence();
        assert!(why.contains("made can be written to by others"), "{why}");
        let own = make_private(&dir.path().join("own/cache")).unwrap();
        assert_eq!(fs::read_dir(&own).unwrap().count(), 0, "the trial leaves nothing");
        assert_eq!(fs::metadata(own).unwrap().mode() & 0o777, 0o700);
    }
}
