//! A loader for tests whose compiling is blocked and counted.
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use camshaft_core::policy::{PolicyState, PolicyStatus};
use crossbeam_channel::{Receiver, Sender, bounded};
use tempfile::TempDir;

use super::builder::Builder;
use super::compile::{Compile, Compiler};
use super::{Loader, Patience, Scan};
use crate::digest::digest_of;
use crate::engine::Ticker;
use crate::error::PolicyError;
use crate::examine;
use crate::imports::metrics::MetricFamilies;
use crate::metrics::PolicyMetrics;
use crate::registry::Registry;
use crate::runtime::Runtime;
use crate::task::Task;
use camshaft_core::threads::Spawner;

/// This test runs from `<target>/<profile>/deps`.
fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_path_buf()
}

/// A component that the tests' host can run.
pub(crate) fn component(name: &str) -> Vec<u8> {
    let path = target().join(format!("{name}.wasm"));
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; run cargo xtask plugins", path.display()))
}

/// The same component with other bytes: a custom section at its end.
pub(crate) fn variant(component: &[u8], number: u8) -> Vec<u8> {
    [component, &[0, 3, 1, b'v', number]].concat()
}

/// A loader whose compiler holds those components back whose digest is in `held`.
pub(crate) struct Bench {
    pub(crate) dir: TempDir,
    pub(crate) loader: Loader,
    pub(crate) compiled: Arc<AtomicUsize>,
    pub(crate) held: Arc<Mutex<Vec<String>>>,
    pub(crate) begun: Receiver<String>,
    pub(crate) release: Sender<()>,
    pub(crate) ticker: Ticker,
    metrics: prometheus::Registry,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let metrics = prometheus::Registry::new();
        // As in the tests of whole servers: code that was compiled once is kept.
        let runtime = Arc::new(Runtime::new(Some(&target().join("e2e/cache")), None).unwrap());
        let ticker = Ticker::start(runtime.engines(), &runtime.clock).unwrap();
        let (compiled, held) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::<String>::new())));
        let (began, begun) = bounded(16);
        let (release, released) = bounded::<()>(0);
        let compile: Compile = Box::new({
            let (runtime, compiled, held) = (runtime.clone(), compiled.clone(), held.clone());
            move |task: &Task<'_>| {
                let digest = digest_of(task.bytes);
                if held.lock().unwrap().contains(&digest) {
                    began.send(digest).unwrap();
                    released.recv().unwrap();
                }
                compiled.fetch_add(1, Ordering::SeqCst);
                examine::compile(&runtime, task)
            }
        });
        let families = PolicyMetrics::register(&metrics).unwrap();
        let builder = Builder::new(runtime, compile, families, MetricFamilies::new(&metrics), Spawner::detached());
        let loader = Loader::with_builder(dir.path().to_path_buf(), Arc::new(Registry::new(false)), builder);
        Self { dir, loader, compiled, held, begun, release, ticker, metrics }
    }

    /// Writes a file as if that had been some time ago.
    pub(crate) fn put(&self, file: &str, content: impl AsRef<[u8]>) {
        put(self.dir.path(), file, content.as_ref());
    }

    /// All metrics, as the exposition format writes them.
    pub(crate) fn metrics(&self) -> String {
        prometheus::TextEncoder::new().encode_to_string(&self.metrics.gather()).unwrap()
    }

    pub(crate) fn hold(&self, component: &[u8]) {
        self.held.lock().unwrap().push(digest_of(component));
    }

    pub(crate) fn status(&self, name: &str) -> Option<PolicyStatus> {
        self.loader.status(name)
    }

    pub(crate) fn state(&self, name: &str) -> Option<PolicyState> {
        self.status(name).map(|status| status.state)
    }

    /// Scans until nothing is being compiled, if anything is.
    pub(crate) fn settle(&mut self) {
        if self.loader.scan_settled().compiling {
            self.compile();
        }
    }

    /// Lets what is held be compiled, and scans until it is.
    pub(crate) fn finish(&mut self) -> Scan {
        self.release.send(()).unwrap();
        self.compile()
    }

    /// Scans until nothing is being compiled.
    pub(crate) fn compile(&mut self) -> Scan {
        let compiled = self.loader.compiled();
        let mut published = false;
        loop {
            compiled.recv().unwrap();
            let scan = self.loader.scan_settled();
            published |= scan.published;
            if !scan.compiling {
                return Scan { published, ..scan };
            }
        }
    }
}

pub(crate) fn put(dir: &Path, file: &str, content: &[u8]) {
    let path = dir.join(file);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let beside = path.with_extension("new");
    fs::write(&beside, content).unwrap();
    fs::rename(&beside, &path).unwrap();
}

impl Loader {
    /// Scans, and panics where the first component would be compiled.
    pub(crate) fn panic_in_scan(&mut self) {
        let spawner = Spawner::new(|_, _| panic!("as the test asked"));
        let sabotaged = Compiler::new(Box::new(|_| Err(PolicyError::NoHook)), spawner);
        let sane = std::mem::replace(&mut self.builder.compiler, sabotaged);
        assert!(catch_unwind(AssertUnwindSafe(|| self.scan(Patience::Now))).is_err());
        self.builder.compiler = sane;
    }

    pub(crate) fn has_auth(&self) -> bool {
        self.registry.current().has_auth()
    }

    pub(crate) fn status(&self, name: &str) -> Option<PolicyStatus> {
        self.directory.statuses().into_iter().find(|status| status.name == name)
    }
}
