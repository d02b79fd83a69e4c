//! A loaded policy: compiled and checked, with settings that it has accepted.
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use camshaft_core::breaker::{Admission, BreakerState, Turn};
use camshaft_core::ids::{Generation, PolicyName, TenantId};
use camshaft_core::policy::{Difference, Fault, FaultKind, Hook, Mode, PolicyHealth, Refusal};
use serde::{Deserialize, Serialize};
use wasmtime::Store;

use crate::ahead::{Ahead, Made};
use crate::bindings;
use crate::chronicle::unix_seconds;
use crate::code::CodeName;
use crate::documents::Judge;
use crate::health::Health;
use crate::imports::identity::Identity;
use crate::imports::log::Allowance;
use crate::journal::{Happened, Journal};
use crate::kept::{Instance, Kept};
use crate::lanes::LaneId;
use crate::metrics::{LinkMetrics, Outcome};
use crate::monitoring::Monitored;
use crate::pace::Pace;
use crate::reuse::Verdicts;
use crate::runtime::Runtime;
use crate::secrets::Secrets;
use crate::shares::Share;
use crate::sidecar::Sidecar;
use crate::snapshot::Snapshots;
use crate::spec::{CHECKPOINT, OnFault, SnapshotMode, spec};
use crate::store::{self, GuestState, Subject, cpu_time};
use crate::supplies::Supplies;

/// Why a policy has no snapshot any more.
const FAULTED: &str = "a call faulted";

/// A component linked for its hook.
pub(crate) type HookPre = bindings::HookPre<GuestState>;

/// The code of a policy. Loads of the same component with different settings share it.
pub(crate) struct Compiled {
    /// SHA-256 of the file in lower-case hexadecimal.
    pub(crate) digest: String,
    pub(crate) size_bytes: u64,
    /// Where it was read last.
    pub(crate) file: ArcSwapOption<PathBuf>,
    /// Under which its code is kept, where that is.
    pub(crate) code: CodeName,
    /// Version of its hook's package that it was built for.
    pub(crate) api_version: String,
    pub(crate) imports: Vec<String>,
    /// Interfaces that it exports beside its hook, and of which the host makes use.
    pub(crate) exports: Vec<String>,
    pub(crate) asks: Asks,
    pub(crate) pre: HookPre,
}

impl Compiled {
    /// Whether its instances hand over what they know.
    pub(crate) fn has_checkpoint(&self) -> bool {
        self.exports.iter().any(|export| export.split('@').next() == Some(CHECKPOINT))
    }
}

/// What it may ask for that costs the host something even if it does not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asks {
    /// Fields of the client's request, while that runs.
    pub(crate) fields: bool,
    /// Log-probabilities of drawn tokens.
    pub(crate) logprobs: bool,
}

impl std::fmt::Debug for Compiled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Compiled").field("hook", &self.pre.hook()).field("digest", &self.digest).finish_non_exhaustive()
    }
}

/// One load of one policy file.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) name: PolicyName,
    /// From 1 on; no other load of the process has it.
    pub(crate) number: u64,
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) sidecar: Sidecar,
    pub(crate) identity: Arc<Identity>,
    pub(crate) supplies: Arc<Supplies>,
    pub(crate) metrics: LinkMetrics,
    pub(crate) health: Health,
    /// What it would have changed while it was monitored.
    pub(crate) monitored: Monitored,
    /// The generation that introduced it, once that is published.
    pub(crate) generation: OnceLock<Generation>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) kept: Kept,
    pub(crate) ahead: Ahead,
    pub(crate) snapshots: Snapshots,
    /// Takes one, which lasts many seconds.
    pub(crate) take_snapshot: fn(&Weak<Self>),
    pub(crate) pace: Pace,
    pub(crate) lane: LaneId,
    /// Itself, for those who make instances ahead.
    pub(crate) me: Weak<Self>,
    /// Asked about new versions of its documents.
    pub(crate) judge: Judge,
    /// Of an auth policy.
    pub(crate) verdicts: Verdicts,
    /// In a process that only has a copy: what happens goes to the one that loaded the policy.
    pub(crate) journal: Option<Arc<Journal>>,
}

