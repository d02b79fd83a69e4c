//! Who tells other processes when something has changed that they have a copy of.
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

/// How long a publication waits for processes that have copies. One that is busy for longer is told all the same.
const PATIENCE: Duration = Duration::from_secs(2);
/// The ways to those that tell other processes.
#[derive(Debug, Default)]
pub(crate) struct Feeds {
    ends: Mutex<Vec<End>>,
    /// Feeds so far.
    numbers: AtomicU64,
}

#[derive(Debug, Clone)]
struct End {
    bump: Sender<()>,
    /// What is dropped when all that there was to tell is told.
    sync: Sender<Sender<Infallible>>,
}

impl Feeds {
    fn ends(&self) -> MutexGuard<'_, Vec<End>> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn len(&self) -> usize {
        self.ends().len()
    }

    /// Something has changed.
    pub(crate) fn bump(&self) {
        // A full channel says already what there is to say.
        self.ends().iter().for_each(|end| _ = end.bump.try_send(()));
    }

    /// The same, and waits until others know.
    pub(crate) fn sync(&self) {
        let (deadline, ends) = (Instant::now() + PATIENCE, self.ends().clone());
        let tell = |end: &End| {
            let (done, told) = bounded(0);
            end.sync.send_deadline(done, deadline).ok().map(|()| told)
        };
        let told: Vec<_> = ends.iter().filter_map(tell).collect();
        let is_late = |told: &Receiver<Infallible>| told.recv_deadline(deadline).is_err_and(|error| error.is_timeout());
        if told.iter().filter(|told| is_late(told)).count() + (ends.len() - told.len()) > 0 {
            tracing::warn!("a process that runs policies has not taken the new ones in time");
        }
    }

    pub(crate) fn join(&self) -> (u64, Wakes) {
        let (bump, bumped) = bounded(1);
        let (sync, synced) = bounded(1);
        self.ends().push(End { bump: bump.clone(), sync });
        (self.numbers.fetch_add(1, Ordering::Relaxed), Wakes { bump, bumped, synced })
    }

    pub(crate) fn leave(&self, bump: &Sender<()>) {
        self.ends().retain(|end| !end.bump.same_channel(bump));
    }
}

/// How one that tells another process hears of changes.
#[derive(Debug)]
pub(crate) struct Wakes {
    pub(crate) bump: Sender<()>,
    pub(crate) bumped: Receiver<()>,
    pub(crate) synced: Receiver<Sender<Infallible>>,
}
