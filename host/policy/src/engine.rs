//! The WebAssembly engine of the process: its bounds, and the thread that advances deadlines.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use target_lexicon::Triple;
use wasmtime::{Config, CustomCodeMemory, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::addresses::{self, Addresses, MEMORY_MAX_BYTES};
use crate::error::PolicyError;

/// The unit of deadlines: an epoch.
pub(crate) const TICK: Duration = Duration::from_millis(1);
/// How often deadlines are checked at least, while guests run. A shorter one is checked four times.
const LOOK: Duration = Duration::from_millis(5);
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

/// Sets up an engine that can run so many instances at once.
pub(crate) fn start(instances: u32, addresses: Addresses) -> Result<Engine, PolicyError> {
    started(config(addresses)?, pool(instances))
}

/// An engine that makes the same code but runs none: it reserves no memory for instances, and refuses the same components.
/// More code than `code_max_bytes` is refused.
pub(crate) fn for_compiling(code_max_bytes: usize, addresses: Addresses) -> Result<Engine, PolicyError> {
    let mut pool = pool(0);
    // It must have as many tables as one module may.
    pool.total_tables(1);
    let mut config = config(addresses)?;
    config.with_custom_code_memory(Some(Arc::new(Measured { code_max_bytes })));
    started(config, pool)
}

fn started(mut config: Config, pool: PoolingAllocationConfig) -> Result<Engine, PolicyError> {
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&config).map_err(|error| match addresses::limit() {
        Some(limit) => PolicyError::Addresses { limit, source: error.into() },
        None => PolicyError::Runtime(error.into()),
    })
}

/// Code past [`CODE_MAX_BYTES`].
#[derive(Debug, thiserror::Error)]
#[error("compiles to {code_bytes} bytes of code, which exceeds the maximum of {code_max_bytes}")]
pub(crate) struct CodeTooLarge {
    pub(crate) code_bytes: usize,
    code_max_bytes: usize,
}

/// Why the compiler refuses a component.
pub(crate) fn compile_error(error: wasmtime::Error) -> PolicyError {
    if error.chain().any(|cause| cause.is::<CodeTooLarge>()) {
        return PolicyError::OverLimits(error.into());
    }
    // A component that is only too large for the pool is well formed, and its error does not come from the parser.
    if error
        .chain()
        .any(|cause| cause.to_string().contains("instance allocat") || cause.to_string().contains("pooling"))
    {
        return PolicyError::OverLimits(error.into());
    }
    PolicyError::Corrupt(error.into())
}

/// Measures code where it would become executable.
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

/// What decides how code is compiled: each engine of this host can load what another has compiled.
fn config(addresses: Addresses) -> Result<Config, PolicyError> {
    let mut config = Config::new();
    // For any processor of this kind, so that whoever compiles need not run on the one that serves, and code that is kept can be
    // taken elsewhere. Instructions of newer ones gain 2 % where a guest computes most.
    config.target(&Triple::host().to_string()).map_err(|error| PolicyError::Runtime(error.into()))?;
    config
        .memory_reservation(addresses.reserved_bytes())
        .memory_guard_size(addresses.guard_bytes())
        .wasm_component_model(true)
        // Support for asynchronous calls would triple the cost of each synchronous one.
        .concurrency_support(false)
        .epoch_interruption(true);
    Ok(config)
}

/// Deadlines of calls that have begun since the ticker looked last, in nanoseconds. Without any, it sleeps.
#[derive(Debug)]
pub(crate) struct Clock {
    shortest: AtomicU64,
    longest: AtomicU64,
    /// To be woken.
    sleeper: Mutex<Option<Thread>>,
    sleeps: AtomicBool,
}

impl Default for Clock {
    fn default() -> Self {
        let (longest, sleeper, sleeps) = Default::default();
        Self { shortest: AtomicU64::new(u64::MAX), longest, sleeper, sleeps }
    }
}

