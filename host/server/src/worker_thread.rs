//! The thread that owns an engine: takes commands, steps, sends events on.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::engine::{Engine, EngineLimits};
use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::{Command, Event, Start};
use camshaft_core::worker::{Step, Worker};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use crate::error::ServerError;
use crate::metrics::WorkerMetrics;
use crate::streams::{Pace, Stream, Streams};

/// How soon an idle worker looks again at a reader that is behind, or at a client that may have left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Messages on their way to a worker: more than its sequences, so that the pool never waits.
const MESSAGES: usize = 1024;
/// From a panic to the first try of a restart; doubled with each further one up to the bound below.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

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
    /// The worker is gone, with everything it ran.
    Gone(WorkerId),
    /// A fresh worker in place of one that was gone.
    Back(WorkerId, Hired),
}

/// What a pool knows of a worker to begin with.
#[derive(Debug)]
pub(crate) struct Hired {
    pub(crate) limits: EngineLimits,
    pub(crate) messages: Sender<WorkerMessage>,
}

/// What a worker thread is given.
pub(crate) struct WorkerSetup {
    pub(crate) id: WorkerId,
    pub(crate) reports: Sender<WorkerReport>,
    pub(crate) metrics: Arc<WorkerMetrics>,
    /// How long a reader may be behind.
    pub(crate) slow_reader: Duration,
    /// Text of a stream that comes faster shares frames.
    pub(crate) frame_interval: Duration,
}

/// From an engine's making to its end: a worker and the way to it.
struct Life<E> {
    engine: E,
    worker: Worker,
    messages: Receiver<WorkerMessage>,
}

impl<E: Engine> Life<E> {
    fn begin((engine, worker): (E, Worker)) -> (Self, Hired) {
        let (sender, messages) = crossbeam_channel::bounded(MESSAGES);
        let limits = engine.limits();
        (Self { engine, worker, messages }, Hired { limits, messages: sender })
    }
}

/// Makes an engine with its worker on the calling thread and starts the thread that owns them. After a panic the thread
/// makes fresh ones. It ends when the sender of messages is gone and everything it ran is done.
///
/// # Errors
/// What `make` failed with the first time.
pub(crate) fn spawn<E: Engine + Send + 'static>(
    setup: WorkerSetup,
    mut make: impl FnMut() -> Result<(E, Worker), ServerError> + Send + 'static,
) -> Result<Hired, ServerError> {
    let (life, hired) = Life::begin(make()?);
    let builder = std::thread::Builder::new().name(format!("worker-{}", setup.id));
    let thread = builder.spawn(move || live(&setup, life, make));
    thread.map_err(|error| ServerError::internal("start a worker thread", error))?;
    Ok(hired)
}

/// One life after the other until the pool has no more work for any.
fn live<E: Engine>(setup: &WorkerSetup, mut life: Life<E>, mut make: impl FnMut() -> Result<(E, Worker), ServerError>) {
    let WorkerSetup { id, reports, metrics, .. } = setup;
    let mut pause = FIRST_PAUSE;
    loop {
        metrics.up.set(1);
        let begun = Instant::now();
        let ended = catch_unwind(AssertUnwindSafe(|| WorkerThread::new(setup, life).run()));
        metrics.up.set(0);
        // Without a pool there is nobody to come back for.
        if reports.send(WorkerReport::Gone(*id)).is_err() || ended.is_ok() {
            return;
        }
        tracing::error!(worker = %id, "worker thread panicked; its generations are lost");
        if begun.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        let made = loop {
            std::thread::sleep(pause);
            pause = (pause * 2).min(LONGEST_PAUSE);
            match make() {
                Ok(made) => break made,
                Err(error) => tracing::error!(worker = %id, %error, "worker could not be restarted"),
            }
        };
        let hired;
        (life, hired) = Life::begin(made);
        metrics.restarts.inc();
        tracing::info!(worker = %id, "worker restarted");
        if reports.send(WorkerReport::Back(*id, hired)).is_err() {
            return;
        }
    }
}

struct WorkerThread<'a, E> {
    setup: &'a WorkerSetup,
    life: Life<E>,
    streams: Streams,
    events: Vec<Event>,
    gone: Vec<RequestId>,
    begun: Instant,
}