impl Loaded {
    pub(crate) fn hook(&self) -> Hook {
        self.compiled.pre.hook()
    }

    /// Whether its answers are only counted.
    pub(crate) fn is_monitored(&self) -> bool {
        self.sidecar.mode == Mode::Monitor
    }

    /// Whether the secrets that its settings name are not those it has. What cannot be read is another one.
    pub(crate) fn has_other_secrets(&self) -> bool {
        let sources = &self.sidecar.secrets;
        !sources.is_empty() && !Secrets::read(sources).is_ok_and(|secrets| secrets == self.supplies.secrets)
    }

    /// What tells the trial of this version from those of others. The same in every process.
    pub(crate) fn salt(&self) -> u64 {
        let digits = self.compiled.digest.get(..16).unwrap_or_default();
        let of_name = self.name.as_str().bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
        u64::from_str_radix(digits, 16).unwrap_or_default() ^ of_name
    }

    pub(crate) fn on_fault(&self) -> OnFault {
        self.sidecar.on_fault
    }

    /// A store for an instance, whose first calls must end within the policy's deadline. With `seed`, its random numbers
    /// depend on that alone.
    pub(crate) fn store(&self, seed: Option<u64>) -> Store<GuestState> {
        let deadline = self.sidecar.deadline;
        let of = (self.identity.clone(), self.supplies.clone());
        let state = state_for(self.hook(), of, self.sidecar.memory_bytes, seed);
        store::open((self.runtime.engine(self.hook()), &self.runtime.clock), state, deadline)
    }

    /// An instance that is configured, for one call about `subject`: a kept one, or a new one. Its deadline runs.
    pub(crate) fn instance(&self, subject: Subject) -> Result<Instance, Fault> {
        if let Some(mut instance) = self.kept.take() {
            store::arm(&mut instance.store, self.sidecar.deadline);
            instance.store.data_mut().subject = subject;
            return Ok(instance);
        }
        self.configured(None, |state| state.subject = subject)
    }

    /// Counts one more instance for a request of the tenant, as long as the answer lives.
    ///
    /// # Errors
    /// The tenant has as many of the hook's as one may.
    pub(crate) fn share(&self, tenant: &TenantId) -> Result<Share, Fault> {
        let full =
            |has| self.fault(FaultKind::Exhausted, format!("its tenant has {has} instances, as many as one may"));
        self.runtime.shares(self.hook()).take(tenant).map_err(full)
    }

    /// An instance that is configured and was never called: one that was made ahead, or a new one. Its deadline runs. `tell`
    /// gives it what its request is about; with `seed`, its random numbers begin anew.
    pub(crate) fn configured(&self, seed: Option<u64>, tell: impl FnOnce(&mut GuestState)) -> Result<Instance, Fault> {
        if let Some(mut instance) = self.ahead.take() {
            self.make_ahead();
            store::arm(&mut instance.store, self.sidecar.deadline);
            tell(instance.store.data_mut());
            self.seed(&mut instance, seed);
            return Ok(instance);
        }
        let before = self.ahead.is_timed().then(cpu_time);
        let mut instance = self.make(tell)?;
        self.seed(&mut instance, seed);
        if let Some(before) = before {
            self.ahead.note(cpu_time().saturating_sub(before));
        }
        self.make_ahead();
        Ok(instance)
    }

    fn seed(&self, instance: &mut Instance, seed: Option<u64>) {
        if seed.is_some() {
            instance.store.data_mut().reseed((spec(self.hook()).randomness)(seed));
        }
    }

    fn make(&self, tell: impl FnOnce(&mut GuestState)) -> Result<Instance, Fault> {
        let mut store = self.store(None);
        tell(store.data_mut());
        if let Some(snapshot) = &*self.snapshots.get() {
            let guest = snapshot.pre.instantiate(&mut store);
            let guest = guest.map_err(|error| self.fault_of(&error, store.data()))?;
            store.data_mut().set_reusable(snapshot.reusable);
            return Ok(Instance::new(store, guest));
        }
        let mut configured = || {
            let guest = self.compiled.pre.instantiate(&mut store)?;
            store.data_mut().set_muted(true);
            let accepted = guest.configure(&mut store, &self.sidecar.settings)?;
            store.data_mut().set_muted(false);
            Ok(accepted.map(|()| guest))
        };
        let guest = configured().map_err(|error: wasmtime::Error| self.fault_of(&error, store.data()))?;
        let guest = guest.map_err(|text| self.refused_settings(&text))?;
        Ok(Instance::new(store, guest))
    }

