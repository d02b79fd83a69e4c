//! The thread that appends segments to data files, so that a worker never waits for the disk.
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use camshaft_core::segments::{SegmentId, SegmentInfo, State};
use camshaft_core::threads::Spawner;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, never};

use super::directory::SegmentDirectory;
use super::record::{self, StateAt};
use super::room::DiskRoom;
use crate::regular::open_with;

/// Bounds of the writer's queue. A segment past them is not written.
const MAX_QUEUED_SEGMENTS: usize = 1024;
const MAX_QUEUED_BYTES: u64 = 512 << 20;
/// Bound of the events that the tier has not taken yet. Past it, the writer waits.
const MAX_EVENTS: usize = 4 * MAX_QUEUED_SEGMENTS;
/// Pause after a failed write.
const RETRY_PAUSE: Duration = Duration::from_secs(30);
/// Time for the write in progress at the deadline, and for the last sync.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// A segment to write.
#[derive(Debug)]
pub(super) struct WriteJob {
    pub(super) segment: SegmentId,
    pub(super) info: SegmentInfo,
    pub(super) state: State,
}

/// What the writer is asked to do.
#[derive(Debug)]
pub(super) enum Job {
    Write(WriteJob),
    /// Says of a state that it is damaged.
    NoteDamage(StateAt),
}

/// What the writer did.
#[derive(Debug)]
pub(super) enum WriterEvent {
    Written {
        segment: SegmentId,
        location: Location,
    },
    NotWritten(SegmentId),
    /// The writer removed a data file to stay within the capacity.
    FileRemoved {
        file: u64,
    },
}

/// Where a segment's state is on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) file: u64,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) sum: [u8; 32],
}

/// State shared by the writer and its owner.
#[derive(Debug, Default)]
pub(super) struct WriterShared {
    queued_bytes: AtomicU64,
    /// When the writer drops the rest of the queue. Set when the tier is closed.
    pub(super) deadline: OnceLock<Instant>,
}

/// The owner's side of a writer.
#[derive(Debug)]
pub(super) struct WriterHandle {
    jobs: Option<Sender<Job>>,
    events: Receiver<WriterEvent>,
    shared: Arc<WriterShared>,
    /// Disconnects when the thread has ended.
    ended: Receiver<()>,
}

impl WriterHandle {
    pub(super) fn start(writer: Writer, spawner: &Spawner) -> std::io::Result<Self> {
        let (jobs, job_rx) = bounded(MAX_QUEUED_SEGMENTS);
        let (event_tx, events) = bounded(MAX_EVENTS);
        let (alive, ended) = bounded(0);
        let shared = writer.shared.clone();
        let body = move || {
            writer.run(&job_rx, &event_tx);
            drop(alive);
        };
        spawner.spawn("disk-cache", Box::new(body))?;
        Ok(Self { jobs: Some(jobs), events, shared, ended })
    }

    /// The events since the last call.
    pub(super) fn events(&self) -> impl Iterator<Item = WriterEvent> + use<> {
        let events = self.events.clone();
        std::iter::from_fn(move || events.try_recv().ok())
    }

    /// Queues a segment. Returns false, and does not queue it, if the queue is full.
    pub(super) fn queue(&self, segment: SegmentId, info: &SegmentInfo, state: &State) -> bool {
        let bytes = state.len() as u64;
        let queued = self.shared.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let job = Job::Write(WriteJob { segment, info: info.clone(), state: state.clone() });
        let has_capacity = queued + bytes <= MAX_QUEUED_BYTES;
        let sent = has_capacity && self.jobs.as_ref().is_some_and(|jobs| jobs.try_send(job).is_ok());
        if !sent {
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
        sent
    }

    /// Queues a note that a state is damaged. Without one, the damage is found again.
    pub(super) fn queue_damage(&self, state: StateAt) {
        let _ = self.jobs.as_ref().map(|jobs| jobs.try_send(Job::NoteDamage(state)));
    }

    /// Waits until the thread has written the queue and ended. Segments that are not written at the deadline are lost.
    pub(super) fn close(&mut self, deadline: Instant) {
        let _ = self.shared.deadline.set(deadline);
        self.jobs = None;
        // Drop the receiver, so that the writer does not wait for its events to be taken.
        self.events = never();
        // A writer that panicked has nothing left to write, either.
        if self.ended.recv_deadline(deadline + LAST_WRITE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the disk takes too long; queued segments of the prefix cache are lost");
        }
    }
}

/// Bytes that data files may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    /// Those of a writer together.
    pub(super) capacity: u64,
    /// One of them, unless a segment is larger.
    pub(super) file: u64,
}

