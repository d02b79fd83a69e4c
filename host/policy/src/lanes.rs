//! Threads for calls of slow policies of HTTP requests: few, and shared fairly, one queue for each version of a policy.
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use camshaft_core::threads::Spawner;
use rustix::process::{getpid, getpriority_process, setpriority_process};
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use tokio::sync::oneshot;

/// Calls of one version that may wait.
pub(crate) const WAITING: usize = 64;
/// Calls of one version that run at once, at most; half of the cores if that is less.
const AT_ONCE: usize = 8;
/// This many versions, of which each has as many calls running as it may, leave threads for another one.
const SLOW_VERSIONS: usize = 4;
/// Threads where cores are few, so that slow versions leave some even where half of the cores is one.
const LEAST_THREADS: usize = 8;
/// A thread without calls ends after this.
const IDLE: Duration = Duration::from_secs(10);
/// Nice value of the threads: about a quarter of a core where engines want all.
const POLITE: i32 = 5;
/// How long a call waits for another one on a thread of the runtime, before it goes to these threads: what fast calls take.
const INLINE_WAIT: Duration = Duration::from_micros(20);

/// As many calls of the version wait as may.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LaneFull;

/// Names the queue of one version of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LaneId(u64);

/// The threads and their queues. Threads start when they are needed, and end when they are idle.
pub(crate) struct Lanes {
    shared: Arc<Shared>,
    next: AtomicU64,
    /// Held by the one call that may be on a thread that serves connections.
    inline: AtomicBool,
    spawner: Spawner,
    /// Threads, at most.
    most: usize,
}

struct Shared {
    /// Calls of one version that may run at once.
    at_once: usize,
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    /// Versions with calls that wait; the first one that may have another call running is next.
    lanes: VecDeque<(LaneId, VecDeque<Job>)>,
    /// Versions of calls that run, one entry for each.
    running: Vec<LaneId>,
    threads: usize,
    idle: usize,
    stopped: bool,
}

struct Job {
    run: Box<dyn FnOnce() + Send>,
    /// Whether nobody waits for it any more.
    is_gone: Box<dyn Fn() -> bool + Send>,
}

/// The right to call a guest on a thread that serves connections.
pub(crate) struct Inline<'a>(&'a AtomicBool);

impl Drop for Inline<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lanes").finish_non_exhaustive()
    }
}

/// Calls of one version that may run at once with these cores, and threads for those of all.
fn sizes(cores: usize) -> (usize, usize) {
    let at_once = (cores / 2).clamp(1, AT_ONCE);
    (at_once, ((SLOW_VERSIONS + 1) * at_once).max(LEAST_THREADS))
}

impl Default for Lanes {
    /// A version has half of the cores, so that the engine keeps the others.
    fn default() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let (at_once, threads) = sizes(cores);
        Self::new(at_once, threads, Spawner::detached())
    }
}

impl Lanes {
    /// `at_once`: calls of one version that may run at the same time. `threads`: those of all.
    pub(crate) fn new(at_once: usize, threads: usize, spawner: Spawner) -> Self {
        let shared = Shared { at_once, state: Mutex::default(), work: Condvar::new() };
        Self { shared: shared.into(), next: AtomicU64::new(0), inline: AtomicBool::new(false), spawner, most: threads }
    }

    /// A queue for a version.
    pub(crate) fn lane(&self) -> LaneId {
        LaneId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// The right to call a guest on this thread. One caller has it at a time, so that guests that turn out to be slow hold up
    /// at most one thread that serves connections. Whoever does not get it soon goes to the lane.
    pub(crate) fn inline(&self) -> Option<Inline<'_>> {
        let mut began = None;
        loop {
            if !self.inline.swap(true, Ordering::Acquire) {
                return Some(Inline(&self.inline));
            }
            if began.get_or_insert_with(Instant::now).elapsed() >= INLINE_WAIT {
                return None;
            }
            std::hint::spin_loop();
        }
    }

