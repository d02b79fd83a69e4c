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

use crate::{environment, machine};

/// Cores that no team has yet.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    all: Vec<CpuSet>,
    free: Mutex<Vec<CpuSet>>,
}

impl Cores {
    /// All cores of this process where its models compute in teams that have as many threads, so that to keep them apart takes no
    /// core from anybody. Otherwise none: fewer threads are better left where there is room, more have to share, and threads that
    /// run anywhere would come to cores that others cannot leave. `teams`: see [`crate::sizing::Sized::teams`].
    pub(crate) fn of(teams: Option<u32>, is_numa: bool) -> Self {
        let cores = machine::alike_cores();
        let is_whole = teams.is_some_and(|threads| cores.len() == threads as usize);
        let is_ours = is_whole && !is_numa && !environment::places_threads();
        let all: Vec<CpuSet> = if is_ours { cores.iter().map(|core| set(core)).collect() } else { Vec::new() };
        Self { free: Mutex::new(all.clone()), all }
    }

    /// As many of them as a team has threads, or none if there are fewer. A team with a thread for each core, as a model has that
    /// takes another one's place, gets all of them beside the other team: each of its threads has a core that no other thread of
    /// it has.
    pub(crate) fn take(&self, threads: u32) -> Vec<CpuSet> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let threads = threads as usize;
        if free.len() >= threads {
            return free.drain(..threads).collect();
        }
        if self.all.len() == threads { self.all.clone() } else { Vec::new() }
    }
}

pub(crate) fn set(processors: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    processors.iter().for_each(|&processor| set.set(processor));
    set
}

/// The processors of a set, for people.
fn shown(set: &CpuSet) -> String {
    processors(set).iter().map(usize::to_string).collect::<Vec<_>>().join("+")
}

pub(crate) fn processors(set: &CpuSet) -> Vec<usize> {
    (0..CpuSet::MAX_CPU).filter(|&number| set.is_set(number)).collect()
}

/// A thread and those that libgomp started for it, each on its core.
#[derive(Debug)]
pub(crate) struct Team {
    /// Where the thread itself might run before.
    everywhere: CpuSet,
    /// Its core.
    mine: CpuSet,
    others: Vec<(Pid, CpuSet)>,
}

/// Gives a thread its name back.
struct Renamed(String);

impl Drop for Renamed {
    fn drop(&mut self) {
        rename(&self.0);
    }
}

impl Team {
    /// Runs `first`, in which the calling thread computes for the first time, and keeps it and the threads that were started
    /// meanwhile on these cores. `None` where there are more or fewer threads than cores, or the system refuses: then all of them
    /// run anywhere.
    pub(crate) fn keep<T>(cores: &[CpuSet], first: impl FnOnce() -> T) -> (T, Option<Self>) {
        if cores.is_empty() {
            return (first(), None);
        }
        let (me, name) = (gettid(), std::thread::current().name().unwrap_or("worker").to_owned());
        // Threads inherit the name: by this one they are told from those of other teams.
        let mark = format!("team-{}", me.as_raw_nonzero());
        rename(&mark);
        let renamed = Renamed(name.clone());
        let done = first();
        let others = named(&mark, me);
        drop(renamed);
        for &other in others.as_deref().unwrap_or_default() {
            // Only for those who look at the threads.
            let _ = fs::write(format!("/proc/self/task/{}/comm", other.as_raw_nonzero()), &name);
        }
        match others.and_then(|others| Self::new(cores, &others)).and_then(Self::placed) {
            Ok(team) => {
                let cores = cores.iter().map(shown).collect::<Vec<_>>().join(", ");
                tracing::info!(worker = name, cores, "each thread that computes has a core of its own");
                (done, Some(team))
            }
            Err(error) => {
                tracing::info!(%error, worker = name, "threads that compute have no cores of their own");
                (done, None)
            }
        }
    }

    fn new(cores: &[CpuSet], others: &[Pid]) -> io::Result<Self> {
        let Some((mine, theirs)) = cores.split_first().filter(|(_, theirs)| theirs.len() == others.len()) else {
            return Err(io::Error::other(format!("{} threads for {} cores", others.len() + 1, cores.len())));
        };
        Ok(Self {
            everywhere: sched_getaffinity(None)?,
            mine: *mine,
            others: others.iter().copied().zip(theirs.iter().copied()).collect(),
        })
    }

