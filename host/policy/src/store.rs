//! The store of a guest instance: its data, its limits, its deadline.
use std::sync::Arc;
use std::time::Duration;

use camshaft_core::policy::FaultKind;
use camshaft_core::sampling::Row;
use camshaft_core::vocabulary::Vocabulary;
use wasmtime::component::ResourceTable;
use wasmtime::{Engine, PoolConcurrencyLimitError, ResourceLimiter, Store, Trap, UpdateDeadline};
use wasmtime_wasi::filesystem::{WasiFilesystemCtx, WasiFilesystemCtxView};
use wasmtime_wasi::sockets::{WasiSocketsCtx, WasiSocketsCtxView};

use crate::engine::{CORE_INSTANCES, Clock, MEMORIES, TABLE_ENTRIES, TABLES, TICK};
use crate::fault::GuestError;
use crate::given::Given;
use crate::imports::call::{Call, CallView};
use crate::imports::clock::{ClockView, Time};
use crate::imports::documents::DocumentsView;
use crate::imports::draft::{Draft, DraftView};
use crate::imports::identity::Identity;
use crate::imports::log::{LogView, PluginLog};
use crate::imports::logits::{CurrentRow, LogitsView};
use crate::imports::metrics::{MetricsView, PluginMetrics};
use crate::imports::plans::{CurrentPlans, PlansView};
use crate::imports::pool::{Pool, PoolView};
use crate::imports::random::{RandomView, Randomness};
use crate::imports::sequence::{Sequence, SequenceView};
use crate::imports::setup::{Place, SetupView};
use crate::imports::state::{CurrentState, StateView};
use crate::imports::stream::{Stream, StreamView};
use crate::imports::vocabulary::{ModelTokens, VocabularyView};
use crate::supplies::Supplies;
use crate::wasi::{LastWords, Wasi, WasiView};

/// Bytes that the host may allocate to copy the arguments or the answer of one call. Without the bound, a list whose
/// elements all point at the same guest memory would multiply it; and a copy takes time that no deadline interrupts.
const LIFTED_BYTES: usize = 16 << 20;
/// How often the deadline of a guest is extended that was not given the CPU.
const EXTENSIONS: u32 = 16;

/// What the context of a guest's calls tells.
#[derive(Debug, Default)]
pub(crate) enum Subject {
    #[default]
    None,
    Call(Call),
    Draft(Draft),
    Pool(Box<Pool>),
    Sequence(Sequence),
    Stream(Stream),
}

/// The data of a store.
pub(crate) struct GuestState {
    identity: Arc<Identity>,
    supplies: Arc<Supplies>,
    limiter: Limiter,
    table: ResourceTable,
    /// Plans in the table.
    plans: u32,
    randomness: Randomness,
    time: Time,
    /// The row of the `sample` call in progress; otherwise empty.
    pub(crate) row: Row,
    pub(crate) vocabulary: Option<Arc<Vocabulary>>,
    pub(crate) subject: Subject,
    filesystem: WasiFilesystemCtx,
    sockets: WasiSocketsCtx,
    last_words: LastWords,
    budget: Budget,
    clock: Arc<Clock>,
    /// While the instance is configured.
    muted: bool,
    /// It read something when it was configured that may be another thing later.
    dated: bool,
    given: Given,
    reusable: bool,
}

impl GuestState {
    pub(crate) fn new(
        (identity, supplies): (Arc<Identity>, Arc<Supplies>),
        memory_bytes: usize,
        randomness: Randomness,
        time: Time,
    ) -> Self {
        Self {
            identity,
            supplies,
            limiter: Limiter { memory_bytes, used_bytes: 0, denied: false },
            table: ResourceTable::new(),
            plans: 0,
            randomness,
            time,
            row: Row::default(),
            vocabulary: None,
            subject: Subject::None,
            filesystem: WasiFilesystemCtx::default(),
            sockets: WasiSocketsCtx::default(),
            last_words: LastWords::default(),
            budget: Budget::default(),
            clock: Arc::default(),
            muted: false,
            dated: false,
            given: Given::default(),
            reusable: false,
        }
    }

