//! The cold tier on disk: keeps segments for this process and the next one.
//!
//! Each model and context layout has a directory with a key and append-only data files (`disk/record.rs` describes the
//! format). A thread writes segments. A segment's keyed checksum is verified before it is returned. If the disk fails,
//! workers recompute the prefixes. What layouts may take together is `disk/room.rs`.
mod directory;
mod error;
#[doc(hidden)]
pub mod fuzz;
mod inspect;
mod record;
mod room;
mod writer;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camshaft_core::segments::{ColdTier, SegmentId, SegmentInfo, State};
use camshaft_core::threads::Spawner;

use directory::{Scan, SegmentDirectory};
pub use error::DiskError;
pub use inspect::{CacheReport, clear, is_layout, report};
use record::{Entry, StateAt};
pub use room::DiskRoom;
use writer::{Location, Sizes, Writer, WriterEvent, WriterHandle};

/// Maximum size of a data file. A larger segment gets a file of its own.
const MAX_DATA_FILE_BYTES: u64 = 64 << 20;
/// A tier has at least so many data files when it is full: the oldest one goes whole.
const MIN_DATA_FILES: u64 = 8;
/// How long closing the tier waits for queued segments to be written.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Identifies what the bytes of a segment depend on besides its tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Digest of the model's weights and adapter.
    pub model: String,
    /// Everything else: KV type, llama.cpp's version, the worker.
    pub context: String,
}

impl Layout {
    /// The name of the layout's directory: the first 16 digits of a digest.
    fn directory(&self) -> String {
        let all = format!("{}|{}", self.model, self.context);
        blake3::hash(all.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// Where the tier keeps segments, and how many bytes.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    /// The directory, with all that lies in it.
    pub room: Arc<DiskRoom>,
    /// The tier's share of the room.
    pub capacity_bytes: u64,
    pub layout: Layout,
    /// Starts the thread that writes.
    pub spawner: Spawner,
}

/// What an earlier process left in the data files of a directory.
struct Contents {
    segments: Vec<(SegmentId, SegmentInfo)>,
    locations: HashMap<SegmentId, Location>,
    /// Data files with their sizes, oldest first.
    files: VecDeque<(u64, u64)>,
}

impl Contents {
    fn scan(directory: &SegmentDirectory) -> Result<Self, DiskError> {
        let mut newest = Vec::new();
        let mut files = VecDeque::new();
        let mut seen = HashSet::new();
        let mut scans = directory::scan_all(&directory.key, &directory.path)?;
        // Of a segment that was written twice, the later record is the one that may be in use.
        while let Some((file, Scan { records, bytes, .. })) = scans.pop() {
            files.push_front((file, bytes));
            for (at, header) in records.into_iter().rev() {
                let Entry::Segment(info) = header.entry else { continue };
                let at = at + header.state_at;
                if seen.insert((info.namespace.clone(), info.tokens.clone(), info.start)) {
                    newest.push((info, Location { file, at, len: header.state_len, sum: header.state_sum }));
                }
            }
        }
        let mut found = Self { segments: Vec::new(), locations: HashMap::new(), files };
        for (segment, (info, location)) in (0..).map(SegmentId).zip(newest.into_iter().rev()) {
            found.locations.insert(segment, location);
            found.segments.push((segment, info));
        }
        Ok(found)
    }
}

/// The segments of one worker on disk.
pub struct DiskTier {
    directory: Arc<SegmentDirectory>,
    locations: HashMap<SegmentId, Location>,
    /// Segments in the writer's queue.
    pending: HashMap<SegmentId, State>,
    writer: WriterHandle,
    lost: Vec<SegmentId>,
}

impl std::fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("DiskTier");
        out.field("path", &self.directory.path).field("segments", &self.locations.len()).finish_non_exhaustive()
    }
}