    /// Puts each thread on its core. To be called on the one that computes with the others.
    ///
    /// # Errors
    /// The system refuses, or a thread is gone: all of them run anywhere.
    pub(crate) fn placed(self) -> io::Result<Self> {
        let mut others = self.others.iter();
        let placed = others.try_for_each(|(other, core)| {
            if !is_ours(*other) {
                return Err(io::Error::other("a thread has ended"));
            }
            Ok(sched_setaffinity(Some(*other), core)?)
        });
        match placed.and_then(|()| Ok(sched_setaffinity(None, &self.mine)?)) {
            Ok(()) => Ok(self),
            Err(error) => {
                let others = self.others.iter().map(|(other, _)| *other).filter(|other| is_ours(*other));
                self.let_go(others);
                Err(error)
            }
        }
    }

    /// Lets the threads run anywhere, also those that came in the place of others, which have the calling one's core and name.
    fn release(&self) {
        let me = gettid();
        let of_team = |place: &CpuSet| *place == self.mine || self.others.iter().any(|(_, core)| core == place);
        let is_kept = |thread: &Pid| sched_getaffinity(Some(*thread)).is_ok_and(|now| of_team(&now));
        let like_me = name_of(me).and_then(|name| named(&name, me).ok()).unwrap_or_default();
        self.let_go(like_me.into_iter().filter(is_kept));
    }

    fn let_go(&self, others: impl Iterator<Item = Pid>) {
        for thread in others.map(Some).chain([None]) {
            let _ = sched_setaffinity(thread, &self.everywhere);
        }
    }

    /// Whether somebody else says by now where one of the threads runs.
    fn was_moved(&self) -> bool {
        let is_off = |thread, core: &CpuSet| sched_getaffinity(thread).is_ok_and(|now| now != *core);
        let others = self.others.iter().filter(|(other, _)| is_ours(*other));
        is_off(None, &self.mine) || { others }.any(|(other, core)| is_off(Some(*other), core))
    }

    /// The team if its threads are still those that were placed, each on its core. If others came in their place, all run anywhere
    /// from now on; if somebody moved one of them, none is moved any more. To be called now and then, on the thread that computes
    /// with the others.
    pub(crate) fn checked(self) -> Option<Self> {
        if self.was_moved() {
            tracing::info!("somebody else says where a thread that computes runs: all of them stay where they are");
            return None;
        }
        if self.others.iter().all(|(other, _)| is_ours(*other)) {
            return Some(self);
        }
        tracing::info!("threads that compute have cores of their own no more: others came in their place");
        self.release();
        None
    }
}

/// Whether this is a thread of this process: of one that has ended, another process may have the number.
fn is_ours(thread: Pid) -> bool {
    fs::exists(format!("/proc/self/task/{}", thread.as_raw_nonzero())).unwrap_or_default()
}

/// The threads of this process, in the order of their numbers.
fn threads() -> io::Result<Vec<Pid>> {
    let number = |task: io::Result<fs::DirEntry>| task.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw);
    let mut threads: Vec<Pid> = fs::read_dir("/proc/self/task")?.filter_map(number).collect();
    threads.sort_by_key(|thread| thread.as_raw_nonzero());
    Ok(threads)
}

fn rename(name: &str) {
    // Linux keeps 15 bytes, and what it does not take costs only the name.
    let _ = CString::new(name).map(|name| set_name(&name));
}

/// Threads of this process with this name, but for one.
fn named(name: &str, but: Pid) -> io::Result<Vec<Pid>> {
    let has_name = |thread: &Pid| *thread != but && name_of(*thread).is_some_and(|its| its == name);
    Ok(threads()?.into_iter().filter(has_name).collect())
}

/// `None` if it has just ended.
fn name_of(thread: Pid) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/self/task/{}/comm", thread.as_raw_nonzero())).ok()?;
    Some(name.trim_end().to_owned())
}

#[cfg(test)]
#[path = "cores_tests.rs"]
mod tests;
