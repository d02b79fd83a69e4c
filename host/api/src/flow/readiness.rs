//! Whether the server admits requests: its state, the health of its models, and the number of requests in flight.
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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

/// Number of a model's workers or embedders that are up. The threads that run them report it.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<AtomicUsize>);

impl Health {
    /// A worker or embedder is up.
    pub fn up(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// A worker or embedder that was up is down.
    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether any is up.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
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
    state: AtomicU8,
    /// Whether an operator drains the server without ending it.
    held: AtomicBool,
    models: Mutex<Vec<(String, Health)>>,
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
            state: AtomicU8::new(ServerState::Loading as u8),
            held: AtomicBool::new(false),
            models: Mutex::default(),
            in_flight: watch::Sender::new(0),
        }
    }

    /// The health of a model, for the threads that run it. The server is ready only while every model is up.
    pub fn health(&self, model: &str) -> Health {
        let mut models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, health)) = models.iter().find(|(id, _)| id == model) {
            return health.clone();
        }
        let health = Health::default();
        models.push((model.to_owned(), health.clone()));
        health
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

    /// An error with the reason if load balancers should send no requests: the server admits none, or a model is down.
    pub(crate) fn ready(&self) -> Result<(), FlowError> {
        self.admit()?;
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        match models.iter().find(|(_, health)| !health.is_up()) {
            None => Ok(()),
            Some((id, _)) => Err(FlowError::ModelDown(id.clone())),
        }
    }

    /// An error if the model is down.
    pub(crate) fn serves(&self, model: &str) -> Result<(), FlowError> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let down = models.iter().any(|(id, health)| id == model && !health.is_up());
        if down { Err(FlowError::ModelDown(model.to_owned())) } else { Ok(()) }
    }

    /// # Errors
    /// 503 with the reason if the server admits no new request.
    pub(crate) fn admit(&self) -> Result<(), FlowError> {
        match self.state() {
            ServerState::Loading => Err(FlowError::NotReady),
            ServerState::Ready => Ok(()),
            ServerState::Draining => Err(FlowError::Draining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn a_model_without_anybody_to_serve_it_makes_the_server_unready() {
        let readiness = Readiness::new();
        readiness.set_ready();
        assert!(readiness.ready().is_ok());
        let (first, second) = (readiness.health("m"), readiness.health("m"));
        assert!(matches!(readiness.ready(), Err(FlowError::ModelDown(model)) if model == "m"));
        first.up();
        second.up();
        first.down();
        assert!(readiness.ready().is_ok(), "the other one runs");
        second.down();
        assert!(matches!(readiness.serves("m"), Err(FlowError::ModelDown(_))));
        assert!(readiness.admit().is_ok(), "other models are served");
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
