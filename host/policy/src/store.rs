//! What one guest instance has: its data, its limits, its deadline.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::sampling::{Draws, Row};
use camshaft_core::vocabulary::Vocabulary;
use wasmtime::component::ResourceTable;
use wasmtime::{Engine, ResourceLimiter, Store, UpdateDeadline};
use wasmtime_wasi::filesystem::WasiFilesystemCtx;
use wasmtime_wasi::sockets::WasiSocketsCtx;

use crate::identity::Identity;
use crate::runtime::TICK;

/// Core instances, tables and memories of one component; interpreters (Python, JavaScript) need many.
pub(crate) const CORE_INSTANCES: usize = 128;
pub(crate) const TABLES: usize = 64;
pub(crate) const MEMORIES: usize = 8;
/// Entries of one table.
pub(crate) const TABLE_ENTRIES: usize = 65_536;
/// Bytes that the host may allocate to take over one call's arguments or answer: a list whose elements all point at the
/// same guest memory would otherwise multiply it.
const LIFTED_BYTES: usize = 96 << 20;
/// Bytes of a guest's standard error that are kept to explain a trap.
const LAST_WORDS_BYTES: usize = 512;
/// How often a guest that was not given the CPU may have its deadline again.
const EXTENSIONS: u32 = 16;

/// Where an instance's random numbers come from.
#[derive(Debug)]
pub(crate) enum Randomness {
    /// The operating system.
    Secure,
    /// A seed, so that a replay draws the same numbers.
    Seeded(Draws),
}

/// What time an instance sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    Real,
    /// Stands still at zero: the instance must be replayable.
    Frozen,
}

/// The data of a store.
pub(crate) struct GuestState {
    pub(crate) identity: Arc<Identity>,
    pub(crate) limiter: Limiter,
    pub(crate) table: ResourceTable,
    pub(crate) randomness: Randomness,
    pub(crate) time: Time,
    /// The row of the `sample` call in progress; otherwise an empty one.
    pub(crate) row: Row,
    pub(crate) vocabulary: Option<Arc<Vocabulary>>,
    pub(crate) filesystem: WasiFilesystemCtx,
    pub(crate) sockets: WasiSocketsCtx,
    last_words: Vec<u8>,
    budget: Budget,
}

impl GuestState {
    pub(crate) fn new(identity: Arc<Identity>, memory_bytes: usize, randomness: Randomness, time: Time) -> Self {
        Self {
            identity,
            limiter: Limiter { memory_bytes, used_bytes: 0, denied: false },
            table: ResourceTable::new(),
            randomness,
            time,
            row: Row::default(),
            vocabulary: None,
            filesystem: WasiFilesystemCtx::default(),
            sockets: WasiSocketsCtx::default(),
            last_words: Vec::new(),
            budget: Budget::default(),
        }
    }

    /// Keeps the end of what the guest writes to standard error.
    pub(crate) fn note_stderr(&mut self, bytes: &[u8]) {
        let tail = &bytes[bytes.len().saturating_sub(LAST_WORDS_BYTES)..];
        self.last_words.extend_from_slice(tail);
        let over = self.last_words.len().saturating_sub(LAST_WORDS_BYTES);
        self.last_words.drain(..over);
    }

    /// The end of what the guest wrote to standard error, on one line.
    pub(crate) fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.last_words);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Bounds what the instances of a store allocate.
#[derive(Debug)]
pub(crate) struct Limiter {
    memory_bytes: usize,
    used_bytes: usize,
    denied: bool,
}

impl Limiter {
    pub(crate) fn denied(&self) -> bool {
        self.denied
    }

    pub(crate) fn memory_bytes(&self) -> usize {
        self.memory_bytes
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        let used_bytes = self.used_bytes.saturating_add(desired.saturating_sub(current));
        if used_bytes > self.memory_bytes {
            // The guest learns of it as of any failed allocation and may cope; if it traps, this is why.
            self.denied = true;
            return Ok(false);
        }
        self.used_bytes = used_bytes;
        Ok(true)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, _maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ENTRIES)
    }

    fn instances(&self) -> usize {
        CORE_INSTANCES
    }

    fn tables(&self) -> usize {
        TABLES
    }

    fn memories(&self) -> usize {
        MEMORIES
    }
}

/// What a call in progress may use.
#[derive(Debug, Default)]
struct Budget {
    deadline: Duration,
    /// When the deadline passed: the thread's CPU time at first, and how often it was given again.
    passed: Option<(Duration, u32)>,
}

impl Budget {
    /// Epochs count time on the wall, in which a busy machine may not have run this thread at all. So at the deadline the
    /// thread's CPU time is read and the deadline given again, and the guest is killed at the next one if it has been
    /// *running* for half of it: one that spins has twice its deadline at the most, one that was kept waiting is spared.
    fn at_deadline(&mut self) -> UpdateDeadline {
        let now = cpu_time();
        let (since, extensions) = self.passed.unwrap_or((now, 0));
        let ran = now.saturating_sub(since);
        if extensions >= EXTENSIONS || (extensions > 0 && ran * 2 >= self.deadline) {
            return UpdateDeadline::Interrupt;
        }
        self.passed = Some((since, extensions + 1));
        UpdateDeadline::Continue(ticks(self.deadline))
    }
}

/// A store for one instance, whose first calls must be over within `deadline`.
pub(crate) fn open(engine: &Engine, state: GuestState, deadline: Duration) -> Store<GuestState> {
    let mut store = Store::new(engine, state);
    store.limiter(|state| &mut state.limiter);
    store.set_hostcall_fuel(LIFTED_BYTES);
    store.epoch_deadline_callback(|mut store| Ok(store.data_mut().budget.at_deadline()));
    arm(&mut store, deadline);
    store
}

/// Gives the next call `deadline` of time.
pub(crate) fn arm(store: &mut Store<GuestState>, deadline: Duration) {
    store.data_mut().budget = Budget { deadline, passed: None };
    // The tick in progress may be nearly over.
    store.set_epoch_deadline(ticks(deadline) + 1);
}

fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX / 2)
}

/// CPU time that the calling thread has used.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
