//! The thread that owns an engine: takes commands, steps, sends events on.
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::engine::{Engine, EngineLimits};
use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::{Command, Event, Events, Start};
use camshaft_core::worker::{Step, Worker};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use crate::error::ServerError;
use crate::metrics::WorkerMetrics;
use crate::streams::{Pace, Stream, Streams};
use crate::supervisor::{Gauges, Service, Stop, Supervisor};

/// How soon an idle worker looks again at a reader that is behind, or at a client that may have left.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Messages on their way to a worker: more than its sequences, so that the pool never waits.
const MESSAGES: usize = 1024;

/// Pool to worker thread.
#[derive(Debug)]
pub(crate) enum WorkerMessage {
    Start {
        start: Box<Start>,
        need: u32,
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
    Down(WorkerId),
    /// A new incarnation of a worker that was gone.
    Up(WorkerId, Handle),
}

/// What a pool needs of an incarnation of a worker: what it can hold, and the way to it.
#[derive(Debug)]
pub(crate) struct Handle {
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

/// One engine with its worker, from its making to its end.
struct Incarnation<E> {
    engine: E,
    worker: Worker,
    messages: Receiver<WorkerMessage>,
}

/// Makes engines with their workers and runs them, one after the other.
struct WorkerService<F> {
    setup: WorkerSetup,
    make: F,
}

impl<E, F> Service for WorkerService<F>
where
    E: Engine + Send + 'static,
    F: FnMut() -> Result<(E, Worker), ServerError> + Send + 'static,
{
    type Incarnation = Incarnation<E>;
    type Handle = Handle;

    fn make(&mut self) -> Result<(Incarnation<E>, Handle), ServerError> {
        let (engine, worker) = (self.make)()?;
        let (sender, messages) = crossbeam_channel::bounded(MESSAGES);
        let handle = Handle { limits: engine.limits(), messages: sender };
        Ok((Incarnation { engine, worker, messages }, handle))
    }

    fn run(&mut self, incarnation: Incarnation<E>, stop: &Stop) {
        WorkerThread::new(&self.setup, incarnation).run(stop);
    }

    /// Without a pool nobody wants another incarnation.
    fn down(&mut self) -> bool {
        self.setup.reports.send(WorkerReport::Down(self.setup.id)).is_ok()
    }

    fn up(&mut self, handle: Handle) -> bool {
        self.setup.reports.send(WorkerReport::Up(self.setup.id, handle)).is_ok()
    }
}

/// Makes an engine with its worker on the calling thread and starts the thread that owns them. After a panic the thread
/// makes new ones. It ends when the sender of messages is gone and everything it ran is done, or when the supervisor says.
///
/// # Errors
/// What `make` failed with the first time.
pub(crate) fn spawn<E: Engine + Send + 'static>(
    supervisor: &Supervisor,
    gauges: Gauges,
    setup: WorkerSetup,
    make: impl FnMut() -> Result<(E, Worker), ServerError> + Send + 'static,
) -> Result<Handle, ServerError> {
    let name = format!("worker-{}", setup.id);
    let mut service = WorkerService { setup, make };
    let (first, handle) = service.make()?;
    supervisor.supervise(&name, gauges, service, first)?;
    Ok(handle)
}

struct WorkerThread<'a, E> {
    setup: &'a WorkerSetup,
    incarnation: Incarnation<E>,
    streams: Streams,
    /// Lent to each [`Outlet`].
    events: Vec<Event>,
    gone: Vec<RequestId>,
    begun: Instant,
}

impl<'a, E: Engine> WorkerThread<'a, E> {
    fn new(setup: &'a WorkerSetup, incarnation: Incarnation<E>) -> Self {
        let (streams, events, gone) = (Streams::new(setup.frame_interval), Vec::new(), Vec::new());
        Self { setup, incarnation, streams, events, gone, begun: Instant::now() }
    }

