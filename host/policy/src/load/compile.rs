//! Compiling beside the thread that watches: several components at once, the oldest change first.
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use camshaft_core::policy::Hook;
use crossbeam_channel::{Receiver, Sender, bounded};

use crate::error::PolicyError;
use crate::loaded::Compiled;
use crate::memory::memory_left;
use crate::task::Task;
use camshaft_core::threads::Spawner;

/// Components that are compiled at once, where there are as many cores.
const THREADS_MAX: usize = 4;
/// Bytes of components that wait to be compiled. Those that do not fit are queued when one of them is done.
pub(super) const QUEUED_MAX_BYTES: usize = 256 << 20;

/// Turns a component's bytes into code that is linked for its hook.
pub(crate) type Compile = Box<dyn Fn(&Task<'_>) -> Result<Compiled, PolicyError> + Send + Sync>;
type Outcome = Result<Arc<Compiled>, Arc<PolicyError>>;

/// A component that is or was compiled. One that nobody holds any more is not begun.
/// The code differs between hooks: each has an engine of its own.
type Key = (Hook, String);

pub(crate) struct CompileJob {
    key: Key,
    bytes: Mutex<Vec<u8>>,
    outcome: OnceLock<Outcome>,
}

impl CompileJob {
    /// The result; `None` while it waits or runs.
    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome.get().cloned()
    }
}

impl fmt::Debug for CompileJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompileJob").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Compiles what it is given on threads of its own, and remembers what is still in use.
pub(crate) struct Compiler {
    shared: Arc<Shared>,
    spawner: Spawner,
    pub(super) threads_max: usize,
    finished: Receiver<()>,
    jobs: HashMap<Key, Weak<CompileJob>>,
    compiled: HashMap<Key, Weak<Compiled>>,
}

struct Shared {
    compile: Compile,
    queue: Mutex<CompileQueue>,
    finished: Sender<()>,
    stopping: AtomicBool,
}

#[derive(Default)]
struct CompileQueue {
    /// By the time of the change; the number keeps those of the same time in the order in which they came.
    waiting: BTreeMap<(SystemTime, u64), Weak<CompileJob>>,
    queued: u64,
    threads: usize,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").field("threads_max", &self.threads_max).finish_non_exhaustive()
    }
}

impl Compiler {
    pub(crate) fn new(compile: Compile, spawner: Spawner) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A full channel says already what there is to say.
        let (notices, finished) = bounded(1);
        let shared =
            Arc::new(Shared { compile, queue: Mutex::default(), finished: notices, stopping: AtomicBool::new(false) });
        let threads_max = threads_max(cores, memory_left().is_some());
        Self { shared, spawner, threads_max, finished, jobs: HashMap::new(), compiled: HashMap::new() }
    }

    /// Receives something after each component that was compiled.
    pub(crate) fn finished(&self) -> Receiver<()> {
        self.finished.clone()
    }

    /// Has whoever waits for components look again.
    pub(crate) fn notices(&self) -> Sender<()> {
        self.shared.finished.clone()
    }

    /// Has a component compiled that was changed at this time. `None` if too much waits already: ask again when something is
    /// finished.
    pub(crate) fn compile(
        &mut self,
        hook: Hook,
        digest: &str,
        bytes: &[u8],
        changed: SystemTime,
    ) -> Option<Arc<CompileJob>> {
        let key = (hook, digest.to_owned());
        if let Some(job) = self.jobs.get(&key).and_then(Weak::upgrade) {
            return Some(job);
        }
        let job = CompileJob { key: key.clone(), bytes: Mutex::default(), outcome: OnceLock::new() };
        if let Some(compiled) = self.compiled.get(&key).and_then(Weak::upgrade) {
            // An empty cell takes what it is given.
            let _ = job.outcome.set(Ok(compiled));
            return Some(Arc::new(job));
        }
        let mut queue = self.shared.queue();
        queue.waiting.retain(|_, job| job.strong_count() > 0);
        let waiting: usize = queue.waiting.values().filter_map(Weak::upgrade).map(|job| job.bytes().len()).sum();
        if waiting > 0 && waiting + bytes.len() > QUEUED_MAX_BYTES {
            return None;
        }
        let job = Arc::new(CompileJob { bytes: Mutex::new(bytes.to_vec()), ..job });
        queue.queued += 1;
        let place = (changed, queue.queued);
        queue.waiting.insert(place, Arc::downgrade(&job));
        self.jobs.retain(|_, job| job.strong_count() > 0);
        self.jobs.insert(key, Arc::downgrade(&job));
        if queue.threads < self.threads_max {
            queue.threads += 1;
            drop(queue);
            self.start_thread(&job);
        }
        Some(job)
    }

    /// Begins no further component, and ends the processes that compile. What is compiled in this process cannot be
    /// interrupted: the threads end when they have compiled their present one.
    pub(crate) fn close(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.queue().waiting.clear();
    }

    /// Remembers code that policies serve with, so that the same component is not compiled again.
    pub(crate) fn remember(&mut self, compiled: &Arc<Compiled>) {
        self.compiled.retain(|_, compiled| compiled.strong_count() > 0);
        self.compiled.insert((compiled.pre.hook(), compiled.digest.clone()), Arc::downgrade(compiled));
    }

    /// Threads end when nothing waits.
    fn start_thread(&self, job: &CompileJob) {
        const NAME: &str = "policy-compile";
        let shared = self.shared.clone();
        let started = self.spawner.spawn(NAME, Box::new(move || shared.work()));
        if let Err(source) = started {
            let _ = job.outcome.set(Err(Arc::new(PolicyError::Thread { name: NAME, source })));
            self.shared.queue().threads -= 1;
            let _ = self.shared.finished.try_send(());
        }
    }
}

/// One where memory has a limit: each may take all that is left.
fn threads_max(cores: usize, memory_is_limited: bool) -> usize {
    if memory_is_limited { 1 } else { cores.min(THREADS_MAX) }
}

impl CompileJob {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, CompileQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            let bytes = std::mem::take(&mut *job.bytes());
            let task = Task { hook: job.key.0, bytes: &bytes, stopping: &self.stopping };
            // A thread that ended without an outcome would leave its job, and all that wait for the thread, waiting.
            let outcome = catch_unwind(AssertUnwindSafe(|| (self.compile)(&task)));
            let outcome = outcome.unwrap_or(Err(PolicyError::CompilerPanic));
            let _ = job.outcome.set(outcome.map(Arc::new).map_err(Arc::new));
            let _ = self.finished.try_send(());
        }
    }

    /// The job whose change is the oldest; `None` ends the thread.
    fn next(&self) -> Option<Arc<CompileJob>> {
        let mut queue = self.queue();
        while let Some((_, job)) = queue.waiting.pop_first() {
            if let Some(job) = job.upgrade().filter(|job| job.outcome().is_none()) {
                return Some(job);
            }
        }
        queue.threads -= 1;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_memory_has_a_limit_one_component_is_compiled_at_a_time() {
        for (cores, limited, expected) in [(2, false, 2), (64, false, THREADS_MAX), (64, true, 1), (1, true, 1)] {
            assert_eq!(threads_max(cores, limited), expected, "{cores} cores, {limited}");
        }
    }
}
