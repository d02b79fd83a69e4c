//! Errors that the host raises to end a guest's call.
use camshaft_core::policy::FaultKind;

/// An error that a host import raises to end the guest's call.
#[derive(Debug, thiserror::Error)]
#[error("{detail}")]
pub(crate) struct GuestError {
    pub(crate) kind: FaultKind,
    pub(crate) detail: String,
}

/// Ends the guest's call because it passed an argument that the interface does not allow.
pub(crate) fn invalid(detail: impl Into<String>) -> wasmtime::Error {
    wasmtime::Error::new(GuestError { kind: FaultKind::InvalidOutput, detail: detail.into() })
}

/// Ends the guest's call because it did something forbidden.
pub(crate) fn forbidden(detail: &str) -> wasmtime::Error {
    wasmtime::Error::new(GuestError { kind: FaultKind::Trap, detail: detail.to_owned() })
}
