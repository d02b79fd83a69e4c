//! The watcher thread: notices changes in the policy directory, waits for them to end, and scans.
mod notices;
mod pace;
#[cfg(test)]
mod tests;

use std::convert::Infallible;
use std::iter;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use camshaft_core::policy::{ModeError, PolicyAction, PolicyOrder, PolicyStatus};
use crossbeam_channel::{Receiver, Sender, bounded, select};

use self::notices::Watches;
use self::pace::Pace;
use crate::error::PolicyError;
use crate::files::SeenFiles;
use crate::grants::Grants;
use crate::load::{Claim, Demands, Loader, ModeChange, Patience, Relocation, Scan, TRIAL_TICK};

/// Reloads, and changes of modes, that may wait for components to be compiled; further ones are refused.
const WAITING_MAX: usize = 64;
/// How much less the thread asks of the CPU than those that serve.
const NICE: i32 = 10;

/// What the watcher thread is asked to do.
#[derive(Debug)]
pub(crate) enum Request {
    /// Scan now; answered when what is there serves or was rejected.
    Reload(Done),
    /// Serve what another directory holds; answered when it does, or cannot.
    Relocate {
        dir: PathBuf,
        poll: Duration,
        demands: Demands,
        /// They hold from then on: what they withhold is gone, and what they grant again is compiled.
        grants: Grants,
        /// Taken before anything changes.
        claim: Claim,
        done: Done,
    },
    Order {
        order: PolicyOrder,
        /// The policy's files when it was given; `None`: nobody knew of the policy.
        files: Option<SeenFiles>,
        done: Sender<Result<PolicyStatus, ModeError>>,
    },
    Stop,
}

impl Request {
    /// An order that is given now, while policies stand so. It may be carried out much later.
    pub(crate) fn order(
        order: PolicyOrder,
        statuses: &[PolicyStatus],
        done: Sender<Result<PolicyStatus, ModeError>>,
    ) -> Self {
        let policy = statuses.iter().find(|status| (status.hook, &status.name) == (order.hook, &order.name));
        let files = policy.map(|status| SeenFiles::now(&status.file));
        Self::Order { order, files, done }
    }
}

/// Whom to tell that it was done, or why not.
type Done = Sender<Result<(), PolicyError>>;

/// Requests whose components are being compiled.
#[derive(Default)]
struct Waiting {
    reloads: Vec<Done>,
    /// One for each policy.
    modes: Vec<(ModeChange, Sender<Result<PolicyStatus, ModeError>>)>,
    /// Other orders, which were obeyed.
    orders: Vec<(PolicyOrder, Sender<Result<PolicyStatus, ModeError>>)>,
    /// The newest wish.
    relocation: Option<(Relocation, Duration, Done)>,
}

/// Whether somebody still waits, who is told the answer otherwise.
fn is_open<T>(answer: Option<T>, done: &Sender<T>) -> bool {
    answer.is_none_or(|answer| {
        let _ = done.send(answer);
        false
    })
}

/// Whether the thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    Stop,
}

/// What watches the policy directory, for the thread that its owner starts. It survives a panic of [`PolicyWatch::run`].
#[derive(Debug)]
pub struct PolicyWatch {
    loader: Loader,
    requests: Receiver<Request>,
    poll: Duration,
}

impl PolicyWatch {
    /// What its thread is to be called.
    pub const THREAD: &str = "policy-watch";

    pub(crate) fn new(loader: Loader, requests: Receiver<Request>, poll: Duration) -> Self {
        Self { loader, requests, poll }
    }

    /// Runs until `stop` is disconnected, or the host stops.
    pub fn run(&mut self, stop: &Receiver<Infallible>) {
        run(&mut self.loader, &self.requests, &mut self.poll, stop);
        self.loader.close();
    }

    /// Makes it fit to run again after a panic: it then examines everything in the directory anew, while what serves goes
    /// on serving.
    pub fn recover(&mut self) {
        self.loader.recover();
    }
}

