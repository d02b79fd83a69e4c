//! The thread that owns an embedder: takes batches from the queue that it shares with HTTP tasks, and has them computed.
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use camshaft_api::{EmbedJobs, EmbedWork, PendingJob, embed_jobs};
use camshaft_core::embed::queue::{BatchInput, BatchLimits, EmbedQueue};
use camshaft_core::embed::{Embedder, EmbedderLimits};
use camshaft_core::ids::Token;
use camshaft_core::message::WorkerError;
use crossbeam_channel::{Sender, after, never, select};

use crate::error::ServerError;
use crate::metrics::QueueMetrics;
use crate::supervisor::{Gauges, Service, Stop, Supervisor};
use crate::tuning::Tuned;

/// How long inputs gather while the embedder is busy.
const WINDOW: Duration = Duration::from_millis(2);
/// What an embedder's thread is given, beside the embedder.
pub(crate) struct EmbedSetup {
    pub(crate) gauges: Gauges,
    pub(crate) metrics: QueueMetrics,
    pub(crate) tuned: Tuned,
}

/// Has inputs computed. Inputs that wait survive a panic of the embedder; inputs on board do not.
struct EmbedService<F> {
    make: F,
    work: EmbedWork,
    metrics: QueueMetrics,
    /// The batch that is being computed.
    on_board: Vec<BatchInput<Arc<PendingJob>>>,
    /// Dropped when the first embedder is warm.
    cold: Option<Sender<Infallible>>,
}

/// Makes an embedder on the calling thread, starts the thread that owns it, and waits until it is warm. The thread ends when
/// all that may submit jobs is gone, or when the supervisor says.
///
/// # Errors
/// What `make` failed with the first time.
pub(crate) fn spawn<E: Embedder + Send + 'static>(
    supervisor: &Supervisor,
    model: &str,
    EmbedSetup { gauges, metrics, tuned }: EmbedSetup,
    mut make: impl FnMut() -> Result<E, ServerError> + Send + 'static,
) -> Result<(EmbedJobs, EmbedderLimits), ServerError> {
    let embedder = make()?;
    let limits = embedder.limits();
    let batch = BatchLimits { tokens: limits.efficient_tokens, inputs: limits.batch_inputs, window: WINDOW };
    let watermarks = move || tuned.borrow().watermarks;
    let (jobs, work) = embed_jobs(EmbedQueue::new(batch, watermarks()), watermarks);
    let (cold, warm) = crossbeam_channel::bounded(1);
    let service = EmbedService { make, work, metrics, on_board: Vec::new(), cold: Some(cold) };
    supervisor.supervise(&format!("embedder-{model}"), gauges, service, embedder)?;
    // Nothing is sent: it ends when the sender is gone.
    let _ = warm.recv();
    Ok((jobs, limits))
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
        while self.wait(stop) {
            let now = self.work.now();
            let late = self.work.with(|queue| queue.expired(now));
            late.iter().for_each(|job| job.fail(WorkerError::DeadlineExceeded));
            if self.work.with(|queue| queue.due(now)).is_some_and(|due| due <= now) {
                self.compute(embedder, now);
            }
            self.publish();
        }
    }

    fn down(&mut self, _: E) -> bool {
        for input in self.on_board.drain(..) {
            self.work.with(|queue| queue.remove(input.job));
            input.owner.fail(WorkerError::WorkerLost);
        }
        true
    }

    fn up(&mut self, (): ()) -> bool {
        true
    }
}

impl<F> EmbedService<F> {
    /// Waits until jobs come, a batch is due or a deadline passes. False when the thread has to end.
    fn wait(&mut self, stop: &Stop) -> bool {
        let now = self.work.now();
        let next = self.work.with(|queue| queue.due(now).into_iter().chain(queue.next_deadline()).min());
        let next = next.map_or_else(never, |at| after(at.saturating_sub(now)));
        select! {
            recv(stop.receiver()) -> _ => return false,
            recv(self.work.woken()) -> woken => return woken.is_ok() || self.work.with(|queue| queue.has_inputs()),
            recv(next) -> _ => {}
        }
        true
    }

    fn compute(&mut self, embedder: &mut impl Embedder, now: Duration) {
        self.on_board = self.work.with(|queue| queue.take(now));
        if self.on_board.is_empty() {
            // Whoever waited has just left.
            return;
        }
        let waited = self.on_board.iter().filter_map(|input| input.waited);
        waited.for_each(|waited| self.metrics.duration.observe(waited.as_secs_f64()));
        self.publish();
        let tokens: Vec<Arc<[Token]>> = self.on_board.iter().map(|input| input.tokens.clone()).collect();
        let computed = embedder.embed(&tokens);
        let batch = std::mem::take(&mut self.on_board);
        let now = self.work.now();
        self.work.with(|queue| queue.computed(now, &batch));
        match computed {
            Ok(vectors) => {
                for (input, vector) in batch.into_iter().zip(vectors) {
                    match vector {
                        Some(vector) => input.owner.put(input.index, vector),
                        // The other inputs of the batch are somebody else's, perhaps.
                        None => {
                            tracing::error!(
                                tokens = input.tokens.len(),
                                "the model gave no finite vector for an input"
                            );
                            self.work.with(|queue| queue.remove(input.job));
                            input.owner.fail(WorkerError::Engine("the model gave no finite vector".to_owned()));
                        }
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, inputs = batch.len(), "embedding failed");
                for input in batch {
                    self.work.with(|queue| queue.remove(input.job));
                    input.owner.fail(WorkerError::Engine(error.to_string()));
                }
            }
        }
    }

    fn publish(&self) {
        let (waiting, running) = self.work.with(|queue| (queue.waiting(), queue.running()));
        self.metrics.publish(waiting, running);
    }
}

#[cfg(test)]
#[path = "embed_thread_tests.rs"]
mod tests;
