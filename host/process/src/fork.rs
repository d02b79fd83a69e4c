//! A process that forks when it is asked to: what it has loaded, all forks have, and memory that none of them writes is there once.
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;

use nix::unistd::ForkResult;
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, getpriority_process, kill_process, set_parent_process_death_signal,
    setpriority_process, waitpid,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::frames::{receive, receive_with, send, send_with};

#[derive(Debug, Serialize, Deserialize)]
enum Order<P> {
    /// Comes with its connection and its standard error.
    Fork(P),
    Bury(i32),
}

#[derive(Debug, Serialize, Deserialize)]
enum Reply {
    Forked(i32),
    Buried(Fate),
    Failed(String),
}

/// How a process ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fate {
    /// The signal that killed it; `None`: it exited by itself.
    pub signal: Option<i32>,
}

/// Nice value of what may wait: about a quarter of a core where others want it.
const POLITE: i32 = 5;

/// Has others come before a process from now on, or before this thread and those that it starts (0). Where the system refuses, it goes
/// on as they do.
pub fn make_polite(pid: i32) {
    let pid = Pid::from_raw(pid);
    let nice = getpriority_process(pid).map_or(POLITE, |nice| nice.max(POLITE));
    let _ = setpriority_process(pid, nice);
}

/// Why there is no fork.
#[derive(Debug, thiserror::Error)]
pub enum NoFork {
    /// The process that forks is gone.
    #[error("the process that forks is gone: {0}")]
    Gone(#[source] io::Error),
    /// There is none at the moment.
    #[error(transparent)]
    Refused(io::Error),
}

/// The way to a process that forks.
#[derive(Debug)]
pub struct Forks(UnixStream);

impl Forks {
    /// `control`: our end of its socket, once it has said that it is ready.
    pub fn new(control: UnixStream) -> Self {
        Self(control)
    }

    /// A new fork for this purpose: its process, our end of its connection, and what it writes to its standard error.
    ///
    /// # Errors
    /// The process that forks is gone, or cannot fork.
    pub fn fork<P: Serialize>(&mut self, purpose: &P) -> Result<(i32, UnixStream, PipeReader), NoFork> {
        let (ours, its, words, writer) = ends().map_err(NoFork::Refused)?;
        let order = Order::Fork(purpose);
        send_with(&mut self.0, &order, &[its.as_fd(), writer.as_fd()]).map_err(NoFork::Gone)?;
        match self.reply().map_err(NoFork::Gone)? {
            Reply::Forked(pid) => Ok((pid, ours, words)),
            other => Err(NoFork::Refused(io::Error::other(format!("{other:?}")))),
        }
    }

    /// Kills a fork unless it has ended, and says how it did.
    ///
    /// # Errors
    /// The process that forks is gone.
    pub fn bury(&mut self, pid: i32) -> io::Result<Fate> {
        send(&mut self.0, &Order::<()>::Bury(pid))?;
        match self.reply()? {
            Reply::Buried(fate) => Ok(fate),
            other => Err(io::Error::other(format!("{other:?}"))),
        }
    }

    fn reply(&mut self) -> io::Result<Reply> {
        receive(&mut self.0)?.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))
    }
}

/// Both ends of a fork's connection, and of its standard error.
fn ends() -> io::Result<(UnixStream, UnixStream, PipeReader, PipeWriter)> {
    let ((ours, its), (words, writer)) = (UnixStream::pair()?, io::pipe()?);
    // What nobody reads must not stop it.
    rustix::io::ioctl_fionbio(&writer, true)?;
    rustix::io::ioctl_fionbio(&words, true)?;
    Ok((ours, its, words, writer))
}

/// Forks as long as somebody asks for it. `prepare` runs here before each fork, `run` in the fork.
///
/// # Errors
/// The socket broke.
pub fn serve_forks<P: DeserializeOwned>(
    mut control: UnixStream,
    mut prepare: impl FnMut(&P),
    run: impl FnOnce(UnixStream, P),
) -> io::Result<()> {
    while let Some((order, descriptors)) = receive_with::<Order<P>>(&mut control)? {
        let reply = match order {
            Order::Bury(pid) => Reply::Buried(bury(pid)),
            Order::Fork(purpose) => {
                prepare(&purpose);
                let parent = getpid();
                match (fork(), <[OwnedFd; 2]>::try_from(descriptors)) {
                    (Ok(ForkResult::Child), Ok([connection, words])) => {
                        drop(control);
                        begin(parent, &connection, &words)?;
                        run(UnixStream::from(connection), purpose);
                        return Ok(());
                    }
                    (Ok(ForkResult::Child), Err(_)) => return Ok(()),
                    (Ok(ForkResult::Parent { child }), _) => Reply::Forked(child.as_raw()),
                    (Err(error), _) => Reply::Failed(error.to_string()),
                }
            }
        };
        send(&mut control, &reply)?;
    }
    Ok(())
}

/// Takes its own connection and words in the place of its parent's, and ends with it.
fn begin(parent: Pid, connection: &OwnedFd, words: &OwnedFd) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have ended before that was said.
    if getppid() != Some(parent) {
        return Err(io::Error::from(io::ErrorKind::NotConnected));
    }
    // The parent's socket is there, too: only without it does the parent's own parent see its end.
    rustix::stdio::dup2_stdin(connection)?;
    rustix::stdio::dup2_stderr(words)?;
    Ok(())
}

/// # Errors
/// The system cannot fork, or there are other threads, of which the fork would have the locks and nothing else.
#[allow(unsafe_code, reason = "a fork is sound where there are no other threads")]
fn fork() -> io::Result<ForkResult> {
    // A confined process opens no file, and may ask for this: one link a thread, and two of the directory.
    let threads = std::fs::metadata("/proc/self/task")?.nlink().saturating_sub(2);
    if threads != 1 {
        return Err(io::Error::other(format!("{threads} threads, of which a fork would have one")));
    }
    // SAFETY: there is no other thread, so that nothing is in the middle of anything.
    Ok(unsafe { nix::unistd::fork() }?)
}

fn bury(pid: i32) -> Fate {
    let Some(pid) = Pid::from_raw(pid) else { return Fate::default() };
    // One that has ended does not feel it, and keeps how it ended.
    let _ = kill_process(pid, Signal::KILL);
    let ended = waitpid(Some(pid), WaitOptions::empty()).ok().flatten();
    Fate { signal: ended.and_then(|(_, status)| status.terminating_signal()) }
}
