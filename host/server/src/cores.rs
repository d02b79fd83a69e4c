//! Keeps each thread of a model's steps on a core of its own.
//!
//! The threads of a step wait for each other a few hundred times a token. Where another process runs on a core, Linux often leaves
//! the other core to it and has two of these threads share one: each then waits, in a loop, for one that has no core meanwhile
//! (`docs/benchmarks.md`, "Threads that meet"). On cores of their own they share them with others, and not with each other.
use std::ffi::CString;
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity, set_name};

use crate::sizing::Sized;
use crate::{environment, machine};

/// Cores that no team has yet.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    free: Mutex<Vec<CpuSet>>,
}

impl Cores {
    /// All cores of this process where its teams have as many threads, so that to keep them apart takes no core from anybody;
    /// otherwise none: fewer threads are better left where there is room, and more have to share.
    pub(crate) fn of(sized: &Sized, is_numa: bool) -> Self {
        let threads: u32 = sized.weights.iter().map(|weights| weights.threads_of_all()).sum();
        let cores = machine::processors_of_cores();
        let is_whole = cores.len() == threads as usize && sized.cores() == threads;
        let is_ours = is_whole && !is_numa && !environment::places_threads();
        let set = |processors: &Vec<usize>| {
            let mut set = CpuSet::new();
            processors.iter().for_each(|&processor| set.set(processor));
            set
        };
        Self { free: Mutex::new(if is_ours { cores.iter().map(set).collect() } else { Vec::new() }) }
    }

    /// So many of them for a team, or none if there are fewer.
    pub(crate) fn take(&self, threads: u32) -> Vec<CpuSet> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = threads as usize;
        if threads < 2 || free.len() < threads {
            return Vec::new();
        }
        free.drain(..threads).collect()
    }
}

/// A thread and those that libgomp started for it, each on its core.
#[derive(Debug)]
pub(crate) struct Team {
    /// Where the thread itself might run before.
    everywhere: CpuSet,
    others: Vec<(Pid, CpuSet)>,
}

impl Team {
    /// Runs `first`, in which the calling thread computes for the first time, and keeps it and the threads that were started for
    /// it on these cores. `None` where they are not as many, or the system does not want it: then they run anywhere.
    pub(crate) fn keep<T>(cores: &[CpuSet], first: impl FnOnce() -> T) -> (T, Option<Self>) {
        if cores.is_empty() {
            return (first(), None);
        }
        let (me, name) = (gettid(), std::thread::current().name().unwrap_or("worker").to_owned());
        // Threads inherit the name: by this one they are told from those of other teams.
        let mark = format!("team-{}", me.as_raw_nonzero());
        rename(&mark);
        let done = first();
        let others = named(&mark, me);
        rename(&name);
        for &other in others.as_deref().unwrap_or_default() {
            // Only for those who look at the threads.
            let _ = fs::write(format!("/proc/self/task/{}/comm", other.as_raw_nonzero()), &name);
        }
        let team = others.and_then(|others| Self::place(cores, &others));
        if let Err(error) = &team {
            tracing::debug!(%error, worker = name, "threads that compute are not kept on cores of their own");
        }
        (done, team.ok())
    }

    fn place(cores: &[CpuSet], others: &[Pid]) -> io::Result<Self> {
        let Some((mine, theirs)) = cores.split_first().filter(|(_, theirs)| theirs.len() == others.len()) else {
            return Err(io::Error::other(format!("{} threads for {} cores", others.len() + 1, cores.len())));
        };
        let team = Self {
            everywhere: sched_getaffinity(None)?,
            others: others.iter().copied().zip(theirs.iter().copied()).collect(),
        };
        let mut theirs = team.others.iter();
        let placed = theirs.try_for_each(|(other, core)| sched_setaffinity(Some(*other), core));
        match placed.and_then(|()| sched_setaffinity(None, mine)) {
            Ok(()) => Ok(team),
            Err(error) => {
                team.release();
                Err(error.into())
            }
        }
    }

    /// Lets all run where the one that computes with the others might before. Those that have ended are no matter.
    fn release(&self) {
        let others = self.others.iter().map(|(other, _)| Some(*other));
        for thread in others.chain([None]) {
            let _ = sched_setaffinity(thread, &self.everywhere);
        }
    }

