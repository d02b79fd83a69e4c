//! Bounds of a process that compiles a component, which may take all memory or never end.
use std::fs;
use std::io;
use std::process::{Child, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

use crate::memory::memory_left;

/// How often the parent looks whether the child has ended.
const LOOK: Duration = Duration::from_millis(5);
/// CPU time from the signal that tells the parent why to the one that no process survives.
const CPU_GRACE_SECONDS: u64 = 5;
/// What the system reads as: end this process before any other.
const OOM_FIRST: &str = "1000";

/// What such a process may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessBounds {
    /// Address space.
    pub memory_bytes: u64,
    /// Files that it maps: the page cache holds them, and the kernel can take that memory back.
    pub mapped_bytes: u64,
    /// CPU time.
    pub cpu: Duration,
    /// Time altogether: a process that is not given the CPU ends some day, too.
    pub wall: Duration,
}

/// How a process came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    ByItself(ExitStatus),
    /// It was killed past its time.
    Late,
    /// It was killed because the parent ends.
    Stopped,
}

/// Holds this process to the bounds, but for the time altogether, and ends it with its parent. Where memory is short, the
/// system ends it first, and it cannot take more than its control group leaves.
///
/// # Errors
/// The system does not set one of them.
pub(crate) fn bound_this_process(bounds: ProcessBounds) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // Whoever raises it needs no right. Where it fails, the system chooses as if nothing had been said.
    let _ = fs::write("/proc/self/oom_score_adj", OOM_FIRST);
    limit(Resource::Core, 0, 0)?;
    let cpu = bounds.cpu.as_secs().max(1);
    // The first ends it with a signal of its own, by which the parent knows.
    limit(Resource::Cpu, cpu, cpu + CPU_GRACE_SECONDS)?;
    bound_memory(within(bounds, memory_left(), address_space().ok()))
}

/// Bytes of address space that this process has.
fn address_space() -> io::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmSize:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    Ok(kib.ok_or(io::ErrorKind::Unsupported)?.saturating_mul(1024))
}

/// The address space that a process may have which has `has` now, and whose control group leaves `left`.
fn within(bounds: ProcessBounds, left: Option<u64>, has: Option<u64>) -> u64 {
    let (Some(left), Some(has)) = (left, has) else { return bounds.memory_bytes };
    bounds.memory_bytes.min(has.saturating_add(bounds.mapped_bytes).saturating_add(left))
}

fn bound_memory(bytes: u64) -> io::Result<()> {
    limit(Resource::As, bytes, bytes)
}

/// Sets a limit, within the one that is in force.
fn limit(resource: Resource, current: u64, maximum: u64) -> io::Result<()> {
    let most = getrlimit(resource).maximum.unwrap_or(u64::MAX);
    setrlimit(resource, Rlimit { current: Some(current.min(most)), maximum: Some(maximum.min(most)) })?;
    Ok(())
}

/// Waits for the child, at most for `wall` or until `stopping` is set. It has ended when this returns.
///
/// # Errors
/// The system does not say how it ended.
pub(crate) fn wait_within(child: &mut Child, wall: Duration, stopping: &AtomicBool) -> io::Result<Ended> {
    let begun = Instant::now();
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(Ended::ByItself(status)),
            Ok(None) if stopping.load(Ordering::Relaxed) => break Ok(Ended::Stopped),
            Ok(None) if begun.elapsed() >= wall => break Ok(Ended::Late),
            Ok(None) => std::thread::sleep(LOOK),
            Err(error) => break Err(error),
        }
    };
    // It has ended, or must.
    let _ = child.kill();
    let _ = child.wait();
    ended
}

/// Where and why a Rust process panicked, as its standard error says, without the hint that follows.
pub(crate) fn panic_in(words: &str) -> Option<String> {
    const PANICKED: &str = "panicked at ";
    let mut lines = words.lines().skip_while(|line| !line.contains(PANICKED));
    let (_, place) = lines.next()?.split_once(PANICKED)?;
    let message = lines.next().unwrap_or_default().trim();
    Some(format!("{PANICKED}{}: {message}", place.trim_end_matches(':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_a_panic_is_told_by_its_own_line() {
        let words =
            "noise\n\nthread 'main' (7) panicked at src/a.rs:1:2:\nno such luck\nnote: run with `RUST_BACKTRACE=1`\n";
        assert_eq!(panic_in(words).as_deref(), Some("panicked at src/a.rs:1:2: no such luck"));
        assert_eq!(panic_in("memory allocation of 9 bytes failed"), None);
    }

    #[test]
    fn a_process_takes_no_more_than_its_control_group_leaves() {
        let bounds = ProcessBounds { memory_bytes: 1000, mapped_bytes: 100, cpu: Duration::ZERO, wall: Duration::ZERO };
        for (left, has, expected) in [
            (None, Some(200), 1000),
            (Some(50), None, 1000),
            (Some(50), Some(200), 350),
            (Some(0), Some(200), 300),
            (Some(699), Some(200), 999),
            (Some(701), Some(200), 1000),
            (Some(u64::MAX), Some(u64::MAX), 1000),
        ] {
            assert_eq!(within(bounds, left, has), expected, "{left:?} {has:?}");
        }
    }
}
