//! What a connection is doing, and until when it may go on doing so.
//!
//! A connection is quiet while no request is in flight and every byte of its responses has been given to the system. How
//! long it may stay so is bounded from its first moment: the TLS handshake, the choice of protocol and the first request's
//! head have one bound together.
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use camshaft_api::LetIn;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::held::{self, Admission, Held};

mod state;

#[cfg(test)]
pub(crate) use state::QUIET;
pub(crate) use state::{Awaited, Claim, ConnectionTimes, STRANGE};
use state::{Ending, LAST_WORDS, State};

/// Bytes of a large piece of a response that count as progress when they are written; the end of a piece always does.
const PROGRESS: usize = 4 << 10;

#[derive(Debug)]
pub(crate) struct Activity {
    times: ConnectionTimes,
    let_in: LetIn,
    all: Arc<Held>,
    state: Mutex<State>,
    close: Notify,
    /// Whether something shall be sent to the client, so that its system says whether anybody is there.
    probes: AtomicBool,
}

impl Activity {
    pub(crate) fn new(times: ConnectionTimes, all: Arc<Held>) -> Arc<Self> {
        let state = Mutex::new(State::new(Instant::now(), all.of_strangers()));
        Arc::new(Self {
            times,
            let_in: LetIn::default(),
            all,
            state,
            close: Notify::new(),
            probes: AtomicBool::new(false),
        })
    }

    pub(crate) fn times(&self) -> ConnectionTimes {
        self.times
    }

    /// For the requests of the connection: auth says there whom it has let in.
    pub(crate) fn let_in(&self) -> &LetIn {
        &self.let_in
    }

    /// What becomes of another request. If the connection is to be cut, it is.
    pub(crate) fn admission(&self) -> Admission {
        let mut state = self.state();
        if state.was_cut() {
            return Admission::Cut;
        }
        self.settle_account(&mut state);
        // What may come counts here only with strangers: who was let in is cut in the order in which all are.
        let rooms = if state.is_strange { state.rooms } else { 0 };
        let (held, admission) = (state.held, self.all.admission(state.held, rooms, &state.account));
        drop(state);
        if admission == Admission::Cut {
            let tenant = self.let_in.tenant().map(tracing::field::display);
            if let Some(cuts) = self.all.cut(Instant::now()) {
                tracing::warn!(
                    cuts,
                    held,
                    tenant,
                    "connections are cut: those of a tenant, or of strangers, hold too much"
                );
            }
            self.cut();
        }
        admission
    }

    /// What a connection holds counts with strangers until somebody is let in on it.
    fn settle_account(&self, state: &mut State) {
        let Some(tenant) = self.let_in.tenant().filter(|_| state.is_strange) else { return };
        let account = self.all.of_tenant(tenant);
        self.all.remove(state.held, &state.account);
        self.all.add(state.held, &account);
        (state.account, state.is_strange) = (account, false);
    }

    /// The head of a request has arrived, with this number of headers and bytes.
    pub(crate) fn begin(self: &Arc<Self>, http2: bool, (headers, bytes): (usize, usize)) -> OpenRequest {
        self.begin_holding(http2, held::of_request(headers, bytes))
    }

    /// A request that is refused for want of memory: its head is gone.
    pub(crate) fn begin_refused(self: &Arc<Self>, http2: bool) -> OpenRequest {
        self.begin_holding(http2, held::REFUSED_BYTES)
    }

    fn begin_holding(self: &Arc<Self>, http2: bool, held: usize) -> OpenRequest {
        self.hold(held).begin(http2, Instant::now());
        OpenRequest { activity: self.clone(), held, working: true, answered: false }
    }

    /// A request has begun over HTTP/2 whose body may end with trailers: however few bytes they are on the wire, they are
    /// held until somebody reads them, or until the stream ends.
    pub(crate) fn expect_trailers(self: &Arc<Self>) -> Arc<TrailerRoom> {
        self.all.add_room(held::TRAILERS_BYTES);
        self.state().rooms += held::TRAILERS_BYTES;
        Arc::new(TrailerRoom { activity: self.clone(), is_held: AtomicBool::new(true) })
    }

    /// A request's body has arrived, or nobody reads the rest of it.
    pub(crate) fn arrived(&self) {
        let mut state = self.state();
        self.settle_account(&mut state);
        state.arriving -= 1;
    }

    /// The client sent something.
    pub(crate) fn heard(&self) {
        self.state().hear(Instant::now());
    }

    /// Part of a response, of this size, is on its way from the server to the client.
    pub(crate) fn send(self: &Arc<Self>, bytes: usize) -> Sending {
        let held = held::of_piece(bytes);
        let piece = self.hold(held).send(Instant::now());
        Sending { activity: self.clone(), piece, held, written: 0, whole: false }
    }

