//! The queue of a model that computes batches, as HTTP tasks and the model's thread share it. Requests enter it on their own tasks, so that its
//! bounds, which are each tenant's own, hold while the thread computes; whoever leaves makes room at once.
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::ids::{TenantId, Token};
use camshaft_core::jobs::queue::{BatchInput, JobId, JobQueue, NewJob};
use camshaft_core::jobs::{BatchLimits, Input};
use camshaft_core::message::WorkerError;
use camshaft_core::policy::Priority;
use camshaft_core::pool::Watermarks;
use camshaft_core::tensor::{Predicted, Rows};
use crossbeam_channel::{Receiver, Sender, TrySendError};
use tokio::sync::oneshot;
use tracing::Span;

use crate::flow::backend::PoolSnapshot;
use crate::flow::trace;

/// Inputs of one request.
#[derive(Debug)]
pub struct Job<I> {
    /// Each of a size that the model takes.
    pub inputs: Vec<I>,
    pub tenant: TenantId,
    pub priority: Priority,
    pub weight: f64,
    /// Share of the queue that the tenant's waiting requests may take.
    pub queue_share: Option<f64>,
    /// Latest moment of the answer.
    pub deadline: Option<Instant>,
    /// Of the request.
    pub span: Span,
}

/// Texts that an embedder computes, and its vectors.
pub type EmbedJobs = Jobs<Arc<[Token]>, Vec<f32>>;

/// Tensors that a tensor model computes, and those that it gives.
pub type PredictJobs = Jobs<Rows, Predicted>;

/// An output for each input.
type Outputs<O> = Result<Vec<O>, WorkerError>;
/// Requests of which some inputs are not computed.
pub type Queue<I, O> = JobQueue<I, Arc<PendingJob<O>>>;

/// A job in the queue, some of its inputs perhaps computed.
#[derive(Debug)]
pub struct PendingJob<O>(Mutex<Pending<O>>);

#[derive(Debug)]
struct Pending<O> {
    outputs: Vec<Option<O>>,
    /// Who waits for them; taken when it is answered.
    reply: Option<oneshot::Sender<Outputs<O>>>,
    /// The span of its stage, and that of the request until it is computed.
    stage: (Span, Option<Span>),
}

impl<O> PendingJob<O> {
    fn new(inputs: usize, span: Span) -> (Arc<Self>, oneshot::Receiver<Outputs<O>>) {
        let (reply, answer) = oneshot::channel();
        let outputs = std::iter::repeat_with(|| None).take(inputs).collect();
        let stage = (trace::queue(&span), Some(span));
        (Arc::new(Self(Mutex::new(Pending { outputs, reply: Some(reply), stage }))), answer)
    }

    /// Some of its inputs are computed now.
    fn begin(&self) {
        let mut pending = self.pending();
        if let Some(span) = pending.stage.1.take() {
            pending.stage.0 = trace::compute(&span);
        }
    }

    pub fn fail(&self, error: WorkerError) {
        if let Some(reply) = self.pending().reply.take() {
            // The client may have left just now.
            let _ = reply.send(Err(error));
        }
    }

    /// Takes an output; answers when it was the last.
    pub fn put(&self, index: usize, output: O) {
        let mut pending = self.pending();
        pending.outputs[index] = Some(output);
        if pending.outputs.iter().all(Option::is_some)
            && let Some(reply) = pending.reply.take()
        {
            pending.stage = (Span::none(), None);
            let _ = reply.send(Ok(pending.outputs.iter_mut().filter_map(Option::take).collect()));
        }
    }

    fn pending(&self) -> MutexGuard<'_, Pending<O>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bounds of a queue that may change while it is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBounds {
    pub watermarks: Watermarks,
    pub batch: BatchLimits,
}

/// Makes the two sides of a queue. `bounds` returns those in force.
pub fn jobs<I: Input, O>(bounds: impl Fn() -> QueueBounds + Send + Sync + 'static) -> (Jobs<I, O>, Work<I, O>) {
    let (wake, woken) = crossbeam_channel::bounded(1);
    let now = bounds();
    let state = Mutex::new(State { queue: JobQueue::new(now.batch, now.watermarks), bounds: now, ended: false });
    let shared = Arc::new(Shared { state, bounds: Box::new(bounds), begun: Instant::now() });
    (Jobs { shared: shared.clone(), wake }, Work { shared, woken, more: crossbeam_channel::bounded(1) })
}

