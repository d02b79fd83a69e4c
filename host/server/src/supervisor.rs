//! Makes the server's threads, restarts the ones that panic, and ends them all in order.
use std::convert::Infallible;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camshaft_api::Health;
use camshaft_core::threads::Spawner;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, bounded};
use prometheus::{IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
use tokio::sync::watch;

use crate::error::ServerError;

/// From a panic to the first restart. Each further restart waits twice as long, up to the maximum.
const MIN_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Incarnations in a row of which none has lasted for the maximum: from then on each waits for the maximum, so that what ends them
/// (a model's file, a driver) does not take the machine.
const LOOP: u32 = 8;

/// Threads end stage by stage: first the ones that hand out work, then the ones that do it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ShutdownStage {
    /// Pools.
    Dispatch,
    /// Workers and embedders.
    Compute,
    /// The policy watcher, and components that are being compiled.
    Policies,
}

const STAGES: [ShutdownStage; 3] = [ShutdownStage::Dispatch, ShutdownStage::Compute, ShutdownStage::Policies];
/// How long the policy threads have to end. Compiling cannot be interrupted.
const POLICIES_END: Duration = Duration::from_secs(5);

/// Tells a thread that it has to end.
#[derive(Debug, Clone)]
pub(crate) struct Stop(Receiver<Infallible>);

impl Stop {
    pub(crate) fn is_set(&self) -> bool {
        self.0.try_recv() == Err(TryRecvError::Disconnected)
    }

    /// Sleeps for `pause`, or until the thread has to end: then true.
    pub(crate) fn wait(&self, pause: Duration) -> bool {
        self.0.recv_timeout(pause) == Err(RecvTimeoutError::Disconnected)
    }

    /// For `select!`: becomes ready, with an error, when the thread has to end.
    pub(crate) fn receiver(&self) -> &Receiver<Infallible> {
        &self.0
    }
}

/// How an incarnation ended that did not panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Done,
    /// As after a panic, another one is wanted.
    Lost,
}

/// What a supervised thread does. It survives panics; an incarnation does not.
pub(crate) trait Service: Send + 'static {
    /// What one run needs and a panic may leave broken.
    type Incarnation: Send + 'static;
    /// How others reach an incarnation.
    type Handle;
    /// When it ends.
    const STAGE: ShutdownStage = ShutdownStage::Compute;

    /// Makes an incarnation: the first one before the thread starts, further ones after a panic.
    ///
    /// # Errors
    /// It cannot be made now. It is tried again later.
    fn make(&mut self) -> Result<(Self::Incarnation, Self::Handle), ServerError>;

    /// Runs until there is nothing left to do, or `stop` is set, or until what it runs is lost.
    fn run(&mut self, incarnation: &mut Self::Incarnation, stop: &Stop) -> Ending;

    /// An incarnation ended, in order or by a panic. To be told before what it holds is dropped, which may take seconds.
    /// False: no other one is wanted.
    fn down(&mut self, incarnation: Self::Incarnation) -> bool {
        drop(incarnation);
        true
    }

    /// A new incarnation is about to run after a panic. False: nobody wants it any more.
    fn up(&mut self, handle: Self::Handle) -> bool {
        drop(handle);
        true
    }
}

/// Where a supervised thread's state shows: in metrics and readiness.
#[derive(Debug, Clone)]
pub(crate) struct Gauges {
    pub(crate) up: IntGauge,
    pub(crate) restarts: IntCounter,
    pub(crate) health: Health,
}

/// Counts threads by name. Workers and embedders have [`Gauges`] of their own.
#[derive(Debug, Clone)]
pub(crate) struct ThreadMetrics {
    pub(crate) running: IntGaugeVec,
    pub(crate) restarts: IntCounterVec,
}

impl ThreadMetrics {
    /// Of a thread that belongs to no model.
    pub(crate) fn gauges(&self, thread: &str) -> Gauges {
        Gauges {
            up: self.running.with_label_values(&[thread]),
            restarts: self.restarts.with_label_values(&[thread]),
            health: Health::default(),
        }
    }
}

/// Counts a thread as long as it lives.
struct AliveCount(Option<IntGauge>);

impl AliveCount {
    fn new(gauge: Option<IntGauge>) -> Self {
        gauge.iter().for_each(IntGauge::inc);
        Self(gauge)
    }
}

impl Drop for AliveCount {
    fn drop(&mut self) {
        self.0.iter().for_each(IntGauge::dec);
    }
}

