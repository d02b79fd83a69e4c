//! How much memory the control groups leave to this process.
use std::path::Path;
use std::{fs, io};

use rustix::io::Errno;

/// Where systems mount the control groups.
const ROOT: &str = "/sys/fs/cgroup";
/// What the kernel writes for a group of version 1 without a limit is close to this.
const NO_LIMIT: u64 = 1 << 62;

/// How a version of control groups names its files.
struct Names {
    /// The least of them counts: above some, the kernel slows a process down rather than end it.
    limits: &'static [&'static str],
    usage: &'static str,
    /// Lines of `memory.stat` that count the page cache, which the kernel gives up where memory is short.
    cache: [&'static str; 2],
}

const V1: Names = Names {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};
const V2: Names =
    Names { limits: &["memory.max", "memory.high"], usage: "memory.current", cache: ["inactive_file", "active_file"] };

/// Bytes that this process can still take before a memory limit of its control group, or of one above, is reached. `None`:
/// there is no such limit, or the system does not tell. 0: the process may open no file now to read it.
pub fn memory_left() -> Option<u64> {
    match fs::read_to_string("/proc/self/cgroup") {
        Ok(groups) => left_below(Path::new(ROOT), &groups),
        Err(error) => has_no_file(&error).then_some(0),
    }
}

fn has_no_file(error: &io::Error) -> bool {
    matches!(error.raw_os_error().map(Errno::from_raw_os_error), Some(Errno::MFILE | Errno::NFILE))
}

/// `groups`: a line `number:controllers:path` for each hierarchy that the process is in.
fn left_below(root: &Path, groups: &str) -> Option<u64> {
    let left = groups.lines().filter_map(|line| {
        let (controllers, group) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => left_in(root, group, &V2),
            _ if controllers.split(',').any(|one| one == "memory") => left_in(&root.join("memory"), group, &V1),
            _ => None,
        }
    });
    left.min()
}

/// The least that the group or one above leaves. A container often sees only a part of the path, at its root.
fn left_in(root: &Path, group: &str, names: &Names) -> Option<u64> {
    let group = Path::new(group.trim_start_matches('/'));
    group.ancestors().filter_map(|group| left_of(&root.join(group), names)).min()
}

fn left_of(group: &Path, names: &Names) -> Option<u64> {
    let read = |file: &str| fs::read_to_string(group.join(file));
    let limits: Vec<io::Result<String>> = names.limits.iter().map(|file| read(file)).collect();
    if limits.iter().any(|limit| limit.as_ref().is_err_and(has_no_file)) {
        return Some(0);
    }
    let parse = |text: &String| text.trim().parse::<u64>().ok();
    let number = |file: &str| parse(&read(file).ok()?);
    let limit = limits.iter().flatten().filter_map(parse).filter(|limit| *limit < NO_LIMIT).min()?;
    let stat = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let counts = |name: &str| names.cache.contains(&name);
    let cache = stat.lines().filter_map(|line| line.split_once(' ')).filter(|(name, _)| counts(name));
    let cache: u64 = cache.filter_map(|(_, bytes)| bytes.trim().parse::<u64>().ok()).sum();
    let taken = number(names.usage)?.saturating_sub(cache);
    Some(limit.saturating_sub(taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn put(root: &Path, group: &str, files: &[(&str, &str)]) {
        fs::create_dir_all(root.join(group)).unwrap();
        for (file, text) in files {
            fs::write(root.join(group).join(file), text).unwrap();
        }
    }

    #[test]
    fn the_group_that_leaves_least_counts() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(left_below(root, "0::/a/b\n"), None, "nothing is mounted");
        put(root, "a/b", &[("memory.max", "max\n"), ("memory.current", "5242880\n")]);
        assert_eq!(left_below(root, "0::/a/b\n"), None, "no group has a limit");
        put(root, "a", &[("memory.max", "104857600\n"), ("memory.current", "83886080\n")]);
        assert_eq!(left_below(root, "0::/a/b\n"), Some(20 * MIB));
        put(root, "a", &[("memory.stat", "anon 1\ninactive_file 1048576\nactive_file 2097152\nfile 7\n")]);
        assert_eq!(left_below(root, "0::/a/b\n"), Some(23 * MIB), "the page cache gives way");
        put(root, "a/b", &[("memory.max", "6291456\n")]);
        assert_eq!(left_below(root, "0::/a/b\n"), Some(MIB));
        put(root, "a/b", &[("memory.high", "max\n")]);
        assert_eq!(left_below(root, "0::/a/b\n"), Some(MIB));
        put(root, "a/b", &[("memory.high", "5767168\n")]);
        assert_eq!(left_below(root, "0::/a/b\n"), Some(MIB / 2), "the kernel slows down what takes more");
        put(root, "a/b", &[("memory.current", "99999999\n")]);
        assert_eq!(left_below(root, "0::/a/b\n"), Some(0));
    }

    #[test]
    fn version_1_counts_where_it_controls_memory() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let groups = "9:name=systemd:/\n4:cpu,memory:/pod/one\n3:cpuset:/pod/one\n0::/\n";
        let limit = |bytes: &str| put(root, "memory/pod", &[("memory.limit_in_bytes", bytes)]);
        put(
            root,
            "memory/pod",
            &[("memory.usage_in_bytes", "3145728\n"), ("memory.stat", "total_active_file 1048576")],
        );
        limit("9223372036854771712\n");
        assert_eq!(left_below(root, groups), None);
        limit("10485760\n");
        assert_eq!(left_below(root, groups), Some(8 * MIB));
        // In a container its own group is the root, whatever path the process is told.
        put(root, "memory", &[("memory.limit_in_bytes", "4194304"), ("memory.usage_in_bytes", "1048576")]);
        assert_eq!(left_below(root, groups), Some(3 * MIB));
    }

    /// Has this test run alone in a process, which may open no more files while `act` runs.
    #[cfg(target_os = "linux")]
    fn without_files(test: &str, act: impl FnOnce()) {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        const ALONE: &str = "CAMSHAFT_TEST_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let this = std::env::current_exe().unwrap();
            let output = std::process::Command::new(this).args(["--exact", test]).env(ALONE, "1").output().unwrap();
            let words = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && words.contains("1 passed"), "{words}");
            return;
        }
        let limits = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limits }).unwrap();
        act();
        setrlimit(Resource::Nofile, limits).unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn regression_nothing_is_left_where_no_file_can_be_opened_to_see_it() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "a", &[("memory.max", "104857600\n"), ("memory.current", "0\n")]);
        without_files("memory::tests::regression_nothing_is_left_where_no_file_can_be_opened_to_see_it", || {
            let left = (left_below(dir.path(), "0::/a\n"), memory_left());
            assert_eq!(left, (Some(0), Some(0)));
        });
        assert_eq!(left_below(dir.path(), "0::/a\n"), Some(100 * MIB));
    }
}
