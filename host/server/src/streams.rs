//! The streams of a worker's clients. Sending never blocks: what a slow reader cannot take yet is merged and kept.
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_api::backend::Shared;
use camshaft_core::ids::RequestId;
use camshaft_core::message::{Delta, Event, FinishReason, WorkerError};
use camshaft_core::policy::PolicySet;
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

/// A reader that is behind for this long has its sequence paused.
const PAUSE_AFTER: Duration = Duration::from_secs(1);

/// The receiving side of one generation.
#[derive(Debug)]
pub(crate) struct Stream {
    events: Sender<Event>,
    shared: Shared,
    /// The policies that the request began with live as long as it does.
    _policies: Arc<dyn PolicySet>,
    /// Merged text that did not fit into the channel yet, or waits for more. Bounded by the request's `max_tokens`.
    held: Option<Delta>,
    /// The last event; it follows the held text.
    end: Option<Event>,
    /// When text was last sent.
    sent: Option<Instant>,
    /// The channel was full when the next event was tried.
    full: bool,
    /// When the channel became full, or the reader last took something since.
    behind_since: Option<Instant>,
    /// Its sequence is off the worker until the reader has caught up.
    is_paused: bool,
    /// Free entries of the channel at the last review.
    drained: usize,
    /// The reader was behind for too long; only the error is still sent.
    cut: bool,
}

/// What a reader's pace asks of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backpressure {
    /// The reader is behind: more text would only fill memory.
    Pause,
    /// The reader has caught up.
    Resume,
    /// The reader was behind for too long: its stream ends with an error.
    Cut,
}

impl Stream {
    pub(crate) fn new(events: Sender<Event>, shared: Shared, policies: Arc<dyn PolicySet>) -> Self {
        Self {
            events,
            shared,
            _policies: policies,
            held: None,
            end: None,
            sent: None,
            full: false,
            behind_since: None,
            is_paused: false,
            drained: 0,
            cut: false,
        }
    }

    /// Whether a paused reader has caught up: half of its channel is free. With one free entry it would be paused again at
    /// the next token.
    fn has_caught_up(&self) -> bool {
        !self.full && self.events.capacity() * 2 >= self.events.max_capacity()
    }

    fn has_something(&self) -> bool {
        self.held.is_some() || self.end.is_some()
    }

    /// Whether text waits to share a frame with more: the last frame was sent less than an interval ago.
    fn gathers(&self, now: Instant, interval: Duration) -> bool {
        !self.full && self.end.is_none() && self.sent.is_some_and(|sent| now.saturating_duration_since(sent) < interval)
    }

    /// Sends what waits, in order. True if that was the end. A client that left is found by the pool, which cancels its
    /// generation.
    fn flush(&mut self, id: RequestId, now: Instant) -> bool {
        if let Some(delta) = self.held.take() {
            match self.events.try_send(Event::Delta { id, delta }) {
                Ok(()) => self.sent = Some(now),
                Err(TrySendError::Full(Event::Delta { delta, .. })) => {
                    self.held = Some(delta);
                    self.full = true;
                    return false;
                }
                Err(_) => {}
            }
        }
        self.full = false;
        let Some(end) = self.end.take() else { return false };
        match self.events.try_send(end) {
            Err(TrySendError::Full(end)) => {
                self.end = Some(end);
                self.full = true;
                false
            }
            Ok(()) | Err(TrySendError::Closed(_)) => true,
        }
    }

    fn send(&mut self, id: RequestId, event: Event, now: Instant, interval: Duration) -> bool {
        self.shared.spent.note(&event);
        if self.cut {
            return self.flush(id, now);
        }
        match event {
            // The pool has told the client that the deadline passed.
            Event::Delta { .. } if !self.shared.first_reply.begin() => return false,
            Event::Delta { delta, .. } => match &mut self.held {
                Some(held) => {
                    held.text.push_str(&delta.text);
                    held.tokens += delta.tokens;
                    held.logprobs.extend(delta.logprobs);
                }
                None => self.held = Some(delta),
            },
            // The pool cancelled it and has told the client why.
            Event::Finished { reason: FinishReason::Cancelled, .. } => return true,
            Event::Finished { .. } | Event::Failed { .. } if !self.shared.first_reply.begin() => return true,
            end @ (Event::Finished { .. } | Event::Failed { .. }) => self.end = Some(end),
            // The first event always fits (see `tell_positions`). The pool's next sweep finds a closed channel.
            other => drop(self.events.try_send(other)),
        }
        if self.gathers(now, interval) {
            return false;
        }
        self.flush(id, now)
    }
}

/// All generations of one worker that still have something to tell their clients.
#[derive(Debug)]
pub(crate) struct Streams {
    of: HashMap<RequestId, Stream>,
    /// Text of a stream that comes sooner than this after the last frame waits for more.
    interval: Duration,
}

impl Streams {
    pub(crate) fn new(interval: Duration) -> Self {
        Self { of: HashMap::new(), interval }
    }

    pub(crate) fn insert(&mut self, id: RequestId, stream: Stream) {
        self.of.insert(id, stream);
    }

    /// Sends an event on; forgets the stream after its last one.
    pub(crate) fn send(&mut self, id: RequestId, event: Event, now: Instant) {
        let interval = self.interval;
        if self.of.get_mut(&id).is_some_and(|stream| stream.send(id, event, now, interval)) {
            self.of.remove(&id);
        }
    }

    /// Sends what has waited for long enough and tries again what did not fit. True while something still waits.
    pub(crate) fn flush(&mut self, now: Instant) -> bool {
        let interval = self.interval;
        let done =
            |id, stream: &mut Stream| stream.has_something() && !stream.gathers(now, interval) && stream.flush(id, now);
        self.of.retain(|&id, stream| !done(id, stream));
        self.of.values().any(|stream| stream.has_something() || stream.is_paused)
    }

    /// Sends what waits for more text: there may be none for a while.
    pub(crate) fn flush_gathered(&mut self, now: Instant) {
        self.of.retain(|&id, stream| !stream.has_something() || stream.full || !stream.flush(id, now));
    }

    /// What is to be done about readers that fell behind or caught up. A stream that is cut ends with an error.
    pub(crate) fn review(&mut self, now: Instant, cut_after: Duration) -> Vec<(RequestId, Backpressure)> {
        let mut out = Vec::new();
        for (&id, stream) in &mut self.of {
            if stream.is_paused && stream.has_caught_up() {
                stream.is_paused = false;
                out.push((id, Backpressure::Resume));
            }
            if !stream.full && !stream.is_paused {
                stream.behind_since = None;
                continue;
            }
            let free = stream.events.capacity();
            if free > stream.drained {
                // It reads, however slowly.
                stream.behind_since = None;
            }
            stream.drained = free;
            let since = *stream.behind_since.get_or_insert(now);
            let behind = now.saturating_duration_since(since);
            if behind >= cut_after && !stream.cut {
                stream.cut = true;
                stream.held = None;
                stream.end = Some(Event::Failed { id, error: WorkerError::SlowReader });
                out.push((id, Backpressure::Cut));
            } else if behind >= PAUSE_AFTER && !stream.is_paused && !stream.cut && stream.end.is_none() {
                stream.is_paused = true;
                out.push((id, Backpressure::Pause));
            }
        }
        out
    }
}

#[cfg(test)]
#[path = "streams_tests.rs"]
pub(crate) mod tests;
