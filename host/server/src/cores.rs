//! Keeps each thread of a model's steps on a core of its own.
//!
//! The threads of a step wait for each other a few hundred times a token. Where another process runs on a core, Linux often leaves
//! the other core to it and has two of these threads share one: each then waits, in a loop, for one that has no core meanwhile
//! (`docs/benchmarks.md`, "Threads that meet"). On cores of their own they share them with others, and not with each other.
use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};

use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_setaffinity};

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
/// Steps that compute, after which a team that is not complete is none.
const STEPS_TO_COMPLETE: u32 = 8;

/// A thread and those that libgomp started for it, each on its core while all of them compute. Threads that a thread starts have its
/// name, which no other worker of the process has: by it they are found.
#[derive(Debug)]
pub(crate) struct Team {
    /// Of the thread itself and of each other. Empty: it runs anywhere, for good.
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

    /// Runs a step for which the calling thread has so many threads, itself among them; `computes` tells of what came of it whether
    /// they computed. Where these are all of the team, each is kept on its core from then on: fewer share the cores with other teams,
    /// and run anywhere.
    pub(crate) fn step<T>(&mut self, threads: u32, step: impl FnOnce() -> T, computes: impl FnOnce(&T) -> bool) -> T {
        let are_all = self.cores.len() == threads as usize;
        if self.is_placed && (!are_all || self.steps.is_multiple_of(LOOK_AT_TEAM)) {
            self.check();
        }
        if self.is_placed && !are_all {
            self.let_go();
        }
        let done = step();
        if are_all && !self.cores.is_empty() && computes(&done) {
            self.steps = self.steps.wrapping_add(1);
            if !self.is_placed {
                self.place();
            }
        }
        done
    }

    /// Keeps each thread on its core, once all of them are there.
    fn place(&mut self) {
        self.others = named_like_me();
        if self.others.len() + 1 < self.cores.len() && self.steps < STEPS_TO_COMPLETE {
            return;
        }
        let worker = std::thread::current().name().unwrap_or_default().to_owned();
        match self.keep() {
            Ok(()) if !std::mem::replace(&mut self.was_told, true) => {
                let cores = self.cores.iter().map(shown).collect::<Vec<_>>().join(", ");
                tracing::info!(worker, cores, "each thread that computes has a core of its own");
            }
            Ok(()) => {}
            Err(error) => {
                tracing::info!(%error, worker, "threads that compute have no cores of their own");
                self.cores.clear();
            }
        }
    }

    /// # Errors
    /// There are more or fewer threads than cores, or somebody else says where they run: all of them stay where they are. Or the
    /// system refuses: they run anywhere.
    fn keep(&mut self) -> io::Result<()> {
        if self.others.len() + 1 != self.cores.len() {
            return Err(io::Error::other(format!("{} threads for {} cores", self.others.len() + 1, self.cores.len())));
        }
        let threads = || [None].into_iter().chain(self.others.iter().copied().map(Some));
        if threads().any(|thread| sched_getaffinity(thread).is_ok_and(|now| now != self.everywhere)) {
            return Err(io::Error::other("somebody else says where they run"));
        }
        let placed = threads().zip(&self.cores).try_for_each(|(thread, core)| sched_setaffinity(thread, core));
        (self.is_placed, self.steps) = (placed.is_ok(), 0);
        if placed.is_err() {
            self.let_go();
        }
        Ok(placed?)
    }

    /// Lets the threads run anywhere, also those that came in the place of others, which have the core of the calling one.
    fn let_go(&mut self) {
        (self.is_placed, self.steps) = (false, 0);
        let is_kept = |thread: &Pid| sched_getaffinity(Some(*thread)).is_ok_and(|now| self.cores.contains(&now));
        for thread in named_like_me().into_iter().filter(is_kept).map(Some).chain([None]) {
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

/// The other threads of this process that have the calling one's name, in the order of their numbers. None where the system does not say.
fn named_like_me() -> Vec<Pid> {
    let name = |thread: Pid| fs::read_to_string(format!("/proc/self/task/{}/comm", thread.as_raw_nonzero())).ok();
    let (me, mine) = (gettid(), name(gettid()));
    let number = |task: io::Result<fs::DirEntry>| task.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw);
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().filter_map(number);
    let mut threads: Vec<Pid> = tasks.filter(|thread| *thread != me && name(*thread) == mine).collect();
    threads.sort_by_key(|thread| thread.as_raw_nonzero());
    threads
}

#[cfg(test)]
#[path = "cores_tests.rs"]
mod tests;
