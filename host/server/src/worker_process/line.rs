//! The server's side of a worker in a process of its own: commands go to it, what it says goes to the pool and to clients.
use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camshaft_api::Health;
use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::{Command, Events};
use camshaft_policy::PolicyHost;
use camshaft_process::frames::{self, Incoming, Received};
use crossbeam_channel::{Sender, TrySendError, bounded};
use tokio::io::Interest;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::timeout;

use super::host::{EngineProcess, Running};
use super::{FromWorker, HEARTBEAT, Limits, ToWorker};
use crate::delivery::Delivery;
use crate::error::ServerError;
use crate::streams::Stream;
use crate::supervisor::{Ending, Service, Stop};
use crate::thread_budget::ThreadBudget;
use crate::worker::{Handle as WorkerHandle, MessageWay, WorkerMessage, WorkerReport, WorkerSetup};

/// How often it is looked at clients that are behind.
const RECHECK: Duration = Duration::from_millis(5);
/// How often it is looked at whether the thread has to end, and whether the worker goes on.
const LOOK: Duration = HEARTBEAT;
/// How long a worker may say nothing: this, and so many of its longest steps.
const SILENCE: Duration = Duration::from_secs(5);
const STEPS: u32 = 20;
/// When it is told to be late: after this, and so many of its longest steps.
const LATE: Duration = Duration::from_secs(1);
const LATE_STEPS: u32 = 10;
/// Before its first step.
const FIRST_SILENCE: Duration = Duration::from_secs(60);

/// How long a worker may say nothing, by its longest step so far.
#[derive(Debug, Default)]
pub(super) struct Pace {
    longest: Duration,
}

impl Pace {
    pub(super) fn note(&mut self, took: Duration) {
        self.longest = self.longest.max(took);
    }

    /// Until it is told to be late.
    pub(super) fn late(&self) -> Duration {
        self.after(LATE, LATE_STEPS)
    }

    /// Until it is given up.
    pub(super) fn dead(&self) -> Duration {
        self.after(SILENCE, STEPS)
    }

    fn after(&self, silence: Duration, steps: u32) -> Duration {
        if self.longest.is_zero() { FIRST_SILENCE } else { silence + self.longest * steps }
    }
}

/// The way to a worker. It is never waited for.
#[derive(Debug)]
pub(crate) struct Line(Mutex<Sending>);

#[derive(Debug)]
struct Sending {
    socket: UnixStream,
    /// What the worker did not take yet of a message.
    rest: Vec<u8>,
    /// Clients of those that were started since somebody looked.
    newcomers: Vec<(RequestId, Stream)>,
    /// Messages so far, and when one was sent that the worker had heard all before.
    sent: u64,
    heard: u64,
    unheard_since: Option<Instant>,
}

/// The end of the way that the pool has.
#[derive(Debug)]
struct LineEnd(Arc<Line>);

impl Drop for LineEnd {
    fn drop(&mut self) {
        // Where the worker takes nothing in at the moment, it sees the end of its socket later.
        let _ = self.0.send(&ToWorker::NoMore);
    }
}

impl MessageWay for LineEnd {
    fn try_send(&self, message: WorkerMessage) -> Result<(), TrySendError<WorkerMessage>> {
        let mut sending = self.0.lock();
        match sending.flush() {
            Ok(true) => {}
            Ok(false) => return Err(TrySendError::Full(message)),
            Err(_) => return Err(TrySendError::Disconnected(message)),
        }
        let message = match message {
            WorkerMessage::Start { start, need, stream } => {
                sending.newcomers.push((start.id, stream));
                ToWorker::Command(Command::Start { start, need })
            }
            WorkerMessage::Command(command) => ToWorker::Command(command),
            WorkerMessage::Stop => ToWorker::Stop,
        };
        // A worker that is gone is reported by the thread that listens to it.
        let _ = sending.send(&message);
        Ok(())
    }

    fn is_behind(&self) -> bool {
        // What is left goes out now if it can.
        matches!(self.0.lock().flush(), Ok(false))
    }
}

impl Line {
    fn new(socket: UnixStream) -> Self {
        let (rest, newcomers) = (Vec::new(), Vec::new());
        Self(Mutex::new(Sending { socket, rest, newcomers, sent: 0, heard: 0, unheard_since: None }))
    }

    fn lock(&self) -> MutexGuard<'_, Sending> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, message: &ToWorker) -> io::Result<()> {
        self.lock().send(message)
    }
}

impl Sending {
    /// Sends what is left. Whether nothing is.
    fn flush(&mut self) -> io::Result<bool> {
        if !self.rest.is_empty() {
            let sent = frames::send_now(&self.socket, &self.rest)?;
            self.rest.drain(..sent);
        }
        Ok(self.rest.is_empty())
    }

