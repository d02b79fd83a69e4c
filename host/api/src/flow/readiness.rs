//! Whether the server admits requests: its state, the health of its models, and the number of requests in flight.
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use serde::Serialize;

use crate::flow::error::FlowError;

/// The server's life cycle. It only moves forward, except that an operator can drain the server for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ServerState {
    Loading,
    Ready,
    Draining,
}

/// Where a worker of any kind stands in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkerState {
    /// It is being made, for the first time or again.
    #[default]
    Starting,
    Ready,
    /// It runs, but was restarted only just now, or has said nothing for longer than its steps take.
    Degraded,
    /// It ends when its requests have.
    Draining,
    /// It is gone. Another one comes after a pause, if the server does not end.
    Dead,
}

/// The life of one worker, which the thread that runs it tells.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<Life>>);

#[derive(Debug, Clone, Copy, Default)]
struct Life {
    state: WorkerState,
    /// Restarted, it is on trial until then.
    trusted: Option<Instant>,
    restarts: u64,
}

impl Health {
    /// It runs for the first time.
    pub fn ready(&self) {
        self.change(|life| life.state = WorkerState::Ready);
    }

    /// It ends with its last request.
    pub fn drain(&self) {
        self.change(|life| life.state = WorkerState::Draining);
    }

    /// It is gone.
    pub fn die(&self) {
        self.change(|life| life.state = WorkerState::Dead);
    }

    /// Another one is being made.
    pub fn restart(&self) {
        self.change(|life| life.state = WorkerState::Starting);
    }

    /// It runs again, and is trusted once it has run for as long as `trial`. So one that is lost again and again is never healthy.
    pub fn ready_on_trial(&self, trial: Duration) {
        self.change(|life| {
            let trusted = Some(Instant::now() + trial);
            *life = Life { state: WorkerState::Ready, trusted, restarts: life.restarts + 1 };
        });
    }

    /// Whether it has been silent for longer than it should, while it runs.
    pub fn set_late(&self, is_late: bool) {
        self.change(|life| match (life.state, is_late) {
            (WorkerState::Ready, true) => life.state = WorkerState::Degraded,
            (WorkerState::Degraded, false) => life.state = WorkerState::Ready,
            _ => {}
        });
    }

    pub fn state(&self) -> WorkerState {
        let life = self.life();
        let is_on_trial = life.trusted.is_some_and(|trusted| trusted > Instant::now());
        if is_on_trial && life.state == WorkerState::Ready { WorkerState::Degraded } else { life.state }
    }

    pub fn restarts(&self) -> u64 {
        self.life().restarts
    }

    /// Whether it takes requests.
    pub fn is_up(&self) -> bool {
        matches!(self.state(), WorkerState::Ready | WorkerState::Degraded | WorkerState::Draining)
    }

    pub fn is_healthy(&self) -> bool {
        matches!(self.state(), WorkerState::Ready | WorkerState::Draining)
    }

