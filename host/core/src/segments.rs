//! Segments: pieces of KV cache that are kept outside the live cache, and the seam to the tier that outlives the process.
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::ids::{TenantId, Token};

/// Names a segment for the life of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whose prompts may share a prefix. Timing must not tell one tenant what another one asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Namespace {
    /// One tenant's own, or a name that the auth policy gave to several.
    Tenant(TenantId),
    /// Of everybody who chose to share.
    Shared,
}

impl Namespace {
    /// What an auth policy names to share prefixes with everybody else who does.
    pub const SHARED: &str = "shared";
}

/// What a segment holds: the KV entries at positions `start..tokens.len()` of a run of tokens from position 0 on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    pub namespace: Namespace,
    /// The whole run, since keys and values at a position depend on all tokens before it.
    pub tokens: Arc<[Token]>,
    /// First position that the segment holds.
    pub start: u32,
}

/// The tier behind RAM. Segments are written behind the worker's back and read at once.
///
/// Implemented by `camshaft-engine` on disk. Nothing here may fail a request: what cannot be kept or read is recomputed.
pub trait ColdTier: Send {
    /// Keeps a copy, soon. What cannot be kept shows up in [`ColdTier::lost`].
    fn put(&mut self, segment: SegmentId, info: &SegmentInfo, state: &Arc<[u8]>);
    /// The state exactly as it was put; `None` (and forgotten) if it is not there or was changed.
    fn get(&mut self, segment: SegmentId) -> Option<Cow<'_, [u8]>>;
    /// Lets go of a segment.
    fn remove(&mut self, segment: SegmentId);
    /// Adds the segments that left since the last call: for room, or because they could not be written.
    fn lost(&mut self, segments: &mut Vec<SegmentId>);
}
