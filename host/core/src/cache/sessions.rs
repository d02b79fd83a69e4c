//! The sessions of one worker: what each pins, and when it expires.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::ids::SessionId;
use crate::prefix::NodeId;
use crate::segments::Namespace;

/// Bound of a worker's sessions. Past it, a new session closes the least recently used one of the namespace that has the
/// most.
const MAX_SESSIONS: usize = 1024;
/// Sessions that expire at one time; the others do at the next.
const MAX_EXPIRED: usize = 64;
const DEFAULT_TTL: Duration = Duration::from_secs(600);

/// A session's name, in the namespace of its owner, or the part of it that is computed under the same adapters.
pub(super) type SessionKey = (Namespace, SessionId);

#[derive(Debug)]
struct Session {
    /// The session pins the path up to this node.
    leaf: NodeId,
    /// Time since the worker's start.
    expires: Duration,
}

/// Open sessions.
#[derive(Debug)]
pub(super) struct Sessions {
    open: HashMap<SessionKey, Session>,
    by_expiry: BTreeSet<(Duration, SessionKey)>,
    /// Of each whole namespace that has any, by expiry.
    by_owner: BTreeMap<Namespace, BTreeSet<(Duration, SessionKey)>>,
    ttl: Duration,
    now: Duration,
}

impl Default for Sessions {
    fn default() -> Self {
        let (by_expiry, by_owner) = (BTreeSet::new(), BTreeMap::new());
        Self { open: HashMap::new(), by_expiry, by_owner, ttl: DEFAULT_TTL, now: Duration::ZERO }
    }
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= MAX_SESSIONS
    }

    pub(super) fn ttl(&self) -> Duration {
        self.ttl
    }

    /// Applies to sessions that are opened or used from now on.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    /// Opens a session that is not open.
    pub(super) fn open(&mut self, key: SessionKey, leaf: NodeId) {
        let expires = self.now + self.ttl;
        self.by_owner.entry(key.0.owner().clone()).or_default().insert((expires, key.clone()));
        self.by_expiry.insert((expires, key.clone()));
        self.open.insert(key, Session { leaf, expires });
    }

    /// Removes a session and returns the node up to which it pinned; `None` without such a session.
    pub(super) fn close(&mut self, key: &SessionKey) -> Option<NodeId> {
        let Session { leaf, expires } = self.open.remove(key)?;
        self.by_expiry.remove(&(expires, key.clone()));
        if let Some(of) = self.by_owner.get_mut(key.0.owner()) {
            of.remove(&(expires, key.clone()));
            if of.is_empty() {
                self.by_owner.remove(key.0.owner());
            }
        }
        Some(leaf)
    }

    /// The sessions of a whole namespace with what each pins and when it expires, the next to expire first.
    pub(super) fn of_owner(&self, owner: &Namespace) -> impl Iterator<Item = (&SessionKey, NodeId, Duration)> {
        let keys = self.by_owner.get(owner).into_iter().flatten();
        keys.filter_map(|(expires, key)| Some((key, self.open.get(key)?.leaf, expires.saturating_sub(self.now))))
    }

    /// Sets the time since the worker's start, and returns sessions that have expired.
    pub(super) fn expired(&mut self, now: Duration) -> Vec<SessionKey> {
        self.now = now;
        let expired = self.by_expiry.iter().take_while(|(expires, _)| *expires <= now);
        expired.take(MAX_EXPIRED).map(|(_, key)| key.clone()).collect()
    }

    /// The session that expires first, of the namespace that has the most; of several such, the first to expire.
    pub(super) fn oldest_of_most(&self) -> Option<SessionKey> {
        let first = |of: &BTreeSet<(Duration, SessionKey)>| {
            let (expires, key) = of.first()?;
            Some((std::cmp::Reverse(of.len()), *expires, key.clone()))
        };
        self.by_owner.values().filter_map(first).min().map(|(_, _, key)| key)
    }

    /// The session of a whole namespace that expires first, among those whose leaf satisfies `filter`.
    pub(super) fn oldest_of(&self, owner: &Namespace, filter: impl Fn(NodeId) -> bool) -> Option<SessionKey> {
        let mut keys = self.by_owner.get(owner)?.iter().map(|(_, key)| key);
        keys.find(|key| self.open.get(*key).is_some_and(|session| filter(session.leaf))).cloned()
    }

    #[cfg(test)]
    pub(super) fn leaves(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.open.values().map(|session| session.leaf)
    }
}
