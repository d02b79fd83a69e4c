//! What a connection is doing, and until when it may go on doing so.
//!
//! A connection is quiet while no request is in flight and every byte of its responses has been given to the system. How
//! long it may stay so is bounded from its first moment: the TLS handshake, the choice of protocol and the first request's
//! head have one bound together.
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use camshaft_api::LetIn;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::held::{self, Held};

/// From the decision to close a connection to its end, unless the client still asks or reads.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Bytes of a large piece of a response that count as progress when they are written; the end of a piece always does.
const PROGRESS: usize = 4 << 10;
/// When a connection may be closed because another one needs its place: after so long without any request, after so long
/// from its beginning, or from its first request's, if nobody was let in, and if its client has taken nothing, or sent no
/// whole request, for so long. The tenant with the most connections has less time (`crowd`).
pub(crate) const QUIET: Duration = Duration::from_secs(1);
const STRANGE: Duration = Duration::from_secs(2);
const STALLED: Duration = Duration::from_secs(5);
const ARRIVING: Duration = Duration::from_secs(5);

/// A client that takes less is slow.
const SLOW_BYTES_A_SECOND: u64 = 16 << 10;

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

#[derive(Debug)]
pub(crate) struct Activity {
    times: ConnectionTimes,
    accepted: Instant,
    let_in: LetIn,
    all: Arc<Held>,
    state: Mutex<State>,
    close: Notify,
}

#[derive(Debug)]
struct State {
    http2: bool,
    /// Requests whose heads have arrived.
    begun_requests: u64,
    /// Requests whose responses have not been passed to the connection whole.
    open: usize,
    /// Of the open ones: those whose next step is the server's.
    working: usize,
    /// Of the open ones: those whose bodies have not arrived.
    arriving: usize,
    /// Of the open ones: those whose responses have begun.
    answered: usize,
    /// Pieces of responses that the connection has not written yet, by number, each with when some of it was last written.
    /// Whole responses may be one piece.
    pieces: BTreeMap<u64, Instant>,
    next_piece: u64,
    /// Whether part of a piece was written and not flushed: TLS may hold it.
    unflushed: bool,
    /// When a response last moved.
    moved: Instant,
    /// Bytes of responses that were written since the connection was quiet.
    written: u64,
    /// Since when the connection is quiet, if it is.
    quiet: Instant,
    /// Since when it is not, if it is not.
    busy: Instant,
    /// When the head of the last request arrived.
    begun: Instant,
    /// What it holds in memory: heads of open requests, and pieces.
    held: usize,
    /// Whether it ends although it is not quiet.
    cut: bool,
    /// The first byte since then.
    heard: Option<Instant>,
    /// When the connection was asked to close.
    closing: Option<Instant>,
    /// Whether the client may still be sending when the connection ends.
    unread: bool,
}

impl State {
    fn is_quiet(&self) -> bool {
        self.open == 0 && self.pieces.is_empty() && !self.unflushed
    }

    /// Something is about to keep the connection from being quiet.
    fn wake(&mut self) {
        if self.is_quiet() {
            self.busy = Instant::now();
            self.written = 0;
        }
    }

    /// Something ended that kept the connection from being quiet.
    fn settle(&mut self) {
        if self.is_quiet() {
            self.quiet = Instant::now();
            self.heard = None;
        }
    }
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
    /// The response has begun, and the client does not have all of it.
    End,
}

