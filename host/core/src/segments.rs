//! Segments: copies of KV entries outside the live cache, and the interface of the tier that outlives the process.
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::adapters::AdapterSet;
use crate::ids::{TenantId, Token};

/// Names a segment; unique for the life of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SegmentId(pub u64);

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Requests share cached prefixes only within their namespace. Otherwise response times would tell one tenant what
/// another has asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Namespace {
    /// A tenant's own.
    Tenant(TenantId),
    /// One that the auth policy gives to several tenants. Never a tenant's own, even if the names are equal.
    Named(Arc<str>),
    /// For everyone who chose to share.
    Shared,
    /// The part of a namespace whose entries are computed under adapters. [`Namespace::under`] makes it.
    Adapted(Arc<(Namespace, AdapterSet)>),
    /// The part of a whole namespace that only requests with the same key share. [`Namespace::keyed`] makes it.
    Keyed(Arc<(Namespace, Arc<str>)>),
}

impl Namespace {
    /// The name that an auth policy returns to choose [`Namespace::Shared`].
    pub const SHARED: &str = "shared";

    /// The part of it whose KV entries are computed under these adapters. They are of no use under any others.
    pub fn under(&self, adapters: &AdapterSet) -> Self {
        let whole = self.without_adapters().clone();
        if adapters.is_empty() { whole } else { Self::Adapted(Arc::new((whole, adapters.clone()))) }
    }

    /// The part of the whole that belongs to this key.
    pub fn keyed(&self, key: &str) -> Self {
        Self::Keyed(Arc::new((self.owner().clone(), key.into())))
    }

    /// The part of which this holds what is computed under adapters, or this.
    fn without_adapters(&self) -> &Self {
        match self {
            Self::Adapted(part) => &part.0,
            Self::Tenant(_) | Self::Named(_) | Self::Shared | Self::Keyed(_) => self,
        }
    }

    /// Whether it holds what is computed under adapters.
    pub fn is_adapted(&self) -> bool {
        matches!(self, Self::Adapted(_))
    }

    /// The key of the part.
    pub fn key(&self) -> Option<&str> {
        match self.without_adapters() {
            Self::Keyed(part) => Some(&part.1),
            _ => None,
        }
    }

    /// The whole of which this is a part, or this.
    pub fn owner(&self) -> &Self {
        match self {
            Self::Adapted(part) => part.0.owner(),
            Self::Keyed(part) => part.0.owner(),
            Self::Tenant(_) | Self::Named(_) | Self::Shared => self,
        }
    }
}

/// Describes a segment: it holds the KV entries at positions `start..tokens.len()`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentInfo {
    pub namespace: Namespace,
    /// All tokens from position 0, because keys and values depend on every token before them.
    pub tokens: Arc<[Token]>,
    /// Position of the segment's first KV entry.
    pub start: u32,
}

/// What [`crate::engine::Engine::save`] returned. A vector, so that sharing it does not copy it once more.
pub type State = Arc<Vec<u8>>;

/// A second tier below RAM, which may outlive the process. `camshaft-engine` implements it on disk.
///
/// The worker calls it on its own thread, so `put` and `remove` must not wait for IO. No failure here fails a request:
/// the worker recomputes a segment that cannot be written or read.
pub trait ColdTier: Send {
    /// Queues a copy of a segment for writing. If that fails, [`ColdTier::lost`] reports the segment.
    fn put(&mut self, segment: SegmentId, info: &SegmentInfo, state: &State);
    /// Reads a segment: the same bytes that were put. `None` if it is missing or damaged; the tier then drops it.
    fn get(&mut self, segment: SegmentId) -> Option<State>;
    /// Drops a segment.
    fn remove(&mut self, segment: SegmentId);
    /// Appends the segments that the tier dropped on its own since the last call: evicted, or not written.
    fn lost(&mut self, segments: &mut Vec<SegmentId>);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::AdapterDigest;

    #[test]
    fn a_part_of_a_namespace_belongs_to_the_whole_and_is_no_other_part() {
        let whole = Namespace::Tenant("t".into());
        let adapters = AdapterSet::new([(AdapterDigest::new([1; 32]), 1.0)]);
        let parts = [
            whole.clone(),
            whole.keyed("a"),
            whole.keyed("b"),
            whole.under(&adapters),
            whole.keyed("a").under(&adapters),
        ];
        for (at, part) in parts.iter().enumerate() {
            assert_eq!(part.owner(), &whole);
            assert_eq!(part.under(&AdapterSet::default()).key(), part.key());
            assert!(parts[..at].iter().all(|other| other != part), "{part:?}");
        }
        assert_eq!(
            parts.map(|part| part.key().map(str::to_owned)),
            [None, Some("a".into()), Some("b".into()), None, Some("a".into())]
        );
        // A key is of the whole, whatever part it is asked of.
        assert_eq!(whole.keyed("a").keyed("b"), whole.keyed("b"));
        assert_eq!(whole.keyed("a").under(&adapters).under(&AdapterSet::default()), whole.keyed("a"));
    }
}
