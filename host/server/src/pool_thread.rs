//! The thread that owns a model's pool: takes in submissions and reports, and sends out what the pool decides.
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use camshaft_api::{PoolMessage, PoolSnapshot, Submission};
use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::{Command, Event, WorkerBounds, WorkerError};
use camshaft_core::policy::CancelReason;
use camshaft_core::pool::{NewRequest, Output, Pool};
use camshaft_core::report::Report;
use crossbeam_channel::{Receiver, Sender, select};
use tokio::sync::watch;

use crate::bounds::ModelBounds;
use crate::clients::Clients;
use crate::error::ServerError;
use crate::mailbox::Mailbox;
use crate::metrics::{PoolMetrics, WorkerMetrics};
use crate::sessions::{Reply, SessionQuestions};
use crate::supervisor::{ShutdownStage, Stop, Supervisor};
use crate::tuning::{Tuned, Tuning};
use crate::worker::{WorkerMessage, WorkerReport};

/// How often the pool looks for swapped schedulers and clients that left, which wake nobody.
const SWEEP_INTERVAL: Duration = Duration::from_millis(50);
/// How soon commands are sent again to a worker whose channel was full.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// How often waiting clients are told their position in the queue.
const POSITIONS_INTERVAL: Duration = Duration::from_secs(1);
/// Messages of each kind that are taken in before the scheduler is asked again.
const MAX_BURST: usize = 1024;
/// The scheduler that is only monitored rests this many times as long as it was asked, so that it takes a tenth of the time.
const MONITOR_REST: u32 = 9;
/// Messages that may wait while it is asked.
const MONITOR_BEHIND: usize = 16;

/// What a pool thread is given.
pub(crate) struct PoolSetup {
    pub(crate) pool: Pool,
    pub(crate) begun: Instant,
    pub(crate) submissions: Receiver<PoolMessage>,
    pub(crate) reports: Receiver<WorkerReport>,
    pub(crate) workers: BTreeMap<WorkerId, WorkerSeat>,
    pub(crate) metrics: Arc<PoolMetrics>,
    /// How long a last event waits for a client that does not read.
    pub(crate) slow_reader: Duration,
    pub(crate) tuned: Tuned,
    pub(crate) bounds: watch::Receiver<ModelBounds>,
    /// Whether the queue takes more, for those who look from outside.
    pub(crate) accepts: Arc<AtomicBool>,
    /// Of the model.
    pub(crate) _alive: Sender<Infallible>,
}

/// A worker as its pool knows it.
#[derive(Debug)]
pub(crate) struct WorkerSeat {
    /// `None` while it is down.
    pub(crate) mailbox: Option<Mailbox>,
    pub(crate) metrics: Arc<WorkerMetrics>,
}

/// Starts the thread. It ends when the sender of `submissions` is dropped or the supervisor stops it, and stops its workers
/// then.
///
/// # Errors
/// No thread can be started.
pub(crate) fn spawn(supervisor: &Supervisor, setup: PoolSetup, model: &str) -> Result<(), ServerError> {
    let thread = PoolThread::new(setup);
    supervisor.spawn(ShutdownStage::Dispatch, &format!("pool-{model}"), move |stop| thread.run(stop))
}

struct PoolThread {
    setup: PoolSetup,
    clients: Clients,
    /// When waiting clients were last told their positions.
    told: Instant,
    /// When clients that left were last looked for.
    swept: Instant,
    /// The settings in force, if any has changed since the start.
    tuning: Option<Tuning>,
    /// What the workers were told that they may run at once.
    bounds: WorkerBounds,
    sessions: SessionQuestions,
    /// Since the pool's start, until when the scheduler that is only monitored is not asked.
    monitor_rests: Duration,
}