    /// Whether the instance may serve another request: its plugin allows that, and it was never denied memory.
    pub(crate) fn may_be_kept(&self) -> bool {
        self.reusable && !self.limiter.denied
    }

    /// What it wrote in one call is not told of the next, which may be another tenant's.
    pub(crate) fn forget_last_words(&mut self) {
        self.last_words = LastWords::default();
    }

    /// Whether log lines are dropped: while an instance is configured. The policy logged its lines about the same
    /// settings when it was loaded.
    pub(crate) fn set_muted(&mut self, muted: bool) {
        self.muted = muted;
    }

    /// Whether the instance may be made ahead of its call: what it read when it was configured holds at any time.
    pub(crate) fn may_wait(&self) -> bool {
        !self.dated && !self.limiter.denied
    }

    /// Whether other instances may begin with what this one knows, at any time. `share_random`: they may have its random numbers.
    ///
    /// # Errors
    /// Why not.
    pub(crate) fn stands_for_all(&self, share_random: bool) -> Result<(), &'static str> {
        if self.dated {
            return Err("it reads what may change when it is configured");
        }
        if self.given.secret {
            return Err("it reads a secret when it is configured");
        }
        if self.given.random && !share_random {
            return Err(
                "it draws random numbers when it is configured (snapshot = \"share-random\" under [policy] allows that)",
            );
        }
        if self.limiter.denied {
            return Err("it was denied memory when it was configured");
        }
        if !self.table.is_empty() || self.given.handles > 0 {
            return Err("it keeps a resource of the host when it is configured");
        }
        Ok(())
    }

    /// Bytes of its memories.
    pub(crate) fn used_bytes(&self) -> usize {
        self.limiter.used_bytes
    }

    /// Lets its memories grow by so many bytes more.
    pub(crate) fn allow_more(&mut self, bytes: usize) {
        self.limiter.memory_bytes += bytes;
    }

    /// Begins like the instance of a snapshot, whose plugin allowed several requests in one instance, or did not.
    pub(crate) fn set_reusable(&mut self, reusable: bool) {
        self.reusable = reusable;
    }

    /// Begins the random numbers of its request.
    pub(crate) fn reseed(&mut self, randomness: Randomness) {
        self.randomness = randomness;
    }

    /// Notes that the guest asks for something that may change.
    fn note_dated(&mut self) {
        self.dated |= self.muted;
    }

    /// Kind and text of the fault that ended a call of this guest.
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
            return (FaultKind::Exhausted, error.root_cause().to_string());
        }
        if self.limiter.denied {
            return (FaultKind::Memory, over_memory());
        }
        (FaultKind::InvalidOutput, error.root_cause().to_string())
    }
}

impl PlansView for GuestState {
    fn plans(&mut self) -> CurrentPlans<'_> {
        CurrentPlans { table: &mut self.table, count: &mut self.plans }
    }
}

impl LogView for GuestState {
    fn log(&mut self) -> Option<&PluginLog> {
        (!self.muted).then_some(&self.identity.log)
    }
}

impl ClockView for GuestState {
    fn time(&mut self) -> Time {
        self.note_dated();
        self.time
    }
}

impl RandomView for GuestState {
    fn randomness(&mut self) -> &mut Randomness {
        self.given.random = true;
        &mut self.randomness
    }
}

impl MetricsView for GuestState {
    fn metrics(&mut self) -> &PluginMetrics {
        &self.identity.metrics
    }
}

impl StateView for GuestState {
    fn state(&mut self) -> CurrentState<'_> {
        self.note_dated();
        CurrentState { state: &self.identity.state, is_granted: self.identity.grant.load().state }
    }
}