    /// Counts what the connection holds more.
    fn hold(&self, bytes: usize) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.settle_account(&mut state);
        self.all.add(bytes, &state.account);
        state.held += bytes;
        state
    }

    /// Counts what the connection holds no longer.
    fn release(&self, bytes: usize) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.settle_account(&mut state);
        self.all.remove(bytes, &state.account);
        state.held -= bytes;
        state
    }

    /// The system has everything that was written.
    pub(crate) fn flushed(&self) {
        self.state().flush();
    }

    /// A response went out before its request had arrived, and the connection closes after it.
    pub(crate) fn leaves_unread(&self) {
        self.state().unread = true;
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.state().unread
    }

    pub(crate) fn awaited(&self) -> Awaited {
        self.state().awaited()
    }

    /// The client sends nothing more: it may have left. The response that has begun shall send something soon.
    pub(crate) fn ask_for_probe(&self) {
        self.probes.store(true, Ordering::Relaxed);
    }

    /// Whether that was asked for since the last call.
    pub(crate) fn take_probe(&self) -> bool {
        self.probes.swap(false, Ordering::Relaxed)
    }

    /// When the connection has to close unless something happens, or to end if it was asked to close; `None` while the
    /// server works on a request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.state().deadline(self.times)
    }

    /// Why and from when on the connection may have to make room for another one; `None` while it serves a request of
    /// somebody who was let in, or once it was asked.
    pub(crate) fn claim(&self) -> Option<(Claim, Instant)> {
        self.state().claim(self.let_in.tenant().is_none())
    }

    /// From when on the client is slow: after a second, the time in which it should have taken what was written to it, and
    /// the server's own.
    pub(crate) fn slow_from(&self) -> Instant {
        self.state().slow_from()
    }

    /// What it holds in memory; `None` once it was cut.
    pub(crate) fn held(&self) -> Option<usize> {
        let mut state = self.state();
        self.settle_account(&mut state);
        let held = state.held + state.rooms;
        (!state.was_cut() && held > 0).then_some(held)
    }

    pub(crate) fn accepted(&self) -> Instant {
        self.state().accepted
    }

    /// When the head of its last request arrived.
    pub(crate) fn begun(&self) -> Instant {
        self.state().begun
    }

    /// Ends the connection, whatever it does.
    pub(crate) fn cut(&self) {
        self.state().ending = Some(Ending::Cut(Instant::now()));
        self.close.notify_one();
    }

    /// Whether it was cut so lately that it may still be ending.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.state().ending, Some(Ending::Cut(at)) if at.elapsed() < LAST_WORDS)
    }

    pub(crate) fn was_cut(&self) -> bool {
        self.state().was_cut()
    }

    /// The connection is to close. False if it was asked before.
    pub(crate) fn close(&self) -> bool {
        let mut state = self.state();
        // An HTTP/2 client says what it has taken. A closed socket would answer with a reset, and what the system still
        // holds for the client would be lost.
        state.unread |= state.http2;
        let first = state.ending.is_none();
        state.ending.get_or_insert_with(|| Ending::Asked(Instant::now()));
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
        let mut state = self.activity.state();
        state.answered += usize::from(!std::mem::replace(&mut self.answered, true));
        state.clients_turn(&mut self.working, Instant::now());
    }

    /// The client waits for the server to go on.
    pub(crate) fn works(&mut self) {
        if !std::mem::replace(&mut self.working, true) {
            self.activity.state().servers_turn(Instant::now());
        }
    }

    /// The server goes on when the client has taken what there is.
    pub(crate) fn moved(&mut self) {
        self.activity.state().clients_turn(&mut self.working, Instant::now());
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        let (mut state, now) = (self.activity.release(self.held), Instant::now());
        state.clients_turn(&mut self.working, now);
        state.answered -= usize::from(self.answered);
        state.end(now);
    }
}

/// What the trailers of a request may take, until its body has ended or its stream has.
#[derive(Debug)]
pub(crate) struct TrailerRoom {
    activity: Arc<Activity>,
    is_held: AtomicBool,
}

impl TrailerRoom {
    /// The body was read to its end.
    pub(crate) fn end(&self) {
        if self.is_held.swap(false, Ordering::Relaxed) {
            self.activity.state().rooms -= held::TRAILERS_BYTES;
            self.activity.all.remove_room(held::TRAILERS_BYTES);
        }
    }
}

impl Drop for TrailerRoom {
    fn drop(&mut self) {
        self.end();
    }
}

/// Part of a response, until the connection has written it or given it up.
#[derive(Debug)]
pub(crate) struct Sending {
    activity: Arc<Activity>,
    /// Its number.
    piece: usize,
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
            state.progress(self.piece, Instant::now());
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        let (mut state, now) = (self.activity.release(self.held), Instant::now());
        // The client has not taken what the connection gave up.
        if self.whole {
            state.moved = now;
        }
        state.sent(self.piece, now);
    }
}

#[cfg(test)]
#[path = "activity_tests.rs"]
mod tests;
