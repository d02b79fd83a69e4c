//! The tier behind RAM: segments of KV cache on disk, for the next life of the process.
//!
//! A directory for each model and context layout holds a key and append-only data files (see `disk/record.rs` for the
//! format). Segments are written by a thread of its own and read through memory maps; every byte is checked against a keyed
//! checksum before it is handed out. Where disk fails, prefixes are recomputed.
mod directory;
mod inspect;
mod record;
mod writer;

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use camshaft_core::segments::{ColdTier, SegmentId, SegmentInfo};
use crossbeam_channel::{Receiver, Sender, bounded, never};
use memmap2::Mmap;

use directory::Directory;
pub use inspect::{CacheReport, clear, report};
use writer::{Job, Outcome, Place, Writer};

/// Bytes of a data file; a larger segment gets one of its own.
const DATA_FILE_BYTES: u64 = 64 << 20;
/// Segments, and their bytes, on their way to the disk; one more is not kept.
const QUEUED_SEGMENTS: usize = 1024;
const QUEUED_BYTES: u64 = 512 << 20;
/// What the writer did and the tier has not heard of yet; the writer waits at the bound.
const OUTCOMES: usize = 4 * QUEUED_SEGMENTS;

/// What the bytes of a segment depend on beside the tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// What the model computes with: the digest of its weights and adapter.
    pub model: String,
    /// Everything else: KV types, llama.cpp's version, which worker's they are.
    pub context: String,
}

impl Layout {
    /// The name of its directory: the beginning of a digest.
    fn directory(&self) -> String {
        let all = format!("{}|{}", self.model, self.context);
        blake3::hash(all.as_bytes()).to_hex()[..16].to_owned()
    }
}

/// Where and how much.
#[derive(Debug, Clone)]
pub struct DiskOptions {
    pub dir: PathBuf,
    pub capacity_bytes: u64,
    pub layout: Layout,
}

/// Why there is no disk tier.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    #[error("cannot {verb} {path}: {source}")]
    Io { verb: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{0} is used by another process")]
    InUse(PathBuf),
}

/// Segments on disk.
pub struct DiskTier {
    directory: Arc<Directory>,
    places: HashMap<SegmentId, Place>,
    maps: HashMap<u64, Mmap>,
    /// Not written yet.
    pending: HashMap<SegmentId, Arc<[u8]>>,
    jobs: Option<Sender<Job>>,
    queued_bytes: Arc<AtomicU64>,
    outcomes: Receiver<Outcome>,
    lost: Vec<SegmentId>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for DiskTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("DiskTier");
        out.field("path", &self.directory.path).field("segments", &self.places.len()).finish_non_exhaustive()
    }
}

impl DiskTier {
    /// Opens the layout's directory and says what it holds. What is torn or was changed is passed over.
    ///
    /// # Errors
    /// A directory that cannot be made or read, or that another process uses.
    pub fn open(options: &DiskOptions) -> Result<(Self, Vec<(SegmentId, SegmentInfo)>), DiskError> {
        Self::open_with(options, DATA_FILE_BYTES)
    }

