//! The thread that owns an embedder: gathers inputs of several requests into batches.
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use camshaft_api::{EmbedJob, EmbedMessage, PoolSnapshot};
use camshaft_core::embed::queue::{BatchInput, BatchLimits, EmbedQueue, NewJob};
use camshaft_core::embed::{Embedder, EmbedderLimits};
use camshaft_core::ids::Token;
use camshaft_core::message::WorkerError;
use crossbeam_channel::{Receiver, Sender, after, never, select};
use tokio::sync::oneshot;

use crate::error::ServerError;
use crate::metrics::QueueMetrics;
use crate::snapshot;
use crate::supervisor::{Gauges, Service, Stop, Supervisor};
use crate::tuning::Tuned;

/// How long inputs gather while the embedder is busy.
const WINDOW: Duration = Duration::from_millis(2);
/// Jobs on their way to the thread; a further one is refused as overload.
const JOBS: usize = 1024;
/// Jobs taken in before the next batch.
const BURST: usize = 256;

/// Who waits for a job's vectors; taken when it is answered.
type Reply = Option<oneshot::Sender<Result<Vec<Vec<f32>>, WorkerError>>>;

/// One request's inputs, some of them perhaps computed.
struct PendingJob {
    vectors: Mutex<Vec<Option<Vec<f32>>>>,
    reply: Mutex<Reply>,
}

impl PendingJob {
    fn reply(&self) -> std::sync::MutexGuard<'_, Reply> {
        self.reply.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody waits for it.
    fn is_wanted(&self) -> bool {
        self.reply().as_ref().is_some_and(|reply| !reply.is_closed())
    }

    fn fail(&self, error: WorkerError) {
        if let Some(reply) = self.reply().take() {
            // The client may have left just now.
            let _ = reply.send(Err(error));
        }
    }

    /// Takes a vector; answers when it was the last.
    fn put(&self, index: usize, vector: Vec<f32>) {
        let mut vectors = self.vectors.lock().unwrap_or_else(PoisonError::into_inner);
        vectors[index] = Some(vector);
        if vectors.iter().all(Option::is_some)
            && let Some(reply) = self.reply().take()
        {
            let _ = reply.send(Ok(vectors.iter_mut().filter_map(Option::take).collect()));
        }
    }
}

/// What an embedder's thread is given, beside the embedder.
pub(crate) struct EmbedSetup {
    pub(crate) gauges: Gauges,
    pub(crate) metrics: QueueMetrics,
    pub(crate) tuned: Tuned,
}

/// Gathers inputs and has them computed. Inputs that wait survive a panic of the embedder; inputs on board do not.
struct EmbedService<F> {
    make: F,
    messages: Receiver<EmbedMessage>,
    queue: EmbedQueue<Arc<PendingJob>>,
    metrics: QueueMetrics,
    tuned: Tuned,
    /// The batch that is being computed.
    on_board: Vec<BatchInput<Arc<PendingJob>>>,
    begun: Instant,
    /// Dropped when the first embedder is warm.
    cold: Option<Sender<Infallible>>,
}

/// Makes an embedder on the calling thread, starts the thread that owns it, and waits until it is warm. The thread ends when the sender of jobs is
/// gone, or when the supervisor says.
///
/// # Errors
/// What `make` failed with the first time.
pub(crate) fn spawn<E: Embedder + Send + 'static>(
    supervisor: &Supervisor,
    model: &str,
    EmbedSetup { gauges, metrics, tuned }: EmbedSetup,
    mut make: impl FnMut() -> Result<E, ServerError> + Send + 'static,
) -> Result<(Sender<EmbedMessage>, EmbedderLimits), ServerError> {
    let embedder = make()?;
    let limits = embedder.limits();
    let batch = BatchLimits { tokens: limits.batch_tokens, inputs: limits.batch_inputs, window: WINDOW };
    let queue = EmbedQueue::new(batch, tuned.borrow().watermarks);
    let (sender, messages) = crossbeam_channel::bounded(JOBS);
    let (on_board, begun) = (Vec::new(), Instant::now());
    let (cold, warm) = crossbeam_channel::bounded(1);
    let service = EmbedService { make, messages, queue, metrics, tuned, on_board, begun, cold: Some(cold) };
    supervisor.supervise(&format!("embedder-{model}"), gauges, service, embedder)?;
    // Nothing is sent: it ends when the sender is gone.
    let _ = warm.recv();
    Ok((sender, limits))
}

