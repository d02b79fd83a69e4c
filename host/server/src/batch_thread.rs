//! The thread that owns a model that computes batches: takes them from the queue that it shares with HTTP tasks, and has them
//! computed.
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use camshaft_api::{Health, Jobs, PendingJob, QueueBounds, Work, jobs};
use camshaft_core::ids::WorkerId;
use camshaft_core::jobs::queue::{BatchInput, JobId};
use camshaft_core::jobs::{BatchLimits, BatchModel, Input, InputError};
use camshaft_core::message::WorkerError;
use crossbeam_channel::{Sender, after, never, select};
use tokio::sync::watch;

use crate::bounds::ModelBounds;
use crate::error::ServerError;
use crate::metrics::QueueMetrics;
use crate::supervisor::{Ending, Gauges, Service, Stop, Supervisor};
use crate::thread_budget::Seat;
use crate::tuning::Tuned;

/// What the threads are given, beside the model.
pub(crate) struct BatchSetup {
    /// One for each thread, with its name, and with those that compute for it among those of all models.
    pub(crate) seats: Vec<(String, Gauges, Seat)>,
    pub(crate) metrics: Arc<QueueMetrics>,
    pub(crate) tuned: Tuned,
    pub(crate) bounds: watch::Receiver<ModelBounds>,
    /// Bounds of batches, from what the model takes.
    pub(crate) batch: fn(BatchLimits, &ModelBounds) -> BatchLimits,
}

/// The way to a model's queue.
pub(crate) type JobsOf<M> = Jobs<<M as BatchModel>::Input, <M as BatchModel>::Output>;
type OnBoard<M> = BatchInput<<M as BatchModel>::Input, Arc<PendingJob<<M as BatchModel>::Output>>>;

/// Has inputs computed. Inputs that wait survive a panic of the model; inputs on board do not.
struct BatchService<M: BatchModel, F> {
    make: F,
    work: Arc<Work<M::Input, M::Output>>,
    metrics: Arc<QueueMetrics>,
    /// The batch that is being computed.
    on_board: Vec<OnBoard<M>>,
    seat: Seat,
    /// When it last ended a batch.
    busy_until: Option<Duration>,
    /// Dropped when the first model is warm.
    cold: Option<Sender<Infallible>>,
}

/// Makes a model for each seat on the calling thread, starts the threads that own them, and waits until they are warm. They share a
/// queue, and end when all that may submit jobs is gone, or when the supervisor says. `facts` are read from the first model.
///
/// # Errors
/// What `make` failed with the first time.
pub(crate) fn spawn<M, R>(
    supervisor: &Supervisor,
    BatchSetup { seats, metrics, tuned, bounds, batch }: BatchSetup,
    facts: impl FnOnce(&M) -> R,
    make: impl FnMut(WorkerId, Health) -> Result<M, ServerError> + Clone + Send + 'static,
) -> Result<(JobsOf<M>, R), ServerError>
where
    M: BatchModel<Input: Send, Output: Send> + Send + 'static,
{
    let makes = (0..).zip(seats).map(|(number, (name, gauges, seat))| {
        let (mut make, health) = (make.clone(), gauges.health.clone());
        (name, gauges, seat, move || make(WorkerId(number), health.clone()))
    });
    let mut makes = makes.collect::<Vec<_>>().into_iter().peekable();
    let none = || ServerError::internal("start a model", anyhow::anyhow!("it has no workers"));
    let model = makes.peek_mut().map(|(.., make)| make()).ok_or_else(none)??;
    let facts = facts(&model);
    let limits = model.batch();
    let (jobs, work) =
        jobs(move || QueueBounds { watermarks: tuned.borrow().watermarks, batch: batch(limits, &bounds.borrow()) });
    let work = Arc::new(work);
    let mut first = Some(model);
    for (name, gauges, seat, mut make) in makes {
        let model = first.take().map_or_else(&mut make, Ok)?;
        let (cold, warm) = crossbeam_channel::bounded(1);
        let (work, metrics) = (work.clone(), metrics.clone());
        let service =
            BatchService { make, work, metrics, on_board: Vec::new(), seat, busy_until: None, cold: Some(cold) };
        supervisor.supervise(&name, gauges, service, model)?;
        // Nothing is sent: it ends when the sender is gone.
        let _ = warm.recv();
    }
    Ok((jobs, facts))
}

