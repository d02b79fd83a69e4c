//! Whether generation requests are admitted: loading, ready, draining.
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use serde::Serialize;

use crate::flow::error::FlowError;

/// Where the server is in its life. Only ever moves forward, but for an operator who drains it for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Loading,
    Ready,
    Draining,
}

/// Shared between the server, which moves it, and the HTTP surface, which reads it.
#[derive(Debug)]
pub struct Readiness {
    state: AtomicU8,
    /// An operator drains the server without ending it.
    held: AtomicBool,
}

impl Default for Readiness {
    fn default() -> Self {
        Self::new()
    }
}

impl Readiness {
    /// Starts as loading.
    pub fn new() -> Self {
        Self { state: AtomicU8::new(State::Loading as u8), held: AtomicBool::new(false) }
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

    /// An error with the reason if no generation may begin.
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
}