impl DiskTier {
    /// Opens the layout's directory and returns the segments in it, without torn and damaged records.
    ///
    /// # Errors
    /// The directory cannot be made or read, or another process uses it.
    pub fn open(options: &DiskOptions) -> Result<(Self, Vec<(SegmentId, SegmentInfo)>), DiskError> {
        Self::open_with(options, MAX_DATA_FILE_BYTES.min(options.capacity_bytes / MIN_DATA_FILES))
    }

    /// Whether [`DiskTier::open`] would find a directory usable. Leaves nothing behind.
    ///
    /// # Errors
    /// The directory cannot be made or read, or another process uses it.
    pub fn check(path: &Path) -> Result<(), DiskError> {
        SegmentDirectory::check(path)
    }

    fn open_with(options: &DiskOptions, file_bytes: u64) -> Result<(Self, Vec<(SegmentId, SegmentInfo)>), DiskError> {
        let path = options.room.dir().join(options.layout.directory());
        options.room.announce(&path);
        let directory = Arc::new(SegmentDirectory::open(&path)?);
        let Contents { segments, locations, files } = Contents::scan(&directory)?;
        let sizes = Sizes { capacity: options.capacity_bytes, file: file_bytes };
        let writer = Writer::new(directory.clone(), options.room.clone(), sizes, files);
        let started = WriterHandle::start(writer, &options.spawner);
        let writer = started.map_err(|source| DiskError::Io { verb: "start the writer of", path, source })?;
        let tier = Self { directory, locations, pending: HashMap::new(), writer, lost: Vec::new() };
        Ok((tier, segments))
    }

    /// Applies what the writer has done since the last call.
    fn apply_writer_events(&mut self) {
        for event in self.writer.events() {
            match event {
                WriterEvent::Written { segment, location } => {
                    // A segment that was removed while it was queued stays on disk until its data file is removed.
                    if self.pending.remove(&segment).is_some() {
                        self.locations.insert(segment, location);
                    }
                }
                WriterEvent::NotWritten(segment) => {
                    self.lost.extend(self.pending.remove(&segment).map(|_| segment));
                }
                WriterEvent::FileRemoved { file } => {
                    let lost = self.locations.extract_if(|_, location| location.file == file);
                    self.lost.extend(lost.map(|(segment, _)| segment));
                }
            }
        }
    }

    /// Reads the state at a location. `None` if it cannot be read or is damaged. What is damaged is written down: the next
    /// process shall not find it again.
    fn read(&self, location: &Location) -> Option<State> {
        let state = directory::read(&self.directory.data_file(location.file), location.at, location.len).ok()?;
        if record::is_intact(&self.directory.key, &state, &location.sum) {
            return Some(State::new(state));
        }
        self.writer.queue_damage(StateAt { file: location.file, at: location.at });
        None
    }
}

impl ColdTier for DiskTier {
    fn put(&mut self, segment: SegmentId, info: &SegmentInfo, state: &State) {
        self.apply_writer_events();
        if self.writer.queue(segment, info, state) {
            self.pending.insert(segment, state.clone());
        } else {
            self.lost.push(segment);
        }
    }

    fn get(&mut self, segment: SegmentId) -> Option<State> {
        self.apply_writer_events();
        if let Some(state) = self.pending.get(&segment) {
            return Some(state.clone());
        }
        let state = self.read(self.locations.get(&segment)?);
        if state.is_none() {
            tracing::warn!(%segment, path = %self.directory.path.display(), "a segment on disk is damaged; it is recomputed");
            self.locations.remove(&segment);
        }
        state
    }

    fn remove(&mut self, segment: SegmentId) {
        self.pending.remove(&segment);
        self.locations.remove(&segment);
    }

    fn lost(&mut self, segments: &mut Vec<SegmentId>) {
        self.apply_writer_events();
        segments.append(&mut self.lost);
    }
}

impl Drop for DiskTier {
    /// Waits until the writer has written the queued segments, at most for `CLOSE_TIMEOUT` and the last write.
    fn drop(&mut self) {
        self.writer.close(Instant::now() + CLOSE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests;
