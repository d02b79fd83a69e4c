//! Files of this machine that are copied into the cache.
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::OFlags;

use crate::digest::{CHUNK, Digest, Hasher};
use crate::error::RegistryError;
use crate::file_name::FileName;
use crate::limits::FILE_BYTES;
use crate::partial::{Meta, Partial};
use crate::progress::{Event, Meter, Moved, Progress};
use crate::shards::parts_of;
use crate::transfer::Fetched;

/// A file to be copied.
#[derive(Debug)]
pub(crate) struct LocalFile {
    pub(crate) name: FileName,
    pub(crate) path: PathBuf,
}

/// The files of a model of this machine.
///
/// # Errors
/// The name is no file's, which [`Source::parse`](crate::Source::parse) has checked.
pub(crate) fn files(path: &Path) -> Result<Vec<LocalFile>, RegistryError> {
    let shown = path.to_string_lossy();
    let bad = |why: &str| RegistryError::value("source", &shown, why);
    let name = path.file_name().and_then(|name| name.to_str()).ok_or_else(|| bad("names no file"))?;
    let names = parts_of(name).map_err(|_| bad("has too many parts"))?;
    let file = |name: &String| {
        let path = path.with_file_name(name);
        Ok(LocalFile { name: FileName::new(name).map_err(|_| bad("names no file"))?, path })
    };
    names.iter().map(file).collect()
}

/// What copies.
pub(crate) struct Copying<'a> {
    pub(crate) progress: &'a dyn Progress,
    /// As [`Transfer`](crate::transfer::Transfer) has it.
    pub(crate) room: &'a dyn Fn(u64, u64) -> Result<(), RegistryError>,
    pub(crate) parts: u32,
}

impl Copying<'_> {
    /// Copies a file into `dir`, as this part of the model. A copy that breaks off is not resumed: reading is fast.
    ///
    /// # Errors
    /// It is not there, no regular file, changes meanwhile, or there is no room.
    pub(crate) fn run(&self, file: &LocalFile, dir: &Path, part: u32) -> Result<Fetched, RegistryError> {
        let unread = |error| RegistryError::io("read", &file.path, error);
        let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let mut from = OpenOptions::new().read(true).custom_flags(flags).open(&file.path).map_err(unread)?;
        let data = from.metadata().map_err(unread)?;
        if !data.is_file() {
            return Err(unread(io::Error::other("not a regular file")));
        }
        let total = data.len();
        if total > FILE_BYTES {
            return Err(RegistryError::FileTooLarge { file: file.name.to_string(), bytes: total, max: FILE_BYTES });
        }
        let mut partial = Partial::open(dir, part)?;
        partial.clear()?;
        (self.room)(total, total)?;
        let url = file.path.to_string_lossy().into_owned();
        partial.describe(Meta { url, bytes: total, sha256: None, version: None, etag: None, modified: None })?;
        let copied = self.copy(&mut from, file, &mut partial, (part, total));
        match copied {
            Ok(sha256) if partial.bytes() == total => {
                partial.finish()?;
                Ok(Fetched { path: Some(partial.path().to_owned()), sha256, bytes: total, etag: None })
            }
            Ok(_) => {
                partial.discard();
                Err(unread(io::Error::other("it changed while it was read")))
            }
            Err(error) => {
                partial.discard();
                Err(error)
            }
        }
    }

    fn copy(
        &self,
        from: &mut impl Read,
        file: &LocalFile,
        partial: &mut Partial,
        (part, total): (u32, u64),
    ) -> Result<Digest, RegistryError> {
        let (mut hasher, mut buffer) = (Hasher::default(), vec![0; CHUNK]);
        let mut meter = Meter::new(Instant::now(), 0);
        loop {
            if self.progress.is_cancelled() {
                return Err(RegistryError::Cancelled);
            }
            let n = match from.read(&mut buffer) {
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(RegistryError::io("read", &file.path, error)),
            };
            // A file that grows has no end.
            if n == 0 || partial.bytes() + n as u64 > total {
                partial.append(&buffer[..n])?;
                return Ok(hasher.finish());
            }
            hasher.update(&buffer[..n]);
            partial.append(&buffer[..n])?;
            let bytes = partial.bytes();
            let due = meter.moved(Instant::now(), bytes);
            if due.is_some() || bytes == total {
                let moved =
                    Moved { file: file.name.as_str(), part, parts: self.parts, bytes, total, rate: due.unwrap_or(0) };
                self.progress.tell(&Event::Moved(moved));
            }
        }
    }
}