impl PoolThread {
    fn new(setup: PoolSetup) -> Self {
        let (told, swept) = (Instant::now(), Instant::now());
        let clients = Clients::new(setup.slow_reader);
        let monitor_rests = Duration::ZERO;
        Self {
            setup,
            clients,
            told,
            swept,
            tuning: None,
            bounds: WorkerBounds::default(),
            sessions: SessionQuestions::default(),
            monitor_rests,
        }
    }

    fn run(mut self, stop: &Stop) {
        while self.take_messages(stop) {
            self.apply_tuning();
            self.apply_bounds();
            if self.swept.elapsed() >= SWEEP_INTERVAL {
                self.sweep();
            }
            self.flush();
            self.schedule();
            self.monitor();
            self.tell_positions();
            self.publish();
        }
    }

    /// Waits for a message and takes in all that have come. False when the pool has to end.
    fn take_messages(&mut self, stop: &Stop) -> bool {
        let (submissions, reports) = (self.setup.submissions.clone(), self.setup.reports.clone());
        select! {
            recv(submissions) -> message => match message {
                Ok(message) => if !self.take(message) { return false },
                Err(_) => return false,
            },
            recv(reports) -> report => if let Ok(report) = report { self.note(report) },
            recv(stop.receiver()) -> _ => return self.take(PoolMessage::Stop),
            default(self.patience()) => self.sweep(),
        }
        reports.try_iter().take(MAX_BURST).for_each(|report| self.note(report));
        submissions.try_iter().take(MAX_BURST).all(|message| self.take(message))
    }

    fn patience(&self) -> Duration {
        let mut mailboxes = self.setup.workers.values().filter_map(|worker| worker.mailbox.as_ref());
        let most = if mailboxes.any(Mailbox::is_behind) { RETRY_INTERVAL } else { SWEEP_INTERVAL };
        let next = self.setup.pool.next_call();
        next.map_or(most, |at| at.saturating_sub(self.setup.begun.elapsed()).min(most))
    }

    /// Takes in a message of the HTTP side. False when the pool has to end.
    fn take(&mut self, message: PoolMessage) -> bool {
        match message {
            PoolMessage::Submit(submission) => self.submit(*submission),
            PoolMessage::CloseSession { namespace, session, reply } => {
                let id = self.sessions.next_id();
                self.ask(id, &Command::CloseSession { id, namespace, session }, Reply::Closed(reply));
            }
            PoolMessage::ListSessions { namespace, reply } => {
                let id = self.sessions.next_id();
                self.ask(id, &Command::ListSessions { id, namespace }, Reply::Listed(reply, Vec::new()));
            }
            PoolMessage::ForgetAdapter(adapter) => self.broadcast(&Command::ForgetAdapter { adapter }),
            // The asker may have given up.
            PoolMessage::Snapshot(reply) => drop(reply.send(self.snapshot())),
            PoolMessage::Wake => self.sweep(),
            PoolMessage::Stop => {
                self.fail_all();
                self.setup.workers.values_mut().for_each(|worker| _ = worker.post(WorkerMessage::Stop));
                return false;
            }
        }
        true
    }

    /// Asks all workers that are up.
    fn ask(&mut self, id: RequestId, command: &Command, reply: Reply) {
        let up = self.setup.workers.iter_mut().filter(|(_, seat)| seat.mailbox.is_some());
        let ask = |(&worker, seat): (&WorkerId, &mut WorkerSeat)| {
            seat.post(WorkerMessage::Command(command.clone())).then_some(worker)
        };
        let asked: Vec<Option<WorkerId>> = up.map(ask).collect();
        // If a worker cannot be asked, the answer is unknown: dropping `reply` says so.
        if let Some(asked) = asked.into_iter().collect() {
            self.sessions.begin(id, asked, reply);
        }
    }

