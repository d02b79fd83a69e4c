//! The sessions of one worker: what each of them pins, and until when.
use std::collections::HashMap;
use std::time::Duration;

use crate::ids::SessionId;
use crate::prefix::NodeId;
use crate::segments::Namespace;

/// Sessions of one worker; a further one takes the place of the one that was not used for longest.
const MAX_SESSIONS: usize = 1024;
const DEFAULT_TTL: Duration = Duration::from_secs(600);

pub(super) type Key = (Namespace, SessionId);

#[derive(Debug)]
struct Session {
    /// The session pins everything up to this node.
    leaf: NodeId,
    until: Duration,
}

/// Open sessions, by whose they are.
#[derive(Debug)]
pub(super) struct Sessions {
    open: HashMap<Key, Session>,
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

    /// For sessions that are used from now on.
    pub(super) fn set_ttl(&mut self, ttl: Duration) {
        self.ttl = ttl;
    }

    pub(super) fn open(&mut self, key: Key, leaf: NodeId) {
        self.open.insert(key, Session { leaf, until: self.now + self.ttl });
    }

    /// What the session pinned; `None` without such a session.
    pub(super) fn close(&mut self, key: &Key) -> Option<NodeId> {
        self.open.remove(key).map(|session| session.leaf)
    }

    /// It is `now`, counted from the worker's start. The sessions that expired.
    pub(super) fn expired(&mut self, now: Duration) -> Vec<Key> {
        self.now = now;
        self.open.iter().filter(|(_, session)| session.until <= now).map(|(key, _)| key.clone()).collect()
    }

    /// The session that was not used for longest, of those whose leaf is as asked for.
    pub(super) fn oldest(&self, mut is_wanted: impl FnMut(NodeId) -> bool) -> Option<Key> {
        let wanted = self.open.iter().filter(|(_, session)| is_wanted(session.leaf));
        wanted.min_by_key(|(key, session)| (session.until, *key)).map(|(key, _)| key.clone())
    }

    #[cfg(test)]
    pub(super) fn leaves(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.open.values().map(|session| session.leaf)
    }
}