    /// Behind what is left, if something is: that is for messages that no one keeps.
    fn send(&mut self, message: &ToWorker) -> io::Result<()> {
        self.rest.extend(frames::encode(message)?);
        self.sent += 1;
        self.unheard_since.get_or_insert_with(Instant::now);
        self.flush().map(drop)
    }
}

/// Makes workers in a process and listens to them, one after the other.
pub(crate) struct LineService {
    pub(crate) process: Arc<EngineProcess>,
    /// That of the clients' connections: what a worker says wakes no thread beside theirs.
    pub(crate) runtime: Handle,
    pub(crate) setup: Arc<Mutex<WorkerSetup>>,
    pub(crate) policies: Arc<PolicyHost>,
    pub(crate) budget: Arc<ThreadBudget>,
    pub(crate) health: Health,
    /// A device computes all of its layers, so that processors are left.
    pub(crate) is_on_device: bool,
    /// Of the model.
    pub(crate) _alive: Sender<Infallible>,
}

/// One worker, from its opening to its end.
pub(crate) struct Worker {
    line: Arc<Line>,
    /// Until it is listened to.
    incoming: Option<UnixStream>,
    running: Arc<Running>,
}

impl LineService {
    fn setup(&self) -> MutexGuard<'_, WorkerSetup> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self, report: WorkerReport) -> bool {
        let reports = self.setup().reports.clone();
        reports.send(report).is_ok()
    }
}

impl Service for LineService {
    type Incarnation = Worker;
    type Handle = WorkerHandle;

    fn make(&mut self) -> Result<(Worker, WorkerHandle), ServerError> {
        let (id, cores) = {
            let setup = self.setup();
            (setup.id, setup.cores.clone())
        };
        let (socket, limits, running) = self.process.open(id, &cores)?;
        let Limits::Generates(limits) = limits else {
            return Err(ServerError::internal("listen to a worker", anyhow::anyhow!("it computes batches")));
        };
        let internal = |error| ServerError::internal("listen to a worker", error);
        socket.set_nonblocking(true).map_err(internal)?;
        let listening = socket.try_clone().map_err(internal)?;
        let line = Arc::new(Line::new(socket));
        let handle = WorkerHandle { limits, messages: Box::new(LineEnd(line.clone())) };
        Ok((Worker { line, incoming: Some(listening), running }, handle))
    }

    fn run(&mut self, worker: &mut Worker, stop: &Stop) -> Ending {
        let Some(socket) = worker.incoming.take() else { return Ending::Lost };
        let (id, reports, delivery) = {
            let setup = self.setup();
            (setup.id, setup.reports.clone(), Delivery::new(setup.frame_interval, setup.slow_reader))
        };
        let listener = Listener {
            id,
            reports,
            setup: self.setup.clone(),
            policies: self.policies.clone(),
            budget: self.budget.clone(),
            health: self.health.clone(),
            line: worker.line.clone(),
            running: worker.running.clone(),
            delivery,
            last: Instant::now(),
            is_idle: true,
            is_on_device: self.is_on_device,
            pace: Pace::default(),
            told: None,
        };
        let (ended, ending) = bounded(1);
        let stop = stop.clone();
        self.runtime.spawn(async move {
            let ending = listener.run(socket, &stop).await.unwrap_or_else(|error| {
                tracing::error!(worker = %id, %error, "a worker cannot be listened to");
                Ending::Lost
            });
            // Who waits for it waits until it is told.
            let _ = ended.send(ending);
        });
        // It panicked, or the runtime ends.
        ending.recv().unwrap_or(Ending::Lost)
    }

    fn down(&mut self, worker: Worker) -> bool {
        let id = {
            let mut setup = self.setup();
            setup.seat.rest();
            setup.id
        };
        let wanted = self.report(WorkerReport::Down(id));
        drop(worker);
        wanted
    }

    fn up(&mut self, handle: WorkerHandle) -> bool {
        let id = self.setup().id;
        self.report(WorkerReport::Up(id, handle))
    }
}

/// What a worker says, as it comes.
struct Said {
    incoming: Incoming,
    ready: tokio::net::UnixStream,
}

impl Said {
    /// The next message, or `Nothing` if none has come for this long.
    async fn next(&mut self, patience: Duration) -> io::Result<Received<FromWorker>> {
        loop {
            // Several may have come together.
            match self.incoming.next(Some(Duration::ZERO))? {
                Received::Nothing => {}
                other => return Ok(other),
            }
            let Ok(ready) = timeout(patience, self.ready.readable()).await else { return Ok(Received::Nothing) };
            ready?;
            let read = self.ready.try_io(Interest::READABLE, || match self.incoming.next(Some(Duration::ZERO))? {
                Received::Nothing => Err(io::Error::from(io::ErrorKind::WouldBlock)),
                other => Ok(other),
            });
            if !matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
                return read;
            }
        }
    }
}