    /// Puts a call into the version's queue. Dropping the receiver takes it out; it is closed if the call panics.
    ///
    /// # Errors
    /// As many calls wait as may, or no thread can be started.
    pub(crate) fn put<T: Send + 'static>(
        &self,
        lane: LaneId,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, LaneFull> {
        let (answer, receiver) = oneshot::channel();
        let answer = Arc::new(Mutex::new(Some(answer)));
        let seen = answer.clone();
        let is_gone = move || seen.lock().is_ok_and(|answer| answer.as_ref().is_none_or(oneshot::Sender::is_closed));
        let run = move || {
            let answered = call();
            if let Some(answer) = answer.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // Whoever waited has left.
                let _ = answer.send(answered);
            }
        };
        self.add(lane, Job { run: Box::new(run), is_gone: Box::new(is_gone) })?;
        Ok(receiver)
    }

    /// Puts work into the version's queue that nobody waits for.
    ///
    /// # Errors
    /// As for [`Lanes::put`].
    pub(crate) fn put_alone(&self, lane: LaneId, run: impl FnOnce() + Send + 'static) -> Result<(), LaneFull> {
        self.add(lane, Job { run: Box::new(run), is_gone: Box::new(|| false) })
    }

    fn add(&self, lane: LaneId, job: Job) -> Result<(), LaneFull> {
        let mut state = self.shared.state();
        state.wait(lane, job)?;
        if state.ready(self.shared.at_once) > state.idle && state.threads < self.most {
            self.start(&mut state)?;
        }
        drop(state);
        self.shared.work.notify_one();
        Ok(())
    }

    fn start(&self, state: &mut State) -> Result<(), LaneFull> {
        let shared = self.shared.clone();
        match self.spawner.spawn("policy-slow", Box::new(move || work(&shared))) {
            Ok(()) => {
                state.threads += 1;
                Ok(())
            }
            // Others will come to it.
            Err(_) if state.threads > 0 => Ok(()),
            Err(error) => {
                tracing::error!(%error, "no thread can be started for a slow policy");
                state.lanes.clear();
                Err(LaneFull)
            }
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        self.shared.state().stopped = true;
        self.shared.work.notify_all();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wait(&mut self, lane: LaneId, job: Job) -> Result<(), LaneFull> {
        let Some((_, jobs)) = self.lanes.iter_mut().find(|(id, _)| *id == lane) else {
            self.lanes.push_back((lane, VecDeque::from([job])));
            return Ok(());
        };
        if jobs.len() >= WAITING {
            // Some may have given up.
            jobs.retain(|job| !(job.is_gone)());
        }
        if jobs.len() >= WAITING {
            return Err(LaneFull);
        }
        jobs.push_back(job);
        Ok(())
    }

    /// How many more calls of a version may run.
    fn free(&self, lane: LaneId, at_once: usize) -> usize {
        at_once.saturating_sub(self.running.iter().filter(|running| **running == lane).count())
    }

    /// Calls that wait for nothing but a thread.
    fn ready(&self, at_once: usize) -> usize {
        self.lanes.iter().map(|(lane, jobs)| jobs.len().min(self.free(*lane, at_once))).sum()
    }

    /// The call whose turn it is, which runs from now on. Its version goes to the end.
    fn next(&mut self, at_once: usize) -> Option<(LaneId, Job)> {
        while let Some(at) = self.lanes.iter().position(|(lane, _)| self.free(*lane, at_once) > 0) {
            let (lane, mut jobs) = self.lanes.remove(at)?;
            let next = std::iter::from_fn(|| jobs.pop_front()).find(|job| !(job.is_gone)());
            if !jobs.is_empty() {
                self.lanes.push_back((lane, jobs));
            }
            if let Some(job) = next {
                self.running.push(lane);
                return Some((lane, job));
            }
        }
        None
    }

    /// A call has ended.
    fn end(&mut self, lane: LaneId) {
        if let Some(at) = self.running.iter().position(|running| *running == lane) {
            self.running.swap_remove(at);
        }
    }
}

/// What a thread does: calls in turn, until there have been none for a while.
fn work(shared: &Shared) {
    let here = Here(shared);
    let nice = getpriority_process(None).map_or(POLITE, |nice| nice.max(POLITE));
    // Where the system refuses, guests run as others do.
    let _ = setpriority_process(None, nice);
    // A worker that starts a thread may be kept on one core, and the thread would be too.
    let _ = sched_getaffinity(Some(getpid())).and_then(|all| sched_setaffinity(None, &all));
    let mut state = shared.state();
    loop {
        if let Some((lane, job)) = state.next(shared.at_once) {
            drop(state);
            // Whoever waits for the call learns that it has no answer.
            if catch_unwind(AssertUnwindSafe(job.run)).is_err() {
                tracing::error!("a call of a policy panicked");
            }
            state = shared.state();
            state.end(lane);
            continue;
        }
        if state.stopped {
            return here.leave(state);
        }
        state.idle += 1;
        let waited = shared.work.wait_timeout(state, IDLE);
        let (locked, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        state = locked;
        state.idle -= 1;
        if timeout.timed_out() && state.ready(shared.at_once) == 0 {
            return here.leave(state);
        }
    }
}

/// A thread, counted until it ends.
struct Here<'a>(&'a Shared);

impl Here<'_> {
    /// Ends it while nobody can add a call: whoever does next finds that there is a thread fewer.
    fn leave(self, mut state: MutexGuard<'_, State>) {
        state.threads -= 1;
        std::mem::forget(self);
    }
}

impl Drop for Here<'_> {
    fn drop(&mut self) {
        self.0.state().threads -= 1;
    }
}

#[cfg(test)]
mod tests;
