//! The thread that owns an engine: takes commands, steps, and reports to the pool. `streams` delivers to clients.
use std::time::{Duration, Instant};

use camshaft_core::engine::{Engine, EngineLimits};
use camshaft_core::ids::WorkerId;
use camshaft_core::message::{Command, Event, Events, Start};
use camshaft_core::report::{Report, Reporter};
use camshaft_core::worker::{Step, Worker};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError};

use crate::error::ServerError;
use crate::streams::{Pace, Stream, Streams};
use crate::supervisor::{Gauges, Service, Stop, Supervisor};

/// How soon an idle worker looks again at a reader that is behind.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// Messages on their way to a worker. The pool keeps what does not fit, see `mailbox`.
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
    Step(WorkerId, Box<Report>),
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

    fn run(&mut self, incarnation: &mut Incarnation<E>, stop: &Stop) {
        WorkerThread::new(&self.setup, incarnation).run(stop);
    }

    /// Without a pool nobody wants another incarnation.
    fn down(&mut self, incarnation: Incarnation<E>) -> bool {
        let wanted = self.setup.reports.send(WorkerReport::Down(self.setup.id)).is_ok();
        // With what is on its way to it; the disk tier of the worker's cache may then wait for seconds.
        drop(incarnation.messages);
        wanted
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
    incarnation: &'a mut Incarnation<E>,
    streams: Streams,
    reporter: Reporter,
    /// Lent to each [`Outlet`].
    events: Vec<Event>,
    begun: Instant,
}

impl<'a, E: Engine> WorkerThread<'a, E> {
    fn new(setup: &'a WorkerSetup, incarnation: &'a mut Incarnation<E>) -> Self {
        let streams = Streams::new(setup.frame_interval);
        Self { setup, incarnation, streams, reporter: Reporter::default(), events: Vec::new(), begun: Instant::now() }
    }

    fn run(mut self, stop: &Stop) {
        let mut behind = false;
        while !stop.is_set() && self.take_messages(behind) {
            let begun = Instant::now();
            if self.incarnation.worker.may_take_longer() {
                self.streams.flush_gathered(begun);
            }
            let now = self.begun.elapsed();
            let step = self.with_worker(|worker, engine, outlet| worker.step(now, engine, outlet));
            if let Step::Decoded { tokens } = step {
                self.reporter.decoded(tokens);
            }
            let now = Instant::now();
            if now.saturating_duration_since(begun) >= self.setup.frame_interval {
                // The next step will take as long: several tokens of this one, drafted rightly, are not to wait for it.
                self.streams.flush_gathered(now);
            }
            behind = self.streams.flush(now);
            self.apply_backpressure();
            self.report();
        }
    }

    /// Takes in what has come; waits for it only when there is nothing else to do. False when all is over.
    fn take_messages(&mut self, behind: bool) -> bool {
        loop {
            let idle = self.incarnation.worker.is_idle();
            let mut received = self.incarnation.messages.try_recv();
            if idle && matches!(received, Err(TryRecvError::Empty)) {
                // The pool hears of everything before the worker sleeps.
                self.report();
                // A command may have left an end that did not fit its channel.
                let behind = self.streams.flush(Instant::now()) || behind;
                received = self.wait(behind);
            }
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

    fn wait(&self, behind: bool) -> Result<WorkerMessage, TryRecvError> {
        if !behind {
            return self.incarnation.messages.recv().map_err(|_| TryRecvError::Disconnected);
        }
        self.incarnation.messages.recv_timeout(LOOK_AGAIN).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    fn carry_out(&mut self, command: Command) {
        self.with_worker(|worker, engine, outlet| worker.handle(command, engine, outlet));
    }

    fn with_worker<T>(&mut self, run: impl FnOnce(&mut Worker, &mut E, &mut Outlet<'_>) -> T) -> T {
        let Self { streams, reporter, events, .. } = self;
        let mut outlet = Outlet { streams, reporter, events };
        let Incarnation { engine, worker, .. } = &mut *self.incarnation;
        let result = run(worker, engine, &mut outlet);
        outlet.flush();
        result
    }

    /// Tells the pool what happened, with the facts that hold now.
    fn report(&mut self) {
        if let Some(report) = self.reporter.take(&self.incarnation.worker) {
            // A send fails only when the pool is gone; the generations then run to their end.
            let _ = self.setup.reports.send(WorkerReport::Step(self.setup.id, Box::new(report)));
        }
    }

    /// Sequences of readers who are behind leave the worker, and come back when those have caught up.
    fn apply_backpressure(&mut self) {
        for (id, pace) in self.streams.review(Instant::now(), self.setup.slow_reader) {
            self.carry_out(match pace {
                Pace::Pause => Command::Pause { id },
                Pace::Resume => Command::Resume { id },
                Pace::Cut => Command::Cancel { id },
            });
        }
    }
}

/// Where a worker's events go: to the clients at once, and into the next report. They go together: each that went by
/// itself would wake a thread.
struct Outlet<'a> {
    streams: &'a mut Streams,
    reporter: &'a mut Reporter,
    events: &'a mut Vec<Event>,
}

impl Events for Outlet<'_> {
    fn push(&mut self, event: Event) {
        self.events.push(event);
    }

    fn flush(&mut self) {
        let now = Instant::now();
        for event in self.events.drain(..) {
            self.reporter.note(&event);
            if matches!(
                event,
                Event::Started { .. } | Event::Delta { .. } | Event::Finished { .. } | Event::Failed { .. }
            ) {
                self.streams.send(event.id(), event, now);
            }
        }
    }
}

#[cfg(test)]
#[path = "worker_thread_tests.rs"]
mod tests;