    fn change(&self, change: impl FnOnce(&mut Life)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn life(&self) -> Life {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The health of one model in memory: of its workers.
#[derive(Debug, Clone, Default)]
pub struct ModelHealth(Arc<Mutex<Vec<Health>>>);

impl ModelHealth {
    /// The health of one more worker, for the thread that runs it.
    pub fn worker(&self) -> Health {
        let health = Health::default();
        self.workers().push(health.clone());
        health
    }

    /// Whether it has a healthy worker.
    pub fn is_healthy(&self) -> bool {
        self.workers().iter().any(Health::is_healthy)
    }

    /// An error if the model of this id is down.
    pub(crate) fn serves(&self, id: &str) -> Result<(), FlowError> {
        let is_up = self.workers().iter().any(Health::is_up);
        if is_up { Ok(()) } else { Err(FlowError::ModelDown(id.to_owned())) }
    }

    /// What is wrong with the model of this id, if anything is.
    fn fault(&self, id: &str) -> Option<String> {
        why_down(id, &self.workers())
    }

    /// Of its workers, in their order: their states, and how often they were restarted.
    pub(crate) fn states(&self) -> Vec<(WorkerState, u64)> {
        self.workers().iter().map(|health| (health.state(), health.restarts())).collect()
    }

    fn workers(&self) -> std::sync::MutexGuard<'_, Vec<Health>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that the server has accepted and not answered completely.
#[derive(Debug)]
pub(crate) struct InFlight(watch::Sender<usize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// The server changes it, and the HTTP surface reads it.
#[derive(Debug)]
pub struct Readiness {
    begun: Instant,
    state: AtomicU8,
    /// Whether an operator drains the server without ending it.
    held: AtomicBool,
    /// What is loaded at the moment: of each kind one text.
    loading: Mutex<BTreeMap<&'static str, String>>,
    /// The models in memory, by their ids.
    models: Mutex<BTreeMap<String, ModelHealth>>,
    /// Why the server ends, if it ends by a fault of its own.
    failed: OnceLock<String>,
    in_flight: watch::Sender<usize>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Starts as loading.
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            state: AtomicU8::new(ServerState::Loading as u8),
            held: AtomicBool::new(false),
            loading: Mutex::default(),
            models: Mutex::default(),
            failed: OnceLock::new(),
            in_flight: watch::Sender::new(0),
        }
    }

    /// Since the server began.
    pub(crate) fn uptime(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Notes for whoever asks how far things of a kind are that are loaded now; `None`: they are.
    pub fn set_loading(&self, kind: &'static str, how_far: Option<String>) {
        let mut loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        match how_far {
            Some(text) => drop(loading.insert(kind, text)),
            None => drop(loading.remove(kind)),
        }
    }

    pub(crate) fn loading(&self) -> String {
        let loading = self.loading.lock().unwrap_or_else(PoisonError::into_inner);
        if loading.is_empty() {
            return "it has just begun".to_owned();
        }
        let texts: Vec<String> = loading.iter().map(|(kind, how_far)| format!("{kind} ({how_far})")).collect();
        texts.join(", ")
    }

    /// The server is ready only while each of these models has a healthy worker.
    pub(crate) fn set_model(&self, id: &str, health: ModelHealth) {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), health);
    }

    pub(crate) fn remove_model(&self, id: &str) {
        self.models.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// The server cannot go on: a thread is gone that cannot be restarted.
    pub fn set_failed(&self, why: String) {
        // The first reason is the one.
        let _ = self.failed.set(why);
    }

    /// Counts a request until the guard is dropped.
    pub(crate) fn enter(&self) -> InFlight {
        self.in_flight.send_modify(|count| *count += 1);
        InFlight(self.in_flight.clone())
    }

    /// Waits until no request is in flight.
    pub async fn idle(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.in_flight.subscribe().wait_for(|&count| count == 0).await;
    }

    /// Moves from loading to ready. A draining server stays draining.
    pub fn set_ready(&self) {
        self.state.fetch_max(ServerState::Ready as u8, Ordering::AcqRel);
    }

    /// Moves to draining: running requests continue, and no new one is admitted.
    pub fn set_draining(&self) {
        self.state.fetch_max(ServerState::Draining as u8, Ordering::AcqRel);
    }

    /// Admits no new request until [`Readiness::release`].
    pub fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// Undoes [`Readiness::hold`].
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.state() == ServerState::Ready
    }

    pub fn state(&self) -> ServerState {
        match self.state.load(Ordering::Acquire) {
            0 => ServerState::Loading,
            1 if !self.held.load(Ordering::Acquire) => ServerState::Ready,
            _ => ServerState::Draining,
        }
    }

    /// An error with the reason if load balancers should send no requests: a thread is gone, the server admits none, or
    /// models have nobody healthy to serve them.
    pub(crate) fn ready(&self) -> Result<(), FlowError> {
        if let Some(why) = self.failed.get() {
            return Err(FlowError::Failed(why.clone()));
        }
        self.admit()?;
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let down: Vec<String> = models.iter().filter_map(|(id, health)| health.fault(id)).collect();
        if down.is_empty() { Ok(()) } else { Err(FlowError::Unhealthy(down.join("; "))) }
    }

    /// # Errors
    /// 503 with the reason if the server admits no new request.
    pub(crate) fn admit(&self) -> Result<(), FlowError> {
        match self.state() {
            ServerState::Loading => Err(FlowError::NotReady(self.loading())),
            ServerState::Ready => Ok(()),
            ServerState::Draining => Err(FlowError::Draining),
        }
    }
}

/// What is wrong with a model; `None`: it has a healthy worker or embedder.
fn why_down(model: &str, all: &[Health]) -> Option<String> {
    if all.iter().any(Health::is_healthy) {
        return None;
    }
    let up = all.iter().filter(|health| health.is_up()).count();
    let count = all.len();
    Some(match up {
        0 => format!("nobody serves the model {model}: {count} of {count} workers are down"),
        _ => format!(
            "no worker of the model {model} is well: {up} of {count} run, restarted just now or silent for too long"
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(readiness: &Readiness, id: &str) -> ModelHealth {
        let health = ModelHealth::default();
        readiness.set_model(id, health.clone());
        health
    }

    #[test]
    fn a_model_that_is_unloaded_makes_the_server_ready_again() {
        let readiness = Readiness::new();
        readiness.set_ready();
        model(&readiness, "m");
        assert!(readiness.ready().is_err(), "it has no worker");
        readiness.remove_model("m");
        assert!(readiness.ready().is_ok());
    }

    #[test]
    fn moves_forward_only() {
        let readiness = Readiness::new();
        assert_eq!(readiness.state(), ServerState::Loading);
        readiness.set_ready();
        assert!(readiness.is_ready());
        readiness.hold();
        assert_eq!(readiness.state(), ServerState::Draining);
        readiness.release();
        assert!(readiness.is_ready());
        readiness.set_draining();
        readiness.set_ready();
        assert_eq!(readiness.state(), ServerState::Draining);
        assert!(matches!(readiness.admit(), Err(FlowError::Draining)));
    }

    fn why(readiness: &Readiness) -> String {
        readiness.ready().unwrap_err().answer().note().object.message.clone()
    }

    #[test]
    fn a_model_without_anybody_to_serve_it_makes_the_server_unready() {
        let readiness = Readiness::new();
        readiness.set_ready();
        assert!(readiness.ready().is_ok());
        let (m, embed) = (model(&readiness, "m"), model(&readiness, "embed"));
        let (first, second, other) = (m.worker(), m.worker(), embed.worker());
        other.ready();
        assert_eq!(why(&readiness), "nobody serves the model m: 2 of 2 workers are down");
        first.ready();
        second.ready();
        first.die();
        assert!(readiness.ready().is_ok(), "the other one runs");
        second.die();
        other.die();
        assert!(why(&readiness).contains("model m:") && why(&readiness).contains("model embed:"), "all of them");
        assert!(matches!(m.serves("m"), Err(FlowError::ModelDown(_))));
        assert!(readiness.admit().is_ok(), "other models are served");
    }

    #[test]
    fn regression_one_that_fails_again_and_again_is_never_healthy() {
        let readiness = Readiness::new();
        readiness.set_ready();
        let m = model(&readiness, "m");
        let worker = m.worker();
        worker.ready();
        for _ in 0..3 {
            worker.die();
            worker.ready_on_trial(Duration::from_secs(3600));
            assert_eq!((worker.state(), readiness.ready().is_ok()), (WorkerState::Degraded, false));
            assert!(m.serves("m").is_ok(), "what waits is served all the same");
        }
        worker.ready_on_trial(Duration::ZERO);
        assert!(readiness.ready().is_ok(), "it has lasted");
    }

    #[test]
    fn regression_a_thread_that_cannot_be_restarted_makes_the_server_unready() {
        let readiness = Readiness::new();
        readiness.set_ready();
        readiness.set_failed("the thread pool-m panicked".to_owned());
        readiness.set_draining();
        assert!(why(&readiness).contains("pool-m"), "{}", why(&readiness));
    }

    #[tokio::test]
    async fn is_idle_when_the_last_request_is_answered() {
        let readiness = Readiness::new();
        readiness.idle().await;
        let requests = [readiness.enter(), readiness.enter()];
        let idle = tokio::time::timeout(std::time::Duration::from_millis(1), readiness.idle());
        assert!(idle.await.is_err());
        drop(requests);
        readiness.idle().await;
    }
}
