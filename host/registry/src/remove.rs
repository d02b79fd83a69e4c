//! Takes a model out of the cache, with what nobody else refers to.
use std::fs;

use crate::commit::remove_folder;
use crate::error::RegistryError;
use crate::lock::{self, Kind};
use crate::room;
use crate::source::canonical;
use crate::store::Store;

/// What was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    pub name: String,
    /// That the cache holds less now.
    pub bytes: u64,
}

/// Removes a model, or what a torn pull of a source left.
///
/// # Errors
/// There is no such model, it is in use, or somebody pulls it.
pub(crate) fn remove(store: &Store, name: &str) -> Result<Removed, RegistryError> {
    let tables = store.tables(Kind::Exclusive)?;
    let found = store.find(&tables, name)?;
    let source = found.as_ref().map(|entry| entry.source.clone()).or_else(|| canonical(name));
    // A file that cannot be read has a name all the same.
    let path = found.as_ref().map_or_else(|| store.name(name), |entry| store.name(&entry.name));
    let partial = source.as_deref().map(|source| store.partial(source)).filter(|dir| dir.is_dir());
    if !path.exists() && partial.is_none() {
        return Err(RegistryError::Unknown { name: name.to_owned() });
    }
    let pull = source.as_deref().map(|source| store.pull_lock(source));
    let _pull = match pull.filter(|lock| lock.exists() || partial.is_some()) {
        None => None,
        Some(lock) => {
            let taken =
                lock::try_lock(&lock, Kind::Exclusive).map_err(|error| RegistryError::io("lock", &lock, error))?;
            let taken = taken.ok_or_else(|| RegistryError::Pulling { name: name.to_owned() })?;
            let _ = fs::remove_file(&lock);
            Some(taken)
        }
    };
    if found.as_ref().is_some_and(|entry| store.is_in_use(&tables, entry)) {
        return Err(RegistryError::InUse { name: name.to_owned() });
    }
    let before = held(store)?;
    if let Some(dir) = partial {
        remove_folder(&dir).map_err(|error| RegistryError::io("remove", &dir, error))?;
    }
    if path.exists() {
        fs::remove_file(&path).map_err(|error| RegistryError::io("remove", &path, error))?;
    }
    room::collect(store, &tables, &store.entries(&tables)?)?;
    let bytes = before.saturating_sub(held(store)?);
    Ok(Removed { name: found.map_or_else(|| name.to_owned(), |entry| entry.name), bytes })
}

fn held(store: &Store) -> Result<u64, RegistryError> {
    let blobs = room::blobs(store)?.into_iter().map(|(_, bytes)| bytes);
    let partials = room::partials(store)?.into_iter().map(|partial| partial.bytes);
    Ok(blobs.chain(partials).fold(0, u64::saturating_add))
}
