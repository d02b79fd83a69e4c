//! How many bytes the data files below a directory take together. While they are too many, those of layouts that nobody uses
//! go first: of models that were replaced, and of other settings.
use std::collections::{HashSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::directory::{self, SegmentDirectory};
use super::inspect::layouts;

/// A directory with layouts, and what its data files may take. One for all tiers of a process.
#[derive(Debug)]
pub struct DiskRoom {
    dir: PathBuf,
    capacity: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    /// Bytes of the layouts that this process has open.
    own: u64,
    /// All that it ever opened, so that those of a worker that is started again are not removed meanwhile.
    opened: HashSet<PathBuf>,
    /// Data files of the other layouts, the oldest first; `None` until they were looked for.
    others: Option<VecDeque<Other>>,
}

/// A data file of a layout that this process did not open.
#[derive(Debug)]
struct Other {
    written: SystemTime,
    layout: PathBuf,
    number: u64,
    bytes: u64,
}

impl DiskRoom {
    /// Room for `capacity` bytes of data files below `dir`, which is made when it is needed.
    pub fn new(dir: PathBuf, capacity: u64) -> Self {
        Self { dir, capacity, taken: Mutex::default() }
    }

    /// Bytes of data files.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A layout is about to be opened, and is not removed from now on.
    pub(super) fn announce(&self, layout: &Path) {
        let mut taken = self.taken();
        taken.opened.insert(layout.to_owned());
        taken.others = None;
    }

    /// Counts the data files of a layout that was opened.
    pub(super) fn enter(&self, layout: &Path, bytes: u64) {
        self.announce(layout);
        self.taken().own += bytes;
    }

    /// No longer counts `bytes` of this process's data files: they were removed, or their layout was closed.
    pub(super) fn leave(&self, bytes: u64) {
        let mut taken = self.taken();
        taken.own = taken.own.saturating_sub(bytes);
    }

    /// Counts `bytes` more of this process's data files, for which it removes others. Another process's are neither counted
    /// nor removed while it uses them.
    pub(super) fn take(&self, bytes: u64) {
        let mut taken = self.taken();
        taken.own += bytes;
        let own = taken.own;
        let Taken { opened, others, .. } = &mut *taken;
        let others = others.get_or_insert_with(|| others_below(&self.dir, opened));
        let mut left = others.iter().map(|other| other.bytes).sum::<u64>();
        while own + left > self.capacity
            && let Some(other) = others.pop_front()
        {
            left -= other.bytes;
            remove(&other);
        }
    }
}

/// The data files of layouts that are not among `opened`, the oldest first. What cannot be read is left out.
fn others_below(dir: &Path, opened: &HashSet<PathBuf>) -> VecDeque<Other> {
    let mut out = Vec::new();
    let found = layouts(dir).unwrap_or_default().into_iter();
    for layout in found.filter(|path| !opened.contains(path) && directory::has_key(path)) {
        for number in directory::data_files(&layout).unwrap_or_default() {
            let Ok(data) = fs::symlink_metadata(directory::data_file(&layout, number)) else { continue };
            let (written, bytes) = (data.modified().unwrap_or(SystemTime::UNIX_EPOCH), data.len());
            out.push(Other { written, layout: layout.clone(), number, bytes });
        }
    }
    out.sort_by(|a, b| (a.written, &a.layout, a.number).cmp(&(b.written, &b.layout, b.number)));
    out.into()
}

/// Removes a data file, and its layout with the last one, unless somebody uses them.
fn remove(other: &Other) {
    // Somebody else may have removed it: opening would make it anew.
    if !directory::has_key(&other.layout) {
        return;
    }
    let Ok(held) = SegmentDirectory::open(&other.layout) else { return };
    if let Err(error) = fs::remove_file(held.data_file(other.number)) {
        let path = other.layout.display();
        tracing::warn!(%path, %error, "a prefix cache that nobody uses cannot be removed; cache.disk is exceeded");
        return;
    }
    if directory::data_files(&other.layout).is_ok_and(|left| left.is_empty()) {
        let _ = fs::remove_dir_all(&other.layout);
        tracing::info!(path = %other.layout.display(), "a prefix cache that nobody uses was removed: cache.disk is full");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// A layout with data files of 100 bytes, the first of which is `oldest` seconds old.
    fn layout(dir: &Path, name: &str, files: u64, oldest: u64) -> PathBuf {
        let held = SegmentDirectory::open(&dir.join(name)).unwrap();
        for number in 1..=files {
            let path = held.data_file(number);
            fs::write(&path, [0; 100]).unwrap();
            let written = SystemTime::now() - Duration::from_secs(oldest - number);
            fs::File::options().write(true).open(path).unwrap().set_modified(written).unwrap();
        }
        held.path.clone()
    }

    fn files(path: &Path) -> Vec<u64> {
        directory::data_files(path).unwrap_or_default()
    }

    #[test]
    fn regression_layouts_that_nobody_uses_go_oldest_first_past_the_capacity() {
        let dir = tempfile::tempdir().unwrap();
        let (old, older) =
            (layout(dir.path(), "aaaaaaaaaaaaaaaa", 2, 100), layout(dir.path(), "bbbbbbbbbbbbbbbb", 1, 900));
        let own = layout(dir.path(), "cccccccccccccccc", 3, 2000);
        let room = DiskRoom::new(dir.path().to_owned(), 1000);
        room.enter(&own, 300);
        // 600 bytes are there: 400 more are just the capacity.
        room.take(400);
        assert_eq!((files(&old), files(&older)), (vec![1, 2], vec![1]));
        room.take(1);
        assert_eq!((files(&old), older.exists()), (vec![1, 2], false), "one past it, and its directory with it");
        room.take(100);
        assert_eq!(files(&old), [2]);
        room.leave(101);
        room.take(101);
        assert_eq!(files(&old), [2], "what this process removed makes room");
        room.take(9000);
        assert_eq!((old.exists(), files(&own)), (false, vec![1, 2, 3]), "its own it removes by itself");
    }

    #[test]
    fn regression_a_layout_that_is_about_to_be_opened_stays() {
        let dir = tempfile::tempdir().unwrap();
        let [soon, stale] = ["aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb"].map(|name| layout(dir.path(), name, 1, 100));
        let room = DiskRoom::new(dir.path().to_owned(), 50);
        room.announce(&soon);
        room.take(60);
        assert_eq!((soon.exists(), stale.exists()), (true, false));
    }

    #[test]
    fn regression_a_layout_that_somebody_removed_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let [first, gone] = [("aaaaaaaaaaaaaaaa", 900), ("bbbbbbbbbbbbbbbb", 100)]
            .map(|(name, oldest)| layout(dir.path(), name, 1, oldest));
        let room = DiskRoom::new(dir.path().to_owned(), 1000);
        room.take(850);
        assert_eq!((first.exists(), gone.exists()), (false, true), "they were looked for");
        fs::remove_dir_all(&gone).unwrap();
        room.take(100);
        assert!(!gone.exists());
    }

    #[test]
    fn what_others_use_and_what_is_no_cache_stays() {
        let dir = tempfile::tempdir().unwrap();
        let used = layout(dir.path(), "aaaaaaaaaaaaaaaa", 1, 100);
        let letters = dir.path().join("0123456789abcdef");
        fs::create_dir(&letters).unwrap();
        fs::write(directory::data_file(&letters, 1), [0; 100]).unwrap();
        let held = SegmentDirectory::open(&used).unwrap();
        let room = DiskRoom::new(dir.path().to_owned(), 50);
        room.take(60);
        assert_eq!((files(&used), files(&letters)), (vec![1], vec![1]));
        drop(held);
        // Looked for again when this process opens a layout.
        room.enter(&dir.path().join("cccccccccccccccc"), 0);
        room.take(1);
        assert_eq!((used.exists(), files(&letters)), (false, vec![1]));
    }
}
