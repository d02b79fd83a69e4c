//! Room in the cache and on its disk: what is counted, what has to go first, and what nobody refers to any more.
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::commit::remove_folder;
use crate::digest::Digest;
use crate::entry::Entry;
use crate::error::RegistryError;
use crate::lock::{self, Kind};
use crate::partial;
use crate::progress::{Event, Progress};
use crate::store::{Entries, NEW, Store, Tables, paths_in};

/// Bytes beside a model's files that a pull may need.
const TABLES_BYTES: u64 = 64 << 10;
/// Files that are looked at in one directory.
const LOOKED_AT: usize = 1 << 20;

/// Refuses what has no room on the disk.
///
/// # Errors
/// Says what is needed and what is free.
pub(crate) fn on_disk(store: &Store, bytes: u64) -> Result<(), RegistryError> {
    let dir = store.dir();
    let disk = rustix::fs::statvfs(dir).map_err(|error| RegistryError::io("look at the disk of", dir, error.into()))?;
    let free = disk.f_bavail.saturating_mul(disk.f_frsize);
    fits(dir, bytes, free)
}

fn fits(dir: &Path, bytes: u64, free: u64) -> Result<(), RegistryError> {
    let needed = bytes.saturating_add(TABLES_BYTES);
    if bytes > 0 && needed > free {
        return Err(RegistryError::NoSpace { dir: dir.to_owned(), needed, free });
    }
    Ok(())
}

/// Refuses what has no room in the cache, whatever is evicted. `bound` 0: everything has.
///
/// # Errors
/// Says what is needed, what the bound is, and how much of it cannot be evicted.
pub(crate) fn in_cache(store: &Store, source: &str, bytes: u64, bound: u64) -> Result<(), RegistryError> {
    if bound == 0 {
        return Ok(());
    }
    let tables = store.tables(Kind::Shared)?;
    let entries = store.entries(&tables)?;
    let mut kept = HashMap::new();
    for entry in entries.known.iter().filter(|entry| !may_go(store, &tables, entry, source)) {
        kept.extend(entry.files.iter().map(|file| (file.sha256, file.bytes)));
    }
    let others =
        partials(store)?.into_iter().filter(|partial| partial.is_pulled && partial.dir != store.partial(source));
    let held = kept.values().copied().chain(others.map(|other| other.total)).fold(0, u64::saturating_add);
    if bytes.saturating_add(held) > bound {
        return Err(RegistryError::TooLarge { needed: bytes, bound, held });
    }
    Ok(())
}

/// Whether a model may be evicted for one from `source`.
fn may_go(store: &Store, tables: &Tables, entry: &Entry, source: &str) -> bool {
    !store.is_in_use(tables, entry) && (entry.source == source || !store.is_pulled(&entry.source))
}

/// What a pull has so far.
#[derive(Debug)]
pub(crate) struct PartialPull {
    pub(crate) dir: PathBuf,
    /// Bytes that are here, and that it will have.
    pub(crate) bytes: u64,
    pub(crate) total: u64,
    pub(crate) is_pulled: bool,
    pub(crate) changed: SystemTime,
}

/// All pulls that have something.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn partials(store: &Store) -> Result<Vec<PartialPull>, RegistryError> {
    let mut found = Vec::new();
    for dir in paths_in(&store.partials(), LOOKED_AT)? {
        let Ok(data) = fs::symlink_metadata(&dir) else { continue };
        if data.is_dir() {
            let (bytes, total) = partial::announced(&dir);
            let lock = dir.with_extension("lock");
            let is_pulled = lock.exists() && !matches!(lock::try_lock(&lock, Kind::Exclusive), Ok(Some(_)));
            let changed = newest(&dir).unwrap_or(SystemTime::UNIX_EPOCH);
            found.push(PartialPull { dir, bytes, total, is_pulled, changed });
        }
    }
    Ok(found)
}

fn newest(dir: &Path) -> Option<SystemTime> {
    let files = fs::read_dir(dir).ok()?.take(LOOKED_AT).flatten();
    files.filter_map(|file| file.metadata().ok()?.modified().ok()).max()
}

