//! The thread that owns a model's pool: submissions in, dispatches out, between the HTTP side and the workers.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_api::{PoolMessage, PoolSnapshot, Submission};
use camshaft_core::ids::{RequestId, WorkerId};
use camshaft_core::message::{Command, Event, WorkerError};
use camshaft_core::pool::{NewRequest, Output, Pool};
use crossbeam_channel::{Receiver, Sender, select};

use crate::closings::Closings;
use crate::error::ServerError;
use crate::metrics::PoolMetrics;
use crate::streams::Stream;
use crate::supervisor::{Stage, Stop, Supervisor};
use crate::worker_thread::{WorkerMessage, WorkerReport};

/// How often the queue is looked over although nothing happened (a swapped scheduler, a client that left).
const LOOK_OVER: Duration = Duration::from_millis(50);
/// Tenants that a snapshot names.
const TENANTS: usize = 100;
/// How often those who wait hear of their place in line.
const POSITIONS: Duration = Duration::from_secs(1);
/// Messages taken in before the scheduler is asked again.
const BURST: usize = 1024;

/// What a pool thread is given.
pub(crate) struct PoolSetup {
    pub(crate) pool: Pool,
    pub(crate) begun: Instant,
    pub(crate) submissions: Receiver<PoolMessage>,
    pub(crate) reports: Receiver<WorkerReport>,
    pub(crate) workers: BTreeMap<WorkerId, Sender<WorkerMessage>>,
    pub(crate) metrics: Arc<PoolMetrics>,
}

/// Starts the thread. It ends when the sender of `submissions` is gone or the supervisor says, and lets go of its workers
/// then.
///
/// # Errors
/// No thread can be started.
pub(crate) fn spawn(supervisor: &Supervisor, setup: PoolSetup, model: &str) -> Result<(), ServerError> {
    let thread =
        PoolThread { setup, streams: HashMap::new(), told: Instant::now(), cache: None, closings: Closings::default() };
    supervisor.spawn(Stage::Dispatch, &format!("pool-{model}"), move |stop| thread.run(stop))
}

struct PoolThread {
    setup: PoolSetup,
    /// Receiving sides of waiting generations.
    streams: HashMap<RequestId, Stream>,
    /// When those who wait last heard of their place.
    told: Instant,
    /// Limits of the workers' caches, if they are other ones than the workers were made with.
    cache: Option<Command>,
    closings: Closings,
}

impl PoolThread {
    fn run(mut self, stop: &Stop) {
        while self.take_messages(stop) {
            self.schedule();
            self.tell_positions();
            self.publish();
        }
    }

