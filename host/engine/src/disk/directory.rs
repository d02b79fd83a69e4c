//! A directory of data files, with its key and its lock.
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::error::DiskError;
use super::record::{self, ChecksumKey, Header};

const KEY: &str = "key";
const LOCK: &str = "lock";

/// An open directory. Its lock keeps other processes out until this is dropped.
#[derive(Debug)]
pub(super) struct SegmentDirectory {
    pub(super) path: PathBuf,
    pub(super) key: ChecksumKey,
    _lock: File,
}

impl SegmentDirectory {
    /// Opens a directory. Makes the directory and its key if they are missing.
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

    /// Whether `open` would succeed now. Makes nothing: whoever checks may be another user than the one who serves.
    pub(super) fn check(path: &Path) -> Result<(), DiskError> {
        if path.join(LOCK).exists() && path.join(KEY).exists() {
            return Self::open(path).map(drop);
        }
        let existing = path.ancestors().find(|ancestor| ancestor.exists()).unwrap_or(Path::new("."));
        let probe = existing.join(format!(".camshaft-check-{}", std::process::id()));
        let failed = |source| DiskError::Io { verb: "make", path: path.to_owned(), source };
        OpenOptions::new().create_new(true).write(true).open(&probe).map_err(failed)?;
        fs::remove_file(&probe).map_err(failed)
    }

    pub(super) fn data_file(&self, number: u64) -> PathBuf {
        data_file(&self.path, number)
    }
}

pub(super) fn data_file(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("segments-{number:06}.data"))
}

/// The directory's key. Replaces a missing or short one, after which the earlier segments no longer verify.
fn key(directory: &Path) -> std::io::Result<ChecksumKey> {
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

pub(super) fn read_key(path: &Path) -> Option<ChecksumKey> {
    fs::read(path).ok()?.try_into().ok()
}

/// The numbers of the data files in a directory, oldest first.
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

/// Maps a file with its present length; `None` if it is empty.
pub(super) fn map(path: &Path) -> std::io::Result<Option<Mmap>> {
    let file = File::open(path)?;
    if file.metadata()?.len() == 0 {
        return Ok(None);
    }
    // SAFETY: the map is only read, and its bytes are used only after a keyed checksum has verified them. Only the
    // process that holds the directory's lock changes data files: it appends to them and removes whole files, but never
    // shortens or overwrites them.
    unsafe { Mmap::map(&file) }.map(Some)
}

/// Reads the intact records from the start of a data file, up to the first damaged one. Returns each with its offset,
/// and the offset at which they end.
pub(super) fn scan(key: &ChecksumKey, bytes: &[u8]) -> (Vec<(u64, Header)>, u64) {
    let (mut found, mut at) = (Vec::new(), 0u64);
    while let Some(header) = record::parse(key, &bytes[at as usize..]) {
        let len = header.record_len();
        found.push((at, header));
        at += len;
    }
    (found, at)
}
