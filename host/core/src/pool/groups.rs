//! Which requests belong together: the choices of one HTTP request, and the requests of one session of a tenant.
use std::collections::{BTreeSet, HashMap};

use crate::ids::{RequestId, SessionId, TenantId};
use crate::message::Start;
use crate::segments::Namespace;

/// Sessions without a request that are kept.
const IDLE: usize = 16_384;

/// Where a request belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Membership {
    /// It is a choice of the HTTP request whose first choice this is.
    Choices(RequestId),
    Session {
        number: u64,
        /// Earlier HTTP requests of the session.
        turns: u32,
    },
}

impl Membership {
    /// Never 0, and never the same for a session and an HTTP request.
    pub(super) fn group(self) -> u64 {
        match self {
            Self::Choices(first) => first.0.wrapping_mul(2) | 1,
            Self::Session { number, .. } => number.wrapping_add(1).wrapping_mul(2),
        }
    }

    pub(super) fn turns(self) -> u32 {
        match self {
            Self::Choices(_) => 0,
            Self::Session { turns, .. } => turns,
        }
    }
}

/// Clients choose the names of their sessions, so a name counts only within its tenant and namespace.
type Name = (TenantId, Namespace, SessionId);

/// A number for each session. It is the session's for as long as it has requests, and then until as many others as are kept have
/// become idle after it. Numbers are not used again.
#[derive(Debug, Clone, Default)]
pub(super) struct Groups {
    numbers: HashMap<Name, u64>,
    sessions: HashMap<u64, Session>,
    /// Those without requests, by the turn in which they became idle.
    idle: BTreeSet<(u64, u64)>,
    next: u64,
    idled: u64,
}

#[derive(Debug, Clone)]
struct Session {
    name: Name,
    /// Its choices that have not ended.
    live: usize,
    /// The first choice of its last HTTP request.
    last: RequestId,
    turns: u32,
    /// When it became idle, while it has no requests.
    since: u64,
}

impl Groups {
    /// A request arrives.
    pub(super) fn enter(&mut self, start: &Start, first_choice: RequestId) -> Membership {
        let Some(session) = &start.session else { return Membership::Choices(first_choice) };
        let name = (start.tenant.clone(), start.root(), session.clone());
        let number = *self.numbers.entry(name.clone()).or_insert(self.next);
        self.next += u64::from(number == self.next);
        let new = || Session { name, live: 0, last: first_choice, turns: 0, since: 0 };
        let session = self.sessions.entry(number).or_insert_with(new);
        if session.live == 0 {
            self.idle.remove(&(session.since, number));
        }
        if session.last != first_choice {
            session.turns = session.turns.saturating_add(1);
        }
        (session.last, session.live) = (first_choice, session.live + 1);
        Membership::Session { number, turns: session.turns }
    }

    /// A request has ended.
    pub(super) fn leave(&mut self, membership: Membership) {
        let Membership::Session { number, .. } = membership else { return };
        let Some(session) = self.sessions.get_mut(&number) else { return };
        session.live = session.live.saturating_sub(1);
        if session.live > 0 {
            return;
        }
        self.idled += 1;
        session.since = self.idled;
        self.idle.insert((self.idled, number));
        if self.idle.len() > IDLE
            && let Some((_, oldest)) = self.idle.pop_first()
            && let Some(session) = self.sessions.remove(&oldest)
        {
            self.numbers.remove(&session.name);
        }
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
