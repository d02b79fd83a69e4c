//! What a connection is doing, and until when it may go on doing so.
//!
//! A connection without a request in flight is quiet. How long it may stay so is bounded from its first moment: the TLS
//! handshake, the choice of protocol and the first request's head have one bound together.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

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

#[derive(Debug)]
pub(crate) struct Activity {
    times: ConnectionTimes,
    state: Mutex<State>,
    close: Notify,
}

#[derive(Debug)]
struct State {
    http2: bool,
    /// Whether the head of any request has arrived.
    served: bool,
    /// Requests whose responses are not complete.
    open: usize,
    /// Of the open ones: those whose next step is the server's.
    working: usize,
    /// Of the open ones: those whose bodies have not arrived.
    arriving: usize,
    /// Of the open ones: those whose responses have begun.
    answered: usize,
    /// When a response last moved.
    moved: Instant,
    /// Since when no request is open, if none is.
    quiet: Instant,
    /// The first byte since then.
    heard: Option<Instant>,
    /// Whether the connection was asked to close.
    closing: bool,
    /// Whether a response went out while the client was still sending.
    unread: bool,
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
    /// The response has begun.
    End,
}

impl Activity {
    pub(crate) fn new(times: ConnectionTimes) -> Arc<Self> {
        let now = Instant::now();
        let state = State {
            http2: false,
            served: false,
            open: 0,
            working: 0,
            arriving: 0,
            answered: 0,
            moved: now,
            quiet: now,
            heard: None,
            closing: false,
            unread: false,
        };
        Arc::new(Self { times, state: Mutex::new(state), close: Notify::new() })
    }

    pub(crate) fn times(&self) -> ConnectionTimes {
        self.times
    }

    /// The head of a request has arrived.
    pub(crate) fn begin(self: &Arc<Self>, http2: bool) -> OpenRequest {
        let mut state = self.state();
        state.http2 = http2;
        state.served = true;
        state.open += 1;
        state.working += 1;
        state.arriving += 1;
        OpenRequest { activity: self.clone(), working: true, answered: false }
    }

    /// A request's body has arrived, or nobody reads the rest of it.
    pub(crate) fn arrived(&self) {
        self.state().arriving -= 1;
    }

    /// The client sent something.
    pub(crate) fn heard(&self) {
        let mut state = self.state();
        if state.open == 0 && state.heard.is_none() {
            state.heard = Some(Instant::now());
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
            State { http2: true, .. } | State { open: 0, .. } => Awaited::Nothing,
            State { answered: 1.., .. } => Awaited::End,
            State { arriving: 1.., .. } => Awaited::Rest,
            _ => Awaited::Answer,
        }
    }

    /// When the connection has to end unless something happens; `None` while the server works on a request.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let (state, times) = (self.state(), self.times);
        match *state {
            State { open: 1.., working: 0, moved, .. } => Some(moved + times.stall),
            State { open: 1.., .. } => None,
            State { served: false, quiet, .. } => Some(quiet + times.header),
            State { http2: false, heard: Some(heard), .. } => Some(heard + times.header),
            State { quiet, .. } => Some(quiet + times.idle),
        }
    }

    /// Since when no request is open; `None` while one is, or once the connection was asked to close.
    pub(crate) fn quiet_since(&self) -> Option<Instant> {
        let state = self.state();
        (state.open == 0 && !state.closing).then_some(state.quiet)
    }

    /// Asks the connection to close, to make room for another one.
    pub(crate) fn make_room(&self) {
        self.state().closing = true;
        self.close.notify_one();
    }

    /// Waits until the connection is asked to close.
    pub(crate) async fn room_wanted(&self) {
        self.close.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request, until its response is complete or given up.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    activity: Arc<Activity>,
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
        let mut state = self.activity.state();
        state.answered -= usize::from(self.answered);
        state.open -= 1;
        if state.open == 0 {
            state.quiet = state.moved;
            state.heard = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: ConnectionTimes = ConnectionTimes {
        header: Duration::from_secs(30),
        idle: Duration::from_secs(90),
        stall: Duration::from_secs(60),
    };

    /// How long the connection may go on from now, in seconds.
    fn left(activity: &Activity) -> Option<u64> {
        activity.deadline().map(|deadline| (deadline - Instant::now()).as_secs())
    }

    async fn pass(seconds: u64) {
        tokio::time::advance(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn everything_before_the_first_request_has_one_bound() {
        let activity = Activity::new(TIMES);
        pass(10).await;
        activity.heard();
        assert_eq!(left(&activity), Some(20), "bytes that make no request win no time");
        let request = activity.begin(false);
        pass(1000).await;
        assert_eq!(left(&activity), None, "the server works");
        drop(request);
        assert_eq!(left(&activity), Some(90));
    }

    #[tokio::test(start_paused = true)]
    async fn a_later_head_has_a_bound_from_its_first_byte() {
        let activity = Activity::new(TIMES);
        drop(activity.begin(false));
        pass(80).await;
        activity.heard();
        pass(5).await;
        activity.heard();
        assert_eq!(left(&activity), Some(25));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_open_no_stream_do_not_keep_an_http2_connection() {
        let activity = Activity::new(TIMES);
        drop(activity.begin(true));
        pass(80).await;
        activity.heard();
        assert_eq!(left(&activity), Some(10));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_of_any_response_has_a_bound() {
        let activity = Activity::new(TIMES);
        let (mut first, mut second) = (activity.begin(true), activity.begin(true));
        first.answer();
        assert_eq!(left(&activity), None, "the server works on the second");
        second.answer();
        pass(50).await;
        assert_eq!(left(&activity), Some(10));
        first.moved();
        assert_eq!(left(&activity), Some(60), "one stream moved");
        second.works();
        assert_eq!(left(&activity), None);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_quiet_connection_makes_room_and_only_once() {
        let activity = Activity::new(TIMES);
        let born = Instant::now();
        assert_eq!(activity.quiet_since(), Some(born));
        let request = activity.begin(false);
        assert_eq!(activity.quiet_since(), None);
        pass(1).await;
        drop(request);
        assert_eq!(activity.quiet_since(), Some(born + Duration::from_secs(1)));
        activity.make_room();
        activity.room_wanted().await;
        assert_eq!(activity.quiet_since(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn knows_what_a_client_awaits_that_sends_nothing_more() {
        let activity = Activity::new(TIMES);
        assert_eq!(activity.awaited(), Awaited::Nothing);
        let mut request = activity.begin(false);
        assert_eq!(activity.awaited(), Awaited::Rest);
        activity.arrived();
        assert_eq!(activity.awaited(), Awaited::Answer);
        request.answer();
        assert_eq!(activity.awaited(), Awaited::End);
        drop(request);
        assert_eq!(activity.awaited(), Awaited::Nothing);
    }
}
