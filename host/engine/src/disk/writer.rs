//! The thread that appends segments to data files, so that a worker never waits for a disk.
use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use camshaft_core::segments::{SegmentId, SegmentInfo};
use crossbeam_channel::{Receiver, Sender};

use super::directory::Directory;
use super::record;

/// After a failed write: how long no other is tried.
const PAUSE: Duration = Duration::from_secs(30);

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
        place: Place,
    },
    NotWritten(SegmentId),
    /// A data file was removed for room.
    Removed {
        file: u64,
    },
}

/// Where a segment's state lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: u64,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) sum: [u8; 32],
}

pub(super) struct Writer {
    pub(super) directory: Arc<Directory>,
    pub(super) capacity: u64,
    pub(super) file_bytes: u64,
    /// Data files with their sizes, oldest first.
    pub(super) files: VecDeque<(u64, u64)>,
    pub(super) queued_bytes: Arc<AtomicU64>,
    pub(super) outcomes: Sender<Outcome>,
    pub(super) current: Option<File>,
    pub(super) broken_since: Option<Instant>,
}

impl Writer {
    /// Until nobody can send any more.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            let (segment, bytes) = (job.segment, job.state.len() as u64);
            let outcome = match self.write(&job) {
                Some(place) => Outcome::Written { segment, place },
                None => Outcome::NotWritten(segment),
            };
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            // Without a tier nobody wants to know.
            let _ = self.outcomes.send(outcome);
        }
    }

    fn write(&mut self, job: &Job) -> Option<Place> {
        if self.broken_since.is_some_and(|since| since.elapsed() < PAUSE) {
            return None;
        }
        let head = record::head(&self.directory.key, &job.info, &job.state)?;
        let len = (head.len() + job.state.len()) as u64;
        if len > self.capacity {
            return None;
        }
        self.make_room(len);
        match self.append(&head, &job.state) {
            Ok(place) => {
                if self.broken_since.take().is_some() {
                    tracing::info!(path = %self.directory.path.display(), "the prefix cache is written to disk again");
                }
                Some(place)
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

    fn make_room(&mut self, len: u64) {
        let used = |files: &VecDeque<(u64, u64)>| files.iter().map(|(_, size)| size).sum::<u64>();
        while used(&self.files) + len > self.capacity {
            let Some((number, _)) = self.files.pop_front() else { return };
            if self.files.is_empty() {
                self.current = None;
            }
            // One that cannot be removed is gone already or is found again at the next start.
            let _ = fs::remove_file(self.directory.data_file(number));
            let _ = self.outcomes.send(Outcome::Removed { file: number });
        }
    }

    fn append(&mut self, head: &[u8], state: &[u8]) -> std::io::Result<Place> {
        let len = (head.len() + state.len()) as u64;
        let full = self.files.back().is_none_or(|(_, size)| *size > 0 && size + len > self.file_bytes);
        let mut file = match self.current.take().filter(|_| !full) {
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
        Ok(Place { file: *number, at, len: state.len() as u64, sum })
    }
}
