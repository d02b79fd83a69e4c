//! Masks that are computed while the engine decodes: a worker gives its matchers away before, and has them back after.
use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use super::matcher::Matcher;
use crate::ids::Token;
use crate::threads::Spawner;

/// A matcher, the place that it goes back to, and the draft that is verified in the step.
#[derive(Debug)]
pub struct MaskJob {
    pub place: usize,
    pub matcher: Box<Matcher>,
    pub draft: Vec<Token>,
}

/// Whether a processor is left at the moment. Where all of them compute a step, a thread beside it makes its threads wait.
pub type IsRoom = Box<dyn Fn() -> bool + Send>;

/// A thread that computes masks for one worker. It starts with the first ones, and ends when this is dropped.
pub struct MaskThread {
    spawner: Spawner,
    is_room: IsRoom,
    thread: Thread,
}

enum Thread {
    NotStarted,
    Running {
        jobs: SyncSender<Vec<MaskJob>>,
        done: Receiver<Vec<MaskJob>>,
    },
    /// It could not be started, or died.
    Gone,
}

impl fmt::Debug for MaskThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskThread")
    }
}

impl MaskThread {
    pub fn new(spawner: Spawner, is_room: IsRoom) -> Self {
        Self { spawner, is_room, thread: Thread::NotStarted }
    }

    /// Whether to compute the masks of this step beside it.
    pub(crate) fn is_room(&self) -> bool {
        (self.is_room)()
    }

    /// Begins to compute masks.
    ///
    /// # Errors
    /// There is no thread: these are the matchers.
    pub fn begin(&mut self, batch: Vec<MaskJob>) -> Result<(), Vec<MaskJob>> {
        if matches!(self.thread, Thread::NotStarted) {
            self.thread = start(&self.spawner);
        }
        let Thread::Running { jobs, .. } = &self.thread else { return Err(batch) };
        let sent = jobs.send(batch).map_err(|unsent| unsent.0);
        if sent.is_err() {
            self.thread = Thread::Gone;
        }
        sent
    }

    /// Waits for what began. `None`: the thread died with the matchers.
    pub fn finish(&mut self) -> Option<Vec<MaskJob>> {
        let Thread::Running { done, .. } = &self.thread else { return None };
        let batch = done.recv().ok();
        if batch.is_none() {
            self.thread = Thread::Gone;
        }
        batch
    }
}

fn start(spawner: &Spawner) -> Thread {
    // One batch at a time is on its way, so that nobody ever waits to send.
    let (jobs, received) = sync_channel::<Vec<MaskJob>>(1);
    let (finished, done) = sync_channel(1);
    let body = move || {
        for mut batch in received {
            batch.iter_mut().for_each(|job| job.matcher.prepare(&job.draft));
            if finished.send(batch).is_err() {
                break;
            }
        }
    };
    match spawner.spawn("masks", Box::new(body)) {
        Ok(()) => Thread::Running { jobs, done },
        Err(_) => Thread::Gone,
    }
}
