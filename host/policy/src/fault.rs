//! From what the runtime reports to the kind of fault it is.
use camshaft_core::policy::FaultKind;
use wasmtime::{PoolConcurrencyLimitError, Trap};

use crate::store::GuestState;

/// An error that a host import raises to end the guest's call.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct GuestError {
    pub(crate) kind: FaultKind,
    pub(crate) detail: String,
}

/// Ends the guest's call because it passed something that the interface does not allow.
pub(crate) fn invalid(detail: impl Into<String>) -> wasmtime::Error {
    wasmtime::Error::new(GuestError { kind: FaultKind::InvalidOutput, detail: detail.into() })
}

/// Ends the guest's call because it did something that guests may not do.
pub(crate) fn forbidden(detail: &str) -> wasmtime::Error {
    wasmtime::Error::new(GuestError { kind: FaultKind::Trap, detail: detail.to_owned() })
}

/// Kind and text of what ended a guest's call.
pub(crate) fn classify(error: &wasmtime::Error, state: &GuestState) -> (FaultKind, String) {
    let said = state.last_words();
    let tell = |what: String| if said.is_empty() { what } else { format!("{what} (it wrote: {said})") };
    if let Some(raised) = error.downcast_ref::<GuestError>() {
        return (raised.kind, raised.detail.clone());
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        if *trap == Trap::Interrupt {
            return (FaultKind::Deadline, "ran past its deadline".to_owned());
        }
        if state.limiter.denied() {
            return (FaultKind::Memory, tell(format!("asked for more than {} bytes", state.limiter.memory_bytes())));
        }
        return (FaultKind::Trap, tell(trap.to_string()));
    }
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return (FaultKind::Unavailable, error.root_cause().to_string());
    }
    if state.limiter.denied() {
        return (FaultKind::Memory, format!("asked for more than {} bytes", state.limiter.memory_bytes()));
    }
    (FaultKind::InvalidOutput, error.root_cause().to_string())
}