/// Appends to the data files of one directory.
pub(super) struct Writer {
    directory: Arc<SegmentDirectory>,
    /// Where the data files of all directories are counted.
    room: Arc<DiskRoom>,
    sizes: Sizes,
    /// Data files with their sizes, oldest first.
    files: VecDeque<(u64, u64)>,
    pub(super) shared: Arc<WriterShared>,
    /// The data file that the next segment is appended to; `None`: a new one.
    current: Option<File>,
    /// When the last write failed, until one succeeds.
    failed_at: Option<Instant>,
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.room.leave(self.used());
    }
}

impl Writer {
    pub(super) fn new(
        directory: Arc<SegmentDirectory>,
        room: Arc<DiskRoom>,
        sizes: Sizes,
        files: VecDeque<(u64, u64)>,
    ) -> Self {
        // The last data file of an earlier process may end in a torn record, so new segments go to a new file.
        let current = None;
        let writer = Self { directory, room, sizes, files, shared: Arc::default(), current, failed_at: None };
        writer.room.enter(&writer.directory.path, writer.used());
        writer
    }

    /// Bytes of its data files.
    fn used(&self) -> u64 {
        self.files.iter().map(|(_, size)| size).sum()
    }

    /// Writes segments until the sender of `jobs` is dropped and the queue is empty.
    pub(super) fn run(mut self, jobs: &Receiver<Job>, events: &Sender<WriterEvent>) {
        let mut dropped = 0;
        // What was kept under a larger capacity goes at once. Layouts that nobody uses go later: others are being opened.
        self.shrink(0, events);
        while let Ok(job) = jobs.recv() {
            let job = match job {
                Job::Write(job) => job,
                Job::NoteDamage(state) => {
                    self.note_damage(state, events);
                    continue;
                }
            };
            let (segment, bytes) = (job.segment, job.state.len() as u64);
            let location = if self.is_past_deadline() {
                dropped += 1;
                None
            } else {
                self.write(&job, events)
            };
            self.shared.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            let event = match location {
                Some(location) => WriterEvent::Written { segment, location },
                None => WriterEvent::NotWritten(segment),
            };
            // Sending fails after the tier was closed, which has no effect.
            let _ = events.send(event);
        }
        if dropped > 0 {
            tracing::warn!(segments = dropped, "the prefix cache was closed before all of it was written to disk");
        }
        self.close_current();
    }

    fn is_past_deadline(&self) -> bool {
        self.shared.deadline.get().is_some_and(|&deadline| Instant::now() >= deadline)
    }

    fn write(&mut self, job: &WriteJob, events: &Sender<WriterEvent>) -> Option<Location> {
        let (head, sum) = record::head(&self.directory.key, &job.info, &job.state)?;
        self.write_record(&head, &job.state, sum, events)
    }

    fn note_damage(&mut self, state: StateAt, events: &Sender<WriterEvent>) {
        // Nobody needs to find the note itself. Past the deadline, the damage is found again.
        if !self.is_past_deadline() && self.files.iter().any(|&(file, _)| file == state.file) {
            let (record, sum) = record::damage(&self.directory.key, state);
            let _ = self.write_record(&record, &[], sum, events);
        }
    }

    fn write_record(
        &mut self,
        head: &[u8],
        state: &[u8],
        sum: [u8; 32],
        events: &Sender<WriterEvent>,
    ) -> Option<Location> {
        if self.failed_at.is_some_and(|at| at.elapsed() < RETRY_PAUSE) {
            return None;
        }
        let len = (head.len() + state.len()) as u64;
        if len > self.sizes.capacity {
            return None;
        }
        self.take_room(len, events);
        match self.append(head, state, sum) {
            Ok(location) => {
                if self.failed_at.take().is_some() {
                    tracing::info!(path = %self.directory.path.display(), "the prefix cache is written to disk again");
                }
                Some(location)
            }
            Err(error) => {
                if self.failed_at.is_none() {
                    let path = self.directory.path.display();
                    tracing::warn!(%path, %error, "the prefix cache cannot be written to disk; prefixes are recomputed");
                }
                self.failed_at = Some(Instant::now());
                self.room.leave(len);
                // A scan stops at a torn record, so the next segment goes to a new data file.
                self.current = None;
                self.forget_empty_file();
                None
            }
        }
    }