impl Activity {
    pub(crate) fn new(times: ConnectionTimes, all: Arc<Held>) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            http2: false,
            begun_requests: 0,
            open: 0,
            working: 0,
            arriving: 0,
            answered: 0,
            pieces: BTreeMap::new(),
            next_piece: 0,
            unflushed: false,
            moved: now,
            written: 0,
            quiet: now,
            busy: now,
            begun: now,
            held: 0,
            cut: false,
            heard: None,
            closing: None,
            unread: false,
        };
        let let_in = LetIn::default();
        Arc::new(Self { times, accepted: now, let_in, all, state: Mutex::new(state), close: Notify::new() })
    }

    pub(crate) fn times(&self) -> ConnectionTimes {
        self.times
    }

    /// For the requests of the connection: auth says there whom it has let in.
    pub(crate) fn let_in(&self) -> &LetIn {
        &self.let_in
    }

    /// The head of a request has arrived, with this number of headers and bytes.
    pub(crate) fn begin(self: &Arc<Self>, http2: bool, (headers, bytes): (usize, usize)) -> OpenRequest {
        let held = held::of_request(headers, bytes);
        let mut state = self.hold(held);
        state.http2 = http2;
        state.wake();
        state.begun = Instant::now();
        state.begun_requests += 1;
        state.open += 1;
        state.working += 1;
        state.arriving += 1;
        OpenRequest { activity: self.clone(), held, working: true, answered: false }
    }

    /// A request's body has arrived, or nobody reads the rest of it.
    pub(crate) fn arrived(&self) {
        self.state().arriving -= 1;
    }

    /// The client sent something.
    pub(crate) fn heard(&self) {
        let mut state = self.state();
        if state.is_quiet() && state.heard.is_none() {
            state.heard = Some(Instant::now());
        }
    }

    /// Part of a response, of this size, is on its way from the server to the client.
    pub(crate) fn send(self: &Arc<Self>, bytes: usize) -> Sending {
        let held = held::of_piece(bytes);
        let mut state = self.hold(held);
        state.wake();
        let number = state.next_piece;
        state.next_piece += 1;
        state.pieces.insert(number, Instant::now());
        Sending { activity: self.clone(), number, held, written: 0, whole: false }
    }

    /// Counts what the connection holds more.
    fn hold(&self, bytes: usize) -> MutexGuard<'_, State> {
        self.all.add(bytes);
        let mut state = self.state();
        state.held += bytes;
        state
    }

    /// Counts what the connection holds no longer.
    fn release(&self, bytes: usize) -> MutexGuard<'_, State> {
        self.all.remove(bytes);
        let mut state = self.state();
        state.held -= bytes;
        state
    }

    /// The system has everything that was written.
    pub(crate) fn flushed(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.unflushed, false) {
            state.settle();
        }
    }

    /// A response went out before its request had arrived, and the connection closes after it.
    pub(crate) fn leaves_unread(&self) {
        self.state().unread = true;
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.state().unread
    }

    pub(crate) fn awaited(&self) -> Awaited {
        let state = self.state();
        match *state {
            State { http2: true, .. } => Awaited::Nothing,
            _ if state.is_quiet() => Awaited::Nothing,
            State { open: 0, .. } | State { answered: 1.., .. } => Awaited::End,
            State { arriving: 1.., .. } => Awaited::Rest,
            _ => Awaited::Answer,
        }
    }

    /// When the connection has to close unless something happens, or to end if it was asked to close; `None` while the
    /// server works on a request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let (state, times) = (self.state(), self.times);
        let deadline = match *state {
            State { cut: true, closing: Some(closing), .. } => return Some(closing),
            State { working: 1.., .. } => return None,
            _ if !state.is_quiet() => state.moved + times.stall,
            State { closing: Some(_), quiet, .. } => quiet + LAST_WORDS,
            State { begun_requests: 0, quiet, .. } => quiet + times.header,
            State { http2: false, heard: Some(heard), .. } => heard + times.header,
            State { quiet, .. } => quiet + times.idle,
        };
        Some(state.closing.map_or(deadline, |closing| deadline.max(closing + LAST_WORDS)))
    }

    /// Why and from when on the connection may have to make room for another one; `None` while it serves a request of
    /// somebody who was let in, or once it was asked.
    pub(crate) fn claim(&self) -> Option<(Claim, Instant)> {
        let state = self.state();
        match *state {
            State { cut: true, .. } => None,
            State { closing: Some(closing), .. } if state.is_quiet() => Some((Claim::Closing, closing + LAST_WORDS)),
            // The first request has its time, however long the client kept the connection for it.
            State { begun_requests: 1, open: 1, busy, .. } if self.let_in.tenant().is_none() => {
                Some((Claim::Strange, busy + STRANGE))
            }
            // Requests that are refused at once, one after the other, would make it a busy one or a quiet one for ever.
            _ if self.let_in.tenant().is_none() => Some((Claim::Strange, self.accepted + STRANGE)),
            _ if state.is_quiet() => Some((Claim::Quiet, state.quiet + QUIET)),
            // Whatever else moves: a response that nobody takes is not taken.
            State { working: 0, moved, .. } => {
                Some((Claim::Stalled, state.pieces.values().min().map_or(moved, |oldest| *oldest) + STALLED))
            }
            State { working, arriving, busy, .. } if arriving >= working => Some((Claim::Arriving, busy + ARRIVING)),
            State { closing: Some(_), .. } => None,
            State { busy, .. } => Some((Claim::Working, busy)),
        }
    }

    /// From when on the client is slow: after a second, and the time in which it should have taken what was written to it.
    pub(crate) fn slow_from(&self) -> Instant {
        let state = self.state();
        state.busy + QUIET + Duration::from_secs(state.written / SLOW_BYTES_A_SECOND)
    }

    /// What it holds in memory; `None` once it was cut.
    pub(crate) fn held(&self) -> Option<usize> {
        let state = self.state();
        (!state.cut && state.held > 0).then_some(state.held)
    }

    /// When the head of its last request arrived.
    pub(crate) fn begun(&self) -> Instant {
        self.state().begun
    }

    /// Ends the connection, whatever it does.
    pub(crate) fn cut(&self) {
        let mut state = self.state();
        state.cut = true;
        state.closing = Some(Instant::now());
        self.close.notify_one();
    }

    pub(crate) fn was_cut(&self) -> bool {
        self.state().cut
    }

    /// The connection is to close. False if it was asked before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state();
        // An HTTP/2 client says what it has taken. A closed socket would answer with a reset, and what the system still
        // holds for the client would be lost.
        state.unread |= state.http2;
        let first = state.closing.is_none();
        state.closing.get_or_insert_with(Instant::now);
        first
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.state().is_quiet()
    }

    /// Asks the connection to close, to make room for another one. A request that begins meanwhile is still answered.
    pub(crate) fn make_room(&self) {
        if self.close() {
            self.close.notify_one();
        }
    }

    /// Waits until the connection is asked to close.
    pub(crate) async fn room_wanted(&self) {
        self.close.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request, until its response was passed to the connection whole, or given up.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    activity: Arc<Activity>,
    /// What its head takes.
    held: usize,
    working: bool,
    answered: bool,
}

