//! The thread that appends segments to data files, so that a worker never waits for a disk.
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use camshaft_core::segments::{SegmentId, SegmentInfo};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, never};

use super::directory::Directory;
use super::record;

/// Segments, and their bytes, in the writer's queue; a further one is not written.
const QUEUED_SEGMENTS: usize = 1024;
const QUEUED_BYTES: u64 = 512 << 20;
/// Outcomes that the tier has not taken note of yet; the writer waits at the bound.
const OUTCOMES: usize = 4 * QUEUED_SEGMENTS;
/// How long no write is tried after one failed.
const PAUSE: Duration = Duration::from_secs(30);
/// How long the write that is under way when the queue has to be given up, and the last sync, may take.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// A segment to write.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) segment: SegmentId,
    pub(super) info: SegmentInfo,
    pub(super) state: Arc<[u8]>,
}

/// What became of it.
#[derive(Debug)]
pub(super) enum Outcome {
    Written {
        segment: SegmentId,
        location: Location,
    },
    NotWritten(SegmentId),
    /// A data file was removed to stay within the capacity.
    Removed {
        file: u64,
    },
}

/// Where a segment's state lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) file: u64,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) sum: [u8; 32],
}

/// What the writer and its owner share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    queued_bytes: AtomicU64,
    /// When the queue is given up; set once the tier is closed.
    pub(super) deadline: OnceLock<Instant>,
}

/// The owner's side of a writer.
#[derive(Debug)]
pub(super) struct WriterHandle {
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
}

impl WriterHandle {
    pub(super) fn start(writer: Writer) -> std::io::Result<Self> {
        let (jobs, to_do) = bounded(QUEUED_SEGMENTS);
        let (done, outcomes) = bounded(OUTCOMES);
        let (alive, ended) = bounded(0);
        let shared = writer.shared.clone();
        let thread = std::thread::Builder::new().name("disk-cache".to_owned()).spawn(move || {
            writer.run(&to_do, &done);
            drop(alive);
        })?;
        Ok(Self { jobs: Some(jobs), outcomes, shared, thread: Some(thread), ended })
    }

    /// What the writer did since the last call.
    pub(super) fn outcomes(&self) -> impl Iterator<Item = Outcome> + use<> {
        let outcomes = self.outcomes.clone();
        std::iter::from_fn(move || outcomes.try_recv().ok())
    }

    /// False if the queue is full.
    pub(super) fn queue(&self, segment: SegmentId, info: &SegmentInfo, state: &Arc<[u8]>) -> bool {
        let bytes = state.len() as u64;
        let queued = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let job = Job { segment, info: info.clone(), state: state.clone() };
        let has_capacity = queued + bytes <= QUEUED_BYTES;
        let sent = has_capacity && self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok());
        if !sent {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        sent
    }

    /// Ends the thread when it has written what is queued. What it cannot write until the deadline is given up.
    pub(super) fn close(&mut self, deadline: Instant) {
        let _ = self.shared.deadline.set(deadline);
        self.jobs = None;
        // The writer waits for nobody to hear of it.
        self.outcomes = never();
        let Some(thread) = self.thread.take() else { return };
        match self.ended.recv_deadline(deadline + LAST_WRITE) {
            Err(RecvTimeoutError::Timeout) => {
                tracing::warn!("the disk takes too long; queued segments of the prefix cache are lost");
            }
            // A writer that panicked has nothing more to write.
            _ => drop(thread.join()),
        }
    }
}

/// Appends to the data files of one directory.
pub(super) struct Writer {
    directory: Arc<Directory>,
    capacity: u64,
    file_bytes: u64,
    /// Data files with their sizes, oldest first.
    files: VecDeque<(u64, u64)>,
    pub(super) shared: Arc<Shared>,
    current: Option<File>,
    broken_since: Option<Instant>,
}

impl Writer {
    pub(super) fn new(directory: Arc<Directory>, capacity: u64, file_bytes: u64, files: VecDeque<(u64, u64)>) -> Self {
        // What an earlier process left may end in a torn record: new segments go to a new data file.
        let current = None;
        Self { directory, capacity, file_bytes, files, shared: Arc::default(), current, broken_since: None }
    }