impl<'a, E: Engine> WorkerThread<'a, E> {
    fn new(setup: &'a WorkerSetup, life: Life<E>) -> Self {
        let (streams, events, gone) = (Streams::new(setup.frame_interval), Vec::new(), Vec::new());
        Self { setup, life, streams, events, gone, begun: Instant::now() }
    }

    fn run(mut self) {
        let mut behind = false;
        while self.take_messages(behind) {
            self.cancel_gone();
            let begun = Instant::now();
            if self.life.worker.may_take_longer() {
                self.streams.flush_gathered(begun);
            }
            let Life { engine, worker, .. } = &mut self.life;
            let step = worker.step(self.begun.elapsed(), engine, &mut self.events);
            if let Step::Decoded { tokens } = step {
                self.setup.metrics.batch_tokens.observe(tokens as f64);
            }
            let now = self.send_events();
            if now.saturating_duration_since(begun) >= self.setup.frame_interval {
                // The next step will take as long: several tokens of this one, guessed rightly, are not to wait for it.
                self.streams.flush_gathered(now);
            }
            behind = self.streams.flush(now);
            self.mind_readers();
        }
    }

    /// Takes in what has come; waits for it only when there is nothing else to do. False when all is over.
    fn take_messages(&mut self, behind: bool) -> bool {
        loop {
            let idle = self.life.worker.is_idle();
            let received = if !idle {
                self.life.messages.try_recv()
            } else if behind {
                self.life.messages.recv_timeout(LOOK_AGAIN).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.life.messages.recv().map_err(|_| TryRecvError::Disconnected)
            };
            match received {
                Ok(WorkerMessage::Stop) => return false,
                Ok(WorkerMessage::Start { start, stream }) => {
                    self.streams.insert(start.id, stream);
                    self.carry_out(Command::Start(start));
                }
                Ok(WorkerMessage::Command(command)) => self.carry_out(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !idle || behind,
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        let Life { engine, worker, .. } = &mut self.life;
        worker.handle(command, engine, &mut self.events);
        self.send_events();
    }

    /// Sequences of readers who are behind leave the worker, and come back when those have caught up.
    fn mind_readers(&mut self) {
        for (id, pace) in self.streams.review(Instant::now(), self.setup.slow_reader) {
            self.carry_out(match pace {
                Pace::Hold => Command::Hold { id },
                Pace::Release => Command::Release { id },
                Pace::Cut => Command::Cancel { id },
            });
        }
    }

    fn cancel_gone(&mut self) {
        let Life { engine, worker, .. } = &mut self.life;
        self.gone.clear();
        self.gone.extend(self.streams.closed());
        for id in std::mem::take(&mut self.gone) {
            worker.handle(Command::Cancel { id }, engine, &mut self.events);
            self.streams.remove(id);
        }
    }

    /// When that was.
    fn send_events(&mut self) -> Instant {
        let now = Instant::now();
        let (mut ended, mut parked) = (false, 0);
        for event in self.events.drain(..) {
            let Some(id) = event.id() else {
                let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, event));
                continue;
            };
            if !matches!(event, Event::Delta { .. }) {
                ended |= matches!(event, Event::Finished { .. } | Event::Failed { .. });
                if let Event::Finished { usage, .. } = &event {
                    self.setup.metrics.count_drafts(usage);
                }
                parked += u64::from(matches!(event, Event::Parked { .. }));
                // A send fails only when the pool is gone; the generations then run to their end.
                let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, event.clone()));
            }
            if matches!(
                event,
                Event::Started { .. } | Event::Delta { .. } | Event::Finished { .. } | Event::Failed { .. }
            ) {
                self.streams.send(id, event, now);
            }
        }
        self.setup.metrics.parks.inc_by(parked);
        if ended || parked > 0 {
            self.setup.metrics.publish(&self.life.worker.cache_facts());
            let facts = Event::Facts(self.life.worker.facts());
            let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, facts));
        }
        now
    }
}

#[cfg(test)]
#[path = "worker_thread_tests.rs"]
mod tests;
