//! The sessions of one worker: what each pins, and when it expires.
use std::collections::HashMap;
use std::time::Duration;

use crate::ids::SessionId;
use crate::prefix::NodeId;
use crate::segments::Namespace;

/// Bound of a worker's sessions. Past it, a new session closes the least recently used one.
const MAX_SESSIONS: usize = 1024;
const DEFAULT_TTL: Duration = Duration::from_secs(600);

/// A session's name, in the namespace of its owner.
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
    ttl: Duration,
    now: Duration,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { open: HashMap::new(), ttl: DEFAULT_TTL, now: Duration::ZERO }
    }
}

impl Sessions {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.open.len() >= MAX_SESSIONS
    }

    /// Applies to sessions that are opened or used from now on.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    pub(super) fn open(&mut self, key: SessionKey, leaf: NodeId) {
        self.open.insert(key, Session { leaf, expires: self.now + self.ttl });
    }

    /// Removes a session and returns the node up to which it pinned; `None` without such a session.
    pub(super) fn close(&mut self, key: &SessionKey) -> Option<NodeId> {
        self.open.remove(key).map(|session| session.leaf)
    }

    /// Sets the time since the worker's start, and returns the sessions that have expired.
    pub(super) fn expired(&mut self, now: Duration) -> Vec<SessionKey> {
        self.now = now;
        self.open.iter().filter(|(_, session)| session.expires <= now).map(|(key, _)| key.clone()).collect()
    }

    /// The session that expires first, among those whose leaf satisfies `filter`.
    pub(super) fn oldest(&self, mut filter: impl FnMut(NodeId) -> bool) -> Option<SessionKey> {
        let matching = self.open.iter().filter(|(_, session)| filter(session.leaf));
        matching.min_by_key(|(key, session)| (session.expires, *key)).map(|(key, _)| key.clone())
    }

    #[cfg(test)]
    pub(super) fn leaves(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.open.values().map(|session| session.leaf)
    }
}
