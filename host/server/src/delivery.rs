//! Delivers a worker's events to its clients, and turns the clients' reading pace into commands for the worker.
use std::collections::HashMap;
use std::time::{Duration, Instant};

use camshaft_core::ids::RequestId;
use camshaft_core::message::{Command, Event, Events};

use crate::streams::Stream;

/// The clients of one worker: those of generations that still have something to tell them.
#[derive(Debug)]
pub(crate) struct Delivery {
    streams: HashMap<RequestId, Stream>,
    /// Since the last flush. They are sent together: each one by itself would wake a thread.
    events: Vec<Event>,
    /// Text of a stream that comes sooner than this after the last frame waits for more.
    frame_interval: Duration,
    /// How long a reader may be behind.
    slow_reader: Duration,
}

impl Events for Delivery {
    fn push(&mut self, event: Event) {
        if event.is_for_client() {
            self.events.push(event);
        }
    }

    fn flush(&mut self) {
        let (mut events, now) = (std::mem::take(&mut self.events), Instant::now());
        events.drain(..).for_each(|event| self.send(event, now));
        self.events = events;
    }
}

impl Delivery {
    pub(crate) fn new(frame_interval: Duration, slow_reader: Duration) -> Self {
        Self { streams: HashMap::new(), events: Vec::new(), frame_interval, slow_reader }
    }

    pub(crate) fn insert(&mut self, id: RequestId, stream: Stream) {
        self.streams.insert(id, stream);
    }

    /// Sends an event on; forgets the stream after its last one.
    pub(crate) fn send(&mut self, event: Event, now: Instant) {
        let (id, interval) = (event.id(), self.frame_interval);
        if self.streams.get_mut(&id).is_some_and(|stream| stream.send(id, event, now, interval)) {
            self.streams.remove(&id);
        }
    }

    /// A step begins. Text that waits for more does not wait for one that may take longer than the last.
    pub(crate) fn before_step(&mut self, now: Instant, may_take_longer: bool) {
        if may_take_longer {
            self.send_gathered(now);
        }
    }

    /// A step ended. True while something waits to be sent, or a paused reader to catch up.
    pub(crate) fn after_step(&mut self, begun: Instant, now: Instant) -> bool {
        if now.saturating_duration_since(begun) >= self.frame_interval {
            // The next step will take as long: the tokens that this one drew, several with a draft, do not wait for it.
            self.send_gathered(now);
        }
        self.send_due(now)
    }

    /// Sends what has waited for long enough. True while something still waits.
    pub(crate) fn send_waiting(&mut self) -> bool {
        self.send_due(Instant::now())
    }

    /// The same, and tries again what did not fit.
    fn send_due(&mut self, now: Instant) -> bool {
        let interval = self.frame_interval;
        let done =
            |id, stream: &mut Stream| stream.has_something() && !stream.gathers(now, interval) && stream.flush(id, now);
        self.streams.retain(|&id, stream| !done(id, stream));
        self.streams.values().any(Stream::is_waiting)
    }

    /// Sends what waits for more text: there may be none for a while.
    fn send_gathered(&mut self, now: Instant) {
        self.streams.retain(|&id, stream| !stream.has_something() || stream.is_full() || !stream.flush(id, now));
    }

    /// Commands for sequences whose readers fell behind or caught up.
    pub(crate) fn backpressure(&mut self) -> Vec<Command> {
        self.review(Instant::now())
    }

    fn review(&mut self, now: Instant) -> Vec<Command> {
        self.streams.iter_mut().filter_map(|(&id, stream)| stream.review(id, now, self.slow_reader)).collect()
    }
}

#[cfg(test)]
#[path = "delivery_tests.rs"]
pub(crate) mod tests;
