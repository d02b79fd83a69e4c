//! The prefix cache of one worker: the tree, the segments in RAM, and the tier behind them.
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{RequestId, SessionId};
use crate::prefix::{NodeId, PrefixTree};
use crate::segments::{ColdTier, Namespace, SegmentId, SegmentInfo};

/// No request: who holds a path only while it is being built.
const NOBODY: RequestId = RequestId(u64::MAX);
/// Sessions of one worker; a further one takes the place of the one that was not used for longest.
const SESSIONS: usize = 1024;
const SESSION_TTL: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Segment {
    /// `None`: only the cold tier has it.
    state: Option<Arc<[u8]>>,
    bytes: u64,
    cold: bool,
}

/// What a session keeps from being evicted: everything up to `leaf`, which it holds as a parked sequence does.
#[derive(Debug)]
struct Pinned {
    leaf: NodeId,
    until: Duration,
}

/// What the cache holds, and what left it since the beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheFacts {
    pub segments: u64,
    /// Tokens that segments keep, in RAM or behind it.
    pub tokens: u64,
    pub ram_bytes: u64,
    pub sessions: u64,
    /// Segments that left RAM for want of room.
    pub evicted_from_ram: u64,
    /// Segments that left the cold tier, for room or because they were bad.
    pub evicted_from_cold: u64,
}

/// Segments of one worker and the tree that finds them.
pub struct PrefixCache {
    pub tree: PrefixTree,
    segments: HashMap<SegmentId, Segment>,
    ram_bytes: u64,
    capacity_bytes: u64,
    next_segment: u64,
    cold: Option<Box<dyn ColdTier>>,
    sessions: HashMap<(Namespace, SessionId), Pinned>,
    session_ttl: Duration,
    now: Duration,
    evicted_from_ram: u64,
    evicted_from_cold: u64,
}

impl fmt::Debug for PrefixCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = f.debug_struct("PrefixCache");
        out.field("segments", &self.segments.len()).field("ram_bytes", &self.ram_bytes).finish_non_exhaustive()
    }
}

