//! The thread that owns an embedder: gathers inputs of several requests into batches.
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use camshaft_api::EmbedJob;
use camshaft_core::embed::{EmbedLimits, EmbedQueue};
use camshaft_core::ids::Token;
use camshaft_core::message::WorkerError;
use camshaft_engine::LlamaEmbedder;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use tokio::sync::oneshot;

use crate::error::ServerError;

/// How long inputs gather while the embedder is busy.
const WINDOW: Duration = Duration::from_millis(2);
/// Jobs on their way to the thread; a further one is refused as overload.
const JOBS: usize = 1024;
/// Jobs taken in before the next batch.
const BURST: usize = 256;

/// Who waits for a job's vectors; taken when it is answered.
type Reply = Option<oneshot::Sender<Result<Vec<Vec<f32>>, WorkerError>>>;

/// One request's inputs, some of them perhaps computed.
struct Job {
    deadline: Option<Instant>,
    vectors: Mutex<Vec<Option<Vec<f32>>>>,
    reply: Mutex<Reply>,
}

impl Job {
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
    job: Arc<Job>,
    index: usize,
    tokens: Arc<[Token]>,
}

struct EmbedThread {
    jobs: Receiver<EmbedJob>,
    queue: EmbedQueue<Input>,
    embedder: LlamaEmbedder,
    begun: Instant,
}

/// Starts the thread. It ends when the sender of jobs is gone. `capacity`: inputs that may wait.
pub(crate) fn spawn(embedder: LlamaEmbedder, model: &str, capacity: usize) -> Result<Sender<EmbedJob>, ServerError> {
    let (sender, jobs) = crossbeam_channel::bounded(JOBS);
    let limits = EmbedLimits {
        batch_tokens: embedder.limits().0,
        batch_inputs: embedder.batch_inputs(),
        // A request of the most inputs is never refused by an empty queue.
        waiting: capacity.max(camshaft_core::limits::EMBED_INPUTS),
        window: WINDOW,
    };
    let thread = EmbedThread { jobs, queue: EmbedQueue::new(limits), embedder, begun: Instant::now() };
    let builder = std::thread::Builder::new().name(format!("embedder-{model}"));
    builder.spawn(move || thread.run()).map_err(|error| ServerError::internal("start an embedder thread", error))?;
    Ok(sender)
}

impl EmbedThread {
    fn run(mut self) {
        while self.take_jobs() {
            self.queue.retain(|input| input.job.is_wanted());
            let now = self.begun.elapsed();
            if self.queue.due(now).is_some_and(|due| due <= now) {
                self.compute();
            }
        }
    }

    /// Waits until a job comes or a batch is due. False when no job can come any more.
    fn take_jobs(&mut self) -> bool {
        let now = self.begun.elapsed();
        let received = match self.queue.due(now) {
            None => self.jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => self.jobs.recv_timeout(due.saturating_sub(now)),
        };
        match received {
            Ok(job) => self.add(job),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return self.queue.waiting() > 0,
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
        let job = Arc::new(Job { deadline, vectors, reply: Mutex::new(Some(reply)) });
        if !self.queue.has_room(inputs.len()) {
            return job.fail(WorkerError::QueueFull);
        }
        let now = self.begun.elapsed();
        for (index, tokens) in inputs.into_iter().enumerate() {
            let input = Input { job: job.clone(), index, tokens };
            self.queue.push(now, priority, input.tokens.len() as u32, input);
        }
    }

    fn compute(&mut self) {
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
        match self.embedder.embed(&tokens) {
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