    /// Has instances made until enough are ready, and a snapshot taken, if making one takes long.
    fn make_ahead(&self) {
        if self.ahead.is_wanted() {
            self.want_snapshot();
        }
        while let Some(place) = self.ahead.claim() {
            let me = self.me.clone();
            let make = move || {
                // Nobody uses the version any more.
                let Some(policy) = me.upgrade() else { return };
                let made = match policy.make(|_| {}) {
                    Ok(instance) if instance.store.data().may_wait() => Made::Ready(Box::new(instance)),
                    Err(fault) if fault.kind == FaultKind::Exhausted => Made::NotNow,
                    Ok(_) | Err(_) => Made::Never,
                };
                policy.ahead.put(made, place);
            };
            if self.runtime.makers.put_alone(self.lane, make).is_err() {
                self.ahead.give_up();
                return;
            }
        }
    }

    /// Has a snapshot taken unless there is one, or was.
    pub(crate) fn want_snapshot(&self) {
        if self.sidecar.snapshot != SnapshotMode::Never && self.snapshots.begin() {
            let me = self.me.clone();
            let take = self.take_snapshot;
            if self.runtime.snapshot_takers.put_alone(self.lane, move || take(&me)).is_err() {
                self.snapshots.pause();
            }
        }
    }

    /// Tells the process that loaded the policy. False: this is it.
    pub(crate) fn tell(&self, happened: impl FnOnce() -> Happened) -> bool {
        let Some(journal) = &self.journal else { return false };
        journal.note(self.number, happened());
        true
    }

    pub(crate) fn fault(&self, kind: FaultKind, detail: impl Into<String>) -> Fault {
        Fault { plugin: self.name.clone(), kind, detail: detail.into() }
    }

    pub(crate) fn invalid(&self, detail: impl Into<String>) -> Fault {
        self.fault(FaultKind::InvalidOutput, detail)
    }

    /// The fault that ended a guest's call.
    pub(crate) fn fault_of(&self, error: &wasmtime::Error, state: &GuestState) -> Fault {
        let (kind, detail) = state.classify(error);
        self.fault(kind, detail)
    }

    /// The fault of an instance that refuses the settings that it accepted before the swap.
    pub(crate) fn refused_settings(&self, text: &str) -> Fault {
        self.invalid(format!("refuses its settings: {text}"))
    }

    /// Counts and logs that a monitored policy would have decided otherwise, with the refusal if it said one. Callers can
    /// bring that about at will, so the lines count against its allowance.
    pub(crate) fn note_difference(&self, kind: Difference, refusal: Option<&Refusal>) {
        self.metrics.differs(kind);
        self.monitored.count(kind);
        if self.tell(|| Happened::Differs { kind, refusal: refusal.cloned() }) {
            return;
        }
        let Allowance::Granted { dropped } = self.identity.log.take_line(Instant::now()) else { return };
        let (hook, plugin) = (self.hook().as_str(), self.name.as_str());
        let (status, code) = (refusal.map(|refusal| refusal.status), refusal.map(|refusal| refusal.code.as_str()));
        let kind = kind.as_str();
        tracing::info!(hook, plugin, kind, status, code, dropped, "a monitored policy would have decided otherwise");
    }

    /// Whether it may be asked now.
    ///
    /// # Errors
    /// Its breaker is open.
    pub(crate) fn admit(&self) -> Result<(), Fault> {
        match self.health.admit() {
            Admission::Ask => Ok(()),
            Admission::Try => {
                self.note_tried();
                Ok(())
            }
            Admission::Refuse => {
                self.note_refused();
                Err(self.fault(FaultKind::Unavailable, "it is not asked: its breaker is open after many faults"))
            }
        }
    }

