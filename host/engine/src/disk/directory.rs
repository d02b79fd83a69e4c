//! A directory of data files: its key, its lock, what lies in it.
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::DiskError;
use super::record::{self, Header, Key};

const KEY: &str = "key";
const LOCK: &str = "lock";

/// A directory that no other process uses while this is alive.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) path: PathBuf,
    pub(super) key: Key,
    _lock: File,
}

impl Directory {
    /// Opens a directory, making it and its key where they are missing.
    pub(super) fn open(path: &Path) -> Result<Self, DiskError> {
        let failed = |verb: &'static str| {
            let path = path.to_owned();
            move |source| DiskError::Io { verb, path, source }
        };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("make"))?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK));
        let lock = lock.map_err(failed("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(DiskError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let key = key(path).map_err(failed("read or make the key of"))?;
        Ok(Self { path: path.to_owned(), key, _lock: lock })
    }

    pub(super) fn data_file(&self, number: u64) -> PathBuf {
        data_file(&self.path, number)
    }
}

pub(super) fn data_file(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("segments-{number:06}.data"))
}

/// The directory's key; a missing or short one is made anew, which makes everything written before worthless.
fn key(directory: &Path) -> std::io::Result<Key> {
    let path = directory.join(KEY);
    if let Some(key) = read_key(&path) {
        return Ok(key);
    }
    let mut key = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(&key)?;
    Ok(key)
}

pub(super) fn read_key(path: &Path) -> Option<Key> {
    fs::read(path).ok()?.try_into().ok()
}

/// Numbers of the data files in a directory, oldest first.
pub(super) fn data_files(directory: &Path) -> std::io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix("segments-")?.strip_suffix(".data")?.parse::<u64>().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Maps a file as it is now; `None` for an empty one.
pub(super) fn map(path: &Path) -> std::io::Result<Option<Mmap>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the map is only read, and every byte is checked against a keyed checksum before it means anything. Segments
    // are appended to and removed as whole files, never shortened or written over, by the one process that holds the
    // directory's lock; somebody else who shortens them breaks the lock's rule.
    unsafe { Mmap::map(&file) }.map(Some)
}

/// The good records at the front of a data file, each with its offset, and where they end.
pub(super) fn scan(key: &Key, bytes: &[u8]) -> (Vec<(u64, Header)>, u64) {
    let (mut found, mut at) = (Vec::new(), 0u64);
    while let Some(header) = record::parse(key, &bytes[at as usize..]) {
        let len = header.record_len();
        found.push((at, header));
        at += len;
    }
    (found, at)
}