/// What may be evicted.
enum Candidate<'a> {
    Model(&'a Entry),
    Partial(&'a PartialPull),
}

/// Evicts what was not used for longest until the cache holds at most `bound` bytes. Never `keep`, what is in use, and what is
/// being pulled. The tables are held alone.
///
/// # Errors
/// A directory cannot be read.
pub(crate) fn evict(
    store: &Store,
    tables: &Tables,
    keep: &Entry,
    bound: u64,
    progress: &dyn Progress,
) -> Result<(), RegistryError> {
    let entries = store.entries(tables)?;
    collect(store, tables, &entries)?;
    if bound == 0 {
        return Ok(());
    }
    let partials = partials(store)?;
    let mut used = blobs(store)?.iter().map(|(_, bytes)| *bytes).fold(0, u64::saturating_add);
    used = partials.iter().map(|partial| partial.bytes).fold(used, u64::saturating_add);
    let mut users: HashMap<Digest, u32> = HashMap::new();
    for file in entries.known.iter().flat_map(|entry| &entry.files) {
        *users.entry(file.sha256).or_default() += 1;
    }
    let models =
        entries.known.iter().filter(|entry| entry.name != keep.name && may_go(store, tables, entry, &keep.source));
    let left = partials.iter().filter(|partial| !partial.is_pulled);
    let mut candidates: Vec<(SystemTime, Candidate<'_>)> = models
        .map(|entry| (store.used(entry), Candidate::Model(entry)))
        .chain(left.map(|partial| (partial.changed, Candidate::Partial(partial))))
        .collect();
    candidates.sort_by_key(|(last, _)| *last);
    for (_, candidate) in candidates {
        if used <= bound {
            break;
        }
        used -= match candidate {
            Candidate::Partial(partial) => match remove_folder(&partial.dir) {
                Ok(()) => partial.bytes.min(used),
                Err(_) => 0,
            },
            Candidate::Model(entry) => {
                let path = store.name(&entry.name);
                fs::remove_file(&path).map_err(|error| RegistryError::io("remove", &path, error))?;
                progress.tell(&Event::Evicted { name: &entry.name, bytes: entry.bytes() });
                freed(entry, &mut users).min(used)
            }
        };
    }
    if used > bound {
        let why = format!("the cache holds {used} bytes, more than {bound} (models.cache-size): the rest is in use");
        progress.tell(&Event::Note(&why));
    }
    let entries = store.entries(tables)?;
    collect(store, tables, &entries)
}

/// Bytes that nobody else refers to.
fn freed(entry: &Entry, users: &mut HashMap<Digest, u32>) -> u64 {
    let mut freed = 0u64;
    for file in &entry.files {
        if let Some(count) = users.get_mut(&file.sha256) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                freed = freed.saturating_add(file.bytes);
            }
        }
    }
    freed
}

/// The cache's content, with its sizes.
///
/// # Errors
/// The directory cannot be read.
pub(crate) fn blobs(store: &Store) -> Result<Vec<(PathBuf, u64)>, RegistryError> {
    let sized = |path: PathBuf| fs::symlink_metadata(&path).ok().map(|data| (path, data.len()));
    Ok(paths_in(&store.blobs(), LOOKED_AT)?.into_iter().filter_map(sized).collect())
}

/// Removes what no name refers to and nobody uses. The tables are held alone. Where a name cannot be read, nothing is removed.
///
/// # Errors
/// A directory cannot be read.
pub(crate) fn collect(store: &Store, _held: &Tables, entries: &Entries) -> Result<(), RegistryError> {
    if !entries.bad.is_empty() {
        return Ok(());
    }
    let named: HashSet<String> = entries.known.iter().map(|entry| entry.snapshot().to_string()).collect();
    let mut content: HashSet<String> =
        entries.known.iter().flat_map(|entry| &entry.files).map(|file| file.sha256.to_string()).collect();
    for folder in paths_in(&store.snapshots(), LOOKED_AT)? {
        let id = name_of(&folder);
        if named.contains(&id) {
            continue;
        }
        let lock = store.uses().join(&id);
        let is_used = lock.exists() && !matches!(lock::try_lock(&lock, Kind::Exclusive), Ok(Some(_)));
        if is_used && !id.starts_with(NEW) {
            // Its content stays until it is used no more.
            let links = fs::read_dir(&folder).into_iter().flatten().flatten();
            content.extend(links.filter_map(|link| fs::read_link(link.path()).ok()).map(|to| name_of(&to)));
            continue;
        }
        // What cannot be removed now is found again the next time.
        let _ = remove_folder(&folder);
        let _ = fs::remove_file(&lock);
    }
    for (blob, _) in blobs(store)? {
        if !content.contains(&name_of(&blob)) {
            let _ = fs::remove_file(&blob);
        }
    }
    for left in paths_in(&store.names(), LOOKED_AT)? {
        if name_of(&left).starts_with(NEW) {
            let _ = fs::remove_file(&left);
        }
    }
    Ok(())
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_needs_its_bytes_and_64_kib_on_the_disk() {
        let dir = Path::new("/cache");
        assert!(fits(dir, 1000, 1000 + TABLES_BYTES).is_ok());
        let error = fits(dir, 1001, 1000 + TABLES_BYTES).unwrap_err().to_string();
        assert!(error.contains("66537 bytes, 66536 free") && error.contains("/cache"), "{error}");
        assert!(fits(dir, u64::MAX, u64::MAX - 1).is_err(), "no overflow");
        assert!(fits(dir, 0, 0).is_ok(), "nothing is to come");
    }
}