    /// Waits for something to happen and takes in what has. False when the pool has to end.
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
        for _ in 0..BURST {
            match reports.try_recv() {
                Ok(report) => self.note(report),
                Err(_) => break,
            }
        }
        for _ in 0..BURST {
            match submissions.try_recv() {
                Ok(message) => {
                    if !self.take(message) {
                        return false;
                    }
                }
                Err(_) => break,
            }
        }
        true
    }

    fn patience(&self) -> Duration {
        let deadline = self.setup.pool.next_deadline();
        deadline.map_or(LOOK_OVER, |at| at.saturating_sub(self.setup.begun.elapsed()).min(LOOK_OVER))
    }

    /// False when the pool shall end.
    fn take(&mut self, message: PoolMessage) -> bool {
        match message {
            PoolMessage::Submit(submission) => self.submit(*submission),
            PoolMessage::CloseSession { namespace, session, reply } => {
                let id = self.closings.next_id();
                let workers: Vec<WorkerId> = self.setup.workers.keys().copied().collect();
                let command = Command::CloseSession { id, namespace, session };
                let asked = workers.into_iter().filter(|&worker| self.ask(worker, &command)).collect();
                self.closings.begin(id, asked, reply);
            }
            PoolMessage::Cache { ram_bytes, session_ttl } => {
                let limits = Command::CacheLimits { ram_bytes, session_ttl };
                for &worker in self.setup.workers.keys() {
                    self.send(worker, WorkerMessage::Command(limits.clone()));
                }
                self.cache = Some(limits);
            }
            // Who asked may have given up.
            PoolMessage::Snapshot(reply) => drop(reply.send(self.snapshot())),
            PoolMessage::Watermarks(watermarks) => self.setup.pool.set_watermarks(watermarks),
            PoolMessage::Wake => self.sweep(),
            PoolMessage::Stop => {
                self.fail_waiting();
                self.setup.workers.keys().for_each(|&worker| self.send(worker, WorkerMessage::Stop));
                return false;
            }
        }
        true
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { start, weight, queue_share, accepted, timeout, events, policies, .. } = submission;
        let id = start.id;
        let fail = |error| drop(events.try_send(Event::Failed { id, error }));
        if !self.setup.pool.is_healthy() {
            return fail(WorkerError::WorkerLost);
        }
        let arrived = accepted.saturating_duration_since(self.setup.begun);
        let deadline = timeout.map(|timeout| arrived + timeout);
        match self.setup.pool.submit(NewRequest { start: Box::new(start), arrived, deadline, weight, queue_share }) {
            Ok(()) => drop(self.streams.insert(id, Stream::new(events, policies))),
            Err(_) => fail(WorkerError::QueueFull),
        }
    }

    fn note(&mut self, report: WorkerReport) {
        match report {
            WorkerReport::Event(worker, Event::SessionClosed { id, existed }) => {
                self.closings.answered(id, worker, existed);
            }
            WorkerReport::Event(worker, event) => self.setup.pool.worker_event(worker, &event),
            WorkerReport::Down(worker) => {
                // Their streams went with the worker, which tells the clients. What waits goes on waiting.
                let lost = self.setup.pool.worker_lost(worker);
                tracing::error!(%worker, lost = lost.len(), "worker lost");
                self.setup.workers.remove(&worker);
                self.closings.lost(worker);
            }
            WorkerReport::Up(worker, handle) => {
                self.setup.pool.add_worker(worker, handle.limits);
                self.setup.workers.insert(worker, handle.messages);
                // It was made with the limits of the start.
                if let Some(limits) = self.cache.clone() {
                    self.send(worker, WorkerMessage::Command(limits));
                }
            }
        }
    }

    fn fail_waiting(&mut self) {
        let waiting: Vec<RequestId> = self.streams.keys().copied().collect();
        for id in waiting {
            self.setup.pool.cancel(id);
            self.fail(id, WorkerError::ShuttingDown);
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
        let mut tenants: HashMap<&str, usize> = HashMap::new();
        for arrival in pool.queue() {
            *snapshot.waiting_by_priority.entry(arrival.priority).or_default() += 1;
            *tenants.entry(arrival.tenant.as_str()).or_default() += 1;
        }
        let mut tenants: Vec<(&str, usize)> = tenants.into_iter().collect();
        tenants.sort_unstable_by_key(|&(tenant, waiting)| (std::cmp::Reverse(waiting), tenant));
        let named = tenants.into_iter().take(TENANTS).map(|(tenant, waiting)| (tenant.to_owned(), waiting));
        snapshot.waiting_by_tenant = named.collect();
        snapshot
    }

    fn tell_positions(&mut self) {
        if self.streams.is_empty() || self.told.elapsed() < POSITIONS {
            return;
        }
        self.told = Instant::now();
        for (position, arrival) in (1..).zip(self.setup.pool.queue()) {
            if let Some(stream) = self.streams.get(&arrival.id) {
                stream.tell(Event::Queued { id: arrival.id, position });
            }
        }
    }

    /// Waiting generations whose client is gone leave the queue.
    fn sweep(&mut self) {
        let gone: Vec<RequestId> = self.streams.iter().filter(|(_, s)| s.is_closed()).map(|(&id, _)| id).collect();
        for id in gone {
            self.streams.remove(&id);
            self.setup.pool.cancel(id);
        }
    }

    fn schedule(&mut self) {
        for output in self.setup.pool.schedule(self.setup.begun.elapsed()) {
            match output {
                Output::Start { worker, start, need, waited } => {
                    self.setup.metrics.queue_duration.observe(waited.as_secs_f64());
                    let id = start.id;
                    let Some(stream) = self.streams.remove(&id) else { continue };
                    self.send(worker, WorkerMessage::Start { start, need, stream });
                }
                Output::Send { worker, command } => self.send(worker, WorkerMessage::Command(command)),
                Output::Fail { id, error } => self.fail(id, error),
            }
        }
    }

    /// The channel holds more than a worker has sequences, so a send waits only for a worker that is gone.
    fn send(&self, worker: WorkerId, message: WorkerMessage) {
        let sent = self.setup.workers.get(&worker).is_some_and(|sender| sender.send(message).is_ok());
        if !sent {
            tracing::warn!(%worker, "a message for a worker that is gone was dropped");
        }
    }

    /// False if the worker is gone.
    fn ask(&self, worker: WorkerId, command: &Command) -> bool {
        let message = WorkerMessage::Command(command.clone());
        self.setup.workers.get(&worker).is_some_and(|sender| sender.send(message).is_ok())
    }

    fn fail(&mut self, id: RequestId, error: WorkerError) {
        if let Some(stream) = self.streams.remove(&id) {
            stream.end(Event::Failed { id, error });
        }
    }

    fn publish(&self) {
        let pool = &self.setup.pool;
        self.setup.metrics.publish(pool.waiting(), pool.running(), &pool.worker_facts());
    }
}

#[cfg(test)]
#[path = "pool_thread_tests.rs"]
mod tests;