    /// Whether the threads are still those that were placed. Others would have been started on the core of the one that computes
    /// with them: if so, all may run anywhere from now on, as whatever that one starts. To be asked now and then, on that thread.
    pub(crate) fn is_whole(&self) -> bool {
        let is_there = |(other, core): &(Pid, CpuSet)| sched_getaffinity(Some(*other)).is_ok_and(|now| now == *core);
        let is_whole = self.others.iter().all(is_there);
        if !is_whole {
            self.release();
        }
        is_whole
    }
}

fn rename(name: &str) {
    // Linux keeps 15 bytes, and what it does not take costs only the name.
    let _ = CString::new(name).map(|name| set_name(&name));
}

/// Threads of this process with this name, but for one, in the order in which they were started.
fn named(name: &str, but: Pid) -> io::Result<Vec<Pid>> {
    let mut found = Vec::new();
    for task in fs::read_dir("/proc/self/task")? {
        let task = task?;
        // One that has just ended has none.
        let Ok(its) = fs::read_to_string(task.path().join("comm")) else { continue };
        let pid = task.file_name().to_str().and_then(|id| Pid::from_raw(id.parse().ok()?));
        found.extend(pid.filter(|&pid| pid != but && its.trim_end() == name));
    }
    found.sort_by_key(|pid| pid.as_raw_nonzero());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(processor: usize) -> CpuSet {
        let mut set = CpuSet::new();
        set.set(processor);
        set
    }

    /// One processor that this process may use.
    fn any() -> CpuSet {
        let all = sched_getaffinity(None).unwrap();
        on((0..CpuSet::MAX_CPU).find(|&processor| all.is_set(processor)).unwrap())
    }

    /// Threads that are started as libgomp's are, and end when the sender is dropped.
    fn start(count: usize) -> crossbeam_channel::Sender<()> {
        let (end, ends) = crossbeam_channel::bounded::<()>(0);
        let (up, ups) = crossbeam_channel::bounded(count);
        for _ in 0..count {
            let (ends, up) = (ends.clone(), up.clone());
            std::thread::spawn(move || {
                up.send(()).unwrap();
                let _ = ends.recv();
            });
        }
        ups.iter().take(count).for_each(drop);
        end
    }

    #[test]
    fn a_team_is_kept_on_its_cores_until_it_is_another() {
        let before = sched_getaffinity(None).unwrap();
        let (end, team) = Team::keep(&[any(), any(), any()], || start(2));
        let team = team.unwrap();
        assert!(team.is_whole());
        assert_eq!(sched_getaffinity(None).unwrap(), any());
        assert_eq!(team.others.len(), 2);
        let gone = team.others[0].0;
        drop(end);
        while sched_getaffinity(Some(gone)).is_ok() {
            std::thread::yield_now();
        }
        assert!(!team.is_whole());
        assert_eq!(sched_getaffinity(None).unwrap(), before, "what it starts next runs anywhere");
        // A thread that another one placed elsewhere is no longer the team's.
        let (_end, team) = Team::keep(&[any(), any()], || start(1));
        let team = team.unwrap();
        sched_setaffinity(Some(team.others[0].0), &before).unwrap();
        assert!(team.is_whole() == (before == any()));
        assert_eq!(sched_getaffinity(Some(team.others[0].0)).unwrap(), before);
    }

    #[test]
    fn as_many_threads_as_cores_are_kept_and_no_others() {
        let before = sched_getaffinity(None).unwrap();
        for (cores, threads) in [(3, 1), (2, 2), (2, 0), (0, 2)] {
            let (_end, team) = Team::keep(&vec![any(); cores], || start(threads));
            assert!(team.is_none(), "{threads} more threads for {cores} cores");
        }
        // What the system does not take.
        let (_end, team) = Team::keep(&[any(), CpuSet::new()], || start(1));
        assert!(team.is_none());
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn cores_are_given_once_and_to_teams_alone() {
        let cores = Cores { free: Mutex::new((0..5).map(on).collect()) };
        assert!(cores.take(1).is_empty(), "one thread shares with nobody of its own");
        assert_eq!(cores.take(2), [on(0), on(1)]);
        assert!(cores.take(4).is_empty());
        assert_eq!(cores.take(3), [on(2), on(3), on(4)]);
        assert!(cores.take(2).is_empty());
    }
}
