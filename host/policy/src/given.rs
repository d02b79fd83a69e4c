//! What an instance was given that others may not have: no snapshot is taken of it.

/// What an instance was given that others may not have.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Given {
    pub(crate) random: bool,
    pub(crate) secret: bool,
    /// Handles to WASI's streams and pollables, which are in no table of the host, less those that it gave back.
    pub(crate) handles: u32,
}
