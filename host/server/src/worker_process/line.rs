//! The server's side of a worker in a process of its own: commands go to it, what it says goes to the pool and to clients.
use std::convert::Infallible;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::ids::RequestId;
use camshaft_core::message::{Command, Events};
use camshaft_policy::PolicyHost;
use camshaft_process::frames::{self, Incoming, Received};
use crossbeam_channel::{Sender, TrySendError};

use super::host::{EngineProcess, Running};
use super::{FromWorker, HEARTBEAT, ToWorker};
use crate::delivery::Delivery;
use crate::error::ServerError;
use crate::streams::Stream;
use crate::supervisor::{Ending, Service, Stop};
use crate::thread_budget::ThreadBudget;
use crate::worker_thread::{Handle, MessageWay, WorkerMessage, WorkerReport, WorkerSetup};

/// How often it is looked at clients that are behind.
const RECHECK: Duration = Duration::from_millis(5);
/// How often it is looked at whether the thread has to end, and whether the worker goes on.
const LOOK: Duration = HEARTBEAT;
/// How long a worker may say nothing: this, and so many of its longest steps.
const SILENCE: Duration = Duration::from_secs(5);
const STEPS: u32 = 20;
/// Before its first step.
const FIRST_SILENCE: Duration = Duration::from_secs(60);

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
    pub(crate) setup: WorkerSetup,
    pub(crate) policies: Arc<PolicyHost>,
    pub(crate) budget: Arc<ThreadBudget>,
    /// Of the model.
    pub(crate) _alive: Sender<Infallible>,
}

/// One worker, from its opening to its end.
pub(crate) struct Worker {
    line: Arc<Line>,
    incoming: Incoming,
    running: Arc<Running>,
}

impl Service for LineService {
    type Incarnation = Worker;
    type Handle = Handle;

    fn make(&mut self) -> Result<(Worker, Handle), ServerError> {
        let (socket, limits, running) = self.process.open(self.setup.id, &self.setup.cores)?;
        let listening = socket.try_clone().map_err(|error| ServerError::internal("listen to a worker", error))?;
        let line = Arc::new(Line::new(socket));
        let handle = Handle { limits, messages: Box::new(LineEnd(line.clone())) };
        Ok((Worker { line, incoming: Incoming::new(listening), running }, handle))
    }

    fn run(&mut self, worker: &mut Worker, stop: &Stop) -> Ending {
        let delivery = Delivery::new(self.setup.frame_interval, self.setup.slow_reader);
        let now = Instant::now();
        let listener = Listener {
            service: self,
            line: &worker.line,
            running: &worker.running,
            delivery,
            last: now,
            is_idle: true,
            longest: Duration::ZERO,
            told: None,
        };
        listener.run(&mut worker.incoming, stop)
    }

    fn down(&mut self, worker: Worker) -> bool {
        self.setup.seat.rest();
        let wanted = self.setup.reports.send(WorkerReport::Down(self.setup.id)).is_ok();
        drop(worker);
        wanted
    }

    fn up(&mut self, handle: Handle) -> bool {
        self.setup.reports.send(WorkerReport::Up(self.setup.id, handle)).is_ok()
    }
}

/// Listens to one worker.
struct Listener<'a> {
    service: &'a mut LineService,
    line: &'a Line,
    running: &'a Running,
    delivery: Delivery,
    /// When it said something last.
    last: Instant,
    is_idle: bool,
    /// Its longest step so far.
    longest: Duration,
    /// Threads that it was told of, and whether a processor is left.
    told: Option<(u32, bool)>,
}

impl Listener<'_> {
    fn run(mut self, incoming: &mut Incoming, stop: &Stop) -> Ending {
        let (mut is_behind, mut is_stopped) = (false, false);
        loop {
            // Part of a message may be left, too; a worker that is gone says so by its end.
            let has_rest = matches!(self.line.lock().flush(), Ok(false));
            let patience = if is_behind || has_rest { RECHECK } else { LOOK };
            match incoming.next::<FromWorker>(Some(patience)) {
                Ok(Received::Message(message)) if message.has_ended => {
                    self.take(message);
                    return Ending::Done;
                }
                Ok(Received::Message(message)) => is_behind = self.take(message),
                Ok(Received::Nothing) => {
                    is_behind = self.delivery.send_waiting();
                    if self.is_silent() {
                        let (worker, pid) = (self.service.setup.id, self.running.pid());
                        tracing::error!(%worker, pid, "a worker says nothing any more: its process is killed");
                        self.running.kill();
                        return Ending::Lost;
                    }
                }
                Ok(Received::Closed) => return Ending::Lost,
                Err(error) => {
                    tracing::error!(worker = %self.service.setup.id, %error, "what a worker says cannot be read");
                    self.running.kill();
                    return Ending::Lost;
                }
            }
            self.press_back();
            if !is_stopped && stop.is_set() {
                // The pool has told it, too, unless it is behind.
                is_stopped = true;
                let _ = self.line.send(&ToWorker::Stop);
            }
        }
    }

    /// Passes on what the worker says. Whether some client has something to take yet.
    fn take(&mut self, message: FromWorker) -> bool {
        let FromWorker { notes, events, report, heard, is_idle, may_take_longer, took, .. } = message;
        (self.last, self.is_idle) = (Instant::now(), is_idle);
        self.longest = self.longest.max(took);
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
        self.service.policies.note(notes, self.running.process());
        events.into_iter().for_each(|event| self.delivery.push(event));
        self.delivery.flush();
        self.delivery.before_step(self.last, may_take_longer);
        let is_behind = self.delivery.after_step(self.last.checked_sub(took).unwrap_or(self.last), self.last);
        if let Some(report) = report {
            // A send fails only when the pool is gone; the generations then run to their end.
            let _ = self.service.setup.reports.send(WorkerReport::Step(self.service.setup.id, report));
        }
        self.divide_cores();
        is_behind
    }

    /// Tells the worker how many threads compute from its next step on, where that is another number.
    fn divide_cores(&mut self) {
        let seat = &mut self.service.setup.seat;
        if self.is_idle {
            return seat.rest();
        }
        let now = (seat.begin(), self.service.budget.has_spare());
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

    /// Whether it has said nothing for longer than it can be busy.
    fn is_silent(&self) -> bool {
        let unheard = self.line.lock().unheard_since;
        let since = if self.is_idle { unheard } else { Some(self.last) };
        let most = if self.longest.is_zero() { FIRST_SILENCE } else { SILENCE + self.longest * STEPS };
        since.is_some_and(|since| since.elapsed() > most)
    }
}