    fn run(mut self, stop: &Stop) {
        let mut behind = false;
        while !stop.is_set() && self.take_messages(behind) {
            self.cancel_gone();
            let begun = Instant::now();
            if self.incarnation.worker.may_take_longer() {
                self.streams.flush_gathered(begun);
            }
            let now = self.begun.elapsed();
            let step = self.with_worker(|worker, engine, outlet| worker.step(now, engine, outlet));
            if let Step::Decoded { tokens } = step {
                self.setup.metrics.batch_tokens.observe(tokens as f64);
            }
            let now = Instant::now();
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
            let idle = self.incarnation.worker.is_idle();
            let received = if !idle {
                self.incarnation.messages.try_recv()
            } else if behind {
                self.incarnation.messages.recv_timeout(LOOK_AGAIN).map_err(|error| match error {
                    RecvTimeoutError::Timeout => TryRecvError::Empty,
                    RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
                })
            } else {
                self.incarnation.messages.recv().map_err(|_| TryRecvError::Disconnected)
            };
            match received {
                Ok(WorkerMessage::Stop) => return false,
                Ok(WorkerMessage::Start { start, need, stream }) => {
                    self.streams.insert(start.id, stream);
                    self.carry_out(Command::Start { start, need });
                }
                Ok(WorkerMessage::Command(command)) => self.carry_out(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return !idle || behind,
            }
        }
    }

    fn carry_out(&mut self, command: Command) {
        self.with_worker(|worker, engine, outlet| worker.handle(command, engine, outlet));
    }

    /// What the worker tells on the way goes out, and then what that adds up to.
    fn with_worker<T>(&mut self, run: impl FnOnce(&mut Worker, &mut E, &mut Outlet<'_>) -> T) -> T {
        let Self { setup, streams, events, .. } = self;
        let mut outlet = Outlet { setup, streams, events, ended: false, parked: 0 };
        let Incarnation { engine, worker, .. } = &mut self.incarnation;
        let result = run(worker, engine, &mut outlet);
        outlet.flush();
        let Outlet { ended, parked, .. } = outlet;
        self.setup.metrics.parks.inc_by(parked);
        if ended || parked > 0 {
            self.setup.metrics.publish(&worker.cache_facts());
            let facts = Event::Facts(worker.facts());
            // A send fails only when the pool is gone; the generations then run to their end.
            let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, facts));
        }
        result
    }

    /// Sequences of readers who are behind leave the worker, and come back when those have caught up.
    fn mind_readers(&mut self) {
        for (id, pace) in self.streams.review(Instant::now(), self.setup.slow_reader) {
            self.carry_out(match pace {
                Pace::Pause => Command::Pause { id },
                Pace::Resume => Command::Resume { id },
                Pace::Cut => Command::Cancel { id },
            });
        }
    }

    fn cancel_gone(&mut self) {
        self.gone.clear();
        self.gone.extend(self.streams.closed());
        for id in std::mem::take(&mut self.gone) {
            self.carry_out(Command::Cancel { id });
            self.streams.remove(id);
        }
    }
}

/// The way of a worker's events to the pool and to the clients' streams. They go together: each that went by itself would
/// wake a thread.
struct Outlet<'a> {
    setup: &'a WorkerSetup,
    streams: &'a mut Streams,
    events: &'a mut Vec<Event>,
    /// Whether a generation was admitted or ended.
    ended: bool,
    /// How many were parked.
    parked: u64,
}

impl Events for Outlet<'_> {
    fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    fn flush(&mut self) {
        let now = Instant::now();
        for event in self.events.drain(..) {
            let Some(id) = event.id() else {
                let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, event));
                continue;
            };
            if !matches!(event, Event::Delta { .. }) {
                self.ended |= matches!(event, Event::Admitted { .. } | Event::Finished { .. } | Event::Failed { .. });
                if let Event::Finished { usage, .. } = &event {
                    self.setup.metrics.count_drafts(usage);
                }
                self.parked += u64::from(matches!(event, Event::Preempted { .. }));
                let _ = self.setup.reports.send(WorkerReport::Event(self.setup.id, event.clone()));
            }
            if matches!(
                event,
                Event::Started { .. } | Event::Delta { .. } | Event::Finished { .. } | Event::Failed { .. }
            ) {
                self.streams.send(id, event, now);
            }
        }
    }
}

#[cfg(test)]
#[path = "worker_thread_tests.rs"]
mod tests;
