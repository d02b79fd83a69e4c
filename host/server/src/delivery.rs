//! Delivers a worker's events to its clients, and turns the clients' reading pace into commands for the worker.
use std::time::{Duration, Instant};

use camshaft_core::ids::RequestId;
use camshaft_core::message::{Command, Event, Events};

use crate::streams::{Backpressure, Stream, Streams};

/// The clients of one worker.
#[derive(Debug)]
pub(crate) struct Delivery {
    streams: Streams,
    /// Since the last flush. They are sent together: each one by itself would wake a thread.
    events: Vec<Event>,
    /// Text of a stream that comes faster shares frames.
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
        let now = Instant::now();
        for event in self.events.drain(..) {
            self.streams.send(event.id(), event, now);
        }
    }
}

impl Delivery {
    pub(crate) fn new(frame_interval: Duration, slow_reader: Duration) -> Self {
        Self { streams: Streams::new(frame_interval), events: Vec::new(), frame_interval, slow_reader }
    }

    pub(crate) fn insert(&mut self, id: RequestId, stream: Stream) {
        self.streams.insert(id, stream);
    }

    /// A step begins. Text that waits for more does not wait for one that may take longer than the last.
    pub(crate) fn before_step(&mut self, now: Instant, may_take_longer: bool) {
        if may_take_longer {
            self.streams.flush_gathered(now);
        }
    }

    /// A step ended. True while something waits to be sent, or a paused reader to catch up.
    pub(crate) fn after_step(&mut self, begun: Instant, now: Instant) -> bool {
        if now.saturating_duration_since(begun) >= self.frame_interval {
            // The next step will take as long: the tokens that this one drew, several with a draft, do not wait for it.
            self.streams.flush_gathered(now);
        }
        self.streams.flush(now)
    }

    /// Sends what has waited for long enough. True while something still waits.
    pub(crate) fn send_waiting(&mut self) -> bool {
        self.streams.flush(Instant::now())
    }

    /// Commands for sequences whose readers fell behind or caught up.
    pub(crate) fn backpressure(&mut self) -> impl Iterator<Item = Command> + use<> {
        let reviewed = self.streams.review(Instant::now(), self.slow_reader);
        reviewed.into_iter().map(|(id, backpressure)| match backpressure {
            Backpressure::Pause => Command::Pause { id },
            Backpressure::Resume => Command::Resume { id },
            Backpressure::Cut => Command::Cancel { id },
        })
    }
}