    /// Until nobody can send any more.
    pub(super) fn run(mut self, jobs: &Receiver<Job>, outcomes: &Sender<Outcome>) {
        let mut given_up = 0;
        while let Ok(job) = jobs.recv() {
            let (segment, bytes) = (job.segment, job.state.len() as u64);
            let location = if self.is_past_deadline() {
                given_up += 1;
                None
            } else {
                self.write(&job, outcomes)
            };
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let outcome = match location {
                Some(location) => Outcome::Written { segment, location },
                None => Outcome::NotWritten(segment),
            };
            // Without a tier nobody wants to know.
            let _ = outcomes.send(outcome);
        }
        if given_up > 0 {
            tracing::warn!(segments = given_up, "the prefix cache was closed before all of it was written to disk");
        }
        self.close_current();
    }

    fn is_past_deadline(&self) -> bool {
        self.shared.deadline.get().is_some_and(|&deadline| Instant::now() >= deadline)
    }

    fn write(&mut self, job: &Job, outcomes: &Sender<Outcome>) -> Option<Location> {
        if self.broken_since.is_some_and(|since| since.elapsed() < PAUSE) {
            return None;
        }
        let head = record::head(&self.directory.key, &job.info, &job.state)?;
        let len = (head.len() + job.state.len()) as u64;
        if len > self.capacity {
            return None;
        }
        self.evict_for(len, outcomes);
        match self.append(&head, &job.state) {
            Ok(location) => {
                if self.broken_since.take().is_some() {
                    tracing::info!(path = %self.directory.path.display(), "the prefix cache is written to disk again");
                }
                Some(location)
            }
            Err(error) => {
                if self.broken_since.is_none() {
                    let path = self.directory.path.display();
                    tracing::warn!(%path, %error, "the prefix cache cannot be written to disk; prefixes are recomputed");
                }
                self.broken_since = Some(Instant::now());
                // A torn record must not lie before a good one: the next goes to a data file of its own.
                self.current = None;
                None
            }
        }
    }

    /// Removes the oldest data files until `len` bytes more are within the capacity.
    fn evict_for(&mut self, len: u64, outcomes: &Sender<Outcome>) {
        let used = |files: &VecDeque<(u64, u64)>| files.iter().map(|(_, size)| size).sum::<u64>();
        while used(&self.files) + len > self.capacity {
            let Some((number, _)) = self.files.pop_front() else { return };
            if self.files.is_empty() {
                self.current = None;
            }
            // One that cannot be removed is gone already or is found again at the next start.
            let _ = fs::remove_file(self.directory.data_file(number));
            let _ = outcomes.send(Outcome::Removed { file: number });
        }
    }

    fn append(&mut self, head: &[u8], state: &[u8]) -> std::io::Result<Location> {
        let len = (head.len() + state.len()) as u64;
        if self.files.back().is_none_or(|(_, size)| *size > 0 && size + len > self.file_bytes) {
            self.close_current();
        }
        let mut file = match self.current.take() {
            Some(file) => file,
            None => {
                let number = self.files.back().map_or(1, |(number, _)| number + 1);
                let path = self.directory.data_file(number);
                let file = OpenOptions::new().create_new(true).append(true).mode(0o600).open(path)?;
                self.files.push_back((number, 0));
                file
            }
        };
        file.write_all(head)?;
        file.write_all(state)?;
        self.current = Some(file);
        let Some((number, size)) = self.files.back_mut() else { return Err(std::io::ErrorKind::NotFound.into()) };
        let at = *size + head.len() as u64;
        *size += len;
        let sum = *blake3::keyed_hash(&self.directory.key, state).as_bytes();
        Ok(Location { file: *number, at, len: state.len() as u64, sum })
    }

    /// Syncs the data file that was written to and closes it, so that a crash of the machine tears at most the last one.
    fn close_current(&mut self) {
        let Some(file) = self.current.take() else { return };
        let synced = file.sync_data().and_then(|()| File::open(&self.directory.path)?.sync_data());
        if let Err(error) = synced {
            let path = self.directory.path.display();
            tracing::warn!(%path, %error, "the prefix cache could not be synced to disk");
        }
    }
}