/// Runs until asked to stop.
fn run(loader: &mut Loader, requests: &Receiver<Request>, poll: &mut Duration, stop: &Receiver<Infallible>) {
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "cannot lower the priority of the policy watcher");
    }
    let (notices, changes) = bounded(1);
    let (compiled, alarms) = (loader.compiled(), loader.alarms());
    let mut watcher = Watcher::new(loader, notices, poll);
    loop {
        let judged_in = watcher.judge_trials();
        let Some(wait) = watcher.pace.wait(Instant::now()) else {
            watcher.scan();
            continue;
        };
        let wait = judged_in.map_or(wait, |judged_in| wait.min(judged_in));
        select! {
            recv(requests) -> request => match request {
                Ok(Request::Stop) | Err(_) => return,
                // Those that wait already are answered from the same scan.
                Ok(request) => if watcher.take_all(iter::once(request).chain(requests.try_iter())) == Next::Stop {
                    return;
                },
            },
            recv(stop) -> _ => return,
            recv(changes) -> change => if change.is_ok() { watcher.pace.notice() },
            recv(compiled) -> _ => watcher.compiled(),
            recv(alarms) -> _ => watcher.alarmed(),
            default(wait) => {}
        }
    }
}

/// The thread's state.
struct Watcher<'a> {
    loader: &'a mut Loader,
    /// How often the directory is scanned, should the thread begin again.
    poll: &'a mut Duration,
    watches: Watches,
    notices: Sender<()>,
    pace: Pace,
    waiting: Waiting,
    /// When trials were judged last.
    judged: Instant,
}

impl<'a> Watcher<'a> {
    fn new(loader: &'a mut Loader, notices: Sender<()>, poll: &'a mut Duration) -> Self {
        let watches = Watches::new(loader.dir(), notices.clone());
        let pace = Pace::new(*poll);
        let mut watcher =
            Self { loader, poll, watches, notices, pace, waiting: Waiting::default(), judged: Instant::now() };
        watcher.watches.arm(watcher.loader);
        // What changed between the first load and the watch.
        watcher.pace.notice();
        watcher
    }

    fn scan(&mut self) {
        let noticed = self.pace.begin();
        let scan = self.loader.scan(Patience::Wait);
        self.finish(noticed, scan);
    }

    /// Takes requests in, scans once for all of them, and answers those that need not wait.
    fn take_all(&mut self, requests: impl Iterator<Item = Request>) -> Next {
        for request in requests {
            // Nobody may be waiting any more for an answer, here and below.
            match request {
                Request::Stop => return Next::Stop,
                Request::Reload(done) if self.waiting.reloads.len() >= WAITING_MAX => {
                    let _ = done.send(Err(PolicyError::Busy));
                }
                Request::Reload(done) => {
                    self.loader.try_again();
                    self.waiting.reloads.push(done);
                }
                Request::Order { order, files, done } => self.take_order(order, files, done),
                Request::Relocate { dir, poll, grants, claim, done, .. } if dir == self.loader.dir() => {
                    let mut changes = false;
                    if claim.take() {
                        self.supersede_relocation();
                        *self.poll = poll;
                        self.pace.set_poll(poll);
                        changes = self.loader.set_grants(grants);
                    }
                    if changes {
                        // One at a time: reloads of the configuration wait for one another.
                        self.waiting.reloads.push(done);
                    } else {
                        let _ = done.send(Ok(()));
                    }
                }
                Request::Relocate { dir, poll, demands, grants, claim, done } => {
                    match Relocation::new(dir, demands, grants, claim) {
                        Ok(relocation) => {
                            self.supersede_relocation();
                            self.waiting.relocation = Some((relocation, poll, done));
                        }
                        Err(error) => drop(done.send(Err(error))),
                    }
                }
            }
        }
        let noticed = self.pace.begin();
        self.answer(noticed);
        Next::GoOn
    }

    /// The newest wish holds: what an older one waits for must not come later.
    fn supersede_relocation(&mut self) {
        if let Some((relocation, _, done)) = self.waiting.relocation.take() {
            let _ = done.send(Err(relocation.superseded()));
        }
    }

    fn take_order(
        &mut self,
        order: PolicyOrder,
        files: Option<SeenFiles>,
        done: Sender<Result<PolicyStatus, ModeError>>,
    ) {
        let PolicyAction::Mode(mode) = order.action else {
            if self.waiting.orders.len() >= WAITING_MAX {
                let _ = done.send(Err(ModeError::Busy));
                return;
            }
            match self.loader.obey(&order) {
                Err(error) => drop(done.send(Err(error))),
                Ok(Some(status)) => drop(done.send(Ok(status))),
                Ok(None) => self.waiting.orders.push((order, done)),
            }
            return;
        };
        self.take_mode(ModeChange::new(order.hook, order.name, mode).by(order.who).of(files), done);
    }

