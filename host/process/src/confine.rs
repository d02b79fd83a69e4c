//! What a process may do and take.
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, path_beneath_rules,
};
use nix::sys::resource::{UsageWho, getrusage};
use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::ClockId;
use seccompiler::{SeccompAction, SeccompFilter};

/// Which of the means of [`confine`] are in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confined {
    /// No file can be opened.
    pub files: bool,
    /// No socket can be made, and no program started.
    pub calls: bool,
}

/// Where memory is short, the system ends this process and its forks before others. It leaves no memory behind on a disk.
///
/// # Errors
/// The system does not take it.
pub fn make_expendable() -> io::Result<()> {
    // Whoever raises it needs no right. Where it fails, the system chooses as if nothing had been said.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    limit(Resource::Core, 0)?;
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// The most memory that this process has had, in bytes.
pub fn most_memory() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| usage.max_rss());
    u64::try_from(usage).unwrap_or_default().saturating_mul(1024)
}

/// From now on this process and its forks make no socket and start no program. Whether the system has the means.
pub fn confine_calls() -> bool {
    forbid_calls().is_ok()
}

/// From now on this process and its forks open no file, make no socket and start no program. What the system has no means for is
/// left out.
pub fn confine() -> Confined {
    Confined { files: confine_files(&[], &[]), calls: confine_calls() }
}

/// From now on this thread, those that it starts, and their forks open nothing but what is beneath `read`, or may be written beneath
/// `write`. Paths that are not there count for nothing. Whether the system has the means. To be called before there are other threads.
pub fn confine_files(read: &[PathBuf], write: &[PathBuf]) -> bool {
    allow_files(read, write).unwrap_or(false)
}

fn allow_files(read: &[PathBuf], write: &[PathBuf]) -> Result<bool, RulesetError> {
    const VERSION: ABI = ABI::V5;
    let (all, reading) = (AccessFs::from_all(VERSION), AccessFs::from_read(VERSION));
    let rules = Ruleset::default().handle_access(all)?.create()?;
    let rules = rules.add_rules(path_beneath_rules(read, reading))?.add_rules(path_beneath_rules(write, all))?;
    Ok(rules.restrict_self()?.ruleset != RulesetStatus::NotEnforced)
}

/// Calls that a process needs only to reach others.
fn forbid_calls() -> Result<(), Box<dyn std::error::Error>> {
    const FORBIDDEN: [i64; 12] = [
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_connect,
        libc::SYS_bind,
        libc::SYS_io_uring_setup,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_getfd,
    ];
    let rules: BTreeMap<i64, _> = FORBIDDEN.into_iter().map(|call| (call, Vec::new())).collect();
    let denied = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, denied, std::env::consts::ARCH.try_into()?)?;
    let program: seccompiler::BpfProgram = filter.try_into()?;
    // Also of threads that there are already.
    Ok(seccompiler::apply_filter_all_threads(&program)?)
}

/// The address space of a process, which it may ask for when it opens no file any more.
#[derive(Debug)]
pub struct AddressSpace(File);

impl AddressSpace {
    /// Of this process, and not of its forks.
    ///
    /// # Errors
    /// The system does not say it.
    pub fn of_this_process() -> io::Result<Self> {
        File::open("/proc/self/statm").map(Self)
    }

    /// Bounds that of the calling process and its forks to what this one has now, and `bytes` more.
    ///
    /// # Errors
    /// The system does not say what it has, or does not set the bound.
    pub fn bound(&self, bytes: u64) -> io::Result<()> {
        let mut said = [0; 64];
        let length = self.0.read_at(&mut said, 0)?;
        let pages =
            std::str::from_utf8(&said[..length]).ok().and_then(|said| said.split(' ').next()?.parse::<u64>().ok());
        let has = pages.ok_or(io::ErrorKind::InvalidData)?.saturating_mul(rustix::param::page_size() as u64);
        limit(Resource::As, has.saturating_add(bytes))
    }
}

/// Ends this process (by `SIGXCPU`) when it has computed for `seconds` from now on, and up to one more: the system counts whole ones.
///
/// # Errors
/// The system does not set it.
pub fn bound_time(seconds: u64) -> io::Result<()> {
    let used = rustix::time::clock_gettime(ClockId::ProcessCPUTime).tv_sec;
    let soft = u64::try_from(used).unwrap_or_default().saturating_add(seconds).saturating_add(1);
    let maximum = getrlimit(Resource::Cpu).maximum;
    setrlimit(Resource::Cpu, Rlimit { current: Some(maximum.map_or(soft, |most| soft.min(most))), maximum })?;
    Ok(())
}

/// Sets a limit, within the one that is in force.
fn limit(resource: Resource, value: u64) -> io::Result<()> {
    let value = getrlimit(resource).maximum.map_or(value, |most| value.min(most));
    setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_reads_and_writes_what_it_was_left() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["read", "written", "closed"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), name).unwrap();
        }
        let (read, written) = (vec![at("read"), at("missing")], vec![at("written")]);
        // It holds for the thread that says so, and for those that it starts.
        let confined = move || {
            let is_in_force = confine_files(&read, &written);
            let opens = |name: &str| std::fs::read(at(name).join("file")).is_ok();
            let writes = |name: &str| std::fs::write(at(name).join("file"), "new").is_ok();
            (is_in_force, ["read", "written", "closed"].map(|name| (opens(name), writes(name))))
        };
        let (is_in_force, did) = std::thread::scope(|scope| scope.spawn(confined).join().unwrap());
        let expected = if is_in_force { [(true, false), (true, true), (false, false)] } else { [(true, true); 3] };
        assert_eq!(did, expected, "the system has the means: {is_in_force}");
    }

    #[test]
    fn regression_a_task_that_begins_within_a_second_has_all_of_its_time() {
        let now = || {
            let used = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
            used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
        };
        while now().fract() < 0.5 {
            std::hint::spin_loop();
        }
        bound_time(1).unwrap();
        let left = getrlimit(Resource::Cpu).current.unwrap() as f64 - now();
        bound_time(u64::MAX).unwrap();
        assert!((1.0..=2.0).contains(&left), "{left} s");
    }
}
