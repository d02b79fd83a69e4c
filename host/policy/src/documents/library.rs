//! All documents in use, and the threads that read them again.
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use camshaft_core::policy::Hook;
use camshaft_core::threads::Spawner;
use crossbeam_channel::Sender;

use super::document::{Document, Key};
use super::metrics::DocumentMetrics;
use super::spec::DocumentSpec;

/// Documents that are read at once: one that hangs delays no other until as many hang.
const THREADS_MAX: usize = 4;
/// How long a document that was read for the first time waits for whoever asked for it.
const UNCLAIMED: Duration = Duration::from_secs(120);
/// A document whose last read failed is read again after this, if it would not be before.
const RETRY: Duration = Duration::from_secs(60);

/// Which policy asks for documents.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) hook: Hook,
    pub(crate) plugin: &'a str,
}

/// What came of asking for documents.
#[derive(Debug)]
pub(crate) enum Opened {
    Ready(Vec<Arc<Document>>),
    /// One of them is being read for the first time.
    Reading,
}

/// A document that cannot be had, and why.
#[derive(Debug)]
pub(crate) struct Missing {
    pub(crate) name: String,
    pub(crate) from: String,
    pub(crate) why: String,
}

/// Opens documents and keeps them current for as long as somebody holds them.
pub(crate) struct Library {
    shared: Arc<Shared>,
    spawner: Spawner,
    metrics: DocumentMetrics,
}

struct Shared {
    shelves: Mutex<Shelves>,
    changed: Condvar,
    /// Told after each first read.
    notices: Sender<()>,
}

#[derive(Default)]
struct Shelves {
    known: HashMap<Key, Weak<Document>>,
    /// Held until whoever asked for them takes them.
    opening: HashMap<Key, (Instant, Arc<Document>)>,
    /// When to read them again. One that is being read is not here.
    due: Vec<(Instant, Weak<Document>)>,
    threads: usize,
    is_closed: bool,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").finish_non_exhaustive()
    }
}

impl Library {
    /// `notices` is told when a document was read for the first time.
    pub(crate) fn new(spawner: Spawner, notices: Sender<()>, metrics: DocumentMetrics) -> Self {
        let shared = Shared { shelves: Mutex::default(), changed: Condvar::new(), notices };
        Self { shared: Arc::new(shared), spawner, metrics }
    }

    /// The documents of a policy. Those that nobody has in use are read first, on other threads.
    ///
    /// # Errors
    /// One cannot be had. Asked again, it is read again.
    pub(crate) fn open(&self, reader: Reader<'_>, specs: &[DocumentSpec]) -> Result<Opened, Missing> {
        let now = Instant::now();
        let key = |spec: &DocumentSpec| Key { hook: reader.hook, plugin: reader.plugin.to_owned(), spec: spec.clone() };
        let keys: Vec<Key> = specs.iter().map(key).collect();
        let mut shelves = self.shared.shelves();
        shelves.opening.retain(|_, (since, document)| {
            document.first().is_none() || now.saturating_duration_since(*since) < UNCLAIMED
        });
        shelves.known.retain(|_, document| document.strong_count() > 0);
        let mut documents = Vec::new();
        for key in &keys {
            let known = shelves.known.get(key).and_then(Weak::upgrade);
            let document = known.unwrap_or_else(|| shelves.begin(key.clone(), &self.metrics, now));
            match document.first() {
                Some(Err(why)) => {
                    shelves.opening.remove(key);
                    shelves.known.remove(key);
                    let (name, from) = (key.spec.name.clone(), key.spec.source.to_string());
                    return Err(Missing { name, from, why: why.clone() });
                }
                Some(Ok(())) => documents.push(document),
                None => {}
            }
        }
        if documents.len() < keys.len() {
            let wanted = shelves.known.len().min(THREADS_MAX);
            let missing = wanted.saturating_sub(shelves.threads);
            shelves.threads += missing;
            drop(shelves);
            self.shared.changed.notify_all();
            (0..missing).for_each(|_| self.start_thread());
            return Ok(Opened::Reading);
        }
        keys.iter().for_each(|key| drop(shelves.opening.remove(key)));
        Ok(Opened::Ready(documents))
    }

    /// Reads nothing more.
    pub(crate) fn close(&self) {
        self.shared.shelves().is_closed = true;
        self.shared.changed.notify_all();
    }

    fn start_thread(&self) {
        let shared = self.shared.clone();
        if let Err(error) = self.spawner.spawn("policy-documents", Box::new(move || shared.work())) {
            tracing::warn!(%error, "cannot start a thread that reads documents");
            self.shared.lacks_thread();
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shelves {
    /// Has a document read for the first time.
    fn begin(&mut self, key: Key, metrics: &DocumentMetrics, now: Instant) -> Arc<Document> {
        let document = Arc::new(Document::new(key.clone(), Some(metrics.clone())));
        self.known.insert(key.clone(), Arc::downgrade(&document));
        self.due.push((now, Arc::downgrade(&document)));
        self.opening.insert(key, (now, document.clone()));
        document
    }

    /// Takes the document that has been due for longest, or tells how long until one is; `None` if there are no more.
    fn next(&mut self, now: Instant) -> Option<Result<Arc<Document>, Duration>> {
        self.due.retain(|(_, document)| document.strong_count() > 0);
        let (index, at) = self.due.iter().enumerate().map(|(index, (at, _))| (index, *at)).min_by_key(|(_, at)| *at)?;
        if at > now {
            return Some(Err(at.saturating_duration_since(now)));
        }
        let (_, document) = self.due.swap_remove(index);
        // Whoever held it may have let go of it since.
        Some(document.upgrade().ok_or(Duration::ZERO))
    }
}

impl Shared {
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is due until there are no documents any more.
    fn work(&self) {
        let mut shelves = self.shelves();
        while !shelves.is_closed {
            match shelves.next(Instant::now()) {
                None => break,
                Some(Err(wait)) => {
                    let waited = self.changed.wait_timeout(shelves, wait);
                    shelves = waited.unwrap_or_else(PoisonError::into_inner).0;
                }
                Some(Ok(document)) => {
                    drop(shelves);
                    self.read(&document);
                    shelves = self.shelves();
                    // Whoever wants one that was not there asks again.
                    if !matches!(document.first(), Some(Err(_))) {
                        shelves.due.push((Instant::now() + pause(&document), Arc::downgrade(&document)));
                    }
                }
            }
        }
        shelves.threads -= 1;
    }

    /// A thread could not be started. If there is none, nobody would tell those who wait.
    fn lacks_thread(&self) {
        let mut shelves = self.shelves();
        shelves.threads -= 1;
        if shelves.threads == 0 {
            let waiting = shelves.opening.values().filter(|(_, document)| document.first().is_none());
            waiting.for_each(|(_, document)| document.unread("no thread could be started to read it"));
            // A full channel says already what there is to say.
            let _ = self.notices.try_send(());
        }
    }

    fn read(&self, document: &Document) {
        let is_first = document.first().is_none();
        if catch_unwind(AssertUnwindSafe(|| document.refresh())).is_err() {
            tracing::error!(document = document.name(), "reading a document panicked");
            document.unread("the host failed to read it");
        }
        if is_first {
            // A full channel says already what there is to say.
            let _ = self.notices.try_send(());
        }
    }
}

fn pause(document: &Document) -> Duration {
    let refresh = document.key().spec.refresh;
    if document.is_stale() { refresh.min(RETRY) } else { refresh }
}
