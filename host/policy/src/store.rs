//! What one guest instance has: its data, its limits, its deadline.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::policy::FaultKind;
use camshaft_core::sampling::Row;
use camshaft_core::vocabulary::Vocabulary;
use wasmtime::component::ResourceTable;
use wasmtime::{Engine, PoolConcurrencyLimitError, ResourceLimiter, Store, Trap, UpdateDeadline};
use wasmtime_wasi::filesystem::{WasiFilesystemCtx, WasiFilesystemCtxView};
use wasmtime_wasi::sockets::{WasiSocketsCtx, WasiSocketsCtxView};

use crate::engine::{CORE_INSTANCES, MEMORIES, TABLE_ENTRIES, TABLES, TICK};
use crate::fault::GuestError;
use crate::identity::Identity;
use crate::imports::clock::{ClockView, Time};
use crate::imports::log::{LogView, PluginLog};
use crate::imports::logits::{CurrentRow, LogitsView};
use crate::imports::metrics::{MetricsView, PluginMetrics};
use crate::imports::random::{RandomView, Randomness};
use crate::imports::state::{PluginState, StateView};
use crate::imports::vocabulary::{ModelTokens, VocabularyView};
use crate::wasi::{LastWords, Wasi, WasiView};

/// Bytes that the host may allocate to take over one call's arguments or answer: a list whose elements all point at the
/// same guest memory would otherwise multiply it.
const LIFTED_BYTES: usize = 96 << 20;
/// How often a guest that was not given the CPU may have its deadline again.
const EXTENSIONS: u32 = 16;

/// The data of a store.
pub(crate) struct GuestState {
    identity: Arc<Identity>,
    limiter: Limiter,
    table: ResourceTable,
    randomness: Randomness,
    time: Time,
    /// The row of the `sample` call in progress; otherwise an empty one.
    pub(crate) row: Row,
    pub(crate) vocabulary: Option<Arc<Vocabulary>>,
    filesystem: WasiFilesystemCtx,
    sockets: WasiSocketsCtx,
    last_words: LastWords,
    budget: Budget,
    muted: bool,
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
            last_words: LastWords::default(),
            budget: Budget::default(),
            muted: false,
        }
    }

    /// Whether log lines are dropped. Every instance is configured with settings that the policy accepted when it was loaded;
    /// what it has to say of them was logged then.
    pub(crate) fn set_muted(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// Kind and text of what ended a call of this guest.
    pub(crate) fn classify(&self, error: &wasmtime::Error) -> (FaultKind, String) {
        let over_memory = || format!("asked for more than {} bytes", self.limiter.memory_bytes);
        let said = self.last_words.text();
        let tell = |what: String| if said.is_empty() { what } else { format!("{what} (it wrote: {said})") };
        if let Some(raised) = error.downcast_ref::<GuestError>() {
            return (raised.kind, raised.detail.clone());
        }
        match error.downcast_ref::<Trap>() {
            Some(Trap::Interrupt) => return (FaultKind::Deadline, "ran past its deadline".to_owned()),
            Some(_) if self.limiter.denied => return (FaultKind::Memory, tell(over_memory())),
            Some(trap) => return (FaultKind::Trap, tell(trap.to_string())),
            None => {}
        }
        if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
            return (FaultKind::Unavailable, error.root_cause().to_string());
        }
        if self.limiter.denied {
            return (FaultKind::Memory, over_memory());
        }
        (FaultKind::InvalidOutput, error.root_cause().to_string())
    }
}

impl LogView for GuestState {
    fn log(&mut self) -> Option<&PluginLog> {
        (!self.muted).then_some(&self.identity.log)
    }
}

impl ClockView for GuestState {
    fn time(&mut self) -> Time {
        self.time
    }
}

impl RandomView for GuestState {
    fn randomness(&mut self) -> &mut Randomness {
        &mut self.randomness
    }
}

impl MetricsView for GuestState {
    fn metrics(&mut self) -> &PluginMetrics {
        &self.identity.metrics
    }
}

impl StateView for GuestState {
    fn state(&mut self) -> &PluginState {
        &self.identity.state
    }
}

impl VocabularyView for GuestState {
    fn vocabulary(&mut self) -> ModelTokens<'_> {
        ModelTokens { tokens: self.vocabulary.as_ref() }
    }
}

impl LogitsView for GuestState {
    fn row(&mut self) -> CurrentRow<'_> {
        CurrentRow { row: &mut self.row }
    }
}

impl WasiView for GuestState {
    fn wasi(&mut self) -> Wasi<'_> {
        Wasi {
            log: &self.identity.log,
            time: self.time,
            randomness: &mut self.randomness,
            last_words: &mut self.last_words,
        }
    }

    fn filesystem(&mut self) -> WasiFilesystemCtxView<'_> {
        WasiFilesystemCtxView { ctx: &mut self.filesystem, table: &mut self.table }
    }

    fn sockets(&mut self) -> WasiSocketsCtxView<'_> {
        WasiSocketsCtxView { ctx: &mut self.sockets, table: &mut self.table }
    }
}

/// Bounds what the instances of a store allocate.
#[derive(Debug)]
struct Limiter {
    memory_bytes: usize,
    used_bytes: usize,
    denied: bool,
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