impl<E, F> Service for EmbedService<F>
where
    E: Embedder + Send + 'static,
    F: FnMut() -> Result<E, ServerError> + Send + 'static,
{
    type Incarnation = E;
    type Handle = ();

    fn make(&mut self) -> Result<(E, ()), ServerError> {
        Ok(((self.make)()?, ()))
    }

    fn run(&mut self, embedder: &mut E, stop: &Stop) {
        let cold = self.cold.take();
        if let Err(error) = embedder.warm_up() {
            tracing::warn!(%error, "the embedder could not compute a first token");
        }
        drop(cold);
        while self.take_messages(stop) {
            self.queue.retain(|job| job.is_wanted());
            let now = self.begun.elapsed();
            self.queue.expired(now).iter().for_each(|job| job.fail(WorkerError::DeadlineExceeded));
            if self.queue.due(now).is_some_and(|due| due <= now) {
                self.compute(embedder, now);
            }
            self.publish();
        }
    }

    fn down(&mut self, _: E) -> bool {
        for input in self.on_board.drain(..) {
            self.queue.remove(input.job);
            input.owner.fail(WorkerError::WorkerLost);
        }
        true
    }

    fn up(&mut self, (): ()) -> bool {
        true
    }
}

impl<F> EmbedService<F> {
    /// Waits until a message comes, a batch is due or a deadline passes. False when the thread has to end.
    fn take_messages(&mut self, stop: &Stop) -> bool {
        let now = self.begun.elapsed();
        let next = self.queue.due(now).into_iter().chain(self.queue.next_deadline()).min();
        let next = next.map_or_else(never, |at| after(at.saturating_sub(now)));
        select! {
            recv(stop.receiver()) -> _ => return false,
            recv(self.messages) -> message => match message {
                Ok(message) => self.take(message),
                Err(_) => return self.queue.has_inputs(),
            },
            recv(next) -> _ => {}
        }
        for _ in 0..BURST {
            match self.messages.try_recv() {
                Ok(message) => self.take(message),
                Err(_) => break,
            }
        }
        true
    }

    fn take(&mut self, message: EmbedMessage) {
        match message {
            EmbedMessage::Submit(job) => self.add(*job),
            // The asker may have given up.
            EmbedMessage::Snapshot(reply) => drop(reply.send(self.snapshot())),
        }
    }

    fn add(&mut self, job: EmbedJob) {
        // An error means that the sender is gone: nothing changes any more.
        if self.tuned.has_changed().unwrap_or(false) {
            self.queue.set_watermarks(self.tuned.borrow_and_update().watermarks);
        }
        let EmbedJob { inputs, tenant, priority, weight, queue_share, accepted, deadline, reply } = job;
        let vectors = Mutex::new(vec![None; inputs.len()]);
        let owner = Arc::new(PendingJob { vectors, reply: Mutex::new(Some(reply)) });
        let arrived = accepted.saturating_duration_since(self.begun);
        let deadline = deadline.map(|at| at.saturating_duration_since(self.begun));
        let new = NewJob { tenant, priority, weight, queue_share, arrived, deadline, inputs, owner: owner.clone() };
        if self.queue.submit(new).is_err() {
            owner.fail(WorkerError::QueueFull);
        }
    }

    fn compute(&mut self, embedder: &mut impl Embedder, now: Duration) {
        self.on_board = self.queue.take(now);
        let waited = self.on_board.iter().filter_map(|input| input.waited);
        waited.for_each(|waited| self.metrics.duration.observe(waited.as_secs_f64()));
        self.publish();
        let tokens: Vec<Arc<[Token]>> = self.on_board.iter().map(|input| input.tokens.clone()).collect();
        let computed = embedder.embed(&tokens);
        let batch = std::mem::take(&mut self.on_board);
        self.queue.computed(self.begun.elapsed(), &batch);
        match computed {
            Ok(vectors) => {
                for (input, vector) in batch.into_iter().zip(vectors) {
                    input.owner.put(input.index, vector);
                }
            }
            Err(error) => {
                tracing::error!(%error, inputs = batch.len(), "embedding failed");
                for input in batch {
                    self.queue.remove(input.job);
                    input.owner.fail(WorkerError::Engine(error.to_string()));
                }
            }
        }
    }

    fn publish(&self) {
        self.metrics.publish(self.queue.waiting(), self.queue.running());
    }

    fn snapshot(&self) -> PoolSnapshot {
        let queue = &self.queue;
        let mut snapshot = PoolSnapshot {
            accepting: queue.accepts(),
            waiting: queue.waiting(),
            running: queue.running(),
            ..PoolSnapshot::default()
        };
        snapshot::count_waiting(&mut snapshot, queue.queue().map(|(priority, tenant)| (priority, tenant.as_str())));
        snapshot
    }
}

#[cfg(test)]
#[path = "embed_thread_tests.rs"]
mod tests;
