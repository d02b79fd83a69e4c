//! Locks between processes: on files, released by the system when their holder dies.
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;

use crate::error::RegistryError;

/// How a lock is shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Shared,
    Exclusive,
}

/// Times that a lock's file may be replaced while it is taken.
const REPLACED: u32 = 64;

/// Opens a file of the cache. Never follows a link, and never waits at a pipe.
///
/// # Errors
/// It is not there (unless it is created), no regular file, or the system refuses.
pub(crate) fn open_regular(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits().cast_signed()).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// Takes a lock if nobody else has it. It is held until the file is dropped.
///
/// # Errors
/// The file cannot be opened or created.
pub(crate) fn try_lock(path: &Path, kind: Kind) -> io::Result<Option<File>> {
    for _ in 0..REPLACED {
        let file = open_lock(path)?;
        let taken = match kind {
            Kind::Shared => file.try_lock_shared(),
            Kind::Exclusive => file.try_lock(),
        };
        match taken {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Whoever held it may have removed the file meanwhile: others would lock another one.
        let (ours, there) = (file.metadata()?, std::fs::symlink_metadata(path));
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(Some(file));
        }
    }
    Err(io::Error::other("the lock's file is replaced time and again"))
}

fn open_lock(path: &Path) -> io::Result<File> {
    match open_regular(path, OpenOptions::new().read(true).write(true).create(true).truncate(false)) {
        // Somebody who may only read the cache can hold what others share, too.
        Err(error) if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            open_regular(path, OpenOptions::new().read(true))
        }
        other => other,
    }
}

/// Takes a lock, and waits for it. `waiting` is called before each further look, with the time since the first.
///
/// # Errors
/// The file cannot be opened, or `waiting` gives up.
pub(crate) fn wait(
    path: &Path,
    kind: Kind,
    look: Duration,
    mut waiting: impl FnMut(Duration) -> Result<(), RegistryError>,
) -> Result<File, RegistryError> {
    let begun = Instant::now();
    loop {
        match try_lock(path, kind).map_err(|error| RegistryError::io("lock", path, error))? {
            Some(lock) => return Ok(lock),
            None => waiting(begun.elapsed())?,
        }
        thread::sleep(look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exclusive_lock_keeps_everybody_out_and_shared_ones_only_that() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let one = try_lock(&path, Kind::Shared).unwrap().unwrap();
        let other = try_lock(&path, Kind::Shared).unwrap().unwrap();
        assert!(try_lock(&path, Kind::Exclusive).unwrap().is_none());
        drop((one, other));
        let alone = try_lock(&path, Kind::Exclusive).unwrap().unwrap();
        assert!(try_lock(&path, Kind::Shared).unwrap().is_none());
        drop(alone);
        assert!(try_lock(&path, Kind::Shared).unwrap().is_some());
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_nobodys() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let old = try_lock(&path, Kind::Exclusive).unwrap().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(try_lock(&path, Kind::Exclusive).unwrap().is_some(), "another file");
        drop(old);
    }

    #[test]
    fn a_pipe_or_a_link_is_no_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (pipe, link) = (dir.path().join("pipe"), dir.path().join("link"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        assert!(try_lock(&pipe, Kind::Exclusive).is_err());
        assert!(try_lock(&link, Kind::Exclusive).is_err());
        assert!(!dir.path().join("elsewhere").exists());
    }
}
