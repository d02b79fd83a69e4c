//! The thread of a worker. It runs the engine loop and the delivery to clients in turn; the two share only messages, so
//! that the loop could run in another process.
use std::convert::Infallible;
use std::fmt;
use std::time::{Duration, Instant};

use camshaft_core::engine::{Engine, EngineLimits};
use camshaft_core::engine_loop::EngineLoop;
use camshaft_core::ids::WorkerId;
use camshaft_core::message::{Command, Start};
use camshaft_core::report::Report;
use camshaft_core::worker::Worker;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TryRecvError, TrySendError};
use rustix::thread::CpuSet;

use crate::cores::Team;
use crate::delivery::Delivery;
use crate::error::ServerError;
use crate::streams::Stream;
use crate::supervisor::{Ending, Gauges, Service, Stop, Supervisor};
use crate::thread_budget::Seat;

/// How often an idle worker checks on a reader that is behind.
const RECHECK: Duration = Duration::from_millis(5);
/// Steps from one look at whether the threads that compute are still the same to the next.
const LOOK_AT_TEAM: u32 = 64;
/// Capacity of a worker's channel, in messages. The pool keeps what does not fit, see `mailbox`.
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

/// How messages get to a worker, which nobody waits for. Dropped, it says that nothing more comes.
pub(crate) trait MessageWay: fmt::Debug + Send {
    /// Sends a message if the worker takes it now.
    ///
    /// # Errors
    /// It does not, or it is gone.
    #[expect(clippy::result_large_err, reason = "as channels give it back")]
    fn try_send(&self, message: WorkerMessage) -> Result<(), TrySendError<WorkerMessage>>;

    /// Whether a part of a message was not taken yet.
    fn is_behind(&self) -> bool {
        false
    }
}

impl MessageWay for Sender<WorkerMessage> {
    fn try_send(&self, message: WorkerMessage) -> Result<(), TrySendError<WorkerMessage>> {
        self.try_send(message)
    }
}

/// What a pool needs of an incarnation of a worker: what it can hold, and the way to it.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) limits: EngineLimits,
    pub(crate) messages: Box<dyn MessageWay>,
}

/// What a worker thread is given.
pub(crate) struct WorkerSetup {
    pub(crate) id: WorkerId,
    pub(crate) reports: Sender<WorkerReport>,
    /// How long a reader may be behind.
    pub(crate) slow_reader: Duration,
    /// Text of a stream that comes faster shares frames.
    pub(crate) frame_interval: Duration,
    /// For the threads that compute, one each; none: they run anywhere.
    pub(crate) cores: Vec<CpuSet>,
    /// For its threads among those of all models.
    pub(crate) seat: Seat,
}

/// One engine with its worker, from its making to its end.
struct Incarnation<E> {
    engine: EngineLoop<E>,
    messages: Receiver<WorkerMessage>,
}

/// Makes engines with their workers and runs them, one after the other.
struct WorkerService<F> {
    setup: WorkerSetup,
    make: F,
    /// Dropped when the first engine is warm.
    cold: Option<Sender<Infallible>>,
    /// The thread and those that compute with it, if they are kept on cores.
    team: Option<Team>,
    /// The same between two engines, while they run anywhere.
    released: Option<Team>,
}

impl<E, F> Service for WorkerService<F>
where
    E: Engine + Send + 'static,
    F: FnMut() -> Result<(E, Worker), ServerError> + Send + 'static,
{
    type Incarnation = Incarnation<E>;
    type Handle = Handle;

    fn make(&mut self) -> Result<(Incarnation<E>, Handle), ServerError> {
        // What is started meanwhile, as the writer of a cache on disk, would stay on the core of this thread.
        if let Some(team) = self.team.take() {
            self.released = team.released();
        }
        let (engine, worker) = (self.make)()?;
        let (sender, messages) = crossbeam_channel::bounded(MESSAGES);
        let handle = Handle { limits: engine.limits(), messages: Box::new(sender) };
        Ok((Incarnation { engine: EngineLoop::new(engine, worker), messages }, handle))
    }

    fn run(&mut self, incarnation: &mut Incarnation<E>, stop: &Stop) -> Ending {
        let cold = self.cold.take();
        // The thread's first engine starts those that compute, and the later ones find them.
        let (warm, team) = match self.released.take() {
            Some(team) => (incarnation.engine.warm_up(), team.placed().ok()),
            None => Team::keep(&std::mem::take(&mut self.setup.cores), || incarnation.engine.warm_up()),
        };
        self.team = team;
        if let Err(error) = warm {
            tracing::warn!(%error, worker = %self.setup.id, "the engine could not decode a first token");
        }
        drop(cold);
        WorkerThread::new(&mut self.setup, incarnation).run(&mut self.team, stop);
        Ending::Done
    }

    /// Without a pool nobody wants another incarnation.
    fn down(&mut self, incarnation: Incarnation<E>) -> bool {
        self.setup.seat.rest();
        let wanted = self.setup.reports.send(WorkerReport::Down(self.setup.id)).is_ok();
        // With what is on its way to it; the disk tier of the worker's cache may then wait for seconds.
        drop(incarnation.messages);
        wanted
    }

    fn up(&mut self, handle: Handle) -> bool {
        self.setup.reports.send(WorkerReport::Up(self.setup.id, handle)).is_ok()
    }
}