    /// Applies settings that a reload has changed.
    fn apply_tuning(&mut self) {
        // An error means that the sender is gone: nothing changes any more.
        if !self.setup.tuned.has_changed().unwrap_or(false) {
            return;
        }
        let new = *self.setup.tuned.borrow_and_update();
        let old = self.tuning.replace(new);
        // Setting equal watermarks would open a queue that is closed until it has fallen to the low one.
        if old.is_none_or(|old| old.watermarks != new.watermarks) {
            self.setup.pool.set_watermarks(new.watermarks);
        }
        if old.is_none_or(|old| old.cache_limits() != new.cache_limits()) {
            self.broadcast(&new.cache_limits());
        }
    }

    /// Applies bounds of this model that were changed, or that it began with.
    fn apply_bounds(&mut self) {
        let new = *self.setup.bounds.borrow_and_update();
        self.setup.pool.set_bounds(new.pool());
        if self.bounds != new.worker() {
            self.bounds = new.worker();
            self.broadcast(&Command::Bounds(self.bounds));
        }
    }

    fn submit(&mut self, submission: Submission) {
        let Submission {
            start,
            first_choice,
            weight,
            queue_share,
            arrived,
            deadline,
            hints,
            shared,
            events,
            policies,
            ..
        } = submission;
        let id = start.id;
        let fail = |error| drop(events.try_send(Event::Failed { id, error }));
        if !self.setup.pool.is_healthy() {
            return fail(WorkerError::WorkerLost);
        }
        let since = |at: Instant| at.saturating_duration_since(self.setup.begun);
        let (arrived, deadline) = (since(arrived), deadline.map(since));
        let start = Box::new(start);
        let new = NewRequest { start, first_choice, arrived, deadline, weight, queue_share, hints };
        match self.setup.pool.submit(new) {
            Ok(()) => self.clients.insert(id, events, shared, policies),
            Err(_) => fail(WorkerError::QueueFull),
        }
    }

    fn note(&mut self, report: WorkerReport) {
        match report {
            WorkerReport::Step(worker, report) => self.apply(worker, *report),
            WorkerReport::Down(worker) => {
                // Waiting requests stay in the queue.
                let lost = self.setup.pool.worker_lost(worker);
                tracing::error!(%worker, lost = lost.len(), "worker lost");
                lost.into_iter().for_each(|id| self.clients.fail(id, WorkerError::WorkerLost));
                if let Some(seat) = self.setup.workers.get_mut(&worker) {
                    seat.mailbox = None;
                    seat.metrics.lost();
                }
                self.sessions.lost(worker);
            }
            WorkerReport::Up(worker, handle) => {
                self.setup.pool.add_worker(worker, handle.limits);
                if let Some(seat) = self.setup.workers.get_mut(&worker) {
                    seat.mailbox = Some(Mailbox::new(handle.messages));
                }
                // The new incarnation was made with the limits at the server's start.
                if let Some(tuning) = self.tuning {
                    self.send(worker, WorkerMessage::Command(tuning.cache_limits()));
                }
                if self.bounds != WorkerBounds::default() {
                    self.send(worker, WorkerMessage::Command(Command::Bounds(self.bounds)));
                }
            }
        }
    }

    fn apply(&mut self, worker: WorkerId, report: Report) {
        if let Some(seat) = self.setup.workers.get(&worker) {
            seat.metrics.note(&report);
        }
        for event in &report.events {
            match *event {
                Event::Finished { id, .. } | Event::Failed { id, .. } => self.clients.remove(id),
                Event::SessionClosed { id, existed } => self.sessions.closed(id, worker, existed),
                Event::Sessions { id, ref sessions } => self.sessions.listed(id, worker, sessions),
                _ => {}
            }
        }
        self.setup.pool.apply(worker, report);
    }

    fn fail_all(&mut self) {
        for id in self.clients.ids() {
            self.setup.pool.cancel(id, CancelReason::Shutdown);
            self.clients.fail(id, WorkerError::ShuttingDown);
        }
    }

