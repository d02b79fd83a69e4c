//! The watcher thread: notices changes in the policy directory, waits for them to end, and scans.
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use camshaft_core::policy::{Hook, Mode, ModeError, PolicyStatus};
use crossbeam_channel::{Receiver, Sender, bounded, select};
use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};

use crate::error::PolicyError;
use crate::load::{Loader, Patience, SETTLE};

/// A change is acted on when nothing has happened for `QUIET`, or `MAX_WAIT` after its beginning.
const QUIET: Duration = Duration::from_millis(250);
const MAX_WAIT: Duration = Duration::from_secs(2);
/// How much less the thread asks of the CPU than those that serve.
const NICE: i32 = 10;

/// What the watcher thread is asked to do.
#[derive(Debug)]
pub(crate) enum Request {
    /// Scan now; answered when it is done.
    Reload(Sender<()>),
    /// Serve what another directory holds; answered when it does, or cannot.
    Relocate {
        dir: PathBuf,
        poll: Duration,
        /// Refuse a directory without an auth policy.
        needs_auth: bool,
        done: Sender<Result<(), PolicyError>>,
    },
    SetMode {
        hook: Hook,
        name: String,
        mode: Mode,
        done: Sender<Result<PolicyStatus, ModeError>>,
    },
    Stop,
}

/// Runs until asked to stop.
pub(crate) fn run(mut loader: Loader, requests: &Receiver<Request>, poll: Duration) {
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "cannot lower the priority of the policy watcher");
    }
    let (notices, changes) = bounded(1);
    let mut watches = Watches::new(loader.dir(), notices.clone());
    watches.arm(&loader);
    let mut pace = Pace::new(poll);
    // What changed between the first load and the watch.
    pace.notice();
    loop {
        let now = Instant::now();
        let Some(wait) = pace.wait(now) else {
            scan(&mut loader, &mut watches, &mut pace);
            continue;
        };
        select! {
            recv(requests) -> request => match request {
                Ok(Request::Reload(done)) => {
                    reload(&mut loader, &mut watches, &mut pace);
                    // Nobody may be waiting any more.
                    let _ = done.send(());
                }
                Ok(Request::Relocate { dir, poll, needs_auth, done }) => {
                    let moved = if dir == loader.dir() { Ok(()) } else { loader.relocate(dir, needs_auth) };
                    if moved.is_ok() {
                        watches = Watches::new(loader.dir(), notices.clone());
                        watches.arm(&loader);
                        pace = Pace::new(poll);
                        // What changed between the look and the watch.
                        pace.notice();
                    }
                    let _ = done.send(moved);
                }
                Ok(Request::SetMode { hook, name, mode, done }) => {
                    let _ = done.send(loader.set_mode(hook, &name, mode));
                }
                Ok(Request::Stop) | Err(_) => return,
            },
            recv(changes) -> change => if change.is_ok() { pace.notice() },
            default(wait) => {}
        }
    }
}

fn scan(loader: &mut Loader, watches: &mut Watches, pace: &mut Pace) {
    let noticed = pace.begin();
    let scan = loader.scan(Patience::Wait);
    finish(loader, watches, pace, (noticed, scan.published, scan.pending));
}

fn reload(loader: &mut Loader, watches: &mut Watches, pace: &mut Pace) {
    let noticed = pace.begin();
    let scan = loader.scan_settled();
    finish(loader, watches, pace, (noticed, scan.published, scan.pending));
}

fn finish(
    loader: &Loader,
    watches: &mut Watches,
    pace: &mut Pace,
    (noticed, published, pending): (Instant, bool, bool),
) {
    if published {
        loader.note_swap_time(noticed);
    }
    if pending {
        pace.retry(noticed);
    }
    if watches.arm(loader) {
        pace.notice();
    }
}

/// When to scan next.
#[derive(Debug)]
struct Pace {
    poll: Duration,
    next_poll: Instant,
    /// The first and the last notice of changes not yet acted on.
    noticed: Option<(Instant, Instant)>,
    /// When to look again at what had not settled, and when that was first noticed.
    retry: Option<(Instant, Instant)>,
}

impl Pace {
    fn new(poll: Duration) -> Self {
        // Without a pause between two scans nobody would be listened to.
        let poll = poll.max(SETTLE / 2);
        Self { poll, next_poll: Instant::now() + poll, noticed: None, retry: None }
    }

    fn notice(&mut self) {
        let now = Instant::now();
        let first = self.noticed.map_or(now, |(first, _)| first);
        self.noticed = Some((first, now));
    }

    fn retry(&mut self, noticed: Instant) {
        self.retry = Some((Instant::now() + SETTLE, noticed));
    }

    /// How long until the next scan; `None`: now.
    fn wait(&self, now: Instant) -> Option<Duration> {
        let quiet = self.noticed.map(|(first, last)| (last + QUIET).min(first + MAX_WAIT));
        let retry = self.retry.map(|(at, _)| at);
        let next = quiet.into_iter().chain(retry).fold(self.next_poll, Instant::min);
        let wait = next.saturating_duration_since(now);
        (!wait.is_zero()).then_some(wait)
    }

    /// A scan begins: when what it acts on was first noticed.
    fn begin(&mut self) -> Instant {
        let now = Instant::now();
        self.next_poll = now + self.poll;
        let retried = self.retry.take().map(|(_, noticed)| noticed);
        let noticed = self.noticed.take().map(|(first, _)| first);
        retried.into_iter().chain(noticed).fold(now, Instant::min)
    }
}

/// Watches on directories. Files are not watched: a watch on one stays with the inode that a rename replaces.
struct Watches {
    root: PathBuf,
    watcher: Option<RecommendedWatcher>,
    /// What is watched, and which directory it was.
    armed: HashMap<PathBuf, (u64, u64)>,
}

impl Watches {
    fn new(root: &Path, notices: Sender<()>) -> Self {
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
    fn arm(&mut self, loader: &Loader) -> bool {
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

/// Asks the thread for something and waits for the answer.
///
/// # Errors
/// The thread is gone, or has not answered for ten minutes (it may still do what it was asked).
pub(crate) fn ask<T>(requests: &Sender<Request>, request: impl FnOnce(Sender<T>) -> Request) -> Result<T, PolicyError> {
    const LONGEST: Duration = Duration::from_secs(600);
    let (done, finished) = bounded(1);
    requests.send_timeout(request(done), LONGEST).map_err(|_| PolicyError::Unanswered)?;
    finished.recv_timeout(LONGEST).map_err(|_| PolicyError::Unanswered)
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

    #[test]
    fn waits_for_quiet_but_not_for_ever() {
        let start = Instant::now();
        let mut pace = Pace { poll: MAX_WAIT * 10, next_poll: start + MAX_WAIT * 10, noticed: None, retry: None };
        assert_eq!(pace.wait(start), Some(MAX_WAIT * 10));
        pace.noticed = Some((start, start));
        assert_eq!(pace.wait(start), Some(QUIET));
        assert_eq!(pace.wait(start + QUIET), None);
        pace.noticed = Some((start, start + MAX_WAIT - QUIET / 2));
        assert_eq!(pace.wait(start), Some(MAX_WAIT));
        pace.retry = Some((start + SETTLE, start));
        assert_eq!(pace.wait(start), Some(SETTLE));
        assert_eq!(pace.begin(), start);
        assert!(pace.noticed.is_none() && pace.retry.is_none());
    }
}
