//! What is to be compiled.
use std::sync::atomic::AtomicBool;

use camshaft_core::policy::Hook;

/// A component that is to be compiled for a hook.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task<'a> {
    pub(crate) hook: Hook,
    pub(crate) bytes: &'a [u8],
    /// Set when nobody waits for it any more.
    pub(crate) stopping: &'a AtomicBool,
}
