//! A directory of data files, with its key and its lock.
use std::collections::HashSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::error::DiskError;
use super::record::{self, ChecksumKey, Entry, Header, StateAt};
use crate::regular::{open, open_with};

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
        let options = &mut OpenOptions::new();
        let lock = open_with(&path.join(LOCK), options.create(true).truncate(false).write(true).mode(0o600));
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
        OpenOptions::new().create_new(true).write(true).mode(0o600).open(&probe).map_err(failed)?;
        fs::remove_file(&probe).map_err(failed)
    }

    pub(super) fn data_file(&self, number: u64) -> PathBuf {
        data_file(&self.path, number)
    }
}

pub(super) fn data_file(directory: &Path, number: u64) -> PathBuf {
    directory.join(data_name(number))
}

fn data_name(number: u64) -> String {
    format!("segments-{number:06}.data")
}

/// The directory's key. Replaces a missing or short one, after which the earlier segments no longer verify.
fn key(directory: &Path) -> std::io::Result<ChecksumKey> {
    let path = directory.join(KEY);
    if let Some(key) = read_key(&path) {
        return Ok(key);
    }
    let mut key = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut key)?;
    let mut file = open_with(&path, OpenOptions::new().create(true).truncate(true).write(true).mode(0o600))?;
    file.write_all(&key)?;
    Ok(key)
}

/// Whether a directory holds a key, as each does that `open` has made.
pub(super) fn has_key(directory: &Path) -> bool {
    let key = fs::symlink_metadata(directory.join(KEY));
    key.is_ok_and(|key| key.is_file() && key.len() == size_of::<ChecksumKey>() as u64)
}

pub(super) fn read_key(path: &Path) -> Option<ChecksumKey> {
    let (mut key, file) = (Vec::new(), open(path).ok()?);
    file.take(size_of::<ChecksumKey>() as u64 + 1).read_to_end(&mut key).ok()?;
    key.try_into().ok()
}

/// The numbers of the data files in a directory, oldest first.
pub(super) fn data_files(directory: &Path) -> std::io::Result<Vec<u64>> {
    let mut numbers = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        let number =
            name.to_str().and_then(|name| name.strip_prefix("segments-")?.strip_suffix(".data")?.parse::<u64>().ok());
        // Nothing that is merely called like one.
        numbers.extend(number.filter(|number| *number < u64::MAX && data_name(*number).as_str() == name));
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Reads `len` bytes of a file. A file that has become shorter is an error; a memory map of it would end the process.
pub(super) fn read(path: &Path, at: u64, len: u64) -> std::io::Result<Vec<u8>> {
    let file = open(path)?;
    // Nothing is allocated for bytes that are not there.
    if at.checked_add(len).is_none_or(|end| end > file.metadata().map_or(0, |data| data.len())) {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(bytes)
}

/// What a data file holds.
#[derive(Debug, Default)]
pub(super) struct Scan {
    /// The intact records from the start of the file up to the first damaged one, each with its offset.
    pub(super) records: Vec<(u64, Header)>,
    /// Where they end.
    pub(super) end: u64,
    /// Length of the file.
    pub(super) bytes: u64,
}

/// Reads the headers of a data file.
pub(super) fn scan(key: &ChecksumKey, path: &Path) -> std::io::Result<Scan> {
    let file = open(path)?;
    let mut scan = Scan { bytes: file.metadata()?.len(), ..Scan::default() };
    while let Some(header) = header(key, &file, scan.end, scan.bytes) {
        let len = header.record_len();
        scan.records.push((scan.end, header));
        scan.end += len;
    }
    Ok(scan)
}

/// Scans all data files of a directory, oldest first. Leaves out segments that a later record calls damaged.
pub(super) fn scan_all(key: &ChecksumKey, directory: &Path) -> Result<Vec<(u64, Scan)>, DiskError> {
    let failed = |verb, path: &Path| {
        let path = path.to_owned();
        move |source| DiskError::Io { verb, path, source }
    };
    let mut scans = Vec::new();
    for file in data_files(directory).map_err(failed("list", directory))? {
        let path = data_file(directory, file);
        scans.push((file, scan(key, &path).map_err(failed("read", &path))?));
    }
    let named = |(_, header): &(u64, Header)| match header.entry {
        Entry::Damage(state) => Some(state),
        Entry::Segment(_) => None,
    };
    let damaged: HashSet<StateAt> = scans.iter().flat_map(|(_, scan)| scan.records.iter().filter_map(named)).collect();
    for (file, scan) in &mut scans {
        scan.records.retain(|(at, header)| !damaged.contains(&StateAt { file: *file, at: at + header.state_at }));
    }
    Ok(scans)
}

/// The header of the record at `at`, in a file of `len` bytes. `None` if it is torn or damaged, or cannot be read.
fn header(key: &ChecksumKey, file: &File, at: u64, len: u64) -> Option<Header> {
    let mut fixed = [0; record::FIXED];
    file.read_exact_at(&mut fixed, at).ok()?;
    let mut head = vec![0; record::head_len(&fixed, len.saturating_sub(at))?];
    file.read_exact_at(&mut head, at).ok()?;
    record::parse(key, &head)
}