/// Makes an engine with its worker on the calling thread, starts the thread that owns them, and waits until it is warm.
/// After a panic the thread makes new ones. It ends when the sender of messages is gone and everything it ran is done, or
/// when the supervisor says.
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
    let (cold, warm) = crossbeam_channel::bounded(1);
    let mut service = WorkerService { setup, make, cold: Some(cold), team: None, released: None };
    let (first, handle) = service.make()?;
    supervisor.supervise(&name, gauges, service, first)?;
    // Nothing is sent: it ends when the sender is gone.
    let _ = warm.recv();
    Ok(handle)
}

struct WorkerThread<'a, E> {
    setup: &'a mut WorkerSetup,
    engine: &'a mut EngineLoop<E>,
    messages: &'a Receiver<WorkerMessage>,
    delivery: Delivery,
    begun: Instant,
}

impl<'a, E: Engine> WorkerThread<'a, E> {
    fn new(setup: &'a mut WorkerSetup, incarnation: &'a mut Incarnation<E>) -> Self {
        let Incarnation { engine, messages } = incarnation;
        let delivery = Delivery::new(setup.frame_interval, setup.slow_reader);
        Self { setup, engine, messages, delivery, begun: Instant::now() }
    }

    fn run(mut self, team: &mut Option<Team>, stop: &Stop) {
        let (mut behind, mut steps) = (false, 0u32);
        while !stop.is_set() && self.take_messages(behind) {
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(LOOK_AT_TEAM) {
                *team = team.take().and_then(Team::checked);
            }
            self.engine.set_threads(self.setup.seat.begin());
            let begun = Instant::now();
            self.delivery.before_step(begun, self.engine.worker().may_take_longer());
            self.engine.step(self.begun.elapsed(), &mut self.delivery);
            behind = self.delivery.after_step(begun, Instant::now());
            for command in self.delivery.backpressure() {
                self.engine.handle(command, &mut self.delivery);
            }
            self.report();
        }
    }

    /// Takes in all messages that have come; waits for one only if there is nothing else to do. False when all is over.
    fn take_messages(&mut self, behind: bool) -> bool {
        loop {
            let idle = self.engine.worker().is_idle();
            let mut received = self.messages.try_recv();
            if idle && matches!(received, Err(TryRecvError::Empty)) {
                // The pool hears of everything before the worker sleeps.
                self.report();
                self.setup.seat.rest();
                // A command may have ended a stream whose channel was full.
                let behind = self.delivery.send_waiting() || behind;
                received = self.wait(behind);
            }
            match received {
                Ok(WorkerMessage::Stop) => return false,
                Ok(WorkerMessage::Start { start, need, stream }) => {
                    self.delivery.insert(start.id, stream);
                    self.engine.handle(Command::Start { start, need }, &mut self.delivery);
                }
                Ok(WorkerMessage::Command(command)) => self.engine.handle(command, &mut self.delivery),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) if idle && behind => {
                    // Without a pool there are no more messages to wait for, only a slow reader.
                    std::thread::sleep(RECHECK);
                    return true;
                }
                Err(TryRecvError::Disconnected) => return !idle,
            }
        }
    }

    fn wait(&self, behind: bool) -> Result<WorkerMessage, TryRecvError> {
        if !behind {
            return self.messages.recv().map_err(|_| TryRecvError::Disconnected);
        }
        self.messages.recv_timeout(RECHECK).map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        })
    }

    /// Sends the pool the report that is due, if any.
    fn report(&mut self) {
        if let Some(report) = self.engine.report() {
            // A send fails only when the pool is gone; the generations then run to their end.
            let _ = self.setup.reports.send(WorkerReport::Step(self.setup.id, Box::new(report)));
        }
    }
}

#[cfg(test)]
#[path = "worker_thread_tests.rs"]
pub(crate) mod tests;