impl VocabularyView for GuestState {
    fn vocabulary(&mut self) -> ModelTokens<'_> {
        self.note_dated();
        ModelTokens { tokens: self.vocabulary.as_ref() }
    }
}

impl LogitsView for GuestState {
    fn row(&mut self) -> CurrentRow<'_> {
        CurrentRow { row: &mut self.row }
    }
}

impl SetupView for GuestState {
    fn place(&mut self) -> Place<'_> {
        let (plugin, supplies, reusable) = (&self.identity, &self.supplies, &mut self.reusable);
        Place { plugin, supplies, reusable, given: &mut self.given }
    }
}

impl DocumentsView for GuestState {
    fn supplies(&mut self) -> &Supplies {
        self.note_dated();
        &self.supplies
    }
}

impl CallView for GuestState {
    fn call(&mut self) -> Option<&mut Call> {
        match &mut self.subject {
            Subject::Call(call) => Some(call),
            _ => None,
        }
    }
}

impl DraftView for GuestState {
    fn draft(&mut self) -> Option<&mut Draft> {
        match &mut self.subject {
            Subject::Draft(draft) => Some(draft),
            _ => None,
        }
    }
}

impl PoolView for GuestState {
    fn pool(&mut self) -> Option<&mut Pool> {
        match &mut self.subject {
            Subject::Pool(pool) => Some(pool.as_mut()),
            _ => None,
        }
    }
}

impl SequenceView for GuestState {
    fn sequence(&mut self) -> Option<&mut Sequence> {
        match &mut self.subject {
            Subject::Sequence(sequence) => Some(sequence),
            _ => None,
        }
    }
}

impl StreamView for GuestState {
    fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.subject {
            Subject::Stream(stream) => Some(stream),
            _ => None,
        }
    }
}

impl WasiView for GuestState {
    fn wasi(&mut self) -> Wasi<'_> {
        Wasi {
            log: &self.identity.log,
            time: self.time,
            dated: self.muted.then_some(&mut self.dated),
            randomness: &mut self.randomness,
            given: &mut self.given,
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

/// Bounds the allocations of a store's instances.
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
            // The guest sees a failed allocation, and may handle it. If it traps, this is the reason to report.
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

/// The time budget of a call in progress.
#[derive(Debug, Default)]
struct Budget {
    deadline: Duration,
    /// Set once the deadline has passed: the thread's CPU time at that moment, and the number of extensions.
    passed: Option<(Duration, u32)>,
}

impl Budget {
    /// Epochs count wall-clock time, during which a busy machine may not have run this thread at all. So at the first
    /// deadline this reads the thread's CPU time and extends the deadline. At the next one it kills the guest if that
    /// has *run* for half of the extension. So a spinning guest gets at most twice its deadline, and one that had to
    /// wait is spared.
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

/// A store for one instance, whose first calls must end within `deadline`.
pub(crate) fn open(
    (engine, clock): (&Engine, &Arc<Clock>),
    state: GuestState,
    deadline: Duration,
) -> Store<GuestState> {
    let mut store = Store::new(engine, GuestState { clock: clock.clone(), ..state });
    store.limiter(|state| &mut state.limiter);
    store.set_hostcall_fuel(LIFTED_BYTES);
    store.epoch_deadline_callback(|mut store| {
        let state = store.data_mut();
        state.clock.arm(state.budget.deadline);
        Ok(state.budget.at_deadline())
    });
    arm(&mut store, deadline);
    store
}

/// Starts the deadline of the next call.
pub(crate) fn arm(store: &mut Store<GuestState>, deadline: Duration) {
    store.data_mut().budget = Budget { deadline, passed: None };
    store.data().clock.arm(deadline);
    // One tick more, because the present tick may almost be over.
    store.set_epoch_deadline(ticks(deadline) + 1);
}

fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(TICK.as_nanos())).unwrap_or(u64::MAX / 2)
}

/// CPU time of the calling thread.
pub(crate) fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