impl Clock {
    /// A call begins that may take so long, or one that goes on.
    pub(crate) fn arm(&self, deadline: Duration) {
        let nanoseconds = u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX - 1);
        self.longest.fetch_max(nanoseconds, Ordering::SeqCst);
        self.shortest.fetch_min(nanoseconds, Ordering::SeqCst);
        if self.sleeps.load(Ordering::SeqCst) && self.sleeps.swap(false, Ordering::SeqCst) {
            let sleeper = self.sleeper.lock().unwrap_or_else(PoisonError::into_inner);
            sleeper.iter().for_each(Thread::unpark);
        }
    }

    /// The shortest and the longest deadline since this was asked last.
    fn taken(&self) -> Option<(Duration, Duration)> {
        let shortest = self.shortest.swap(u64::MAX, Ordering::SeqCst);
        let longest = self.longest.swap(0, Ordering::SeqCst);
        // A call may have told one of the two so far, which is taken for the other.
        let (shortest, longest) = match (shortest, longest) {
            (u64::MAX, 0) => return None,
            (u64::MAX, longest) => (longest, longest),
            (shortest, longest) => (shortest, longest.max(shortest)),
        };
        Some((Duration::from_nanos(shortest), Duration::from_nanos(longest)))
    }

    /// Waits until a call begins.
    fn sleep(&self) {
        self.sleeps.store(true, Ordering::SeqCst);
        while self.sleeps.load(Ordering::SeqCst) {
            if self.shortest.load(Ordering::SeqCst) < u64::MAX {
                self.sleeps.store(false, Ordering::SeqCst);
                return;
            }
            std::thread::park();
        }
    }
}

/// The thread that advances the engines' epochs, so that deadlines pass while guests run.
#[derive(Debug)]
pub(crate) struct Ticker {
    stop: Arc<AtomicBool>,
    clock: Arc<Clock>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    pub(crate) fn start(engines: impl Iterator<Item = Engine>, clock: &Arc<Clock>) -> Result<Self, PolicyError> {
        const NAME: &str = "policy-epoch";
        let stop = Arc::new(AtomicBool::new(false));
        let (engines, stopped) = (engines.collect::<Vec<_>>(), Arc::clone(&stop));
        let ticking = clock.clone();
        let run = move || {
            *ticking.sleeper.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
            let (mut told, mut last, mut until) = (Duration::ZERO, Instant::now(), Instant::now());
            let mut look = LOOK;
            while !stopped.load(Ordering::SeqCst) {
                if let Some((shortest, longest)) = ticking.taken() {
                    look = (shortest / 4).clamp(TICK, LOOK);
                    // The epoch in which the last of them ends is over then.
                    until = until.max(Instant::now() + longest + TICK * 4 + look);
                } else if last >= until {
                    ticking.sleep();
                    last = Instant::now();
                    continue;
                }
                std::thread::sleep(look);
                let now = Instant::now();
                told += now - last;
                last = now;
                while told >= TICK {
                    told -= TICK;
                    engines.iter().for_each(Engine::increment_epoch);
                }
            }
        };
        let thread = std::thread::Builder::new().name(NAME.to_owned()).spawn(run);
        let thread = thread.map_err(|source| PolicyError::Thread { name: NAME, source })?;
        Ok(Self { stop, clock: clock.clone(), thread: Some(thread) })
    }

    /// Ends the thread. Calls into guests after this have no deadline.
    pub(crate) fn stop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.clock.arm(Duration::ZERO);
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

    /// Longer than anything takes that has to happen.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn regression_a_call_that_has_told_half_of_its_deadline_does_not_last_for_ever() {
        let (clock, second) = (Clock::default(), Duration::from_secs(1));
        clock.longest.store(1_000_000_000, Ordering::SeqCst);
        assert_eq!(clock.taken(), Some((second, second)));
        clock.shortest.store(1_000_000_000, Ordering::SeqCst);
        assert_eq!(clock.taken(), Some((second, second)));
        assert_eq!(clock.taken(), None);
    }

    #[test]
    fn the_clock_sleeps_while_no_call_runs() {
        let clock = Arc::new(Clock::default());
        let mut ticker = Ticker::start(std::iter::empty(), &clock).unwrap();
        let until_it_sleeps = || {
            let begun = Instant::now();
            while !clock.sleeps.load(Ordering::SeqCst) {
                assert!(begun.elapsed() < PATIENCE, "it goes on");
                std::thread::sleep(TICK);
            }
        };
        until_it_sleeps();
        clock.arm(TICK);
        until_it_sleeps();
        assert_eq!(clock.taken(), None, "it has taken what it was woken for");
        ticker.stop();
    }
}
