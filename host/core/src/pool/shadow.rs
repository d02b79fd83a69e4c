//! A scheduler that is only monitored: it sees the real arrivals, and what it does happens in a virtual book.
//!
//! It is asked after the scheduler in force, whose actions were carried out before. Its faults open a breaker of its own; the
//! book is opened anew, from the real one, when it is asked again.
use std::sync::Arc;
use std::time::Duration;

use super::virtual_book::VirtualBook;
use crate::breaker::{Admission, Breaker, Turn};
use crate::ids::{Generation, RequestId};
use crate::policy::{
    Difference, Fault, FaultKind, Observation, PoolBooks, Scheduler, SchedulerEvent, SchedulerHook, WorkerFacts,
};

/// What is monitored at present.
enum Watch {
    /// Nothing: no scheduler is, or its book became too long.
    Off,
    On {
        scheduler: Box<dyn Scheduler>,
        book: Box<VirtualBook>,
    },
    /// A fault cost the scheduler its instance. It gets another one when its breaker allows.
    Paused,
}

pub(super) struct ShadowScheduler {
    hook: Arc<dyn SchedulerHook>,
    /// Of the monitored scheduler; `None`: none is monitored.
    generation: Option<Generation>,
    breaker: Breaker,
    watch: Watch,
}

impl ShadowScheduler {
    pub(super) fn new(hook: Arc<dyn SchedulerHook>) -> Self {
        let breaker = Breaker::new(hook.monitored_breaker());
        Self { hook, generation: None, breaker, watch: Watch::Off }
    }

    /// Opens the scheduler that is to be monitored, if it is another one or its breaker lets it be asked again. `replay`: the
    /// real book.
    pub(super) fn refresh(&mut self, now: Duration, replay: impl FnOnce() -> Vec<SchedulerEvent>) {
        let generation = self.hook.monitored();
        let is_new = generation != self.generation;
        if is_new {
            self.generation = generation;
            self.breaker = Breaker::new(self.hook.monitored_breaker());
            self.watch = Watch::Off;
        }
        let again = matches!(self.watch, Watch::Paused) && self.breaker.admit(now) != Admission::Refuse;
        if !is_new && !again {
            return;
        }
        match self.hook.open_monitored() {
            Ok(Some((_, scheduler))) => {
                let book = Box::new(VirtualBook::of(&replay(), now));
                self.watch = Watch::On { scheduler, book };
            }
            Ok(None) => self.watch = Watch::Off,
            Err(fault) => self.faulted(&fault, now),
        }
    }

    /// What the scheduler was told of requests is not true any more: a fresh instance gets a fresh book.
    pub(super) fn reopen(&mut self) {
        if self.is_on() {
            self.watch = Watch::Paused;
        }
    }

    /// Takes in what the scheduler in force is told.
    pub(super) fn note(&mut self, events: &[SchedulerEvent], now: Duration) {
        if let Watch::On { book, .. } = &mut self.watch {
            events.iter().for_each(|event| book.note(event, now));
        }
    }

    /// The scheduler in force has dispatched a request.
    pub(super) fn dispatched(&mut self, id: RequestId, now: Duration) {
        if let Watch::On { book, .. } = &mut self.watch {
            book.dispatched(id, now);
        }
    }

    /// Whether there is one that would see new facts of the workers.
    pub(super) fn is_on(&self) -> bool {
        matches!(self.watch, Watch::On { .. })
    }

    /// Lets the virtual book's time go on, and asks the scheduler if there is news for it. `behind`: the pool has other work,
    /// so it is not asked now.
    pub(super) fn advance(
        &mut self,
        now: Duration,
        workers: Vec<WorkerFacts>,
        books: Arc<dyn PoolBooks>,
        behind: bool,
    ) {
        let Watch::On { scheduler, book } = &mut self.watch else { return };
        book.set_workers(workers);
        let late = book.advance(now);
        (0..late).for_each(|_| self.hook.observed(Observation::Differs(Difference::Late)));
        book.take_compared().into_iter().for_each(|waits| self.hook.observed(Observation::Waited(waits)));
        if book.is_full() {
            self.hook.observed(Observation::Differs(Difference::Overflow));
            self.watch = Watch::Off;
            return;
        }
        if !book.has_news() {
            return;
        }
        if behind {
            self.hook.observed(Observation::Skipped);
            return;
        }
        let point = book.point(now, books);
        let checked = scheduler.schedule(&point).and_then(|actions| match book.check_actions(&actions) {
            Ok(()) => Ok(actions),
            Err(detail) => {
                let fault = Fault { plugin: "monitored".into(), kind: FaultKind::InvalidOutput, detail };
                self.hook.observed(Observation::Refused(&fault));
                Err(fault)
            }
        });
        match checked {
            Ok(actions) => {
                let differences = book.carry_out(&actions, now);
                differences.into_iter().for_each(|kind| self.hook.observed(Observation::Differs(kind)));
                book.take_compared().into_iter().for_each(|waits| self.hook.observed(Observation::Waited(waits)));
                self.hook.observed(Observation::Waiting(book.waiting()));
                if self.breaker.answered(now) == Some(Turn::Closed) {
                    self.hook.observed(Observation::Closed);
                }
            }
            Err(fault) => self.faulted(&fault, now),
        }
    }

    fn faulted(&mut self, fault: &Fault, now: Duration) {
        self.watch = Watch::Paused;
        if let Some(Turn::Opened { pause }) = self.breaker.faulted(now) {
            self.hook.observed(Observation::Opened { fault, pause });
        }
    }
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
