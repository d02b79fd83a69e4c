//! Starts this program in another role.
use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{self, SigSet};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Signal, set_parent_process_death_signal};

/// Starts the program in a role, and gives its process and our end of the socket, of which the other one is its standard input.
/// The thread that calls this must live as long as the process is to: the system kills it with that thread.
///
/// `environment`: variables that it has besides.
///
/// # Errors
/// It cannot be started.
pub fn spawn(program: &Path, role: &str, environment: &[(&str, &str)]) -> io::Result<(Child, UnixStream)> {
    let (ours, its) = UnixStream::pair()?;
    let mut command = Command::new(program);
    command.envs(environment.iter().copied()).arg(role).stdin(Stdio::from(OwnedFd::from(its))).stdout(Stdio::null());
    Ok((command.process_group(0).spawn()?, ours))
}

/// In a process that [`spawn`] started: its end of the socket. It ends with its parent, and not by signals that ask whole groups of
/// processes to end, which its parent answers.
///
/// # Errors
/// It was started by somebody else.
pub fn control() -> io::Result<UnixStream> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let asked = [signal::SIGTERM, signal::SIGINT, signal::SIGHUP];
    asked.into_iter().collect::<SigSet>().thread_block()?;
    Ok(UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?))
}

/// Says what this process does from now on, in at most 15 bytes: whoever looks at it sees it, and so does whoever finds it dead.
pub fn say(what: &str) {
    // Where the system does not take it, nobody is told.
    let _ = CString::new(what).map(|name| rustix::thread::set_name(&name));
}

/// What a child said last that has ended and that nobody has waited for.
pub fn what_it_did(pid: i32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().map(|name| name.trim_end().to_owned())
}

/// CPU time that a process has taken.
pub fn cpu_time(pid: i32) -> Option<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Its name may contain anything.
    let fields = stat.rsplit(')').next()?.split_whitespace();
    let ticks = fields.skip(11).take(2).map(|ticks| ticks.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Duration::from_millis(ticks * 1000 / clock_ticks_per_second()))
}
