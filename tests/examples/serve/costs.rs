//! What a server and its processes have taken so far, as `/proc` has it.
use std::fs;

/// Ticks of a second (`sysconf(_SC_CLK_TCK)` is 100 on every Linux).
const TICKS: f64 = 100.0;

/// Of all processes of a server.
#[derive(Clone, Copy, Default)]
pub(crate) struct Costs {
    pub(crate) cpu_seconds: f64,
    /// Times that a thread that lives waited and went on.
    pub(crate) wakes: u64,
    /// Memory that no other process has, and its share of what others have, too.
    pub(crate) bytes: u64,
}

/// The process, and those that it has started.
fn family(server: u32) -> Vec<u32> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, field(&stat(pid)?, 4)? as u32))).collect();
    let mut family = vec![server];
    let mut next = 0;
    while let Some(&one) = family.get(next) {
        family.extend(parents.iter().filter(|(_, parent)| *parent == one).map(|(pid, _)| pid));
        next += 1;
    }
    family
}

fn stat(pid: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// A field of `/proc/PID/stat`, by its number in proc(5). The name before the third may have spaces.
fn field(stat: &str, number: usize) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(number - 3)?.parse().ok()
}

/// A number of a file of lines such as `Pss:  12 kB`.
fn line(text: &str, name: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok());
    value.unwrap_or_default()
}

pub(crate) fn of(server: u32) -> Costs {
    family(server).into_iter().fold(Costs::default(), |so_far, pid| {
        let stat = stat(pid).unwrap_or_default();
        let ticks = field(&stat, 14).unwrap_or_default() + field(&stat, 15).unwrap_or_default();
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let status = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
        let wakes: u64 = status.map(|status| line(&status, "voluntary_ctxt_switches:")).sum();
        let memory = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        Costs {
            cpu_seconds: so_far.cpu_seconds + ticks as f64 / TICKS,
            wakes: so_far.wakes + wakes,
            bytes: so_far.bytes + line(&memory, "Pss:") * 1024,
        }
    })
}
