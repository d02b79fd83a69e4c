//! One document: its last good version, and how it is read again.
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use camshaft_core::policy::Hook;
use camshaft_core::shown::on_one_line;

use super::fetch::Fetch;
use super::judge::{Judge, Judges};
use super::metrics::{DocumentMetrics, Refresh};
use super::settled;
use super::spec::{DocumentSpec, Source};
use super::version::Version;
use crate::text::truncated;

/// Bytes of a reason.
const REASON_BYTES: usize = 512;

/// Numbers of versions.
static VERSIONS: AtomicU64 = AtomicU64::new(1);

/// Whose a document is: two policies may name the same file.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) hook: Hook,
    pub(crate) plugin: String,
    pub(crate) spec: DocumentSpec,
}

/// A document in use.
#[derive(Debug)]
pub(crate) struct Document {
    key: Key,
    current: ArcSwapOption<Version>,
    /// What came of the first read.
    first: OnceLock<Result<(), String>>,
    is_stale: AtomicBool,
    judges: Judges,
    metrics: Option<DocumentMetrics>,
}

impl Document {
    pub(super) fn new(key: Key, metrics: Option<DocumentMetrics>) -> Self {
        let (first, is_stale) = (OnceLock::new(), AtomicBool::new(false));
        Self { key, current: ArcSwapOption::empty(), first, is_stale, judges: Judges::default(), metrics }
    }

    /// A document with the same name and this version, for those who judge it.
    pub(crate) fn with(&self, version: Arc<Version>) -> Arc<Self> {
        let document = Self::new(self.key.clone(), None);
        document.current.store(Some(version));
        Arc::new(document)
    }

    /// What another process reads, told of here version by version.
    pub(crate) fn copy(hook: Hook, plugin: &str, spec: &DocumentSpec) -> Arc<Self> {
        Arc::new(Self::new(Key { hook, plugin: plugin.to_owned(), spec: spec.clone() }, None))
    }

    /// The version of a copy.
    pub(crate) fn show(&self, version: Version) {
        self.current.store(Some(Arc::new(version)));
    }

    /// Has it ask before it takes a new version.
    pub(crate) fn ask_before_changes(&self, judge: &Judge) {
        self.judges.add(judge);
    }

    /// Reads it now and never again, for a process that only looks.
    ///
    /// # Errors
    /// It cannot be had. Says why.
    pub(crate) fn read_once(hook: Hook, plugin: &str, spec: &DocumentSpec) -> Result<Arc<Self>, String> {
        let document = Self::new(Key { hook, plugin: plugin.to_owned(), spec: spec.clone() }, None);
        document.refresh();
        match document.first.get() {
            Some(Err(why)) => Err(why.clone()),
            _ => Ok(Arc::new(document)),
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.key.spec.name
    }

    pub(super) fn key(&self) -> &Key {
        &self.key
    }

    /// The last good version; `None` before the first.
    pub(crate) fn current(&self) -> Option<Arc<Version>> {
        self.current.load_full()
    }

    /// What came of the first read; `None` before it is over.
    pub(super) fn first(&self) -> Option<&Result<(), String>> {
        self.first.get()
    }

    pub(super) fn is_stale(&self) -> bool {
        self.is_stale.load(Ordering::Relaxed)
    }

    /// It could not even be tried to read it.
    pub(super) fn unread(&self, why: &str) {
        self.keep(why.to_owned());
    }

    /// Reads it again. What was there before stays where that fails.
    pub(super) fn refresh(&self) {
        match self.read() {
            Ok(bytes) => self.take(bytes),
            Err(why) => self.keep(on_one_line(truncated(&why, REASON_BYTES))),
        }
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        let max_bytes = self.key.spec.max_bytes;
        let bytes = match &self.key.spec.source {
            Source::Path(path) => settled::read(path, max_bytes)?,
            Source::Url { url, timeout, ca } => Fetch { url, timeout: *timeout, ca: ca.as_deref(), max_bytes }.run()?,
        };
        // A file that was cut to be written anew looks like this.
        if bytes.is_empty() { Err("it is empty".to_owned()) } else { Ok(bytes) }
    }

    fn take(&self, bytes: Vec<u8>) {
        let is_other = self.current.load().as_ref().is_none_or(|current| current.bytes != bytes);
        let other = is_other.then(|| Arc::new(Version { number: VERSIONS.fetch_add(1, Ordering::Relaxed), bytes }));
        // No instance sees what a fresh one would refuse.
        if let Some(version) = &other
            && let Err(why) = self.judges.ask(self.name(), version)
        {
            return self.keep(on_one_line(truncated(&format!("the policy does not take it: {why}"), REASON_BYTES)));
        }
        let Key { hook, plugin, spec } = &self.key;
        if self.is_stale.swap(false, Ordering::Relaxed) {
            self.count_stale(-1);
            tracing::info!(%hook, plugin, document = spec.name, "the document can be read again");
        }
        let Some(version) = other else { return self.count(Refresh::Unchanged) };
        let (number, size_bytes) = (version.number, version.bytes.len());
        self.current.store(Some(version));
        self.count(Refresh::Changed);
        if self.first.set(Ok(())).is_err() {
            tracing::info!(%hook, plugin, document = spec.name, version = number, size_bytes, "the document has changed");
        }
    }

    fn keep(&self, why: String) {
        self.count(Refresh::Failed);
        let Key { hook, plugin, spec } = &self.key;
        if self.first.get().is_none() {
            // Whoever waits for it tells.
            let _ = self.first.set(Err(why));
            return;
        }
        if !self.is_stale.swap(true, Ordering::Relaxed) {
            self.count_stale(1);
            let from = spec.source.to_string();
            tracing::warn!(%hook, plugin, document = spec.name, from, why, "a document has no good new version: the last one stays");
        }
    }

    fn count(&self, result: Refresh) {
        if let Some(metrics) = &self.metrics {
            metrics.count(self.key.hook, result);
        }
    }

    fn count_stale(&self, more: i64) {
        if let Some(metrics) = &self.metrics {
            metrics.stale(self.key.hook, more);
        }
    }
}

impl Drop for Document {
    fn drop(&mut self) {
        if self.is_stale.load(Ordering::Relaxed) {
            self.count_stale(-1);
        }
    }
}
