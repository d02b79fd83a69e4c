//! What this process may use: memory and cores, by the system and by the control groups it is in.
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use camshaft_core::sizes::Machine;
use rustix::process::{Resource, getrlimit};
use rustix::thread::sched_getaffinity;

/// Used if the system says nothing.
const UNKNOWN_MEMORY: u64 = 4 << 30;

/// Looks at the machine.
pub(crate) fn look() -> Machine {
    look_below(Path::new("/"))
}

fn look_below(root: &Path) -> Machine {
    let limit = getrlimit(Resource::Data).current.unwrap_or(u64::MAX);
    let groups = camshaft_policy::memory_left().unwrap_or(u64::MAX);
    let memory = free_of_system(root).unwrap_or(UNKNOWN_MEMORY).min(groups).min(limit);
    Machine { memory, cores: cores(root) }
}

/// Memory that the whole system could give, what the page cache would give back included.
fn free_of_system(root: &Path) -> Option<u64> {
    let text = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    kib.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Physical cores among the processors that this process may run on, at most its quota of time.
fn cores(root: &Path) -> u32 {
    let quota = std::thread::available_parallelism().map_or(1, usize::from);
    let cores = of_process(root).map_or(quota, |cores| cores.len());
    cores.clamp(1, quota) as u32
}

/// The processors that this process may run on, of each physical core, in their order. None where some cores are faster than
/// others: there the system knows best who needs which.
pub(crate) fn alike_cores() -> Vec<Vec<usize>> {
    let root = Path::new("/");
    of_process(root).filter(|cores| are_alike(root, cores)).unwrap_or_default()
}

/// Whether the system says of no core that it is faster than another one.
fn are_alike(root: &Path, cores: &[Vec<usize>]) -> bool {
    let speed = |core: &Vec<usize>| {
        let of = |file: &str| {
            let processor = root.join(format!("sys/devices/system/cpu/cpu{}", core.first()?));
            fs::read_to_string(processor.join(file)).ok()
        };
        (of("cpu_capacity"), of("cpufreq/cpuinfo_max_freq"))
    };
    let mut speeds = cores.iter().map(speed);
    let first = speeds.next();
    speeds.all(|speed| Some(speed) == first)
}

/// `None`: the system does not say where this process may run.
fn of_process(root: &Path) -> Option<Vec<Vec<usize>>> {
    let set = sched_getaffinity(None).ok()?;
    Some(physical(root, (0..rustix::thread::CpuSet::MAX_CPU).filter(|&number| set.is_set(number))))
}

/// Those of each core that the processors belong to. One that the system says nothing of counts as a core.
fn physical(root: &Path, processors: impl Iterator<Item = usize>) -> Vec<Vec<usize>> {
    let siblings = |number: usize| {
        let file = root.join(format!("sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list"));
        fs::read_to_string(file).map_or_else(|_| number.to_string(), |list| list.trim().to_owned())
    };
    let mut cores = BTreeMap::<String, Vec<usize>>::new();
    processors.for_each(|number| cores.entry(siblings(number)).or_default().push(number));
    let mut cores: Vec<_> = cores.into_values().collect();
    cores.sort();
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that stands for the root, with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn memory_is_what_the_system_can_give() {
        let meminfo = ("proc/meminfo", "MemTotal:  16 kB\nMemAvailable:       8000 kB\n");
        assert_eq!(free_of_system(root(&[meminfo]).path()), Some(8000 << 10));
        assert_eq!(free_of_system(root(&[("proc/meminfo", "MemFree: 1 kB\n")]).path()), None);
        assert_eq!(free_of_system(root(&[]).path()), None);
    }

    #[test]
    fn threads_of_one_core_count_once() {
        let list = |number: usize| format!("sys/devices/system/cpu/cpu{number}/topology/thread_siblings_list");
        let (a, b, c) = (list(0), list(1), list(2));
        let root = root(&[(&a, "0,2\n"), (&b, "1\n"), (&c, "0,2\n")]);
        assert_eq!(physical(root.path(), 0..3).len(), 2);
        assert_eq!(physical(root.path(), [0, 2].into_iter()), [[0, 2]]);
        assert_eq!(physical(root.path(), 5..9).len(), 4);
        assert!(look().cores >= 1);
    }

    #[test]
    fn cores_are_in_the_order_of_their_processors() {
        let root = root(&[]);
        assert_eq!(physical(root.path(), 0..12), (0..12).map(|number| vec![number]).collect::<Vec<_>>());
    }

    #[test]
    fn cores_are_alike_unless_the_system_says_otherwise() {
        let cores = [vec![0], vec![1]];
        let file = |number: usize, name: &str| format!("sys/devices/system/cpu/cpu{number}/{name}");
        assert!(are_alike(root(&[]).path(), &cores) && are_alike(Path::new("/"), &cores[..1]));
        for name in ["cpu_capacity", "cpufreq/cpuinfo_max_freq"] {
            let of = |speeds: [&str; 2]| root(&[(&file(0, name), speeds[0]), (&file(1, name), speeds[1])]);
            assert!(are_alike(of(["1024\n", "1024\n"]).path(), &cores));
            assert!(!are_alike(of(["446\n", "1024\n"]).path(), &cores));
        }
    }
}
