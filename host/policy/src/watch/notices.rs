//! Notices of changes from the system, for the policy directory and everything on the way to it.
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use camshaft_core::policy::Hook;
use crossbeam_channel::Sender;
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::load::Loader;

/// Watches on directories. Files are not watched: a watch on one stays with the inode that a rename replaces.
pub(super) struct Watches {
    root: PathBuf,
    watcher: Option<RecommendedWatcher>,
    /// What is watched, and which directory it was.
    armed: HashMap<PathBuf, (u64, u64)>,
}

impl Watches {
    pub(super) fn new(root: &Path, notices: Sender<()>) -> Self {
        let root = std::path::absolute(root).unwrap_or_else(|_| root.to_path_buf());
        let of = root.clone();
        let handler = move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, |event| matters(&of, event)) {
                // A full channel says already what there is to say.
                let _ = notices.try_send(());
            }
        };
        let watcher = notify::recommended_watcher(handler);
        let watcher = watcher.map_err(|error| tracing::warn!(%error, "cannot watch for changes of policies; polling"));
        Self { root, watcher: watcher.ok(), armed: HashMap::new() }
    }

    /// Watches the directories that now matter. Whether there are new ones.
    pub(super) fn arm(&mut self, loader: &Loader) -> bool {
        let wanted = wanted(&self.root, loader);
        let Some(watcher) = &mut self.watcher else { return false };
        let mut fresh = false;
        self.armed.retain(|path, id| {
            let keep = wanted.get(path) == Some(id);
            if !keep {
                // Gone with its directory, as a rule.
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

/// Whether an event can mean that a policy changed. Reading files makes events too, also this process's own reading.
fn matters(root: &Path, event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => {}
        EventKind::Access(_) => return false,
        _ => {}
    }
    // Above the root only the way to it matters: other files there are none of ours.
    let stranger = |path: &PathBuf| {
        let above = path.parent().is_some_and(|parent| parent != root && root.starts_with(parent));
        above && !root.starts_with(path)
    };
    event.paths.is_empty() || event.need_rescan() || !event.paths.iter().all(stranger)
}

/// The directories to watch: the root and the hooks' (or what exists of the way to them), the root's parent (the root may
/// be a link that is swapped), and where the files really lie.
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