/// Owns every thread of the server but those of the runtime and the clock of the policies.
#[derive(Debug)]
pub(crate) struct Supervisor {
    stages: [Mutex<Threads>; STAGES.len()],
    metrics: OnceLock<ThreadMetrics>,
    /// The thread whose panic nothing can make good.
    failed: watch::Sender<Option<String>>,
}

/// The threads of one stage.
#[derive(Debug)]
struct Threads {
    /// Gone once they have to end.
    stopper: Option<Sender<Infallible>>,
    stop: Stop,
    /// Every thread holds a sender; `ended` disconnects when the last thread is gone.
    alive: Option<Sender<Infallible>>,
    ended: Receiver<Infallible>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    fn new() -> Self {
        let (stopper, stop) = bounded(0);
        let (alive, ended) = bounded(0);
        Self { stopper: Some(stopper), stop: Stop(stop), alive: Some(alive), ended, handles: Vec::new() }
    }

    /// Tells the threads to end. What is disconnected when they have.
    fn stop(&mut self) -> Receiver<Infallible> {
        self.stopper = None;
        self.alive = None;
        self.ended.clone()
    }

    /// Waits for the threads, which end.
    fn join(&mut self) {
        // Their panics were caught and logged on their own threads.
        self.handles.drain(..).for_each(|handle| drop(handle.join()));
    }
}

impl Supervisor {
    pub(crate) fn new() -> Self {
        let stages = STAGES.map(|_| Mutex::new(Threads::new()));
        Self { stages, metrics: OnceLock::new(), failed: watch::Sender::new(None) }
    }

    /// Counts the threads that are started from now on.
    pub(crate) fn count_in(&self, metrics: ThreadMetrics) {
        // The first ones hold.
        let _ = self.metrics.set(metrics);
    }

    /// Starts threads for packages that know no supervisor. Their panics are logged; whoever needs them notices.
    pub(crate) fn spawner(self: &Arc<Self>, stage: ShutdownStage) -> Spawner {
        let supervisor = Arc::downgrade(self);
        Spawner::new(move |name, body| {
            let supervisor = supervisor.upgrade().ok_or_else(|| io::Error::other("the server has ended"))?;
            let panicked = move || tracing::error!(thread = name, "thread panicked");
            supervisor.start_counted(stage, name, |_| body(), panicked)
        })
    }

    /// Starts a thread that is not restarted: after its panic the server has to end, see [`Supervisor::failed`].
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn spawn(
        &self,
        stage: ShutdownStage,
        name: &str,
        body: impl FnOnce(&Stop) + Send + 'static,
    ) -> Result<(), ServerError> {
        let (failed, thread) = (self.failed.clone(), name.to_owned());
        let panicked = move || {
            tracing::error!(thread, "thread panicked; the server ends");
            failed.send_replace(Some(thread));
        };
        let started = self.start_counted(stage, name, body, panicked);
        started.map_err(|error| ServerError::internal("start a thread", error))
    }

    fn start_counted(
        &self,
        stage: ShutdownStage,
        name: &str,
        body: impl FnOnce(&Stop) + Send + 'static,
        panicked: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let running = AliveCount::new(self.metrics.get().map(|metrics| metrics.running.with_label_values(&[name])));
        self.start(stage, name, move |stop| {
            let _running = running;
            catch_unwind(AssertUnwindSafe(|| body(stop))).unwrap_or_else(|_| panicked());
        })
    }

    /// Starts a thread that runs `service`, from `first` on. After a panic the service gets a new incarnation, at once or
    /// after a pause that doubles as long as it does not last.
    ///
    /// # Errors
    /// No thread can be started.
    pub(crate) fn supervise<S: Service>(
        &self,
        name: &str,
        gauges: Gauges,
        mut service: S,
        first: S::Incarnation,
    ) -> Result<(), ServerError> {
        // Before the thread runs, so that the model counts as healthy from the beginning.
        gauges.up();
        let thread = name.to_owned();
        let started = self.start(S::STAGE, name, move |stop| keep_alive(&thread, &gauges, &mut service, first, stop));
        started.map_err(|error| ServerError::internal("start a thread", error))
    }