struct Shared<I, O> {
    state: Mutex<State<I, O>>,
    bounds: Box<dyn Fn() -> QueueBounds + Send + Sync>,
    begun: Instant,
}

struct State<I, O> {
    queue: Queue<I, O>,
    /// Those that the queue has.
    bounds: QueueBounds,
    /// Nobody takes anything out of it any more.
    ended: bool,
}

impl<I, O> Shared<I, O> {
    fn state(&self) -> MutexGuard<'_, State<I, O>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<I: Input, O> Shared<I, O> {
    /// The queue with the bounds in force.
    fn bounded(&self) -> MutexGuard<'_, State<I, O>> {
        let bounds = (self.bounds)();
        let mut state = self.state();
        let State { queue, bounds: before, .. } = &mut *state;
        // Setting equal ones would open a queue that is closed until it has fallen to the low one.
        if before.watermarks != bounds.watermarks {
            queue.set_watermarks(bounds.watermarks);
        }
        queue.set_batch(bounds.batch);
        *before = bounds;
        state
    }
}

impl<I, O> fmt::Debug for Shared<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}

/// The side of the HTTP tasks. When the last one is dropped, the thread ends.
#[derive(Debug)]
pub struct Jobs<I, O> {
    shared: Arc<Shared<I, O>>,
    /// One message is enough for any number of jobs.
    wake: Sender<()>,
}

impl<I, O> Clone for Jobs<I, O> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), wake: self.wake.clone() }
    }
}

/// Why a job does not wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotTaken {
    /// The queue is full, or the tenant's share of it.
    Full,
    /// The thread has ended.
    Gone,
}

impl<I: Input, O> Jobs<I, O> {
    /// Puts a job into the queue.
    ///
    /// # Errors
    /// Says why not.
    pub fn submit(&self, job: Job<I>) -> Result<Ticket<I, O>, NotTaken> {
        let Job { inputs, tenant, priority, weight, queue_share, deadline, span } = job;
        let (owner, answer) = PendingJob::new(inputs.len(), span);
        let since = |at: Instant| at.saturating_duration_since(self.shared.begun);
        // From now on it waits for others. Until now it may have waited for its own body.
        let (arrived, deadline) = (since(Instant::now()), deadline.map(since));
        let new = NewJob { tenant, priority, weight, queue_share, arrived, deadline, inputs, owner };
        let id = {
            let mut state = self.shared.bounded();
            if state.ended {
                return Err(NotTaken::Gone);
            }
            state.queue.submit(new).map_err(|_| NotTaken::Full)?
        };
        let ticket = Ticket { shared: self.shared.clone(), id, answer };
        match self.wake.try_send(()) {
            Ok(()) | Err(TrySendError::Full(())) => Ok(ticket),
            Err(TrySendError::Disconnected(())) => Err(NotTaken::Gone),
        }
    }

    /// Whether the queue takes more requests.
    pub fn accepts(&self) -> bool {
        self.shared.state().queue.accepts()
    }

    pub fn snapshot(&self) -> PoolSnapshot {
        let state = self.shared.state();
        let queue = &state.queue;
        let mut snapshot = PoolSnapshot {
            accepting: queue.accepts(),
            waiting: queue.waiting(),
            running: queue.running(),
            ..PoolSnapshot::default()
        };
        snapshot.count_waiting(queue.queue().map(|(priority, tenant)| (priority, tenant.as_str())));
        snapshot
    }
}

/// A job's place. Dropping it takes the job out of the queue, wherever its inputs are.
#[derive(Debug)]
pub struct Ticket<I: Input, O> {
    shared: Arc<Shared<I, O>>,
    id: JobId,
    answer: oneshot::Receiver<Outputs<O>>,
}

impl<I: Input, O> Ticket<I, O> {
    /// Waits for the outputs; `None` if the thread ends before they are computed.
    pub async fn answer(&mut self) -> Option<Outputs<O>> {
        (&mut self.answer).await.ok()
    }
}

impl<I: Input, O> Drop for Ticket<I, O> {
    fn drop(&mut self) {
        let left = self.shared.state().queue.remove(self.id);
        drop(left);
    }
}

/// The side of the model's threads. When it is dropped, all jobs end.
#[derive(Debug)]
pub struct Work<I: Input, O> {
    shared: Arc<Shared<I, O>>,
    woken: Receiver<()>,
    /// From one thread of the model to another.
    more: (Sender<()>, Receiver<()>),
}

