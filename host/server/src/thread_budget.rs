//! The cores that models share: each computes with all of its threads while the others rest, and with its part of the cores while
//! they compute, too. Threads of a step that share a core wait for each other (`docs/benchmarks.md`, "Threads that meet").
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// What all threads that compute may take together.
#[derive(Debug)]
pub(crate) struct ThreadBudget {
    cores: u32,
    /// At least as many: several may share a core.
    processors: u32,
    /// Of those who compute at the moment.
    wanted: AtomicU32,
    /// How many these are.
    busy: AtomicU32,
}

impl ThreadBudget {
    pub(crate) fn new(cores: u32) -> Arc<Self> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::of(cores, u32::try_from(processors).unwrap_or(u32::MAX))
    }

    fn of(cores: u32, processors: u32) -> Arc<Self> {
        Arc::new(Self { cores: cores.max(1), processors, wanted: AtomicU32::new(0), busy: AtomicU32::new(0) })
    }

    /// Whether a processor is left beside those who compute at the moment.
    pub(crate) fn has_spare(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) < self.processors
    }

    /// A place for one who computes with up to this many threads.
    pub(crate) fn seat(self: &Arc<Self>, threads: u32) -> Seat {
        Seat { budget: self.clone(), threads: threads.max(1), computes: false }
    }
}

/// One who computes now and then.
#[derive(Debug)]
pub(crate) struct Seat {
    budget: Arc<ThreadBudget>,
    threads: u32,
    computes: bool,
}

impl Seat {
    /// It has work from now on. Returns the threads for its next step: fewer than its own where all who compute together want more
    /// than there are cores, and at least one.
    pub(crate) fn begin(&mut self) -> u32 {
        if !self.computes {
            self.computes = true;
            self.budget.wanted.fetch_add(self.threads, Ordering::Relaxed);
            self.budget.busy.fetch_add(1, Ordering::Relaxed);
        }
        let wanted = self.budget.wanted.load(Ordering::Relaxed).max(1);
        // Who has more threads than there are cores was told to.
        if wanted <= self.budget.cores || self.budget.busy.load(Ordering::Relaxed) <= 1 {
            return self.threads;
        }
        let part = u64::from(self.threads) * u64::from(self.budget.cores) / u64::from(wanted);
        u32::try_from(part).unwrap_or(self.threads).clamp(1, self.threads)
    }

    /// It has nothing to do.
    pub(crate) fn rest(&mut self) {
        if std::mem::take(&mut self.computes) {
            self.budget.wanted.fetch_sub(self.threads, Ordering::Relaxed);
            self.budget.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_computes_alone_has_all_of_its_threads_and_several_have_the_cores_together() {
        let budget = ThreadBudget::new(4);
        let (mut first, mut second, mut third) = (budget.seat(4), budget.seat(4), budget.seat(1));
        assert_eq!(first.begin(), 4);
        assert_eq!(second.begin(), 2);
        assert_eq!(first.begin(), 2, "from its next step on");
        assert_eq!(third.begin(), 1, "at least one");
        second.rest();
        second.rest();
        assert_eq!(first.begin(), 3);
        drop(third);
        assert_eq!(first.begin(), 4);
        assert_eq!(second.begin(), 2);
    }

    #[test]
    fn a_processor_is_spare_as_long_as_those_who_compute_want_fewer_than_there_are() {
        let budget = ThreadBudget::of(2, 4);
        let (mut first, mut second) = (budget.seat(2), budget.seat(2));
        assert!(budget.has_spare());
        first.begin();
        assert!(budget.has_spare(), "another processor of their cores");
        second.begin();
        assert!(!budget.has_spare());
        first.rest();
        assert!(budget.has_spare());
    }

    #[test]
    fn one_alone_has_as_many_threads_as_it_was_told_to() {
        let budget = ThreadBudget::new(2);
        let (mut only, mut other) = (budget.seat(8), budget.seat(2));
        assert_eq!(only.begin(), 8);
        other.begin();
        assert_eq!(only.begin(), 1);
        other.rest();
        assert_eq!(only.begin(), 8);
    }
}