    fn open_with(options: &DiskOptions, file_bytes: u64) -> Result<(Self, Vec<(SegmentId, SegmentInfo)>), DiskError> {
        let directory = Arc::new(Directory::open(&options.dir.join(options.layout.directory()))?);
        let failed = |verb, path: PathBuf| move |source| DiskError::Io { verb, path, source };
        let numbers = directory::data_files(&directory.path).map_err(failed("list", directory.path.clone()))?;
        let (mut places, mut found, mut maps, mut files) =
            (HashMap::new(), Vec::new(), HashMap::new(), std::collections::VecDeque::new());
        for file in numbers {
            let path = directory.data_file(file);
            let map = directory::map(&path).map_err(failed("read", path))?;
            let bytes = map.as_deref().unwrap_or_default();
            files.push_back((file, bytes.len() as u64));
            for (at, header) in directory::scan(&directory.key, bytes).0 {
                let segment = SegmentId(found.len() as u64);
                let place = Place { file, at: at + header.state_at, len: header.state_len, sum: header.state_sum };
                places.insert(segment, place);
                found.push((segment, header.info));
            }
            maps.extend(map.map(|map| (file, map)));
        }
        let (jobs, to_do) = bounded(QUEUED_SEGMENTS);
        let (done, outcomes) = bounded(OUTCOMES);
        let queued_bytes = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            directory: directory.clone(),
            capacity: options.capacity_bytes,
            file_bytes,
            files,
            queued_bytes: queued_bytes.clone(),
            outcomes: done,
            // What an earlier process left may end in a torn record: new segments go to a new data file.
            current: None,
            broken_since: None,
        };
        let thread = std::thread::Builder::new().name("disk-cache".to_owned()).spawn(move || writer.run(&to_do));
        let thread = Some(thread.map_err(failed("start the writer of", directory.path.clone()))?);
        let pending = HashMap::new();
        let jobs = Some(jobs);
        let tier = Self { directory, places, maps, pending, jobs, queued_bytes, outcomes, lost: Vec::new(), thread };
        Ok((tier, found))
    }

    /// Takes note of what the writer did.
    fn catch_up(&mut self) {
        for outcome in self.outcomes.try_iter() {
            match outcome {
                Outcome::Written { segment, place } => {
                    // One that was removed meanwhile stays in the file until its data file goes.
                    if self.pending.remove(&segment).is_some() {
                        self.places.insert(segment, place);
                    }
                }
                Outcome::NotWritten(segment) => {
                    self.lost.extend(self.pending.remove(&segment).map(|_| segment));
                }
                Outcome::Removed { file } => {
                    self.maps.remove(&file);
                    let gone: Vec<SegmentId> =
                        self.places.iter().filter(|(_, place)| place.file == file).map(|(&id, _)| id).collect();
                    for segment in gone {
                        self.places.remove(&segment);
                        self.lost.push(segment);
                    }
                }
            }
        }
    }

    /// The state at a place, if it is there and intact.
    fn read(&mut self, place: &Place) -> Option<&[u8]> {
        let end = place.at.checked_add(place.len)? as usize;
        if self.maps.get(&place.file).is_none_or(|map| map.len() < end) {
            // The data file has grown since it was mapped.
            let map = directory::map(&self.directory.data_file(place.file)).ok()??;
            self.maps.insert(place.file, map);
        }
        let state = self.maps.get(&place.file)?.get(place.at as usize..end)?;
        record::is_intact(&self.directory.key, state, &place.sum).then_some(state)
    }
}

impl ColdTier for DiskTier {
    fn put(&mut self, segment: SegmentId, info: &SegmentInfo, state: &Arc<[u8]>) {
        self.catch_up();
        let bytes = state.len() as u64;
        let queued = self.queued_bytes.fetch_add(bytes, Ordering::Relaxed);
        let job = Job { segment, info: info.clone(), state: state.clone() };
        let sent = match &self.jobs {
            Some(jobs) => queued + bytes <= QUEUED_BYTES && jobs.try_send(job).is_ok(),
            None => false,
        };
        if sent {
            self.pending.insert(segment, state.clone());
        } else {
            self.queued_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.lost.push(segment);
        }
    }

    fn get(&mut self, segment: SegmentId) -> Option<Cow<'_, [u8]>> {
        self.catch_up();
        if let Some(state) = self.pending.get(&segment) {
            return Some(Cow::Owned(state.to_vec()));
        }
        let place = *self.places.get(&segment)?;
        if self.read(&place).is_none() {
            tracing::warn!(%segment, path = %self.directory.path.display(), "a segment on disk is damaged; it is recomputed");
            self.places.remove(&segment);
            return None;
        }
        self.read(&place).map(Cow::Borrowed)
    }

    fn remove(&mut self, segment: SegmentId) {
        self.pending.remove(&segment);
        self.places.remove(&segment);
    }

    fn lost(&mut self, segments: &mut Vec<SegmentId>) {
        self.catch_up();
        segments.append(&mut self.lost);
    }
}

impl Drop for DiskTier {
    fn drop(&mut self) {
        // The writer ends when it has written what is queued, and waits for nobody to hear of it.
        self.jobs = None;
        self.outcomes = never();
        if let Some(thread) = self.thread.take() {
            // A writer that panicked has nothing more to write.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests;
