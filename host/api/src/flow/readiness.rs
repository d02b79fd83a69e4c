//! Whether requests are admitted: loading, ready, draining; which models can be served; how many requests are in flight.
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::watch;

use serde::Serialize;

use crate::flow::error::FlowError;

/// The server's life cycle. It only moves forward, except that operators may drain it for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Loading,
    Ready,
    Draining,
}

/// How many of a model's workers or embedders run. Whoever runs them says so.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<AtomicUsize>);

impl Health {
    /// One more runs.
    pub fn up(&self) {
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// One that was up is gone.
    pub fn down(&self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }

    /// Whether any runs.
    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }
}

/// A request that the server has accepted and not yet answered to the end.
#[derive(Debug)]
pub(crate) struct InFlight(watch::Sender<usize>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// Shared between the server, which moves it, and the HTTP surface, which reads it.
#[derive(Debug)]
pub struct Readiness {
    state: AtomicU8,
    /// An operator drains the server without ending it.
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
            state: AtomicU8::new(State::Loading as u8),
            held: AtomicBool::new(false),
            models: Mutex::default(),
            in_flight: watch::Sender::new(0),
        }
    }

    /// The health of a model, for whoever runs it. The server is ready only while every model is up.
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
        // The sender lives as long as `self`.
        let _ = self.in_flight.subscribe().wait_for(|&count| count == 0).await;
    }

    /// Loading to ready; a server that already drains stays so.
    pub fn set_ready(&self) {
        self.state.fetch_max(State::Ready as u8, Ordering::AcqRel);
    }

    /// From anything to draining: what runs goes on, nothing new begins.
    pub fn set_draining(&self) {
        self.state.fetch_max(State::Draining as u8, Ordering::AcqRel);
    }

    /// Admits nothing new until it is released again.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Release);
    }

    /// Undoes [`Readiness::hold`].
    pub fn release(&self) {
        self.held.store(false, Ordering::Release);
    }

    pub fn is_ready(&self) -> bool {
        self.state() == State::Ready
    }

    pub fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Loading,
            1 if !self.held.load(Ordering::Acquire) => State::Ready,
            _ => State::Draining,
        }
    }

    /// An error with the reason if the server is not to be sent requests: none may begin, or a model has nobody to serve it.
    pub(crate) fn ready(&self) -> Result<(), FlowError> {
        self.admit()?;
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        match models.iter().find(|(_, health)| !health.is_up()) {
            None => Ok(()),
            Some((id, _)) => Err(FlowError::ModelDown(id.clone())),
        }
    }

    /// An error if nobody serves the model at the moment.
    pub(crate) fn serves(&self, model: &str) -> Result<(), FlowError> {
        let models = self.models.lock().unwrap_or_else(PoisonError::into_inner);
        let down = models.iter().any(|(id, health)| id == model && !health.is_up());
        if down { Err(FlowError::ModelDown(model.to_owned())) } else { Ok(()) }
    }

    /// # Errors
    /// 503 with the reason while nothing new may begin.
    pub(crate) fn admit(&self) -> Result<(), FlowError> {
        match self.state() {
            State::Loading => Err(FlowError::NotReady),
            State::Ready => Ok(()),
            State::Draining => Err(FlowError::Draining),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_forward_only() {
        let readiness = Readiness::new();
        assert_eq!(readiness.state(), State::Loading);
        readiness.set_ready();
        assert!(readiness.is_ready());
        readiness.hold();
        assert_eq!(readiness.state(), State::Draining);
        readiness.release();
        assert!(readiness.is_ready());
        readiness.set_draining();
        readiness.set_ready();
        assert_eq!(readiness.state(), State::Draining);
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
