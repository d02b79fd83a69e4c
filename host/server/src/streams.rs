//! The stream of a client. Sending never blocks: what a slow reader cannot take yet is merged and kept.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_api::backend::Shared;
use camshaft_core::ids::RequestId;
use camshaft_core::message::{Command, Delta, Event, FinishReason, WorkerError};
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

    pub(crate) fn has_something(&self) -> bool {
        self.held.is_some() || self.end.is_some()
    }

    /// Whether something waits to be sent, or a paused reader to catch up.
    pub(crate) fn is_waiting(&self) -> bool {
        self.has_something() || self.is_paused
    }

    /// Whether the channel was full when something was sent last.
    pub(crate) fn is_full(&self) -> bool {
        self.full
    }

    /// Whether text waits to share a frame with more: the last frame was sent less than an interval ago.
    pub(crate) fn gathers(&self, now: Instant, interval: Duration) -> bool {
        !self.full && self.end.is_none() && self.sent.is_some_and(|sent| now.saturating_duration_since(sent) < interval)
    }

    /// Sends what waits, in order. True if that was the end. A client that left is found by the pool, which cancels its
    /// generation.
    pub(crate) fn flush(&mut self, id: RequestId, now: Instant) -> bool {
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

    /// Sends an event on. True if that was the end.
    pub(crate) fn send(&mut self, id: RequestId, event: Event, now: Instant, interval: Duration) -> bool {
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

    /// What the worker is to do about a reader that fell behind or caught up. One that is behind for `cut_after` has its stream cut:
    /// it ends with an error.
    pub(crate) fn review(&mut self, id: RequestId, now: Instant, cut_after: Duration) -> Option<Command> {
        if self.is_paused && self.has_caught_up() {
            (self.is_paused, self.behind_since) = (false, None);
            return Some(Command::Resume { id });
        }
        if !self.full && !self.is_paused {
            self.behind_since = None;
            return None;
        }
        let free = self.events.capacity();
        if free > self.drained {
            // It reads, however slowly.
            self.behind_since = None;
        }
        self.drained = free;
        let behind = now.saturating_duration_since(*self.behind_since.get_or_insert(now));
        if behind >= cut_after && !self.cut {
            (self.cut, self.held) = (true, None);
            self.end = Some(Event::Failed { id, error: WorkerError::SlowReader });
            return Some(Command::Cancel { id });
        }
        if behind < PAUSE_AFTER || self.is_paused || self.cut || self.end.is_some() {
            return None;
        }
        // More text would only fill memory.
        self.is_paused = true;
        Some(Command::Pause { id })
    }
}
