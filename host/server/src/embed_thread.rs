//! The thread that owns an embedder: gathers inputs of several requests into batches.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use camshaft_api::EmbedJob;
use camshaft_core::embed::{EmbedLimits, EmbedQueue, Embedder, EmbedderLimits};
use camshaft_core::ids::Token;
use camshaft_core::message::WorkerError;
use crossbeam_channel::{Receiver, Sender, after, never, select};
use tokio::sync::oneshot;

use crate::error::ServerError;
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
    deadline: Option<Instant>,
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

struct Input {
    job: Arc<PendingJob>,
    index: usize,
    tokens: Arc<[Token]>,
}

/// Gathers inputs and has them computed. Inputs that wait survive a panic of the embedder; inputs on board do not.
struct EmbedService<F> {
    make: F,
    jobs: Receiver<EmbedJob>,
    queue: EmbedQueue<Input>,
    tuned: Tuned,
    /// The batch that is being computed.
    on_board: Vec<Input>,
    begun: Instant,
}

/// Makes an embedder on the calling thread and starts the thread that owns it. The thread ends when the sender of jobs is
/// gone, or when the supervisor says.
///
/// # Errors
/// What `make` failed with the first time.
pub(crate) fn spawn<E: Embedder + Send + 'static>(
    supervisor: &Supervisor,
    gauges: Gauges,
    model: &str,
    tuned: Tuned,
    mut make: impl FnMut() -> Result<E, ServerError> + Send + 'static,
) -> Result<(Sender<EmbedJob>, EmbedderLimits), ServerError> {
    let embedder = make()?;
    let limits = embedder.limits();
    let queue = EmbedQueue::new(EmbedLimits {
        batch_tokens: limits.batch_tokens,
        batch_inputs: limits.batch_inputs,
        waiting: waiting(&tuned),
        window: WINDOW,
    });
    let (sender, jobs) = crossbeam_channel::bounded(JOBS);
    let service = EmbedService { make, jobs, queue, tuned, on_board: Vec::new(), begun: Instant::now() };
    supervisor.supervise(&format!("embedder-{model}"), gauges, service, embedder)?;
    Ok((sender, limits))
}

/// Inputs that may wait now. A request of the most inputs is never refused by an empty queue.
fn waiting(tuned: &Tuned) -> usize {
    tuned.borrow().watermarks.high.max(camshaft_core::limits::EMBED_INPUTS)
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
        while self.take_jobs(stop) {
            self.queue.retain(|input| input.job.is_wanted());
            let now = self.begun.elapsed();
            if self.queue.due(now).is_some_and(|due| due <= now) {
                self.compute(embedder);
            }
        }
    }

    fn down(&mut self, _: E) -> bool {
        self.on_board.drain(..).for_each(|input| input.job.fail(WorkerError::WorkerLost));
        true
    }

    fn up(&mut self, (): ()) -> bool {
        true
    }
}

impl<F> EmbedService<F> {
    /// Waits until a job comes or a batch is due. False when the thread has to end.
    fn take_jobs(&mut self, stop: &Stop) -> bool {
        let now = self.begun.elapsed();
        let due = self.queue.due(now).map_or_else(never, |due| after(due.saturating_sub(now)));
        select! {
            recv(stop.receiver()) -> _ => return false,
            recv(self.jobs) -> job => match job {
                Ok(job) => self.add(job),
                Err(_) => return self.queue.waiting() > 0,
            },
            recv(due) -> _ => {}
        }
        for _ in 0..BURST {
            match self.jobs.try_recv() {
                Ok(job) => self.add(job),
                Err(_) => break,
            }
        }
        true
    }

    fn add(&mut self, job: EmbedJob) {
        let EmbedJob { inputs, priority, deadline, reply } = job;
        let vectors = Mutex::new(vec![None; inputs.len()]);
        let job = Arc::new(PendingJob { deadline, vectors, reply: Mutex::new(Some(reply)) });
        self.queue.set_waiting(waiting(&self.tuned));
        if !self.queue.has_capacity(inputs.len()) {
            return job.fail(WorkerError::QueueFull);
        }
        let now = self.begun.elapsed();
        for (index, tokens) in inputs.into_iter().enumerate() {
            let input = Input { job: job.clone(), index, tokens };
            self.queue.push(now, priority, input.tokens.len() as u32, input);
        }
    }

    fn compute(&mut self, embedder: &mut impl Embedder) {
        let now = Instant::now();
        let mut batch = self.queue.take();
        batch.retain(|input| {
            let late = input.job.deadline.is_some_and(|deadline| deadline <= now);
            if late {
                input.job.fail(WorkerError::DeadlineExceeded);
            }
            !late
        });
        if batch.is_empty() {
            return;
        }
        let tokens: Vec<Arc<[Token]>> = batch.iter().map(|input| input.tokens.clone()).collect();
        self.on_board = batch;
        let computed = embedder.embed(&tokens);
        let batch = std::mem::take(&mut self.on_board);
        match computed {
            Ok(vectors) => {
                for (input, vector) in batch.into_iter().zip(vectors) {
                    input.job.put(input.index, vector);
                }
            }
            Err(error) => {
                tracing::error!(%error, inputs = batch.len(), "embedding failed");
                batch.iter().for_each(|input| input.job.fail(WorkerError::Engine(error.to_string())));
            }
        }
        self.queue.computed(self.begun.elapsed());
    }
}

#[cfg(test)]
#[path = "embed_thread_tests.rs"]
mod tests;