/// Listens to one worker.
struct Listener {
    id: WorkerId,
    reports: Sender<WorkerReport>,
    setup: Arc<Mutex<WorkerSetup>>,
    policies: Arc<PolicyHost>,
    budget: Arc<ThreadBudget>,
    health: Health,
    line: Arc<Line>,
    running: Arc<Running>,
    delivery: Delivery,
    /// When it said something last.
    last: Instant,
    is_idle: bool,
    is_on_device: bool,
    pace: Pace,
    /// Threads that it was told of, and whether a processor is left.
    told: Option<(u32, bool)>,
}

impl Listener {
    async fn run(mut self, socket: UnixStream, stop: &Stop) -> io::Result<Ending> {
        let ready = tokio::net::UnixStream::from_std(socket.try_clone()?)?;
        let mut said = Said { incoming: Incoming::new(socket), ready };
        let (mut is_behind, mut is_stopped) = (false, false);
        loop {
            // Part of a message may be left, too; a worker that is gone says so by its end.
            let has_rest = matches!(self.line.lock().flush(), Ok(false));
            let patience = if is_behind || has_rest { RECHECK } else { LOOK };
            match said.next(patience).await {
                Ok(Received::Message(message)) if message.has_ended => {
                    self.take(message);
                    return Ok(Ending::Done);
                }
                Ok(Received::Message(message)) => is_behind = self.take(message),
                Ok(Received::Nothing) => {
                    is_behind = self.delivery.send_waiting();
                    self.health.set_late(self.is_silent_for(self.pace.late()));
                    // Nothing ends a thread.
                    if self.is_silent_for(self.pace.dead()) && self.running.pid().is_some() {
                        let (worker, pid) = (self.id, self.running.pid());
                        tracing::error!(%worker, pid, "a worker says nothing any more: its process is killed");
                        self.running.kill();
                        return Ok(Ending::Lost);
                    }
                }
                Ok(Received::Closed) => return Ok(Ending::Lost),
                Err(error) => {
                    tracing::error!(worker = %self.id, %error, "what a worker says cannot be read");
                    self.running.kill();
                    return Ok(Ending::Lost);
                }
            }
            self.press_back();
            if !is_stopped && stop.is_set() {
                // The pool has told it, too, unless it is behind.
                is_stopped = true;
                self.health.drain();
                let _ = self.line.send(&ToWorker::Stop);
            }
        }
    }

    /// Passes on what the worker says. Whether some client has something to take yet.
    fn take(&mut self, message: FromWorker) -> bool {
        let FromWorker { notes, events, report, heard, is_idle, may_take_longer, took, .. } = message;
        (self.last, self.is_idle) = (Instant::now(), is_idle);
        self.health.set_late(false);
        self.pace.note(took);
        {
            let mut sending = self.line.lock();
            sending.heard = heard;
            if heard >= sending.sent {
                sending.unheard_since = None;
            } else {
                sending.unheard_since = Some(self.last);
            }
            let newcomers = std::mem::take(&mut sending.newcomers);
            drop(sending);
            newcomers.into_iter().for_each(|(id, stream)| self.delivery.insert(id, stream));
        }
        // Before clients hear of it.
        self.policies.note(notes, self.running.process());
        events.into_iter().for_each(|event| self.delivery.push(event));
        self.delivery.flush();
        self.delivery.before_step(self.last, may_take_longer);
        let is_behind = self.delivery.after_step(self.last.checked_sub(took).unwrap_or(self.last), self.last);
        if let Some(report) = report {
            // A send fails only when the pool is gone; the generations then run to their end.
            if let Err(TrySendError::Full(report)) = self.reports.try_send(WorkerReport::Step(self.id, report)) {
                let _ = block_in_place(|| self.reports.send(report));
            }
        }
        self.divide_cores();
        is_behind
    }

    /// Tells the worker how many threads compute from its next step on, where that is another number.
    fn divide_cores(&mut self) {
        let mut setup = self.setup.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_idle {
            return setup.seat.rest();
        }
        let now = (setup.seat.begin(), self.is_on_device || self.budget.has_spare());
        drop(setup);
        if self.told != Some(now) {
            self.told = Some(now);
            // A worker that is gone is noticed by what it does not say.
            let _ = self.line.send(&ToWorker::Threads(now.0, now.1));
        }
    }

    /// Has the worker compute no more than clients take.
    fn press_back(&mut self) {
        for command in self.delivery.backpressure() {
            let _ = self.line.send(&ToWorker::Command(command));
        }
    }

    /// Whether it has said nothing for this long, though it has something to do.
    fn is_silent_for(&self, most: Duration) -> bool {
        let unheard = self.line.lock().unheard_since;
        let since = if self.is_idle { unheard } else { Some(self.last) };
        since.is_some_and(|since| since.elapsed() > most)
    }
}
