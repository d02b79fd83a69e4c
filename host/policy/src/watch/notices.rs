//! The system's notices of changes in the policy directory and on the path to it.
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use camshaft_core::policy::Hook;
use crossbeam_channel::Sender;
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::load::Loader;

/// Watches on directories. Files are not watched, because a rename replaces the inode that a file's watch stays with.
pub(super) struct Watches {
    root: PathBuf,
    watcher: Option<RecommendedWatcher>,
    /// The watched paths, each with the identity of its directory.
    armed: HashMap<PathBuf, (u64, u64)>,
}

impl Watches {
    pub(super) fn new(root: &Path, notices: Sender<()>) -> Self {
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_path_buf());
        let of = root.clone();
        let handler = move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, |event| matters(&of, event)) {
                // If the channel is full, it already holds a notice.
                let _ = notices.try_send(());
            }
        };
        // The library panics where it cannot start its thread.
        let trial = std::thread::Builder::new().name("policy-notices".to_owned()).spawn(|| ());
        let watcher = trial.map_err(notify::Error::io).and_then(|trial| {
            // It does nothing that could panic.
            let _ = trial.join();
            notify::recommended_watcher(handler)
        });
        let watcher = watcher.map_err(|error| tracing::warn!(%error, "cannot watch for changes of policies; polling"));
        Self { root, watcher: watcher.ok(), armed: HashMap::new() }
    }

    /// Watches the directories that matter now. Returns whether there are new ones.
    pub(super) fn arm(&mut self, loader: &Loader) -> bool {
        let wanted = wanted(&self.root, loader);
        let Some(watcher) = &mut self.watcher else { return false };
        let mut fresh = false;
        self.armed.retain(|path, id| {
            let keep = wanted.get(path) == Some(id);
            if !keep {
                // Usually fails because the directory is gone.
                let _ = watcher.unwatch(path);
            }
            keep
        });
        for (path, id) in wanted {
            if self.armed.contains_key(&path) {
                continue;
            }
            match watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => {
                    fresh = true;
                    self.armed.insert(path, id);
                }
                Err(error) => tracing::debug!(path = %path.display(), %error, "cannot watch a policy directory"),
            }
        }
        fresh
    }
}

/// Whether an event can mean that a policy changed. Reads cause events, too, this process's own among them.
fn matters(root: &Path, event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        EventKind::Access(_) => return false,
        _ => {}
    }
    // Above the root, only the path to it matters. Other files there are not policies.
    let stranger = |path: &PathBuf| {
        let above = path.parent().is_some_and(|parent| parent != root && root.starts_with(parent));
        above && !root.starts_with(path)
    };
    event.paths.is_empty() || event.need_rescan() || !event.paths.iter().all(stranger)
}

/// The directories to watch: the root and those of the hooks (or their nearest existing parents), the root's parent
/// (the root may be a link that is swapped), and the directories in which the files really are.
fn wanted(root: &Path, loader: &Loader) -> HashMap<PathBuf, (u64, u64)> {
    let hooks = Hook::ALL.map(|hook| root.join(hook.as_str()));
    let mut paths: Vec<PathBuf> = vec![nearest(root)];
    paths.extend(root.parent().map(nearest));
    paths.extend(hooks.iter().map(|path| nearest(path)));
    for file in loader.component_files() {
        let real = fs::canonicalize(file).ok();
        paths.extend(real.and_then(|real| real.parent().map(Path::to_path_buf)));
    }
    let identified = paths.into_iter().filter_map(|path| {
        let meta = fs::metadata(&path).ok()?;
        Some((path, (meta.dev(), meta.ino())))
    });
    identified.collect()
}

/// The path itself, or the nearest directory above it that exists.
fn nearest(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/")).to_path_buf()
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, ModifyKind};

    use super::*;

    fn event(kind: EventKind, path: &str) -> Event {
        Event::new(kind).add_path(PathBuf::from(path))
    }

    #[test]
    fn wakes_for_changes_below_and_on_the_way_to_the_root_only() {
        let root = Path::new("/srv/policy.d");
        let created = EventKind::Create(CreateKind::Any);
        for path in ["/srv/policy.d", "/srv", "/srv/policy.d/auth/10-x.wasm", "/elsewhere/real/10-x.wasm"] {
            assert!(matters(root, &event(created, path)), "{path}");
        }
        for path in ["/srv/other", "/tmp", "/srv/policy.d.bak"] {
            assert!(!matters(root, &event(created, path)), "{path}");
        }
        assert!(matters(root, &Event::new(EventKind::Other)));
        assert!(matters(root, &event(EventKind::Modify(ModifyKind::Any), "/srv/policy.d/auth/10-x.toml")));
    }

    #[test]
    fn does_not_wake_for_reading() {
        let root = Path::new("/srv/policy.d");
        let path = "/srv/policy.d/auth/10-x.wasm";
        for kind in [AccessKind::Open(AccessMode::Any), AccessKind::Close(AccessMode::Read), AccessKind::Read] {
            assert!(!matters(root, &event(EventKind::Access(kind), path)));
        }
        let closed = EventKind::Access(AccessKind::Close(AccessMode::Write));
        assert!(matters(root, &event(closed, path)));
    }
}