    /// The same for the mode of one policy.
    fn take_mode(&mut self, change: ModeChange, done: Sender<Result<PolicyStatus, ModeError>>) {
        let (loader, modes) = (&mut *self.loader, &mut self.waiting.modes);
        modes.retain(|(older, done)| {
            let superseded = older.is_of_same_policy(&change);
            if superseded {
                let _ = done.send(Err(older.supersede(loader)));
            }
            !superseded
        });
        if modes.len() >= WAITING_MAX {
            let _ = done.send(Err(ModeError::Busy));
            return;
        }
        modes.push((change, done));
    }

    /// A breaker opened: its policy may have to be rolled back.
    fn alarmed(&mut self) {
        let noticed = Instant::now();
        if self.loader.heed_breakers() {
            self.loader.note_swap_time(noticed);
            // A version that was on trial beside what was rolled back is tried anew.
            self.pace.notice();
        }
    }

    /// Judges what is on trial, if it is time. How long until it is the next time; `None`: nothing is.
    fn judge_trials(&mut self) -> Option<Duration> {
        if !self.loader.has_trials() {
            return None;
        }
        let since = self.judged.elapsed();
        if since < TRIAL_TICK {
            return Some(TRIAL_TICK - since);
        }
        self.judged = Instant::now();
        if self.loader.judge_trials() {
            self.loader.note_swap_time(self.judged);
        }
        Some(TRIAL_TICK)
    }

    /// A component was compiled: it may be what a change or a request waited for.
    fn compiled(&mut self) {
        let noticed = self.pace.compiled();
        self.answer(noticed);
    }

    /// Scans once for all who wait, and answers those whose components need not be compiled any more.
    fn answer(&mut self, noticed: Instant) {
        let Waiting { reloads, modes, orders, .. } = &self.waiting;
        let scan = if reloads.is_empty() && modes.is_empty() && orders.is_empty() {
            self.loader.scan(Patience::Wait)
        } else {
            self.loader.scan_settled()
        };
        self.finish(noticed, scan);
        if !scan.compiling {
            for done in self.waiting.reloads.drain(..) {
                let _ = done.send(Ok(()));
            }
        }
        let loader = &mut *self.loader;
        self.waiting.modes.retain_mut(|(change, done)| is_open(change.decide(loader), done));
        self.waiting.orders.retain(|(order, done)| is_open(loader.outcome(order), done));
        self.relocate();
    }

    /// Serves the directory that waits, if what is in it is compiled.
    fn relocate(&mut self) {
        let Some((mut relocation, poll, done)) = self.waiting.relocation.take() else { return };
        match relocation.attempt(self.loader) {
            None => self.waiting.relocation = Some((relocation, poll, done)),
            Some(moved) => {
                if moved.is_ok() {
                    self.moved(poll);
                }
                let _ = done.send(moved);
            }
        }
    }

    /// Another directory serves from now on.
    fn moved(&mut self, poll: Duration) {
        self.watches = Watches::new(self.loader.dir(), self.notices.clone());
        self.watches.arm(self.loader);
        *self.poll = poll;
        self.pace = Pace::new(poll);
        // What changed between the last scan and the watch.
        self.pace.notice();
    }

    fn finish(&mut self, noticed: Instant, scan: Scan) {
        if scan.published {
            self.loader.note_swap_time(noticed);
        }
        if scan.unsettled {
            self.pace.retry(noticed);
        }
        self.pace.again(scan.again);
        if scan.compiling {
            self.pace.compiling(noticed);
        }
        if self.watches.arm(self.loader) {
            self.pace.notice();
        }
        // What could not be rolled back at once may be by now.
        self.alarmed();
    }
}

/// Asks the thread for something and waits for the answer.
///
/// # Errors
/// The thread is gone, or has not answered for ten minutes (it may still do what it was asked).
pub(crate) fn ask<T>(requests: &Sender<Request>, request: impl FnOnce(Sender<T>) -> Request) -> Result<T, PolicyError> {
    const MAX_WAIT: Duration = Duration::from_secs(600);
    let (done, finished) = bounded(1);
    requests.send_timeout(request(done), MAX_WAIT).map_err(|_| PolicyError::Unanswered)?;
    finished.recv_timeout(MAX_WAIT).map_err(|_| PolicyError::Unanswered)
}
