//! The thread that owns an engine: takes commands, steps, sends events on.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camshaft_core::engine::Engine;
use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::{Command, Event, Start};
use camshaft_core::worker::{Step, Worker};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use crate::error::ServerError;
use crate::metrics::WorkerMetrics;
use crate::streams::{Stream, Streams};

/// How soon an idle worker looks again at a reader that is behind, or at a client that may have left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Pool to worker thread.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    Start {
        start: Box<Start>,
        stream: Stream,
    },
    Command(Command),
    /// End now, with whatever runs.
    Stop,
}

/// Worker thread to pool.
#[derive(Debug)]
pub(crate) enum WorkerReport {
    Event(WorkerId, Event),
    /// The thread is gone, with everything it ran.
    Gone(WorkerId),
}

/// What a worker thread is given.
pub(crate) struct WorkerSetup {
    pub(crate) id: WorkerId,
    pub(crate) worker: Worker,
    pub(crate) messages: Receiver<WorkerMessage>,
    pub(crate) reports: Sender<WorkerReport>,
    pub(crate) metrics: Arc<WorkerMetrics>,
}

/// Starts the thread. It ends when the sender of `messages` is gone and everything it ran is done.
pub(crate) fn spawn<E: Engine + Send + 'static>(
    mut engine: E,
    setup: WorkerSetup,
) -> Result<JoinHandle<()>, ServerError> {
    let (id, reports, metrics) = (setup.id, setup.reports.clone(), setup.metrics.clone());
    let body = move || {
        metrics.up.set(1);
        let ended = catch_unwind(AssertUnwindSafe(|| WorkerThread::new(setup).run(&mut engine)));
        metrics.up.set(0);
        if ended.is_err() {
            tracing::error!(worker = %id, "worker thread panicked; its generations are lost");
        }
        // Nobody to tell if the pool is gone too.
        let _ = reports.send(WorkerReport::Gone(id));
    };
    let builder = std::thread::Builder::new().name(format!("worker-{id}"));
    builder.spawn(body).map_err(|error| ServerError::internal("start a worker thread", error))
}

struct WorkerThread {
    setup: WorkerSetup,
    streams: Streams,
    events: Vec<Event>,
    gone: Vec<RequestId>,
    begun: Instant,
}

impl WorkerThread {
    fn new(setup: WorkerSetup) -> Self {
        Self { setup, streams: Streams::default(), events: Vec::new(), gone: Vec::new(), begun: Instant::now() }
    }

    fn run(mut self, engine: &mut impl Engine) {
        let mut behind = false;
        while self.take_messages(engine, behind) {
            self.cancel_gone(engine);
            let step = self.setup.worker.step(self.begun.elapsed(), engine, &mut self.events);
            if let Step::Decoded { tokens } = step {
                self.setup.metrics.batch_tokens.observe(tokens as f64);
            }
            self.send_events();
            behind = self.streams.flush();
        }
    }

    /// Takes in what has come; waits for it only when there is nothing else to do. False when all is over.
    fn take_messages(&mut self, engine: &mut impl Engine, behind: bool) -> bool {
        loop {
            let idle = self.setup.worker.is_idle();
            let received = if !idle {
                self.setup.messages.try_recv()
            } else if behind {
                self.setup.messages.recv_timeout(LOOK_AGAIN).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.setup.messages.recv().map_err(|_| TryRecvError::Disconnected)
            };
            match received {
                Ok(WorkerMessage::Stop) => return false,
                Ok(WorkerMessage::Start { start, stream }) => {
                    self.streams.insert(start.id, stream);
                    self.carry_out(Command::Start(start), engine);
                }
                Ok(WorkerMessage::Command(command)) => self.carry_out(command, engine),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !idle || behind,
            }
        }
    }

    fn carry_out(&mut self, command: Command, engine: &mut impl Engine) {
        self.setup.worker.handle(command, engine, &mut self.events);
        self.send_events();
    }

    fn cancel_gone(&mut self, engine: &mut impl Engine) {
        self.gone.clear();
        self.gone.extend(self.streams.closed());
        for id in std::mem::take(&mut self.gone) {
            self.setup.worker.handle(Command::Cancel { id }, engine, &mut self.events);
            self.streams.remove(id);
        }
    }

    fn send_events(&mut self) {
        let mut ended = false;
        for event in self.events.drain(..) {
            let Some(id) = event.id() else { continue };
            if !matches!(event, Event::Delta { .. }) {
                ended |= matches!(event, Event::Finished { .. } | Event::Failed { .. });
                // A send fails only when the pool is gone; the generations then run to their end.
                let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, event.clone()));
            }
            if !matches!(event, Event::Progressed { .. }) {
                self.streams.send(id, event);
            }
        }
        if ended {
            let facts = Event::Facts(self.setup.worker.facts());
            let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, facts));
        }
    }
}
