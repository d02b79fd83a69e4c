//! The prefix cache of one worker: the prefix tree, the saved segments, and the sessions that pin them.
mod eviction;
mod sessions;
mod store;

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::counters::WorkerCounters;
use crate::ids::{RequestId, SessionId};
use crate::message::OpenSession;
use crate::prefix::{NodeId, PrefixTree};
use crate::segments::{ColdTier, Namespace, SegmentId, SegmentInfo, State};

use eviction::{Entry, EvictionIndex, Victim};
use sessions::Sessions;
use store::SegmentStore;

/// Segments that leave RAM or the tree at one time. The others follow in later steps, so that no step takes long.
const MAX_EVICTED: usize = 256;
/// Sessions that are closed at one time because RAM is full.
const MAX_CLOSED: usize = 16;
/// How many times in the life of a session the clock of the tree is noted.
const AGES: u32 = 8;

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
    index: EvictionIndex,
    capacity_bytes: u64,
    sessions: Sessions,
    /// Times with the tree's clock at each, oldest first: what was last used before the first one is stale.
    ages: VecDeque<(Duration, u64)>,
    /// More has to leave RAM or the tree than one step may take.
    has_backlog: bool,
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
            index: EvictionIndex::default(),
            capacity_bytes,
            sessions: Sessions::default(),
            ages: VecDeque::new(),
            has_backlog: false,
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
        let ttl = self.sessions.ttl();
        if self.ages.back().is_none_or(|&(noted, _)| now >= noted.saturating_add(ttl / AGES)) {
            self.ages.push_back((now, self.tree.clock()));
        }
        while self.ages.get(1).is_some_and(|&(noted, _)| noted.saturating_add(ttl) <= now) {
            self.ages.pop_front();
        }
        if self.has_backlog {
            self.enforce_limits();
        }
    }

    /// The tree's clock one session's life ago: what was last used before has not been used for that long.
    fn stale(&self) -> u64 {
        let (Some(&(first, clock)), Some(&(last, _))) = (self.ages.front(), self.ages.back()) else { return 0 };
        if first.saturating_add(self.sessions.ttl()) <= last { clock } else { 0 }
    }

    /// Ends the running sequence `from` and pins the path to `leaf` for a session, in place of what it pinned before.
    pub fn pin(&mut self, namespace: &Namespace, session: &SessionId, leaf: NodeId, from: RequestId) {
        self.tree.pin(leaf, from);
        let key = (namespace.clone(), session.clone());
        self.close(&key);
        if self.sessions.is_full()
            && let Some(oldest) = self.sessions.oldest_of_most()
        {
            self.close(&oldest);
        }
        self.sessions.open(key, leaf);
    }

    /// Closes a session: what it pinned may be evicted. Returns false without such a session.
    pub fn close_session(&mut self, namespace: &Namespace, session: &SessionId) -> bool {
        self.close(&(namespace.clone(), session.clone()))
    }

    /// The open sessions of a whole namespace, the next to expire first.
    pub fn list_sessions(&self, owner: &Namespace) -> Vec<OpenSession> {
        let one = |((namespace, session), leaf, expires_in): (&sessions::SessionKey, NodeId, Duration)| OpenSession {
            session: session.clone(),
            namespace: namespace.clone(),
            tokens: self.tree.piece(leaf).end,
            expires_in,
        };
        self.sessions.of_owner(owner).map(one).collect()
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

    /// Stores a copy of the KV entries of nodes that follow each other, as a new segment. The nodes must not have one.
    pub fn store(&mut self, nodes: &[NodeId], namespace: &Namespace, state: Vec<u8>) {
        let (Some(&first), Some(&last)) = (nodes.first(), nodes.last()) else { return };
        let segment = self.store.next_id();
        nodes.iter().for_each(|&node| self.tree.set_segment(node, segment));
        let tree = &self.tree;
        let info = || {
            let (tokens, start) = (tree.tokens(last).into(), tree.piece(first).start);
            SegmentInfo { namespace: namespace.clone(), tokens, start }
        };
        self.store.put(segment, info, state);
        self.reindex(segment, namespace);
    }

    /// Loads a segment's bytes, as they were stored. Removes the segment if it is missing or damaged.
    pub fn load(&mut self, segment: SegmentId, namespace: &Namespace) -> Option<State> {
        let state = self.store.get(segment);
        match state {
            Some(_) => self.reindex(segment, namespace),
            None => self.remove(segment),
        }
        state
    }

    fn remove(&mut self, segment: SegmentId) {
        self.store.remove(segment);
        self.index.remove(segment);
        self.tree.drop_segment(segment);
    }

    /// Brings the index up to date about a segment.
    fn reindex(&mut self, segment: SegmentId, namespace: &Namespace) {
        let bytes = self.store.ram_bytes_of(segment);
        match self.tree.rank(segment) {
            Some(rank) if bytes > 0 => {
                // Adapters make no further share of a namespace.
                let (namespace, cold) = (namespace.owner().clone(), self.store.is_cold(segment));
                self.index.set(segment, Entry { namespace, bytes, rank, cold });
            }
            _ => self.index.remove(segment),
        }
    }

    fn reindex_changed(&mut self) {
        for segment in self.tree.take_changed() {
            if let Some(namespace) = self.index.namespace_of(segment).cloned() {
                self.reindex(segment, &namespace);
            }
        }
    }

    /// Removes segments that the cold tier lost, and evicts until RAM is within its bound: at most so much at a time that no step
    /// takes long. [`PrefixCache::tick`] goes on with the rest.
    ///
    /// The namespace that holds the most gives. Its segments without a holder are evicted first, least recently used
    /// first; then those that sessions pin and the cold tier also has. If the segments that its sessions pin exceed its
    /// share by themselves, sessions are closed, least recently used first. Segments that sequences need are never
    /// evicted, even above the bound.
    pub fn enforce_limits(&mut self) {
        for segment in self.store.take_lost(MAX_EVICTED) {
            match self.index.namespace_of(segment).cloned() {
                Some(namespace) => self.reindex(segment, &namespace),
                None => self.remove(segment),
            }
        }
        self.has_backlog = self.store.has_lost();
        let (stale, mut evicted, mut closed) = (self.stale(), 0, 0);
        self.reindex_changed();
        while self.store.ram_bytes() > self.capacity_bytes {
            let Some(victim) = self.index.victim(self.capacity_bytes, stale) else { return };
            if evicted == MAX_EVICTED || closed == MAX_CLOSED {
                self.has_backlog = true;
                return;
            }
            match victim {
                Victim::Segment(segment) => {
                    evicted += 1;
                    self.index.remove(segment);
                    // Segments below this one stay: they are of use again once a request has recomputed the gap.
                    if !self.store.evict(segment) {
                        self.tree.drop_segment(segment);
                    }
                }
                Victim::SessionOf(namespace) => {
                    closed += 1;
                    if !self.close_oldest_of(&namespace) {
                        return;
                    }
                    self.reindex_changed();
                }
            }
        }
    }

    /// Whether more has to leave RAM or the tree: [`PrefixCache::tick`] should be called again, although nothing runs.
    pub fn has_backlog(&self) -> bool {
        self.has_backlog
    }

    /// Closes the least recently used session of a namespace that pins any segment in RAM. Returns false if there is none.
    fn close_oldest_of(&mut self, namespace: &Namespace) -> bool {
        let (tree, index) = (&self.tree, &self.index);
        let pins = |leaf| tree.path(leaf).any(|piece| piece.segment.is_some_and(|segment| index.is_pinned(segment)));
        self.sessions.oldest_of(namespace, pins).is_some_and(|key| self.close(&key))
    }

    /// Whether the store and the tree are consistent.
    pub fn check(&self) -> bool {
        self.store.check() && self.tree.check() && self.index.check()
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
