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

/// Cores for teams.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    all: Vec<CpuSet>,
    /// Those that no team has yet, where the teams divide them.
    free: Mutex<Vec<CpuSet>>,
}

impl Cores {
    /// All cores of this process. `are_divided`: see [`crate::sizing::Sized::divides_cores`].
    pub(crate) fn of(are_divided: bool, is_numa: bool) -> Self {
        let cores = if is_numa || environment::places_threads() { Vec::new() } else { machine::alike_cores() };
        let all: Vec<CpuSet> = cores.iter().map(|core| set(core)).collect();
        Self { free: Mutex::new(if are_divided { all.clone() } else { Vec::new() }), all }
    }

    /// As many of them as a team has threads: its own ones where teams divide them, or all of them, as a model has that takes another
    /// one's place: it computes with so many threads only while no other does. Otherwise none: fewer threads are better left where
    /// there is room, and more have to share.
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

/// Steps from one look at whether the threads that compute are still the same to the next.
const LOOK_AT_TEAM: u32 = 64;
/// Steps after which a team that is not complete is none: not each step computes.
const STEPS_TO_COMPLETE: u32 = 8;

/// A thread and those that libgomp started for it, each on its core while all of them compute.
#[derive(Debug)]
pub(crate) struct Team {
    /// Of the thread itself and of each other. None: it runs anywhere, for good.
    cores: Vec<CpuSet>,
    /// Where they run otherwise.
    everywhere: CpuSet,
    others: Vec<Pid>,
    is_placed: bool,
    /// That it computed where its threads are.
    steps: u32,
    was_told: bool,
}

impl Team {
    /// Of the calling thread. `cores`: one for each thread of it, or none.
    pub(crate) fn new(cores: Vec<CpuSet>) -> Self {
        let everywhere = sched_getaffinity(None);
        let cores = if everywhere.is_ok() { cores } else { Vec::new() };
        Self {
            cores,
            everywhere: everywhere.unwrap_or_default(),
            others: Vec::new(),
            is_placed: false,
            steps: 0,
            was_told: false,
        }
    }

    /// Runs a step that the calling thread computes with so many threads, itself among them. Where these are all of the team, each is
    /// kept on its core from then on: fewer share the cores with other teams, and run anywhere.
    pub(crate) fn step<T>(&mut self, threads: u32, step: impl FnOnce() -> T) -> T {
        if self.cores.len() != threads as usize {
            if self.is_placed {
                self.let_go();
            }
            return step();
        }
        self.steps = self.steps.wrapping_add(1);
        if !self.is_placed {
            return self.place(step);
        }
        if self.steps.is_multiple_of(LOOK_AT_TEAM) {
            self.check();
        }
        step()
    }

    /// Runs a step, and keeps each thread on its core from then on.
    fn place<T>(&mut self, step: impl FnOnce() -> T) -> T {
        let (me, name) = (gettid(), std::thread::current().name().unwrap_or("worker").to_owned());
        // Threads inherit the name: by this one those that are started in the step are told from those of other teams.
        let mark = format!("team-{}", me.as_raw_nonzero());
        rename(&mark);
        let done = step();
        let new = named(&mark, me);
        rename(&name);
        self.others.retain(|other| is_ours(*other));
        for other in new.unwrap_or_default() {
            // Only for those who look at the threads.
            let _ = fs::write(format!("/proc/self/task/{}/comm", other.as_raw_nonzero()), &name);
            self.others.push(other);
        }
        if self.others.len() + 1 < self.cores.len() && self.steps < STEPS_TO_COMPLETE {
            return done;
        }
        match self.keep() {
            Ok(()) if !std::mem::replace(&mut self.was_told, true) => {
                let cores = self.cores.iter().map(shown).collect::<Vec<_>>().join(", ");
                tracing::info!(worker = name, cores, "each thread that computes has a core of its own");
            }
            Ok(()) => {}
            Err(error) => {
                tracing::info!(%error, worker = name, "threads that compute have no cores of their own");
                self.cores.clear();
            }
        }
        done
    }

    /// # Errors
    /// There are more or fewer threads than cores, somebody else says where they run, the system refuses, or a thread is gone: all of
    /// them run anywhere.
    fn keep(&mut self) -> io::Result<()> {
        let Some((mine, theirs)) = self.cores.split_first().filter(|(_, theirs)| theirs.len() == self.others.len())
        else {
            return Err(io::Error::other(format!("{} threads for {} cores", self.others.len() + 1, self.cores.len())));
        };
        if sched_getaffinity(None)? != self.everywhere {
            return Err(io::Error::other("somebody else says where they run"));
        }
        let placed = self.others.iter().zip(theirs).try_for_each(|(other, core)| {
            if !is_ours(*other) {
                return Err(io::Error::other("a thread has ended"));
            }
            Ok(sched_setaffinity(Some(*other), core)?)
        });
        let placed = placed.and_then(|()| Ok(sched_setaffinity(None, mine)?));
        (self.is_placed, self.steps) = (placed.is_ok(), 0);
        if placed.is_err() {
            self.let_go();
        }
        placed
    }

    /// Lets the threads run anywhere, also those that came in the place of others, which have the calling one's core and name.
    fn let_go(&mut self) {
        (self.is_placed, self.steps) = (false, 0);
        let me = gettid();
        let is_kept = |thread: &Pid| sched_getaffinity(Some(*thread)).is_ok_and(|now| self.cores.contains(&now));
        let like_me = name_of(me).and_then(|name| named(&name, me).ok()).unwrap_or_default();
        let others =
            self.others.iter().filter(|other| is_ours(**other)).chain(like_me.iter().filter(|other| is_kept(other)));
        for thread in others.copied().map(Some).chain([None]) {
            let _ = sched_setaffinity(thread, &self.everywhere);
        }
    }

    /// If others came in the place of its threads, all run anywhere from now on; if somebody moved one of them, none is moved any more.
    fn check(&mut self) {
        let is_off = |thread, core: &CpuSet| sched_getaffinity(thread).is_ok_and(|now| now != *core);
        let threads = [None].into_iter().chain(self.others.iter().copied().map(Some));
        let mut alive = threads.zip(&self.cores).filter(|(thread, _)| thread.is_none_or(is_ours));
        if alive.any(|(thread, core)| is_off(thread, core)) {
            tracing::info!("somebody else says where a thread that computes runs: all of them stay where they are");
            (self.cores, self.is_placed) = (Vec::new(), false);
        } else if !self.others.iter().all(|other| is_ours(*other)) {
            tracing::info!("threads that compute have cores of their own no more: others came in their place");
            self.let_go();
            self.cores.clear();
        }
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
