//! Lends the matchers of sequences to threads that compute masks: those of a step while the engine decodes, and those of slow grammars
//! while the steps go on without the tokens that need them.
use std::collections::HashMap;
use std::fmt;
use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use crate::constraint::Constraint;
use crate::grammar::Matcher;
use crate::ids::{RequestId, Token};
use crate::sequence::Sequence;
use crate::step::StepPlan;
use crate::threads::Spawner;
use crate::worker::roster::Roster;

/// Batches that wait for a thread: of a step there is one, and slow grammars are one each.
const MOST: usize = 64;

/// A matcher, whose it is, and the draft that is verified in the step.
#[derive(Debug)]
struct MaskJob {
    id: RequestId,
    matcher: Box<Matcher>,
    draft: Vec<Token>,
    wanted: Weak<()>,
}

impl MaskJob {
    /// Of those who left, nobody wants it.
    fn is_wanted(&self) -> bool {
        self.wanted.strong_count() > 0
    }
}

/// Threads that compute masks for one worker. Each starts with its first ones, and ends when this is dropped.
pub struct MaskThreads {
    /// Whether a processor is left at the moment. Where all of them compute a step, a thread beside it makes its threads wait.
    is_room: Box<dyn Fn() -> bool + Send>,
    /// For steps, which wait for it.
    beside: MaskThread,
    /// Of slow grammars, for which no step waits.
    apart: MaskThread,
}

/// One of them.
struct MaskThread {
    name: &'static str,
    spawner: Spawner,
    thread: Thread,
}

enum Thread {
    NotStarted,
    Running {
        jobs: SyncSender<Vec<MaskJob>>,
        done: Receiver<Vec<MaskJob>>,
    },
    /// It could not be started, or died.
    Gone,
}

impl fmt::Debug for MaskThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskThreads")
    }
}

impl MaskThreads {
    /// `background`: starts the thread for slow grammars.
    pub fn new(spawner: Spawner, background: Spawner, is_room: Box<dyn Fn() -> bool + Send>) -> Self {
        let thread = |name, spawner| MaskThread { name, spawner, thread: Thread::NotStarted };
        Self { is_room, beside: thread("masks", spawner), apart: thread("slow masks", background) }
    }

    /// Whether to compute the masks of this step beside it.
    pub(super) fn is_room(&self) -> bool {
        (self.is_room)()
    }
}

impl MaskThread {
    /// Begins to compute masks.
    ///
    /// # Errors
    /// There is no thread, or it has as much to do as it takes: these are the matchers.
    fn begin(&mut self, batch: Vec<MaskJob>) -> Result<(), Vec<MaskJob>> {
        if matches!(self.thread, Thread::NotStarted) {
            self.thread = start(self.name, &self.spawner);
        }
        let Thread::Running { jobs, .. } = &self.thread else { return Err(batch) };
        jobs.try_send(batch).map_err(|error| match error {
            TrySendError::Full(batch) => batch,
            TrySendError::Disconnected(batch) => {
                self.thread = Thread::Gone;
                batch
            }
        })
    }

    /// The next batch that is done, within this time. Empty: none is yet. `None`: the thread died with the matchers, or never was.
    fn finish(&mut self, within: Duration) -> Option<Vec<MaskJob>> {
        let Thread::Running { done, .. } = &self.thread else { return None };
        match done.recv_timeout(within) {
            Ok(batch) => Some(batch),
            Err(RecvTimeoutError::Timeout) => Some(Vec::new()),
            Err(RecvTimeoutError::Disconnected) => {
                self.thread = Thread::Gone;
                None
            }
        }
    }
}