    /// Another load takes its place, or nothing does: it only ends what it has begun.
    pub(crate) fn retire(&self) {
        self.kept.close();
        self.snapshots.close();
        self.judge.dismiss();
    }

    /// It has been published.
    pub(crate) fn comes_into_force(&self) {
        self.health.comes_into_force();
        // Those that it gave before it was taken out of force are old.
        self.verdicts.clear();
        self.metrics.breaker(BreakerState::Closed);
    }

    /// How it does. `last_good`: to what it may be rolled back.
    pub(crate) fn report(&self, last_good: Option<String>) -> PolicyHealth {
        let us = |share| self.health.quantile(share).map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        PolicyHealth {
            since: self.health.since().map(unix_seconds),
            calls: self.health.calls(),
            faults: self.health.faults(),
            last_fault: self.health.last_fault(),
            p50_us: us(0.5),
            p99_us: us(0.99),
            breaker: if self.monitored.is_open() { BreakerState::Open } else { self.health.breaker_state() },
            differences: self.monitored.differences(),
            waits: self.monitored.waits(),
            rows: self.monitored.rows(),
            last_good,
            snapshot: self.snapshots.get().is_some(),
            snapshot_error: self.snapshots.why_none().map(str::to_owned),
        }
    }

    /// Its breaker lets one call through, to try it.
    pub(crate) fn note_tried(&self) {
        self.metrics.breaker(BreakerState::HalfOpen);
        self.tell(|| Happened::Tried);
    }

    /// It was not asked, because its breaker was open.
    pub(crate) fn note_refused(&self) {
        self.metrics.count(Outcome::Open);
        self.tell(|| Happened::Refused);
    }

    /// Counts a row that was compared with one that it shaped.
    pub(crate) fn note_distance(&self, distance: f64) {
        self.metrics.compared(distance);
        self.monitored.compared(distance);
        self.tell(|| Happened::Compared(distance));
    }

    /// Counts an answer to a call that began at `started`.
    pub(crate) fn note_call(&self, outcome: Outcome, started: Instant) {
        self.count_call(outcome, started.elapsed());
    }

    /// Counts an answer to a call that took so long.
    pub(crate) fn count_call(&self, outcome: Outcome, took: Duration) {
        self.metrics.observe(outcome, took);
        self.health.count(took, false);
        self.tell(|| Happened::Answer { outcome, took });
    }

    /// The same, and tells the breaker.
    pub(crate) fn note_answer(&self, outcome: Outcome, started: Instant) {
        self.note_call(outcome, started);
        self.tell_answered();
    }

    /// Tells the breaker of a request that was answered.
    pub(crate) fn tell_answered(&self) {
        self.health.judge_answer();
        self.tell(|| Happened::Judged);
        if self.health.answered() == Some(Turn::Closed) {
            self.note_return(None);
        }
    }

