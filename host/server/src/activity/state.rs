//! What is known of a connection, and what follows from it: until when it may go on, why it may have to make room.
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;
use tokio::time::Instant;

use crate::held::Account;

/// From the decision to close a connection to its end, unless the client still asks or reads.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(1);
/// When a connection may be closed because another one needs its place: after so long without any request, after so long
/// from its beginning, or from its first request's, if nobody was let in, and if its client has taken nothing, or sent no
/// whole request, for so long. The tenant with the most connections has less time (`crowd`).
pub(crate) const QUIET: Duration = Duration::from_secs(1);
pub(crate) const STRANGE: Duration = Duration::from_secs(2);
pub(super) const STALLED: Duration = Duration::from_secs(5);
pub(super) const ARRIVING: Duration = Duration::from_secs(5);

/// A client that takes less is slow.
pub(super) const SLOW_BYTES_A_SECOND: u64 = 16 << 10;

/// Limits of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ConnectionTimes {
    /// From the connection to the end of its first request's head, and from the first byte of a later head to its end.
    pub(crate) header: Duration,
    /// From the end of a response to the first byte of the next request; over HTTP/2 to the next request's head.
    pub(crate) idle: Duration,
    /// From the last part of a response that the client took.
    pub(crate) stall: Duration,
}

impl ConnectionTimes {
    pub(crate) fn shortest(&self) -> Duration {
        self.header.min(self.idle).min(self.stall)
    }
}

/// Why a connection may have to make room: those that come first are missed least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Claim {
    /// It was asked to close before, and has not ended.
    Closing,
    /// Nobody on it was ever let in, whatever it does.
    Strange,
    Quiet,
    /// It takes nothing of its responses.
    Stalled,
    /// The server works on a request, which it finishes first. Asked only of whoever has the most connections.
    Working,
    /// All of its requests still arrive: the server waits for their bodies.
    Arriving,
}

/// What is known of an HTTP/1 request whose client sends nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The client awaits no answer, or speaks HTTP/2, where the end of the stream of bytes ends everything.
    Nothing,
    /// Part of the request is missing, or not yet taken from the connection's buffer.
    Rest,
    /// The request has arrived; its response has not begun.
    Answer,
    /// The response has begun, and the server works on the rest.
    More,
    /// The response has begun, and the client does not have all of it.
    End,
}

/// Pieces for which a connection keeps memory when none is on its way.
const FEW_PIECES: usize = 16;

#[derive(Debug)]
pub(super) struct State {
    pub(super) http2: bool,
    pub(super) accepted: Instant,
    /// Requests whose heads have arrived.
    begun_requests: u64,
    /// When the head of the last one arrived.
    pub(super) begun: Instant,
    /// Requests whose responses have not been passed to the connection whole.
    open: usize,
    /// Of the open ones: those whose next step is the server's.
    pub(super) working: usize,
    /// Of the open ones: those whose bodies have not arrived.
    pub(super) arriving: usize,
    /// Of the open ones: those whose responses have begun.
    pub(super) answered: usize,
    /// Pieces of responses that the connection has not written yet: when some of each was last written. Whole responses may
    /// be one piece.
    pieces: Slab<Instant>,
    /// Whether part of a piece was written and not flushed: TLS may hold it.
    pub(super) unflushed: bool,
    /// When a response last moved.
    pub(super) moved: Instant,
    /// Since the connection was quiet: bytes of responses that were written, how long the server worked, and since when it
    /// works, while it does.
    pub(super) written: u64,
    worked: Duration,
    works_since: Instant,
    /// Since when the connection is quiet, or since when it is not.
    pub(super) since: Instant,
    /// The first byte since it is quiet.
    heard: Option<Instant>,
    /// What it holds in memory: heads of open requests, and pieces.
    pub(super) held: usize,
    /// For trailers that may come.
    pub(super) rooms: usize,
    /// Where the first counts.
    pub(super) account: Arc<Account>,
    /// Whether that is with strangers.
    pub(super) is_strange: bool,
    pub(super) ending: Option<Ending>,
    /// Whether the client may still be sending when the connection ends.
    pub(super) unread: bool,
}

/// How a connection ends that does not end by itself, and when that was decided.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ending {
    /// Once it is quiet.
    Asked(Instant),
    /// Whatever it does.
    Cut(Instant),
}

impl Ending {
    fn at(self) -> Instant {
        match self {
            Self::Asked(at) | Self::Cut(at) => at,
        }
    }
}

impl State {
    pub(super) fn new(now: Instant, account: Arc<Account>) -> Self {
        Self {
            http2: false,
            accepted: now,
            begun_requests: 0,
            begun: now,
            open: 0,
            working: 0,
            arriving: 0,
            answered: 0,
            pieces: Slab::new(),
            unflushed: false,
            moved: now,
            written: 0,
            worked: Duration::ZERO,
            works_since: now,
            since: now,
            heard: None,
            held: 0,
            rooms: 0,
            account,
            is_strange: true,
            ending: None,
            unread: false,
        }
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.open == 0 && self.pieces.is_empty() && !self.unflushed
    }

    pub(super) fn was_cut(&self) -> bool {
        matches!(self.ending, Some(Ending::Cut(_)))
    }

