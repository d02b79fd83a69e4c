//! The cache's directory: what lies where, who may look at it, and what is held in use.
//!
//! Content lies in `blobs/`, named by its digest, and is never written again. `snapshots/ID/` has a link to the content of each
//! file of a model, under its own name, so that llama.cpp finds the parts of a split one beside each other. `uses/ID` is the lock
//! that whoever serves a snapshot shares, and its time is that of the last use. `names/KEY.json` says what a name means;
//! `partials/KEY/` is what a pull has so far, and `partials/KEY.lock` is held while it runs. The lock `tables` is held for
//! moments: shared while names are read, alone while they, snapshots or blobs change.
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::digest::Digest;
use crate::entry::{Entry, EntryFile};
use crate::error::RegistryError;
use crate::limits::ENTRIES;
use crate::lock::{self, Kind};
use crate::settings::Times;
use crate::source::canonical;

/// How the names of files begin that are being written.
pub(crate) const NEW: &str = ".new-";

/// The cache.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    dir: PathBuf,
    look: Duration,
    lock: Duration,
}

/// Held while tables are looked at, or changed.
#[derive(Debug)]
pub(crate) struct Tables {
    _lock: File,
}

/// Everything that has a name, and what could not be read.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) known: Vec<Entry>,
    pub(crate) bad: Vec<(PathBuf, String)>,
}

/// A model that stays in the cache for as long as this is held: nobody evicts or removes it.
#[derive(Debug)]
pub struct InUse {
    name: String,
    files: Vec<PathBuf>,
    digest: Digest,
    bytes: u64,
    _lock: File,
}

impl InUse {
    /// What the model is called in the cache.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is loaded: the first file, with the others beside it.
    pub fn path(&self) -> &Path {
        // There is one, see `Entry::read`.
        self.files.first().map_or(Path::new(""), PathBuf::as_path)
    }