    /// Its breaker opened, of the model's pool if it is a scheduler.
    pub(crate) fn note_opened(&self, fault: &Fault, pause: Option<Duration>, model: Option<&str>) {
        self.metrics.opened();
        let opened = || Happened::Opened { kind: fault.kind, detail: fault.detail.clone(), pause };
        if self.tell(opened) {
            return;
        }
        let (hook, plugin, fault) = (self.hook().as_str(), self.name.as_str(), fault.to_string());
        let pause_ms = pause.map(|pause| u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        tracing::warn!(hook, plugin, model, fault, pause_ms, "the breaker of a policy opened: it is not asked");
        self.health.alarm(fault);
    }

    /// Its breaker closed again.
    pub(crate) fn note_return(&self, model: Option<&str>) {
        self.metrics.breaker(BreakerState::Closed);
        if self.tell(|| Happened::Closed) {
            return;
        }
        let (hook, plugin) = (self.hook().as_str(), self.name.as_str());
        tracing::info!(hook, plugin, model, "the breaker of a policy closed: it is asked again");
    }

    /// Gives the snapshot up, if there is one, after a fault that it may have caused: a handle that other instances do not have is
    /// nonsense in some words and a trap in others.
    fn doubt_snapshot(&self, kind: FaultKind) {
        let is_suspect = matches!(kind, FaultKind::Trap | FaultKind::InvalidOutput) && self.snapshots.get().is_some();
        if is_suspect && self.snapshots.give_up(FAULTED.to_owned()) {
            let (hook, plugin) = (self.hook().as_str(), self.name.as_str());
            self.runtime.feeds.bump();
            tracing::warn!(hook, plugin, why = FAULTED, "instances of a policy begin without a snapshot again");
            self.ahead.begin_anew();
            self.kept.clear();
        }
    }

    /// Logs a fault, counts the call as one that began at `started`, and tells the breaker. (That of a scheduler is its
    /// pool's.)
    pub(crate) fn note_fault(&self, fault: &Fault, started: Instant) {
        self.note_fault_of(fault, started, false);
    }

    /// The same of one call among many of a request. `told`: an earlier one was answered, and the breaker was told.
    pub(crate) fn note_fault_of(&self, fault: &Fault, started: Instant, told: bool) {
        self.count_fault(fault, started.elapsed(), told);
        // Whoever takes all instances must not switch policies off.
        if fault.kind != FaultKind::Exhausted
            && self.hook() != Hook::Scheduler
            && let Some(Turn::Opened { pause }) = self.health.faulted()
        {
            self.note_opened(fault, Some(pause), None);
        }
    }

    /// Logs a fault of a call that took so long, and counts it, for trials too.
    pub(crate) fn count_fault(&self, fault: &Fault, took: Duration, told: bool) {
        self.metrics.observe(Outcome::Fault(fault.kind), took);
        self.health.count(took, true);
        self.health.keep_fault(fault.kind, &fault.detail);
        self.doubt_snapshot(fault.kind);
        // Whoever takes all instances must not end trials.
        if fault.kind != FaultKind::Exhausted {
            self.health.judge_fault(told);
        }
        if self.tell(|| Happened::Fault { kind: fault.kind, detail: fault.detail.clone(), took, told }) {
            return;
        }
        // Callers can make a guest fault at will, so the lines count against its allowance.
        let Allowance::Granted { dropped } = self.identity.log.take_line(Instant::now()) else { return };
        let (hook, plugin, kind) = (self.hook().as_str(), self.name.as_str(), fault.kind.as_str());
        tracing::warn!(hook, plugin, kind, detail = fault.detail, dropped, "a policy faulted");
    }
}

impl Loaded {
    /// What happened to its copy in another process, as if it had happened here.
    pub(crate) fn take_note(&self, happened: Happened) {
        match happened {
            Happened::Answer { outcome, took } => self.count_call(outcome, took),
            Happened::Judged => self.health.judge_answer(),
            Happened::Fault { kind, detail, took, told } => self.count_fault(&self.fault(kind, detail), took, told),
            Happened::Opened { kind, detail, pause } => {
                self.health.breaker_is(BreakerState::Open);
                self.note_opened(&self.fault(kind, detail), pause, None);
            }
            Happened::Tried => {
                self.health.breaker_is(BreakerState::HalfOpen);
                self.note_tried();
            }
            Happened::Closed => {
                self.health.breaker_is(BreakerState::Closed);
                self.note_return(None);
            }
            Happened::Refused => self.note_refused(),
            Happened::Differs { kind, refusal } => self.note_difference(kind, refusal.as_ref()),
            Happened::Compared(distance) => self.note_distance(distance),
            Happened::WantsSnapshot => self.want_snapshot(),
            Happened::Metric { name, change, labels } => self.identity.metrics.record(&name, change, &labels),
            // Of a store, which several loads may have.
            Happened::State(_) => {}
        }
    }
}

/// The data of an instance of this hook.
pub(crate) fn state_for(
    hook: Hook,
    of: (Arc<Identity>, Arc<Supplies>),
    memory_bytes: usize,
    seed: Option<u64>,
) -> GuestState {
    let spec = spec(hook);
    GuestState::new(of, memory_bytes, (spec.randomness)(seed), spec.time)
}
