//! What the connections of a listener hold in memory besides the bodies of requests: the heads of requests in flight, and
//! the parts of responses that are not written yet.
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use camshaft_core::ids::TenantId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What a request in flight takes besides its body: by itself, and for each header; and how often its head is held.
const REQUEST_BYTES: usize = 20 << 10;
const HEADER_BYTES: usize = 400;
const HEAD_COPIES: usize = 4;
/// What the trailers of an HTTP/2 request take at most: in 16 KiB by HTTP/2's count, which is 32 bytes and its text for each,
/// there may be 480 of them with short names.
pub(crate) const TRAILERS_BYTES: usize = 112 << 10;
/// Connections between which at least all is divided: where too much is held, one may hold its share.
const CONNECTIONS: usize = 1024;
/// The least that a connection may hold in any case: an HTTP/2 request with the largest head.
const SHARE_LEAST: usize = 128 << 10;
/// As many tenants may hold all together; strangers are one.
const TENANTS: usize = 2;
/// What a refused request takes, of which only the answer is left.
pub(crate) const REFUSED_BYTES: usize = 2 << 10;
/// How often the limit may be held while connections are cut, which takes a moment.
const MOST: usize = 2;
/// How often the log is told that connections are cut.
const TELL: Duration = Duration::from_secs(1);
/// What part of a response takes besides its bytes.
const PIECE_BYTES: usize = 512;

/// What a request with this many headers, and bytes of head, takes.
pub(crate) fn of_request(headers: usize, bytes: usize) -> usize {
    REQUEST_BYTES + headers * HEADER_BYTES + bytes * HEAD_COPIES
}

/// What part of a response takes until it is written.
pub(crate) fn of_piece(bytes: usize) -> usize {
    PIECE_BYTES + bytes
}

/// Bytes that all connections of a listener hold, and how many they may.
#[derive(Debug)]
pub(crate) struct Held {
    limit: usize,
    /// What a connection may hold in any case.
    share: usize,
    bytes: AtomicUsize,
    strangers: Arc<Account>,
    tenants: Mutex<HashMap<TenantId, Weak<Account>>>,
    /// Told when they are too many.
    exceeded: Notify,
    cuts: Mutex<Cuts>,
}

/// Connections that were cut because of what they hold.
#[derive(Debug, Default)]
struct Cuts {
    /// Since the log was told last.
    untold: usize,
    told: Option<Instant>,
}

/// What becomes of a request whose head has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    Served,
    /// It is answered with 503, and its head is gone.
    Refused,
    /// The connection ends.
    Cut,
}

/// Bytes that the connections of one tenant hold, or those of strangers.
#[derive(Debug, Default)]
pub(crate) struct Account(AtomicUsize);

/// Of a limit: what the connections of one tenant may hold, or those of strangers.
pub(crate) fn tenants_part(limit: usize) -> usize {
    limit / TENANTS
}

impl Held {
    /// For so many connections.
    pub(crate) fn new(limit: usize, connections: usize) -> Self {
        Self {
            limit,
            share: (limit / connections.max(CONNECTIONS)).max(SHARE_LEAST),
            bytes: AtomicUsize::new(0),
            strangers: Arc::default(),
            tenants: Mutex::default(),
            exceeded: Notify::new(),
            cuts: Mutex::default(),
        }
    }

    pub(crate) fn of_strangers(&self) -> Arc<Account> {
        self.strangers.clone()
    }

