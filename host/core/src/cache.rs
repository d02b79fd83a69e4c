//! The prefix cache of one worker: the tree, the pages in RAM, and the tier behind them.
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{RequestId, SessionId};
use crate::pages::{ColdTier, Namespace, PageId, PageInfo};
use crate::prefix::{NodeId, PrefixTree};

/// No request: who holds a path only while it is being built.
const NOBODY: RequestId = RequestId(u64::MAX);
/// Sessions of one worker; a further one takes the place of the one that was not used for longest.
const SESSIONS: usize = 1024;
const SESSION_TTL: Duration = Duration::from_secs(600);

#[derive(Debug)]
struct Page {
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
    pub pages: u64,
    /// Tokens that pages keep, in RAM or behind it.
    pub tokens: u64,
    pub ram_bytes: u64,
    pub sessions: u64,
    /// Pages that left RAM for want of room.
    pub evicted_from_ram: u64,
    /// Pages that left the cold tier, for room or because they were bad.
    pub evicted_from_cold: u64,
}

/// Pages of one worker and the tree that finds them.
pub struct PrefixCache {
    pub tree: PrefixTree,
    pages: HashMap<PageId, Page>,
    ram_bytes: u64,
    capacity_bytes: u64,
    next_page: u64,
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
        out.field("pages", &self.pages.len()).field("ram_bytes", &self.ram_bytes).finish_non_exhaustive()
    }
}

impl PrefixCache {
    /// `capacity_bytes` bounds the pages in RAM; those of parked sequences may go past it.
    pub fn new(capacity_bytes: u64) -> Self {
        Self {
            tree: PrefixTree::default(),
            pages: HashMap::new(),
            ram_bytes: 0,
            capacity_bytes,
            next_page: 0,
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

    /// Adds a tier with the pages that it has from an earlier life. What hangs in the air is removed from it.
    pub fn with_cold(mut self, mut cold: Box<dyn ColdTier>, mut found: Vec<(PageId, PageInfo)>) -> Self {
        found.sort_by_key(|(id, info)| (info.start, *id));
        for (id, info) in found {
            self.next_page = self.next_page.max(id.0 + 1);
            if self.adopt(id, &info) {
                self.pages.insert(id, Page { state: None, bytes: 0, cold: true });
            } else {
                cold.remove(id);
            }
        }
        self.cold = Some(cold);
        self
    }

    /// Hangs a page into the tree; false if what comes before it is not there, or it brings nothing new.
    fn adopt(&mut self, page: PageId, info: &PageInfo) -> bool {
        if info.start as usize >= info.tokens.len() {
            return false;
        }
        let before = &info.tokens[..info.start as usize];
        if (self.tree.probe(&info.namespace, before).cached as usize) < before.len() {
            return false;
        }
        let leaf = self.tree.enter(&info.namespace, &info.tokens);
        let bare: Vec<NodeId> =
            self.tree.path(leaf).filter(|p| p.start >= info.start && p.page.is_none()).map(|p| p.node).collect();
        bare.iter().for_each(|&node| self.tree.set_page(node, page));
        self.tree.leave(leaf, NOBODY);
        !bare.is_empty()
    }

    pub fn facts(&self) -> CacheFacts {
        CacheFacts {
            pages: self.pages.len() as u64,
            tokens: self.tree.paged(),
            ram_bytes: self.ram_bytes,
            sessions: self.sessions.len() as u64,
            evicted_from_ram: self.evicted_from_ram,
            evicted_from_cold: self.evicted_from_cold,
        }
    }

    /// Other bounds from now on. Sessions that are open keep the time they were given.
    pub fn set_room(&mut self, capacity_bytes: u64, session_ttl: Duration) {
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

    /// Whether pages are kept at all.
    pub fn is_on(&self) -> bool {
        self.capacity_bytes > 0 || self.cold.is_some()
    }

    /// Keeps the cells of a node (which has no page yet).
    pub fn store(&mut self, node: NodeId, namespace: &Namespace, state: Vec<u8>) {
        let page = PageId(self.next_page);
        self.next_page += 1;
        let state: Arc<[u8]> = state.into();
        let bytes = state.len() as u64;
        self.tree.set_page(node, page);
        if let Some(cold) = &mut self.cold {
            let start = self.tree.path(node).next().map_or(0, |piece| piece.start);
            let info = PageInfo { namespace: namespace.clone(), tokens: self.tree.tokens(node).into(), start };
            cold.put(page, &info, &state);
        }
        self.ram_bytes += bytes;
        self.pages.insert(page, Page { state: Some(state), bytes, cold: self.cold.is_some() });
    }

    /// A page's bytes, as they were stored. A page that turns out bad is forgotten.
    pub fn load(&mut self, page: PageId) -> Option<Cow<'_, [u8]>> {
        let known = self.pages.get(&page)?;
        if known.state.is_some() {
            return self.pages.get(&page)?.state.as_deref().map(Cow::Borrowed);
        }
        let loaded: Option<Arc<[u8]>> = self.cold.as_mut().and_then(|cold| cold.get(page)).map(|state| state.into());
        match loaded {
            Some(state) => {
                // Warm again: what is used once is likely to be used soon.
                self.ram_bytes += state.len() as u64;
                let known = self.pages.get_mut(&page)?;
                known.bytes = state.len() as u64;
                known.state = Some(state);
                known.state.as_deref().map(Cow::Borrowed)
            }
            None => {
                self.evicted_from_cold += 1;
                self.forget(page);
                None
            }
        }
    }

    /// Lets go of a page everywhere: its bytes are not what they should be.
    pub fn forget(&mut self, page: PageId) {
        if let Some(known) = self.pages.remove(&page) {
            self.ram_bytes -= known.state.map_or(0, |_| known.bytes);
            if let Some(cold) = self.cold.as_mut().filter(|_| known.cold) {
                cold.remove(page);
            }
        }
        self.tree.drop_page(page);
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
        for page in lost {
            self.evicted_from_cold += 1;
            match self.pages.get_mut(&page) {
                Some(known) if known.state.is_some() => known.cold = false,
                Some(_) => self.forget(page),
                None => {}
            }
        }
    }

    fn evict(&mut self) {
        if self.ram_bytes <= self.capacity_bytes {
            return;
        }
        for page in self.tree.coldest() {
            if self.ram_bytes <= self.capacity_bytes {
                break;
            }
            let Some(known) = self.pages.get_mut(&page).filter(|known| known.state.is_some()) else { continue };
            self.evicted_from_ram += 1;
            if known.cold {
                known.state = None;
                self.ram_bytes -= known.bytes;
            } else {
                // What may be left hanging below is used again once the gap was computed.
                self.forget(page);
            }
        }
    }

    /// Whether the books add up.
    pub fn check(&self) -> bool {
        let ram: u64 = self.pages.values().filter(|page| page.state.is_some()).map(|page| page.bytes).sum();
        ram == self.ram_bytes && self.tree.check()
    }
}