    /// A request's head has arrived.
    pub(super) fn begin(&mut self, http2: bool, now: Instant) {
        self.wake(now);
        self.http2 = http2;
        self.begun = now;
        self.begun_requests += 1;
        self.open += 1;
        self.servers_turn(now);
        self.arriving += 1;
    }

    /// The server works on one more request.
    pub(super) fn servers_turn(&mut self, now: Instant) {
        if self.working == 0 {
            self.works_since = now;
        }
        self.working += 1;
    }

    /// A response moved. If the server worked on its request, it goes on when the client has taken what there is.
    pub(super) fn clients_turn(&mut self, works: &mut bool, now: Instant) {
        self.moved = now;
        if std::mem::replace(works, false) {
            self.working -= 1;
            if self.working == 0 {
                self.worked += now.saturating_duration_since(self.works_since);
            }
        }
    }

    /// A request's response was passed to the connection, or given up.
    pub(super) fn end(&mut self, now: Instant) {
        self.open -= 1;
        self.settle(now);
    }

    /// The client sent something.
    pub(super) fn hear(&mut self, now: Instant) {
        if self.heard.is_none() && self.is_quiet() {
            self.heard = Some(now);
        }
    }

    /// A piece of a response is on its way.
    pub(super) fn send(&mut self, now: Instant) -> usize {
        self.wake(now);
        self.pieces.insert(now)
    }

    /// The client took some of what there is of a piece.
    pub(super) fn progress(&mut self, piece: usize, now: Instant) {
        self.moved = now;
        self.pieces[piece] = now;
    }

    /// A piece was written, or given up.
    pub(super) fn sent(&mut self, piece: usize, now: Instant) {
        self.pieces.remove(piece);
        if self.pieces.is_empty() && self.pieces.capacity() > FEW_PIECES {
            // A connection that goes on keeps no memory for many.
            self.pieces = Slab::new();
        }
        self.settle(now);
    }

    /// The system has everything that was written.
    pub(super) fn flush(&mut self) {
        if std::mem::replace(&mut self.unflushed, false) {
            self.settle(Instant::now());
        }
    }

    /// Something is about to keep the connection from being quiet.
    fn wake(&mut self, now: Instant) {
        if self.is_quiet() {
            (self.since, self.worked, self.written) = (now, Duration::ZERO, 0);
        }
    }

    /// Something ended that kept the connection from being quiet.
    fn settle(&mut self, now: Instant) {
        if self.is_quiet() {
            self.since = now;
            self.heard = None;
        }
    }

    pub(super) fn awaited(&self) -> Awaited {
        match *self {
            Self { http2: true, .. } => Awaited::Nothing,
            _ if self.is_quiet() => Awaited::Nothing,
            Self { answered: 1.., working: 1.., arriving: 0, .. } => Awaited::More,
            Self { open: 0, .. } | Self { answered: 1.., .. } => Awaited::End,
            Self { arriving: 1.., .. } => Awaited::Rest,
            _ => Awaited::Answer,
        }
    }

    pub(super) fn deadline(&self, times: ConnectionTimes) -> Option<Instant> {
        let deadline = match *self {
            Self { ending: Some(Ending::Cut(at)), .. } => return Some(at),
            Self { working: 1.., .. } => return None,
            _ if !self.is_quiet() => self.moved + times.stall,
            Self { ending: Some(_), since, .. } => since + LAST_WORDS,
            Self { begun_requests: 0, since, .. } => since + times.header,
            Self { http2: false, heard: Some(heard), .. } => heard + times.header,
            Self { since, .. } => since + times.idle,
        };
        Some(self.ending.map_or(deadline, |ending| deadline.max(ending.at() + LAST_WORDS)))
    }

    pub(super) fn claim(&self, is_strange: bool) -> Option<(Claim, Instant)> {
        match *self {
            Self { ending: Some(Ending::Cut(_)), .. } => None,
            Self { ending: Some(Ending::Asked(at)), .. } if self.is_quiet() => Some((Claim::Closing, at + LAST_WORDS)),
            // The first request has its time, however long the client kept the connection for it.
            Self { begun_requests: 1, open: 1, since, .. } if is_strange => Some((Claim::Strange, since + STRANGE)),
            // Requests that are refused at once, one after the other, would make it a busy one or a quiet one for ever.
            _ if is_strange => Some((Claim::Strange, self.accepted + STRANGE)),
            _ if self.is_quiet() => Some((Claim::Quiet, self.since + QUIET)),
            // Whatever else moves: a response that nobody takes is not taken.
            Self { working: 0, moved, .. } => {
                let oldest = self.pieces.iter().map(|(_, moved)| *moved).min();
                Some((Claim::Stalled, oldest.unwrap_or(moved) + STALLED))
            }
            Self { working, arriving, since, .. } if arriving >= working => Some((Claim::Arriving, since + ARRIVING)),
            Self { ending: Some(_), .. } => None,
            Self { since, .. } => Some((Claim::Working, since)),
        }
    }

    /// From when on the client is slow, while the next step is the client's.
    pub(super) fn slow_from(&self) -> Instant {
        self.since + self.worked + QUIET + Duration::from_secs(self.written / SLOW_BYTES_A_SECOND)
    }
}