impl PrefixCache {
    /// `capacity_bytes` bounds the segments in RAM; those of parked sequences may go past it.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            tree: PrefixTree::default(),
            segments: HashMap::new(),
            ram_bytes: 0,
            capacity_bytes,
            next_segment: 0,
            cold: None,
            sessions: HashMap::new(),
            session_ttl: SESSION_TTL,
            now: Duration::ZERO,
            evicted_from_ram: 0,
            evicted_from_cold: 0,
        }
    }

    /// How long a session that is not used stays pinned.
    pub fn with_session_ttl(self, session_ttl: Duration) -> Self {
        Self { session_ttl, ..self }
    }

    /// Adds a tier with the segments that it has from an earlier life. What hangs in the air is removed from it.
    pub fn with_cold(mut self, mut cold: Box<dyn ColdTier>, mut found: Vec<(SegmentId, SegmentInfo)>) -> Self {
        found.sort_by_key(|(id, info)| (info.start, *id));
        for (id, info) in found {
            self.next_segment = self.next_segment.max(id.0 + 1);
            if self.adopt(id, &info) {
                self.segments.insert(id, Segment { state: None, bytes: 0, cold: true });
            } else {
                cold.remove(id);
            }
        }
        self.cold = Some(cold);
        self
    }

    /// Hangs a segment into the tree; false if what comes before it is not there, or it brings nothing new.
    fn adopt(&mut self, segment: SegmentId, info: &SegmentInfo) -> bool {
        if info.start as usize >= info.tokens.len() {
            return false;
        }
        let before = &info.tokens[..info.start as usize];
        if (self.tree.probe(&info.namespace, before).cached as usize) < before.len() {
            return false;
        }
        let leaf = self.tree.enter(&info.namespace, &info.tokens);
        let bare: Vec<NodeId> =
            self.tree.path(leaf).filter(|p| p.start >= info.start && p.segment.is_none()).map(|p| p.node).collect();
        bare.iter().for_each(|&node| self.tree.set_segment(node, segment));
        self.tree.leave(leaf, NOBODY);
        !bare.is_empty()
    }

    pub fn facts(&self) -> CacheFacts {
        CacheFacts {
            segments: self.segments.len() as u64,
            tokens: self.tree.kept_tokens(),
            ram_bytes: self.ram_bytes,
            sessions: self.sessions.len() as u64,
            evicted_from_ram: self.evicted_from_ram,
            evicted_from_cold: self.evicted_from_cold,
        }
    }

    /// Other bounds from now on. Sessions that are open keep the time they were given.
    pub fn set_limits(&mut self, capacity_bytes: u64, session_ttl: Duration) {
        (self.capacity_bytes, self.session_ttl) = (capacity_bytes, session_ttl);
        self.settle();
    }

    /// It is `now`, counted from the worker's start: sessions past their time are closed.
    pub fn tick(&mut self, now: Duration) {
        self.now = now;
        let past: Vec<_> = self.sessions.iter().filter(|(_, s)| s.until <= now).map(|(key, _)| key.clone()).collect();
        for (namespace, session) in past {
            self.close_session(&namespace, &session);
        }
    }

    /// Makes a session the holder of everything up to `leaf`, in place of a sequence that ran there and of what the
    /// session held before. What it holds is evicted after everything that no session holds.
    pub fn pin(&mut self, namespace: &Namespace, session: &SessionId, leaf: NodeId, from: RequestId) {
        self.tree.park(leaf, from);
        self.close_session(namespace, session);
        if self.sessions.len() >= SESSIONS {
            self.close_oldest();
        }
        let pinned = Pinned { leaf, until: self.now + self.session_ttl };
        self.sessions.insert((namespace.clone(), session.clone()), pinned);
    }

    /// What a session held is evicted like everything else from now on.
    pub fn close_session(&mut self, namespace: &Namespace, session: &SessionId) {
        if let Some(pinned) = self.sessions.remove(&(namespace.clone(), session.clone())) {
            self.tree.forget_parked(pinned.leaf);
        }
    }

    /// False without any.
    fn close_oldest(&mut self) -> bool {
        let oldest = self.sessions.iter().min_by_key(|(key, pinned)| (pinned.until, *key)).map(|(key, _)| key.clone());
        oldest.inspect(|(namespace, session)| self.close_session(namespace, session)).is_some()
    }

    /// Whether segments are kept at all.
    pub fn is_on(&self) -> bool {
        self.capacity_bytes > 0 || self.cold.is_some()
    }

    /// Keeps the KV entries of a node (which has no segment yet).
    pub fn store(&mut self, node: NodeId, namespace: &Namespace, state: Vec<u8>) {
        let segment = SegmentId(self.next_segment);
        self.next_segment += 1;
        let state: Arc<[u8]> = state.into();
        let bytes = state.len() as u64;
        self.tree.set_segment(node, segment);
        if let Some(cold) = &mut self.cold {
            let start = self.tree.path(node).next().map_or(0, |piece| piece.start);
            let info = SegmentInfo { namespace: namespace.clone(), tokens: self.tree.tokens(node).into(), start };
            cold.put(segment, &info, &state);
        }
        self.ram_bytes += bytes;
        self.segments.insert(segment, Segment { state: Some(state), bytes, cold: self.cold.is_some() });
    }

    /// A segment's bytes, as they were stored. A segment that turns out bad is forgotten.
    pub fn load(&mut self, segment: SegmentId) -> Option<Cow<'_, [u8]>> {
        let known = self.segments.get(&segment)?;
        if known.state.is_some() {
            return self.segments.get(&segment)?.state.as_deref().map(Cow::Borrowed);
        }
        let loaded: Option<Arc<[u8]>> = self.cold.as_mut().and_then(|cold| cold.get(segment)).map(|state| state.into());
        match loaded {
            Some(state) => {
                // Warm again: what is used once is likely to be used soon.
                self.ram_bytes += state.len() as u64;
                let known = self.segments.get_mut(&segment)?;
                known.bytes = state.len() as u64;
                known.state = Some(state);
                known.state.as_deref().map(Cow::Borrowed)
            }
            None => {
                self.evicted_from_cold += 1;
                self.forget(segment);
                None
            }
        }
    }

    /// Lets go of a segment everywhere: its bytes are not what they should be.
    pub fn forget(&mut self, segment: SegmentId) {
        if let Some(known) = self.segments.remove(&segment) {
            self.ram_bytes -= known.state.map_or(0, |_| known.bytes);
            if let Some(cold) = self.cold.as_mut().filter(|_| known.cold) {
                cold.remove(segment);
            }
        }
        self.tree.drop_segment(segment);
    }

    /// Brings RAM back under its bound, coldest first and what sessions hold last, and takes note of what the cold tier
    /// lost.
    pub fn settle(&mut self) {
        self.note_lost();
        loop {
            self.evict();
            if self.ram_bytes <= self.capacity_bytes || !self.close_oldest() {
                return;
            }
        }
    }

    fn note_lost(&mut self) {
        let mut lost = Vec::new();
        if let Some(cold) = &mut self.cold {
            cold.lost(&mut lost);
        }
        for segment in lost {
            self.evicted_from_cold += 1;
            match self.segments.get_mut(&segment) {
                Some(known) if known.state.is_some() => known.cold = false,
                Some(_) => self.forget(segment),
                None => {}
            }
        }
    }

    fn evict(&mut self) {
        if self.ram_bytes <= self.capacity_bytes {
            return;
        }
        for segment in self.tree.coldest() {
            if self.ram_bytes <= self.capacity_bytes {
                break;
            }
            let Some(known) = self.segments.get_mut(&segment).filter(|known| known.state.is_some()) else { continue };
            self.evicted_from_ram += 1;
            if known.cold {
                known.state = None;
                self.ram_bytes -= known.bytes;
            } else {
                // What may be left hanging below is used again once the gap was computed.
                self.forget(segment);
            }
        }
    }

    /// Whether the books add up.
    pub fn check(&self) -> bool {
        let ram: u64 =
            self.segments.values().filter(|segment| segment.state.is_some()).map(|segment| segment.bytes).sum();
        ram == self.ram_bytes && self.tree.check()
    }
}
