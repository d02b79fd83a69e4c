//! The prefix cache of one worker: the tree that finds segments, their bytes, and the sessions that pin them.
mod sessions;
mod store;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::ids::{RequestId, SessionId};
use crate::prefix::{Claim, NodeId, PrefixTree};
use crate::segments::{ColdTier, Namespace, SegmentId, SegmentInfo};

use sessions::Sessions;
use store::SegmentStore;

/// No request: holds a path while segments of an earlier process are put into the tree.
const NOBODY: RequestId = RequestId(u64::MAX);

/// What the cache holds, and what left it since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheFacts {
    pub segments: u64,
    /// Tokens that segments keep, in RAM or behind it.
    pub tokens: u64,
    pub ram_bytes: u64,
    /// KV entries of prompts in the live cache that further requests may share. Each counts once, however many share it.
    pub live_tokens: u64,
    pub sessions: u64,
    /// Segments that were evicted from RAM.
    pub evicted_from_ram: u64,
    /// Segments that left the cold tier, evicted or damaged.
    pub evicted_from_cold: u64,
}

/// Segments of one worker and the tree that finds them.
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
    /// `capacity_bytes` bounds the segments in RAM, but for those that sequences hold.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            tree: PrefixTree::default(),
            store: SegmentStore::default(),
            capacity_bytes,
            sessions: Sessions::default(),
        }
    }

    /// How long a session that is not used stays open.
    pub fn with_session_ttl(mut self, ttl: Duration) -> Self {
        self.sessions.set_ttl(ttl);
        self
    }

    /// Adds a tier with the segments that an earlier process left there. Removes orphaned ones from it.
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

    /// Puts a segment into the tree; false if the tokens before it are not there, or it covers nothing new.
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
        self.tree.leave(leaf, NOBODY);
        !bare.is_empty()
    }

    pub fn facts(&self) -> CacheFacts {
        CacheFacts {
            segments: self.store.len() as u64,
            tokens: self.tree.saved_tokens(),
            ram_bytes: self.store.ram_bytes(),
            live_tokens: self.tree.held().into(),
            sessions: self.sessions.len() as u64,
            evicted_from_ram: self.store.evicted_from_ram,
            evicted_from_cold: self.store.evicted_from_cold,
        }
    }

    /// Changes the bounds. Sessions that are open keep the time they were given.
    pub fn set_limits(&mut self, capacity_bytes: u64, session_ttl: Duration) {
        self.capacity_bytes = capacity_bytes;
        self.sessions.set_ttl(session_ttl);
        self.settle();
    }

    /// It is `now`, counted from the worker's start: closes the sessions that expired.
    pub fn tick(&mut self, now: Duration) {
        for key in self.sessions.expired(now) {
            self.close(&key);
        }
    }

    /// Hands everything up to `leaf` from a running sequence to a session, in place of what the session pinned before.
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

    /// What the session pinned is evicted like everything else from now on. False without such a session.
    pub fn close_session(&mut self, namespace: &Namespace, session: &SessionId) -> bool {
        self.close(&(namespace.clone(), session.clone()))
    }

    fn close(&mut self, key: &sessions::Key) -> bool {
        let leaf = self.sessions.close(key);
        leaf.into_iter().for_each(|leaf| self.tree.unpin(leaf));
        leaf.is_some()
    }

    /// Whether anything is kept at all.
    pub fn is_on(&self) -> bool {
        self.capacity_bytes > 0 || self.store.has_cold()
    }

    /// Stores a copy of a node's KV entries. The node has no segment yet.
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

    /// A segment's bytes, as they were stored. A segment that is gone or damaged is forgotten.
    pub fn load(&mut self, segment: SegmentId) -> Option<Cow<'_, [u8]>> {
        if self.store.get(segment).is_none() {
            self.forget(segment);
        }
        self.store.get(segment)
    }

    fn forget(&mut self, segment: SegmentId) {
        self.store.remove(segment);
        self.tree.drop_segment(segment);
    }

    /// Takes note of what the cold tier lost, and brings RAM back under its bound.
    ///
    /// What nobody holds goes first, least recently used first, then what sessions pin and the cold tier still has. Segments
    /// that sequences hold stay, over the bound if need be. Sessions are closed, the one that was not used for longest
    /// first, when what they pin is over the bound by itself.
    pub fn settle(&mut self) {
        for segment in self.store.note_lost() {
            self.forget(segment);
        }
        while self.store.ram_bytes() > self.capacity_bytes {
            let pinned = self.evict();
            let pinned_bytes: u64 = pinned.iter().map(|&segment| self.store.in_ram(segment)).sum();
            if pinned_bytes <= self.capacity_bytes || !self.close_oldest_of(&pinned) {
                return;
            }
        }
    }

    /// Evicts without closing sessions. What is left in RAM that only sessions hold.
    fn evict(&mut self) -> HashSet<SegmentId> {
        let mut pinned = HashSet::new();
        for (segment, claim) in self.tree.eviction_order() {
            let goes = match claim {
                Claim::None => true,
                Claim::Session => self.store.is_cold(segment),
                Claim::Sequence => false,
            };
            if self.store.in_ram(segment) == 0 {
                continue;
            }
            if goes && self.store.ram_bytes() > self.capacity_bytes {
                // Segments below a gap are used again once the gap was computed.
                if !self.store.evict(segment) {
                    self.tree.drop_segment(segment);
                }
            } else if claim == Claim::Session {
                pinned.insert(segment);
            }
        }
        pinned
    }

    /// Closes the session that was not used for longest, of those that pin one of these; false without any.
    fn close_oldest_of(&mut self, segments: &HashSet<SegmentId>) -> bool {
        let tree = &self.tree;
        let pins = |leaf| tree.path(leaf).any(|piece| piece.segment.is_some_and(|segment| segments.contains(&segment)));
        self.sessions.oldest(pins).is_some_and(|key| self.close(&key))
    }

    /// Whether the books add up.
    pub fn check(&self) -> bool {
        self.store.check() && self.tree.check()
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