    /// Removes the oldest data files until `len` more bytes are within the capacity, then those of layouts that nobody uses.
    fn take_room(&mut self, len: u64, events: &Sender<WriterEvent>) {
        self.shrink(len, events);
        self.room.take(len);
    }

    /// Removes the oldest data files until `len` more bytes are within the capacity.
    fn shrink(&mut self, len: u64, events: &Sender<WriterEvent>) {
        while self.used() + len > self.sizes.capacity {
            let Some((number, size)) = self.files.pop_front() else { break };
            if self.files.is_empty() {
                self.current = None;
            }
            // A file that cannot be removed is either gone already, or a candidate again after the next start.
            let _ = fs::remove_file(self.directory.data_file(number));
            self.room.leave(size);
            let _ = events.send(WriterEvent::FileRemoved { file: number });
        }
    }

    /// Removes the last data file if it holds nothing: while a disk is full, every try would leave one.
    fn forget_empty_file(&mut self) {
        let Some((number, 0)) = self.files.back().copied() else { return };
        match fs::remove_file(self.directory.data_file(number)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {}
            _ => drop(self.files.pop_back()),
        }
    }

    fn append(&mut self, head: &[u8], state: &[u8], sum: [u8; 32]) -> std::io::Result<Location> {
        let len = (head.len() + state.len()) as u64;
        if self.files.back().is_none_or(|(_, size)| *size > 0 && size + len > self.sizes.file) {
            self.close_current();
        }
        let file = match self.current.take() {
            Some(file) => file,
            None => {
                let number = self.files.back().map_or(1, |(number, _)| number + 1);
                let path = self.directory.data_file(number);
                let file = open_with(&path, OpenOptions::new().create_new(true).append(true).mode(0o600))?;
                self.files.push_back((number, 0));
                file
            }
        };
        let whole = self.files.back().map_or(0, |(_, size)| *size);
        write_whole(&file, &mut &file, [head, state], whole)?;
        self.current = Some(file);
        let Some((number, size)) = self.files.back_mut() else { return Err(std::io::ErrorKind::NotFound.into()) };
        let at = *size + head.len() as u64;
        *size += len;
        Ok(Location { file: *number, at, len: state.len() as u64, sum })
    }

    /// Syncs and closes the current data file, so that a crash of the machine can tear only the last one.
    fn close_current(&mut self) {
        let Some(file) = self.current.take() else { return };
        let synced = file.sync_data().and_then(|()| File::open(&self.directory.path)?.sync_data());
        if let Err(error) = synced {
            let path = self.directory.path.display();
            tracing::warn!(%path, %error, "the prefix cache could not be synced to disk");
        }
    }
}

/// Writes both through `out` at the end of a file of `whole` bytes, or leaves it as it was: what nobody can read must not
/// take what the disk has left.
fn write_whole(file: &File, out: &mut impl Write, parts: [&[u8]; 2], whole: u64) -> std::io::Result<()> {
    let written = parts.into_iter().try_for_each(|part| out.write_all(part));
    if written.is_err() {
        // It is not read either way.
        let _ = file.set_len(whole);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many more bytes.
    struct Full<'a>(&'a File, usize);

    impl Write for Full<'_> {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let written = self.0.write(&bytes[..bytes.len().min(self.1)])?;
            self.1 -= written;
            if written == 0 { Err(std::io::ErrorKind::StorageFull.into()) } else { Ok(written) }
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn regression_writes_that_fail_leave_no_empty_files() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Arc::new(SegmentDirectory::open(&dir.path().join("0123456789abcdef")).unwrap());
        let path = directory.data_file(1);
        fs::write(&path, "").unwrap();
        let room = Arc::new(DiskRoom::new(dir.path().to_owned(), 1000));
        let sizes = Sizes { capacity: 1000, file: 100 };
        let mut writer = Writer::new(directory, room, sizes, [(1, 0)].into());
        // Nothing can be written to it.
        writer.current = Some(File::open(&path).unwrap());
        let (events, _told) = bounded(8);
        assert!(writer.write_record(b"head", b"state", [0; 32], &events).is_none());
        assert!(!path.exists() && writer.files.is_empty());
    }

    #[test]
    fn regression_what_could_not_be_written_whole_takes_nothing() {
        for room in 0..=7 {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(b"before").unwrap();
            let written = write_whole(&file, &mut Full(&file, room), [b"head", b"end"], 6);
            let expected = if room == 7 { (true, 13) } else { (false, 6) };
            assert_eq!((written.is_ok(), file.metadata().unwrap().len()), expected, "room for {room}");
        }
    }
}
