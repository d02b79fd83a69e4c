//! The watcher thread: notices changes in the policy directory, waits for them to end, and scans.
mod notices;
mod pace;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use camshaft_core::policy::{Hook, Mode, ModeError, PolicyStatus};
use crossbeam_channel::{Receiver, Sender, bounded, select};

use self::notices::Watches;
use self::pace::Pace;
use crate::error::PolicyError;
use crate::load::{Claim, Loader, ModeChange, Patience, Relocation, Scan};

/// How much less the thread asks of the CPU than those that serve.
const NICE: i32 = 10;

/// What the watcher thread is asked to do.
#[derive(Debug)]
pub(crate) enum Request {
    /// Scan now; answered when what is there serves or was rejected.
    Reload(Sender<()>),
    /// Serve what another directory holds; answered when it does, or cannot.
    Relocate {
        dir: PathBuf,
        poll: Duration,
        /// Refuse a directory without an auth policy.
        needs_auth: bool,
        /// Taken before anything changes.
        claim: Claim,
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

/// A request whose components are being compiled.
enum Waiting {
    Reload(Sender<()>),
    Relocate(Relocation, Duration, Sender<Result<(), PolicyError>>),
    SetMode(ModeChange, Sender<Result<PolicyStatus, ModeError>>),
}

/// Runs until asked to stop.
pub(crate) fn run(loader: Loader, requests: &Receiver<Request>, poll: Duration) {
    if let Err(error) = rustix::process::setpriority_process(None, NICE) {
        tracing::debug!(%error, "cannot lower the priority of the policy watcher");
    }
    let (notices, changes) = bounded(1);
    let compiled = loader.compiled();
    let mut watcher = Watcher::new(loader, notices, poll);
    loop {
        let Some(wait) = watcher.pace.wait(Instant::now()) else {
            watcher.scan();
            continue;
        };
        select! {
            recv(requests) -> request => match request {
                Ok(Request::Stop) | Err(_) => return,
                Ok(request) => watcher.take(request),
            },
            recv(changes) -> change => if change.is_ok() { watcher.pace.notice() },
            recv(compiled) -> _ => watcher.compiled(),
            default(wait) => {}
        }
    }
}

/// The thread's state.
struct Watcher {
    loader: Loader,
    watches: Watches,
    notices: Sender<()>,
    pace: Pace,
    waiting: Vec<Waiting>,
}

impl Watcher {
    fn new(loader: Loader, notices: Sender<()>, poll: Duration) -> Self {
        let watches = Watches::new(loader.dir(), notices.clone());
        let mut watcher = Self { loader, watches, notices, pace: Pace::new(poll), waiting: Vec::new() };
        watcher.watches.arm(&watcher.loader);
        // What changed between the first load and the watch.
        watcher.pace.notice();
        watcher
    }

    fn scan(&mut self) {
        let noticed = self.pace.begin();
        let scan = self.loader.scan(Patience::Wait);
        self.finish(noticed, scan);
    }

    fn take(&mut self, request: Request) {
        let waiting = match request {
            Request::Reload(done) => Waiting::Reload(done),
            Request::SetMode { hook, name, mode, done } => match ModeChange::new(hook, name, mode) {
                Ok(change) => {
                    self.supersede_mode_changes(&change);
                    Waiting::SetMode(change, done)
                }
                Err(error) => {
                    // Nobody may be waiting any more, here and below.
                    let _ = done.send(Err(error));
                    return;
                }
            },
            Request::Relocate { dir, poll, claim, done, .. } if dir == self.loader.dir() => {
                if claim.take() {
                    self.supersede_relocations();
                    self.pace.set_poll(poll);
                }
                let _ = done.send(Ok(()));
                return;
            }
            Request::Relocate { dir, poll, needs_auth, claim, done } => match Relocation::new(dir, needs_auth, claim) {
                Ok(relocation) => {
                    self.supersede_relocations();
                    Waiting::Relocate(relocation, poll, done)
                }
                Err(error) => {
                    let _ = done.send(Err(error));
                    return;
                }
            },
            Request::Stop => return,
        };
        self.attempt(waiting);
    }

    /// The newest wish holds: what an older one waits for must not come later.
    fn supersede_relocations(&mut self) {
        self.waiting.retain(|waiting| {
            let Waiting::Relocate(relocation, _, done) = waiting else { return true };
            let _ = done.send(Err(relocation.superseded()));
            false
        });
    }

    /// The same for the mode of one policy.
    fn supersede_mode_changes(&mut self, newer: &ModeChange) {
        let loader = &mut self.loader;
        self.waiting.retain(|waiting| match waiting {
            Waiting::SetMode(older, done) if older.is_of_same_policy(newer) => {
                let _ = done.send(Err(older.supersede(loader)));
                false
            }
            _ => true,
        });
    }

    /// A component was compiled: it may be what a change or a request waited for.
    fn compiled(&mut self) {
        let noticed = self.pace.compiled();
        let scan = self.loader.scan(Patience::Wait);
        self.finish(noticed, scan);
        for waiting in std::mem::take(&mut self.waiting) {
            self.attempt(waiting);
        }
    }

    /// Does what was asked, or keeps it until the next component is compiled.
    fn attempt(&mut self, mut waiting: Waiting) {
        match &mut waiting {
            Waiting::Reload(done) => {
                let noticed = self.pace.begin();
                let scan = self.loader.scan_settled();
                self.finish(noticed, scan);
                if !scan.compiling {
                    let _ = done.send(());
                    return;
                }
            }
            Waiting::SetMode(change, done) => {
                if let Some(set) = change.attempt(&mut self.loader) {
                    let _ = done.send(set);
                    return;
                }
            }
            Waiting::Relocate(relocation, poll, done) => {
                if let Some(moved) = relocation.attempt(&mut self.loader) {
                    if moved.is_ok() {
                        self.moved(*poll);
                    }
                    let _ = done.send(moved);
                    return;
                }
            }
        }
        self.waiting.push(waiting);
    }

    /// Another directory serves from now on.
    fn moved(&mut self, poll: Duration) {
        self.watches = Watches::new(self.loader.dir(), self.notices.clone());
        self.watches.arm(&self.loader);
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
        if scan.compiling {
            self.pace.compiling(noticed);
        }
        if self.watches.arm(&self.loader) {
            self.pace.notice();
        }
    }
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
