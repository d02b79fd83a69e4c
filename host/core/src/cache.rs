//! The prefix cache of one worker: the prefix tree, the saved segments, and the sessions that pin them.
mod sessions;
mod store;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counters::WorkerCounters;
use crate::ids::{RequestId, SessionId};
use crate::prefix::{HeldBy, NodeId, PrefixTree};
use crate::segments::{ColdTier, Namespace, SegmentId, SegmentInfo};

use sessions::Sessions;
use store::SegmentStore;

/// Stands in for a request while segments of an earlier process enter the tree.
const ADOPTER: RequestId = RequestId(u64::MAX);

/// What the cache holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFacts {
    pub segments: u64,
    /// Tokens whose KV entries are saved in segments, in RAM or in the cold tier.
    pub tokens: u64,
    pub ram_bytes: u64,
    /// KV entries in the live cache that further requests may share. An entry that several sequences share counts once.
    pub live_tokens: u64,
    pub sessions: u64,
}

/// The segments of one worker and the tree that finds them.
pub struct PrefixCache {
    pub tree: PrefixTree,
    store: SegmentStore,
    capacity_bytes: u64,
    sessions: Sessions,
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixCache").field("facts", &self.facts()).finish_non_exhaustive()
    }
}

impl PrefixCache {
    /// `capacity_bytes` bounds the segments in RAM. Those that preempted sequences need may exceed it.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            tree: PrefixTree::default(),
            store: SegmentStore::default(),
            capacity_bytes,
            sessions: Sessions::default(),
        }
    }

    /// Sets how long a session stays open after its last use.
    pub fn with_session_ttl(mut self, ttl: Duration) -> Self {
        self.sessions.set_ttl(ttl);
        self
    }

    /// Adds a cold tier with the segments that an earlier process left in it. Removes orphaned ones.
    pub fn with_cold(mut self, mut cold: Box<dyn ColdTier>, mut found: Vec<(SegmentId, SegmentInfo)>) -> Self {
        found.sort_by_key(|(id, info)| (info.start, *id));
        found.retain(|(id, info)| {
            let adopted = self.adopt(*id, info);
            if !adopted {
                cold.remove(*id);
            }
            adopted
        });
        self.store.set_cold(cold, found.into_iter().map(|(id, _)| id));
        self
    }

    /// Puts a segment into the tree. Returns false for an orphan, whose preceding tokens are in no segment, and for one
    /// that covers nothing new.
    fn adopt(&mut self, segment: SegmentId, info: &SegmentInfo) -> bool {
        if info.start as usize >= info.tokens.len() {
            return false;
        }
        let before = &info.tokens[..info.start as usize];
        if (self.tree.probe(&info.namespace, before).cached as usize) < before.len() {
            return false;
        }
        let leaf = self.tree.enter(&info.namespace, &info.tokens);
        let bare = self.tree.path(leaf).filter(|piece| piece.start >= info.start && piece.segment.is_none());
        let bare: Vec<NodeId> = bare.map(|piece| piece.node).collect();
        bare.iter().for_each(|&node| self.tree.set_segment(node, segment));
        self.tree.leave(leaf, ADOPTER);
        !bare.is_empty()
    }

    pub fn facts(&self) -> CacheFacts {
        CacheFacts {
            segments: self.store.len() as u64,
            tokens: self.tree.saved_tokens(),
            ram_bytes: self.store.ram_bytes(),
            live_tokens: self.tree.held().into(),
            sessions: self.sessions.len() as u64,
        }
    }

    /// Adds the segments evicted since the last call.
    pub(crate) fn count_evictions(&mut self, counters: &mut WorkerCounters) {
        counters.evicted_from_ram += std::mem::take(&mut self.store.evicted_from_ram);
        counters.evicted_from_cold += std::mem::take(&mut self.store.evicted_from_cold);
    }

    /// Changes the bounds. An open session keeps its expiry until its next use.
    pub fn set_limits(&mut self, capacity_bytes: u64, session_ttl: Duration) {
        self.capacity_bytes = capacity_bytes;
        self.sessions.set_ttl(session_ttl);
        self.enforce_limits();
    }

    /// Sets the time since the worker's start, and closes the sessions that have expired.
    pub fn tick(&mut self, now: Duration) {
        for key in self.sessions.expired(now) {
            self.close(&key);
        }
    }

    /// Ends the running sequence `from` and pins the path to `leaf` for a session, in place of what it pinned before.
    pub fn pin(&mut self, namespace: &Namespace, session: &SessionId, leaf: NodeId, from: RequestId) {
        self.tree.pin(leaf, from);
        let key = (namespace.clone(), session.clone());
        self.close(&key);
        if self.sessions.is_full()
            && let Some(oldest) = self.sessions.oldest(|_| true)
        {
            self.close(&oldest);
        }
        self.sessions.open(key, leaf);
    }

    /// Closes a session: what it pinned may be evicted. Returns false without such a session.
    pub fn close_session(&mut self, namespace: &Namespace, session: &SessionId) -> bool {
        self.close(&(namespace.clone(), session.clone()))
    }

    fn close(&mut self, key: &sessions::SessionKey) -> bool {
        let leaf = self.sessions.close(key);
        leaf.into_iter().for_each(|leaf| self.tree.unpin(leaf));
        leaf.is_some()
    }

    /// Whether finished requests leave segments.
    pub fn is_enabled(&self) -> bool {
        self.capacity_bytes > 0 || self.store.has_cold()
    }

    /// Stores a copy of a node's KV entries as a new segment. The node must not have one.
    pub fn store(&mut self, node: NodeId, namespace: &Namespace, state: Vec<u8>) {
        let segment = self.store.next_id();
        self.tree.set_segment(node, segment);
        let tree = &self.tree;
        let info = || {
            let start = tree.path(node).next().map_or(0, |piece| piece.start);
            SegmentInfo { namespace: namespace.clone(), tokens: tree.tokens(node).into(), start }
        };
        self.store.put(segment, info, state);
    }

    /// Loads a segment's bytes, as they were stored. Removes the segment if it is missing or damaged.
    pub fn load(&mut self, segment: SegmentId) -> Option<Cow<'_, [u8]>> {
        if self.store.get(segment).is_none() {
            self.remove(segment);
        }
        self.store.get(segment)
    }

    fn remove(&mut self, segment: SegmentId) {
        self.store.remove(segment);
        self.tree.drop_segment(segment);
    }

    /// Removes segments that the cold tier lost, and evicts until RAM is within its bound.
    ///
    /// Segments without a holder are evicted first, least recently used first; then those that sessions pin and the
    /// cold tier also has. If the segments that sessions pin exceed the bound by themselves, sessions are closed, least
    /// recently used first. Segments that sequences need are never evicted, even above the bound.
    pub fn enforce_limits(&mut self) {
        for segment in self.store.take_lost() {
            self.remove(segment);
        }
        while self.store.ram_bytes() > self.capacity_bytes {
            let pinned = self.evict();
            let pinned_bytes: u64 = pinned.iter().map(|&segment| self.store.ram_bytes_of(segment)).sum();
            if pinned_bytes <= self.capacity_bytes || !self.close_oldest_of(&pinned) {
                return;
            }
        }
    }

    /// Evicts without closing sessions. Returns the segments left in RAM that sessions pin and no sequence needs.
    fn evict(&mut self) -> HashSet<SegmentId> {
        let mut pinned = HashSet::new();
        for (segment, held_by) in self.tree.eviction_order() {
            let may_evict = match held_by {
                HeldBy::Nobody => true,
                HeldBy::Session => self.store.is_cold(segment),
                HeldBy::Sequence => false,
            };
            if self.store.ram_bytes_of(segment) == 0 {
                continue;
            }
            if may_evict && self.store.ram_bytes() > self.capacity_bytes {
                // Segments below this one stay: they are of use again once a request has recomputed the gap.
                if !self.store.evict(segment) {
                    self.tree.drop_segment(segment);
                }
            } else if held_by == HeldBy::Session {
                pinned.insert(segment);
            }
        }
        pinned
    }

    /// Closes the least recently used session that pins one of `segments`. Returns false if there is none.
    fn close_oldest_of(&mut self, segments: &HashSet<SegmentId>) -> bool {
        let tree = &self.tree;
        let pins = |leaf| tree.path(leaf).any(|piece| piece.segment.is_some_and(|segment| segments.contains(&segment)));
        self.sessions.oldest(pins).is_some_and(|key| self.close(&key))
    }

    /// Whether the store and the tree are consistent.
    pub fn check(&self) -> bool {
        self.store.check() && self.tree.check()
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
