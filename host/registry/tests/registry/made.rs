//! Registries, requests and files for tests.
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use camshaft_registry::{
    Digest, Environment, Event, Progress, Pulled, Registry, RegistryError, Request, Settings, Source, Times,
};

/// Bytes that differ everywhere, and from those of another seed.
pub(crate) fn bytes(seed: u64, count: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..count).map(|_| next()).collect()
}

/// Quick to give up, and patient with a slow machine.
pub(crate) fn times() -> Times {
    let pause = Duration::from_millis(5);
    let stall = Duration::from_secs(20);
    Times { attempts: 3, pause, pause_max: pause, look: Duration::from_millis(10), stall, ..Times::default() }
}

pub(crate) fn settings(dir: &Path) -> Settings {
    let mut settings = Settings::new(Some(dir.join("cache")), Environment::default()).unwrap();
    settings.times = times();
    settings
}

pub(crate) fn registry(dir: &Path) -> Registry {
    Registry::open(settings(dir)).unwrap()
}

pub(crate) fn request(source: &str) -> Request {
    Request::new(Source::parse(source).unwrap())
}

/// Of a file whose digest is known.
pub(crate) fn pinned(source: &str, bytes: &[u8]) -> Request {
    Request { sha256: Some(Digest::of(bytes)), ..request(source) }
}

/// Pulls, and returns what was told.
pub(crate) fn pull(registry: &Registry, request: &Request) -> (Result<Pulled, RegistryError>, Told) {
    let told = Told::default();
    (registry.pull(request, &told), told)
}

/// Remembers what it is told, and cancels once so many bytes have come.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) lines: Mutex<Vec<String>>,
    moved: AtomicU64,
    cancel_at: u64,
}

impl Default for Told {
    fn default() -> Self {
        Self::cancelling(u64::MAX)
    }
}

impl Told {
    pub(crate) fn cancelling(cancel_at: u64) -> Self {
        Self { lines: Mutex::default(), moved: AtomicU64::new(0), cancel_at }
    }

    pub(crate) fn has(&self, part: &str) -> bool {
        self.lines.lock().unwrap().iter().any(|line| line.contains(part))
    }
}

impl Progress for Told {
    fn tell(&self, event: &Event<'_>) {
        if let Event::Moved(moved) = event {
            self.moved.store(moved.bytes, Ordering::Relaxed);
            if self.cancel_at < u64::MAX {
                // So that the next piece is told of, too.
                std::thread::sleep(Duration::from_millis(150));
            }
        }
        self.lines.lock().unwrap().push(format!("{event:?}"));
    }

    fn is_cancelled(&self) -> bool {
        self.moved.load(Ordering::Relaxed) >= self.cancel_at
    }
}

/// What lies in the cache's folder, without locks.
pub(crate) fn lying(dir: &Path, folder: &str) -> Vec<String> {
    let found = std::fs::read_dir(dir.join("cache").join(folder)).unwrap().flatten();
    let mut names: Vec<String> = found.map(|found| found.file_name().to_string_lossy().into_owned()).collect();
    names.retain(|name| !name.ends_with(".lock"));
    names.sort();
    names
}