impl<I: Input, O> Work<I, O> {
    /// Has a message when jobs have come; closed when no more can come.
    pub fn woken(&self) -> &Receiver<()> {
        &self.woken
    }

    /// Has a message when a thread has taken a batch and left inputs to others.
    pub fn left(&self) -> &Receiver<()> {
        &self.more.1
    }

    /// Takes the next batch.
    pub fn take(&self, now: Duration) -> Vec<BatchInput<I, Arc<PendingJob<O>>>> {
        let (batch, is_more) = {
            let queue = &mut self.shared.bounded().queue;
            (queue.take(now), queue.has_inputs())
        };
        if is_more {
            // Whoever reads the one that waits sees these, too.
            let _ = self.more.0.try_send(());
        }
        batch.iter().for_each(|input| input.owner.begin());
        batch
    }

    /// The queue's time.
    pub fn now(&self) -> Duration {
        self.shared.begun.elapsed()
    }

    /// Asks or changes the queue. Meanwhile no request can enter or leave it.
    pub fn with<R>(&self, act: impl FnOnce(&mut Queue<I, O>) -> R) -> R {
        act(&mut self.shared.state().queue)
    }
}

impl<I: Input, O> Drop for Work<I, O> {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.ended = true;
        state.queue.retain(|_| false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HIGH: usize = 4;

    fn queue() -> (EmbedJobs, Work<Arc<[Token]>, Vec<f32>>) {
        let batch = BatchLimits { size: 64, inputs: 8, window: Duration::ZERO };
        let watermarks = Watermarks { high: HIGH, low: 2 };
        jobs(move || QueueBounds { watermarks, batch })
    }

    fn job(tenant: &str) -> Job<Arc<[Token]>> {
        Job {
            inputs: vec![Arc::from([Token(1)])],
            tenant: tenant.into(),
            priority: Priority::Normal,
            weight: 1.0,
            queue_share: None,
            deadline: None,
            span: Span::none(),
        }
    }

    #[test]
    fn regression_while_a_batch_is_computed_a_tenant_fills_its_own_places_and_no_others() {
        let (jobs, work) = queue();
        // As while the thread computes: nobody takes anything.
        let asked: Vec<_> = (0..2000).map(|_| jobs.submit(job("greedy"))).collect();
        let held = asked.iter().filter(|asked| asked.is_ok()).count();
        assert_eq!(held, HIGH, "at the bound");
        assert_eq!(asked.into_iter().nth(HIGH).unwrap().unwrap_err(), NotTaken::Full, "one past it");
        let _held: Vec<_> = (0..HIGH).map(|_| jobs.submit(job("greedy")).unwrap()).collect();
        let mut polite = jobs.submit(job("polite")).expect("there is a place for another tenant");
        assert_eq!(jobs.snapshot().waiting, HIGH + 1);
        let batch = work.with(|queue| queue.take(Duration::ZERO));
        assert_eq!(batch.len(), HIGH + 1);
        batch.iter().for_each(|input| input.owner.put(input.index, vec![1.0]));
        assert_eq!(polite.answer.try_recv().unwrap(), Ok(vec![vec![1.0]]));
    }

    #[test]
    fn regression_clients_that_leave_make_room_at_once() {
        let (jobs, work) = queue();
        let mut held: Vec<_> = (0..HIGH).map(|_| jobs.submit(job("t")).unwrap()).collect();
        assert_eq!(jobs.submit(job("t")).unwrap_err(), NotTaken::Full);
        held.truncate(2);
        assert_eq!(jobs.snapshot().waiting, 2);
        held.push(jobs.submit(job("t")).expect("room again, and no batch was taken"));
        assert!(work.with(|queue| queue.check()));
        drop(held);
        assert_eq!((jobs.snapshot().waiting, jobs.snapshot().running), (0, 0));
    }

    #[test]
    fn when_the_thread_ends_those_who_wait_are_told_and_nobody_else_is_taken() {
        let (jobs, work) = queue();
        let mut waiting = jobs.submit(job("t")).unwrap();
        drop(work);
        assert_eq!(waiting.answer.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
        assert_eq!(jobs.submit(job("t")).unwrap_err(), NotTaken::Gone);
        assert_eq!(jobs.snapshot().waiting, 0);
    }
}