fn start(name: &'static str, spawner: &Spawner) -> Thread {
    let (jobs, received) = sync_channel::<Vec<MaskJob>>(MOST);
    let (finished, done) = sync_channel(MOST);
    let body = move || {
        for mut batch in received {
            batch.retain(MaskJob::is_wanted);
            batch.iter_mut().for_each(|job| job.matcher.prepare(&job.draft));
            batch.retain(MaskJob::is_wanted);
            if !batch.is_empty() && finished.send(batch).is_err() {
                break;
            }
        }
    };
    match spawner.spawn(name, Box::new(body)) {
        Ok(()) => Thread::Running { jobs, done },
        Err(_) => Thread::Gone,
    }
}

/// Begins to compute the masks of all rows that tokens are drawn from. Returns whether there are any.
pub(super) fn begin(threads: &mut MaskThreads, plan: &StepPlan, running: &mut [Sequence]) -> bool {
    let mut jobs = Vec::new();
    for entry in plan.entries.iter().filter(|entry| entry.row.is_some()) {
        let Some(sequence) = running.get_mut(entry.index) else { continue };
        let draft = if entry.drafted > 0 { sequence.draft.clone() } else { Vec::new() };
        jobs.extend(lend(sequence, draft));
    }
    if jobs.is_empty() {
        return false;
    }
    let begun = threads.beside.begin(jobs);
    begun.map_err(|jobs| give_back(jobs, running)).is_ok()
}

/// Waits for the masks.
pub(super) fn finish(threads: &mut MaskThreads, running: &mut [Sequence]) {
    give_back(threads.beside.finish(Duration::MAX).unwrap_or_default(), running);
}

/// Has those whose masks take long wait for them with their last token, by its `limits`: what comes before is computed meanwhile, which
/// others may share. Returns whether any waits.
pub(super) fn set_apart(threads: &mut MaskThreads, roster: &mut Roster, limits: &mut [u32]) -> bool {
    collect(threads, roster, Duration::ZERO);
    let mut any = false;
    for (sequence, limit) in roster.running.iter_mut().zip(limits) {
        let needs_time = sequence.constraint.as_ref().is_some_and(Constraint::needs_time);
        if needs_time && *limit > sequence.kv_tokens {
            let job = lend(sequence, Vec::new()).into_iter().collect();
            match (threads.apart.begin(job), &mut sequence.constraint) {
                (Ok(()), Some(constraint)) => constraint.is_apart = true,
                // The step computes it.
                (Err(jobs), _) => give_back(jobs, [&mut *sequence]),
                (Ok(()), None) => {}
            }
        }
        let last = sequence.tokens.len().saturating_sub(1) as u32;
        if *limit > last && sequence.constraint.as_ref().is_some_and(|constraint| constraint.is_apart) {
            *limit = last;
            any = true;
        }
    }
    any
}

/// Takes back what is done, of which the first may take this long. Without the thread, those who wait for it learn so when they draw.
pub(super) fn collect(threads: &mut MaskThreads, roster: &mut Roster, mut within: Duration) {
    loop {
        let all = roster.running.iter_mut().chain(&mut roster.waiting);
        match threads.apart.finish(std::mem::take(&mut within)) {
            Some(jobs) if jobs.is_empty() => return,
            Some(jobs) => give_back(jobs, all),
            None => return all.filter_map(|s| s.constraint.as_mut()).for_each(|lost| lost.is_apart = false),
        }
    }
}

fn lend(sequence: &mut Sequence, draft: Vec<Token>) -> Option<MaskJob> {
    let (matcher, wanted) = sequence.constraint.as_mut()?.lend()?;
    Some(MaskJob { id: sequence.id(), matcher, draft, wanted })
}

/// Of those who left meanwhile, nobody wants it.
fn give_back<'a>(jobs: Vec<MaskJob>, all: impl IntoIterator<Item = &'a mut Sequence>) {
    let mut jobs: HashMap<_, _> = jobs.into_iter().map(|job| (job.id, job.matcher)).collect();
    for sequence in all {
        if let (Some(constraint), Some(matcher)) = (&mut sequence.constraint, jobs.remove(&sequence.start.id)) {
            constraint.give_back(matcher);
        }
    }
}