impl<M, F> Service for BatchService<M, F>
where
    M: BatchModel<Input: Send, Output: Send> + Send + 'static,
    F: FnMut() -> Result<M, ServerError> + Send + 'static,
{
    type Incarnation = M;
    type Handle = ();

    fn make(&mut self) -> Result<(M, ()), ServerError> {
        Ok(((self.make)()?, ()))
    }

    fn run(&mut self, model: &mut M, stop: &Stop) -> Ending {
        let cold = self.cold.take();
        if let Err(error) = model.warm_up() {
            tracing::warn!(%error, "the model could not compute a first input");
        }
        drop(cold);
        while self.wait(stop) {
            let now = self.work.now();
            let late = self.work.with(|queue| queue.expired(now));
            late.iter().for_each(|job| job.fail(WorkerError::DeadlineExceeded));
            if self.work.with(|queue| queue.due(now, self.busy_until)).is_some_and(|due| due <= now) {
                self.compute(model, now);
                if model.is_lost() {
                    return Ending::Lost;
                }
            }
            self.publish();
        }
        Ending::Done
    }

    fn down(&mut self, _: M) -> bool {
        self.seat.rest();
        for input in self.on_board.drain(..) {
            self.work.with(|queue| queue.remove(input.job));
            input.owner.fail(WorkerError::WorkerLost);
        }
        true
    }
}

impl<M: BatchModel, F> BatchService<M, F> {
    /// Waits until jobs come, a batch is due or a deadline passes. False when the thread has to end.
    fn wait(&mut self, stop: &Stop) -> bool {
        let now = self.work.now();
        let next =
            self.work.with(|queue| queue.due(now, self.busy_until).into_iter().chain(queue.next_deadline()).min());
        let next = next.map_or_else(never, |at| after(at.saturating_sub(now)));
        select! {
            recv(stop.receiver()) -> _ => return false,
            recv(self.work.woken()) -> woken => return woken.is_ok() || self.work.with(|queue| queue.has_inputs()),
            recv(self.work.left()) -> _ => {}
            recv(next) -> _ => {}
        }
        true
    }

    fn compute(&mut self, model: &mut M, now: Duration) {
        self.on_board = self.work.take(now);
        if self.on_board.is_empty() {
            // Whoever waited has just left.
            return;
        }
        let waited = self.on_board.iter().filter_map(|input| input.waited);
        waited.for_each(|waited| self.metrics.duration.observe(waited.as_secs_f64()));
        let mut requests: Vec<JobId> = self.on_board.iter().map(|input| input.job).collect();
        requests.sort_unstable();
        requests.dedup();
        self.metrics.batch.observe(requests.len() as f64);
        self.publish();
        let inputs: Vec<M::Input> = self.on_board.iter().map(|input| input.input.clone()).collect();
        model.set_threads(self.seat.begin());
        let computed = model.compute(&inputs);
        self.seat.rest();
        if let (true, Err(error)) = (model.is_lost(), &computed) {
            tracing::error!(%error, "what computes batches is lost");
            return;
        }
        let batch = std::mem::take(&mut self.on_board);
        self.busy_until = Some(self.work.now());
        self.work.with(|queue| queue.computed(&batch));
        match computed {
            Ok(outputs) => {
                for (input, output) in batch.into_iter().zip(outputs) {
                    match output {
                        Ok(output) => input.owner.put(input.index, output),
                        // The other inputs of the batch are somebody else's, perhaps.
                        Err(error) => {
                            self.work.with(|queue| queue.remove(input.job));
                            input.owner.fail(match &error {
                                InputError::Refused(_) => WorkerError::Refused(error.to_string()),
                                InputError::Failed(_) => {
                                    tracing::error!(size = input.input.size(), %error, "an input was not computed");
                                    WorkerError::Engine(error.to_string())
                                }
                            });
                        }
                    }
                }
            }
            Err(error) => {
                tracing::error!(%error, inputs = batch.len(), "a batch could not be computed");
                for input in batch {
                    self.work.with(|queue| queue.remove(input.job));
                    input.owner.fail(WorkerError::Engine(error.to_string()));
                }
            }
        }
    }

    fn publish(&self) {
        // Nobody sets older figures after these.
        self.work.with(|queue| self.metrics.publish(queue.waiting(), queue.running()));
    }
}

#[cfg(test)]
#[path = "batch_thread_tests.rs"]
mod tests;