impl OpenRequest {
    pub(crate) fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// The head of the response was passed to the connection: the client's turn.
    pub(crate) fn answer(&mut self) {
        self.answered = true;
        self.activity.state().answered += 1;
        self.moved();
    }

    /// The client waits for the server to go on.
    pub(crate) fn works(&mut self) {
        if !std::mem::replace(&mut self.working, true) {
            self.activity.state().working += 1;
        }
    }

    /// The server goes on when the client has taken what there is.
    pub(crate) fn moved(&mut self) {
        let mut state = self.activity.state();
        state.moved = Instant::now();
        if std::mem::replace(&mut self.working, false) {
            state.working -= 1;
        }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.moved();
        let mut state = self.activity.release(self.held);
        state.answered -= usize::from(self.answered);
        state.open -= 1;
        state.settle();
    }
}

/// Part of a response, until the connection has written it or given it up.
#[derive(Debug)]
pub(crate) struct Sending {
    activity: Arc<Activity>,
    number: u64,
    /// What it takes.
    held: usize,
    /// Bytes that were written since they last counted as progress.
    written: usize,
    /// Whether all of it was written.
    whole: bool,
}

impl Sending {
    /// The connection has written some of it, and has `left` bytes to write. A few bytes now and then are no progress.
    pub(crate) fn wrote(&mut self, bytes: usize, left: usize) {
        self.written += bytes;
        self.whole = left == 0;
        let mut state = self.activity.state();
        state.unflushed = true;
        state.written += bytes as u64;
        if self.written >= PROGRESS {
            self.written = 0;
            let now = Instant::now();
            state.moved = now;
            state.pieces.insert(self.number, now);
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let mut state = self.activity.release(self.held);
        state.pieces.remove(&self.number);
        // The client has not taken what the connection gave up.
        if self.whole {
            state.moved = Instant::now();
        }
        state.settle();
    }
}

#[cfg(test)]
#[path = "activity_tests.rs"]
mod tests;