    /// The account of a tenant. It is gone with the last connection that has it.
    pub(crate) fn of_tenant(&self, tenant: &TenantId) -> Arc<Account> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(account) = tenants.get(tenant).and_then(Weak::upgrade) {
            return account;
        }
        tenants.retain(|_, account| account.strong_count() > 0);
        let account = Arc::<Account>::default();
        tenants.insert(tenant.clone(), Arc::downgrade(&account));
        account
    }

    pub(crate) fn add(&self, bytes: usize, account: &Account) {
        account.0.fetch_add(bytes, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_exceeded() {
            self.exceeded.notify_one();
        }
    }

    pub(crate) fn remove(&self, bytes: usize, account: &Account) {
        account.0.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// What may come counts with all, but in no account: an honest client sends its body at once, and holds this for a moment.
    pub(crate) fn add_room(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        if self.is_exceeded() {
            self.exceeded.notify_one();
        }
    }

    pub(crate) fn remove_room(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether all hold too much, or strangers.
    fn is_exceeded(&self) -> bool {
        self.bytes() > self.limit || self.strangers.0.load(Ordering::Relaxed) > tenants_part(self.limit)
    }

    /// What becomes of another request of a connection that holds `own` bytes, and `rooms` for what may come, which count where
    /// all is full. Cutting connections from outside takes a moment, in which a thousand of them could begin many requests
    /// each. Nobody keeps others from beginning theirs.
    pub(crate) fn admission(&self, own: usize, rooms: usize, account: &Account) -> Admission {
        let is_full = self.bytes() > self.limit.saturating_mul(MOST);
        let has_room = account.0.load(Ordering::Relaxed) <= tenants_part(self.limit) && !is_full;
        let own = own + if is_full { rooms } else { 0 };
        if own <= self.share || has_room {
            Admission::Served
        } else if own <= 2 * self.share {
            Admission::Refused
        } else {
            Admission::Cut
        }
    }

    /// Another connection is cut. How many were cut since the log was told last, if it is to be told again: once a second,
    /// however many there are.
    pub(crate) fn cut(&self, now: Instant) -> Option<usize> {
        let mut cuts = self.cuts.lock().unwrap_or_else(PoisonError::into_inner);
        cuts.untold += 1;
        if cuts.told.is_some_and(|told| now.saturating_duration_since(told) < TELL) {
            return None;
        }
        cuts.told = Some(now);
        Some(std::mem::take(&mut cuts.untold))
    }

    /// Waits until more is held than may be.
    pub(crate) async fn exceeded(&self) {
        while !self.is_exceeded() {
            self.exceeded.notified().await;
        }
    }
}

impl Default for Held {
    /// Without a limit.
    fn default() -> Self {
        Self::new(usize::MAX, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_may_hold_its_share_and_no_less_than_a_request_with_the_largest_head() {
        for (limit, connections, share) in [
            (256 << 20, 1, 256 << 10),
            (256 << 20, CONNECTIONS, 256 << 10),
            (256 << 20, 2 * CONNECTIONS, SHARE_LEAST),
            (256 << 20, 2 * CONNECTIONS + 1, SHARE_LEAST),
        ] {
            let held = Held::new(limit, connections);
            let account = Account::default();
            held.add(tenants_part(limit) + 1, &account);
            let admission = |own| held.admission(own, 2 * share + 1, &account);
            let [at, past] = [share, 2 * share].map(|own| (admission(own), admission(own + 1)));
            assert_eq!(at, (Admission::Served, Admission::Refused), "{connections} connections");
            assert_eq!(past, (Admission::Refused, Admission::Cut), "{connections} connections");
            held.remove(1, &account);
            assert_eq!(admission(usize::MAX), Admission::Served, "its account has room");
            held.add_room(MOST * limit - held.bytes());
            assert_eq!(admission(0), Admission::Served, "at the bound of all");
            held.add_room(1);
            assert_eq!(admission(0), Admission::Cut, "past it, what may come counts");
            assert_eq!(held.admission(0, 0, &account), Admission::Served, "nobody else is kept from beginning");
        }
    }

    #[test]
    fn regression_the_log_is_told_of_cuts_once_a_second() {
        let (held, begun) = (Held::default(), Instant::now());
        assert_eq!(held.cut(begun), Some(1));
        assert_eq!(held.cut(begun), None);
        assert_eq!(held.cut(begun + TELL - Duration::from_nanos(1)), None);
        assert_eq!(held.cut(begun + TELL), Some(3));
    }
}