    fn start(&self, stage: ShutdownStage, name: &str, body: impl FnOnce(&Stop) + Send + 'static) -> io::Result<()> {
        let mut threads = self.stages[stage as usize].lock().unwrap_or_else(PoisonError::into_inner);
        let Some(alive) = threads.alive.clone() else { return Err(io::Error::other("the server ends")) };
        let stop = threads.stop.clone();
        // There is no end of threads that compile or write for a while.
        threads.handles.retain(|handle| !handle.is_finished());
        let builder = std::thread::Builder::new().name(name.to_owned());
        let handle = builder.spawn(move || {
            body(&stop);
            drop(alive);
        });
        threads.handles.push(handle?);
        Ok(())
    }

    /// Waits for a thread that cannot be restarted to panic, and names it.
    pub(crate) async fn failed(&self) -> String {
        let mut failed = self.failed.subscribe();
        match failed.wait_for(Option::is_some).await.map(|name| name.clone()) {
            Ok(Some(name)) => name,
            // The sender lives as long as `self`.
            _ => std::future::pending().await,
        }
    }

    /// Ends all threads, stage by stage, and waits for each stage at most for `bound`. Whether all have ended. What they
    /// write on their way out (the prefix cache's data files) is written by then.
    pub(crate) fn end(&self, bound: Duration) -> bool {
        let mut all_ended = true;
        for stage in STAGES {
            let threads = || self.stages[stage as usize].lock().unwrap_or_else(PoisonError::into_inner);
            let ended = threads().stop();
            let bound = if matches!(stage, ShutdownStage::Policies) { bound.min(POLICIES_END) } else { bound };
            // Not under the lock: a thread that ends may ask for another one, and is refused.
            if ended.recv_timeout(bound) == Err(RecvTimeoutError::Disconnected) {
                threads().join();
            } else {
                // A later stage may end all the same.
                all_ended = false;
            }
        }
        all_ended
    }
}

impl Gauges {
    fn up(&self) {
        self.up.inc();
        self.health.ready();
    }

    /// After a panic, on trial for as long as the pause before it.
    fn up_again(&self, pause: Duration) {
        self.up.inc();
        self.health.ready_on_trial(pause);
    }

    fn down(&self) {
        self.up.dec();
        self.health.die();
    }
}

/// The pauses before the restarts of one service.
#[derive(Debug, Default)]
struct Pauses {
    /// Restarts, and attempts, since an incarnation has lasted.
    failures: u32,
}

impl Pauses {
    fn next(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= LOOP { MAX_PAUSE } else { MIN_PAUSE * (1 << (self.failures - 1)) }
    }
}

/// A pause that is up to a quarter shorter, so that those that were lost together do not come together.
fn jittered(pause: Duration) -> Duration {
    // A new state is random.
    let random = RandomState::new().hash_one(()) % 256;
    pause - pause / 1024 * u32::try_from(random).unwrap_or_default()
}

/// Runs one incarnation after the other, until one ends in order.
fn keep_alive<S: Service>(thread: &str, gauges: &Gauges, service: &mut S, first: S::Incarnation, stop: &Stop) {
    let (mut incarnation, mut pauses) = (first, Pauses::default());
    loop {
        let begun = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| service.run(&mut incarnation, stop)));
        gauges.down();
        if ended.is_err() {
            tracing::error!(thread, "thread panicked; what it was working on is lost");
        }
        let is_lost = ended.unwrap_or(Ending::Lost) == Ending::Lost;
        if begun.elapsed() > MAX_PAUSE {
            pauses = Pauses::default();
        }
        // What a panic left behind may panic once more where it is dropped.
        let wanted = catch_unwind(AssertUnwindSafe(|| service.down(incarnation))).unwrap_or(true);
        if !wanted || !is_lost || stop.is_set() {
            return;
        }
        let (made, handle, trial) = loop {
            let trial = pauses.next();
            if pauses.failures == LOOP {
                tracing::error!(
                    thread,
                    failures = LOOP,
                    "lost again and again: it is restarted once a minute from now on"
                );
            }
            if stop.wait(jittered(trial)) {
                return;
            }
            gauges.health.restart();
            match catch_unwind(AssertUnwindSafe(|| service.make())) {
                Ok(Ok((made, handle))) => break (made, handle, trial),
                Ok(Err(error)) => tracing::error!(thread, %error, "thread could not be restarted"),
                Err(_) => tracing::error!(thread, "thread panicked while it was restarted"),
            }
            gauges.health.die();
        };
        gauges.up_again(trial);
        gauges.restarts.inc();
        tracing::info!(thread, "thread restarted");
        if !service.up(handle) {
            gauges.down();
            return;
        }
        incarnation = made;
    }
}

#[cfg(test)]
#[path = "supervisor_tests.rs"]
mod tests;
