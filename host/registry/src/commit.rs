//! What was pulled becomes a model of the cache: all of it, or nothing.
use std::fs::{self, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::digest::Digest;
use crate::entry::Entry;
use crate::error::RegistryError;
use crate::limits::ENTRIES;
use crate::store::{InUse, NEW, Store, Tables, paths_in, sync};

/// What came of it.
pub(crate) enum Committed {
    Done(InUse),
    /// A file that was in the cache is not any more, and has to be downloaded.
    Vanished,
}

/// Puts the files of a model in their places and gives it its name. `fetched`: where each file is, unless it is in the cache.
/// The tables are held alone.
///
/// # Errors
/// The disk is full, or the system refuses. What was there before is still there.
pub(crate) fn commit(
    store: &Store,
    tables: &Tables,
    entry: &Entry,
    fetched: &[Option<PathBuf>],
) -> Result<Committed, RegistryError> {
    let is_new = !store.name(&entry.name).exists();
    // What is there counts, whatever it is.
    if is_new && paths_in(&store.names(), ENTRIES)?.len() >= ENTRIES {
        return Err(RegistryError::TooMany { max: ENTRIES });
    }
    for (file, path) in entry.files.iter().zip(fetched) {
        match path {
            _ if store.has(&file.sha256, file.bytes) => {}
            Some(path) => keep(path, &store.blob(&file.sha256))?,
            None => return Ok(Committed::Vanished),
        }
    }
    synced(&store.blobs())?;
    link(store, entry)?;
    write(store, entry)?;
    match store.hold(tables, entry)? {
        Some(held) => Ok(Committed::Done(held)),
        None => Ok(Committed::Vanished),
    }
}

/// Moves a file to where its content is looked for, and lets nobody write it any more.
fn keep(path: &Path, blob: &Path) -> Result<(), RegistryError> {
    let moved = fs::set_permissions(path, Permissions::from_mode(0o444)).and_then(|()| fs::rename(path, blob));
    moved.map_err(|error| RegistryError::io("keep", blob, error))
}

/// The folder of a model's files, under their own names.
fn link(store: &Store, entry: &Entry) -> Result<(), RegistryError> {
    let id = entry.snapshot();
    let folder = store.snapshot(&id);
    if is_whole(store, entry, &folder) {
        return Ok(());
    }
    let new = store.snapshots().join(format!("{NEW}{id}"));
    let made = remove_folder(&new).and_then(|()| remove_folder(&folder)).and_then(|()| {
        fs::create_dir(&new)?;
        for file in &entry.files {
            symlink(format!("../../blobs/{}", file.sha256), new.join(file.name.as_str()))?;
        }
        sync(&new)?;
        fs::rename(&new, &folder)
    });
    made.map_err(|error| RegistryError::io("make", &folder, error))?;
    synced(&store.snapshots())
}

fn is_whole(store: &Store, entry: &Entry, folder: &Path) -> bool {
    let leads = |name: &str, sha256: &Digest| {
        let to = fs::read_link(folder.join(name)).ok();
        to.is_some_and(|to| to.file_name() == store.blob(sha256).file_name())
    };
    entry.files.iter().all(|file| leads(file.name.as_str(), &file.sha256))
}

/// Removes a folder of the cache, which holds nothing but files, if it is there.
pub(crate) fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Says what the name means, in one step.
fn write(store: &Store, entry: &Entry) -> Result<(), RegistryError> {
    let path = store.name(&entry.name);
    let new = store.names().join(format!("{NEW}{}", Digest::of(entry.name.as_bytes())));
    let failed = |error| RegistryError::io("write", &path, error);
    let text = serde_json::to_vec(entry).map_err(|error| failed(error.into()))?;
    let written = File::create(&new).and_then(|mut file| {
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&new, &path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&new);
    }
    written.map_err(failed)?;
    synced(&store.names())
}

fn synced(dir: &Path) -> Result<(), RegistryError> {
    sync(dir).map_err(|error| RegistryError::io("write", dir, error))
}