    fn snapshot(&self) -> PoolSnapshot {
        let pool = &self.setup.pool;
        let mut snapshot = PoolSnapshot {
            accepting: pool.accepts(),
            waiting: pool.waiting(),
            running: pool.running(),
            workers: pool.worker_facts(),
            ..PoolSnapshot::default()
        };
        let queue = pool.queue();
        snapshot.count_waiting(queue.iter().map(|arrival| (arrival.priority, arrival.tenant.as_str())));
        snapshot
    }

    fn tell_positions(&mut self) {
        if self.setup.pool.waiting() == 0 || self.told.elapsed() < POSITIONS_INTERVAL {
            return;
        }
        self.told = Instant::now();
        for (position, arrival) in (1..).zip(self.setup.pool.queue()) {
            self.clients.tell_position(arrival.id, position);
        }
    }

    /// Cancels requests whose client has left, wherever they are.
    fn sweep(&mut self) {
        self.swept = Instant::now();
        for id in self.clients.left() {
            if let Some(output) = self.setup.pool.cancel(id, CancelReason::Client) {
                self.carry_out(output);
            } else {
                self.clients.remove(id);
            }
        }
    }

    /// Sends commands and last events that did not fit before.
    fn flush(&mut self) {
        let mailboxes = self.setup.workers.values_mut().filter_map(|worker| worker.mailbox.as_mut());
        mailboxes.for_each(Mailbox::flush);
        self.clients.flush();
    }

    fn schedule(&mut self) {
        let now = self.setup.begun.elapsed();
        self.keep_deadlines(now);
        for output in self.setup.pool.schedule(now) {
            self.carry_out(output);
        }
    }

    /// Asks the scheduler that is only monitored, once the actions of the one in force are carried out.
    fn monitor(&mut self) {
        let now = self.setup.begun.elapsed();
        let waiting = self.setup.reports.len() + self.setup.submissions.len();
        let behind = now < self.monitor_rests || waiting > MONITOR_BEHIND;
        self.setup.pool.monitor(now, behind);
        if !behind {
            let end = self.setup.begun.elapsed();
            self.monitor_rests = end + end.saturating_sub(now) * MONITOR_REST;
        }
    }

    /// A client may have read its first token, of this choice or another one, before the pool hears of it: then the deadline
    /// was kept.
    fn keep_deadlines(&mut self, now: Duration) {
        for id in self.setup.pool.overdue(now) {
            if !self.clients.expire(id) {
                self.setup.pool.deadline_kept(id);
            }
        }
    }

    fn carry_out(&mut self, output: Output) {
        match output {
            Output::Start { worker, start, need, waited } => {
                self.setup.metrics.queue.duration.observe(waited.as_secs_f64());
                let Some(stream) = self.clients.take_stream(start.id) else { return };
                self.send(worker, WorkerMessage::Start { start, need, stream });
            }
            Output::Send { worker, command } => self.send(worker, WorkerMessage::Command(command)),
            Output::Fail { id, error } => self.clients.fail(id, error),
        }
    }

    fn send(&mut self, worker: WorkerId, message: WorkerMessage) {
        let posted = self.setup.workers.get_mut(&worker).is_some_and(|seat| seat.post(message));
        if !posted {
            tracing::warn!(%worker, "a command was dropped: the worker is down, or its mailbox is full");
        }
    }

    fn broadcast(&mut self, command: &Command) {
        let workers: Vec<WorkerId> = self.setup.workers.keys().copied().collect();
        workers.into_iter().for_each(|worker| self.send(worker, WorkerMessage::Command(command.clone())));
    }

    fn publish(&self) {
        let pool = &self.setup.pool;
        self.setup.accepts.store(pool.accepts(), Ordering::Relaxed);
        self.setup.metrics.publish(pool.waiting(), pool.running(), &pool.worker_facts());
    }
}

impl WorkerSeat {
    fn post(&mut self, message: WorkerMessage) -> bool {
        self.mailbox.as_mut().is_some_and(|mailbox| mailbox.post(message))
    }
}

#[cfg(test)]
#[path = "pool_thread_tests.rs"]
mod tests;
