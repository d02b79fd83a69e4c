//! A file that is being downloaded: its bytes so far, and what they are bytes of.
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::digest::{Digest, Hasher};
use crate::entry::read_small;
use crate::error::RegistryError;
use crate::lock::open_regular;

/// Bytes of what is written about a partial file.
const META_BYTES: u64 = 64 << 10;

/// What a partial file is part of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Meta {
    pub(crate) url: String,
    /// Bytes of the whole file.
    pub(crate) bytes: u64,
    /// What the whole file must have.
    pub(crate) sha256: Option<Digest>,
    /// As the source had it before the file was asked for.
    pub(crate) version: Option<String>,
    /// As the server had it that sent the file.
    pub(crate) etag: Option<String>,
    pub(crate) modified: Option<String>,
}

/// A partial file. Only whoever holds the lock of its pull has one.
#[derive(Debug)]
pub(crate) struct Partial {
    path: PathBuf,
    file: File,
    bytes: u64,
    meta: Option<Meta>,
}

/// The names of a part's files.
fn paths(dir: &Path, part: u32) -> (PathBuf, PathBuf) {
    (dir.join(format!("{part}.part")), dir.join(format!("{part}.json")))
}

/// Bytes that the partial files of a pull have, or will have as far as is known.
pub(crate) fn announced(dir: &Path) -> (u64, u64) {
    let (mut here, mut total) = (0u64, 0u64);
    for found in fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = found.path();
        if path.extension().is_some_and(|ending| ending == "part") {
            let bytes = found.metadata().map_or(0, |data| data.len());
            let whole = read_meta(&path.with_extension("json")).map_or(0, |meta| meta.bytes);
            here = here.saturating_add(bytes);
            total = total.saturating_add(whole.max(bytes));
        }
    }
    (here, total)
}

fn read_meta(path: &Path) -> Option<Meta> {
    serde_json::from_slice(&read_small(path, META_BYTES).ok()?).ok()
}

impl Partial {
    /// Opens what an earlier pull left, or an empty file.
    ///
    /// # Errors
    /// The system refuses, or something else lies there.
    pub(crate) fn open(dir: &Path, part: u32) -> Result<Self, RegistryError> {
        let (path, meta) = paths(dir, part);
        let failed = |error| RegistryError::io("open", &path, error);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = open_regular(&path, &mut options).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut partial = Self { path, file, bytes, meta: read_meta(&meta) };
        let fits = partial.meta.as_ref().is_some_and(|meta| partial.bytes <= meta.bytes);
        if bytes > 0 && !fits {
            partial.clear()?;
        }
        Ok(partial)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that are here.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn meta(&self) -> Option<&Meta> {
        self.meta.as_ref()
    }

    /// Takes in what is here already, telling of each piece.
    pub(crate) fn hash(&mut self, each: impl FnMut(u64) -> io::Result<()>) -> Result<Hasher, RegistryError> {
        let mut hasher = Hasher::default();
        let read = self.file.rewind().and_then(|()| hasher.read_all(&mut self.file, each));
        let read = read.map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => RegistryError::Cancelled,
            _ => RegistryError::io("read", &self.path, error),
        })?;
        // Nobody else writes it, but what was counted is what is continued.
        self.bytes = read;
        Ok(hasher)
    }

    /// Notes what the bytes that follow are part of.
    pub(crate) fn describe(&mut self, meta: Meta) -> Result<(), RegistryError> {
        if self.meta.as_ref() == Some(&meta) {
            return Ok(());
        }
        let path = self.path.with_extension("json");
        let written = serde_json::to_vec(&meta).map_err(io::Error::from).and_then(|text| {
            let beside = path.with_extension("json.new");
            fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path))
        });
        written.map_err(|error| RegistryError::io("write", &path, error))?;
        self.meta = Some(meta);
        Ok(())
    }

    /// Appends bytes.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), RegistryError> {
        let written = self.file.seek(SeekFrom::Start(self.bytes)).and_then(|_| self.file.write_all(bytes));
        written.map_err(|error| {
            // What was written of it is not counted.
            let _ = self.file.set_len(self.bytes);
            RegistryError::io("write", &self.path, error)
        })?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Forgets everything that is here.
    pub(crate) fn clear(&mut self) -> Result<(), RegistryError> {
        let cleared = self.file.set_len(0).and_then(|()| match fs::remove_file(self.path.with_extension("json")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        cleared.map_err(|error| RegistryError::io("empty", &self.path, error))?;
        (self.bytes, self.meta) = (0, None);
        Ok(())
    }

    /// The file is whole: brings it to the disk.
    pub(crate) fn finish(&self) -> Result<(), RegistryError> {
        self.file.sync_all().map_err(|error| RegistryError::io("write", &self.path, error))
    }

    /// Removes it: nobody shall resume it.
    pub(crate) fn discard(self) {
        // What cannot be removed is emptied, at least.
        let _ = self.file.set_len(0);
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(self.path.with_extension("json"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meta(bytes: u64) -> Meta {
        let url = "https://h/x".to_owned();
        Meta { url, bytes, sha256: None, version: None, etag: Some("\"a\"".to_owned()), modified: None }
    }

    #[test]
    fn a_partial_file_is_continued_by_whoever_opens_it_next() {
        let dir = tempfile::tempdir().unwrap();
        let mut partial = Partial::open(dir.path(), 1).unwrap();
        partial.describe(meta(5)).unwrap();
        partial.append(b"abc").unwrap();
        drop(partial);
        assert_eq!(announced(dir.path()), (3, 5));
        let mut again = Partial::open(dir.path(), 1).unwrap();
        assert_eq!((again.bytes(), again.meta()), (3, Some(&meta(5))));
        let hasher = again.hash(|_| Ok(())).unwrap();
        assert_eq!(hasher.finish(), Digest::of(b"abc"));
        again.append(b"de").unwrap();
        assert_eq!(fs::read(again.path()).unwrap(), b"abcde");
    }

    #[test]
    fn bytes_of_which_nothing_is_known_are_not_continued() {
        let dir = tempfile::tempdir().unwrap();
        for (meta, bytes) in [(None, "abc"), (Some("{"), "abc"), (Some("{\"url\":\"x\",\"bytes\":2}"), "abc")] {
            fs::write(dir.path().join("1.part"), bytes).unwrap();
            if let Some(meta) = meta {
                fs::write(dir.path().join("1.json"), meta).unwrap();
            }
            let partial = Partial::open(dir.path(), 1).unwrap();
            assert_eq!((partial.bytes(), partial.meta()), (0, None), "{meta:?}");
        }
    }
}