    /// All files, in order.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// SHA-256 of the model, as `sha256` in the configuration has it.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Store {
    /// Opens the cache, and makes what is missing of its directory.
    ///
    /// # Errors
    /// It cannot be made, is no directory, or everybody may write to it.
    pub(crate) fn open(dir: &Path, times: &Times) -> Result<Self, RegistryError> {
        let dir = std::path::absolute(dir).map_err(|error| RegistryError::io("find", dir, error))?;
        let store = Self { dir, look: times.look.min(times.lock), lock: times.lock };
        for made in [store.dir.clone(), store.blobs(), store.snapshots(), store.uses(), store.names(), store.partials()]
        {
            // Somebody who may only read a whole cache makes nothing.
            if !made.is_dir() {
                let done = DirBuilder::new().recursive(true).mode(0o755).create(&made);
                done.map_err(|error| RegistryError::io("make the directory", &made, error))?;
            }
        }
        let mode = fs::metadata(&store.dir).map_err(|error| RegistryError::io("look at", &store.dir, error))?.mode();
        if mode & 0o002 != 0 {
            let why = "everybody may write to it, and so replace what is served; take that away (chmod o-w)".to_owned();
            return Err(RegistryError::BadDirectory { path: store.dir, why });
        }
        Ok(store)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn blobs(&self) -> PathBuf {
        self.dir.join("blobs")
    }

    pub(crate) fn blob(&self, digest: &Digest) -> PathBuf {
        self.blobs().join(digest.to_string())
    }

    pub(crate) fn snapshots(&self) -> PathBuf {
        self.dir.join("snapshots")
    }

    pub(crate) fn snapshot(&self, id: &Digest) -> PathBuf {
        self.snapshots().join(id.to_string())
    }

    pub(crate) fn uses(&self) -> PathBuf {
        self.dir.join("uses")
    }

    pub(crate) fn usage(&self, id: &Digest) -> PathBuf {
        self.uses().join(id.to_string())
    }

    pub(crate) fn names(&self) -> PathBuf {
        self.dir.join("names")
    }

    pub(crate) fn name(&self, name: &str) -> PathBuf {
        self.names().join(format!("{}.json", Digest::of(name.as_bytes())))
    }

    pub(crate) fn partials(&self) -> PathBuf {
        self.dir.join("partials")
    }

    pub(crate) fn partial(&self, source: &str) -> PathBuf {
        self.partials().join(Digest::of(source.as_bytes()).to_string())
    }

    /// The lock that whoever pulls from a source holds.
    pub(crate) fn pull_lock(&self, source: &str) -> PathBuf {
        self.partial(source).with_extension("lock")
    }

    /// # Errors
    /// Somebody holds them for longer than a moment.
    pub(crate) fn tables(&self, kind: Kind) -> Result<Tables, RegistryError> {
        let path = self.dir.join("tables");
        let lock =
            lock::wait(&path, kind, self.look.min(Duration::from_millis(20)), |waited| match waited < self.lock {
                true => Ok(()),
                false => Err(RegistryError::Locked { path: path.clone(), waited }),
            })?;
        Ok(Tables { _lock: lock })
    }

    /// All models.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn entries(&self, _held: &Tables) -> Result<Entries, RegistryError> {
        let mut entries = Entries::default();
        for path in paths_in(&self.names(), ENTRIES)? {
            if path.extension().is_none_or(|ending| ending != "json") {
                continue;
            }
            match Entry::read(&path) {
                // A copy under another name says nothing.
                Ok(entry) if self.name(&entry.name) == path => entries.known.push(entry),
                Ok(entry) => entries.bad.push((path, format!("is about {:?}", crate::text::shown(&entry.name)))),
                Err(error) => entries.bad.push((path, error.to_string())),
            }
        }
        entries.known.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// A model by its name, by its source, or by another spelling of that.
    pub(crate) fn find(&self, held: &Tables, name: &str) -> Result<Option<Entry>, RegistryError> {
        for name in [Some(name.to_owned()), canonical(name)].into_iter().flatten() {
            match Entry::read(&self.name(&name)) {
                Ok(entry) if entry.name == name => return Ok(Some(entry)),
                _ => {}
            }
        }
        let source = canonical(name).unwrap_or_else(|| name.to_owned());
        Ok(self.entries(held)?.known.into_iter().find(|entry| entry.source == source))
    }

    /// Whether the content of a file is here, by its size alone.
    pub(crate) fn has(&self, sha256: &Digest, bytes: u64) -> bool {
        fs::symlink_metadata(self.blob(sha256)).is_ok_and(|data| data.is_file() && data.len() == bytes)
    }

    /// Keeps a model in the cache. `None`: some of it is missing.
    ///
    /// # Errors
    /// The lock cannot be taken.
    pub(crate) fn hold(&self, _held: &Tables, entry: &Entry) -> Result<Option<InUse>, RegistryError> {
        let id = entry.snapshot();
        let folder = self.snapshot(&id);
        let whole = |file: &EntryFile| {
            let path = folder.join(file.name.as_str());
            self.has(&file.sha256, file.bytes) && fs::metadata(path).is_ok_and(|data| data.len() == file.bytes)
        };
        if !entry.files.iter().all(whole) {
            return Ok(None);
        }
        let path = self.usage(&id);
        // Whoever looks whether it is in use has it alone for a moment.
        let lock = lock::wait(&path, Kind::Shared, self.look.min(Duration::from_millis(5)), |waited| {
            if waited < self.lock { Ok(()) } else { Err(RegistryError::Locked { path: path.clone(), waited }) }
        })?;
        // Somebody else's file keeps its time; then it is evicted sooner.
        let _ = lock.set_modified(SystemTime::now());
        Ok(Some(InUse {
            name: entry.name.clone(),
            files: entry.files.iter().map(|file| folder.join(file.name.as_str())).collect(),
            digest: entry.digest(),
            bytes: entry.bytes(),
            _lock: lock,
        }))
    }

    /// Whether somebody holds a model in use.
    pub(crate) fn is_in_use(&self, _held: &Tables, entry: &Entry) -> bool {
        let path = self.usage(&entry.snapshot());
        // A lock that cannot be looked at counts as held.
        path.exists() && !matches!(lock::try_lock(&path, Kind::Exclusive), Ok(Some(_)))
    }

    /// Whether somebody pulls from a source.
    pub(crate) fn is_pulled(&self, source: &str) -> bool {
        let path = self.pull_lock(source);
        path.exists() && !matches!(lock::try_lock(&path, Kind::Exclusive), Ok(Some(_)))
    }

    /// When a model was used last.
    pub(crate) fn used(&self, entry: &Entry) -> SystemTime {
        let modified = fs::symlink_metadata(self.usage(&entry.snapshot())).and_then(|data| data.modified());
        modified.unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// What lies in a directory of the cache, at most `max` of it, in order.
///
/// # Errors
/// It cannot be read.
pub(crate) fn paths_in(dir: &Path, max: usize) -> Result<Vec<PathBuf>, RegistryError> {
    let failed = |error| RegistryError::io("read the directory", dir, error);
    let mut paths = Vec::new();
    for found in fs::read_dir(dir).map_err(failed)?.take(max) {
        paths.push(found.map_err(failed)?.path());
    }
    paths.sort();
    Ok(paths)
}

/// Brings the names in a directory to the disk.
pub(crate) fn sync(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
