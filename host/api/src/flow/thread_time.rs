//! The CPU time of a thread, as another thread reads it.
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::gettid;

/// The system counts in ticks of this length wherever it tells programs.
const TICK: Duration = Duration::from_millis(10);
/// Behind the thread's name: the state, ten numbers, and the ticks that it ran as a program and in the system.
const BEFORE_TICKS: usize = 11;
/// More than the system writes of one thread.
const STAT_BYTES: usize = 4096;

/// Of one thread. It is that thread's also when another one reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ThreadTime(Pid);

/// Why a thread's time is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unknown {
    /// The process may open no more files now.
    NoFile,
    /// The thread has ended, or the system does not tell.
    Untold,
}

impl ThreadTime {
    /// Of this thread. Costs next to nothing until somebody reads it.
    pub(crate) fn of_this_thread() -> Self {
        Self(gettid())
    }

    /// # Errors
    /// Why nobody can say.
    pub(crate) fn taken(self) -> Result<Duration, Unknown> {
        let Self(thread) = self;
        let file = File::open(format!("/proc/self/task/{}/stat", thread.as_raw_pid()));
        let file = file.map_err(|error| match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => Unknown::NoFile,
            _ => Unknown::Untold,
        })?;
        let mut text = [0; STAT_BYTES];
        let bytes = file.read_at(&mut text, 0).map_err(|_| Unknown::Untold)?;
        let ticks = str::from_utf8(&text[..bytes]).ok().and_then(ticks).ok_or(Unknown::Untold)?;
        Ok(TICK.saturating_mul(ticks))
    }
}

/// The name may hold anything, also spaces and brackets.
fn ticks(stat: &str) -> Option<u32> {
    let (_, behind) = stat.rsplit_once(')')?;
    let mut numbers = behind.split_ascii_whitespace().skip(BEFORE_TICKS).map(str::parse::<u32>);
    numbers.next()?.ok()?.checked_add(numbers.next()?.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_ticks_behind_any_name() {
        let stat = "7 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20";
        assert_eq!(ticks(stat), Some(42));
        assert_eq!(ticks("7 (a) R 1"), None);
        assert_eq!(ticks(""), None);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_works_takes_time_and_one_that_waits_does_not() {
        let (own, others) = crossbeam_channel::bounded(0);
        let (release, released) = crossbeam_channel::bounded::<()>(0);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                own.send(ThreadTime::of_this_thread()).unwrap();
                while released.try_recv().is_err() {
                    std::hint::spin_loop();
                }
                let _ = released.recv();
            });
            let time: ThreadTime = others.recv().unwrap();
            while time.taken().unwrap() < 5 * TICK {
                std::thread::yield_now();
            }
            release.send(()).unwrap();
            let own = ThreadTime::of_this_thread();
            let (before, begun) = (time.taken().unwrap(), own.taken().unwrap());
            while own.taken().unwrap() < begun + 20 * TICK {
                std::hint::spin_loop();
            }
            assert!(time.taken().unwrap() < before + 5 * TICK, "it waits, while this thread works");
            drop(release);
        });
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
    fn regression_a_thread_of_which_no_file_tells_now_has_not_ended() {
        let time = ThreadTime::of_this_thread();
        without_files("flow::thread_time::tests::regression_a_thread_of_which_no_file_tells_now_has_not_ended", || {
            assert_eq!(time.taken(), Err(Unknown::NoFile));
        });
        assert!(time.taken().is_ok());
    }
}
